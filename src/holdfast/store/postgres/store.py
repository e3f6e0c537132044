"""The store for many machines: PostgreSQL, with or without a transaction pooler before it.

Leases and timers go by the database's clock. One connection is kept for appends and one for leases,
so that nothing else in this process can hold them up.

Every method is safe if a response is lost: a change that may have been committed is looked up before it is
repeated, or is repeated in a way that has no second effect.

Not here: new runs (`create.py`), appends (`appends.py`), claims and leases (`leases.py`), how the server is reached and its errors
(`connections.py`), being woken (`listen.py`), the schema (`migrate.py`), schedules, limits and snapshots (`tables.py`).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from holdfast.core.log import Record
from holdfast.errors import InvalidInput, ReadOnlyStore
from holdfast.store import sql
from holdfast.store.base import (
    Append,
    ClaimFilter,
    Creation,
    Filter,
    Finding,
    Kind,
    OpenAppend,
    RunRow,
)
from holdfast.store.checks import (
    check_claim_filters,
    check_filter,
    check_new_run,
    check_text,
)
from holdfast.store.group import AppendGroup, GroupCommit, Ticket
from holdfast.store.passwords import without_password
from holdfast.store.postgres.appends import Appends
from holdfast.store.postgres.connections import Connection, Pool, Route
from holdfast.store.postgres.create import Creating
from holdfast.store.postgres.leases import Leases, columns_of
from holdfast.store.postgres.listen import Listener
from holdfast.store.postgres.migrate import Schema
from holdfast.store.postgres.tables import (
    PostgresAgents,
    PostgresLimits,
    PostgresSchedules,
    PostgresSnapshots,
)
from holdfast.store.postgres.timeline import History, StoreContext
from holdfast.store.wakeups import Wakeups

T = TypeVar("T")

PATIENCE_SECONDS: Final = 5.0
POLL_SECONDS_MIN: Final = 0.01
POLL_SECONDS_MAX: Final = 0.25
IDLE_SECONDS_MAX: Final = 20.0
DEAF_SECONDS_MAX: Final = 1.0
"""Between two looks of an idle worker: when notes arrive, and when they do not (behind a pooler)."""
OLDEST_SERVER: Final = 140_000

_SCHEMA_NAME: Final = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,39}")


class PostgresStore:
    """A Store in one schema of a PostgreSQL database, made and migrated when first opened.

    A lost connection is retried for `patience` seconds, then StoreUnavailable. The first connection is retried for no
    longer than `connect_timeout` of the URL (or PGCONNECT_TIMEOUT), and not at all without `retry_opening`.
    `clock` replaces the database's clock in tests.
    """

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "holdfast",
        clock: Callable[[], int] | None = None,
        pool_size: int = 5,
        patience: float = PATIENCE_SECONDS,
        retry_opening: bool = True,
        require_fsync: bool = True,
    ) -> None:
        if not _SCHEMA_NAME.fullmatch(schema):
            raise InvalidInput(
                f"{schema!r} is not a schema name: use up to 40 lower-case letters, digits and _, not starting with pg_"
            )
        self._dsn, self._clock = dsn, clock
        self._options: dict[str, Any] = {
            "patience": patience,
            "retry_opening": retry_opening,
            "require_fsync": require_fsync,
        }
        self._pool_size = max(1, pool_size)
        self._channel = f"{schema}_runs"
        # The one thing that cannot be a parameter; its pattern was checked above.
        self._q = {name: _in_schema(text, schema) for name, text in sql.queries("postgres").items()}
        steps = [
            replace(step, sql=_in_schema(step.sql, schema)) for step in sql.migrations("postgres")
        ]
        self._schema = Schema(schema, self._q, steps)
        self._left_behind: list[object] = []
        self._closed = False
        self.agents = PostgresAgents(self._run, self._q)
        self.schedules = PostgresSchedules(
            self._run, self._q, self._fixed_now, lambda: self._notify("schedules")
        )
        self.limits = PostgresLimits(self._run, self._q, self._fixed_now, schema)
        self.snapshots = PostgresSnapshots(
            self._run,
            self._q,
            lambda: self.now(),  # noqa: PLW0108 - after a fork, it is that of another clock
        )
        self._open_queues()
        self.url = without_password(dsn)
        try:
            self._readonly = self._pool.run(self._prepare)
        except BaseException:  # also an interrupt: close it here
            self.close()
            raise

    def _open_queues(self) -> None:
        """Everything that belongs to one process."""
        self._pid = os.getpid()
        self._route = Route(self._dsn, **self._options)
        self.now = self._route.clock.now if self._clock is None else self._clock
        history = History(self._q)
        self._route.met = history.meet
        self._wakeups = Wakeups()
        context = StoreContext(self._q, self._wakeups, self._channel, self._fixed_now, history)
        self._pool = Pool(self._route, self._pool_size)
        self._listener = Listener(self._route.connect, self._channel, self._wakeups, self._notify)
        self._appends = Appends(self._route, context)
        self._leases = Leases(self._route, self._pool, self._schema.name, context)
        self._group = AppendGroup(self._appends.commit)
        self._creations = GroupCommit(Creating(self._pool, self._appends, context).commit)

    def _notify(self, note: str) -> None:
        """Notify all who listen, on a connection that does not listen itself."""
        self._pool.run(lambda db, _: db.rows(self._q["notify"], (self._channel, note)))

    def _run(self, work: Callable[[Connection, bool], T], *, write: bool = True) -> T:
        if write:
            self._check_writable()
        else:
            self._survive_fork()
        return self._pool.run(work)

    def _prepare(self, db: Connection, _unsure: bool) -> bool:
        self._schema.prepare(db, self._route.user or db.info.user)
        return not self._schema.may_write(db)

    def _survive_fork(self) -> None:
        """A connection must not cross a fork: the child opens its own and leaves ours alone."""
        if os.getpid() == self._pid:
            return
        # Kept, so that nothing closes them here: the sockets are still the parent's.
        self._left_behind += [
            self._route,
            self._pool,
            self._appends,
            self._leases,
            self._listener,
            self._group,
            self._creations,
        ]
        self._open_queues()
        self._pool.run(lambda db, _: db.rows("SELECT 1"))  # sets the clock

    def _fixed_now(self) -> int | None:
        """What statements are given as the time: nothing, so that they ask the database's clock."""
        return None if self._clock is None else self._clock()

    def close(self) -> None:
        if os.getpid() != self._pid or self._closed:
            return
        self._closed = True
        self._creations.close()
        self._group.close()
        self._route.close()
        self._listener.stop()
        for link in (self._appends, self._leases, self._pool):
            link.close()

    # ── writing ──────────────────────────────────────────────────────────────────────────

    def _check_writable(self) -> None:
        self._survive_fork()
        if self._readonly:
            raise ReadOnlyStore(
                f"{self.url}: this role may read but not write; nothing was written"
            )

    def create(self, creation: Creation) -> Ticket[Creation]:
        check_new_run(creation)
        self._check_writable()
        return self._creations.submit(creation)

    def append(self, work: Append) -> None:
        self._check_writable()
        self._group.append(work)

    def submit(self, work: Append) -> Ticket[Append]:
        if self._readonly or os.getpid() != self._pid:  # asked here: most steps come this way
            self._check_writable()
        return self._group.submit(work)

    @contextlib.contextmanager
    def open_append(self, run_id: str, epoch: int) -> Iterator[OpenAppend]:
        self._check_writable()
        with self._pool.link() as link, self._appends.open(link, run_id, epoch) as opened:
            yield opened

    # ── leases ───────────────────────────────────────────────────────────────────────────

    def claim(
        self, run_id: str, *, worker: str, lease_us: int, quota: ClaimFilter | None = None
    ) -> RunRow | None:
        self._check_writable()
        return self._leases.claim(run_id, worker, lease_us, quota)

    def claim_due(
        self,
        *,
        worker: str,
        lease_us: int,
        limit: int,
        filters: Sequence[ClaimFilter],
        exclude: Sequence[str] = (),
    ) -> list[RunRow]:
        self._check_writable()
        checked = check_claim_filters(filters)
        if limit <= 0 or not checked:
            return []
        return self._leases.claim_due(worker, lease_us, limit, checked, exclude)

    def renew(self, leases: Sequence[tuple[str, int]], *, lease_us: int) -> set[str]:
        self._check_writable()
        return self._leases.renew(leases, lease_us) if leases else set()

    def release(self, run_id: str, epoch: int, *, died: bool = False) -> bool:
        self._check_writable()
        return self._leases.release(run_id, epoch, died=died)

    # ── reading ──────────────────────────────────────────────────────────────────────────

    def _rows(
        self, name: str, params: Sequence[Any] | dict[str, Any] = ()
    ) -> list[tuple[Any, ...]]:
        self._survive_fork()
        return self._pool.run(lambda db, _: db.rows(self._q[name], params))

    def get(self, run_id: str) -> RunRow | None:
        check_text("run id", run_id)
        found = self._rows("run", (run_id,))
        return RunRow(*found[0]) if found else None

    def read(self, run_id: str, *, after: int = -1, limit: int | None = None) -> list[Record]:
        return list(map(Record._make, self._rows("read", (run_id, after, limit))))

    def head(self, run_id: str) -> int:
        return int(self._rows("head", (run_id,))[0][0])

    def heads(self, run_ids: Sequence[str]) -> dict[str, int]:
        return dict(self._rows("heads", (list(run_ids),)))

    def runs(
        self, filter: Filter = Filter(), *, limit: int = 50, cursor: int | None = None
    ) -> list[RunRow]:
        check_filter(filter)
        params = {**filter._asdict(), "limit": max(0, limit), "cursor": cursor}
        return [RunRow(*row) for row in self._rows(sql.listing(filter), params)]

    def kinds(self) -> list[Kind]:
        return [Kind(*row) for row in self._rows("kinds")]

    def last_restart(self, run_id: str) -> int:
        return int(self._rows("last_restart", (run_id,))[0][0])

    def find_key(self, key: str) -> tuple[str, int] | None:
        found = self._rows("find_key", (check_text("idempotency key", key),))
        return (found[0][0], found[0][1]) if found else None

    def blob(self, run_id: str, hash: str) -> bytes | None:
        found = self._rows("blob", (run_id, hash))
        return bytes(found[0][0]) if found else None

    # ── deletion, waiting ─────────────────────────────────────────────────────

    def delete(self, run_id: str) -> bool:
        self._check_writable()

        def delete(db: Connection, unsure: bool) -> bool:
            with db.pipeline():
                db.begin()
                there = db.execute(self._q["lock_to_delete"], (run_id,))
                gone = db.execute(self._q["delete_run"], (run_id,))
                db.execute("COMMIT")
            return bool(gone.fetchall()) or (unsure and not there.fetchall())

        return self._pool.run(delete)

    def wait(self, run_id: str, *, after: int, timeout: float) -> bool:
        def grown() -> bool:
            return self.head(run_id) > after

        self._listener.start()
        pauses = (POLL_SECONDS_MIN, POLL_SECONDS_MAX)
        return self._wakeups.wait_until(grown, run_id, timeout, pauses=pauses)

    def wait_due(
        self,
        filters: Sequence[ClaimFilter],
        *,
        timeout: float,
        stop_when: Callable[[], bool] | None = None,
    ) -> bool:
        """Notifications that surely arrive allow for long pauses."""

        def pauses() -> tuple[float, float]:
            if self._listener.hears:
                return IDLE_SECONDS_MAX, IDLE_SECONDS_MAX
            return POLL_SECONDS_MIN, DEAF_SECONDS_MAX

        self._listener.start()
        next_due = partial(self._next_to_do, filters)
        return self._wakeups.wait_due(next_due, self.now, stop_when, timeout, pauses=pauses)

    def _next_to_do(self, filters: Sequence[ClaimFilter]) -> int | None:
        due: int | None = self._rows("next_to_do", columns_of(check_claim_filters(filters)))[0][0]
        return due

    def nudge(self) -> None:
        self._wakeups.notify_all()

    # ── self-examination ─────────────────────────────────────────────────────────────────

    def examine(self) -> list[Finding]:
        schema = self._pool.run(lambda db, _: self._schema.number(db))
        found = _findings(self._rows("settings")[0], self._readonly)
        return [
            Finding("store", self.url, True),
            Finding("schema", f"{self._schema.name} {schema}", True),
            *found,
        ]


