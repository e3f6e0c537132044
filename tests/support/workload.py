"""Appends of every kind over one SQLite file, each acknowledged only after it returned; and the check
that, whatever was done to the process or the disk meanwhile, no acknowledgement was a lie.

    python workload.py FILE ACKS --steps 40         as a process of its own, to be traced or killed

An acknowledgement is one line, written with one unbuffered system call:

    event RUN SEQ HASH        this event is in the log
    epoch RUN EPOCH           this epoch was given to a worker, and must never be given again
    blob RUN HASH             these bytes are kept

What a workload does depends on its seed and its step number only, so two runs do the same.
"""

import argparse
import contextlib
import json
import os
import random
import select
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import apsw

from holdfast.core import events, log
from holdfast.core.events import Event
from holdfast.core.log import Blob, Head
from holdfast.core.values import digest
from holdfast.errors import Conflict, HoldfastError, LogDamaged
from holdfast.store.base import Append, Creation, NewRun, RowChange, Snapshot
from holdfast.store.sqlite import SQLiteStore
from holdfast.store.sqlite import file as sqlite_file

SHARED_RUN = "shared"
MANY = 53  # more than one statement's worth of rows
ANSWER_SECONDS = 120  # far more than anything here takes; only a hang meets it
LEASE_US = 1  # over at once, so that a later process can claim the run


def nothing(point: str) -> None:
    """A boundary where nothing happens; a test puts its SIGKILL here."""


@dataclass
class Workload:
    """One writer with runs of its own, and one run that all writers share."""

    store: SQLiteStore
    acks: int
    writer: int = 0
    seed: int = 1
    point: Callable[[str], None] = nothing
    heads: dict[str, Head] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)

    def go(self, steps: Iterable[int]) -> None:
        for number in steps:
            self.step(number)

    def step(self, number: int) -> None:
        """One commit, or two where a claim comes first. What it does follows from its number."""
        chance = random.Random(f"{self.seed} {self.writer} {number}")
        run_id = f"run-{self.writer}-{number % 3}"
        self._own(run_id, number)
        text = "x" * chance.randrange(40, 900)
        line = events.LogWritten(level="info", text=text)
        match number % 8:
            case 1:
                self._append(run_id, number, [line] * chance.randrange(2, 6))
            case 3:
                value = json.dumps(chance.randbytes(36_000).hex()).encode()
                result, blobs = log.wrap(value)
                assert blobs
                self._append(
                    run_id, number, [events.NoteTaken(key="big", value=result)], blobs=blobs
                )
            case 4:
                self._append(
                    run_id,
                    number,
                    [events.RunSuspended("later")],
                    change=RowChange("waiting", due_at=number),
                )
                self._claim(run_id)
            case 5:
                self._append_shared(number)
            case 6:
                signal = events.SignalReceived(f"{self.writer}-{number}", "hello", events.NULL)
                self._append(
                    run_id,
                    number,
                    [signal],
                    outside=True,
                    change=RowChange(wake=True),
                    claims_key=f"key-{self.writer}-{number}",
                )
            case 7:
                self._append(run_id, number, [line] * MANY)
                head = self.heads[run_id]
                self.store.snapshots.save(run_id, Snapshot(head.seq, head.hash, "", number, b"{}"))
            case _:
                self._append(run_id, number, [line])

    # -- one append of each kind ---------------------------------------------------------------

    def _own(self, run_id: str, number: int) -> None:
        """Have the run under an epoch of ours: create it, or claim it after an earlier process."""
        if run_id in self.heads:
            return
        self.point("before create")
        head, records = log.seal(
            log.origin(run_id),
            [events.RunCreated(run_id, "agent", events.NULL)],
            epoch=1,
            time=self._time(number),
        )
        row, created = (
            self.store.create(
                Creation(NewRun(run_id, "agent", "digest"), records, worker="w", lease_us=LEASE_US)
            )
            .wait()
            .made
        )
        if created:
            self.heads[run_id], self.epochs[run_id] = head, row.epoch
            self._ack(*_lines(run_id, records), f"epoch {run_id} {row.epoch}")
        else:
            self.heads[run_id] = _head(self.store, run_id)
            self._claim(run_id)

    def _claim(self, run_id: str) -> None:
        self.point("before claim")
        row = self.store.claim(run_id, worker="w", lease_us=LEASE_US)
        assert row is not None
        self.epochs[run_id] = row.epoch
        self._ack(f"epoch {run_id} {row.epoch}")

    def _append(
        self,
        run_id: str,
        number: int,
        new: list[Event],
        *,
        blobs: Iterable[Blob] = (),
        change: RowChange | None = None,
        claims_key: str = "",
        outside: bool = False,
    ) -> None:
        epoch = self.epochs[run_id]
        before = self.heads[run_id]
        after, records = log.seal(before, new, epoch=epoch, time=self._time(number))
        self.point("before append")
        self.store.append(
            Append(
                run_id,
                before.seq,
                records,
                epoch=None if outside else epoch,
                change=change,
                blobs=tuple(blobs),
                claims_key=claims_key,
            )
        )
        self.heads[run_id] = after
        self._ack(*_lines(run_id, records), *(f"blob {run_id} {blob.hash}" for blob in blobs))

    def _append_shared(self, number: int) -> None:
        """To a run that other writers append to as well: read on and try again at each Conflict."""
        created = events.RunCreated(SHARED_RUN, "agent", events.NULL)
        _, first = log.seal(log.origin(SHARED_RUN), [created], epoch=0, time=0)
        self.store.create(Creation(NewRun(SHARED_RUN, "agent", "digest"), first)).wait()
        while True:
            head = _head(self.store, SHARED_RUN)
            signal = events.SignalReceived(f"{self.writer}-{number}", "all", events.NULL)
            _, records = log.seal(head, [signal], epoch=0, time=self._time(number))
            self.point("before shared")
            try:
                self.store.append(Append(SHARED_RUN, head.seq, records))
            except Conflict:
                continue
            self._ack(*_lines(SHARED_RUN, records))
            return

    def _time(self, number: int) -> int:
        """One moment for each append of each writer, so that events of one append are known by it."""
        return (number + 1) * 1000 + self.writer

    def _ack(self, *lines: str) -> None:
        self.point("before ack")
        os.write(self.acks, "".join(f"{line}\n" for line in lines).encode())
        self.point("after ack")


