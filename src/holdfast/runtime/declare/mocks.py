"""What a tool, step or model answers in a test, instead of being executed.

    MOCKS = {
        "send_email": {"returns": {"message_id": "m-1"}},
        "draft":      {"sequence": ["a first draft", {"error": "the model is busy"}, "a second draft"]},
        "look_up":    {"when": [{"with": {"name": "sam"}, "returns": 7}], "error": "unknown name"},
        "charge":     {"raises": TimeoutError("no answer")},
        "now_in":     lambda city: f"noon in {city}",
    }

A mock only defines the answer. The real runtime records the call before it starts and when it ends, retries it and
asks for approvals; see `testing/sandbox.py` and `dry_fork.py` for how a mock is installed.
"""

from __future__ import annotations

import functools
import inspect
import json
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from msgspec import Struct

from holdfast.core import values
from holdfast.core.values import Codec
from holdfast.errors import InvalidInput, NotStorable
from holdfast.runtime.declare.call_spec import Done
from holdfast.runtime.declare.params import HIDDEN

ANSWERS: Final = ("returns", "error", "raises")
KEYS: Final = (*ANSWERS, "sequence", "when")


class MockFailure(Exception):
    """What a mock with `error` raises: a failure of the tool, as its author wrote it in the test."""


class MockMissing(BaseException):
    """A tool or model was about to be executed for real, or code to contact something. Not an `Exception`: the
    agent's own `except` must not take it for a failure, and the run must not be recorded as failed."""

    def __init__(self, name: str, *, contacts: str = "") -> None:
        self.name = name
        if contacts:
            what = f"{name} contacts {contacts}, which is not mocked; it was not contacted. "
            how = "Mock the step, tool or function that does so"
        else:
            what = f"{name} has no mock; it was not executed. "
            how = f'Add it to MOCKS ({{"{name}": {{"returns": …}}}}), say `Given the {name} tool returns …`'
        super().__init__(f"{what}{how}, or run without --mock")


class Mock(Protocol):
    """What replaces one function."""

    def __call__(self, count: int, args: Mapping[str, Any]) -> Any:
        """The answer to the call number `count` (from 0) with these arguments, or its error."""
        ...


Mocks = Mapping[str, Mock]


def mocks_of(mocks: Mapping[str, Any], what: str = "MOCKS") -> dict[str, Mock]:
    """MOCKS as an author writes them, checked."""
    if not isinstance(mocks, Mapping):
        raise InvalidInput(
            f'{what} must be a dict, {{"tool": {{"returns": …}}}}, not {type(mocks).__name__}'
        )
    return {str(name): mock_of(str(name), value) for name, value in mocks.items()}


def mock_of(name: str, definition: Any) -> Mock:
    """One mock: a function with the tool's parameters, or a dict that defines the answer."""
    if callable(definition):
        return _Function(definition)
    if not isinstance(definition, Mapping):
        raise InvalidInput(
            f'the mock of {name} must be a dict such as {{"returns": …}} or a function, not {definition!r}'
        )
    _check_keys(f"the mock of {name}", definition, KEYS)
    ways = [key for key in ANSWERS if key in definition]
    if len(ways) > 1 or ("sequence" in definition and (ways or "when" in definition)):
        keys = ", ".join(key for key in KEYS if key in definition)
        raise InvalidInput(f"the mock of {name} has {keys}; use one of them")
    if "sequence" in definition:
        return _Sequence(name, _sequence(name, definition["sequence"]))
    otherwise = _answer(name, definition) if ways else None
    if "when" in definition:
        return _When(name, _cases(name, definition["when"]), otherwise)
    if otherwise is None:
        raise InvalidInput(f"the mock of {name} is empty; use one of {', '.join(KEYS)}")
    return otherwise


