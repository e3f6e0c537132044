"""How a run ended: its recorded result, or the exception that reports its failure."""

from __future__ import annotations

from typing import Any

from holdfast.core import events as e
from holdfast.core import log, values
from holdfast.errors import (
    BudgetExceeded,
    DeadlineExceeded,
    InvalidInput,
    IterationsExceeded,
    LogDamaged,
    RunCancelled,
    RunFailed,
)
from holdfast.runtime.declare.agent_spec import AgentSpec
from holdfast.store.artifacts import read_value
from holdfast.store.base import TERMINAL_STATUSES, RunRow, Store
from holdfast.store.pages import newest_first


def result_of(store: Store, row: RunRow, spec: AgentSpec | None = None) -> Any:
    """The recorded result of a run that has ended, or the error that it ended with."""
    last = -1
    for record in newest_first(store, row.id):
        last = max(last, record.seq)
        event = log.read_event(row.id, record)
        match event:
            case e.RunCompleted():
                data = read_value(store, row.id, event.result, seq=record.seq)
                return spec.result.decode(data) if spec else values.decode(data)
            case e.RunFailure():
                root, error = log.root_of(row.id, row.parent), event.error
                raise outcome_error(row.id, event.reason, error.type, error.message, root)
            case e.RunCancellation():
                raise cancelled_error(row.id, event.by, event.why)
            case _:
                continue
    if row.status in TERMINAL_STATUSES:
        raise LogDamaged(row.id, last + 1, "it is missing")
    raise InvalidInput(f"run {row.id!r} has not ended")


def cancelled_error(run_id: str, by: str, why: str) -> RunCancelled:
    """The exception for a run that was cancelled, and by whom."""
    message = "cancelled" + (f" by {by}" if by else "") + (f": {why}" if why else "")
    return RunCancelled(run_id, "cancelled", message, reason="cancelled")


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
