"""The store for many machines: PostgreSQL, with or without a transaction pooler before it.

Leases and timers go by the database's clock. One connection is kept for appends and one for leases,
so that nothing else in this process can hold them up.

Every method is safe against a lost answer: what may have been committed is looked up before it is
tried again, or is tried in a way that cannot count twice.

Not here: new runs (`create.py`), appends (`appends.py`), how the server is reached and its errors
(`connections.py`), being woken (`listen.py`), the schema (`migrate.py`), schedules and limits (`schedules.py`).
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from holdfast.core.log import Record
from holdfast.errors import InvalidInput, ReadOnlyStore
from holdfast.store import sql
from holdfast.store.base import (
    MICROSECONDS,
    NO_PROGRESS,
    Append,
    Creation,
    Filter,
    Finding,
    Kind,
    OpenAppend,
    RunRow,
    Wanted,
)
from holdfast.store.checks import (
    check_append,
    check_filter,
    check_new_run,
    check_text,
    check_wanted,
)
from holdfast.store.group import GroupCommit, Ticket
from holdfast.store.passwords import without_password
from holdfast.store.postgres.appends import Appends
from holdfast.store.postgres.connections import Connection, Link, Pool, Route
from holdfast.store.postgres.create import Creating
from holdfast.store.postgres.listen import Listener
from holdfast.store.postgres.migrate import Schema
from holdfast.store.postgres.schedules import PostgresAgents, PostgresLimits, PostgresSchedules
from holdfast.store.postgres.snapshots import PostgresSnapshots
from holdfast.store.postgres.timeline import History
from holdfast.store.wakeups import ANY, Bell

T = TypeVar("T")

if TYPE_CHECKING:
    pass

PATIENCE_SECONDS: Final = 5.0
POLL_SECONDS_MIN: Final = 0.01
POLL_SECONDS_MAX: Final = 0.25
IDLE_SECONDS_MAX: Final = 20.0
DEAF_SECONDS_MAX: Final = 1.0
"""Between two looks of an idle worker: when notes arrive, and when they do not (behind a pooler)."""
RENEWAL_SECONDS_MAX: Final = 5.0
OLDEST_SERVER: Final = 140_000
UNSETTLED_SECONDS: Final = 0.5
"""How long to wait at a time while others compare what they know with a new timeline."""

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
            step._replace(sql=_in_schema(step.sql, schema)) for step in sql.migrations("postgres")
        ]
        self._schema = Schema(schema, self._q, steps)
        self._left_behind: list[object] = []
        self._closed = False
        self.agents = PostgresAgents(self._run, self._q)
        self.schedules = PostgresSchedules(
            self._run, self._q, self._fixed_now, lambda: self._say("schedules")
        )
        self.limits = PostgresLimits(self._run, self._q, self._fixed_now, schema)
        self.snapshots = PostgresSnapshots(self._run, self._q, self.now)
        self._set_out()
        self.url = without_password(dsn)
        try:
            self._readonly = self._pool.run(self._prepare)
        except BaseException:  # also an interrupt: close it here
            self.close()
            raise

    def _set_out(self) -> None:
        """Everything that belongs to one process."""
        self._pid = os.getpid()
        self._route = Route(self._dsn, **self._options)
        self._history = History(self._q)
        self._route.met = self._history.meet
        self._bell = Bell()
        self._pool = Pool(self._route, self._pool_size)
        self._listener = Listener(self._route.connect, self._channel, self._bell, self._say)
        self._appends = Appends(
            self._route, self._q, bell=self._bell, channel=self._channel, fixed_now=self._fixed_now,
            history=self._history,
        )  # fmt: skip
        self._leases = Link(self._route, answer_seconds_max=RENEWAL_SECONDS_MAX)
        self._group = GroupCommit(self._appends.commit)
        self._creating = Creating(
            self._pool, self._q, self._appends, bell=self._bell, channel=self._channel,
            fixed_now=self._fixed_now, history=self._history,
        )  # fmt: skip
        self._creations = GroupCommit(self._creating.commit)

    def _say(self, note: str) -> None:
        """Send a note to all who listen, on a connection that does not listen itself."""
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
        self._set_out()
        self._pool.run(lambda db, _: db.rows("SELECT 1"))  # sets the clock

    def now(self) -> int:
        return self._route.clock.now() if self._clock is None else self._clock()

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
        check_append(work)
        self._check_writable()
        self._group.append(work)

    def submit(self, work: Append) -> Ticket[Append]:
        check_append(work)
        self._check_writable()
        return self._group.submit(work)

    @contextlib.contextmanager
    def open_append(self, run_id: str, epoch: int) -> Iterator[OpenAppend]:
        self._check_writable()
        with self._pool.link() as link, self._appends.open(link, run_id, epoch) as opened:
            yield opened

    # ── leases ───────────────────────────────────────────────────────────────────────────

    def claim(
        self, run_id: str, *, worker: str, lease_us: int, within: Wanted | None = None
    ) -> RunRow | None:
        self._check_writable()
        most = -1 if within is None or within.max_running is None else within.max_running
        params = {
            "id": run_id,
            "worker": worker,
            "lease": lease_us,
            "now": self._fixed_now(),
            "token": secrets.randbits(62) + 1,
            "no_progress": list(NO_PROGRESS),
            "most": most,
        }

        def claim(db: Connection, unsure: bool) -> list[tuple[Any, ...]]:
            if within is None or most < 0:
                found = db.change(self._q["claim"], params)
                return found or (db.rows(self._q["claimed_by"], params) if unsure else [])
            if unsure and (found := db.rows(self._q["claimed_by"], params)):
                return found
            with db.pipeline():
                db.begin()
                names = (f"{self._schema.name} agent", [within.agent])
                db.execute(self._q["lock_names"], names)
                done = db.execute(self._q["claim"], params)
                db.execute("COMMIT")
            return done.fetchall()

        found = [RunRow(*row) for row in self._pool.run(claim)]
        for row in found:
            self._history.remember(row.id, epoch=row.epoch)
        return found[0] if found else None

    def claim_due(
        self,
        *,
        worker: str,
        lease_us: int,
        limit: int,
        wanted: Sequence[Wanted] | None = None,
        but: Sequence[str] = (),
    ) -> list[RunRow]:
        self._check_writable()
        asked = self._wanted(wanted)
        if limit <= 0 or not asked:
            return []
        limited = sorted({one.agent for one in asked if one.max_running is not None})
        params = {
            "id": None,
            "worker": worker,
            "lease": lease_us,
            "now": self._fixed_now(),
            "token": secrets.randbits(62) + 1,
            "limit": limit,
            "but": list(but),
            "no_progress": list(NO_PROGRESS),
            "mosts": [-1 if one.max_running is None else one.max_running for one in asked],
            **_columns(asked),
        }

        def claim(db: Connection, unsure: bool) -> list[tuple[Any, ...]]:
            if unsure and (found := db.rows(self._q["claimed_by"], params)):
                return found
            with db.pipeline():
                db.begin()
                if limited:
                    db.execute(self._q["lock_names"], (f"{self._schema.name} agent", limited))
                done = db.execute(self._q["claim_due"], params)
                db.execute("COMMIT")
            return done.fetchall()

        if unsettled := self._history.unsettled_seconds(lease_us / MICROSECONDS):
            self._route.closed.wait(min(unsettled, UNSETTLED_SECONDS))
            return []
        rows = [RunRow(*row) for row in self._pool.run(claim)]
        for row in rows:
            self._history.remember(row.id, epoch=row.epoch)
        return rows

    def _wanted(self, wanted: Sequence[Wanted] | None) -> Sequence[Wanted]:
        if wanted is None:
            return [Wanted(kind.agent, kind.code_version) for kind in self.kinds()]
        return check_wanted(wanted)

    def renew(self, held: Sequence[tuple[str, int]], *, lease_us: int) -> set[str]:
        self._check_writable()
        if not held:
            return set()
        times = {"now": self._fixed_now(), "lease": lease_us}

        def renew(db: Connection, _unsure: bool) -> set[str]:
            params = {
                "ids": [run_id for run_id, _ in held],
                "epochs": [epoch for _, epoch in held],
                **times,
            }
            with self._route.clock.asking() as told:
                found = db.change(self._q["renew"], params)
                if found and self._clock is None:
                    told(found[0][1])
            lost = {run_id for run_id, _ in held} - {run_id for run_id, _ in found}
            for run_id, epoch in held:
                if run_id in lost and db.change(
                    self._q["renew_one"], {"id": run_id, "epoch": epoch, **times}
                ):
                    lost.discard(run_id)
            return lost

        return self._leases.run(renew)

    def release(self, run_id: str, epoch: int, *, died: bool = False) -> bool:
        self._check_writable()
        params = {"id": run_id, "epoch": epoch, "now": self._fixed_now(), "channel": self._channel,
                  "forgiven": int(not died)}  # fmt: skip

        def release(db: Connection, unsure: bool) -> bool:
            freed = db.change(self._q["release"], params)
            return bool(freed or (unsure and db.rows(self._q["released"], params)))

        freed = self._pool.run(release)
        self._bell.ring(run_id)
        return freed

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
        self, which: Filter = Filter(), *, limit: int = 50, cursor: int | None = None
    ) -> list[RunRow]:
        check_filter(which)
        params = {**which._asdict(), "limit": max(0, limit), "cursor": cursor}
        return [RunRow(*row) for row in self._rows(sql.listing(which), params)]

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
        return self._bell.wait_until(grown, run_id, timeout, pauses=pauses)

    def wait_due(
        self,
        wanted: Sequence[Wanted] | None = None,
        *,
        timeout: float,
        or_when: Callable[[], bool] | None = None,
    ) -> bool:
        """Checks again at each notification and when the next timer ends; and now and then, the longer
        nothing happens the less often. Notes that surely arrive allow for long pauses."""
        end = time.monotonic() + timeout
        pause = POLL_SECONDS_MIN
        with self._bell.waiting(ANY) as rung:
            self._listener.start()
            while True:
                when, now = self._next_to_do(wanted), self.now()
                if (when is not None and when <= now) or (or_when is not None and or_when()):
                    return True
                left = end - time.monotonic()
                if left <= 0:
                    return False
                if when is not None:
                    left = min(left, (when - now) / MICROSECONDS)
                if self._listener.hears:
                    pause = IDLE_SECONDS_MAX
                if not rung.wait(min(pause * random.uniform(0.8, 1.2), left)):  # noqa: S311 (only to spread)
                    if time.monotonic() >= end:
                        return False  # a caller that keeps waiting checks at once: once, not twice
                    pause = min(pause * 1.5, DEAF_SECONDS_MAX)
                rung.clear()

    def _next_to_do(self, wanted: Sequence[Wanted] | None) -> int | None:
        if wanted is None:
            return min((kind.due_at for kind in self.kinds()), default=None)
        due: int | None = self._rows("next_to_do", _columns(check_wanted(wanted)))[0][0]
        return due

    def nudge(self) -> None:
        self._bell.ring_all()

    # ── self-examination ─────────────────────────────────────────────────────────────────

    def examine(self) -> list[Finding]:
        number, version, fsync, pages, commit, checksums, standby = self._rows("settings")[0]
        schema = self._pool.run(lambda db, _: self._schema.number(db))
        weak = commit in ("off", "local", "remote_write")
        return [
            Finding("store", self.url, True),
            Finding("schema", f"{self._schema.name} {schema}", True),
            Finding("PostgreSQL", version, number >= OLDEST_SERVER, "not tested with versions before 14"),
            Finding("primary", "no" if standby else "yes", not standby,
                    "this is a standby: it can be read, but no worker can use it"),
            Finding("rights", "read" if self._readonly else "read, write", not self._readonly,
                    "this role cannot write; workers need INSERT, UPDATE and DELETE"),
            Finding("fsync", fsync, fsync == "on", "a power failure can lose everything; set fsync=on"),
            Finding("full_page_writes", pages, pages == "on",
                    "a power failure can tear pages, unless the file system prevents it; set it on"),
            Finding("synchronous_commit", f"{commit}, on for our transactions" if weak else commit, True),
            Finding("data_checksums", checksums, checksums == "on",
                    "a damaged page is detected late; enable with pg_checksums"),
        ]  # fmt: skip


def _columns(wanted: Sequence[Wanted]) -> dict[str, list[str]]:
    return {
        "agents": [one.agent for one in wanted],
        "versions": [one.code_version for one in wanted],
    }


def _in_schema(text: str, schema: str) -> str:
    return text.replace("holdfast.", f'"{schema}".').replace(
        "SCHEMA holdfast", f'SCHEMA "{schema}"'
    )
