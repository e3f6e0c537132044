"""A run as one file: lines of JSON that hold its log, chained as it is, and its artifacts.

    {"format": "holdfast run", "version": 1, "id": …}      the first line
    {"seq": 0, "time": …, "epoch": …, "kind": …, "data": "…", "hash": "…"}   one for each event
    {"blob": "<hash>", "data": "<base64>"}                 one for each value kept next to the log

An imported file is untrusted data: its shape, its chain, every event and every hash are
checked before anything is written, what the first line claims is taken from the log instead, and a
run that had not ended is paused. Nothing of it becomes code.

`hf.export` and `hf.import_run` are these functions. `watch` sees each thing that is worked through, with a few
words for what is done with it: an interface may count them.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Annotated, Any, Final, TypeVar

import msgspec

from holdfast import control, views
from holdfast.core import events as e
from holdfast.core import log, values
from holdfast.core.events import artifacts, bytes_of
from holdfast.core.fold import fold
from holdfast.core.log import Blob, Record
from holdfast.core.state import RunState
from holdfast.errors import InvalidInput, LogDamaged
from holdfast.store.artifacts import read_artifact
from holdfast.store.base import TERMINAL_STATUSES, Append, Creation, NewRun, RowChange, Store

FORMAT: Final = "holdfast run"
CHARS_MAX: Final = 512 * 1024 * 1024
FIRST_CHARS_MAX: Final = 4096
LEASE_US: Final = 60_000_000
IMPORTER: Final = "import"

Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
S = TypeVar("S", bound=msgspec.Struct)


class NotABundle(InvalidInput):
    """The file is not a run that was exported."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"this is not a file that `holdfast export` wrote: {why}. Nothing was imported"
        )


