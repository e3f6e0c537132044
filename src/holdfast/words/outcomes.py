"""How calls and runs ended, in words: resolved doubts, reports of workers that lost a run, the errors of ended runs."""

from __future__ import annotations

from holdfast.core.state import Evidence, Resolution, signed
from holdfast.errors import (
    BudgetExceeded,
    DeadlineExceeded,
    IterationsExceeded,
    RunCancelled,
    RunFailed,
)


def resolution(x: Resolution) -> str:
    """`done by ann: seen on the statement`."""
    return signed(x.how, x.by, x.why)


def evidence(x: Evidence) -> str:
    """What a worker that had lost the run reports of a call."""
    return f"{x.worker} (epoch {x.epoch}), which had lost its lease, reports: {x.outcome}"


def cancelled_error(run_id: str, by: str, why: str, root: str = "") -> RunCancelled:
    """The exception for a run that was cancelled, and by whom."""
    message = signed("cancelled", by, why)
    return RunCancelled(run_id, "cancelled", message, reason="cancelled", root=root)


def outcome_error(
    run_id: str, reason: str, error_type: str, message: str, root: str = ""
) -> RunFailed:
    """The exception for a run that ended without a result."""
    kind = {
        "deadline": DeadlineExceeded,
        "budget": BudgetExceeded,
        "iterations": IterationsExceeded,
    }
    return kind.get(reason, RunFailed)(run_id, error_type, message, reason=reason, root=root)
