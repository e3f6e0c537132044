"""Runs that have done very many steps, written as their agents would have, in a few big appends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Raw

from holdfast.core import events as e
from holdfast.core import log, values
from holdfast.runtime.declare.specs import agent_spec
from holdfast.store.base import Append, Creation, NewRun, Store

EVENTS_PER_APPEND = 1000


def write_steps(
    store: Store,
    agent: Callable[..., Any],
    run_id: str,
    n: int,
    step: Callable[[int], Any],
    /,
    **input: Any,
) -> None:
    """A run of this agent that was interrupted after `n` steps, `step(0)` to `step(n - 1)`."""
    spec = agent_spec(agent)
    data, digest = spec.encode_input((), input)
    created = e.RunCreated(run_id=run_id, agent=spec.name, input=log.wrap(data)[0])
    head, records = log.seal(log.origin(run_id), [created], epoch=0, time=store.now())
    store.create(Creation(NewRun(run_id, spec.name, digest), records)).wait()
    for first in range(0, n, EVENTS_PER_APPEND):
        done = []
        for i in range(first, min(n, first + EVENTS_PER_APPEND)):
            args = values.encode({"i": i})
            result = e.Value(json=Raw(values.encode(step(i))))
            done.append(
                e.CallSucceeded(
                    index=i,
                    step=i + 1,
                    name=step.__name__,
                    result=result,
                    duration_us=300,
                    args=e.Value(json=Raw(args)),
                )
            )
        before = head
        head, records = log.seal(before, done, epoch=0, time=store.now())
        store.append(Append(run_id, before.seq, records, None, before=before.hash))
