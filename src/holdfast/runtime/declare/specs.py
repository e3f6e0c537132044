"""From a declared function to its declaration: the `CallSpec` or `AgentSpec` that the decorator attached.

A declared function is an ordinary function with such a value attached. Nothing is registered anywhere, and importing a
module of declarations does nothing.

Not here: what the declarations contain (`call_spec.py`, `agent_spec.py`), and attaching them (`call/enter.py`).
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from holdfast.errors import InvalidInput
from holdfast.runtime.declare.agent_spec import AgentSpec, BoundAgent
from holdfast.runtime.declare.call_spec import CallSpec

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
