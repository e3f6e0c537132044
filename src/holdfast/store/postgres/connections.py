"""How PostgreSQL is reached: connections that come back, and what their errors mean.

A `Link` is one connection, used by one thread at a time. Work is given to it as a function; when
the connection breaks, the link opens a new one and calls the function again, telling it that the
first attempt may have been carried out (`unsure`). Only the function knows how to find out.

Nothing here relies on a session: behind a pooler two transactions may meet two servers. So there
are no prepared statements, no session locks, and every setting ends with its transaction.

Not here: what is stored, and how (`store.py`).
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from holdfast.errors import (
    InvalidInput,
    ReadOnlyStore,
    SchemaMismatch,
    StorageFull,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    UnsafeStore,
)
from holdfast.store.postgres import arrays

T = TypeVar("T")
Params = Sequence[Any] | Mapping[str, Any] | None

ANSWER_SECONDS_MAX: Final = 20.0
"""How long a statement may stay unanswered before its connection counts as dead."""

_CONNECT_SECONDS: Final = 5
# A peer that vanished without a word is noticed in seconds, not in the kernel's two hours.
_CONNECTION_DEFAULTS: Final = {
    "application_name": "holdfast",
    "keepalives": "1",
    "keepalives_idle": "10",
    "keepalives_interval": "3",
    "keepalives_count": "3",
    "tcp_user_timeout": "15000",
}

# Durable when COMMIT returns, whatever the server's default; and a process that is stopped in the
# middle of a transaction does not hold up the others for long.
_BEGIN: Final = "BEGIN ISOLATION LEVEL READ COMMITTED"
_TRANSACTION_SETTINGS: Final = """
    SELECT pg_catalog.set_config('synchronous_commit',
                      CASE pg_catalog.current_setting('synchronous_commit')
                      WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true),
           pg_catalog.set_config('lock_timeout', '5s', true),
           pg_catalog.set_config('idle_in_transaction_session_timeout', %s, true)
