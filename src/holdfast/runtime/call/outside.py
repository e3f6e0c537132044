"""A declared function that is called where no run records it: in the body of a call, or outside any run.

A step or tool is a plain call there, so that it can be unit-tested; an agent is not, because its durability would
silently be off.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from typing import Any

from holdfast.core.effect import Effect
from holdfast.errors import NotDurable, NotRecorded
from holdfast.runtime.declare.agent_spec import AgentSpec
from holdfast.runtime.declare.call_spec import CallSpec
from holdfast.runtime.log.branches import Inside
from holdfast.runtime.log.lease import under_way


def call_outside(
    current: Inside | None,
    spec: CallSpec | AgentSpec,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Not in an agent's own code: in the body of a call, or in no run at all."""
    if isinstance(spec, AgentSpec):
        raise NotDurable(
            f"{spec.name} is an agent: run it with hf.run({spec.name}, id=…, …), or call it inside "
            "another agent. A plain call would not be durable"
        )
    if current is not None:
        if spec.effect != Effect.REPEATABLE:
            raise NotDurable(
                f"{spec.name} is a tool and was called inside {current.name}, where it would not be recorded; "
                f"call it from the agent"
            )
        if current.instead is not None:
            return current.instead(spec, args, _with_key(spec, kwargs))
    elif runs := under_way():
        _warn_of_loss(spec, runs)
    return spec.fn(*args, **_with_key(spec, kwargs))


def _warn_of_loss(spec: CallSpec, runs: Sequence[str]) -> None:
    """A thread that an agent starts by itself does not know its run, and neither do we. So we can
    only say that a plain call was made while a run was under way."""
    named = ", ".join(repr(run_id) for run_id in runs[:3])
    warnings.warn(
        f"{spec.name} was called outside a run, in thread {threading.current_thread().name!r}, while run {named} "
        "is under way here. If its agent started that thread, the call is not recorded and will be made again "
        "on resume: use run.map(fn, items) instead. If it has "
        f"nothing to do with the run, {spec.name}.__wrapped__(…) says so",
        NotRecorded,
        stacklevel=4 if spec.is_async else 5,  # where it was awaited or called
    )


def _with_key(spec: CallSpec, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Outside a run there is no key: one that has no default is left empty."""
    if not spec.params.needs_key or "idempotency_key" in kwargs:
        return kwargs
    return {**kwargs, "idempotency_key": ""}
