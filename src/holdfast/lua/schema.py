"""Fields: what `input=`, `output=` and `state=` of a Lua table declare, as types of Python and as checks.

`functions_with_fields` is the only place that turns fields into parameters of a Python function.
"""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from holdfast.errors import InvalidInput
from holdfast.lua.convert import from_lua, kind_of, text

TYPES: Final[dict[str, Any]] = {
    "string": str,
    "number": int | float,
    "integer": int,
    "boolean": bool,
    "array": list,
    "object": dict,
}
_OPTIONS: Final = ("type", "required", "default", "description", "enum", "items")
KEY: Final = "idempotency_key"


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its type, and what it is if it is not given."""

    name: str
    type: str
    required: bool = False
    default: Any = None
    description: str = ""
    enum: tuple[Any, ...] = ()

    @property
    def python_type(self) -> Any:
        kind = Literal[self.enum] if self.enum else TYPES[self.type]
        kind = kind if self.required or self.default is not None else kind | None
        return Annotated[kind, self.description] if self.description else kind

    def fitted(self, value: Any, where: str) -> Any:
        """The value, with an empty table as what the field declares; InvalidInput if it is of another type."""
        if value == [] and self.type == "object":
            return {}
        if value is None and not self.required:
            return value
        expected = TYPES[self.type]
        is_right = isinstance(value, expected) and (
            self.type == "boolean" or not isinstance(value, bool)
        )
        if not is_right:
            raise InvalidInput(f"{where}{self.name} must be a {self.type}, not {_shown(value)}")
        if self.enum and value not in self.enum:
            choices = ", ".join(map(repr, self.enum))
            raise InvalidInput(f"{where}{self.name} must be one of {choices}, not {value!r}")
        return value


Fields = Mapping[str, Field]


def _shown(value: Any) -> str:
    said = "nil" if value is None else repr(value)
    return said if len(said) <= 60 else said[:59] + "…"


def read_fields(table: Any, where: str) -> dict[str, Field]:
    """The fields that a table of Lua declares: `name = field.string{…}`, `{type="string"}` or `"string"`."""
    if table is None:
        return {}
    if kind_of(table) != "table":
        raise InvalidInput(f"{where} must be a table of fields, not {_shown(from_plain(table))}")
    found = {}
    for key, given in sorted(table.items(), key=lambda item: str(item[0])):
        if not isinstance(key, bytes):
            raise InvalidInput(f"{where}: a field needs a name: name = field.string{{}}")
        name = text(key)
        found[name] = _field(name, given, f"{where}: field {name}")
    return found


def from_plain(value: Any) -> Any:
    return text(value) if isinstance(value, bytes) else value


def _field(name: str, given: Any, where: str) -> Field:
    if isinstance(given, bytes):
        given_options: dict[str, Any] = {"type": text(given)}
    elif kind_of(given) == "table":
        given_options = from_lua(given, where)
        if not isinstance(given_options, dict):
            raise InvalidInput(f'{where} needs a type: field.string{{}} or {{type = "string"}}')
    else:
        raise InvalidInput(f"{where} must be field.string{{}} or a like, not {_shown(given)}")
    options = {k: v for k, v in given_options.items() if not k.startswith("__")}
    unknown = [option for option in options if option not in _OPTIONS]
    if unknown:
        raise InvalidInput(f"{where} has no option {unknown[0]}; it takes {', '.join(_OPTIONS)}")
    kind = options.get("type")
    if kind not in TYPES:
        raise InvalidInput(f"{where} has the type {kind!r}; known are {', '.join(TYPES)}")
    made = Field(
        name, kind, bool(options.get("required", False)), None, str(options.get("description", "")),
        tuple(options.get("enum", ())),
    )  # fmt: skip
    default = options.get("default")
    if default is None:
        return made
    fitted = made.fitted(default, f"{where}: the default of ")
    return Field(name, kind, made.required, fitted, made.description, made.enum)


def fitted(fields: Fields, values: Any, where: str, *, others: bool = False) -> dict[str, Any]:
    """Arguments as the fields declare them; InvalidInput lists what is missing, unknown or of another type."""
    values = {} if values == [] or values is None else values
    if not isinstance(values, dict):
        raise InvalidInput(f"{where} takes a table of named values, not {_shown(values)}")
    if not fields and others:
        return values
    wrong = [f"{name} is missing" for name, f in fields.items()
             if f.required and f.default is None and values.get(name) is None]  # fmt: skip
    wrong += [f"{name} is unknown" for name in values if name not in fields and not others]
    if wrong:
        raise InvalidInput(
            f"{where}: {'; '.join(wrong)}. It takes {', '.join(fields) or 'nothing'}"
        )
    return {
        name: fields[name].fitted(value, f"{where}: ") if name in fields else value
        for name, value in values.items()
    }


def function_with_fields(
    fn: Callable[..., Any],
    name: str,
    fields: Fields,
    *,
    module: str,
    doc: str = "",
    first: str = "",
    is_open: bool = False,
) -> Callable[..., Any]:
    """A function that takes these fields by name (and, if it `is_open`, any others). To be replaced by a parameter schema as a value."""
    kinds = inspect.Parameter
    parameters = [kinds(first, kinds.POSITIONAL_ONLY)] if first else []
    annotations: dict[str, Any] = {}
    for field in fields.values():
        if not field.name.isidentifier() or keyword.iskeyword(field.name):
            raise InvalidInput(
                f"{name}: the field {field.name!r} cannot be a parameter; choose another name"
            )
        default = "" if field.name == KEY and field.default is None else field.default
        empty = (
            kinds.empty
            if field.required and field.default is None and field.name != KEY
            else default
        )
        annotations[field.name] = str if field.name == KEY else field.python_type
        parameters.append(kinds(field.name, kinds.KEYWORD_ONLY, default=empty))
    if is_open:
        parameters.append(kinds("values", kinds.VAR_KEYWORD))

    def called(*args: Any, **given: Any) -> Any:
        return fn(*args, **given)

    called.__name__ = called.__qualname__ = name
    called.__module__ = module
    called.__doc__ = doc or None
    called.__annotations__ = annotations
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return called
