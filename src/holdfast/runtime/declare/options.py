"""What can be declared, and with which options: both are checked where they are declared.

Functions, methods, partials and callable objects can be declared, each as a function with a name. Anything else (a class,
a generator, something under `@classmethod`) is refused with the reason.

The options are those of `@agent`, `@loop`, `@step` and `@tool`. A mistake (a text where a list belongs, a number in quotes)
is an error on the line that makes it, and not in a run that is far along; and no secret is recorded because `redact` was
given in another form.

Not here: what the options mean (`call_spec.py`, `agent_spec.py`), and what `Retry`, `Budget` and `Rate` hold (`core/policy.py`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from holdfast.core import values
from holdfast.core.effect import Effect
from holdfast.core.parts import text
from holdfast.core.policy import EXEMPTIONS, RISKS, Budget, Rate, Retry, microseconds
from holdfast.core.values import Codec
from holdfast.errors import InvalidInput, NotStorable

# ── what can be declared ─────────────────────────────────────────────────────────────────────


def as_function(fn: Any, decorator: str, name: str | None = None) -> Callable[..., Any]:
    """The function that was decorated, or one that calls it; InvalidInput if that is not possible."""
    _check_callable(fn, decorator)
    inner = _inner(fn)
    shown = name or getattr(fn, "__name__", None) or getattr(inner, "__name__", None)
    if not hasattr(fn, "__name__") and inner.__name__ == "__call__" and name is None:
        raise InvalidInput(f"{decorator}: a {type(fn).__name__} has no name; set one with name=")
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise InvalidInput(
            f"{decorator}: {shown} is a generator, whose body does not run when it is called; return a list"
        )
    try:
        signature = inspect.signature(fn)
    except (ValueError, TypeError):
        raise InvalidInput(
            f"{decorator}: the parameters of {shown} cannot be determined; call it in your own function"
        ) from None
    return fn if inspect.isfunction(fn) else _wrapped(fn, inner, signature)


def _check_callable(fn: Any, decorator: str) -> None:
    if isinstance(fn, classmethod | staticmethod):
        kind = type(fn).__name__
        raise InvalidInput(f"{decorator}: put @{kind} above {decorator}, not below it")
    if isinstance(fn, type):
        raise InvalidInput(
            f"{decorator} takes a function; {fn.__name__} is a class: decorate its methods, or a function "
            "that uses it"
        )
    if not callable(fn):
        raise InvalidInput(f"{decorator} takes a function, not {fn!r}")


def _inner(fn: Any) -> Any:
    """The function inside partials, bound methods and callable objects."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if inspect.ismethod(fn):
        return fn.__func__
    is_object = not hasattr(fn, "__name__") and not hasattr(fn, "__wrapped__")
    return type(fn).__call__ if is_object else inspect.unwrap(fn)


def _wrapped(fn: Any, inner: Any, signature: inspect.Signature) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(inner):

        async def awaited(*args: Any, **kwargs: Any) -> Any:
            return await fn(*args, **kwargs)

        made: Any = awaited
    else:

        def called(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **kwargs)

        made = called
    functools.update_wrapper(made, inner)
    made.__annotations__ = dict(getattr(inner, "__annotations__", {}))
    made.__signature__ = signature
    function: Callable[..., Any] = made
    return function


def takes_self(fn: Callable[..., Any]) -> bool:
    """Whether it is a method, by the name of its first parameter."""
    first = next(iter(inspect.signature(fn).parameters), "")
    return first in ("self", "cls")


# ── options ──────────────────────────────────────────────────────────────────────────────────


ON_DOUBT: Final = ("wait", "retry", "fail")
_CALL: Final = ("name", "timeout", "retry", "redact", "version", "rate", "max_running", "schema")
STEP: Final = (*_CALL, "outside")
TOOL: Final = ("risk", *_CALL, "check", "undo", "key_ttl", "on_doubt", "unsure_on")
AGENT: Final = (
    "name",
    "stages",
    "state",
    "deadline",
    "budget",
    "approve",
    "approval_ttl",
    "on_failure",
    "version",
    "continues",
    "max_running",
    "checkpoint",
    "redact",
    "exempt",
    "schema",
)


def check_known(where: str, options: Iterable[str], known_options: tuple[str, ...]) -> None:
    """InvalidInput for an unknown option."""
    for option in options:
        if option not in known_options:
            raise InvalidInput(
                f"{where} has no option {option}=; it takes {', '.join(known_options)}"
            )


def name_of(fn: Callable[..., Any], options: dict[str, Any]) -> str:
    """The name of what is declared. It is recorded in every log, so it must be text, or it could not be read."""
    name = text(options.pop("name", None) or fn.__name__, f"name= of {fn.__name__}")
    if not name.strip():
        raise InvalidInput(f"name= of {fn.__name__} must not be blank")
    if "version" in options:
        options["version"] = text(options["version"], f"version= of {name}")
    return name


