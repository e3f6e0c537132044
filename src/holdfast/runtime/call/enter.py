"""Enter: what happens when a declared function is called. Inside a run it enters the call flow.

Not here: functions that are awaited (`enter_async.py`), and calls in other places (`outside.py`).
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from holdfast.errors import Suspend
from holdfast.runtime.call.driver import drive
from holdfast.runtime.call.flow import answer, proceed
from holdfast.runtime.call.match import find, recorded
from holdfast.runtime.call.operations import LookAgain
from holdfast.runtime.call.outside import call_outside
from holdfast.runtime.call.request import child_call, request_call
from holdfast.runtime.call.step import is_plain_step, make_step
from holdfast.runtime.declare.agent_spec import AgentSpec, remember
from holdfast.runtime.declare.call_spec import CallSpec
from holdfast.runtime.declare.specs import SPEC, bind_method
from holdfast.runtime.log.branches import CURRENT, Branch

F = TypeVar("F", bound=Callable[..., Any])


def declared(fn: F, spec: CallSpec | AgentSpec) -> F:
    """A function of the same type that enters the call flow when it is called inside a run."""
    if spec.is_async:

        @functools.wraps(fn)
        def make(*args: Any, **kwargs: Any) -> Any:
            coroutine: Any = _enter_async()(spec, args, kwargs)
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
    if type(spec) is not AgentSpec and spec.is_method:
        spec, args = spec.of_instance(args)
    if type(current) is not Branch:
        return call_outside(current, spec, args, kwargs)
    if type(spec) is AgentSpec:
        spec = child_call(spec, current)
    request = request_call(current, spec, spec.params.bind(args, kwargs))
    entry = find(request).entry
    if entry is not None and entry.done is not None and not entry.done.unavailable:
        return recorded(request, entry)  # as the flow would, without driving one: all of replay
    try:
        try:
            if (
                spec.is_plain
                and is_plain_step(request, entry)
                and not current.session.journal.life.may_stop_calls
            ):  # at the run's deadline, the flow would stop waiting for the function
                return make_step(request)
            return drive(answer(request, entry))
        except LookAgain:
            return drive(proceed(request, current.session.log.entry(*request.place)))
    except Suspend as signal:
        current.suspend(signal)
        raise


@functools.cache
def _enter_async() -> Callable[..., Coroutine[Any, Any, Any]]:
    from holdfast.runtime.call.enter_async import enter_async  # here, as it imports asyncio

    return enter_async
