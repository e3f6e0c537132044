"""For the small process (`slim.py`): processes that work on an SQLite file and kill themselves at a boundary.

Boundaries are: before each SQL statement (so before BEGIN and COMMIT, and after COMMIT, which is before the
next), before and after each acknowledgement.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import apsw

from holdfast.store.sqlite import SQLiteStore
from holdfast.store.sqlite import file as sqlite_file
from support.workload import Workload, check_acks, ended, folder_in_memory, fork, open_acks


class Killer:
    """Counts boundaries; at the wanted one it kills its own process."""

    def __init__(self, at: int) -> None:
        self.at, self.count = at, 0

    def __call__(self, point: str) -> None:
        self.count += 1
        if self.count == self.at:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self) -> None:
        """Also count every SQL statement from now on, in this process, before it runs."""
        connect = sqlite_file.connect

        def traced(path: str) -> apsw.Connection:
            db = connect(path)
            db.exec_trace = lambda cursor, statement, bindings: self(statement) or True
            return db

        sqlite_file.connect = traced


def work(path: Path, acks: Path, steps: range, *, writer: int = 0, kill_at: int = 0) -> int:
    """A child's life: open, append, acknowledge; how many boundaries it passed."""
    killer = Killer(kill_at)
    killer.watch()
    store = SQLiteStore(path)
    killer("open")
    Workload(store, open_acks(acks), writer=writer, point=killer).go(steps)
    store.close()
    return killer.count


def _count_boundaries(folder: Path, steps: range) -> int:
    read, write = os.pipe()
    child = fork(lambda: os.write(write, str(work(folder / "n.db", folder / "n", steps)).encode()))
    assert 0 == ended(child)
    os.close(write)
    with os.fdopen(read) as answer:
        return int(answer.read())


def killed_at_every_boundary(steps: int) -> dict[str, list[int]]:
    """Kill a process that takes these steps, at each boundary; check what is left, and let another continue.

    For each kill, how many appends were committed and not acknowledged.
    """
    unacked = []
    # What a process leaves when it is killed does not depend on a disk.
    with folder_in_memory() as memory:
        for at in range(1, _count_boundaries(memory, range(steps)) + 1):
            path, acks = memory / f"{at}.db", memory / f"{at}-acks"
            acks.touch()
            child = fork(lambda: work(path, acks, range(steps), kill_at=at))  # noqa: B023 - runs at once
            assert -signal.SIGKILL == ended(child)
            unacked.append(check_acks(path, acks).unacked_appends)
            survivor = fork(lambda: work(path, acks, range(steps, steps + 3)))  # noqa: B023 - as above
            assert 0 == ended(survivor)
            check_acks(path, acks)
            for file in memory.glob(f"{at}*"):
                file.unlink()
    return {"unacked": unacked}


def killed_while_opening() -> dict[str, list[list[str]]]:
    """Kill a process at each boundary of making a file. The schemas that are left, those that the next
    process makes of them, and one that no one disturbed."""
    left, repaired = [], []
    with folder_in_memory() as folder:
        for at in range(1, _count_boundaries(folder, range(0)) + 1):
            path = folder / f"{at}.db"
            child = fork(lambda: work(path, folder / "a", range(0), kill_at=at))  # noqa: B023 - as above
            assert -signal.SIGKILL == ended(child)
            left.append(_schema(path))
            repaired.append(_schema(opened(path)))
        return {"left": left, "repaired": repaired, "whole": [_schema(opened(folder / "whole.db"))]}


def opened(path: Path) -> Path:
    SQLiteStore(path).close()
    return path


def _schema(path: Path) -> list[str]:
    """The schema as it lies in the file, with its version."""
    db = apsw.Connection(str(path))
    try:
        names = [
            str(row[0])
            for row in db.execute("SELECT sql FROM sqlite_schema ORDER BY name").fetchall()
        ]
        version = db.pragma("user_version")
        return [*names, f"version {version}"] if names or version else []
    finally:
        db.close()
