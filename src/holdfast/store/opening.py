"""Which store a URL or a path names, and the store itself, opened.

The engine of a store is imported when one of its kind is opened; the other is not loaded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from stat import S_ISDIR
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

from holdfast.errors import InvalidInput, StoreUnavailable
from holdfast.store.passwords import without_password

if TYPE_CHECKING:
    from holdfast.store.base import Store

DEFAULT_FILE: Final = Path(".holdfast") / "holdfast.db"
PLUGINS: Final = "holdfast.stores"
"""The entry point group in which a package registers a store by the scheme of its URLs."""
_SQLITE: Final = "sqlite:///"
_POSTGRES: Final = ("postgres://", "postgresql://")
_KEYWORDS: Final = frozenset(
    (
        "host",
        "hostaddr",
        "port",
        "dbname",
        "user",
        "password",
        "passfile",
        "service",
        "servicefile",
        "sslmode",
        "sslcert",
        "sslkey",
        "sslrootcert",
        "sslpassword",
        "channel_binding",
        "connect_timeout",
        "options",
        "application_name",
        "target_session_attrs",
        "gssencmode",
        "requiressl",
    )
)
"""With one of these a libpq connection string may start: `host=db dbname=runs user=me`."""


def sqlite_file(url: str | os.PathLike[str] | None = None) -> Path | None:
    """The file that a URL names; None for a server or for memory."""
    where = _where(url)
    if _is_postgres(where) or _plugin(where) is not None:
        return None
    path, _ = _sqlite(where)
    return None if path == ":memory:" else Path(path)


def open_store(url: str | os.PathLike[str] | None = None, *, retry: bool = True) -> Store:
    """The store that a URL or path names; by default HOLDFAST_URL, or a file below this folder.

    A database server that does not answer is retried for some seconds, because it may be restarting. Without `retry`,
    that is an error at once.

    `sqlite:///runs.db?synchronous=NORMAL` risks the last commits when power fails; `doctor` says so.
    """
    where = _where(url)
    if _is_postgres(where):
        try:
            from holdfast.store.postgres import PostgresStore
        except ModuleNotFoundError as missing:
            raise InvalidInput(
                f"PostgreSQL needs `pip install 'holdfast[postgres]'` ({missing})"
            ) from None
        return PostgresStore(where, retry_opening=retry)
    plugin = _plugin(where)
    if plugin is not None:
        return plugin(where)
    path, synchronous = _sqlite(where)
    if _mode(path, S_ISDIR):
        raise InvalidInput(
            f"{path} is a folder; use a file in it, for example {Path(path) / 'holdfast.db'}"
        )
    from holdfast.store.sqlite import SQLiteStore

    return SQLiteStore(path, synchronous=synchronous)


def _plugin(where: str) -> Callable[[str], Store] | None:
    """What opens URLs of this scheme, if an installed package registers it in the entry point group
    `holdfast.stores`: a function (or class) that takes the URL and returns a `Store`."""
    scheme, separator, _ = where.partition("://")
    if not separator or scheme == "sqlite":
        return None
    from importlib.metadata import entry_points

    for found in entry_points(group=PLUGINS, name=scheme):
        try:
            opened: Callable[[str], Store] = found.load()
        except (ImportError, AttributeError) as error:
            raise InvalidInput(
                f"the store for {scheme}:// cannot be loaded from {found.value}: {error}"
            ) from error
        return opened
    return None


def exists(file: Path) -> bool:
    """Whether there is something under this name; StoreUnavailable if that cannot be found out."""
    return _mode(str(file), bool)


def _mode(path: str, test: Callable[[int], bool]) -> bool:
    """Whether there is something at a path, and it is of a kind. (`Path.exists` and `Path.is_dir` raise the
    system's errors, or hide them.)"""
    if path == ":memory:":
        return False
    try:
        return test(Path(path).stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise StoreUnavailable(
            f"cannot open {path}: {error.strerror}. Choose a file that you may read and write"
        ) from None


def is_default(url: str) -> bool:
    """Whether a command finds this store without an option."""
    given = os.environ.get("HOLDFAST_URL", "")
    if given and without_password(given) == without_password(url):
        return True
    here, default = sqlite_file(url), sqlite_file(given or None)
    return here is not None and default is not None and here.absolute() == default.absolute()


def _where(url: object) -> str:
    if url is None:
        url = os.environ.get("HOLDFAST_URL", "")
    where: object = os.fspath(url) if isinstance(url, str | os.PathLike) else None
    if not isinstance(where, str):
        raise InvalidInput(
            f"a store is given as a path, a URL or a Store, not as {type(url).__name__}"
        )
    try:
        where.encode()
    except UnicodeEncodeError:
        raise InvalidInput("the path or URL of the store is not valid UTF-8") from None
    if "\0" in where:
        raise InvalidInput("the path or URL of the store contains a NUL character")
    return where


def _is_postgres(where: str) -> bool:
    """Whether this is a URL or a connection string of PostgreSQL. A path may have an = in it, but a file
    has no password: what has one is never taken for a name."""
    if where.startswith(_POSTGRES):
        return True
    keyword, equals, _ = where.partition("=")
    if equals and keyword.strip() in _KEYWORDS:
        return True
    return "://" not in where and re.search(r"(?:^|\s)password\s*=", where) is not None


def _sqlite(where: str) -> tuple[str, str]:
    """The path of a SQLite URL, and how durable its commits are to be."""
    if not where.startswith(_SQLITE):
        if where.startswith(("http://", "https://")):
            raise InvalidInput(
                f"{without_password(where)} is a server: use it with `holdfast.client.Client`, or with commands that "
                "inspect runs or decide. To execute agents, use the URL of the database"
            )
        if "://" in where:
            raise InvalidInput(
                f"{where.split('://', maxsplit=1)[0]!r} is not a known kind of store; "
                "use a path, sqlite:///path, postgresql://…, or install a package that provides it"
            )
        return _path(where), "FULL"
    path, _, query = where.removeprefix(_SQLITE).partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    synchronous = options.pop("synchronous", "FULL")
    if options:
        raise InvalidInput(
            f"{where}: a SQLite store has no option {min(options)!r}; it has synchronous"
        )
    return _path(path), synchronous


def _path(path: str) -> str:
    return os.path.expanduser(path) if path else str(DEFAULT_FILE)  # noqa: PTH111 - :memory: is not a path
