"""What is known of a call, in words: how a doubt was resolved, what a worker that lost the run reports."""

from __future__ import annotations

from holdfast.core.state import Evidence, Resolution


def signed(what: str, by: str, why: str) -> str:
    """What was done, by whom and why."""
    return what + (f" by {by}" if by else "") + (f": {why}" if why else "")


def resolution(x: Resolution) -> str:
    """`done by ann: seen on the statement`."""
    return signed(x.how, x.by, x.why)


def evidence(x: Evidence) -> str:
    """What a worker that had lost the run reports of a call."""
    return f"{x.worker} (epoch {x.epoch}), which had lost the run, reports: {x.outcome}"
