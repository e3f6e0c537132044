"""An agent as it is declared: what it declares, as a value (`AgentSpec`); its types; and what a sync one must not forget.

An agent is still a function. What a type checker knows of it are protocols: its parameters without the run (`P`), and the
result of its runs (`R`). `agent.bind(…)` gives an agent together with the input of one run, as a value: that is how the
input is checked when `hf.run` and `hf.start` are given options of their own (a ParamSpec leaves no place for these).

An async step that plain code calls and does not await is not executed, which must not be mistaken for success. While a
sync agent runs, the coroutines that its calls make are remembered; one that was never started when the agent returns, or
when it fails because of it, is an error that says what to do.

Not here: the decorators (`decorators.py`, `agents/loop.py`), and finding the declaration of a function (`specs.py`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping
from contextvars import ContextVar
from typing import Any, Final, Generic, Literal, ParamSpec, Protocol, TypeVar, final

from msgspec import Struct, field
from msgspec.structs import force_setattr

from holdfast.core import values
from holdfast.core.parts import texts
from holdfast.core.policy import NO_POLICY, Budget, Checkpoint, Policy
from holdfast.core.values import Codec, codec_of
from holdfast.errors import InvalidInput, NotStorable
from holdfast.runtime.declare.options import (
    check_agent,
    exemptions,
    name_of,
    names,
    result_codec,
    risks,
    takes_self,
)
from holdfast.runtime.declare.params import Params
from holdfast.runtime.declare.state_schema import fields_of

# ── the types of agents ──────────────────────────────────────────────────────────────────────


P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class BoundAgent(Struct, Generic[R_co], frozen=True):
    """An agent with the input of one run: what `agent.bind(…)` returns, for `hf.run` and `hf.start`."""

    agent: Callable[..., Any]
    args: tuple[Any, ...] = ()
    input: Mapping[str, Any] = field(default_factory=dict)


class AnyAgent(Protocol[P, R_co]):
    """An agent of either kind. `P` are its parameters after the run, `R` is what its runs return."""

    def bind(self, *args: P.args, **input: P.kwargs) -> BoundAgent[R_co]:
        """The agent with the input of one run. Input that does not fit raises InvalidInput."""
        ...


class Agent(AnyAgent[P, R_co], Protocol[P, R_co]):
    """A plain agent, `def`. Called inside another agent it is a child run."""

    __name__: str

    def __call__(self, *args: P.args, **input: P.kwargs) -> R_co: ...


class AsyncAgent(AnyAgent[P, R_co], Protocol[P, R_co]):
    """An `async def` agent. Called and awaited inside another agent it is a child run."""

    __name__: str

    def __call__(self, *args: P.args, **input: P.kwargs) -> Coroutine[Any, Any, R_co]: ...


# ── what an agent declares ───────────────────────────────────────────────────────────────────


Strategy = Literal["every_step", "every_iteration", "on_state_change"]


@final
class AgentSpec(Struct, frozen=True):
    """What is known about an agent."""

    name: str
    fn: Callable[..., Any]
    params: Params
    is_async: bool
    result: Codec
    stages: tuple[str, ...] = ()
    state: Any = None
    deadline: float | None = None
    budget: Budget = Budget()
    approve: tuple[str, ...] = ()
    approval_ttl: float | None = None
    on_failure: str = ""
    version: str = ""
    continues: tuple[str, ...] = ()
    max_running: int | None = None
    checkpoint: Checkpoint = Checkpoint()
    redact: frozenset[str] = frozenset()
    exempt: frozenset[str] = frozenset()
    body: Callable[..., Any] | None = None
    """For a loop: the flow that runs it, given the session, the run, its root branch and its input."""

    # Derived once, because each run asks.
    policy: Policy = NO_POLICY
    """What its code declares for every run. Its deadline is counted from the creation of each."""

    def __post_init__(self) -> None:
        declared = Policy(
            approve=frozenset(self.approve),
            approval_ttl=self.approval_ttl,
            budget=self.budget.limits(),
            redact=self.redact,
            exempt=self.exempt,
        )
        force_setattr(self, "policy", declared)

    def encode_input(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[bytes, str]:
        """The run's input as it is stored, and its digest."""
        bound = self.bind_input(args, kwargs)
        try:
            canonical = values.canonical_flat(bound) if self.params.plain_names else None
            lowered = values.lower(bound, typed=True) if canonical is None else bound
            # Stored as it is, because the canonical form writes 1.0 as 1; compared in canonical form.
            kept = values.encode(lowered), values.digest(canonical or values.canonical(lowered))
        except NotStorable as error:
            raise error.of(f"the input of agent {self.name}") from None
        self._decode_by_type(lowered)
        return kept

    def bind_input(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The run's input by the names of its parameters; InvalidInput if the agent takes something else."""
        try:
            return self.params.bind(args, kwargs)
        except TypeError as error:
            run = next(iter(inspect.signature(self.fn).parameters), "")
            raise InvalidInput(
                f"agent {self.name} was given wrong input: {error}. It takes {self.params}, after its first "
                f"parameter ({run}), which is always the run"
            ) from None

    def decode_input(self, data: bytes) -> dict[str, Any]:
        """Recorded input as the types its parameters declare; InvalidInput if it does not fit them."""
        raw = values.decode(data)
        if not isinstance(raw, dict):
            raise InvalidInput(f"agent {self.name} was given wrong input: it is not an object")
        raw = self.params.collected(raw)
        wrong = self.params.wrong_names(raw)
        if wrong:
            raise InvalidInput(
                f"agent {self.name} was given wrong input: {wrong}. It takes {self.params}"
            )
        return self._decode_by_type(raw)

    def _decode_by_type(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Input as the types its parameters declare; InvalidInput if it does not fit."""
        found = {}
        for name, value in raw.items():
            declared = self.params.types.get(name, Any)
            try:
                is_declared_type = declared is Any or type(value) is declared
                found[name] = (
                    value if is_declared_type else codec_of(declared).decode(values.encode(value))
                )
            except NotStorable as error:
                where = error.below(f".{name}").path
                raise InvalidInput(
                    f"agent {self.name} was given wrong input: at {where}, {error.reason}"
                ) from None
        return found


def agent_spec_of(
    fn: Callable[..., Any], options: dict[str, Any], params: Params | None = None
) -> AgentSpec:
    """What an agent's function and options declare; `params` if its input is not its own parameters."""
    name = name_of(fn, options)
    if not inspect.signature(fn).parameters:
        raise InvalidInput(
            f"agent {name} must take the run as its first parameter: def {name}(run: Run, …)"
        )
    if takes_self(fn):
        raise InvalidInput(
            f"{name} is a method, and an agent cannot be one: a worker that resumes a run finds its agent by "
            "name and has no instance; declare a function that makes or finds the instance"
        )
    schema = options.pop("schema", None)
    if schema is not None:
        params = Params.from_schema(schema, fn)
    params = params or Params.from_function(fn, skip_first=True)
    _check_names(name, params)
    params.check_declared(name)
    check_agent(name, options)
    codec = result_codec(params.types.get("return", Any), f"agent {name}")
    fields_of(options.get("state"))
    options["budget"] = options.get("budget") or Budget()
    stages = names(f"agent {name}", "stages", options.get("stages", ()), "names", "drafting")
    options["stages"] = texts(stages, f"agent {name}: stages")
    options["approve"] = risks(f"agent {name}", options.get("approve", ()))
    secret = names(f"agent {name}", "redact", options.get("redact", ()), "names", "token")
    options["redact"] = frozenset(secret)
    options["exempt"] = exemptions(f"agent {name}", options.get("exempt", ()))
    options["continues"] = _versions(name, options.get("continues", ()))
    options["checkpoint"] = Checkpoint.of(options.get("checkpoint", "every_step"))
    is_async = inspect.iscoroutinefunction(fn)
    return AgentSpec(
        name=name,
        fn=fn if is_async else checked(fn),
        params=params,
        is_async=is_async,
        result=codec,
        **options,
    )


def _versions(name: str, continues: object) -> tuple[str, ...]:
    given = (continues,) if isinstance(continues, str) else continues
    return names(f"agent {name}", "continues", given, "versions", "1")


RUN_OPTIONS: Final = ("id", "wait", "priority", "deadline", "budget")
"""What `hf.run` and `hf.start` take for themselves: input of that name would never arrive."""


def _check_names(name: str, params: Params) -> None:
    for parameter in params.schema.parameters:
        if parameter.name in RUN_OPTIONS and parameter.kind != "positional":
            raise InvalidInput(
                f"agent {name}: hf.run and hf.start have an option `{parameter.name}` of their own, so a parameter "
                f"of that name could not be given; rename it, or take it by position only: "
                f"def {name}(run, {parameter.name}, /)"
            )


# ── calls that a sync agent did not await ────────────────────────────────────────────────────


_Coroutines = list[tuple[str, Coroutine[Any, Any, Any]]]
_COROUTINES: Final[ContextVar[_Coroutines | None]] = ContextVar("holdfast_coroutines", default=None)


def remember(name: str, coroutine: Coroutine[Any, Any, Any]) -> None:
    """A coroutine was made by a call; if plain code made it, it must not be forgotten."""
    coroutines = _COROUTINES.get()
    if coroutines is not None:
        coroutines[:] = [(n, c) for n, c in coroutines if _is_new(c)]
        coroutines.append((name, coroutine))


def checked(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A sync agent's function that fails if it leaves a call that was not awaited."""

    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        coroutines: _Coroutines = []
        token = _COROUTINES.set(coroutines)
        try:
            result = fn(*args, **kwargs)
        except NotStorable as error:  # perhaps it was stored, or passed on
            raise _forgotten(coroutines) or error from None
        finally:
            _COROUTINES.reset(token)
        forgotten = _forgotten(coroutines)
        if forgotten is not None:
            raise forgotten
        return result

    return run


def _forgotten(coroutines: _Coroutines) -> InvalidInput | None:
    names = [name for name, coroutine in coroutines if _is_new(coroutine)]
    for _, coroutine in coroutines:
        coroutine.close()  # else Python warns about it
    if not names:
        return None
    return InvalidInput(
        f"{names[0]} is async and was not awaited, so it was not executed; make the agent `async def` with "
        f"`run: AsyncRun`, and write `await {names[0]}(…)`"
    )


def _is_new(coroutine: Coroutine[Any, Any, Any]) -> bool:
    return inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED
