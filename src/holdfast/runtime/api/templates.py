"""Templates: `{state.key}`, `{input.key}`, `{stage}` and `{run.id}` in instructions and messages.

Written as for `str.format`, with `{{` and `}}` for braces, format specifications included. Only plain values are reached,
never attributes of Python objects. A name that is not known is an error.
"""

from __future__ import annotations

import string
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from holdfast.core import dialogue
from holdfast.errors import InvalidInput

_KNOWN: Final = "state.…, input.…, stage, run.id"
_BRACES: Final = "write {{ and }} for literal braces"


def render(template: str, values: Mapping[str, Any], *, declared: Collection[str] = ()) -> str:
    """Fill in a template; `values` is what its names stand for.

    Something in the state that is not set is empty, as it is None for code; if the agent has `declared` the fields of
    its state, another one is an error, as it is for code.
    """
    return _Formatter(values, declared).fill(template)


def check(template: str, what: str, inputs: Iterable[str]) -> None:
    """InvalidInput if a template cannot be filled in, whatever the state: for one that is declared."""
    values = {"state": {}, "input": dict.fromkeys(inputs, ""), "stage": "", "run": {"id": ""}}
    try:
        render(template, values)
    except InvalidInput as error:
        raise InvalidInput(f"{what}: {error}") from None


class _Formatter(string.Formatter):
    def __init__(self, values: Mapping[str, Any], declared: Collection[str]) -> None:
        self._values, self._declared = values, declared

    def fill(self, template: str) -> str:
        try:
            return self.vformat(template, (), {})
        except InvalidInput:
            raise
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise InvalidInput(f"the template cannot be filled in: {error}; {_BRACES}") from None

    def get_field(self, field_name: str, *_args: Any) -> tuple[Any, str]:
        root, *keys = field_name.split(".")
        if root not in self._values or (root == "stage") == bool(keys):
            raise _unknown(field_name, _KNOWN)
        value = self._values[root]
        if root == "state" and self._declared and keys[0] not in self._declared:
            raise _unknown(field_name, ", ".join(self._declared))
        if root in ("input", "run") and keys[0] not in value:
            raise _unknown(field_name, ", ".join(value) or "none")
        for key in keys:
            value = _item(value, key)
        return value, root

    def format_field(self, value: Any, format_spec: str) -> str:
        if value is None:
            return ""
        return (
            dialogue.text_of(value)
            if isinstance(value, dict | list)
            else format(value, format_spec)
        )


def _unknown(field_name: str, known_names: str) -> InvalidInput:
    return InvalidInput(
        f"{{{field_name}}} is unknown in a template; known: {known_names}; {_BRACES}"
    )


def _item(value: Any, key: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(key)
    if isinstance(value, Sequence) and not isinstance(value, str) and key.isdecimal():
        return value[int(key)] if int(key) < len(value) else None
    return None
