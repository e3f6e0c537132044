"""The connections of one process to one SQLite file, and what must hold around each use of them.

One connection writes, and one thread at a time uses it; readers have connections of their own, and
none of them crosses a fork. A transaction that fails is rolled back and raises an error of ours; after
a failed fsync, or when the files were replaced, nothing more is written.

Not here: how a file is opened and what SQLite's errors mean (`file.py`), what is read and written
(`store.py`, `appends.py`).
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

import apsw

from holdfast.errors import (
    ReadOnlyStore,
    StoreBroken,
    StoreDamaged,
    StoreError,
    StoreReplaced,
    StoreUnavailable,
)
from holdfast.store.fence import LogPosition
from holdfast.store.sqlite.file import (
    BUSY_MS,
    DAMAGED,
    absolute,
    in_our_words,
    open_database,
    open_reader,
)

# ── every open store closes its connections around a fork ────────────────────────────────────


class ForkHooks(Protocol):
    """What is called around a fork: the connections of a store."""

    def before_fork(self) -> None: ...
    def after_fork_in_parent(self) -> None: ...
    def after_fork_in_child(self) -> None: ...


class _Forks(threading.local):
    """The open stores.

    What is registered to run at a fork stays registered, so this is done once for all stores: hooks
    of each store's own would be kept, and called, long after it is gone. A thread that forks keeps
    those that it has stopped, so that it sets exactly these going again.
    """

    watched: ClassVar[weakref.WeakSet[ForkHooks]] = weakref.WeakSet()
    stopped_connections: Sequence[ForkHooks] = ()

    def before(self) -> None:
        self.stopped_connections = tuple(self.watched)
        for connections in self.stopped_connections:
            connections.before_fork()

    def after_in_parent(self) -> None:
        for connections in self.stopped_connections:
            connections.after_fork_in_parent()
        self.stopped_connections = ()

    def after_in_child(self) -> None:
        for connections in self.stopped_connections:
            connections.after_fork_in_child()
        self.stopped_connections = ()


FORKS: Final = _Forks()
os.register_at_fork(
    before=FORKS.before,
    after_in_parent=FORKS.after_in_parent,
    after_in_child=FORKS.after_in_child,
)


# ── connections ──────────────────────────────────────────────────────────────────────────────


COMPANIONS: Final = ("-wal", "-shm")
"""SQLite's write-ahead log and its index. They must not be deleted while the store is open, either."""

_stat: Final = os.stat
"""Not `Path.stat`, which takes longer than the call itself: this is done at every commit."""

Rows = list[tuple[Any, ...]]
Identity = tuple[int, int]
"""Device and inode."""


class Presence:
    """Whether the files of an open store are still the ones that were opened.

    SQLite keeps its files open. If they are deleted, renamed or replaced, this process would continue
    writing where no other process can read, and the next one would start from nothing and repeat every
    effect. So the names are compared with what was opened: at the beginning of each transaction, and after
    its COMMIT, before anything is acknowledged. A file that was not there when it was opened is not compared.
    Once another one was found, the store stays replaced, whatever is there later.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        # SQLite keeps its own files there if the path is a symbolic link.
        real = Path(path).resolve()
        self._real, self._folder = str(real), str(real.parent)
        self._main: Identity | None = None
        self._content = (0, 0)
        self._companions: dict[str, Identity | None] = {}
        self._folder_changed = -1
        self.replaced: StoreReplaced | None = None

    def opened(self) -> None:
        """The write connection has been opened: its files are the ones under these names now."""
        self.check()
        file_stat = _stat(self.path)
        self._main, self._content = _identity(file_stat), (file_stat.st_mtime_ns, file_stat.st_size)
        self._folder_changed = _stat(self._folder).st_mtime_ns
        self._companions = {suffix: _find(self._real + suffix) for suffix in COMPANIONS}

    def check(self) -> bool:
        """StoreReplaced if another file, or none, has the store's name; else whether the file was written
        to since the last check. (That is rare: by a checkpoint, or by a copy over it.)"""
        file_stat = self.check_identity()
        if file_stat is None:
            return False
        content = (file_stat.st_mtime_ns, file_stat.st_size)
        if content == self._content:
            return False
        self._content = content
        return True

    def check_identity(self) -> os.stat_result | None:
        """StoreReplaced if another file, or none, has the store's name; may be called from any thread."""
        if self.replaced is not None:
            raise StoreReplaced(*self.replaced.args)
        if self._main is None:
            return None
        try:
            file_stat = _stat(self.path)
        except OSError as error:
            raise self._replaced(f"{self.path} is gone ({error.strerror})") from None
        if (file_stat.st_dev, file_stat.st_ino) != self._main:
            raise self._replaced(f"{self.path} was replaced by another file")
        return file_stat

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
        self.replaced = StoreReplaced(
            f"{what} while this process had the store open. Pending writes are not acknowledged, "
            "and it stops writing; restore the files (from a backup, if they are lost), then restart it"
        )
        return self.replaced