def _findings(settings: tuple[Any, ...], readonly: bool) -> list[Finding]:
    """What the server's settings mean for safety."""
    number, version, fsync, pages, commit, checksums, standby = settings
    weak = commit in ("off", "local", "remote_write")
    return [
        Finding(
            "PostgreSQL", version, number >= OLDEST_SERVER, "not tested with versions before 14"
        ),
        Finding(
            "primary",
            "no" if standby else "yes",
            not standby,
            "this is a standby: it can be read, but no worker can use it",
        ),
        Finding(
            "rights",
            "read" if readonly else "read, write",
            not readonly,
            "this role cannot write; workers need INSERT, UPDATE and DELETE",
        ),
        Finding("fsync", fsync, fsync == "on", "a power failure can lose everything; set fsync=on"),
        Finding(
            "full_page_writes",
            pages,
            pages == "on",
            "a power failure can tear pages, unless the file system prevents it; set it on",
        ),
        Finding(
            "synchronous_commit", f"{commit}, on for our transactions" if weak else commit, True
        ),
        Finding(
            "data_checksums",
            checksums,
            checksums == "on",
            "a damaged page is detected late; enable with pg_checksums",
        ),
    ]


def _in_schema(text: str, schema: str) -> str:
    return text.replace("holdfast.", f'"{schema}".').replace(
        "SCHEMA holdfast", f'SCHEMA "{schema}"'
    )
