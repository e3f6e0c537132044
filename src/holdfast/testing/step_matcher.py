"""The sentences of a spec: what `Given the input to is "sam"` or `Then the output should be 5` means.

A sentence is a function with a pattern. Some set a scene up (they are given the `ScenarioSetup`), the others
ask its outcome (they are given the `Outcome`, and fail with `UnmetExpectation`). An agent's file may hold
sentences of its own:

    from holdfast.testing import Outcome, sentence

    @sentence("the invoice should be over {limit:number}")
    def over(outcome: Outcome, limit: float) -> None:
        outcome.expect(f"an invoice over {limit}", outcome.result["total"], outcome.result["total"] > limit)

In a pattern `{name}` is a word (or a quoted text), `{name:int}`, `{name:number}` and `{name:value}` are
what they say (a value is JSON, or text), `(s)` may be missing, `a/b` is one of both. A pattern that
ends in `:` also gets the table or text below it, as `block`.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeVar

from msgspec import Struct, field

from holdfast.core.state import RunState
from holdfast.errors import InvalidInput
from holdfast.testing.scenario import ExecutionResult

F = TypeVar("F", bound=Callable[..., Any])
MARK: Final = "__holdfast_sentence__"

_KINDS: Final = {
    "word": r'"[^"]*"|[^\s"]+',
    "int": r"-?\d+",
    "number": r"-?\d+(?:\.\d+)?",
    "value": r".+",
}

_FIELD: Final = r"\{(\w+)(?::(\w+))?\}"
"""A value in a pattern: its name, and its kind if it is not a word."""

_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz'-/"


class UnmetExpectation(AssertionError):
    """What a spec expects did not come true."""

    def __init__(self, expected: str, actual: str) -> None:
        self.expected, self.actual = expected, actual
        super().__init__(f"expected {expected}; it was {actual}")


class StepPattern(Struct, frozen=True):
    """A pattern and what it does."""

    text: str
    on: Literal["setup", "outcome"]
    fn: Callable[..., Any]

    @property
    def regex(self) -> re.Pattern[str]:
        return _regex(self.text)

    @property
    def has_block(self) -> bool:
        return self.text.endswith(":")

    @property
    def weight(self) -> int:
        """How much of it is literal: of two that fit, the more exact one is meant."""
        return len(re.sub(_FIELD, "", self.text))

    def may_match(self, sentence: str) -> bool:
        """Whether it has all words of the pattern: few sentences do, and the pattern need not be compiled."""
        words = _words_of(sentence)
        all_of, one_of = _literal_words(self.text)
        return all_of <= words and not any(map(words.isdisjoint, one_of))

    def match(self, sentence: str) -> dict[str, Any] | None:
        found = self.regex.fullmatch(sentence.strip()) if self.may_match(sentence) else None
        if found is None:
            return None
        kinds = dict(re.findall(_FIELD, self.text))
        return {name: _value(kinds[name], text) for name, text in found.groupdict().items()}


@functools.cache
def _regex(text: str) -> re.Pattern[str]:
    parts = re.split(r"(\{\w+(?::\w+)?\}|\([^)]*\)|[\w-]+(?:/[\w-]+)+)", text.rstrip(":"))
    end = ":" if text.endswith(":") else ""
    found = (_special(part) if n % 2 else _literal(part) for n, part in enumerate(parts))
    return re.compile("".join(found) + end, re.IGNORECASE)


@functools.lru_cache(maxsize=1)
def _words_of(sentence: str) -> frozenset[str]:
    return frozenset(sentence.lower().rstrip(":").split())


@functools.cache
def _literal_words(text: str) -> tuple[frozenset[str], tuple[list[str], ...]]:
    """The words that a sentence always contains, and those of which it contains one (`tool/step`)."""
    words = [word for word in text.rstrip(":").lower().split() if not word.strip(_LETTERS)]
    one_of = tuple(word.split("/") for word in words if "/" in word)
    return frozenset(word for word in words if "/" not in word), one_of


def _special(part: str) -> str:
    """The regex of a value, of what may be missing, or of alternatives."""
    if part.startswith("{"):
        name, _, kind = part[1:-1].partition(":")
        return f"(?P<{name}>{_KINDS[kind or 'word']})"
    if part.startswith("("):
        return f"(?:{re.escape(part[1:-1])})?"
    return "(?:" + "|".join(map(re.escape, part.split("/"))) + ")"


def _literal(part: str) -> str:
    return re.sub(r"(?:\\ )+", r"\\s+", re.escape(part))


def _value(kind: str, text: str) -> Any:
    if kind == "int":
        return int(text)
    if kind == "number":
        return float(text) if "." in text else int(text)
    return json_or_text(text) if kind == "value" else text.strip('"')


def json_or_text(text: str) -> Any:
    """JSON if it reads as JSON, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def sentence(text: str, *, on: Literal["setup", "outcome"] = "outcome") -> Callable[[F], F]:
    """Make a function a sentence. `on="setup"`: it sets up, for Given and When; else it asks, for Then."""
    unknown = [kind for _, kind in re.findall(_FIELD, text) if kind and kind not in _KINDS]
    if unknown:
        raise InvalidInput(f"{text!r}: {unknown[0]!r} is not one of {', '.join(_KINDS)}")

    def mark(fn: F) -> F:
        setattr(fn, MARK, [*getattr(fn, MARK, []), StepPattern(text, on, fn)])
        return fn

    return mark


def sentences_in(names: Mapping[str, Any]) -> list[StepPattern]:
    """The sentences among a module's names."""
    return [
        found
        for value in names.values()
        for found in getattr(value, MARK, [])
        if isinstance(found, StepPattern)
    ]


# ── its outcome ──────────────────────────────────────────────────────────────────────────


class RecordedCall(Struct, frozen=True):
    """One call of a step or tool, as the run's log has it."""

    step: int
    name: str
    status: str
    args: dict[str, Any]
    result: Any
    attempts: int
    error: str = ""
    error_type: str = ""


class Outcome(Struct, frozen=True):
    """A run at rest, in plain values, for sentences to ask about."""

    run: RunState
    status: str
    result: Any
    state: dict[str, Any]
    calls: tuple[RecordedCall, ...]
    decisions: dict[str, tuple[Any, str]]
    error: str
    waiting_for: str
    ended: ExecutionResult
    known: frozenset[str] = field(default_factory=frozenset)
    """The steps and tools that there are; a spec about another is a mistake in the spec."""

    @staticmethod
    def expect(expected: str, actual: Any, holds: bool) -> None:
        """Fail with both sides if it does not hold."""
        if not holds:
            raise UnmetExpectation(expected, actual if isinstance(actual, str) else shown(actual))

    def calls_of(self, name: str) -> list[RecordedCall]:
        found = [call for call in self.calls if call.name == name]
        if not found and name not in self.known:
            raise InvalidInput(
                f"unknown tool {name!r}; known tools: {', '.join(sorted(self.known))}"
            )
        return found

    def named_calls(self) -> str:
        return ", ".join(call.name for call in self.calls) or "nothing"


def shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 300 else text[:299] + "…"
