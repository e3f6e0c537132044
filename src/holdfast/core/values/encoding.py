"""Values as JSON bytes and back: plain ones with `encode` and `decode`, those of a declared type with a `Codec`; and the digest of
bytes.

Not here: canonical bytes of values that are not flat (`lowering.py`).

Functions that read JSON bytes as a declared type do so by msgspec, by pydantic, or by both where each knows constraints
that the other does not. Nothing is ever imported, constructed or called by a name found in stored bytes: the type
comes from the code that asks.
"""

from __future__ import annotations

import functools
import hashlib
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
from holdfast.core.values.lowering import find_surrogate, lower, message_of, path_of
from holdfast.errors import NotStorable

# ── reading a declared type ──────────────────────────────────────────────────────────────────


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


# ── encoding, and both ways ──────────────────────────────────────────────────────────────────


BYTES_MAX: Final = 64 * 1024 * 1024

_encode: Final = msgspec.json.Encoder().encode
_encode_sorted: Final = msgspec.json.Encoder(order="deterministic").encode
_decode: Final = msgspec.json.Decoder().decode
sha256: Final = hashlib.sha256().copy
"""A fresh SHA-256. (OpenSSL takes longer to look the algorithm up than to hash a short text with it.)"""


def encode(value: Any, *, typed: bool = False) -> bytes:
    """The JSON bytes of a value, or NotStorable with the path to what cannot be stored.

    `typed` says that the reader will decode to a declared type, so that dates, decimals, dataclasses
    and the like come back as they were (where the declared type says Any, they come back as JSON).
    Without it only plain JSON is accepted (tuples become lists).
    """
    lowered = value if type(value) is str else lower(value, typed=typed)
    try:
        data = _encode(lowered)
    except UnicodeEncodeError:
        find_surrogate(lowered)
        raise
    if len(data) > BYTES_MAX:
        raise NotStorable(
            f"it takes {len(data):,} bytes and the limit is {BYTES_MAX:,}; "
            "keep it in a file or bucket and store its address"
        )
    return data


def decode(data: bytes | msgspec.Raw) -> Any:
    """Plain JSON values from stored bytes."""
    try:
        return _decode(data)
    except (ValueError, RecursionError) as error:
        raise NotStorable(f"the stored bytes are not JSON: {error}") from None


def encode_struct(value: msgspec.Struct | list[Any] | dict[str, Any]) -> bytes:
    """The bytes of our own structs, or of a list or dict of them, whose user values are plain JSON already."""
    try:
        return _encode(value)
    except UnicodeEncodeError as error:
        reason = (
            f"its text {error.object[:60]!r} contains a lone surrogate, which is not valid Unicode"
        )
    except TypeError as error:  # a caller gave something else where text or a number belongs
        reason = str(error)
    raise NotStorable(
        reason, what=type(value).__name__ if isinstance(value, msgspec.Struct) else "value"
    )


def canonical_flat(fields: dict[str, Any]) -> bytes | None:
    """The same as `canonical` for texts, truth values and ordinary integers under ASCII names; None for others.

    Nearly all arguments are such, and this takes a third of the time: nothing is walked or copied.
    """
    for value in fields.values():
        kind = type(value)
        if kind is int:
            if not -(2**63) <= value < 2**63:
                return None
        elif kind is not str and kind is not bool and value is not None:
            return None
    try:
        return _encode_sorted(fields)
    except UnicodeEncodeError:
        return None


def digest(data: bytes) -> str:
    """A short name for exact bytes: the first 128 bits of SHA-256, in hex."""
    h = sha256()
    h.update(data)
    return h.hexdigest()[:32]


class Codec:
    """Encodes and decodes values of one declared type (a return annotation, a state model)."""

    __slots__ = ("_decode", "_takes_text", "declared", "typed")

    def __init__(self, declared: Any = Any) -> None:
        self.declared = declared
        self._takes_text = declared is str or declared is Any
        self.typed = not is_plain_json(declared)
        self._decode = decoder_of(declared) if self.typed else decode

    def encode(self, value: Any) -> bytes:
        """JSON bytes for `decode`, or NotStorable. Only `decode` shows whether the type is right."""
        return encode(value, typed=self.typed)

    def round_trip(self, value: Any) -> tuple[bytes, Any]:
        """The bytes of a value, and what they are decoded to: what the code sees on a replay, and the first time too."""
        data = encode(value, typed=self.typed)
        if self._takes_text and type(value) is str:  # it cannot be decoded to anything else
            return data, value
        return data, self.decode(data)

    def decode(self, data: bytes | msgspec.Raw) -> Any:
        """The value as its declared type."""
        try:
            return self._decode(data)
        except NotStorable:
            raise
        except (ValueError, RecursionError, NotImplementedError) as error:  # msgspec's
            raise NotStorable(
                f"it cannot be decoded as the declared type {type_name(self.declared)}: {message_of(error)}",
                path=path_of(error),
            ) from None


@functools.lru_cache(maxsize=1024)
def _cached_codec(declared: Any) -> Codec:
    return Codec(declared)


def codec_of(declared: Any) -> Codec:
    """The codec of a declared type; the same one each time, where the type can be looked up."""
    try:
        return _cached_codec(declared)
    except TypeError:  # it has no hash
        return Codec(declared)