def _identity(file_stat: os.stat_result) -> Identity:
    return file_stat.st_dev, file_stat.st_ino


def _find(path: str) -> Identity | None:
    try:
        return _identity(_stat(path))
    except OSError:
        return None


class Connections:
    """Those of one store. `in_child` is called in the child after a fork, when these are fit for use."""

    def __init__(self, path: str, synchronous: str, *, in_child: Callable[[], None]) -> None:
        self.path, self.synchronous = path, synchronous
        self.in_memory = path == ":memory:"
        self.write = threading.RLock()
        """Held while the write connection is used."""
        self._in_child = in_child
        self._pid = os.getpid()
        self._broken: StoreBroken | None = None
        self._closed = False
        self._readers: list[apsw.Connection] = []
        self._reading_ended = threading.Condition()
        self._readings = 0
        self._fork_is_safe = False
        self.ends: dict[str, LogPosition] = {}
        """Where logs end, by run: what this connection wrote last. To be used inside a transaction, which begins with
        none of them if others may have written. Code that changes a run's row removes its entry."""
        self._version = -1
        self.file = path if self.in_memory else absolute(path)
        """Where it is, also if this process changes its folder. (`path` is as the user wrote it.)"""
        self._presence = Presence(self.file)
        self._connection: apsw.Connection | None = None
        self.readonly = ""
        self._connection = self._open()
        if not self.in_memory:
            FORKS.watched.add(self)

    def _open(self) -> apsw.Connection:
        """The write connection; for a store that was open before, to the same file."""
        if not self.in_memory:
            self._presence.check()
        connection, self.readonly = open_database(self.path, self.file, self.synchronous)
        if not self.in_memory:
            try:
                self._presence.opened()
            except BaseException:  # also an interrupt: no other code could close the connection
                connection.close()
                raise
        return connection

    def close(self) -> None:
        with self.write:
            self._closed = True
            FORKS.watched.discard(self)
            self._close_all()

    # ── using them ───────────────────────────────────────────────────────────────────────

    @property
    def db(self) -> apsw.Connection:
        """The write connection; its user holds `write`. It is opened again after a fork."""
        if self.in_memory and os.getpid() != self._pid:
            raise StoreUnavailable("an in-memory store does not survive a fork; use a file")
        if self._connection is None:
            self._refuse_if_closed()
            self._version = -1
            self._connection = self._open()
        return self._connection

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise StoreUnavailable("the store is closed")

    def _close_all(self) -> None:
        connections, self._readers = self._readers, []
        if self._connection is not None:
            connections.append(self._connection)
            self._connection = None
        for connection in connections:
            with contextlib.suppress(apsw.Error):
                connection.close()

    def ready(self) -> apsw.Connection:
        """The write connection, fit to start a transaction; its user holds `write`."""
        broken = self._presence.replaced or self._broken
        if broken is not None:
            raise type(broken)(*broken.args)
        db = self._connection
        if db is None or self.in_memory:
            db = self.db
        if self.readonly:
            raise ReadOnlyStore(f"{self.path} is read-only; nothing was written")
        if db.in_transaction:
            # If the holder of the write lock finds a transaction, it has opened it itself, for a tool.
            raise StoreError(
                "a tool with `tx` cannot write to its run before its receipt is written"
            )
        return db

    def begin(self, db: apsw.Connection) -> None:
        """Start to write, and see whether another process has since we last did.

        SQLite counts what changed under this connection, by itself or by any other one of this process or
        another. (It is asked through the file, not by a PRAGMA: that is a statement more at every commit.)
        """
        written = not self.in_memory and self._presence.check()
        db.execute("BEGIN IMMEDIATE")
        if written:  # by a checkpoint; or a file was copied over it, and all we know is void
            db.release_memory()
        if written or db.data_version() != self._version:
            self.ends.clear()

    def commit(self, db: apsw.Connection) -> None:
        """Make durable what was written since `start`, in files that others can still open."""
        db.execute("COMMIT")
        if not self.in_memory:
            self._presence.check_all()
        self._version = db.data_version()

    def roll_back(self, db: apsw.Connection, error: BaseException) -> None:
        """Leave no transaction open; raise SQLite's errors in our words."""
        with contextlib.suppress(apsw.Error):
            if db.in_transaction:
                db.execute("ROLLBACK")
        if isinstance(error, apsw.Error):
            raise self._failed(error, db) from error

    @contextlib.contextmanager
    def transaction(self) -> Iterator[apsw.Connection]:
        """The write connection inside BEGIN IMMEDIATE … COMMIT; rolled back on any exception."""
        with self.write:
            db = self.ready()
            try:
                self.begin(db)
                yield db
                if db.in_transaction:  # not after a tool's receipt, which commits
                    self.commit(db)
            except BaseException as error:
                self.roll_back(db, error)
                raise

    def _failed(self, error: apsw.Error, db: apsw.Connection) -> StoreError:
        """What a failed transaction means; one that makes further commits unsafe breaks the store."""
        meaning = in_our_words(self.path, error, db.system_errno)
        if isinstance(error, apsw.IOError) and isinstance(meaning, StoreUnavailable):
            # After a failed fsync the kernel may have dropped the pages it could not write, so a
            # second fsync that succeeds proves nothing. Only a fresh open reads what is really there.
            self._broken = StoreBroken(
                f"{meaning} The disk failed, so this process does not write any more; open the store again "
                "once the disk works, and run `holdfast doctor`"
            )
            return self._broken
        return meaning

    def rows(self, sql: str, params: Sequence[Any] | Mapping[str, Any] = ()) -> Rows:
        """What one statement reads."""
        with self.reading() as db:
            return db.execute(sql, params).fetchall()

    @contextlib.contextmanager
    def reading(self) -> Iterator[apsw.Connection]:
        if self.in_memory:
            with self.write:
                yield self.db
            return
        self._presence.check_identity()
        with self._reading_ended:
            self._readings += 1
        try:
            try:
                connection = self._readers.pop()
            except IndexError:  # asked for, not looked up before: another thread may take the last
                connection = self._new_reader()
            try:
                yield connection
            except apsw.Error as error:
                raise in_our_words(self.path, error, connection.system_errno) from error
            except UnicodeDecodeError as error:  # SQLite does not check that text is text
                raise StoreDamaged(f"{self.path}: {error}. {DAMAGED}") from error
            finally:
                self._readers.append(connection)
        finally:
            with self._reading_ended:
                self._readings -= 1
                self._reading_ended.notify_all()

    def _new_reader(self) -> apsw.Connection:
        self._refuse_if_closed()
        try:
            return open_reader(self.file, immutable=self.readonly == "immutable")
        except apsw.Error as error:
            raise in_our_words(self.path, error) from error

    # ── forks ────────────────────────────────────────────────────────────────────────────

    def before_fork(self) -> None:
        """Close every connection: no SQLite connection may cross a fork.

        SQLite keeps its file locks by process, and a child would inherit the belief that it holds
        its parent's. The next process to close would take itself for the last, and delete the
        write-ahead log under the child. So nothing is open while the fork happens; each side opens
        its own connection when it next needs one.
        """
        seconds = BUSY_MS / 1000
        quiet = self.write.acquire(timeout=seconds)
        self._reading_ended.acquire()
        done = self._reading_ended.wait_for(lambda: not self._readings, timeout=seconds)
        open_transaction = self._connection is not None and self._connection.in_transaction
        self._fork_is_safe = quiet and done and not open_transaction
        if self._fork_is_safe:
            self._close_all()  # and both locks are kept until the fork has happened
            return
        self._reading_ended.release()
        if quiet:
            self.write.release()

    def after_fork_in_parent(self) -> None:
        if self._fork_is_safe:
            self._reading_ended.release()
            self.write.release()

    def after_fork_in_child(self) -> None:
        """Only the forking thread exists here: locks and queues of others start over."""
        self.write = threading.RLock()
        self._reading_ended = threading.Condition()
        self._readings = 0
        if not self._fork_is_safe:
            self._broken = StoreBroken(
                f"{self.path}: this process was forked in the middle of a transaction; "
                "use the store in its parent, or start the process with spawn"
            )
        self._in_child()
