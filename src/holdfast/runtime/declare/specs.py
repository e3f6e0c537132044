"""What agents, steps and tools declare, as values: `AgentSpec`, `CallSpec`.

A declared function is an ordinary function with such a value attached. What a tool declares (a parameter `idempotency_key`
or `tx`, a `check`, a risk) decides what may happen to it after a crash: its effect class. Nothing is registered anywhere,
and importing a module of declarations does nothing.

Not here: the decorators (`decorators.py`), and executing a call (`flow.py`).
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, ParamSpec, TypeVar, final

from msgspec import Struct

from holdfast.core import values
from holdfast.core.effect import Effect
from holdfast.core.params import ParamSchema
from holdfast.core.parts import text, texts
from holdfast.core.policy import NO_RETRY, Budget, Checkpoint, Rate, Retry
from holdfast.core.values import REDACTED, Codec, canonical_flat, codec_of
from holdfast.errors import InvalidInput, NotStorable
from holdfast.runtime.declare.agent_types import BoundAgent
from holdfast.runtime.declare.callables import takes_self
from holdfast.runtime.declare.options import (
    check_agent,
    check_call,
    exemptions,
    names,
    risks,
    unsure_on,
)
from holdfast.runtime.declare.params import HIDDEN, Params
from holdfast.runtime.declare.state_schema import fields_of
from holdfast.runtime.declare.unawaited import checked, remember

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

Risk = Literal["read", "write_local", "external_action"]
Schema = ParamSchema | Mapping[str, Any]
"""What declares parameters in the place of a signature: a `ParamSchema`, or a JSON Schema."""
Strategy = Literal["every_step", "every_iteration", "on_state_change"]


class Done(Struct, frozen=True):
    """What a `check` returns when the call did happen and its result may be None."""

    result: Any


class _Known(NamedTuple):
    body: Callable[..., Any]
    has_intent: bool
    is_limited: bool
    is_plain: bool
    is_flat: bool


@dataclass(frozen=True, slots=True)
class CallSpec:
    """What is known of a step or tool."""

    name: str
    fn: Callable[..., Any]
    params: Params
    effect: Effect
    is_async: bool
    result: Codec
    risk: str = "read"
    timeout: float | None = None
    retry: Retry = NO_RETRY
    check: Callable[..., Any] | None = None
    undo: Callable[..., Any] | None = None
    key_ttl: float | None = None
    on_doubt: str | Callable[..., Any] = "wait"
    unsure_on: tuple[type[BaseException], ...] = ()
    """Errors after which the call may have happened, besides those that are known to be so."""
    redact: frozenset[str] = frozenset()
    version: str = ""
    rate: Rate | None = None
    max_running: int | None = None
    is_method: bool = False
    """Whether its function takes an instance first, which is not one of its parameters."""
    outside: bool = False
    """Whether its body contacts something outside this process: a tool, or a step that asks a model."""
    body: Callable[..., Any] = field(init=False)
    """The function, to be called with its arguments by name."""
    has_intent: bool = field(init=False)
    """Whether the log must know of a call before it begins."""
    is_limited: bool = field(init=False)
    """Whether a call may have to wait for others of its kind."""
    is_plain: bool = field(init=False)
    """Whether a call is its body and a receipt, and nothing else."""
    is_flat: bool = field(init=False)
    """Whether its arguments are kept as they are, under names that sort alike everywhere."""

    def __post_init__(self) -> None:
        """What follows from the rest, known before the first call."""
        known = _Known(
            body=self.fn if self.effect == Effect.CHILD else self.params.by_name(self.fn),
            has_intent=self.effect.has_intent,
            is_limited=self.rate is not None or self.max_running is not None,
            is_plain=self.effect == Effect.REPEATABLE
            and (self.timeout, self.rate, self.max_running) == (None,) * 3
            and not self.params.constrained,
            is_flat=self.params.plain_names and not self.params.hidden and not self.redact,
        )
        for name, value in known._asdict().items():
            object.__setattr__(self, name, value)

    def bound_to(self, instance: Any) -> CallSpec:
        """What is known of the method of this instance."""
        return dataclasses.replace(self, fn=types.MethodType(self.fn, instance), is_method=False)

    def encode_args(self, bound: dict[str, Any]) -> bytes:
        """The exact bytes of a call's arguments: what is hashed, approved and kept."""
        hidden, redact = self.params.hidden, self.redact
        if hidden:
            bound = {k: v for k, v in bound.items() if k not in hidden}
        if self.params.plain_names and not redact:
            flat = canonical_flat(bound)
            if flat is not None:
                return flat
        shown = {k: REDACTED if k in redact else _without_secrets(v) for k, v in bound.items()}
        try:
            return values.canonical(_lowered(shown))
        except NotStorable as error:
            raise error.of(f"the arguments of {self.name}") from None
        except UnicodeEncodeError:
            values.encode(shown, typed=True)  # says where
            raise

    def wrong_argument(self, bound: Mapping[str, Any]) -> str:
        """The first argument that its annotation forbids, and why; empty if there is none.

        Never shows the value, which may be a secret.
        """
        for name in self.params.constrained:
            value: Any = bound.get(name)
            if hasattr(value, "get_secret_value"):
                value = value.get_secret_value()
            try:
                if name in bound:
                    codec_of(self.params.types[name]).decode(values.encode(value, typed=True))
            except NotStorable as error:
                where = "" if error.path == "$" else f" (at {error.path})"
                return f"{self.name} was not called: {name!r} is wrong{where}: {error.reason}"
        return ""

    def decode_args(self, data: bytes) -> dict[str, Any]:
        """Recorded arguments as the types their parameters declare."""
        raw = values.decode(data)
        return {
            name: codec_of(self.params.types.get(name, Any)).decode(values.encode(value))
            for name, value in raw.items()
        }


