"""The arguments of a call as fields of a form: each keeps its type. What cannot be typed into a field is JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, Literal

from holdfast.core.values import REDACTED
from holdfast.errors import InvalidInput
from holdfast.words.text import visible

PREFIX: Final = "arg:"


@dataclass(frozen=True, slots=True)
class ArgumentField:
    """One argument. `kind` is how it is typed; `fixed` ones are redacted and stay as they are."""

    name: str
    kind: Literal["text", "json", "fixed"]
    text: str
    hint: str = ""

    @property
    def rows(self) -> int:
        return min(12, max(1, self.text.count("\n") + 1 + len(self.text) // 80))


def fields(arguments: dict[str, Any]) -> list[ArgumentField]:
    """The arguments that were shown, as fields."""
    return [_field(name, value) for name, value in arguments.items()]


def _field(name: str, value: Any) -> ArgumentField:
    text = json.dumps(value, indent=2, ensure_ascii=False)
    if REDACTED in text:
        return ArgumentField(name, "fixed", REDACTED, "redacted: it cannot be edited")
    if isinstance(value, str) and _is_typable(value):
        return ArgumentField(name, "text", value)
    hint = (
        "true or false"
        if isinstance(value, bool)
        else "number"
        if isinstance(value, int | float)
        else "JSON"
    )
    return ArgumentField(
        name, "json", text if _is_typable(text) else json.dumps(value, indent=2), hint
    )


def _is_typable(text: str) -> bool:
    """Whether a text field shows and keeps every character: a page makes the others visible as something else."""
    return visible(text, lines=True) == text and "\r" not in text


def edited_arguments(arguments: dict[str, Any], form: dict[str, str]) -> dict[str, Any]:
    """The arguments that a person has typed; InvalidInput says which one is wrong."""
    return {field.name: _value(field, arguments[field.name], form) for field in fields(arguments)}


def _value(field: ArgumentField, before: Any, form: dict[str, str]) -> Any:
    typed = form.get(PREFIX + field.name, field.text)
    if field.kind == "fixed" or _lines(typed) == _lines(field.text):
        return before
    if field.kind == "text":
        return _lines(typed)
    try:
        return json.loads(typed)
    except ValueError as error:
        raise InvalidInput(f"{field.name} is not JSON: {error}; text needs quotes") from None
    except RecursionError:
        raise InvalidInput(f"{field.name} is nested too deeply") from None


def _lines(text: str) -> str:
    """A browser sends the end of a line as two characters."""
    return text.replace("\r\n", "\n")
