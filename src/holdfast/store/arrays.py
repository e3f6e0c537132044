"""Columns of values as PostgreSQL arrays, in the binary form that goes over the wire.

psycopg can make arrays from lists, but looks at every element to find out what it is, which costs
more than writing the rows. Here the kind is known, so a column is one or two calls into C.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from psycopg.abc import AdaptContext
from psycopg.adapt import Dumper
from psycopg.pq import Format

# Types of elements and of arrays of them, as fixed in PostgreSQL's catalogue.
_BYTEA: Final = (17, 1001)
_BIGINT: Final = (20, 1016)
_TEXT: Final = (25, 1009)

_HEADER: Final = struct.Struct(">iiiii")  # dimensions, has nulls, type, length, first index
_LENGTH: Final = struct.Struct(">i")


class Longs(bytes):
    """A bigint[], ready to send."""


class Texts(bytes):
    """A text[], ready to send."""


class Blobs(bytes):
    """A bytea[], ready to send."""


def longs(values: Sequence[int]) -> Longs:
    """Integers as bigint[]."""
    count = len(values)
    fields = [8] * (2 * count)  # each element follows its length in bytes
    fields[1::2] = values
    return Longs(
        _HEADER.pack(1, 0, _BIGINT[0], count, 1) + struct.pack(">" + "iq" * count, *fields)
    )


def texts(values: Sequence[str]) -> Texts:
    """Strings as text[]."""
    return Texts(_variable(_TEXT[0], list(map(str.encode, values))))


def blobs(values: Sequence[bytes]) -> Blobs:
    """Byte strings as bytea[]."""
    return Blobs(_variable(_BYTEA[0], values))


def _variable(kind: int, values: Sequence[bytes]) -> bytes:
    count = len(values)
    parts = [b""] * (2 * count + 1)
    parts[0] = _HEADER.pack(1, 0, kind, count, 1)
    parts[1::2] = map(_LENGTH.pack, map(len, values))
    parts[2::2] = values
    return b"".join(parts)


class _Ready(Dumper):
    format = Format.BINARY

    def dump(self, obj: bytes) -> bytes:
        return obj


class _LongsDumper(_Ready):
    oid = _BIGINT[1]


class _TextsDumper(_Ready):
    oid = _TEXT[1]


class _BlobsDumper(_Ready):
    oid = _BYTEA[1]


def register(context: AdaptContext) -> None:
    """Teach a connection to send these."""
    adapters = context.adapters
    if adapters is not None:
        adapters.register_dumper(Longs, _LongsDumper)
        adapters.register_dumper(Texts, _TextsDumper)
        adapters.register_dumper(Blobs, _BlobsDumper)