"""
_LOOK_AROUND: Final = """
    SELECT (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::bigint, pg_catalog.current_setting('fsync')
"""

_RETRIED: Final = {
    "40001",  # serialization failure
    "40P01",  # deadlock
    "23505",  # two writers at one place; only met when the server's default isolation is not ours
    "53300",  # too many connections
    "57P03",  # the server is starting up
}
_STRANGER: Final = "invalid response"
"""What libpq reports of a server that is not PostgreSQL: during a restart, another process may use its port."""
# What a server says to a client whose request can never succeed. Its code does not reach us.
_HOPELESS: Final = (
    "authentication failed",
    "does not exist",
    "no pg_hba.conf entry",
    "permission denied",
    "invalid",
)


_BINARY: Final = pq.Format.BINARY


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection in autocommit, with transactions that are surely durable."""

    def begin(self, *, idle_seconds_max: int = 15) -> None:
        """Open a transaction. (Two statements: inside a pipeline they cost no round trip.)"""
        self.execute(_BEGIN)
        self.set_up_transaction(idle_seconds_max=idle_seconds_max)

    def set_up_transaction(self, *, idle_seconds_max: int = 15) -> None:
        """Settings for the rest of this transaction; 0 seconds is forever."""
        self.execute(_TRANSACTION_SETTINGS, (f"{idle_seconds_max}s",))

    def change(self, query: str, params: Params = None) -> list[tuple[Any, ...]]:
        """One statement as a durable transaction of its own, in one round trip."""
        with self.pipeline():
            self.begin()
            done = self.execute(query, params)
            self.execute("COMMIT")
        return done.fetchall()

    def ask(self, query: bytes, values: Sequence[arrays.BinaryValue]) -> bool:
        """The truth value that one statement gives, in one call into libpq.

        psycopg would hold this conversation step by step, and the interpreter's lock would have to
        be won back at each step from an event loop that is busy making the next events.
        """
        types = [value.oid for value in values]
        result = self.pgconn.exec_params(query, values, types, [_BINARY] * len(values), _BINARY)
        if result.status == pq.ExecStatus.TUPLES_OK:
            return result.get_value(0, 0) == b"\1"
        code = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
        kind: type[psycopg.Error] = psycopg.OperationalError
        with contextlib.suppress(KeyError):  # a code from the future
            kind = psycopg.errors.lookup(code)
        raise kind(result.get_error_message())

    def rows(self, query: str, params: Params = None) -> list[tuple[Any, ...]]:
        """The rows of one statement."""
        return self.execute(query, params, binary=True).fetchall()


AHEAD_MAX_US: Final = round(ANSWER_SECONDS_MAX * 1_000_000)
"""By as much an estimate may be ahead. If the next one is further back, the server's own clock was set back."""


class ServerClock:
    """The server's time without asking it: what it reported last, plus what has passed here since.

    The wall clock of this machine plays no part, so that workers whose clocks disagree still agree.
    The estimate is never behind (by the time the answer took it is ahead): a lease looks shorter
    than it is rather than longer. A later answer that took less time would set the clock back. It stands still
    then, so that what was decided at a time is not recorded as before it.
    """

    def __init__(self) -> None:
        self._offset = self._last = 0

    def now(self) -> int:
        now, last = self._offset + _elapsed_ns() // 1000, self._last
        if last - AHEAD_MAX_US < now < last:
            return last
        self._last = now
        return now

    @contextlib.contextmanager
    def reading(self) -> Iterator[Callable[[int], None]]:
        """Around a round trip that brings the server's time, which is given to what is yielded."""
        sent_at = _elapsed_ns() // 1000

        def set_clock(now: int) -> None:
            self._offset = now - sent_at

        yield set_clock


# A laptop's sleep counts too, where the system can tell: leases end meanwhile.
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_elapsed_ns: Final = partial(time.clock_gettime_ns, _CLOCK)


class Route:
    """Where the server is and how to get there. Shared by all links of a store."""

    def __init__(
        self, dsn: str, *, patience: float, retry_opening: bool, require_fsync: bool
    ) -> None:
        try:
            given = conninfo_to_dict(dsn)
            [int(port or 0) for port in str(given.get("port") or "").split(",")]
            timeout = given.get("connect_timeout") or os.environ.get("PGCONNECT_TIMEOUT")
            seconds = int(timeout or _CONNECT_SECONDS)
        except (psycopg.Error, ValueError):  # the text of either may hold the password
            raise InvalidInput(
                "the PostgreSQL URL cannot be read; it looks like postgresql://user:password@host:5432/database"
            ) from None
        # Text travels as UTF-8, whatever the database's encoding is.
        self._options: dict[str, Any] = {
            **_CONNECTION_DEFAULTS,
            **given,
            "connect_timeout": seconds,
            "client_encoding": "utf8",
        }
        self._password = str(given.get("password") or "")
        self.user = str(given.get("user") or "")
        host, port = given.get("host") or "localhost", given.get("port") or "5432"
        self.url = f"postgresql://{host}:{port}/{given.get('dbname') or self.user}"
        self.patience = patience
        # Before the first connection nothing was lost: a wrong address is more likely than a restart.
        self.opening_patience = min(patience, seconds or patience) if retry_opening else 0.0
        self.reached = False
        self.require_fsync = require_fsync
        self.clock = ServerClock()
        self.closed = threading.Event()
        self.met: Callable[[Connection], None] = lambda _: None
        """What is done with each new connection before it is used."""
        self.pid = os.getpid()
        self._watched: set[Link] = set()
        self._watching: threading.Thread | None = None
        self._mutex = threading.Lock()

    def connect(self) -> Connection:
        """A new connection to a server that may be trusted with acknowledged events."""
        connection = Connection.connect(**self._options, autocommit=True, prepare_threshold=None)
        try:
            arrays.register(connection)
            with self.clock.reading() as set_clock:
                now, fsync = connection.rows(_LOOK_AROUND)[0]
                set_clock(now)
            if self.require_fsync and fsync != "on":
                raise UnsafeStore(
                    f"{self.url} runs with fsync={fsync}: a power failure can lose acknowledged data, or all of "
                    "it. Set fsync=on; if the data may be lost, open the store with require_fsync=False"
                )
            self.met(connection)
            self.reached = True
        except BaseException:  # also an interrupt: no connection leaks
            connection.close()
            raise
        return connection

    def describe(self, error: psycopg.Error) -> str:
        """An error's text for people: one line, with no password in it."""
        text = " ".join(str(error).split()) or type(error).__name__
        if len(self._password) > 2:
            text = text.replace(self._password, "***")
        if error.pgconn is not None and error.pgconn.needs_password:
            text += (
                ". Set PGPASSWORD, write it to ~/.pgpass, or give it with the URL in HOLDFAST_URL"
            )
        return f"{self.url}: {text}"

    def translated(self, error: psycopg.Error) -> StoreError:
        """PostgreSQL's error in our words."""
        code = error.sqlstate or ""
        where = self.describe(error)
        if code == "53100":
            return StorageFull(
                f"{where}. Nothing was written; free space on the server and resume the run"
            )
        if code == "25006":
            return ReadOnlyStore(
                f"{where}. This is a standby or a read-only database; connect to the primary"
            )
        if code == "42501":
            return ReadOnlyStore(
                f"{where}. The role {self.user!r} lacks permissions; grant it access to the tables of the schema"
            )
        if code in ("42P01", "3F000", "42883", "42703"):
            return SchemaMismatch(
                f"{where}. The schema was changed or removed while the store was open"
            )
        if code in ("57014", "55P03"):
            return StoreUnavailable(f"{where}. Nothing was written")
        if code[:2] in ("22", "23", "54"):
            return StoreError(f"{where}. Nothing was written")
        return StoreUnavailable(where)

    def watch(self, link: Link) -> None:
        """Have the link's connection broken if an answer stays out too long."""
        with self._mutex:
            self._watched.add(link)
            if self._watching is None:
                self._watching = threading.Thread(
                    target=self._watch, name="holdfast-watch", daemon=True
                )
                self._watching.start()

    def unwatch(self, link: Link) -> None:
        with self._mutex:
            self._watched.discard(link)

    def _watch(self) -> None:
        # TCP's own timers do not see a peer whose machine answers while its process does not.
        while not self.closed.wait(1.0):
            with self._mutex:
                links = list(self._watched)
            for link in links:
                link.break_if_stuck()

    def close(self) -> None:
        self.closed.set()
        if self._watching is not None and self.pid == os.getpid():
            self._watching.join()


class Link:
    """One connection that is opened when needed and opened again when it broke."""

    def __init__(self, route: Route, *, answer_seconds_max: float | None = None) -> None:
        self._route = route
        self._limit = answer_seconds_max or ANSWER_SECONDS_MAX
        self._using = threading.Lock()
        self._guard = threading.Lock()
        self._connection: Connection | None = None
        self._busy_since: float | None = None
        route.watch(self)

    def run(self, work: Callable[[Connection, bool], T]) -> T:
        """Do the work, again if the connection breaks or transactions collide; patience has an end.

        `work(connection, unsure)` must be safe to repeat: with `unsure` an earlier attempt may have
        been committed although its answer never came.
        """
        unsure = False
        give_up = 0.0
        pause = 0.005
        with self._using:
            while True:
                was_sent = False
                try:
                    connection = self._ready()
                    was_sent = True
                    with self.timed():
                        return work(connection, unsure)
                except psycopg.Error as error:
                    lost = self._clean_up()
                    unsure = unsure or (was_sent and lost)
                    if not lost and error.sqlstate not in _RETRIED:
                        raise self._route.translated(error) from error
                    route = self._route
                    patience = route.patience if route.reached else route.opening_patience
                    give_up = give_up or time.monotonic() + patience
                    pause = min(pause * 2, 0.5) * random.uniform(0.7, 1.3)  # noqa: S311 (only to spread)
                    if _is_hopeless(error, was_sent):
                        raise StoreRefused(self._route.describe(error)) from error
                    if time.monotonic() + pause > give_up:
                        raise self._unavailable(error, unsure) from error
                except BaseException:  # also an interrupt: what it left half-sent is not used again
                    self._clean_up()
                    raise
                if self._route.closed.wait(pause):
                    raise StoreUnavailable("the store is closed")

    @contextlib.contextmanager
    def held(self) -> Iterator[Connection]:
        """The connection itself, for a transaction with a tool's statements in it."""
        with self._using:
            try:
                yield self._ready()
            except psycopg.Error as error:
                if self._clean_up():
                    raise self._unavailable(error, unsure=False) from error
                raise
            finally:
                self._clean_up()

    def close(self) -> None:
        with self._using:
            self._drop()
        self._route.unwatch(self)

    def break_if_stuck(self) -> None:
        """Break the connection if its answer is overdue; the thread that is waiting for it then sees so."""
        with self._guard:
            connection, since = self._connection, self._busy_since
            if (
                connection is not None
                and since is not None
                and time.monotonic() - since > self._limit
            ):
                self._busy_since = None
                sever(connection)

    def _ready(self) -> Connection:
        if self._connection is None:
            if self._route.closed.is_set():
                raise StoreUnavailable("the store is closed")
            self._connection = self._route.connect()
        return self._connection

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Around what must not wait forever: see `break_if_stuck`."""
        with self._guard:
            self._busy_since = time.monotonic()
        try:
            yield
        finally:
            with self._guard:
                self._busy_since = None

    def _clean_up(self) -> bool:
        """Leave no transaction open; whether the connection is gone."""
        connection = self._connection
        if connection is not None and not connection.closed:
            status = connection.info.transaction_status
            if status in (pq.TransactionStatus.INTRANS, pq.TransactionStatus.INERROR):
                with contextlib.suppress(psycopg.Error):  # it broke just now: seen below
                    connection.rollback()
            elif status != pq.TransactionStatus.IDLE:
                connection.close()  # Ctrl-C left a statement running: its end is not ours to await
        if connection is not None and not connection.closed:
            return False
        self._drop()
        return True

    def _drop(self) -> None:
        with self._guard:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _unavailable(self, error: psycopg.Error, unsure: bool) -> StoreUnavailable:
        outcome = (
            "What was being written may or may not be stored; read it before deciding"
            if unsure
            else "Nothing was written"
        )
        return StoreUnavailable(f"{self._route.describe(error)}. {outcome}")


class Pool:
    """A few shared connections. Appends and leases have their own and never queue here."""

    def __init__(self, route: Route, size: int) -> None:
        self._route = route
        self._size = size
        self._free = threading.BoundedSemaphore(size)
        self._idle: list[Link] = []

    @contextlib.contextmanager
    def link(self) -> Iterator[Link]:
        if not self._free.acquire(timeout=self._route.patience):
            raise StoreUnavailable(
                f"{self._route.url}: all {self._size} connections stayed busy for {self._route.patience:g} s; "
                "open the store with a larger pool_size, or let fewer tools keep a transaction open at once"
            )
        try:
            try:
                link = self._idle.pop()
            except IndexError:
                link = Link(self._route)
            try:
                yield link
            finally:
                self._idle.append(link)
                if self._route.closed.is_set():  # meanwhile: then it must be closed here
                    self.close()
        finally:
            self._free.release()

    def run(self, work: Callable[[Connection, bool], T]) -> T:
        with self.link() as link:
            return link.run(work)

    def close(self) -> None:
        with contextlib.suppress(IndexError):
            # Until there is none; another thread may take the last.
            while True:
                self._idle.pop().close()


def sever(connection: Connection) -> None:
    """Break a connection that another thread is waiting on, so that its wait ends."""
    with contextlib.suppress(OSError, psycopg.Error):
        twin = socket.socket(fileno=os.dup(connection.fileno()))
        with twin:
            twin.shutdown(socket.SHUT_RDWR)


def is_about_one(error: StoreError) -> bool:
    """Whether one row of a statement was to blame, so that the others may pass without it."""
    code = getattr(error.__cause__, "sqlstate", None) or ""
    return code[:2] in ("22", "23", "54") or code == "55P03"


def _is_hopeless(error: psycopg.Error, was_sent: bool) -> bool:
    message = str(error).replace(_STRANGER, "")
    return not was_sent and any(sign in message for sign in _HOPELESS)
