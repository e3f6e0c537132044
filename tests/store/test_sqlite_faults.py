"""What can go wrong with the disk, the file and its surroundings, and the typed answer (FAULTS 22–36).

Real faults where the machine allows them: errors injected into system calls by strace, a disk of a
few megabytes that is full, a read-only mount, a file size limit, flipped bytes.
"""

import asyncio
import contextlib
import json
import linecache
import os
import random
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import apsw
import pytest

from holdfast import Holdfast
from holdfast.core import events, log
from holdfast.core.log import Head, Record
from holdfast.errors import (
    HoldfastError,
    LogDamaged,
    ReadOnlyStore,
    SchemaMismatch,
    StorageFull,
    StoreDamaged,
    StoreUnavailable,
    UnsafeStore,
)
from holdfast.store import group, wakeups
from holdfast.store.base import Append, Creation, NewRun
from holdfast.store.sqlite import SQLiteStore
from holdfast.store.sqlite import appends as sqlite_appends
from holdfast.store.sqlite import connections as sqlite_connections
from holdfast.store.sqlite import file as sqlite_file
from holdfast.store.sqlite import store as sqlite_store
from support import fleet_agents, workload
from support.powerloss import STRACE
from support.waiting import eventually
from support.workers import workers
from support.workload import ANSWER_SECONDS, check_acks, folder_in_memory

needs_strace = pytest.mark.skipif(STRACE is None, reason="strace is not installed")
MEGABYTE = 1024 * 1024


class Log:
    """One run in a store, and appends to its end."""

    def __init__(self, store: SQLiteStore, run_id: str = "a") -> None:
        self.store, self.run_id = store, run_id
        self.head, records = log.seal(
            log.origin(run_id), [events.RunCreated(run_id, "agent", events.NULL)], epoch=1, time=1
        )
        store.create(
            Creation(NewRun(run_id, "agent", "digest"), records, worker="w", lease_us=10**12)
        ).wait()

    def append(
        self, text: str = "x", *, urgent: bool = False, store: SQLiteStore | None = None
    ) -> None:
        head, records = self.sealed(text)
        work = Append(self.run_id, self.head.seq, records, epoch=1, urgent=urgent)
        (store or self.store).append(work)
        self.head = head

    def sealed(self, text: str) -> tuple[Head, list[Record]]:
        return log.seal(self.head, [events.LogWritten(level="info", text=text)], epoch=1, time=1)

    def texts(self, store: SQLiteStore | None = None) -> list[str]:
        """The contents of the log, checked."""
        return texts(store or self.store, self.run_id)