def _lines(run_id: str, records: Iterable[log.Record]) -> list[str]:
    return [f"event {run_id} {record.seq} {record.hash.hex()}" for record in records]


def _head(store: SQLiteStore, run_id: str) -> Head:
    last = store.read(run_id)[-1]
    return Head(last.seq, last.hash, last.time)


# -- the check -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What a store held against its acknowledgements."""

    lost: list[str]
    """Acknowledged, and not there."""
    damaged: list[str]
    """A log that does not verify, or a file that SQLite finds fault with."""
    events: int
    unacked_appends: int
    """Committed and never acknowledged: allowed, for what was in flight."""

    @property
    def is_good(self) -> bool:
        return not self.lost and not self.damaged


def read_acks(acks: str | os.PathLike[str] | bytes) -> list[str]:
    """The acknowledgements of a file, or of its bytes; a line without its end was never written."""
    text = acks if isinstance(acks, bytes) else Path(acks).read_bytes()
    return text.decode().split("\n")[:-1]


def examine(path: str | os.PathLike[str], acks: Iterable[str]) -> Outcome:
    """Open the store as a fresh process would, and compare it with what was acknowledged."""
    store = SQLiteStore(path)
    try:
        damaged = _faults_of_file(str(path))
        held, times, epochs = set[str](), set[tuple[str, int]](), dict[str, int]()
        wanted = list(acks)
        acked = set(wanted)
        for row in store.runs(limit=1000):
            epochs[row.id] = row.epoch
            try:
                for record in log.verify(row.id, log.origin(row.id), store.read(row.id)):
                    line = f"event {row.id} {record.seq} {record.hash.hex()}"
                    held.add(line)
                    if line not in acked:
                        times.add((row.id, record.time))
            except LogDamaged as error:
                damaged.append(str(error))
        lost = [line for line in wanted if line not in held and not _is_kept(store, epochs, line)]
    finally:
        store.close()
    times.discard((SHARED_RUN, 0))  # its creation, by the first process, is not an acknowledgement
    return Outcome(lost, damaged, len(held), len(times))


