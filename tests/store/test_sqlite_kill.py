"""A process may die anywhere, by SIGKILL, and the store continues (FAULTS 1–3, 5, 9, 33, 35).

A forked child works and is killed at the k-th boundary, for every k: before each SQL statement (so
before BEGIN and COMMIT, and after COMMIT, which is before the next), before and after each
acknowledgement. Then a new process checks what was acknowledged and continues appending.
"""

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import apsw
import pytest

from holdfast.core import events, log
from holdfast.errors import StoreError, StoreUnavailable
from holdfast.store.base import Append
from holdfast.store.sqlite import SQLiteStore
from holdfast.store.sqlite import file as sqlite_file
from support import workload
from support.powerloss import STRACE
from support.slim import Slim
from support.slim_sqlite import opened, work
from support.workload import (
    ANSWER_SECONDS,
    Workload,
    check_acks,
    ended,
    examine,
    folder_in_memory,
    fork,
    open_acks,
    read_acks,
)

STEPS = 9  # one of each kind of append, and one more


# -- one process -------------------------------------------------------------------------------


@pytest.fixture
def memory() -> Iterator[Path]:
    """What a process leaves when it is killed does not depend on a disk."""
    with folder_in_memory() as folder:
        yield folder


def test_a_kill_at_any_boundary_loses_nothing_acked_and_a_new_process_continues(slim: Slim) -> None:
    """Invariants 1 and 2, for every boundary of a first open and one append of each kind."""
    unacked = slim.call("support.slim_sqlite:killed_at_every_boundary", steps=STEPS)["unacked"]
    print(f"{len(unacked)} kills")

    assert len(unacked) > 100
    assert {0, 1} == set(unacked)  # some died between COMMIT and the acknowledgement


def test_a_kill_during_the_first_open_leaves_no_schema_or_the_whole_schema(slim: Slim) -> None:
    """FAULTS 35: every statement of the migration is in one transaction."""
    found = slim.call("support.slim_sqlite:killed_while_opening")
    (whole,) = found["whole"]
    left = [tuple(schema) for schema in found["left"]]

    assert [whole] * len(left) == found["repaired"]
    assert {(), tuple(whole)} == set(left)
    assert left == sorted(left, key=len)


@pytest.mark.skipif(STRACE is None, reason="strace is not installed")
@pytest.mark.parametrize(
    ("call", "numbers"),
    [
        ("fdatasync", [9, 21]),
        ("pwrite64", [77]),
        ("unlink", [1]),
        pytest.param("fdatasync", range(1, 24), marks=pytest.mark.nightly),
        pytest.param("pwrite64", range(1, 300, 7), marks=pytest.mark.nightly),
    ],
)
def test_a_kill_inside_a_system_call_loses_nothing_acked(
    call: str, numbers: Sequence[int], memory: Path
) -> None:
    """The process dies in the N-th sync or write, in the middle of SQLite's commit.

    A few are enough here: the states after every call are in `test_sqlite_power_loss`.
    """
    killed = 0
    for number in numbers:
        path, acks = memory / f"{number}.db", memory / f"{number}-acks"
        acks.touch()
        done = subprocess.run(
            [
                str(STRACE),
                "-f",
                "-qq",
                "-o",
                "/dev/null",
                "-e",
                f"trace={call}",
                "-e",
                f"inject={call}:signal=KILL:when={number}",
                *workload.command(path, acks, "--steps", "12"),
            ],
            env=workload.environment(),
            capture_output=True,
        )
        killed += done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
        check_acks(path, acks)

    assert len(numbers) == killed


# -- two processes -----------------------------------------------------------------------------


@pytest.mark.parametrize("kill_at", [60, 111, 162, 213])
def test_one_of_two_writers_is_killed_and_the_other_continues(kill_at: int, tmp_path: Path) -> None:
    """Both append to the same file and to one run in it; the survivor never sees an error."""
    path, acks = opened(tmp_path / "a.db"), tmp_path / "acks"
    victim = fork(lambda: work(path, acks, range(200), writer=1, kill_at=kill_at))
    survivor = fork(lambda: work(path, acks, range(48), writer=2))

    assert [-signal.SIGKILL, 0] == [ended(victim), ended(survivor)]
    check_acks(path, acks, writers=1)
    assert any("run-1" in line for line in read_acks(acks))


