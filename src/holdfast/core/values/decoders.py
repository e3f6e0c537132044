"""Functions that read JSON bytes as a declared type: by msgspec, by pydantic, or by both where each knows constraints
that the other does not.

Nothing is ever imported, constructed or called by a name found in stored bytes: the type comes from the code that asks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from threading import Lock
from typing import Any, Final

import msgspec
import msgspec.inspect

from holdfast.core.values.declared_types import (
    has_msgspec_metadata,
    has_pydantic_metadata,
    is_path,
    is_plain_json,
    is_pydantic_model,
    mentions_pydantic,
    type_name,
)
from holdfast.errors import NotStorable

_BUILDING: Final = Lock()
"""Held while msgspec examines a type. It keeps what it finds with the class before that is complete, and a decoder that
another thread builds from it then crashes the interpreter (msgspec 0.22)."""


def check_storable(declared: Any) -> None:
    """NotStorable if values of a declared type, or a part of it, can never be read back from JSON."""
    if is_plain_json(declared) or has_pydantic_metadata(declared) or mentions_pydantic(declared):
        return
    try:
        with _BUILDING:
            found = msgspec.inspect.type_info(declared)
    except (TypeError, NotImplementedError, NameError):  # `Codec` reports it
        return
    kind = _unreadable(found, [])
    if kind is not None:
        raise NotStorable(
            f"{kind.__qualname__} is not a dataclass, msgspec Struct, pydantic model or JSON type; return "
            "what identifies it (an id, a path, a URL), or the data in it"
        )


def _unreadable(info: Any, seen: list[Any]) -> type[Any] | None:
    """The first type in a description by msgspec that nothing here can read."""
    if isinstance(info, list | tuple):
        return next((kind for x in info if (kind := _unreadable(x, seen)) is not None), None)
    if not isinstance(info, msgspec.inspect.Type | msgspec.inspect.Field) or any(
        info is x for x in seen
    ):
        return None
    seen.append(info)
    if isinstance(info, msgspec.inspect.CustomType):
        known = is_pydantic_model(info.cls) or is_path(info.cls)
        return None if known else info.cls
    parts = [
        getattr(info, name)
        for name in info.__struct_fields__
        if name not in ("default", "default_factory")
    ]
    return _unreadable(parts, seen)


def decoder_of(declared: Any) -> Callable[[bytes | msgspec.Raw], Any]:
    """The function that reads JSON bytes as the declared type; NotStorable if there is none."""
    if not has_pydantic_metadata(declared):
        return _msgspec_decoder(declared)
    by_pydantic = _pydantic_decoder(declared)
    if not has_msgspec_metadata(declared):
        return by_pydantic
    by_msgspec = _msgspec_decoder(declared)  # neither knows the other's constraints

    def decode_and_check(data: bytes | msgspec.Raw) -> Any:
        by_msgspec(data)
        return by_pydantic(data)

    return decode_and_check


def _msgspec_decoder(declared: Any) -> Callable[[bytes | msgspec.Raw], Any]:
    try:
        with _BUILDING:
            return msgspec.json.Decoder(declared, dec_hook=_read_unknown).decode
    except (TypeError, NotImplementedError, NameError) as error:  # msgspec, of types it cannot read
        if mentions_pydantic(declared):  # a union of models, which only pydantic can tell apart
            adapter = sys.modules["pydantic"].TypeAdapter(declared)
            return lambda data: adapter.validate_json(bytes(data))
        raise NotStorable(
            f"the declared type {type_name(declared)} cannot be decoded from JSON ({error}); "
            "declare a simpler type"
        ) from None


def _pydantic_decoder(declared: Any) -> Callable[[bytes | msgspec.Raw], Any]:
    """For constraints that only pydantic knows. Strict: a text is not taken for a number."""
    pydantic = sys.modules.get("pydantic")
    if pydantic is None:
        raise NotStorable(
            f"the declared type {type_name(declared)} has constraints that pydantic checks, which is not "
            "installed; use msgspec.Meta instead"
        )
    try:
        adapter = pydantic.TypeAdapter(declared)
    except (TypeError, NameError, RuntimeError) as error:  # pydantic, of types it cannot read
        raise NotStorable(
            f"pydantic cannot read the declared type {type_name(declared)}: {error}"
        ) from None
    strict = None if mentions_pydantic(declared) else True  # a model has its own configuration
    return lambda data: adapter.validate_json(bytes(data), strict=strict)


def _read_unknown(kind: type[Any], data: Any) -> Any:
    """For msgspec: a value of a type that it does not know, from plain JSON."""
    if is_pydantic_model(kind):
        return kind.model_validate_json(msgspec.json.encode(data))
    if is_path(kind):
        if not isinstance(data, str):
            raise ValueError(f"Expected a path as text, got {data!r}")
        return kind(data)
    raise NotImplementedError(  # what msgspec asks its hooks to raise; `Codec.decode` rewords it
        f"{kind.__qualname__} is not a dataclass, msgspec Struct or pydantic model"
    )