def _is_kept(store: SQLiteStore, epochs: dict[str, int], line: str) -> bool:
    match line.split():
        case ["epoch", run_id, epoch]:
            return epochs.get(run_id, 0) >= int(epoch)
        case ["blob", run_id, wanted]:
            data = store.blob(run_id, wanted)
            return data is not None and digest(data) == wanted
    return False


def _faults_of_file(path: str) -> list[str]:
    db = apsw.Connection(path)
    try:
        return [
            str(row[0]) for row in db.execute("PRAGMA integrity_check").fetchall() if row[0] != "ok"
        ]
    finally:
        db.close()


def check_acks(
    path: str | os.PathLike[str], acks: str | os.PathLike[str] | bytes, *, writers: int = 1
) -> Outcome:
    """Every acknowledged event is there once, every chain holds, and only what was in flight is more."""
    outcome = examine(path, read_acks(acks))
    assert ([], []) == (outcome.lost, outcome.damaged)
    assert writers >= outcome.unacked_appends
    return outcome


@contextlib.contextmanager
def folder_in_memory() -> Iterator[Path]:
    """A folder without a disk where there is one: for thousands of stores, each synced often."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder)


# -- as a process --------------------------------------------------------------------------------


def fork(child: Callable[[], object], *, before: Callable[[], object] = lambda: None) -> int:
    """Run `child` in a forked process, which ends with it; its exit code is 0 unless it raised."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the test runner may have threads
        pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        before()
        child()
        code = 0
    except BaseException:  # told by the exit code; a forked child must not continue as the test run
        traceback.print_exc()
    finally:
        os._exit(code)


def ended(pid: int) -> int:
    """Wait for a child, not forever; its exit code, or minus the signal that killed it."""
    watch = os.pidfd_open(pid)
    try:
        if not select.select([watch], [], [], ANSWER_SECONDS)[0]:
            os.kill(pid, signal.SIGKILL)
    finally:
        os.close(watch)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def open_acks(path: str | os.PathLike[str]) -> int:
    return os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)


def command(path: Path, acks: Path, *options: str) -> list[str]:
    """The command line of a workload in a fresh interpreter."""
    return [sys.executable, __file__, str(path), str(acks), *options]


def environment() -> dict[str, str]:
    """For a fresh interpreter that finds what this one finds."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}


def main() -> None:
    """Run, and say as JSON what stopped it, and what an append through the same store gives then."""
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    parser.add_argument("acks")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--writer", type=int, default=0)
    parser.add_argument("--synchronous", default="FULL")
    parser.add_argument("--autocheckpoint", type=int, default=0, help="in pages; 0 leaves it alone")
    parser.add_argument("--die", action="store_true", help="end without closing anything")
    parser.add_argument("--unsettled", action="store_true", help="trust the log that is found")
    options = parser.parse_args()
    if options.unsettled:
        sqlite_file.settle_log = lambda db, path: None
    said: dict[str, str] = {}
    store = None
    try:
        store = SQLiteStore(options.path, synchronous=options.synchronous)
        if options.autocheckpoint:
            store._connections.db.wal_autocheckpoint(options.autocheckpoint)
        workload = Workload(store, open_acks(options.acks), writer=options.writer)
        workload.go(range(options.first, options.first + options.steps))
    except HoldfastError as error:
        said["error"] = type(error).__name__
        said["message"] = str(error)
        if store is not None:
            said["again"] = _try_again(store)
    sys.stdout.write(json.dumps(said))
    sys.stdout.flush()
    if options.die:
        os._exit(0)
    if store is not None:
        store.close()


def _try_again(store: SQLiteStore) -> str:
    run = NewRun("again", "agent", "digest")
    _, records = log.seal(
        log.origin("again"), [events.NoteTaken(key="a", value=events.NULL)], epoch=0, time=1
    )
    try:
        store.create(Creation(run, records)).wait()
    except HoldfastError as error:
        return type(error).__name__
    return "succeeded"


if __name__ == "__main__":
    main()