def result_codec(declared: Any, name: str) -> Codec:
    """How results are encoded. A type that cannot be stored is refused now, and not after the effect."""
    try:
        values.check_storable(declared)
        return Codec(declared)
    except NotStorable as error:
        raise error.of(f"the result of {name}") from None


def check_call(name: str, options: Mapping[str, Any]) -> None:
    """Check the options of steps and tools, except names and versions."""
    check_seconds(name, options, "timeout", "key_ttl")
    if options.get("timeout") == 0:
        raise InvalidInput(f"timeout of {name} must be more than 0; omit it for no limit")
    check_max_running(name, options.get("max_running"))
    _check_kind(name, options, "rate", Rate, "Rate(10, per=60)")
    _check_kind(name, options, "retry", Retry, "Retry(attempts=3)")
    for option in ("check", "undo"):
        if options.get(option) is not None and not callable(options[option]):
            raise InvalidInput(f"{name}: {option} must be a function, not {options[option]!r}")
    on_doubt = options.get("on_doubt", "wait")
    if inspect.iscoroutinefunction(on_doubt):
        raise InvalidInput(f"{name}: on_doubt must be a sync function, not an async one")
    if on_doubt not in ON_DOUBT and not callable(on_doubt):
        ways = ", ".join(map(repr, ON_DOUBT))
        raise InvalidInput(f"{name}: on_doubt must be {ways} or a function, not {on_doubt!r}")


def unsure_on(name: str, errors: object, effect: Effect) -> tuple[type[BaseException], ...]:
    """The errors that leave the outcome of a tool unknown."""
    kinds = (errors,) if isinstance(errors, type) else errors
    if not isinstance(kinds, tuple) or not all(
        isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds
    ):
        raise InvalidInput(
            f"{name}: unsure_on must be exception classes, such as unsure_on=(GatewayError,), not {errors!r}"
        )
    if kinds and not effect.may_be_in_doubt:
        raise InvalidInput(
            f"{name}: unsure_on has no effect here, because a call that reads or has `tx` is never in doubt; remove it"
        )
    return kinds


def check_agent(name: str, options: Mapping[str, Any]) -> None:
    """Check the options of agents and loops, except lists of texts."""
    check_seconds(name, options, "deadline", "approval_ttl")
    check_max_running(name, options.get("max_running"))
    _check_kind(f"agent {name}", options, "budget", Budget, "Budget(max_steps=100)")
    if options.get("on_failure", "") not in ("", "undo"):
        raise InvalidInput(
            f"agent {name}: on_failure must be 'undo', not {options['on_failure']!r}"
        )


def check_seconds(name: str, options: Mapping[str, Any], *option_names: str) -> None:
    """InvalidInput for what is not a number of seconds."""
    for option in option_names:
        if options.get(option) is not None:
            microseconds(options[option], f"{option} of {name}")


def check_max_running(name: str, limit: object) -> None:
    """InvalidInput if this is not a number of things that may be in progress at once."""
    if limit is not None and not (
        isinstance(limit, int) and not isinstance(limit, bool) and limit > 0
    ):
        raise InvalidInput(
            f"{name}: max_running must be a whole number of 1 or more, not {limit!r}"
        )


def _check_kind(
    where: str, options: Mapping[str, Any], option: str, kind: type, example: str
) -> None:
    value = options.get(option)
    if value is not None and not isinstance(value, kind):
        raise InvalidInput(
            f"{where}: {option} must be a {kind.__name__}, for example {example}, not {value!r}"
        )


def risks(where: str, value: object) -> tuple[str, ...]:
    """The risks that need the approval of a person."""
    found = names(where, "approve", value, "risks", "external_action")
    for risk in found:
        if risk not in RISKS:
            raise InvalidInput(f"{where}: approve takes risks ({', '.join(RISKS)}), not {risk!r}")
    return found


def exemptions(where: str, value: object) -> frozenset[str]:
    """What an agent does not pass on to its child runs."""
    found = names(where, "exempt", value, "options", "approve")
    for option in found:
        if option not in EXEMPTIONS:
            raise InvalidInput(f"{where}: exempt takes {', '.join(EXEMPTIONS)}, not {option!r}")
    return frozenset(found)


def names(where: str, option: str, value: object, items: str, example: str) -> tuple[str, ...]:
    """A list of texts, or InvalidInput that says what to write."""
    if isinstance(value, str):
        raise InvalidInput(
            f"{where}: {option} takes a list of {items}; write {option}=({value!r},), not {option}={value!r}"
        )
    if isinstance(value, bytes | Mapping) or not isinstance(value, Iterable):
        raise InvalidInput(
            f"{where}: {option} takes a list of {items}, for example {option}=({example!r},), not {value!r}"
        )
    found = tuple(value)
    for one in found:
        if not isinstance(one, str):
            raise InvalidInput(f"{where}: {option} takes a list of {items} (texts), not {one!r}")
    return found