def _lowered(shown: dict[str, Any]) -> Any:
    """Arguments as plain JSON. A secret inside one of them is found because it has no JSON form."""
    try:
        return values.lower(shown, typed=True)
    except NotStorable:
        return values.lower(
            {k: _without_secrets(v, deep=True) for k, v in shown.items()}, typed=True
        )


def _without_secrets(value: Any, *, deep: bool = False) -> Any:
    """Secret types (anything with `get_secret_value`, as pydantic's SecretStr) never reach the log."""
    if hasattr(value, "get_secret_value"):
        return REDACTED
    if not deep:
        return value
    if isinstance(value, Mapping):
        return {k: _without_secrets(v, deep=True) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_without_secrets(v, deep=True) for v in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            f.name: _without_secrets(getattr(value, f.name), deep=True)
            for f in dataclasses.fields(value)
        }
    return value


def secrets_in(value: Any, *, declared: bool = False, depth: int = values.DEPTH_MAX) -> set[str]:
    """The texts of the secrets in a value: of secret types, or all of it if it was declared secret."""
    if hasattr(value, "get_secret_value"):
        return secrets_in(value.get_secret_value(), declared=True)
    if isinstance(value, str | bytes | int | float):
        text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
        return {text} if declared and text else set()
    parts: Iterable[Any] = ()
    if isinstance(value, Mapping):
        parts = value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        parts = value
    elif dataclasses.is_dataclass(type(value)) or values.is_pydantic_model(type(value)):
        parts = getattr(value, "__dict__", {}).values()
    if depth == 0:
        return set()
    return {
        found for part in parts for found in secrets_in(part, declared=declared, depth=depth - 1)
    }


