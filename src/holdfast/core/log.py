"""One run's log as a chain of records: sealed when written, checked when read.

A record is an event in its stored form. Its hash covers the hash before it, so a flipped byte, a
missing record, another order or a record of another run is found on read, and named. The first hash
covers the run's id, so one run's log never verifies as another's.

This module does no I/O and does not interpret events.
"""

import hashlib
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec import Raw, Struct

from holdfast.core import events
from holdfast.core.events import Event, Value
from holdfast.core.values import digest, encode_struct, sha256
from holdfast.errors import InvalidInput, LogDamaged, UnknownEvent

SPILL_BYTES: Final = 64 * 1024
"""A value longer than this is kept as an artifact, by its hash, and not inside its event."""

_encode: Final = msgspec.json.Encoder().encode
_HEADER: Final = struct.Struct(">qqq")
RUN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@~=+-]{0,199}")


class Record(NamedTuple):
    """One event as it is stored. `time` is microseconds since 1970 (UTC), by the store's clock."""

    seq: int
    time: int
    epoch: int
    kind: str
    data: bytes
    hash: bytes

    @property
    def event(self) -> Event:
        """The event itself; `events.Unreadable` if this Holdfast does not know it."""
        return events.from_json(self.kind, self.data)


class Head(Struct, frozen=True, gc=False):
    """The end of a log: what the next record is chained to."""

    seq: int
    hash: bytes
    time: int


class Blob(NamedTuple):
    """Bytes kept by their hash, next to the log."""

    hash: str
    data: bytes


_new: Final = tuple.__new__
"""Makes a record; its own constructor is written in Python."""


def check_run_id(run_id: object) -> str:
    """The id itself, or InvalidInput: ids become parts of keys, paths and URLs."""
    if not isinstance(run_id, str) or not RUN_ID.fullmatch(run_id):
        raise InvalidInput(
            f"{run_id!r} is not a run id: use 1 to 200 letters, digits and . _ : @ ~ = + -, "
            "starting with a letter or digit"
        )
    return run_id


def root_of(run_id: str, parent: str) -> str:
    """The id of the run at the top of this one's tree, given its parent's id: a child is `{parent}~{step}`."""
    return re.sub(r"(~\d+)+$", "", run_id) if parent else run_id


def origin(run_id: str) -> Head:
    """The head of an empty log."""
    try:
        name = run_id.encode()
    except (AttributeError, UnicodeEncodeError):
        raise InvalidInput(f"a run id is text, not {run_id!r}") from None
    return Head(-1, hashlib.sha256(b"holdfast log 1\0" + name).digest(), 0)


def chain_hash(before: bytes, seq: int, time: int, epoch: int, kind: str, data: bytes) -> bytes:
    """The hash of a record whose predecessor has the hash `before`."""
    h = sha256()
    # Joined first: copying a small record is cheaper than four calls into OpenSSL.
    h.update(b"".join((before, _HEADER.pack(seq, time, epoch), kind.encode(), b"\0", data)))
    return h.digest()


def head_at(record: Record) -> Head:
    """The end of a log whose last record this is."""
    return Head(record[0], record[5], record[1])


def seal(head: Head, new: Sequence[Event], epoch: int, time: int) -> tuple[Head, list[Record]]:
    """Chain events to a log's end. Time never runs backwards within a run."""
    seq, hash_ = head.seq, head.hash
    pack = _HEADER.pack
    time = time if time > head.time else head.time
    records: list[Record] = []
    for event in new:
        seq += 1
        try:
            kind, data = event.stored_as, _encode(event)
        except (UnicodeEncodeError, TypeError):
            encode_struct(event)  # says what is wrong
            raise
        h = sha256()  # `chain_hash` written out, here and below: it is done for every event
        h.update(b"".join((hash_, pack(seq, time, epoch), kind.encode(), b"\0", data)))
        hash_ = h.digest()
        records.append(_new(Record, (seq, time, epoch, kind, data, hash_)))
    return Head(seq, hash_, time), records


def verify(run_id: str, head: Head, records: Iterable[Record]) -> Iterator[Record]:
    """The records one by one, each checked against the one before; LogDamaged at the first bad one."""
    expected, before = head.seq, head.hash
    pack = _HEADER.pack
    for record in records:
        expected += 1
        seq, time, epoch, kind, data, hash_ = record
        if seq != expected:
            raise LogDamaged(run_id, expected, _out_of_order(seq, expected))
        h = sha256()
        try:
            h.update(b"".join((before, pack(seq, time, epoch), kind.encode(), b"\0", data)))
        except (AttributeError, TypeError, ValueError, struct.error) as error:
            raise LogDamaged(run_id, expected, f"it cannot be decoded: {error}") from None
        if h.digest() != hash_:
            raise LogDamaged(run_id, expected, "its bytes do not match its hash")
        before = hash_
        yield record


def _out_of_order(seq: object, expected: int) -> str:
    """What is wrong where another record follows than should. (What is stored may not even be a number.)"""
    if isinstance(seq, int) and seq > expected:
        return "it is missing"
    return f"event {seq} is in its place"


def read_event(run_id: str, record: Record) -> Event:
    """The record's event, or an error that names the run and the place."""
    try:
        return events.from_json(record[3], record[4])
    except events.Unreadable as error:
        raise UnknownEvent(run_id, record.seq, str(error)) from None


def wrap(data: bytes) -> tuple[Value, tuple[Blob, ...]]:
    """Encoded bytes as a Value, and the artifact to keep next to the event when they are big."""
    if len(data) <= SPILL_BYTES:
        return Value(json=Raw(data)), ()
    return wrap_blob(data)


def wrap_blob(data: bytes) -> tuple[Value, tuple[Blob]]:
    """Bytes as a Value that refers to an artifact, and that artifact."""
    blob = Blob(digest(data), data)
    return Value(blob=blob.hash, bytes=len(data)), (blob,)