def test_many_writers_are_killed_at_any_time_and_one_continues(tmp_path: Path) -> None:
    """Kills from outside, each after one more acknowledgement of anyone; no one is in the way."""
    path = opened(tmp_path / "a.db")
    read, write = os.pipe()
    endless = [
        fork(lambda: write_to_pipe(path, write, range(10**6), writer=writer))  # noqa: B023 - runs at once
        for writer in (1, 2, 3)
    ]
    acks = b""
    for pid in endless:
        acks += read_lines(read, 40)
        os.kill(pid, signal.SIGKILL)
        assert -signal.SIGKILL == ended(pid)
    last = fork(lambda: write_to_pipe(path, write, range(6), writer=4))
    os.close(write)
    with os.fdopen(read, "rb") as rest:
        acks += rest.read()

    assert 0 == ended(last)
    check_acks(path, acks, writers=3)


def write_to_pipe(path: Path, acks: int, steps: range, *, writer: int) -> None:
    Workload(SQLiteStore(path), acks, writer=writer).go(steps)


def read_lines(fd: int, count: int) -> bytes:
    """At least so many acknowledgements, whole ones."""
    lines = b""
    while lines.count(b"\n") < count or not lines.endswith(b"\n"):
        assert select.select([fd], [], [], ANSWER_SECONDS)[0], "no writer continues"
        lines += os.read(fd, 1 << 16)
    return lines


# -- fork with an open store -------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with contextlib.closing(SQLiteStore(tmp_path / "a.db")) as store:
        yield store


@pytest.fixture
def acks(tmp_path: Path) -> Iterator[int]:
    fd = open_acks(tmp_path / "acks")
    yield fd
    os.close(fd)


def test_parent_and_child_both_continue_after_a_fork(
    store: SQLiteStore, acks: int, tmp_path: Path
) -> None:
    """FAULTS 33: each has connections of its own, and neither disturbs the other's locks."""
    here = Workload(store, acks, writer=1)
    here.go(range(6))
    child = fork(lambda: Workload(store, acks, writer=2).go(range(24)))
    here.go(range(6, 30))

    assert 0 == ended(child)
    assert 0 == check_acks(tmp_path / "a.db", tmp_path / "acks").unacked_appends


def test_closing_the_store_in_a_parent_process_does_not_affect_its_child(
    store: SQLiteStore, acks: int, tmp_path: Path
) -> None:
    """The log of a living child is not deleted as if the parent had been the last to use it."""
    closed, say_closed = os.pipe()
    ready, say_ready = os.pipe()
    Workload(store, acks, writer=1).go(range(3))

    def child() -> None:
        mine = Workload(store, acks, writer=2)
        mine.go(range(3))
        os.write(say_ready, b"!")
        os.read(closed, 1)
        mine.go(range(3, 12))
        os.kill(os.getpid(), signal.SIGKILL)  # so nothing is tidied up

    pid = fork(child)
    os.read(ready, 1)
    store.close()
    os.write(say_closed, b"!")
    for fd in (closed, say_closed, ready, say_ready):
        if fd != closed:
            os.close(fd)

    assert -signal.SIGKILL == ended(pid)
    os.close(closed)
    outcome = check_acks(tmp_path / "a.db", tmp_path / "acks")
    assert 0 == outcome.unacked_appends


