"""The recorded result of a run that has ended, or the exception that reports its failure."""

from __future__ import annotations

from typing import Any

from holdfast.core import events as e
from holdfast.core import log, values
from holdfast.runtime.declare.agent_spec import AgentSpec
from holdfast.store.artifacts import read_value
from holdfast.store.base import RunRow, Store
from holdfast.store.pages import end_of
from holdfast.words.outcomes import cancelled_error, outcome_error


def result_of(store: Store, row: RunRow, spec: AgentSpec | None = None) -> Any:
    """The recorded result of a run that has ended, or the error that it ended with."""
    record, event = end_of(store, row)
    match event:
        case e.RunCompleted():
            data = read_value(store, row.id, event.result, seq=record.seq)
            return spec.result.decode(data) if spec else values.decode(data)
        case e.RunFailure():
            root, error = log.root_of(row.id, row.parent), event.error
            raise outcome_error(row.id, event.reason, error.type, error.message, root)
        case e.RunCancellation():
            raise cancelled_error(row.id, event.by, event.why)
