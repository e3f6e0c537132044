"""What a step or tool declares, as a value: `CallSpec`.

What a tool declares (a parameter `idempotency_key` or `tx`, a `check`, a risk) decides what may happen to it after a
crash: its effect class.

Not here: the decorators (`decorators.py`), and executing a call (`flow.py`).
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from holdfast.core import values
from holdfast.core.effect import Effect
from holdfast.core.params import ParamSchema
from holdfast.core.policy import NO_RETRY, Rate, Retry
from holdfast.core.values import REDACTED, Codec, canonical_flat, codec_of
from holdfast.errors import InvalidInput, NotStorable
from holdfast.runtime.declare.options import (
    check_call,
    name_of,
    names,
    result_codec,
    takes_self,
    unsure_on,
)
from holdfast.runtime.declare.params import HIDDEN, Params
from holdfast.runtime.declare.secrets import lower_without_secrets, without_secrets

Risk = Literal["read", "write_local", "external_action"]
Schema = ParamSchema | Mapping[str, Any]
"""What declares parameters in the place of a signature: a `ParamSchema`, or a JSON Schema."""


class Done(Struct, frozen=True):
    """What a `check` returns when the call did happen and its result may be None."""

    result: Any


def _unset(**_: Any) -> None:
    raise AssertionError("the body of a call is not set")


class CallSpec(Struct, frozen=True):
    """What is known about a step or tool."""

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
    body: Callable[..., Any] = _unset
    """The function, to be called with its arguments by name."""
    has_intent: bool = False
    """Whether an intent must be recorded before a call begins."""
    is_child: bool = False
    """Whether a call is a run of its own."""
    is_transactional: bool = False
    """Whether its writes are committed with its receipt."""
    is_limited: bool = False
    """Whether a call may have to wait for other calls of the same limit."""
    is_plain: bool = False
    """Whether a call is its body and a receipt, and nothing else."""
    is_flat: bool = False
    """Whether its arguments are recorded as they are, under ASCII names."""

    def __post_init__(self) -> None:
        """Set what follows from the other fields, once, before the first call."""
        derived = {
            "body": self.fn if self.effect == Effect.CHILD else self.params.by_name(self.fn),
            "has_intent": self.effect.has_intent,
            "is_child": self.effect == Effect.CHILD,
            "is_transactional": self.effect == Effect.TRANSACTIONAL,
            "is_limited": self.rate is not None or self.max_running is not None,
            "is_plain": self.effect == Effect.REPEATABLE
            and (self.timeout, self.rate, self.max_running) == (None,) * 3
            and self.retry.attempts == 1
            and not self.params.constrained,
            "is_flat": self.params.plain_names and not self.params.hidden and not self.redact,
        }
        for name, value in derived.items():
            force_setattr(self, name, value)

    def bound_to(self, instance: Any) -> CallSpec:
        """The same for the method of this instance."""
        return replace(self, fn=types.MethodType(self.fn, instance), is_method=False)

    def of_instance(self, args: tuple[Any, ...]) -> tuple[CallSpec, tuple[Any, ...]]:
        """The same for the method of the instance that is its first argument, and the other arguments."""
        if not args:
            raise TypeError(f"{self.name} is a method; call it on an instance")
        return self.bound_to(args[0]), args[1:]

    def encode_args(self, bound: dict[str, Any]) -> bytes:
        """The exact bytes of a call's arguments: what is hashed, approved and stored."""
        hidden, redact = self.params.hidden, self.redact
        if hidden:
            bound = {k: v for k, v in bound.items() if k not in hidden}
        if self.params.plain_names and not redact:
            flat = canonical_flat(bound)
            if flat is not None:
                return flat
        shown = {k: REDACTED if k in redact else without_secrets(v) for k, v in bound.items()}
        try:
            return values.canonical(lower_without_secrets(shown))
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


def call_spec_of(fn: Callable[..., Any], **options: Any) -> CallSpec:
    """What the function and the options of a step or tool declare."""
    name = name_of(fn, options)
    is_method = takes_self(fn)
    schema = options.pop("schema", None)
    params = (
        Params.from_function(fn, skip_first=is_method)
        if schema is None
        else Params.from_schema(schema, fn)
    )
    params.check_declared(name)
    returns = params.types.get("return", Any)
    codec = result_codec(returns, name)
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
