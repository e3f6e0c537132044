"""The parameters of an agent or tool as a value: from a signature, from a JSON Schema, or written down.

What is declared in another language, or by another program, has no Python signature. A `ParamSchema` says what it
takes: names, types, defaults and descriptions. Types that come from a JSON Schema are checked as far as Python
types can express them; the schema itself is kept, so that a model sees it unchanged.

Not here: reading a Python signature (`runtime/declare/params.py`), writing a JSON Schema (`runtime/declare/json_schema.py`).
"""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, final

import msgspec
from msgspec import Struct, field

from holdfast.core import values
from holdfast.errors import InvalidInput, NotStorable


@final
class NoDefault:
    """What stands for the default of a parameter that has none."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


REQUIRED: Final = NoDefault("REQUIRED")
"""It must be given."""
OMITTED: Final = NoDefault("OMITTED")
"""It may be left out, and then is not passed on."""
ParameterKind = Literal["named", "positional", "rest", "more"]
"""By name (and perhaps by position), only by position, `*rest`, `**more`."""


class Parameter(Struct, frozen=True):
    """One parameter. `schema` is its JSON Schema, if it was declared by one."""

    name: str
    type: Any = Any
    default: Any = REQUIRED
    description: str = ""
    schema: Mapping[str, Any] | None = None
    kind: ParameterKind = "named"

    @property
    def is_required(self) -> bool:
        return self.default is REQUIRED and self.kind in ("named", "positional")

    @property
    def has_default(self) -> bool:
        return not isinstance(self.default, NoDefault)

    def __str__(self) -> str:
        prefix = {"rest": "*", "more": "**"}.get(self.kind, "")
        default = (
            f" = {self.default!r}"
            if self.has_default
            else " = …"
            if self.default is OMITTED
            else ""
        )
        return f"{prefix}{self.name}: {type_name(self.type)}{default}"


class ParamSchema(Struct, frozen=True):
    """What an agent or tool takes, in order, and the type of its result."""

    parameters: tuple[Parameter, ...] = ()
    result: Any = Any
    defs: Mapping[str, Any] = field(default_factory=dict)
    """The `$defs` of the JSON Schema that it was made from."""

    def __post_init__(self) -> None:
        names: list[Any] = [p.name for p in self.parameters]
        for name in names:
            if not isinstance(name, str) or not name.strip():
                raise InvalidInput(f"a parameter needs a name that is not empty, not {name!r}")
            if names.count(name) > 1:
                raise InvalidInput(f"parameter {name!r} is declared twice")

    @classmethod
    def from_json_schema(cls, schema: Any) -> ParamSchema:
        """The parameters that a JSON Schema of type object declares; InvalidInput if it is not one."""
        if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
            raise InvalidInput(
                f"parameters are declared by a JSON Schema of type object, not {schema!r}"
            )
        properties = schema.get("properties", {})
        if not isinstance(properties, Mapping):
            raise InvalidInput(f"the properties of a JSON Schema are an object, not {properties!r}")
        required = schema.get("required", ())
        unknown = [name for name in required if name not in properties]
        if unknown:
            raise InvalidInput(
                f"the JSON Schema requires {unknown[0]!r}, which is not in its properties"
            )
        defs = {**schema.get("definitions", {}), **schema.get("$defs", {})}
        found = [_parameter(name, properties[name], name in required, defs) for name in properties]
        more = schema.get("additionalProperties", False)
        if more is not False and "more" not in properties:
            found.append(Parameter("more", type_of(more, defs), kind="more"))
        return cls(tuple(found), defs=defs)

    def check(self, arguments: Mapping[str, Any], what: str) -> dict[str, Any]:
        """JSON values by name, with defaults filled in; InvalidInput that lists all that is wrong."""
        named = {p.name: p for p in self.parameters if p.kind in ("named", "positional")}
        loose = any(p.kind == "more" for p in self.parameters)
        wrong = [
            f"{name!r} is not a parameter" for name in arguments if name not in named and not loose
        ]
        wrong += [
            f"{n!r} is missing" for n, p in named.items() if p.is_required and n not in arguments
        ]
        for name in arguments.keys() & named.keys():
            try:
                if named[name].type is not Any:
                    msgspec.convert(arguments[name], named[name].type)
            except msgspec.ValidationError as error:
                wrong.append(f"{name!r} is wrong: {error}")
        if wrong:
            takes = ", ".join(map(str, self.parameters)) or "no parameters"
            raise InvalidInput(
                f"{what} was given wrong input: {'; '.join(sorted(wrong))}. It takes {takes}"
            )
        defaults = {n: p.default for n, p in named.items() if p.has_default}
        return {**defaults, **arguments}


def _parameter(name: str, schema: Any, required: bool, defs: Mapping[str, Any]) -> Parameter:
    if not isinstance(schema, Mapping | bool):
        raise InvalidInput(f"the JSON Schema of {name!r} is not an object but {schema!r}")
    given: Mapping[str, Any] = {} if isinstance(schema, bool) else schema
    default = given.get("default", REQUIRED if required else OMITTED)
    try:
        values.encode(given.get("default"))
    except NotStorable as error:
        raise error.of(f"the default of {name!r}") from None
    declared = readable_type(type_of(given, defs))
    text = given.get("description", "")
    return Parameter(name, declared, default, text if isinstance(text, str) else "", given)


# ── types ────────────────────────────────────────────────────────────────────────────────────


def type_of(schema: Any, defs: Mapping[str, Any], seen: Sequence[str] = ()) -> Any:
    """The Python type of JSON values that a schema describes; Any where no type says as much."""
    if not isinstance(schema, Mapping):
        return Any
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        return Any if name in seen else type_of(defs.get(name), defs, (*seen, name))
    if "const" in schema or "enum" in schema:
        return _literal([schema["const"]] if "const" in schema else schema["enum"])
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return union(type_of(one, defs, seen) for one in schema[key])
    kinds = schema.get("type")
    if isinstance(kinds, list | tuple):
        return union(type_of({**schema, "type": kind}, defs, seen) for kind in kinds)
    return _simple(schema, kinds, defs, seen)


def _simple(
    schema: Mapping[str, Any], kind: Any, defs: Mapping[str, Any], seen: Sequence[str]
) -> Any:
    match kind:
        case "string":
            return _constrained(
                str, schema, min_length="minLength", max_length="maxLength", pattern="pattern"
            )
        case "integer":
            return _constrained(int, schema, **_NUMBERS)
        case "number":
            return _constrained(int, schema, **_NUMBERS) | _constrained(float, schema, **_NUMBERS)
        case "boolean":
            return bool
        case "null":
            return None
        case "array":
            item = type_of(schema.get("items"), defs, seen)
            return _constrained(
                types.GenericAlias(list, (item,)),
                schema,
                min_length="minItems",
                max_length="maxItems",
            )
        case "object":
            more = type_of(schema.get("additionalProperties"), defs, seen)
            value = Any if "properties" in schema else more
            return types.GenericAlias(dict, (str, value))
        case _:
            return Any


_NUMBERS: Final = {
    "ge": "minimum",
    "le": "maximum",
    "gt": "exclusiveMinimum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
}


def _constrained(plain: Any, schema: Mapping[str, Any], **names: str) -> Any:
    """The type with the constraints of a schema, if it has any; a constraint that makes no sense is left out."""
    given = {ours: schema[theirs] for ours, theirs in names.items() if theirs in schema}
    if plain is int:
        given = {k: v for k, v in given.items() if isinstance(v, int)}
    try:
        return Annotated[plain, msgspec.Meta(**given)] if given else plain
    except (TypeError, ValueError):
        return plain


def _literal(choices: Any) -> Any:
    plain = isinstance(choices, list | tuple) and all(
        isinstance(c, str | int | None) for c in choices
    )
    return Literal[tuple(choices)] if plain and choices else Any


def union(choices: Iterable[Any]) -> Any:
    """One of several types; Any if one of them is."""
    found = list(choices)
    if not found or Any in found:
        return Any
    return functools.reduce(operator.or_, [type(None) if t is None else t for t in found])


def readable_type(declared: Any) -> Any:
    """The type itself, or Any if values of it cannot be distinguished when they are read."""
    try:
        msgspec.json.Decoder(declared)
    except (TypeError, ValueError):
        return Any
    return declared


def type_name(declared: Any) -> str:
    """A type as people write it."""
    plain = isinstance(declared, type) and not getattr(declared, "__args__", ())
    return declared.__name__ if plain else str(declared).replace("typing.", "")
