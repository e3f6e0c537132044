"""Fields: what `input=`, `output=` and `state=` of a Lua table declare, as a `ParamSchema` and as checks."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from holdfast import InvalidInput, Parameter, ParamSchema
from holdfast.core.params import readable_type
from holdfast.lua.convert import from_lua, kind_of, text

TYPES: Final[dict[str, Any]] = {
    "string": str,
    "number": int | float,
    "integer": int,
    "boolean": bool,
    "array": list,
    "object": dict,
}
_PLAIN: Final[dict[str, type]] = {**TYPES, "number": float}
"""Types of values that need no further check."""
_MEANT: Final[dict[type, str]] = {bool: "true or false", str: "a string", list: "a list"}
_OPTIONS: Final = ("type", "required", "default", "description", "enum", "items")
KEY: Final = "idempotency_key"


class LuaField(Struct, frozen=True):
    """One field: its type, and what it is if it is not given."""

    name: str
    type: str
    required: bool = False
    default: Any = None
    description: str = ""
    enum: tuple[Any, ...] = ()
    items: str = ""
    """The type of an array's elements; empty if any."""

    def parameter(self) -> Parameter:
        """The field as a parameter."""
        kind = TYPES[self.type]
        if self.enum:
            kind = readable_type(Literal[self.enum])
        elif self.items:
            kind = types.GenericAlias(list, (TYPES[self.items],))
        if self.default is not None:
            return Parameter(self.name, kind, self.default, self.description)
        if self.required:
            return Parameter(self.name, kind, description=self.description)
        return Parameter(self.name, kind | None, None, self.description)

    def fitted(self, value: Any, where: str) -> Any:
        """The value, with an empty table as what the field declares; InvalidInput if it is of another type."""
        if type(value) is _PLAIN[self.type] and not self.items and not self.enum:
            return value
        if value == [] and self.type == "object":
            return {}
        if value is None and not self.required:
            return value
        if not _is_a(value, self.type):
            raise InvalidInput(f"{where}{self.name} must be {_a(self.type)}, not {_shown(value)}")
        for number, item in enumerate(value if self.items else (), 1):
            if not _is_a(item, self.items):
                raise InvalidInput(
                    f"{where}{self.name}[{number}] must be {_a(self.items)}, not {_shown(item)}"
                )
        if self.enum and value not in self.enum:
            choices = ", ".join(map(repr, self.enum))
            raise InvalidInput(f"{where}{self.name} must be one of {choices}, not {value!r}")
        return value


Fields = Mapping[str, LuaField]


def _is_a(value: Any, kind: str) -> bool:
    return isinstance(value, TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _a(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aio" else f"a {kind}"


def _shown(value: Any) -> str:
    plain = value is None or isinstance(value, str | int | float | dict | list)
    said = "nil" if value is None else repr(value) if plain else _a(kind_of(value))
    return said if len(said) <= 60 else said[:59] + "…"


def read_fields(table: Any, where: str) -> dict[str, LuaField]:
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


def _field(name: str, value: Any, where: str) -> LuaField:
    if isinstance(value, bytes):
        given_options: dict[str, Any] = {"type": text(value)}
    elif kind_of(value) == "table":
        given_options = from_lua(value, where)
        if not isinstance(given_options, dict):
            raise InvalidInput(f'{where} needs a type: field.string{{}} or {{type = "string"}}')
    else:
        raise InvalidInput(
            f"{where} must be field.string{{}} or another field, not {_shown(value)}"
        )
    options = {k: v for k, v in given_options.items() if not k.startswith("__")}
    unknown = [option for option in options if option not in _OPTIONS]
    if unknown:
        raise InvalidInput(f"{where} has no option {unknown[0]}; it takes {', '.join(_OPTIONS)}")
    kind = options.get("type")
    if kind not in TYPES:
        raise InvalidInput(f"{where} has the unknown type {kind!r}; use one of {', '.join(TYPES)}")
    for option, wanted in (("required", bool), ("description", str), ("enum", list)):
        if not isinstance(options.get(option, wanted()), wanted):
            raise InvalidInput(f"{where}: {option} must be {_MEANT[wanted]}")
    made = LuaField(
        name,
        kind,
        options.get("required", False),
        None,
        options.get("description", ""),
        tuple(options.get("enum", ())),
        _items(options.get("items"), kind, where),
    )
    if "enum" in options and not (made.enum and all(_is_a(x, kind) for x in made.enum)):
        raise InvalidInput(f"{where}: enum must be a list of values of type {kind}")
    if name == KEY and (kind != "string" or made.enum):
        raise InvalidInput(f"{where} must be a string: Holdfast gives each call its key")
    default = options.get("default")
    if default is None:
        return made
    fitted = made.fitted(default, f"{where}: the default of ")
    return replace(made, default=fitted)


def _items(value: Any, kind: str, where: str) -> str:
    """`items = "string"` or `items = field.string{}`."""
    if value is None:
        return ""
    found = value.get("type") if isinstance(value, dict) else value
    if kind != "array" or found not in TYPES:
        raise InvalidInput(f"{where}: items is the type of an array's elements: {', '.join(TYPES)}")
    return str(found)


def fitted(fields: Fields, values: Any, where: str, *, others: bool = False) -> dict[str, Any]:
    """Arguments as the fields declare them; InvalidInput lists what is missing, unknown or of another type."""
    values = {} if values == [] or values is None else values
    if not isinstance(values, dict):
        raise InvalidInput(f"{where} takes a table of named values, not {_shown(values)}")
    if not fields and others:
        return values
    wrong = [
        f"{name} is missing"
        for name, f in fields.items()
        if f.required and f.default is None and values.get(name) is None and name != KEY
    ]
    wrong += [f"{name} is unknown" for name in values if name not in fields and not others]
    if wrong:
        raise InvalidInput(
            f"{where}: {'; '.join(wrong)}. It takes {', '.join(fields) or 'nothing'}"
        )
    return {
        name: fields[name].fitted(value, f"{where}: ") if name in fields else value
        for name, value in values.items()
    }


def param_schema(fields: Fields) -> ParamSchema:
    """The fields as the parameters of an agent or tool. The runtime fills in the key, so it is not among them."""
    return ParamSchema(tuple(f.parameter() for f in fields.values() if f.name != KEY))