def texts(store: SQLiteStore, run_id: str) -> list[str]:
    verified = log.verify(run_id, log.origin(run_id), store.read(run_id))
    return [
        e.text for e in (record.event for record in verified) if isinstance(e, events.LogWritten)
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


@pytest.fixture
def store(path: Path) -> Iterator[SQLiteStore]:
    with contextlib.closing(SQLiteStore(path)) as store:
        yield store


# -- input and output errors -------------------------------------------------------------------


def injected(path: Path, acks: Path, fault: str, *options: str) -> dict[str, str]:
    """Run a workload whose system calls fail as told; what it met, and what the next write gave."""
    acks.touch()
    done = subprocess.run(
        [
            str(STRACE),
            "-f",
            "-qq",
            "-o",
            "/dev/null",
            "-e",
            f"trace={fault.partition(':')[0]}",
            "-e",
            f"inject={fault}",
            *workload.command(path, acks, "--steps", "12", *options),
        ],
        env=workload.environment(),
        capture_output=True,
        check=True,
    )
    said: dict[str, str] = json.loads(done.stdout)
    return said


@needs_strace
@pytest.mark.parametrize(
    "number", [12, 17, *(pytest.param(n, marks=pytest.mark.nightly) for n in range(11, 24))]
)
def test_a_failed_sync_breaks_the_store_until_it_is_opened_again(
    number: int, tmp_path: Path
) -> None:
    """FAULTS 23: a second fsync that succeeds proves nothing, so there is no second one."""
    path, acks = tmp_path / "a.db", tmp_path / "acks"
    said = injected(path, acks, f"fdatasync:error=EIO:when={number}", "--die")

    assert ("StoreBroken", "StoreBroken") == (said["error"], said["again"])
    assert "open the store again" in said["message"]
    check_acks(path, acks)


@needs_strace
def test_a_worker_whose_disk_fails_ends_with_an_error_and_another_one_continues(
    tmp_path: Path,
) -> None:
    """It must not write again (FAULTS 23), so its supervisor is notified, and may start a new one."""
    faults = ("-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO:when=3+")
    path = tmp_path / "a.db"
    with Holdfast(path) as hf:  # and closed: so there is nothing to be synced when it is opened
        hf.start(fleet_agents.doubling, id="r", n=4)
    with contextlib.contextmanager(workers)(str(path), tmp_path) as fleet:
        broken = fleet.start(
            "--lease", "1", before=(str(STRACE), "-f", "-qq", "-o", "/dev/null", *faults)
        )
        _, told = broken.communicate(timeout=ANSWER_SECONDS)

        assert 1 == broken.returncode, told
        assert "this process does not write any more" in told
        fleet.start()
        with Holdfast(path) as hf:
            assert 8 == hf.result("r", timeout=ANSWER_SECONDS)


@needs_strace
@pytest.mark.parametrize("fault", ["fdatasync:error=EIO:when=1", "fsync:error=EIO:when=1"])
def test_a_sync_that_fails_at_the_first_open_is_a_typed_error(fault: str, tmp_path: Path) -> None:
    """Also that of the folder, which SQLite would not have looked at."""
    path, acks = tmp_path / "a.db", tmp_path / "acks"
    said = injected(path, acks, fault)

    assert ("StoreUnavailable", None) == (said["error"], said.get("again"))
    check_acks(path, acks)


@needs_strace
def test_a_failed_write_is_a_typed_error_and_nothing_acked_is_lost(tmp_path: Path) -> None:
    """EIO in the middle of a commit's pages."""
    path, acks = tmp_path / "a.db", tmp_path / "acks"
    said = injected(path, acks, "pwrite64:error=EIO:when=110", "--die")

    assert ("StoreBroken", "StoreBroken") == (said["error"], said["again"])
    check_acks(path, acks)


@needs_strace
@pytest.mark.parametrize("error", ["ENOSPC", "EDQUOT"])
def test_a_write_without_space_is_storage_full_and_breaks_nothing(
    error: str, tmp_path: Path
) -> None:
    """FAULTS 24: a disk or a quota that is full is not a disk that fails."""
    path, acks = tmp_path / "a.db", tmp_path / "acks"
    said = injected(path, acks, f"pwrite64:error={error}:when=110")

    assert ("StorageFull", "succeeded") == (said["error"], said["again"])
    check_acks(path, acks)


def test_an_error_in_a_read_breaks_no_writer(store: SQLiteStore) -> None:
    """What could not be read can be asked again; only a failed write or sync makes commits unsafe."""
    run = Log(store)
    with pytest.raises(StoreUnavailable), store._reading():
        raise apsw.IOError("disk I/O error")
    run.append("after")

    assert ["after"] == run.texts()


# -- no space ----------------------------------------------------------------------------------


@pytest.fixture
def small_disk() -> Iterator[Callable[[int], Path]]:
    """A file system of so many bytes, in memory."""
    with tempfile.TemporaryDirectory() as folder:
        mounted = []

        def mount(size: int) -> Path:
            command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]
            done = (
                subprocess.run(command, capture_output=True, text=True)
                if shutil.which("mount")
                else None
            )
            if done is None or done.returncode:
                pytest.skip(
                    f"cannot mount a small disk here: {done.stderr.strip() if done else 'no mount'}"
                )
            mounted.append(folder)
            return Path(folder)

        yield mount
        for place in mounted:
            subprocess.run(["umount", "--lazy", place], check=True)