class _First(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    version: int
    id: str


class _Event(msgspec.Struct, forbid_unknown_fields=True):
    seq: Number
    time: Number
    epoch: Number
    kind: str
    data: str
    hash: str


class _Blob(msgspec.Struct, forbid_unknown_fields=True):
    blob: str
    data: str


@dataclass(frozen=True, slots=True)
class Bundle:
    """A run that was read from a file, checked."""

    run: NewRun
    records: list[Record]
    blobs: list[Blob]
    status: str


@dataclass(frozen=True, slots=True)
class ImportResult:
    """A run that was imported, and the status that it has now."""

    run_id: str
    status: str
    events: int


# ── out ──────────────────────────────────────────────────────────────────────────────────────


def export(
    store: Store, run_id: str, *, watch: views.ProgressHook = views.unwatched
) -> Iterator[str]:
    """The lines of a run's file. The log is verified before the first line is returned."""
    count = views.check(store, run_id, through=lambda records: watch(records, "checking event"))
    return _lines(store, run_id, count, watch)


def _lines(store: Store, run_id: str, count: int, watch: views.ProgressHook) -> Iterator[str]:
    yield _line({"format": FORMAT, "version": 1, "id": run_id})
    seqs: dict[str, int] = {}  # of each value outside the log: the first event that refers to it
    for record, event in watch(views.events(store, run_id), "writing event"):
        if record.seq >= count:
            break  # written since it was verified
        for name in artifacts(event):
            seqs.setdefault(name, record.seq)
        yield _line(
            {
                "seq": record.seq,
                "time": record.time,
                "epoch": record.epoch,
                "kind": record.kind,
                "data": record.data.decode(),
                "hash": record.hash.hex(),
            }
        )
    for name in watch(sorted(seqs), "writing value"):
        data = read_artifact(store, run_id, name, seq=seqs[name])
        yield _line({"blob": name, "data": base64.b64encode(data).decode()})


def _line(fields: dict[str, Any]) -> str:
    return json.dumps(fields, ensure_ascii=True, separators=(",", ":"))


# ── in ───────────────────────────────────────────────────────────────────────────────────────


def read(file: Iterable[str], *, watch: views.ProgressHook = views.unwatched) -> Bundle:
    """Read and check a run's file; NotABundle or LogDamaged if anything is wrong with it."""
    lines = _bounded(watch(file, "reading line"))
    first = _read(next(lines, ""), _First, "its first line")
    if first.format != FORMAT or first.version != 1:
        raise NotABundle(
            f"its format is {first.format!r}, version {first.version}; this Holdfast reads version 1"
        )
    run_id = log.check_run_id(first.id)
    records, blobs = [], []
    for number, line in enumerate(lines, 2):
        if line.startswith('{"blob"'):
            blobs.append(_blob(_read(line, _Blob, f"line {number}")))
        else:
            records.append(_record(_read(line, _Event, f"line {number}"), number))
    chained = watch(records, "checking event")
    checked = list(log.verify(run_id, log.origin(run_id), chained))
    events = [log.read_event(run_id, record) for record in checked]
    created = events[0] if events else None
    if not isinstance(created, e.RunCreated) or created.run_id != run_id:
        raise NotABundle("its log does not start with the creation of this run")
    missing = set().union(*map(artifacts, events)) - {blob.hash for blob in blobs}
    if missing:
        raise NotABundle(f"the value with hash {min(missing)} is missing from it")
    digest = created.input.blob or values.digest(bytes_of(created.input.json))
    run = NewRun(run_id, created.agent, digest, created.code_version, created.parent)
    return Bundle(run, checked, blobs, _status(watch(checked, "adding up event")))


def lines_of(file: IO[str]) -> Iterator[str]:
    """The lines of a file that may be anything: never more of one is read than could be accepted."""
    left = CHARS_MAX
    limit = min(FIRST_CHARS_MAX, left)
    what = "its first line"
    while line := file.readline(limit + 1):
        if len(line) > limit:
            raise NotABundle(f"{what} is longer than {limit:,} characters")
        yield line
        left -= len(line)
        limit, what = left, f"what follows its first {CHARS_MAX - left:,} characters"


def _bounded(file: Iterable[str]) -> Iterator[str]:
    size = 0
    for line in file:
        size += len(line)
        if size > CHARS_MAX:
            raise NotABundle(f"it is longer than {CHARS_MAX:,} characters")
        if line.strip():
            yield line


def _read(line: str, kind: type[S], where: str) -> S:
    try:
        return msgspec.json.decode(line, type=kind)
    except (ValueError, RecursionError) as error:
        raise NotABundle(f"{where} cannot be parsed: {error}") from None


def _record(x: _Event, number: int) -> Record:
    try:
        return Record(x.seq, x.time, x.epoch, x.kind, x.data.encode(), bytes.fromhex(x.hash))
    except ValueError as error:
        raise NotABundle(f"line {number} cannot be parsed: {error}") from None


def _blob(x: _Blob) -> Blob:
    try:
        data = base64.b64decode(x.data, validate=True)
    except (ValueError, binascii.Error):
        raise NotABundle(f"the value with hash {x.blob} is not base64") from None
    if values.digest(data) != x.blob:
        raise LogDamaged("?", 0, f"the value with hash {x.blob} has other bytes")
    return Blob(x.blob, data)


def _status(records: Iterable[Record]) -> str:
    """What the log adds up to. Events of the right shape may still be nonsense in each other's company."""
    try:
        status = fold(RunState(), records).status
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise NotABundle(
            f"its events do not form a valid run: {type(error).__name__}: {error}"
        ) from None
    return status if status in TERMINAL_STATUSES else "paused"


def import_run(store: Store, packed: Bundle) -> ImportResult:
    """Write a run that was read from a file into a store. One that had not ended is paused."""
    # Claimed while it is written, so that no worker claims it in between.
    run = packed.run
    keyed = (e.SignalReceived.stored_as, e.ItemPut.stored_as)
    known = [(r.seq, r.event) for r in packed.records if r.kind in keyed]
    keys = control.received(run.id, known)
    creation = Creation(run, packed.records, packed.blobs, IMPORTER, LEASE_US, keys)
    row, fresh = store.create(creation).wait().made
    if not fresh:
        raise InvalidInput(f"run {run.id!r} already exists in this store; nothing was imported")
    last = packed.records[-1]
    new: list[Record] = []
    if packed.status == "paused":
        said = e.RunPaused(
            by=IMPORTER, why="imported; nothing is executed until a person resumes it"
        )
        _, new = log.seal(log.head_at(last), [said], epoch=row.epoch, time=store.now())
    waits = "a person to resume it" if new else ""
    change = RowChange(packed.status, None, waits, waiting_kinds="resume" if new else "")
    store.append(Append(run.id, last.seq, new, row.epoch, change))
    return ImportResult(run.id, packed.status, len(packed.records))
