"""JSON Schemas of our Structs and dataclasses, as components of an OpenAPI document.

`msgspec.json.schema_components` does the same, but not for a Struct whose default is a `Raw`, as `Value` has.
"""

from __future__ import annotations

import inspect
from typing import Any, Final

import msgspec
import msgspec.inspect as mi

REF: Final = "#/components/schemas/"
_PLAIN: Final[dict[type[mi.Type], dict[str, Any]]] = {
    mi.AnyType: {},
    mi.RawType: {},
    mi.NoneType: {"type": "null"},
    mi.BoolType: {"type": "boolean"},
    mi.BytesType: {"type": "string", "contentEncoding": "base64"},
}
_NUMBERS: Final = (
    ("ge", "minimum"),
    ("gt", "exclusiveMinimum"),
    ("le", "maximum"),
    ("lt", "exclusiveMaximum"),
)
_TEXTS: Final = (("min_length", "minLength"), ("max_length", "maxLength"), ("pattern", "pattern"))


class Components:
    """Schemas by name; types that refer to each other are named once."""

    def __init__(self) -> None:
        self.schemas: dict[str, Any] = {}
        self._types: dict[str, type] = {}

    def add(self, declared: Any) -> dict[str, Any]:
        """The schema of a type; what has fields becomes a component."""
        return self._schema(mi.type_info(declared))

    def _schema(self, info: mi.Type) -> dict[str, Any]:
        if isinstance(info, mi.Metadata):
            return self._schema(info.type)
        if type(info) in _PLAIN:
            return dict(_PLAIN[type(info)])
        match info:
            case mi.IntType() | mi.FloatType():
                kind = "integer" if isinstance(info, mi.IntType) else "number"
                return {"type": kind, **_limits(info, _NUMBERS)}
            case mi.StrType():
                return {"type": "string", **_limits(info, _TEXTS)}
            case mi.LiteralType():
                return {"enum": list(info.values)}
            case mi.UnionType():
                return {"anyOf": [self._schema(one) for one in info.types]}
            case mi.ListType() | mi.VarTupleType() | mi.SetType() | mi.CollectionType():
                return {"type": "array", "items": self._schema(info.item_type)}
            case mi.DictType():
                return {"type": "object", "additionalProperties": self._schema(info.value_type)}
            case mi.StructType() | mi.DataclassType():
                return self._component(info)
        raise AssertionError(f"no schema for {info}")

    def _component(self, info: mi.StructType | mi.DataclassType) -> dict[str, Any]:
        name = info.cls.__name__
        assert self._types.setdefault(name, info.cls) is info.cls, f"two types are called {name}"
        if name not in self.schemas:
            self.schemas[name] = {}  # it may contain itself
            self.schemas[name] = self._described(info)
        return {"$ref": REF + name}

    def _described(self, info: mi.StructType | mi.DataclassType) -> dict[str, Any]:
        doc = inspect.cleandoc(info.cls.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
        head = {"description": doc} if doc and not doc.startswith(f"{info.cls.__name__}(") else {}
        fields = {field.encode_name: self._schema(field.type) for field in info.fields}
        found: dict[str, Any] = {**head, "type": "object", "properties": fields}
        if required := [field.encode_name for field in info.fields if field.required]:
            found["required"] = required
        if isinstance(info, mi.StructType) and info.forbid_unknown_fields:
            found["additionalProperties"] = False
        return found


def _limits(info: mi.Type, names: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    given = ((schema, getattr(info, name)) for name, schema in names)
    return {schema: value for schema, value in given if value is not None}


def query_fields(query: type[msgspec.Struct]) -> dict[str, tuple[dict[str, Any], bool]]:
    """The fields of a query, each with its schema and whether it is required."""
    components = Components()
    components.add(query)
    described = components.schemas[query.__name__]
    required = described.get("required", ())
    return {name: (s, name in required) for name, s in described["properties"].items()}