def fill(disk: Path) -> Path:
    """Use up what is left of a disk, to the last byte."""
    filler = disk / "filler"
    with filler.open("ab", buffering=0) as file:
        for size in (65536, 4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    return filler


def until_full(run: Log) -> int:
    """Append until there is no room; how often that worked."""
    for count in range(10_000):
        try:
            run.append("y" * 2000)
        except StorageFull:
            return count
    raise AssertionError("the disk never filled up")


def test_a_full_disk_refuses_intents_and_still_takes_their_receipts(
    small_disk: Callable[[int], Path],
) -> None:
    """FAULTS 24: the space for a receipt is held in reserve before its effect begins."""
    disk = small_disk(8 * MEGABYTE)
    with contextlib.closing(SQLiteStore(disk / "a.db")) as store:
        run = Log(store)
        run.append("before")
        filler = fill(disk)
        count = until_full(run)
        for i in range(20):
            run.append(f"receipt {i}", urgent=True)
        with pytest.raises(StorageFull):
            run.append("intent without a reserve")
        full = run.texts()
        filler.unlink()
        run.append("after")

        assert ["before", *["y" * 2000] * count, *(f"receipt {i}" for i in range(20))] == full
        assert [*full, "after"] == run.texts()
        assert sqlite_appends.RESERVE_BYTES == (disk / "a.db-reserve").stat().st_size


def test_without_space_for_the_reserve_no_intent_is_written(
    small_disk: Callable[[int], Path],
) -> None:
    """The disk is too small from the first append on; what has happened can be told anyway."""
    disk = small_disk(2 * MEGABYTE)
    with contextlib.closing(SQLiteStore(disk / "a.db")) as store:
        run = Log(store)
        with pytest.raises(StorageFull, match="free some space"):
            run.append("intent")
        run.append("receipt", urgent=True)

        assert ["receipt"] == run.texts()


def test_a_reserve_that_another_process_used_up_is_missed(
    small_disk: Callable[[int], Path],
) -> None:
    """No process believes in a reserve that it once had."""
    disk = small_disk(8 * MEGABYTE)
    with contextlib.closing(SQLiteStore(disk / "a.db")) as store:
        run = Log(store)
        run.append("before")
        with contextlib.closing(SQLiteStore(disk / "a.db")) as other:
            other._reserve.give_up()
        fill(disk)
        with pytest.raises(StorageFull):
            run.append("intent")


def test_a_disk_that_is_full_at_the_first_open_is_storage_full(
    small_disk: Callable[[int], Path],
) -> None:
    """Nothing can be created; once there is room, the same file opens."""
    disk = small_disk(MEGABYTE)
    filler = fill(disk)
    with pytest.raises(StorageFull):
        SQLiteStore(disk / "a.db")
    filler.unlink()

    with contextlib.closing(SQLiteStore(disk / "a.db")) as store:
        assert [] == store.runs()


def test_a_file_size_limit_is_storage_full_and_lifted_it_is_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RLIMIT_FSIZE, as some supervisors set it: EFBIG does not mean that the disk fails."""
    monkeypatch.setattr(sqlite_appends, "RESERVE_BYTES", 4096)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with contextlib.closing(SQLiteStore(path)) as store:
        run = Log(store)
        resource.setrlimit(resource.RLIMIT_FSIZE, (256 * 1024, hard))
        try:
            count = until_full(run)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        run.append("after")

        assert [*["y" * 2000] * count, "after"] == run.texts()
        assert count > 3


def test_a_file_size_limit_below_the_reserve_refuses_intents(path: Path) -> None:
    """The reserve itself cannot be had."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with contextlib.closing(SQLiteStore(path)) as store:
        run = Log(store)
        resource.setrlimit(resource.RLIMIT_FSIZE, (MEGABYTE, hard))
        try:
            with pytest.raises(StorageFull):
                run.append("intent")
            run.append("receipt", urgent=True)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

        assert ["receipt"] == run.texts()


# -- read-only ---------------------------------------------------------------------------------


def assert_reads_and_refuses(path: Path, wanted: list[str]) -> None:
    with contextlib.closing(SQLiteStore(path)) as store:
        assert wanted == texts(store, "a")
        assert ["a"] == [row.id for row in store.runs()]
        head = store.read("a")[-1]
        _, records = log.seal(
            Head(head.seq, head.hash, head.time), [events.RunPaused()], epoch=1, time=1
        )
        with pytest.raises(ReadOnlyStore):
            store.append(Append("a", head.seq, records, epoch=1))
        with pytest.raises(ReadOnlyStore):
            store.claim("a", worker="w", lease_us=1)
        assert wanted == texts(store, "a")


def as_nobody(do: Callable[[], object]) -> int:
    """Do it in a child that root's rights do not help; its exit code."""
    pid = workload.fork(do, before=lambda: os.setuid(65534) if os.getuid() == 0 else None)
    return workload.ended(pid)


@pytest.mark.parametrize("folder_mode", [0o555, 0o777])
def test_a_read_only_file_is_read_and_not_written(folder_mode: int) -> None:
    """FAULTS 29, whether or not files may be made next to it."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "a.db"
        with contextlib.closing(SQLiteStore(path)) as store:
            Log(store).append("kept")
        path.chmod(0o444)
        Path(name).chmod(folder_mode)

        assert 0 == as_nobody(lambda: assert_reads_and_refuses(path, ["kept"]))


def test_a_read_only_mount_is_read_and_not_written(small_disk: Callable[[int], Path]) -> None:
    """After a clean end: the file is all there is."""
    disk = small_disk(8 * MEGABYTE)
    with contextlib.closing(SQLiteStore(disk / "a.db")) as store:
        Log(store).append("kept")
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)

    assert_reads_and_refuses(disk / "a.db", ["kept"])


def leave_log_behind(path: Path) -> None:
    """A process that appends and is killed, so that the events are in the write-ahead log only."""

    def live_and_die() -> None:
        Log(SQLiteStore(path)).append("kept")
        os.kill(os.getpid(), signal.SIGKILL)

    assert -signal.SIGKILL == workload.ended(workload.fork(live_and_die))


def test_a_read_only_mount_is_read_with_the_log_of_a_killed_process(
    small_disk: Callable[[int], Path],
) -> None:
    """The newest events are in the write-ahead log, and they are seen."""
    disk = small_disk(8 * MEGABYTE)
    leave_log_behind(disk / "a.db")
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)

    assert_reads_and_refuses(disk / "a.db", ["kept"])


def test_a_read_only_mount_never_hides_events_that_it_cannot_read(
    small_disk: Callable[[int], Path],
) -> None:
    """A log without its index cannot be read there: better an error than an older state."""
    disk = small_disk(8 * MEGABYTE)
    leave_log_behind(disk / "a.db")
    (disk / "a.db-shm").unlink()
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)

    with pytest.raises(ReadOnlyStore, match=r"a\.db-wal"):
        SQLiteStore(disk / "a.db")


# -- surroundings --------------------------------------------------------------------------------


@contextlib.contextmanager
def write_lock(path: Path) -> Iterator[apsw.Connection]:
    """Another connection in the middle of a write."""
    db = apsw.Connection(str(path))
    db.execute("BEGIN IMMEDIATE")
    try:
        yield db
    finally:
        db.close()


def test_an_append_waits_for_another_writer(store: SQLiteStore, path: Path) -> None:
    """FAULTS 30: it takes the write lock first, so that waiting is possible."""
    run = Log(store)
    begun = threading.Event()
    store._connections.db.exec_trace = lambda cursor, statement, bindings: begun.set() or True
    with write_lock(path):
        thread = threading.Thread(target=run.append, args=("waited",))
        thread.start()
        assert begun.wait(ANSWER_SECONDS)
        assert thread.is_alive()
    thread.join(ANSWER_SECONDS)

    assert ["waited"] == run.texts()


def test_a_writer_that_never_ends_is_a_typed_error_and_no_more(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait is bounded; the store is not broken by it."""
    monkeypatch.setattr(sqlite_file, "BUSY_MS", 20)
    with contextlib.closing(SQLiteStore(path)) as store:
        run = Log(store)
        with write_lock(path), pytest.raises(StoreUnavailable, match="write lock"):
            run.append("refused")
        run.append("after")

        assert ["after"] == run.texts()


def test_a_long_reader_does_not_hold_up_appends(store: SQLiteStore, path: Path) -> None:
    """FAULTS 31: it sees its own moment; the log of the others grows past it."""
    run = Log(store)
    reader = apsw.Connection(str(path))
    reader.execute("BEGIN")
    before = reader.execute("SELECT count(*) FROM events").get
    for _ in range(40):
        run.append("y" * 50_000)  # past many checkpoints
    during = reader.execute("SELECT count(*) FROM events").get
    reader.execute("END")
    after = reader.execute("SELECT count(*) FROM events").get
    reader.close()

    assert (1, 1, 41) == (before, during, after)


# -- damage ------------------------------------------------------------------------------------


@pytest.fixture
def two_runs(path: Path) -> Path:
    """A closed store with runs a and b."""
    with contextlib.closing(SQLiteStore(path)) as store:
        for run_id in ("a", "b"):
            run = Log(store, run_id)
            for i in range(30):
                run.append(f"{run_id}{i} pays 100 to somebody" + "." * 80)
    (path.parent / "a.db-reserve").unlink()
    return path


def test_a_flipped_bit_is_found_and_stops_only_its_own_run(two_runs: Path) -> None:
    """FAULTS 26: SQLite itself finds nothing wrong."""
    content = two_runs.read_bytes()
    assert b"a7 pays 100 " in content
    two_runs.write_bytes(content.replace(b"a7 pays 100 ", b"a7 pays 900 "))
    with contextlib.closing(apsw.Connection(str(two_runs))) as db:
        assert "ok" == db.execute("PRAGMA integrity_check").get

    with contextlib.closing(SQLiteStore(two_runs)) as store:
        with pytest.raises(LogDamaged) as found:
            texts(store, "a")
        assert ("a", 8) == (found.value.run_id, found.value.seq)
        assert 30 == len(texts(store, "b"))


def use(path: Path) -> None:
    """Everything a store is asked for."""
    with contextlib.closing(SQLiteStore(path)) as store:
        for run_id in ("a", "b"):
            texts(store, run_id)
        for row in store.runs():
            store.claim(row.id, worker="w", lease_us=1)
        Log(store, "c").append("new")
        store.examine()


@pytest.mark.parametrize("damage", ["zeros", "ones", "noise"])
def test_a_damaged_page_gives_a_typed_error_or_none_at_all(damage: str, two_runs: Path) -> None:
    """FAULTS 27: each page in turn; no crash, and no error of the library below."""
    whole = two_runs.read_bytes()
    page = {"zeros": bytes(4096), "ones": b"\xff" * 4096, "noise": random.Random(1).randbytes(4096)}
    met = set()
    with folder_in_memory() as folder:
        for start in range(0, len(whole), 4096):
            path = folder / f"{start}.db"
            path.write_bytes(whole[:start] + page[damage] + whole[start + 4096 :])
            try:
                use(path)
            except HoldfastError as error:
                met.add(type(error))

    assert {SchemaMismatch, StoreDamaged} <= met


def test_a_damaged_header_gives_a_typed_error_or_none_at_all(two_runs: Path) -> None:
    """Each byte of the first hundred, inverted."""
    whole = two_runs.read_bytes()
    met = set()
    with folder_in_memory() as folder:
        for at in range(100):
            path = folder / f"{at}.db"
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
            try:
                use(path)
            except HoldfastError as error:
                met.add(type(error))

    assert SchemaMismatch in met


# -- files that are not ours -------------------------------------------------------------------


def foreign(path: Path) -> None:
    with contextlib.closing(apsw.Connection(str(path))) as db:
        db.execute("CREATE TABLE recipes (name TEXT)")


def foreign_and_empty(path: Path) -> None:
    with contextlib.closing(apsw.Connection(str(path))) as db:
        db.pragma("application_id", 4711)


def newer(path: Path) -> None:
    SQLiteStore(path).close()
    with contextlib.closing(apsw.Connection(str(path))) as db:
        db.pragma("user_version", 9999)


def text(path: Path) -> None:
    path.write_text("Dear diary, today I was not a database. " * 200)


@pytest.mark.parametrize("make", [foreign, foreign_and_empty, newer, text])
def test_a_file_that_is_not_ours_is_refused_and_left_as_it_was(
    make: Callable[[Path], None], path: Path
) -> None:
    """FAULTS 36: also its journal mode stays, and nothing is put next to it."""
    make(path)
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    with pytest.raises(SchemaMismatch):
        SQLiteStore(path)

    assert before == {file.name: file.read_bytes() for file in path.parent.iterdir()}


def test_a_folder_in_place_of_the_file_is_a_typed_error(tmp_path: Path) -> None:
    """Not a read-only store, and not SQLite's words alone."""
    with pytest.raises(StoreUnavailable, match="unable to open"):
        SQLiteStore(tmp_path)


# -- settings ----------------------------------------------------------------------------------


def test_the_files_and_new_folders_are_private(tmp_path: Path) -> None:
    """Whatever the umask is, and for every folder that is made."""
    before = os.umask(0)
    try:
        path = tmp_path / "new" / "newer" / "a.db"
        with contextlib.closing(SQLiteStore(path)) as store:
            Log(store).append()
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    finally:
        os.umask(before)

    assert dict.fromkeys(("a.db", "a.db-wal", "a.db-shm", "a.db-reserve"), 0o600) == modes
    assert [0o700, 0o700] == [stat.S_IMODE(folder.stat().st_mode) for folder in path.parents[:2]]


def test_durability_is_full_and_read_back(store: SQLiteStore) -> None:
    """FAULTS 22."""
    assert 2 == store._connections.db.pragma("synchronous")
    assert [("FULL", True)] == [(f.value, f.ok) for f in store.examine() if f.name == "durability"]


def test_weaker_durability_has_a_name_and_is_shown(path: Path) -> None:
    """No one gets it without asking, and who asks sees it in the self-examination."""
    with contextlib.closing(SQLiteStore(path, synchronous="NORMAL")) as store:
        assert [("NORMAL", False)] == [
            (f.value, f.ok) for f in store.examine() if f.name == "durability"
        ]


@pytest.mark.parametrize("level", ["OFF", "off", "", "1"])
def test_no_durability_at_all_cannot_be_had(level: str, path: Path) -> None:
    """And nothing is created on the way."""
    with pytest.raises(UnsafeStore):
        SQLiteStore(path, synchronous=level)

    assert not path.exists()


def test_using_a_closed_store_raises_an_error(path: Path) -> None:
    """Reading and writing alike; closing twice is fine."""
    store = SQLiteStore(path)
    run = Log(store)
    store.close()
    store.close()

    for use_it in (
        run.append,
        run.texts,
        store.runs,
        lambda: store.claim("a", worker="w", lease_us=1),
    ):
        with pytest.raises(StoreUnavailable, match="closed"):
            use_it()


# -- interrupts --------------------------------------------------------------------------------


class Interrupter:
    """Ctrl-C at the k-th line of the store's code: the worst a person can do."""

    FILES = tuple(
        module.__file__
        for module in (
            group,
            wakeups,
            sqlite_appends,
            sqlite_connections,
            sqlite_file,
            sqlite_store,
        )
    )

    def __init__(self, at: int) -> None:
        self.at, self.count = at, 0
        self.inside: set[tuple[int, int]] = set()

    def __enter__(self) -> "Interrupter":
        sys.settrace(self.trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def trace(self, frame: FrameType, event: str, arg: object) -> "Callable[..., object] | None":
        if frame.f_code.co_filename not in self.FILES:
            return None
        if event == "line" and not self.cannot_be(frame):
            self.count += 1
            if self.count == self.at:
                raise KeyboardInterrupt
        return self.trace

    def cannot_be(self, frame: FrameType) -> bool:
        """Lines that are traced, but where Python handles no signal: `try:`, and the end of a `with`."""
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        place = id(frame), frame.f_lineno
        ends = line.startswith("with ") and place in self.inside
        self.inside.add(place)
        return ends or line == "try:"


def test_an_interrupt_at_any_line_leaves_the_store_usable(store: SQLiteStore) -> None:
    """The interrupted append is there or not, whole; all others continue."""
    run = Log(store)
    for at in range(1, 10_000):
        with Interrupter(at) as interrupter, contextlib.suppress(KeyboardInterrupt):
            run.append(f"text {at}")
        last = store.read("a")[-1]
        run.head = Head(last.seq, last.hash, last.time)
        if interrupter.count < at:
            break
        thread = threading.Thread(target=run.append, args=(f"other {at}",), daemon=True)
        thread.start()
        thread.join(ANSWER_SECONDS)
        assert not thread.is_alive(), f"an interrupt at line {at} leaves others waiting"
        assert f"other {at}" == run.texts()[-1]

    assert at > 50


def test_an_interrupt_ends_a_wait_for_other_processes(store: SQLiteStore, path: Path) -> None:
    """The main thread waits behind a commit; Ctrl-C frees it, and the commit continues."""
    mine, other = Log(store), Log(store, "b")
    begun = threading.Event()
    store._connections.db.exec_trace = lambda cursor, statement, bindings: begun.set() or True

    def interrupt() -> None:
        eventually(lambda: store._group._queue, "the main thread in the queue")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with write_lock(path):
        leader = threading.Thread(target=other.append, args=("kept",))
        leader.start()
        assert begun.wait(ANSWER_SECONDS)
        killer = threading.Thread(target=interrupt)
        killer.start()
        with pytest.raises(KeyboardInterrupt):
            mine.append("given up")
    leader.join(ANSWER_SECONDS)
    killer.join(ANSWER_SECONDS)
    mine.append("after")

    assert (["after"], ["kept"]) == (mine.texts(), other.texts())


def test_what_a_loop_queued_before_it_ended_is_committed_when_the_store_closes(
    tmp_path: Path,
) -> None:
    store = SQLiteStore(tmp_path / "a.db")
    created = events.RunCreated(run_id="r", agent="a", input=events.NULL)
    head, records = log.seal(log.origin("r"), [created], epoch=1, time=store.now())
    store.create(Creation(NewRun("r", "a", "d"), records, worker="w", lease_us=10**9)).wait()
    _, more = log.seal(head, [events.RunClaimed(worker="w")], epoch=1, time=store.now())

    async def queue_and_end() -> None:
        store.submit(Append("r", 0, more, 1))  # the loop ends before the commit is started

    asyncio.run(queue_and_end())
    store.close()

    assert [r.seq for r in SQLiteStore(tmp_path / "a.db").read("r")] == [0, 1]
