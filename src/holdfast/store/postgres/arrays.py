"""Values for PostgreSQL in the binary form that goes over the wire; columns of them as arrays.

psycopg can make arrays from lists, but looks at every element to find out what it is, which costs
more than writing the rows. Here the kind is known, so a column is one or two calls into C.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import ClassVar, Final

from psycopg.abc import AdaptContext
from psycopg.adapt import Dumper
from psycopg.pq import Format

# Types of the elements, as fixed in PostgreSQL's catalogue.
_BYTEA: Final = 17
_BIGINT: Final = 20
_TEXT: Final = 25

_HEADER: Final = struct.Struct(">iiiii")  # dimensions, has nulls, type, length, first index
_LENGTH: Final = struct.Struct(">i")
# Of one element, as for a run alone: the same in one call.
_ONE_LONG: Final = struct.Struct(">iiiiiiq")
_ONE_OTHER: Final = struct.Struct(">iiiiii")


class BinaryValue(bytes):
    """A value in its binary form; `oid` is its type in PostgreSQL's catalogue."""

    oid: ClassVar[int]


class Text(BinaryValue):
    """A text."""

    oid = _TEXT


class TextArray(BinaryValue):
    """A text[]."""

    oid = 1009


class BigintArray(BinaryValue):
    """A bigint[]."""

    oid = 1016


class ByteaArray(BinaryValue):
    """A bytea[]."""

    oid = 1001


def longs(values: Sequence[int]) -> BigintArray:
    """Integers as bigint[]."""
    count = len(values)
    if count == 1:
        return BigintArray(_ONE_LONG.pack(1, 0, _BIGINT, 1, 1, 8, values[0]))
    fields = [8] * (2 * count)  # each element follows its length in bytes
    fields[1::2] = values
    return BigintArray(
        _HEADER.pack(1, 0, _BIGINT, count, 1) + struct.pack(">" + "iq" * count, *fields)
    )


def texts(values: Sequence[str]) -> TextArray:
    """Strings as text[]."""
    return TextArray(_variable(_TEXT, list(map(str.encode, values))))


def blobs(values: Sequence[bytes]) -> ByteaArray:
    """Byte strings as bytea[]."""
    return ByteaArray(_variable(_BYTEA, values))


def _variable(kind: int, values: Sequence[bytes]) -> bytes:
    count = len(values)
    if count == 1:
        return _ONE_OTHER.pack(1, 0, kind, 1, 1, len(values[0])) + values[0]
    parts = [b""] * (2 * count + 1)
    parts[0] = _HEADER.pack(1, 0, kind, count, 1)
    parts[1::2] = map(_LENGTH.pack, map(len, values))
    parts[2::2] = values
    return b"".join(parts)


class _BinaryDumper(Dumper):
    format = Format.BINARY

    def __init__(self, cls: type[BinaryValue], context: AdaptContext | None = None) -> None:
        super().__init__(cls, context)
        self.oid = cls.oid

    def dump(self, obj: BinaryValue) -> bytes:
        return obj


def register(context: AdaptContext) -> None:
    """Teach a connection to send these."""
    adapters = context.adapters
    if adapters is not None:
        for kind in (Text, TextArray, BigintArray, ByteaArray):
            adapters.register_dumper(kind, _BinaryDumper)
