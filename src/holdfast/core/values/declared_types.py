"""What a declared type (an annotation, a state model) is made of: plain JSON, records, pydantic models, constraints.

Pydantic is never imported here: a type can only be one of its models if other code has imported it. `dataclasses` is
imported where a dataclass was found.

Not here: reading values of such a type (`encoding.py`).
"""

from __future__ import annotations

import sys
import typing
from typing import Any, Final

import msgspec


def is_plain_json(declared: Any) -> bool:
    """Whether plain JSON already is the declared type, so that no conversion is needed."""
    if any(declared is plain for plain in (Any, object, None, type(None), dict, list)):
        return True
    origin, args = typing.get_origin(declared), typing.get_args(declared)
    if origin is list:
        return all(map(is_plain_json, args))
    if origin is dict:
        return not args or (args[0] is str and is_plain_json(args[1]))
    return False


def is_dataclass(kind: type[Any]) -> bool:
    return hasattr(kind, "__dataclass_fields__")


def dataclass_fields(value: Any) -> dict[str, Any] | None:
    """The fields of a dataclass's instance with their values; None for any other value."""
    if not is_dataclass(type(value)):
        return None
    from dataclasses import fields

    return {field.name: getattr(value, field.name) for field in fields(value)}


def is_pydantic_model(declared: Any) -> bool:
    """Whether it is a pydantic model class (without importing pydantic)."""
    pydantic = sys.modules.get("pydantic")
    return (
        pydantic is not None
        and isinstance(declared, type)
        and issubclass(declared, pydantic.BaseModel)
    )


def is_path(declared: Any) -> bool:
    """Whether it is one of pathlib's classes (which does I/O, and is not imported here)."""
    return isinstance(declared, type) and any(
        base.__module__.partition(".")[0] == "pathlib" for base in declared.__mro__
    )


def mentions_pydantic(declared: Any) -> bool:
    """Whether a pydantic model is, or is inside, the declared type."""
    return is_pydantic_model(declared) or any(map(mentions_pydantic, typing.get_args(declared)))


_PYDANTIC: Final = ("pydantic", "pydantic_core", "annotated_types")


def has_pydantic_metadata(declared: Any) -> bool:
    """Whether `Annotated` metadata that pydantic checks is somewhere in the declared type."""
    return any(
        type(found).__module__.partition(".")[0] in _PYDANTIC
        or hasattr(found, "__get_pydantic_core_schema__")
        for found in metadata_in(declared)
    )


def is_constrained(declared: Any) -> bool:
    """Whether the declared type has constraints on its values."""
    return has_pydantic_metadata(declared) or has_msgspec_metadata(declared)


def has_msgspec_metadata(declared: Any) -> bool:
    """Whether there is a `msgspec.Meta` somewhere in the declared type."""
    return any(isinstance(found, msgspec.Meta) for found in metadata_in(declared))


def metadata_in(declared: Any, seen: tuple[Any, ...] = ()) -> list[Any]:
    """The `Annotated` metadata in a declared type, also of the fields of records and behind other names.

    Not of pydantic models: they check themselves when they are made.
    """
    if any(declared is known for known in seen):
        return []
    seen = (*seen, declared)
    is_annotated = typing.get_origin(declared) is typing.Annotated
    found = list(declared.__metadata__) if is_annotated else []
    for part in (*typing.get_args(declared)[: 1 if found else None], *_types_inside(declared)):
        found += metadata_in(part, seen)
    return found


def _types_inside(declared: Any) -> list[Any]:
    """The type behind a name (`NewType`, `type X = …`), or the types of a record's fields."""
    for name in ("__supertype__", "__value__"):
        if not isinstance(declared, type) and hasattr(declared, name):
            return [getattr(declared, name)]
    kind = typing.get_origin(declared) or declared
    if not isinstance(kind, type) or not _is_record(kind):
        return []
    try:
        return list(typing.get_type_hints(kind, include_extras=True).values())
    except (NameError, TypeError):  # what cannot be resolved is refused when it is read
        return []


def _is_record(kind: type[Any]) -> bool:
    is_named_tuple = issubclass(kind, tuple) and hasattr(kind, "_fields")
    is_struct = is_dataclass(kind) or issubclass(kind, msgspec.Struct)
    return is_struct or is_named_tuple or typing.is_typeddict(kind)


def type_name(declared: Any) -> str:
    """A declared type, as error messages name it."""
    return getattr(declared, "__qualname__", None) or str(declared)
