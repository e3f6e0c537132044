"""How a sentence compares: what is at a path, and whether it is, contains, matches or resembles what is expected."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from holdfast.errors import InvalidInput
from holdfast.testing.step_matcher import Outcome, shown

NOWHERE: Final = object()
"""What is at a path where nothing is: None is a value."""
SIMILAR_PERCENT: Final = 80


def at_path(value: Any, path: str) -> Any:
    """What is at a dotted path; a number is a place in a list."""
    for key in path.split("."):
        if isinstance(value, Mapping) and key in value:
            value = value[key]
        elif (
            isinstance(value, list | tuple)
            and key.lstrip("-").isdigit()
            and -len(value) <= int(key) < len(value)
        ):
            value = value[int(key)]
        else:
            return NOWHERE
    return value


def shown_or_nothing(value: Any) -> str:
    return "nothing" if value is NOWHERE else shown(value)


def expect_equal(what: str, actual: Any, value: Any) -> None:
    Outcome.expect(f"{what} to be {shown(value)}", shown_or_nothing(actual), is_same(actual, value))


def is_same(a: Any, b: Any) -> bool:
    """Equal, and alike: true is not 1."""
    return a is not NOWHERE and json.dumps(a, sort_keys=True, default=repr) == json.dumps(
        b, sort_keys=True, default=repr
    )


def expect_contains(what: str, actual: Any, value: Any) -> None:
    holds = (
        str(value) in actual
        if isinstance(actual, str)
        else actual is not NOWHERE
        and isinstance(actual, list | tuple | Mapping)
        and value in actual
    )
    Outcome.expect(f"{what} to contain {shown(value)}", shown_or_nothing(actual), holds)


def is_found(pattern: str, text: str) -> bool:
    try:
        return re.search(pattern, text) is not None
    except re.error as error:
        raise InvalidInput(f"{pattern!r} is not a regular expression: {error}") from None


def expect_match(what: str, actual: Any, pattern: str) -> None:
    holds = actual is not NOWHERE and is_found(pattern, as_text(actual))
    Outcome.expect(f"{what} to match {pattern!r}", shown_or_nothing(actual), holds)


def expect_similar(what: str, actual: Any, text: str, percent: float) -> None:
    from difflib import SequenceMatcher

    ratio = 0.0 if actual is NOWHERE else SequenceMatcher(None, as_text(actual), text).ratio()
    Outcome.expect(
        f"{what} to be {percent:g}% similar to {text!r}",
        f"{shown_or_nothing(actual)} ({ratio:.0%})",
        ratio * 100 >= percent,
    )


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)


def expect_bounds(what: str, actual: Any, low: float | None, high: float | None) -> None:
    is_number = isinstance(actual, int | float) and not isinstance(actual, bool)
    holds = is_number and (low is None or actual >= low) and (high is None or actual <= high)
    bound = f"at least {low}" if low is not None else f"at most {high}"
    Outcome.expect(f"{what} to be {bound}", shown_or_nothing(actual), holds)