def test_a_child_works_although_other_threads_were_committing_when_it_was_forked(
    store: SQLiteStore, acks: int, tmp_path: Path
) -> None:
    """Whatever locks and queues the others held, the child has its own; the others just continue."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def hammer(writer: int) -> None:
        mine = Workload(store, acks, writer=writer)
        try:
            for number in range(10**6):
                if stop.is_set():
                    return
                mine.step(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=hammer, args=(writer,)) for writer in (1, 2)]
    for thread in threads:
        thread.start()
    codes = [
        ended(fork(lambda: Workload(store, acks, writer=writer).go(range(4))))  # noqa: B023 - runs at once
        for writer in range(3, 13)
    ]
    stop.set()
    for thread in threads:
        thread.join()

    assert [] == failures
    assert [0] * 10 == codes
    assert 0 == check_acks(tmp_path / "a.db", tmp_path / "acks").unacked_appends


def test_a_child_does_not_wait_for_a_lock_that_can_never_be_released(
    store: SQLiteStore, acks: int, tmp_path: Path
) -> None:
    """The queue's lock is held by another thread at the fork: it stays held in the child, forever."""
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with store._group._mutex:
            held.set()
            release.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = fork(lambda: Workload(store, acks, writer=1).go(range(4)))
    code = ended(child)
    release.set()
    thread.join()

    assert 0 == code


def test_a_child_forked_inside_a_transaction_refuses_and_the_parent_commits(
    store: SQLiteStore, acks: int, tmp_path: Path
) -> None:
    """A tool with `tx` may fork; the open transaction stays the parent's."""
    here = Workload(store, acks, writer=1)
    here.go(range(1))
    head = here.heads["run-1-0"]
    _, records = log.seal(head, [events.LogWritten(level="info", text="receipt")], epoch=1, time=5)

    def child() -> None:
        with pytest.raises(StoreUnavailable, match="forked"):
            store.claim("run-1-0", worker="w", lease_us=1)

    with store.open_append("run-1-0", 1) as opened:
        pid = fork(child)
        code = ended(pid)
        opened.commit(Append("run-1-0", head.seq, records, epoch=1))

    assert 0 == code
    assert records == store.read("run-1-0", after=head.seq)
    assert examine(tmp_path / "a.db", read_acks(tmp_path / "acks")).is_good


def test_an_append_inside_a_tools_transaction_is_refused_and_the_transaction_stays(
    store: SQLiteStore, acks: int
) -> None:
    """It would have to wait for itself; nothing of the tool's own writes is rolled back by it."""
    here = Workload(store, acks, writer=1)
    here.go(range(1))
    head = here.heads["run-1-0"]
    _, records = log.seal(head, [events.LogWritten(level="info", text="receipt")], epoch=1, time=5)
    receipt = Append("run-1-0", head.seq, records, epoch=1)

    with store.open_append("run-1-0", 1) as opened:
        with pytest.raises(StoreError, match="tx"):
            store.append(receipt)
        opened.commit(receipt)

    assert records == store.read("run-1-0", after=head.seq)


def test_a_memory_store_refuses_to_work_after_a_fork() -> None:
    """Its rows would be two copies that drift apart."""
    store = SQLiteStore(":memory:")

    def child() -> None:
        with pytest.raises(StoreUnavailable, match="fork"):
            store.claim("a", worker="w", lease_us=1)

    assert 0 == ended(fork(child))
    store.close()


def test_a_process_that_ends_leaves_no_other_waiting(tmp_path: Path) -> None:
    """A killed holder of the write lock frees it: the next writer waits for nothing."""
    path, acks = opened(tmp_path / "a.db"), tmp_path / "acks"
    holding, say_holding = os.pipe()

    def hold() -> None:
        db = apsw.Connection(str(path))
        db.execute("BEGIN IMMEDIATE")
        os.write(say_holding, b"!")
        signal.pause()

    pid = fork(hold)
    os.read(holding, 1)
    os.kill(pid, signal.SIGKILL)
    assert -signal.SIGKILL == ended(pid)
    began = time.monotonic()
    store = SQLiteStore(path)
    Workload(store, open_acks(acks)).go(range(3))
    store.close()
    os.close(holding)
    os.close(say_holding)

    assert time.monotonic() - began < sqlite_file.BUSY_MS / 1000
    check_acks(path, acks)
