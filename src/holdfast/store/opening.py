"""Which store a URL or a path names, and the store itself, opened.

The engine of a store is imported when one of its kind is opened: nobody pays for the other.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

from holdfast.errors import InvalidInput

if TYPE_CHECKING:
    from holdfast.store.base import Store

DEFAULT_FILE: Final = Path(".holdfast") / "holdfast.db"
_SQLITE: Final = "sqlite:///"
_POSTGRES: Final = ("postgres://", "postgresql://")


def sqlite_file(url: str | os.PathLike[str] | None = None) -> Path | None:
    """The file that a URL names; None for a server or for memory."""
    where = _where(url)
    if where.startswith(_POSTGRES):
        return None
    path, _ = _sqlite(where)
    return None if path == ":memory:" else Path(path)


def open_store(url: str | os.PathLike[str] | None = None) -> Store:
    """The store that a URL or path names; by default HOLDFAST_URL, or a file below this folder.

    `sqlite:///runs.db?synchronous=NORMAL` risks the last commits when power fails; `doctor` says so.
    """
    where = _where(url)
    if where.startswith(_POSTGRES):
        try:
            from holdfast.store.postgres import PostgresStore
        except ModuleNotFoundError as missing:
            raise InvalidInput(
                f"PostgreSQL needs `pip install 'holdfast[postgres]'` ({missing})"
            ) from None
        return PostgresStore(where)
    path, synchronous = _sqlite(where)
    if Path(path).is_dir():
        raise InvalidInput(
            f"{path} is a folder; name a file in it, as {Path(path) / 'holdfast.db'}"
        )
    from holdfast.store.sqlite import SQLiteStore

    return SQLiteStore(path, synchronous=synchronous)


def _where(url: str | os.PathLike[str] | None) -> str:
    return os.fspath(url) if url is not None else os.environ.get("HOLDFAST_URL", "")


def _sqlite(where: str) -> tuple[str, str]:
    """The path of a SQLite URL, and how durable its commits are to be."""
    if not where.startswith(_SQLITE):
        if "://" in where:
            raise InvalidInput(
                f"{where.split('://', maxsplit=1)[0]!r} is not a kind of store; "
                "use a path, sqlite:///path or postgresql://…"
            )
        return where or str(DEFAULT_FILE), "FULL"
    path, _, query = where.removeprefix(_SQLITE).partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    synchronous = options.pop("synchronous", "FULL")
    if options:
        raise InvalidInput(
            f"{where}: a SQLite store has no option {min(options)!r}; it has synchronous"
        )
    return path or str(DEFAULT_FILE), synchronous
