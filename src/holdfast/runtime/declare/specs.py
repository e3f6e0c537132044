"""From a function to its declaration and back: `declared` attaches a `CallSpec` or an `AgentSpec`, `spec_of` finds it.

A declared function is an ordinary function with such a value attached. Nothing is registered anywhere, and importing a
module of declarations does nothing.

Not here: what the declarations contain (`call_spec.py`, `agent_spec.py`).
"""

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from holdfast.errors import InvalidInput
from holdfast.runtime.declare.agent_spec import AgentSpec, BoundAgent, remember
from holdfast.runtime.declare.call_spec import CallSpec

F = TypeVar("F", bound=Callable[..., Any])
Enter = Callable[[CallSpec | AgentSpec, tuple[Any, ...], dict[str, Any]], Any]
SPEC: Final = "__holdfast__"


def spec_of(fn: object) -> CallSpec | AgentSpec | None:
    """The declaration that is attached to a function, if it has one."""
    found = getattr(fn, SPEC, None)
    return found if isinstance(found, CallSpec | AgentSpec) else None


def agent_spec(fn: object) -> AgentSpec:
    """The declaration of an agent, or an error that says what was given instead."""
    spec = spec_of(fn)
    if isinstance(spec, AgentSpec):
        return spec
    if isinstance(fn, BoundAgent):
        raise InvalidInput(
            "an agent is expected here without input: the agent itself, not agent.bind(…)"
        )
    name = getattr(fn, "__name__", repr(fn))
    raise InvalidInput(f"{name} is not an agent; decorate it with @agent")


def bind_method(agent: Callable[..., Any], spec: AgentSpec) -> Callable[..., BoundAgent[Any]]:
    """What `agent.bind` is: the agent with the input of one run, which must fit its parameters."""

    def bind(*args: Any, **input: Any) -> BoundAgent[Any]:
        spec.bind_input(args, input)
        return BoundAgent(agent, args, input)

    return bind


def run_request(
    agent: object, args: tuple[Any, ...], input: Mapping[str, Any]
) -> tuple[AgentSpec, tuple[Any, ...], Mapping[str, Any]]:
    """The agent, and its input by position and by name, as `hf.run` and `hf.start` were given them: both may be in
    one value, `agent.bind(…)`."""
    if not isinstance(agent, BoundAgent):
        return agent_spec(agent), args, input
    spec = agent_spec(agent.agent)
    if args or input:
        raise InvalidInput(
            f"{spec.name}.bind(…) has the whole input of the run; more was given next to it: "
            f"{', '.join([*map(repr, args), *input])}"
        )
    return spec, agent.args, agent.input


def declared(fn: F, spec: CallSpec | AgentSpec, enter: Enter) -> F:
    """A function of the same type that enters the call flow when it is called inside a run."""
    call = _entry(spec, enter)
    if spec.is_async:

        @functools.wraps(fn)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            return await call(args, kwargs)

        @functools.wraps(fn)
        def make(*args: Any, **kwargs: Any) -> Any:
            coroutine = awaited(*args, **kwargs)
            remember(spec.name, coroutine)
            return coroutine

        wrapper: Any = _marked_async(make)
    else:

        @functools.wraps(fn)
        def called(*args: Any, **kwargs: Any) -> Any:
            return call(args, kwargs)

        wrapper = called
    setattr(wrapper, SPEC, spec)
    if isinstance(spec, AgentSpec):
        wrapper.bind = bind_method(wrapper, spec)
        if spec.params.signature is not None:
            wrapper.__signature__ = spec.params.signature  # a caller does not give the run
    return typing.cast(F, wrapper)


def _entry(
    spec: CallSpec | AgentSpec, enter: Enter
) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
    if not isinstance(spec, CallSpec) or not spec.is_method:
        return functools.partial(enter, spec)

    def of_instance(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not args:
            raise TypeError(f"{spec.name} is a method; call it on an instance")
        return enter(spec.bound_to(args[0]), args[1:], kwargs)

    return of_instance


def _marked_async(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function, known to asyncio and inspect as one whose result is awaited."""
    mark = getattr(inspect, "markcoroutinefunction", None)
    if mark is not None:  # Python 3.12
        return typing.cast(Callable[..., Any], mark(fn))
    code = fn.__code__  # in 3.11 only `inspect` reads this flag; a call is made by other means
    fn.__code__ = code.replace(co_flags=code.co_flags | inspect.CO_COROUTINE)
    return fn