@final
class AgentSpec(Struct, frozen=True):
    """What is known of an agent."""

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

    def encode_input(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[bytes, str]:
        """The run's input as it is kept, and its digest."""
        bound = self.bind_input(args, kwargs)
        try:
            lowered = values.lower(bound, typed=True)
            # Kept as it is, because the canonical form writes 1.0 as 1; compared in canonical form.
            kept = values.encode(lowered), values.digest(values.canonical(lowered))
        except NotStorable as error:
            raise error.of(f"the input of agent {self.name}") from None
        self._typed(lowered)
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
        return self._typed(raw)

    def _typed(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Input as the types its parameters declare; InvalidInput if it does not fit."""
        found = {}
        for name, value in raw.items():
            declared = self.params.types.get(name, Any)
            try:
                is_it = declared is Any or type(value) is declared
                found[name] = value if is_it else codec_of(declared).decode(values.encode(value))
            except NotStorable as error:
                where = error.below(f".{name}").path
                raise InvalidInput(
                    f"agent {self.name} was given wrong input: at {where}, {error.reason}"
                ) from None
        return found


SPEC: Final = "__holdfast__"


def spec_of(fn: object) -> CallSpec | AgentSpec | None:
    """The declaration beside a function, if it has one."""
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


class RunRequest(NamedTuple):
    """An agent and the input of one run, as `hf.run` and `hf.start` were given them."""

    spec: AgentSpec
    args: tuple[Any, ...]
    input: Mapping[str, Any]


def run_request(agent: object, args: tuple[Any, ...], input: Mapping[str, Any]) -> RunRequest:
    """The agent and its input; both may be in one value, `agent.bind(…)`."""
    if not isinstance(agent, BoundAgent):
        return RunRequest(agent_spec(agent), args, input)
    spec = agent_spec(agent.agent)
    if args or input:
        raise InvalidInput(
            f"{spec.name}.bind(…) has the whole input of the run; more was given next to it: "
            f"{', '.join([*map(repr, args), *input])}"
        )
    return RunRequest(spec, agent.args, agent.input)


# ── declared functions ───────────────────────────────────────────────────────────────────────

Enter = Callable[[CallSpec | AgentSpec, tuple[Any, ...], dict[str, Any]], Any]


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


def _named(fn: Callable[..., Any], options: dict[str, Any]) -> str:
    """The name of what is declared. What stands in every log must be text, or it could not be read."""
    name = text(options.pop("name", None) or fn.__name__, f"name= of {fn.__name__}")
    if not name.strip():
        raise InvalidInput(f"name= of {fn.__name__} must not be blank")
    if "version" in options:
        options["version"] = text(options["version"], f"version= of {name}")
    return name


def _result_codec(declared: Any, name: str) -> Codec:
    """How results are kept. A type that cannot be is refused now, and not after the effect."""
    try:
        values.check_storable(declared)
        return Codec(declared)
    except NotStorable as error:
        raise error.of(f"the result of {name}") from None


def call_spec_of(fn: Callable[..., Any], **options: Any) -> CallSpec:
    """What the function and the options of a step or tool declare."""
    name = _named(fn, options)
    is_method = takes_self(fn)
    schema = options.pop("schema", None)
    params = Params.of(fn, skip_first=is_method) if schema is None else Params.declared(schema, fn)
    params.check_declared(name)
    returns = params.types.get("return", Any)
    codec = _result_codec(returns, name)
    check_call(name, options)
    secret = names(name, "redact", options.get("redact", ()), "names", "token")
    options["redact"] = frozenset(secret)
    options["retry"] = options.get("retry") or NO_RETRY
    options["unsure_on"] = unsure_on(name, options.get("unsure_on", ()), options["effect"])
    return CallSpec(
        name=name,
        fn=fn,
        params=params,
        is_async=inspect.iscoroutinefunction(fn),
        result=codec,
        is_method=is_method,
        **options,
    )


def effect_class(fn: Callable[..., Any], risk: str, check: Callable[..., Any] | None) -> Effect:
    """What a tool's declaration says about repeating it."""
    hidden = {name for name in inspect.signature(fn).parameters if name in HIDDEN}
    if "tx" in hidden:
        if inspect.iscoroutinefunction(fn):
            raise InvalidInput(f"{fn.__name__}: a tool with `tx` must be a plain def, not async")
        return Effect.TRANSACTIONAL
    if risk == "read":
        return Effect.REPEATABLE
    if check is not None:
        return Effect.CHECKED
    return Effect.KEYED if "idempotency_key" in hidden else Effect.ONCE


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


def agent_spec_of(
    fn: Callable[..., Any], options: dict[str, Any], params: Params | None = None
) -> AgentSpec:
    """What an agent's function and options declare; `params` if its input is not its own parameters."""
    name = _named(fn, options)
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
        params = Params.declared(schema, fn)
    params = params or Params.of(fn, skip_first=True)
    _check_names(name, params)
    params.check_declared(name)
    check_agent(name, options)
    codec = _result_codec(params.types.get("return", Any), f"agent {name}")
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
