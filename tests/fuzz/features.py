"""What a fuzzing session may use: each feature can be switched off (`--without races,children`)."""

from __future__ import annotations

from collections.abc import Iterable

EFFECTS = ("keyed", "checked", "tx", "once")
"""Effect classes of tools. Plain steps are always there."""

CODE = (
    "retries",
    "failures",
    "random",
    "loops",
    "state",
    "checkpoints",
    "undo",
    "approvals",
    "questions",
    "signals",
    "timers",
    "wait_any",
    "limits",
    "map",
    "gather",
    "group",
    "races",
    "timeouts",
    "children",
    "loop_agents",
    "llm",
)
"""What the code of an agent may do."""

TOGETHER = (
    "branch_waits",
    "branch_children",
    "branch_tx",
    "child_waits",
    "child_limits",
    "child_approvals",
    "conflicts",
)
"""Combinations: a wait, a child run or a transactional tool inside a parallel branch, a child that waits, limits (deadline, budget,
cancellation) and approval by risk of a run with children, events from outside while branches run."""

PEOPLE = ("patches", "pauses", "cancels", "rejections")

FAULTS = ("kills", "freezes", "terms", "callers", "backends", "restarts", "drive", "stalls")
"""`callers`: processes that call AsyncHoldfast.run and are cancelled. `backends`, `restarts`: of PostgreSQL.
`drive`: after the faults runs are brought to their end by `hf.run(wait=True)` and not by a worker. `stalls`:
processes that stand still for less than a lease."""

ALL = frozenset((*EFFECTS, *CODE, *TOGETHER, *PEOPLE, *FAULTS))


def chosen(without: Iterable[str] = (), only: Iterable[str] = ()) -> frozenset[str]:
    """All features, or only those named, but for those taken out."""
    without, only = frozenset(without), frozenset(only)
    unknown = (without | only) - ALL
    if unknown:
        raise ValueError(f"unknown features {sorted(unknown)}; there are {', '.join(sorted(ALL))}")
    return (only or ALL) - without
