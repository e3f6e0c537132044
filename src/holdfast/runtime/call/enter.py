"""Enter: what happens when a declared function is called.

Inside a run it enters the call flow. Outside any run a step or tool is a plain call, so that it can be
unit-tested; an agent is not, because its durability would silently be off.
"""

from __future__ import annotations

import functools
import inspect
import threading
import typing
import warnings
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from holdfast.core.effect import Effect
from holdfast.core.entry import Entry
from holdfast.errors import NotDurable, NotRecorded, Suspend
from holdfast.runtime.call.driver import drive
from holdfast.runtime.call.flow import begin, proceed
from holdfast.runtime.call.match import find, recorded
from holdfast.runtime.call.operations import LookAgain
from holdfast.runtime.call.request import CallRequest, request_call
from holdfast.runtime.declare.agent_spec import AgentSpec, remember
from holdfast.runtime.declare.call_spec import CallSpec
from holdfast.runtime.declare.specs import SPEC, bind_method
from holdfast.runtime.log.branches import CURRENT, Branch, Inside
from holdfast.runtime.log.lease import under_way

F = TypeVar("F", bound=Callable[..., Any])


def declared(fn: F, spec: CallSpec | AgentSpec) -> F:
    """A function of the same type that enters the call flow when it is called inside a run."""
    if spec.is_async:

        @functools.wraps(fn)
        def make(*args: Any, **kwargs: Any) -> Any:
            coroutine: Any = enter_async(spec, args, kwargs)
            coroutine.__qualname__ = name  # what Python calls it if it is never awaited
            remember(spec.name, coroutine)
            return coroutine

        name = make.__qualname__
        wrapper: Any = _marked_async(make)
    else:

        @functools.wraps(fn)
        def called(*args: Any, **kwargs: Any) -> Any:
            return enter(spec, args, kwargs)

        wrapper = called
    setattr(wrapper, SPEC, spec)
    if isinstance(spec, AgentSpec):
        wrapper.bind = bind_method(wrapper, spec)
        if spec.params.signature is not None:
            wrapper.__signature__ = spec.params.signature  # a caller does not give the run
    return typing.cast(F, wrapper)


def _marked_async(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function, known to asyncio and inspect as one whose result is awaited."""
    mark = getattr(inspect, "markcoroutinefunction", None)
    if mark is not None:  # Python 3.12
        return typing.cast(Callable[..., Any], mark(fn))
    code = fn.__code__  # in 3.11 only `inspect` reads this flag; a call is made by other means
    fn.__code__ = code.replace(co_flags=code.co_flags | inspect.CO_COROUTINE)
    return fn


def enter(spec: CallSpec | AgentSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a declared function from wherever we are."""
    current = CURRENT.get()
    if type(spec) is CallSpec and spec.is_method:
        spec, args = _of_instance(spec, args)
    if type(current) is not Branch:
        return _outside(current, spec, args, kwargs)
    if type(spec) is AgentSpec:
        spec = _as_child(spec, current)
    request = request_call(current, spec, spec.params.bind(args, kwargs))
    entry = find(request).entry
    if entry is not None and entry.done is not None and not entry.done.unavailable:
        return recorded(request, entry)  # as the flow would, without driving one: all of replay
    try:
        try:
            return drive(begin(request, entry))
        except LookAgain:
            return drive(proceed(request, current.session.log.entry(*request.place)))
    except Suspend as signal:
        current.suspend(signal)
        raise


async def enter_async(
    spec: CallSpec | AgentSpec, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The same for an async one, when it is awaited: its place is taken then."""
    current = CURRENT.get()
    if type(spec) is CallSpec and spec.is_method:
        spec, args = _of_instance(spec, args)
    if type(current) is not Branch:
        return await _outside(current, spec, args, kwargs)
    if type(spec) is AgentSpec:
        spec = _as_child(spec, current)
    request = request_call(current, spec, spec.params.bind(args, kwargs))
    entry = find(request).entry
    if entry is not None and entry.done is not None and not entry.done.unavailable:
        lines = current.session.lines
        if lines is None or lines.is_in_order:
            return recorded(request, entry)  # likewise: nothing has to be put in order
    return await _async_driver()(request, entry)


def _of_instance(spec: CallSpec, args: tuple[Any, ...]) -> tuple[CallSpec, tuple[Any, ...]]:
    if not args:
        raise TypeError(f"{spec.name} is a method; call it on an instance")
    return spec.bound_to(args[0]), args[1:]


@functools.cache
def _async_driver() -> Callable[[CallRequest, Entry | None], Coroutine[Any, Any, Any]]:
    from holdfast.runtime.call.async_driver import drive_call  # here, as it imports asyncio

    return drive_call


def _outside(
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


def _as_child(agent: AgentSpec, branch: Branch) -> CallSpec:
    """An agent called inside an agent: a call whose effect is a run of its own."""
    session = branch.session
    config = session.config
    run_child = config.run_child
    assert run_child is not None
    config.agents[agent.name] = agent

    if agent.is_async:

        async def child(child_id: str, kwargs: dict[str, Any]) -> Any:
            return await run_child(agent, child_id, session, kwargs)
    else:

        def child(child_id: str, kwargs: dict[str, Any]) -> Any:  # type: ignore[misc]
            return run_child(agent, child_id, session, kwargs)

    return CallSpec(
        name=agent.name,
        fn=child,
        params=agent.params,
        effect=Effect.CHILD,
        is_async=agent.is_async,
        result=agent.result,
        risk="read",
        version=agent.version,
    )
