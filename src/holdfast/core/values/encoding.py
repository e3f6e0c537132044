"""Values as JSON bytes and back: plain ones with `encode` and `decode`, those of a declared type with a `Codec`; and the digest of
bytes.

Not here: canonical bytes of values that are not flat (`lowering.py`).
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any, Final

import msgspec

from holdfast.core.values.declared_types import is_plain_json, type_name
from holdfast.core.values.decoders import decoder_of
from holdfast.core.values.lowering import find_surrogate, lower, message_of, path_of
from holdfast.errors import NotStorable

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
