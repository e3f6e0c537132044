"""`@agent`, `@step` and `@tool`: the decorators, with the types that a type checker sees.

The overloads are where each option is written down; `help(tool)` shows them. What a declaration means is `call_spec.py` and `agent_spec.py`;
what happens when a declared function is called is `enter.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, get_overloads, overload

from holdfast.core.effect import Effect
from holdfast.core.policy import RISKS, Budget, Checkpoint, Rate, Retry
from holdfast.errors import InvalidInput
from holdfast.runtime.api.run import AsyncRun, Run
from holdfast.runtime.call.enter import declared
from holdfast.runtime.declare.agent_spec import Agent, AsyncAgent, Strategy, agent_spec_of
from holdfast.runtime.declare.call_spec import Risk, Schema, call_spec_of, effect_class
from holdfast.runtime.declare.options import AGENT, STEP, TOOL, as_function, check_known
from holdfast.runtime.declare.params import HIDDEN

P = ParamSpec("P")
R = TypeVar("R")


@overload
def step(fn: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def step(
    *,
    name: str | None = None,
    timeout: float | None = None,
    retry: Retry | None = None,
    redact: Iterable[str] = (),
    version: str = "",
    rate: Rate | None = None,
    max_running: int | None = None,
    outside: bool = False,
    schema: Schema | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def step(fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Declare a recorded function that is safe to repeat: a model call, a read, a random choice.

    Its result is recorded once. If the process dies while it runs, it runs again. `outside` declares that it contacts
    something outside this process: then dry forks and `holdfast test --mock` require a mock of it.
    """

    def declare(fn: Callable[..., Any]) -> Callable[..., Any]:
        fn = as_function(fn, "@step", options.get("name"))
        hidden = [name for name in inspect.signature(fn).parameters if name in HIDDEN]
        if hidden:
            raise InvalidInput(f"{fn.__name__} takes {hidden[0]}: declare it with @tool, not @step")
        spec = call_spec_of(fn, effect=Effect.REPEATABLE, risk="read", **options)
        return declared(fn, spec)

    check_known("@step", options, STEP)
    return declare if fn is None else declare(fn)


@overload
def tool(fn: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def tool(
    *,
    risk: Risk = "external_action",
    name: str | None = None,
    timeout: float | None = None,
    retry: Retry | None = None,
    check: Callable[..., Any] | None = None,
    undo: Callable[..., Any] | None = None,
    key_ttl: float | None = None,
    on_doubt: Literal["wait", "retry", "fail"] | Callable[..., Any] = "wait",
    unsure_on: type[Exception] | tuple[type[Exception], ...] = (),
    redact: Iterable[str] = (),
    version: str = "",
    rate: Rate | None = None,
    max_running: int | None = None,
    schema: Schema | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def tool(fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Declare a function that acts on the world. Each call is recorded before it starts.

    A parameter `idempotency_key` or `tx`, or a `check`, says how it is safe to find out or to repeat after a crash. With
    none of these, a call in doubt is left to a person. What `redact` names is kept out of the log: these parameters, fields
    of the result with these names, and the parameters' values in its texts (if they are long enough: see the threat model).

    With `schema` (a `ParamSchema` or a JSON Schema) the parameters are those that it declares, and not those of the function's
    signature; the function is called with them by name.
    """

    def declare(fn: Callable[..., Any]) -> Callable[..., Any]:
        fn = as_function(fn, "@tool", options.get("name"))
        opts = dict(options)
        risk = opts.pop("risk", "external_action")
        if risk not in RISKS:
            raise InvalidInput(
                f"{fn.__name__}: risk must be one of {', '.join(RISKS)}, not {risk!r}"
            )
        effect = effect_class(fn, risk, opts.get("check"))
        return declared(fn, call_spec_of(fn, effect=effect, risk=risk, outside=True, **opts))

    check_known("@tool", options, TOOL)
    return declare if fn is None else declare(fn)


class AgentDecorator(Protocol):
    """What `@agent(…)` returns: it makes an agent of a function whose first parameter is the run."""

    @overload
    def __call__(
        self, fn: Callable[Concatenate[AsyncRun, P], Coroutine[Any, Any, R]], /
    ) -> AsyncAgent[P, R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[Run, P], R], /) -> Agent[P, R]: ...


@overload
def agent(
    fn: Callable[Concatenate[AsyncRun, P], Coroutine[Any, Any, R]], /
) -> AsyncAgent[P, R]: ...
@overload
def agent(fn: Callable[Concatenate[Run, P], R], /) -> Agent[P, R]: ...
@overload
def agent(
    *,
    name: str | None = None,
    stages: Iterable[str] = (),
    state: Any = None,
    deadline: float | None = None,
    budget: Budget | None = None,
    approve: Iterable[str] = (),
    approval_ttl: float | None = None,
    on_failure: Literal["", "undo"] = "",
    version: str = "",
    continues: Iterable[str] = (),
    max_running: int | None = None,
    checkpoint: Strategy | Checkpoint = "every_step",
    redact: Iterable[str] = (),
    exempt: Iterable[str] = (),
    schema: Schema | None = None,
) -> AgentDecorator: ...
def agent(fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Declare a function whose runs survive crashes. Its first parameter is the run.

    Workers resume runs that were started under its `version` or one that it `continues`, and leave others alone. Workers
    execute at most `max_running` of its runs at once, all workers together.

    `approve`, `redact`, deadline and budget hold for its child runs too, whatever their agents declare; `exempt` names what
    does not ("approve", "redact"). `schema` declares its input, as for a tool.
    """

    def declare(fn: Callable[..., Any]) -> Callable[..., Any]:
        fn = as_function(fn, "@agent", options.get("name"))
        return declared(fn, agent_spec_of(fn, dict(options)))

    check_known("@agent", options, AGENT)
    return declare if fn is None else declare(fn)


def _show_options(*decorators: Callable[..., Any]) -> None:
    """Give `help()` and `inspect` the options, which are written down in the last overload only."""
    for decorator in decorators:
        function = inspect.Parameter("fn", inspect.Parameter.POSITIONAL_ONLY, default=None)
        options = inspect.signature(get_overloads(decorator)[-1])
        shown = options.replace(parameters=[function, *options.parameters.values()])
        decorator.__signature__ = shown  # type: ignore[attr-defined]


_show_options(step, tool, agent)
