"""A SQLite file as Holdfast wants it: private, ours, migrated, durable.

Most problems of a file are detected when it is opened: it is not ours, newer, damaged, read-only,
on an unsuitable file system, or was left by a process that died on a failing disk.

Not here: what is kept in the file (`store.py`), who uses it when (`connections.py`).
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import apsw

from holdfast.errors import (
    ReadOnlyStore,
    SchemaMismatch,
    StorageFull,
    StoreDamaged,
    StoreError,
    StoreUnavailable,
    UnsafeStore,
)
from holdfast.store import sql
from holdfast.store.base import Finding

APPLICATION_ID: Final = 0x486F6C64  # "Hold": a SQLite file with another one is not ours
BUSY_MS: Final = 10_000
WAL_HEADER_BYTES: Final = 32
SAFE_LIBRARY: Final = (3, 51, 3)  # earlier ones can lose pages when a commit meets a checkpoint
NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
DAMAGED: Final = "The file is damaged; `holdfast doctor` shows what still verifies"
NOT_WRITABLE: Final = (errno.EROFS, errno.EACCES, errno.EPERM)


def in_our_words(where: str, error: apsw.Error | OSError, number: int | None = 0) -> StoreError:
    """The error of SQLite or of the system, with its `errno` where known, as one of ours."""
    if isinstance(error, OSError):
        message, number = f"{where}: {error.strerror}.", error.errno
    else:
        message = f"{where}: {error}."
        # An errno is only believed where SQLite failed to write: after an fsync nothing is known.
        if getattr(error, "extendedresult", 0) not in (
            apsw.SQLITE_IOERR_WRITE,
            apsw.SQLITE_IOERR_SHMSIZE,
        ):
            number = None
    if isinstance(error, apsw.FullError) or number in NO_SPACE:
        return StorageFull(f"{message} Nothing was written; free some space and resume the run")
    if isinstance(error, apsw.ReadOnlyError) or number in NOT_WRITABLE:
        return ReadOnlyStore(f"{message} Nothing was written")
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return StoreUnavailable(
            f"{message} Another process held the write lock for {BUSY_MS / 1000:g} s"
        )
    if isinstance(error, apsw.CorruptError | apsw.NotADBError):
        return StoreDamaged(f"{message} {DAMAGED}")
    if isinstance(error, apsw.SQLError):  # our statements fit the schema that was checked at open
        return StoreDamaged(f"{message} {DAMAGED}, or another version of Holdfast has changed it")
    return StoreUnavailable(message)


# ── opening ──────────────────────────────────────────────────────────────────────────────────


def absolute(path: str) -> str:
    """The path as it is from any folder."""
    try:
        return os.path.abspath(path)  # noqa: PTH100 - `Path.absolute` leaves .. in it
    except OSError as error:  # this process is in a folder that was deleted
        raise in_our_words(f"cannot open {path}, below the current folder", error) from None


def open_database(path: str, file: str, synchronous: str) -> tuple[apsw.Connection, str]:
    """The write connection, migrated and with its settings read back; and why it is read-only, if so.

    `file` is the absolute path, `path` what the user wrote, for messages.
    """
    if path != ":memory:":
        try:
            refuse_emptied(file)
            _create_private(Path(file))
        except OSError as error:
            raise in_our_words(f"cannot open {path}", error) from None
    db = None
    try:
        db = connect(file)
        _check_schema(db, path)
        if db.readonly("main"):
            return db, "file"
        _set_durable(db, path, synchronous)
        _migrate(db, path)
        if path != ":memory:":
            settle_log(db, file)
        return db, ""
    except BaseException as error:
        number = db.system_errno if db is not None else None
        if db is not None:
            db.close()
        if isinstance(error, apsw.CantOpenError | apsw.ReadOnlyError):
            return _open_immutable(file, error), "immutable"
        if isinstance(error, apsw.NotADBError):
            raise SchemaMismatch(f"{path} is not a SQLite database") from None
        if isinstance(error, apsw.Error):
            raise in_our_words(path, error, number) from error
        raise


def _open_immutable(path: str, error: apsw.Error) -> apsw.Connection:
    """On a read-only medium the file can only be read as it lies there, without its log."""
    wal = Path(path + "-wal")
    if os.access(wal.parent, os.W_OK):
        raise in_our_words(path, error) from error
    if wal.exists() and wal.stat().st_size:
        raise ReadOnlyStore(
            f"{path}: {error}. The latest events are still in {wal.name}, which cannot be read without "
            "writing next to it; copy both to a writable folder, and open them there"
        ) from error
    try:
        db = open_reader(path, immutable=True)
        _check_schema(db, path)
    except apsw.Error as again:
        raise in_our_words(path, again) from again
    return db


def settle_log(db: apsw.Connection, path: str) -> None:
    """Make sure of what an earlier process left: its last fsync may have failed before it died.

    Then the end of the log is in the kernel's memory but not on the disk, and what we append behind
    it would be lost with it. So the log is copied into the database, which is synced, before use.
    SQLite syncs the folder that holds both, but does not look whether that worked.
    """
    _patiently(lambda: db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE))
    _sync_folder(Path(path).parent)


def _patiently(do: Callable[[], Any]) -> Any:
    """For the two calls that give up at once, unlike others, when another process is in the way."""
    deadline = time.monotonic() + BUSY_MS / 1000
    while True:
        try:
            return do()
        except apsw.BusyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.005)


def _sync_folder(folder: Path) -> None:
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise StoreUnavailable(
            f"{folder}: {error.strerror}. Durability is not guaranteed there"
        ) from None


def _create_private(path: Path) -> None:
    """Make the file readable by its owner only. An existing one is never opened here: closing it
    would drop the locks that SQLite holds on it in this process."""
    try:
        _create_folder(path.parent)
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        return
    except OSError as error:
        if not path.exists():
            raise in_our_words(f"cannot create {path}", error) from None


def _create_folder(folder: Path) -> None:
    """Make the folder and those above it, private, and sure to be there after a power cut."""
    if not folder.exists():
        _create_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        _sync_folder(folder.parent)


def connect(path: str) -> apsw.Connection:
    db = apsw.Connection(path)
    db.set_busy_timeout(BUSY_MS)
    return db


def open_reader(path: str, *, immutable: bool = False) -> apsw.Connection:
    uri = Path(path).resolve().as_uri() + ("?immutable=1" if immutable else "")
    db = apsw.Connection(uri, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
    db.set_busy_timeout(BUSY_MS)
    return db


def _set_durable(db: apsw.Connection, path: str, synchronous: str) -> None:
    journal = _patiently(lambda: db.pragma("journal_mode", "wal"))
    if journal != "wal" and path != ":memory:":
        raise UnsafeStore(
            f"{path} is on a file system without shared memory (a network or overlay mount), where "
            "SQLite's write-ahead log is not safe; put the file on a local disk, or use PostgreSQL"
        )
    db.pragma("synchronous", synchronous)
    level = {"FULL": 2, "NORMAL": 1}[synchronous]
    if db.pragma("synchronous") != level:
        raise UnsafeStore(f"{path}: synchronous={synchronous} was set but is not in effect")


def _migrate(db: apsw.Connection, path: str) -> None:
    """Bring an older schema up to date in one transaction; refuse a newer or a foreign one."""
    steps = sql.migrations("sqlite")
    if db.pragma("user_version") == len(steps) and db.pragma("application_id") == APPLICATION_ID:
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        _check_schema(db, path)
        for step in steps[db.pragma("user_version") :]:
            db.execute(step.sql)
        db.pragma("application_id", APPLICATION_ID)
        db.pragma("user_version", len(steps))
        db.execute("COMMIT")
    except BaseException:  # also an interrupt: no half of a migration stays open
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _check_schema(db: apsw.Connection, path: str) -> None:
    version, ours = db.pragma("user_version"), len(sql.migrations("sqlite"))
    tables = db.execute("SELECT count(*) FROM sqlite_schema").get
    application = db.pragma("application_id")
    if application != APPLICATION_ID and (tables or application or version):
        raise SchemaMismatch(
            f"{path} is a SQLite database, but not a Holdfast store; choose another file"
        )
    if version > ours:
        raise SchemaMismatch(
            f"{path} has schema {version}, this Holdfast supports {ours}; update Holdfast. Nothing was changed"
        )


# ── self-examination ────────────────────────────────────────────────────────────────────────


def examine(db: apsw.Connection, path: str) -> list[Finding]:
    """What `holdfast doctor` says of the file and of its settings."""
    library = tuple(int(part) for part in apsw.sqlite_lib_version().split("."))
    journal, level = db.pragma("journal_mode"), db.pragma("synchronous")
    version, problem = db.pragma("user_version"), _integrity_problem(db)
    in_memory = path == ":memory:"
    mode = None if in_memory else Path(path).stat().st_mode & 0o777
    return [
        Finding("schema", str(version), True),
        Finding(
            "SQLite library",
            apsw.sqlite_lib_version(),
            library >= SAFE_LIBRARY,
            "this version can lose commits; update apsw",
        ),
        Finding("journal", str(journal), journal == "wal" or in_memory, "WAL could not be set"),
        Finding(
            "durability",
            {2: "FULL", 1: "NORMAL"}.get(level, str(level)),
            level == 2,
            "the last commits can be lost in a power failure; open with synchronous='FULL'",
        ),
        # SQLite's pages carry no checksums; a damaged one is noticed by the chain, or by its shape.
        Finding("checksums", "hash chain of every run", True),
        Finding(
            "integrity",
            problem or "ok",
            not problem,
            "the file is damaged; stop all workers, `holdfast export` what verifies, restore a backup",
        ),
        Finding(
            "file mode",
            "memory" if mode is None else oct(mode)[2:],
            mode in (None, 0o600),
            "other users of this machine can read it; run chmod 600",
        ),
    ]


def _integrity_problem(db: apsw.Connection) -> str:
    """The first thing that SQLite finds wrong with the file, or nothing."""
    try:
        (message,) = next(iter(db.execute("PRAGMA integrity_check(1)")))
    except apsw.Error as error:
        return str(error)
    return "" if message == "ok" else str(message)


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
