"""Whether the files of an open store are still the ones that were opened.

SQLite keeps its files open. If they are deleted, renamed or replaced, this process would continue
writing where no other process can read, and the next one would start from nothing and repeat every
effect. So the names are compared with what was opened: at the beginning of each transaction, and after
its COMMIT, before anything is acknowledged.

Not here: what becomes of the store then (`connections.py`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from holdfast.errors import StoreDamaged, StoreReplaced

COMPANIONS: Final = ("-wal", "-shm")
"""SQLite's write-ahead log and its index. They must not be deleted while the store is open, either."""
WAL_HEADER_BYTES: Final = 32

_stat: Final = os.stat
"""Not `Path.stat`, which takes longer than the call itself: this is done at every commit."""

Identity = tuple[int, int]
"""Device and inode."""


class Presence:
    """The identity of a store's files. A file that was not there when it was opened is not compared."""

    def __init__(self, path: str) -> None:
        self.path = path
        real = Path(
            path
        ).resolve()  # where SQLite keeps its own files, if the path is a symbolic link
        self._real, self._folder = str(real), str(real.parent)
        self._main: Identity | None = None
        self._content = (0, 0)
        self._companions: dict[str, Identity | None] = {}
        self._folder_changed = -1

    def opened(self) -> None:
        """The write connection has been opened: its files are the ones under these names now."""
        self.check()
        found = _stat(self.path)
        self._main, self._content = _identity(found), (found.st_mtime_ns, found.st_size)
        self._folder_changed = _stat(self._folder).st_mtime_ns
        self._companions = {suffix: _find(self._real + suffix) for suffix in COMPANIONS}

    def check(self) -> bool:
        """StoreReplaced if another file, or none, has the store's name; else whether the file was written
        to since the last check. (That is rare: by a checkpoint, or by a copy over it.)"""
        found = self.check_identity()
        if found is None:
            return False
        before, self._content = self._content, (found.st_mtime_ns, found.st_size)
        return before != self._content

    def check_identity(self) -> os.stat_result | None:
        """StoreReplaced if another file, or none, has the store's name; may be called from any thread."""
        if self._main is None:
            return None
        try:
            found = _stat(self.path)
        except OSError as error:
            raise self._replaced(f"{self.path} is gone ({error.strerror})") from None
        if (found.st_dev, found.st_ino) != self._main:
            raise self._replaced(f"{self.path} was replaced by another file")
        return found

    def check_all(self) -> None:
        """The same after a commit, for all files. As long as nothing was created, deleted or renamed in
        their folder, its time of change says so for all of them at once."""
        try:
            changed = _stat(self._folder).st_mtime_ns
        except OSError as error:
            raise self._replaced(f"{self._folder} is gone ({error.strerror})") from None
        if changed == self._folder_changed:
            return
        self.check_identity()
        for suffix, opened in self._companions.items():
            if opened is not None and _find(self._real + suffix) != opened:
                raise self._replaced(f"{self._real}{suffix} was deleted or replaced")
        self._folder_changed = changed

    def _replaced(self, what: str) -> StoreReplaced:
        return StoreReplaced(
            f"{what} while this process had the store open. Pending writes are not acknowledged, "
            "and it stops writing; restore the files (from a backup, if they are lost), then restart it"
        )


def refuse_emptied(path: str) -> None:
    """StoreDamaged if an empty or missing file had been a store: what is next to it shows that.

    The reserve is made when a store is first written to, and stays. A write-ahead log with content is
    never older than the first page of its database. An empty file with neither is a new store.
    """
    database = Path(path)
    if database.exists() and database.stat().st_size:
        return
    witnesses = (f"{path}-reserve", -1), (f"{database.resolve()}-wal", WAL_HEADER_BYTES)
    for witness, size in ((Path(name), size) for name, size in witnesses):
        if witness.exists() and witness.stat().st_size > size:
            state = "empty" if database.exists() else "missing"
            raise StoreDamaged(
                f"{path} is {state}, but {witness.name} next to it shows that it was a store. Restore it from "
                f"a backup; to start with a new, empty store instead, delete {witness} (and other files "
                f"whose names start with {database.name}-). Nothing was changed"
            )


def _identity(found: os.stat_result) -> Identity:
    return found.st_dev, found.st_ino


def _find(path: str) -> Identity | None:
    try:
        return _identity(_stat(path))
    except OSError:
        return None