def _check_keys(what: str, definition: Mapping[str, Any], known_keys: Sequence[str]) -> None:
    unknown = [str(key) for key in definition if key not in known_keys]
    if unknown:
        from difflib import get_close_matches

        close = get_close_matches(unknown[0], known_keys, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise InvalidInput(
            f"{what} has {unknown[0]!r}, which is unknown; known are {', '.join(known_keys)}{hint}"
        )


# ── the kinds of mocks ───────────────────────────────────────────────────────────────────────


class _Returns(Struct, frozen=True):
    value: Any

    def __call__(self, count: int, args: Mapping[str, Any]) -> Any:  # noqa: ARG002 - always the same
        return self.value


class _Raises(Struct, frozen=True):
    error: BaseException | type[BaseException]

    def __call__(self, count: int, args: Mapping[str, Any]) -> Any:  # noqa: ARG002 - always the same
        raise self.error


class _Function(Struct, frozen=True):
    fn: Callable[..., Any]

    def __call__(self, count: int, args: Mapping[str, Any]) -> Any:  # noqa: ARG002 - it sees the arguments
        return self.fn(**args)


class _Sequence(Struct, frozen=True):
    name: str
    answers: tuple[Mock, ...]

    def __call__(self, count: int, args: Mapping[str, Any]) -> Any:
        if count >= len(self.answers):
            raise MockFailure(
                f"the mock of {self.name} has {len(self.answers)} answers and was called again after the last one"
            )
        return self.answers[count](count, args)


class _When(Struct, frozen=True):
    name: str
    cases: tuple[tuple[Callable[[Mapping[str, Any]], bool], Mock], ...]
    otherwise: Mock | None

    def __call__(self, count: int, args: Mapping[str, Any]) -> Any:
        for fits, mock in self.cases:
            if fits(args):
                return mock(count, args)
        if self.otherwise is None:
            raise MockFailure(f"the mock of {self.name} has no answer for {dict(args)!r}")
        return self.otherwise(count, args)


def _answer(name: str, definition: Mapping[str, Any]) -> Mock:
    if "returns" in definition:
        return _Returns(definition["returns"])
    if "error" in definition:
        return _Raises(MockFailure(str(definition["error"])))
    error = definition["raises"]
    if isinstance(error, BaseException) or (
        isinstance(error, type) and issubclass(error, BaseException)
    ):
        return _Raises(error)
    raise InvalidInput(
        f'the mock of {name}: "raises" takes an exception, not {error!r}; "error" takes a string'
    )


def _is_answer(item: Any) -> bool:
    """Whether an item of a sequence says how to answer, rather than being the answer."""
    return isinstance(item, Mapping) and len(item) == 1 and next(iter(item)) in ANSWERS


def _sequence(name: str, answers: Any) -> tuple[Mock, ...]:
    if isinstance(answers, str | bytes | Mapping) or not isinstance(answers, Iterable):
        raise InvalidInput(f'the mock of {name}: "sequence" takes a list, not {answers!r}')
    return tuple(_answer(name, item) if _is_answer(item) else _Returns(item) for item in answers)


def _cases(name: str, cases: Any) -> tuple[tuple[Callable[[Mapping[str, Any]], bool], Mock], ...]:
    if not isinstance(cases, list | tuple) or not all(isinstance(case, Mapping) for case in cases):
        raise InvalidInput(
            f'the mock of {name}: "when" takes a list of {{"with": {{…}}, "returns": …}}, not {cases!r}'
        )
    checked = []
    for case in cases:
        _check_keys(f'a case of "when" of the mock of {name}', case, ("with", "if", *ANSWERS))
        if ("with" in case) == ("if" in case) or sum(key in case for key in ANSWERS) != 1:
            raise InvalidInput(
                f'the mock of {name}: a case of "when" takes "with" (arguments) or "if" (a function), '
                f"and one of {', '.join(ANSWERS)}"
            )
        fits = case["if"] if "if" in case else _has_arguments(case["with"])
        checked.append((fits, _answer(name, case)))
    return tuple(checked)


def _has_arguments(arguments: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], bool]:
    """Whether a call has these arguments (and others, whatever they are)."""
    return lambda args: all(key in args and args[key] == value for key, value in arguments.items())


# ── mocks in the place of functions ──────────────────────────────────────────────────────────


def mocked_body(
    name: str, real: Callable[..., Any], mock: Mock, count: int, *, is_async: bool
) -> Callable[..., Any]:
    """What is executed instead of a function: its mock's answer to the call number `count` (from 0)."""

    @functools.wraps(real)
    def called(*args: Any, **kwargs: Any) -> Any:
        shown = {k: v for k, v in kwargs.items() if k not in HIDDEN}
        shown |= dict(zip(inspect.signature(real).parameters, args, strict=False))
        return typed_answer(name, real, mock(count, shown))

    @functools.wraps(real)
    async def awaited(*args: Any, **kwargs: Any) -> Any:
        import asyncio

        await asyncio.sleep(0)  # where a real one would let other tasks run
        return called(*args, **kwargs)

    return awaited if is_async else called


def typed_answer(name: str, real: Callable[..., Any], value: Any) -> Any:
    """A mock's plain answer as the type that the function declares, as if it had come from there."""
    try:
        declared = typing.get_type_hints(inspect.unwrap(real)).get("return", Any)
    except (NameError, TypeError):  # a name that exists only for type checkers
        return value
    if declared in (Any, None, type(None)) or isinstance(value, Done):
        return value
    value = as_reply(value) if _is_reply(declared) else value
    try:
        return Codec(declared).decode(values.encode(value, typed=True))
    except NotStorable as error:
        raise error.of(f"what the mock of {name} returns") from None


def _is_reply(declared: Any) -> bool:
    """Whether a function answers as a model does: with text and tool calls."""
    return {"text", "tool_calls"} <= set(getattr(declared, "__struct_fields__", ()))


def as_reply(value: Any) -> Any:
    """A model's mocked answer as short as people write it: a text, or `{"tool": name, "with": {…}}` (or a
    list of those) for the tools it calls."""
    if isinstance(value, str):
        return {"text": value}
    uses = value if isinstance(value, list) else [value]
    if not all(
        isinstance(one, Mapping) and set(one) <= {"tool", "with"} and "tool" in one for one in uses
    ):
        return value
    calls = [
        {"id": f"call-{number}", "name": one["tool"], "arguments": json.dumps(one.get("with", {}))}
        for number, one in enumerate(uses, 1)
    ]
    return {"tool_calls": calls}
