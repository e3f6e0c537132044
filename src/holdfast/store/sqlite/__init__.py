"""The embedded store: one SQLite file, no server, several processes at once."""

from holdfast.store.sqlite.store import SQLiteStore

__all__ = ["SQLiteStore"]
