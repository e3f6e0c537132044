"""What can go wrong between us and PostgreSQL, and the answer that is right (FAULTS 37–50).

A real server that is killed and restarted, a network that loses answers, a real pooler in between.
"""

import asyncio
import contextlib
import os
import re
import shutil
import socketserver
import subprocess
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from holdfast.core import events, log
from holdfast.core.log import Head, Record
from holdfast.errors import (
    Conflict,
    HoldfastError,
    InvalidInput,
    LeaseLost,
    ReadOnlyStore,
    SchemaMismatch,
    StorageFull,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    UnsafeStore,
)
from holdfast.store import sql
from holdfast.store.base import Append, ClaimFilter, Creation, NewRun, RowChange
from holdfast.store.postgres import PostgresStore, connections, timeline
from holdfast.store.postgres import store as postgres
from support.postgres import PostgresServer, free_port
from support.proxy import Proxy, says
from support.waiting import eventually

LEASE_US = 600_000_000
ANSWER_SECONDS = 60  # far more than anything here takes; only a hang meets it
PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")

Open = Callable[..., PostgresStore]


@pytest.fixture
def opened() -> Iterator[Open]:
    """Opens stores, which are closed after the test."""
    with contextlib.ExitStack() as stack:

        def make(dsn: str, **options: Any) -> PostgresStore:
            return stack.enter_context(contextlib.closing(PostgresStore(dsn, **options)))

        yield make


@pytest.fixture
def store(postgres_dsn: str, opened: Open) -> PostgresStore:
    return opened(postgres_dsn)


@pytest.fixture
def proxy(postgres_dsn: str) -> Iterator[Proxy]:
    with Proxy(postgres_dsn) as proxy:
        yield proxy


class Log:
    """One run in a store, and appends to its end."""

    def __init__(
        self, store: PostgresStore, run_id: str = "a", *, lease_us: int = LEASE_US
    ) -> None:
        self.store, self.run_id, self.epoch = store, run_id, 1
        created = events.RunCreated(run_id, "agent", events.NULL)
        self.head, records = log.seal(log.origin(run_id), [created], epoch=1, time=1)
        store.create(
            Creation(NewRun(run_id, "agent", "digest"), records, worker="w", lease_us=lease_us)
        ).wait()

    def next(self, text: str = "x", **options: Any) -> tuple[Head, Append]:
        head, records = sealed(self.head, text, self.epoch)
        return head, Append(self.run_id, self.head.seq, records, self.epoch, **options)

    def append(self, text: str = "x", **options: Any) -> None:
        head, work = self.next(text, **options)
        self.store.append(work)
        self.head = head

    def texts(self) -> list[str]:
        return texts(self.store, self.run_id)


def sealed(head: Head, text: str, epoch: int) -> tuple[Head, list[Record]]:
    return log.seal(head, [events.LogWritten(level="info", text=text)], epoch=epoch, time=1)


def texts(store: PostgresStore, run_id: str) -> list[str]:
    """What a run's log says, after its chain was checked."""
    verified = log.verify(run_id, log.origin(run_id), store.read(run_id))
    return [e.text for e in (r.event for r in verified) if isinstance(e, events.LogWritten)]


def admin(dsn: str, *statements: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def dbname(dsn: str) -> str:
    return urlsplit(dsn).path.lstrip("/")


def commits(message: bytes) -> bool:
    """Whether a client message is a COMMIT, and not one that only speaks of commits."""
    return message[:1] == b"P" and b"\0COMMIT\0" in message


# -- the server dies and comes back ------------------------------------------------------------


class Workers:
    """Threads that repeat something until told to stop; a fault is put in between by progress."""

    def __init__(self, *loops: Callable[[], None]) -> None:
        self._stop = threading.Event()
        self._progress = threading.Condition()
        self.counts = [0] * len(loops)
        self._pool = ThreadPoolExecutor(len(loops))
        self._ends = [self._pool.submit(self._go, i, loop) for i, loop in enumerate(loops)]

    def _go(self, i: int, loop: Callable[[], None]) -> None:
        while not self._stop.is_set():
            loop()
            with self._progress:
                self.counts[i] += 1
                self._progress.notify_all()

    def all_go_on_by(self, rounds: int) -> None:
        """Wait until each has finished so many more."""
        goals = [count + rounds for count in self.counts]

        def reached() -> bool:
            return all(c >= g for c, g in zip(self.counts, goals, strict=True)) or self.failed()

        with self._progress:
            assert self._progress.wait_for(reached, ANSWER_SECONDS), "the workers stand still"
        if self.failed():
            self.stop()

    def failed(self) -> bool:
        return any(end.done() for end in self._ends)

    def stop(self) -> None:
        """Wait for all; raises what one of them met."""
        self._stop.set()
        with self._pool:
            for end in self._ends:
                end.result(ANSWER_SECONDS)


@pytest.mark.parametrize("weak_commits", [False, True], ids=["default", "synchronous_commit=off"])
def test_what_was_acknowledged_is_there_once_after_kill_9(
    killable_postgres: PostgresServer, opened: Open, weak_commits: bool
) -> None:
    """FAULTS 37, 38, 40: also when the server's default is to acknowledge before it is on disk."""
    name = killable_postgres.create_database()
    if weak_commits:
        admin(killable_postgres.dsn(), f'ALTER DATABASE "{name}" SET synchronous_commit = off')
    store = opened(killable_postgres.dsn(name), patience=ANSWER_SECONDS)
    logs = [Log(store, f"run-{i}") for i in range(6)]
    acknowledged: list[list[str]] = [[] for _ in logs]

    def step(i: int) -> None:
        text = str(len(acknowledged[i]))
        # Every fifth append takes the way of those that change the row.
        change = RowChange(wake=True) if len(acknowledged[i]) % 5 == 4 else None
        logs[i].append(text, change=change)
        acknowledged[i].append(text)

    workers = Workers(*(lambda i=i: step(i) for i in range(len(logs))))
    for _ in range(3):
        workers.all_go_on_by(20)
        killable_postgres.kill9()
        killable_postgres.restart()
    workers.all_go_on_by(20)
    workers.stop()

    assert acknowledged == [one.texts() for one in logs]


def test_claims_and_leases_survive_fast_restarts(
    killable_postgres: PostgresServer, opened: Open
) -> None:
    """FAULTS 38, 53: no one loses a lease, and no epoch is given twice."""
    store = opened(
        killable_postgres.dsn(killable_postgres.create_database()), patience=ANSWER_SECONDS
    )
    held = [Log(store, f"held-{i}").run_id for i in range(5)]
    Log(store, "claimed", lease_us=0)
    epochs = [1]
    lost: set[str] = set()

    def claim() -> None:
        row = store.claim("claimed", worker="w", lease_us=LEASE_US)
        assert row is not None
        epochs.append(row.epoch)
        assert store.release("claimed", row.epoch)

    def renew() -> None:
        lost.update(store.renew([(run_id, 1) for run_id in held], lease_us=LEASE_US))

    workers = Workers(claim, renew)
    for _ in range(3):
        workers.all_go_on_by(10)
        killable_postgres.restart()
    workers.all_go_on_by(10)
    workers.stop()

    assert set() == lost
    assert sorted(set(epochs)) == epochs


def test_an_unavailable_server_is_named_and_reconnected_automatically(
    killable_postgres: PostgresServer, opened: Open
) -> None:
    """Patience has an end; the store does not have to be opened again."""
    store = opened(killable_postgres.dsn(killable_postgres.create_database()), patience=0.2)
    one = Log(store)
    killable_postgres.stop()

    with pytest.raises(StoreUnavailable):
        one.append()
    with pytest.raises(StoreUnavailable):
        store.read("a")
    killable_postgres.start()
    one.append("after")

    assert ["after"] == one.texts()


class _Echo(socketserver.BaseRequestHandler):
    """A server that does not speak the protocol of PostgreSQL."""

    def handle(self) -> None:
        while said := self.request.recv(1000):
            self.request.sendall(said)


def test_another_program_on_the_servers_port_is_treated_like_an_unavailable_server() -> None:
    """While a server restarts its port is free for others; no one knows yet that it will not come back."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Echo) as stranger:
        serving = threading.Thread(target=stranger.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        port = stranger.server_address[1]
        with pytest.raises(StoreUnavailable, match="invalid response") as caught:
            PostgresStore(f"postgresql://u:p@127.0.0.1:{port}/x", patience=0.1)
        stranger.shutdown()
        serving.join()

    assert not isinstance(caught.value, StoreRefused)


@pytest.mark.parametrize("immediate", [False, True])
def test_opening_a_store_while_its_server_restarts_succeeds_or_raises_store_unavailable(
    killable_postgres: PostgresServer, immediate: bool
) -> None:
    """Nothing else: a worker that is told anything else ends."""
    server = killable_postgres
    dsn = server.dsn(server.create_database())
    PostgresStore(dsn).close()
    over, again = threading.Event(), threading.Barrier(4)

    def open_and_use(patience: float) -> int:
        opened = 0
        again.wait(ANSWER_SECONDS)
        while not over.is_set():
            with contextlib.suppress(StoreUnavailable):
                store = PostgresStore(dsn, patience=patience)
                try:
                    store.renew([("nobody", 1)], lease_us=1)
                    store.claim_due(
                        worker="w", lease_us=1, limit=1, filters=[ClaimFilter("nobody")]
                    )
                finally:
                    store.close()
                opened += 1
        with contextlib.closing(PostgresStore(dsn)) as store:  # and now it is there
            return opened + len(store.runs())

    with ThreadPoolExecutor(3) as pool:
        workers = [pool.submit(open_and_use, patience) for patience in (0.02, 0.2, 2.0)]
        again.wait(ANSWER_SECONDS)
        for _ in range(2):
            server.stop(immediate=immediate)
            server.start()
        over.set()
        assert sum(worker.result(ANSWER_SECONDS) for worker in workers) > 0


# -- answers that are lost ---------------------------------------------------------------------


@pytest.fixture
def far(proxy: Proxy, opened: Open) -> PostgresStore:
    """A store behind a network that may fail."""
    return opened(proxy.dsn, patience=ANSWER_SECONDS)


@pytest.mark.parametrize(
    ("message", "options"),
    [
        (says("append_events"), {}),
        (commits, {"change": RowChange("waiting", waiting_for="a person")}),
        (commits, {"claims_key": "key"}),
    ],
    ids=["alone", "with a change", "with a key"],
)
def test_an_append_whose_answer_is_lost_is_there_once(
    proxy: Proxy, far: PostgresStore, message: Callable[[bytes], bool], options: dict[str, Any]
) -> None:
    """FAULTS 37: committed, never acknowledged; it is found by its hash and not written again."""
    one = Log(far)
    one.append("before")
    sprung = proxy.swallow_answer(message)
    one.append("lost", **options)

    assert sprung.is_set()
    assert ["before", "lost"] == one.texts()


def test_a_batch_whose_answer_is_lost_is_there_once(proxy: Proxy, far: PostgresStore) -> None:
    """The same for many runs in one statement, of which one does not fit."""
    logs = [Log(far, f"run-{i}") for i in range(8)]
    works = [one.next("lost")[1] for one in logs]
    stale = Append("run-0", -1, works[0].records[:0], epoch=1)

    async def all_at_once() -> list[BaseException | None]:
        tickets = [far.submit(work) for work in [*works, stale]]
        await asyncio.gather(*tickets, return_exceptions=True)
        return [ticket.error for ticket in tickets]

    sprung = proxy.swallow_answer(says("append_events"))
    outcome = asyncio.run(all_at_once())

    assert sprung.is_set()
    assert [type(None)] * 8 + [Conflict] == [type(error) for error in outcome]
    assert [["lost"]] * 8 == [one.texts() for one in logs]


def test_an_append_that_is_overtaken_before_it_is_asked_for_is_still_found(
    proxy: Proxy,
    far: PostgresStore,
    opened: Open,
    postgres_dsn: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Someone appends and takes the run over while the answer is lost: neither Conflict nor LeaseLost."""
    one = Log(far, lease_us=0)
    one.append("before")
    near = opened(postgres_dsn)
    head, work = one.next("lost")
    sprung = proxy.swallow_answer(says("append_events"))

    def meddle() -> None:
        assert sprung.wait(ANSWER_SECONDS)
        _, records = sealed(head, "signal", 1)
        near.append(Append("a", head.seq, records))
        assert near.claim("a", worker="other", lease_us=LEASE_US)

    with ThreadPoolExecutor(1) as pool:
        meddling, connect = pool.submit(meddle), far._route.connect

        def connect_late() -> connections.Connection:
            meddling.result(ANSWER_SECONDS)
            return connect()

        monkeypatch.setattr(far._route, "connect", connect_late)
        far.append(work)

    assert ["before", "lost", "signal"] == one.texts()


def test_a_run_whose_creation_was_not_answered_counts_as_created(
    proxy: Proxy, far: PostgresStore
) -> None:
    """FAULTS 1, 2: once, and its creator owns it."""
    sprung = proxy.swallow_answer(commits)
    created = events.RunCreated("a", "agent", events.NULL)
    _, records = log.seal(log.origin("a"), [created], epoch=1, time=1)
    row, new = (
        far.create(Creation(NewRun("a", "agent", "digest"), records, worker="w", lease_us=LEASE_US))
        .wait()
        .made
    )

    assert sprung.is_set()
    assert (True, "w", 1) == (new, row.owner, row.epoch)
    assert 1 == len(far.read("a"))


def test_a_claim_that_was_not_answered_is_ours(proxy: Proxy, far: PostgresStore) -> None:
    """It is recognised by its token; otherwise the run would lie idle until its lease ends."""
    Log(far, lease_us=0)
    Log(far, "b", lease_us=0)

    sprung = proxy.swallow_answer(commits)
    row = far.claim("a", worker="w", lease_us=LEASE_US)
    assert sprung.is_set()
    assert row is not None
    assert 2 == row.epoch

    sprung = proxy.swallow_answer(commits)
    due = far.claim_due(worker="w", lease_us=LEASE_US, limit=5, filters=[ClaimFilter("agent")])
    assert sprung.is_set()
    assert [("b", 2)] == [(row.id, row.epoch) for row in due]

    sprung = proxy.swallow_answer(commits)
    assert far.release("a", 2)
    assert sprung.is_set()


def test_a_deletion_that_was_not_answered_has_happened(proxy: Proxy, far: PostgresStore) -> None:
    """And is reported as deleted: True, as if the answer had come."""
    one = Log(far)
    one.append(change=RowChange("completed"))
    sprung = proxy.swallow_answer(commits)

    assert far.delete("a")
    assert sprung.is_set()
    assert None is far.get("a")


def test_a_tool_transaction_whose_commit_was_not_answered_is_looked_up(
    proxy: Proxy, far: PostgresStore, postgres_dsn: str
) -> None:
    """FAULTS 9: effect and receipt are both there, once, and the tool gets that as its answer."""
    admin(postgres_dsn, "CREATE TABLE effects (n int)")
    one = Log(far)
    _, work = one.next("receipt")
    with far.open_append("a", 1) as opened:
        opened.tx.execute("INSERT INTO effects VALUES (%s)", (1,))
        sprung = proxy.swallow_answer(commits)
        opened.commit(work)

    assert sprung.is_set()
    assert ["receipt"] == one.texts()
    with psycopg.connect(postgres_dsn) as connection:
        assert [(1,)] == connection.execute("SELECT n FROM effects").fetchall()


def test_a_tool_transaction_that_breaks_before_its_commit_leaves_nothing(
    proxy: Proxy, far: PostgresStore, postgres_dsn: str
) -> None:
    """StoreUnavailable, no effect and no receipt: the tool may run again."""
    admin(postgres_dsn, "CREATE TABLE effects (n int)")
    one = Log(far)
    _, work = one.next("receipt")

    def use_tool() -> None:
        with far.open_append("a", 1) as opened:
            opened.tx.execute("INSERT INTO effects VALUES (%s)", (1,))
            proxy.cut()
            opened.commit(work)

    with pytest.raises(StoreUnavailable):
        use_tool()

    assert [] == one.texts()
    with psycopg.connect(postgres_dsn) as connection:
        assert [] == connection.execute("SELECT n FROM effects").fetchall()


def test_connections_that_were_cut_while_idle_are_replaced_unseen(
    proxy: Proxy, far: PostgresStore
) -> None:
    """Nothing is lost and nothing is there twice."""
    one = Log(far)
    for n in range(5):
        proxy.cut()
        one.append(str(n))
        proxy.cut()
        assert set() == far.renew([("a", 1)], lease_us=LEASE_US)

    assert ["0", "1", "2", "3", "4"] == one.texts()


def test_a_network_that_swallows_everything_ends_the_wait(
    proxy: Proxy, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULTS 44: TCP stays up and no answer comes; a typed error, and at most one event later."""
    monkeypatch.setattr(connections, "ANSWER_SECONDS_MAX", 2.0)
    store = opened(f"{proxy.dsn}?connect_timeout=2", patience=0.5)
    one = Log(store)
    proxy.black_hole()

    with pytest.raises(StoreUnavailable):
        one.append("once")
    proxy.heal()

    def appended() -> bool:
        with contextlib.suppress(StoreUnavailable):  # a store with so little patience
            with contextlib.suppress(Conflict):
                # What was under way may arrive now, or have arrived.
                one.append("once")
            return True
        return False

    eventually(appended)
    assert ["once"] == one.texts()


# -- several at once ---------------------------------------------------------------------------


def test_of_two_stores_that_claim_one_run_one_wins_each_time(
    postgres_dsn: str, opened: Open
) -> None:
    """FAULTS 50, 57: 300 races."""
    stores = [opened(postgres_dsn), opened(postgres_dsn)]
    Log(stores[0], lease_us=0)
    start = threading.Barrier(2, timeout=ANSWER_SECONDS)
    epochs = []

    def race(i: int) -> int:
        start.wait()
        row = stores[i].claim("a", worker=f"w{i}", lease_us=LEASE_US)
        return row.epoch if row else 0

    with ThreadPoolExecutor(2) as pool:
        for _ in range(300):
            first, second = pool.map(race, (0, 1))
            epochs.append((min(first, second), max(first, second)))
            assert stores[0].release("a", max(first, second))

    assert [(0, epoch) for epoch in range(2, 302)] == epochs


def test_nothing_is_written_under_an_old_epoch_once_a_claim_has_returned(
    postgres_dsn: str, opened: Open
) -> None:
    """FAULTS 51, invariant 10: the fence holds also while the claim is under way."""
    zombie, other = opened(postgres_dsn), opened(postgres_dsn)
    refused = 0
    for n in range(40):
        one = Log(zombie, f"run-{n}", lease_us=0)
        start = threading.Barrier(2, timeout=ANSWER_SECONDS)

        def write(one: Log = one, start: threading.Barrier = start) -> None:
            start.wait()
            while True:
                one.append()

        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write)
            start.wait()
            row = other.claim(one.run_id, worker="w", lease_us=LEASE_US)
            seen = len(other.read(one.run_id))
            refused += isinstance(writing.exception(ANSWER_SECONDS), LeaseLost)

        assert row is not None
        assert seen == len(other.read(one.run_id))

    assert 40 == refused


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_of_appends_that_race_for_one_place_one_is_written(
    postgres_dsn: str, opened: Open, isolation: str
) -> None:
    """The others get Conflict, whatever isolation the server prefers (FAULTS 41)."""
    setting = f"default_transaction_isolation = '{isolation}'"
    admin(postgres_dsn, f'ALTER DATABASE "{dbname(postgres_dsn)}" SET {setting}')
    stores = [opened(postgres_dsn) for _ in range(4)]
    one = Log(stores[0])
    start = threading.Barrier(4, timeout=ANSWER_SECONDS)

    def race(i: int, n: int) -> bool:
        _, records = sealed(one.head, f"{n} {i}", 1)
        start.wait()
        try:
            stores[i].append(Append("a", one.head.seq, records))
        except Conflict:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        for n in range(25):
            assert 1 == sum(pool.map(race, range(4), [n] * 4))
            last = stores[0].read("a")[-1]
            one.head = Head(last.seq, last.hash, last.time)

    assert [str(n) for n in range(25)] == [text.split()[0] for text in one.texts()]


def test_a_batch_that_is_chosen_as_victim_of_a_deadlock_is_sent_again(
    store: PostgresStore, postgres_dsn: str
) -> None:
    """FAULTS 41: someone outside locks our rows in another order; both get through."""
    logs = [Log(store, "a"), Log(store, "b")]
    lock = "SELECT 1 FROM holdfast.runs WHERE id = %s FOR UPDATE"

    async def both() -> None:
        await asyncio.gather(*(store.submit(one.next("x")[1]) for one in logs))

    with psycopg.connect(postgres_dsn) as meddler, ThreadPoolExecutor(1) as pool:
        meddler.execute("SET deadlock_timeout = '60s'")  # so that ours is the one to be ended
        meddler.execute(lock, ("b",))
        writing = pool.submit(asyncio.run, both())
        with psycopg.connect(postgres_dsn, autocommit=True) as onlooker:
            waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
            eventually(lambda: onlooker.execute(waiting).fetchone() == (1,))
        meddler.execute(lock, ("a",))
        meddler.commit()
        writing.result(ANSWER_SECONDS)

    assert [["x"], ["x"]] == [one.texts() for one in logs]


def test_a_locked_run_delays_no_other_run(store: PostgresStore, postgres_dsn: str) -> None:
    """FAULTS 42: a typed error for that run; the rest of its batch is written."""
    admin(postgres_dsn, "ALTER ROUTINE holdfast.append_events SET lock_timeout = '100ms'")
    logs = [Log(store, "a"), Log(store, "b"), Log(store, "c")]

    async def all_three() -> list[BaseException | None]:
        tickets = [store.submit(one.next("x")[1]) for one in logs]
        await asyncio.gather(*tickets, return_exceptions=True)
        return [ticket.error for ticket in tickets]

    with psycopg.connect(postgres_dsn) as meddler:
        meddler.execute("SELECT 1 FROM holdfast.runs WHERE id = 'b' FOR UPDATE")
        outcome = asyncio.run(all_three())
        renewing = [(one.run_id, 1) for one in (logs[0], logs[2])]
        assert set() == store.renew(renewing, lease_us=LEASE_US)

    assert [type(None), StoreUnavailable, type(None)] == [type(error) for error in outcome]
    assert [["x"], [], ["x"]] == [one.texts() for one in logs]


def test_an_event_that_the_server_refuses_fails_alone(
    store: PostgresStore, postgres_dsn: str
) -> None:
    """The batch is sent again one by one; and a full disk is called by its name."""
    logs = [Log(store, "a"), Log(store, "b")]
    admin(
        postgres_dsn,
        """CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
           BEGIN
             IF convert_from(NEW.data, 'UTF8') LIKE '%bad%' THEN
               RAISE EXCEPTION 'not this one' USING ERRCODE = '22000';
             ELSIF convert_from(NEW.data, 'UTF8') LIKE '%full%' THEN
               RAISE EXCEPTION 'no space left on device' USING ERRCODE = '53100';
             END IF;
             RETURN NEW;
           END $$""",
        "CREATE TRIGGER refuse BEFORE INSERT ON holdfast.events FOR EACH ROW EXECUTE FUNCTION refuse()",
    )

    async def both() -> list[BaseException | None]:
        tickets = [store.submit(logs[i].next(["good", "bad"][i])[1]) for i in range(2)]
        await asyncio.gather(*tickets, return_exceptions=True)
        return [ticket.error for ticket in tickets]

    outcome = asyncio.run(both())

    assert [type(None), StoreError] == [type(error) for error in outcome]
    assert [["good"], []] == [one.texts() for one in logs]
    with pytest.raises(StorageFull):
        logs[1].append("full")


def test_closing_leaves_no_connection_of_a_call_in_progress(postgres_dsn: str) -> None:
    """As of a tool that outlived its worker's time of grace."""
    store = PostgresStore(postgres_dsn)
    with store._pool.link() as busy:
        busy.run(lambda db, _: db.rows("SELECT 1"))
        store.close()
    with psycopg.connect(postgres_dsn, autocommit=True) as db:
        ask = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        eventually(lambda: db.execute(ask).fetchone() == (0,), "the end of every connection")


def test_leases_and_appends_need_no_place_in_the_pool(postgres_dsn: str, opened: Open) -> None:
    """FAULTS 43: a tool holds the only connection of the pool; the lease is renewed anyway."""
    store = opened(postgres_dsn, pool_size=1, patience=0.1)
    one, other = Log(store), Log(store, "b")
    _, work = one.next("receipt")
    with store.open_append("a", 1) as opened_append:
        assert set() == store.renew([("a", 1), ("b", 1)], lease_us=LEASE_US)
        other.append("meanwhile")
        with pytest.raises(StoreUnavailable, match="pool_size"):
            store.get("a")
        opened_append.commit(work)

    assert [["receipt"], ["meanwhile"]] == [one.texts(), other.texts()]


def test_stores_that_open_one_empty_database_at_once_all_work(
    postgres_dsn: str, opened: Open
) -> None:
    """One migrates, the others wait and find it done."""
    with ThreadPoolExecutor(4) as pool:
        stores = list(pool.map(lambda _: opened(postgres_dsn), range(4)))
    for i, store in enumerate(stores):
        Log(store, f"run-{i}").append()

    assert 4 == len(stores[0].runs())


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # forking is the point here
def test_a_forked_child_has_connections_of_its_own(store: PostgresStore) -> None:
    """FAULTS 33: the child writes, and the parent continues as if nothing had happened."""
    one, other = Log(store), Log(store, "b")
    one.append("parent")
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            other.append("child")
            store.close()
            os._exit(0)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    one.append("parent again")

    assert 0 == status
    assert (["parent", "parent again"], ["child"]) == (one.texts(), other.texts())


# -- being woken -------------------------------------------------------------------------------


@pytest.fixture
def no_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "POLL_SECONDS_MIN", 10.0 * ANSWER_SECONDS)
    monkeypatch.setattr(postgres, "POLL_SECONDS_MAX", 10.0 * ANSWER_SECONDS)


@pytest.mark.usefixtures("no_polling")
def test_an_event_from_outside_wakes_a_waiter_in_another_process(
    postgres_dsn: str, opened: Open
) -> None:
    """By NOTIFY: polling is off here, so nothing else could wake it in time."""
    near, far = opened(postgres_dsn), opened(postgres_dsn)
    one = Log(near)
    _, records = sealed(one.head, "signal", 1)
    listening = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"

    with ThreadPoolExecutor(1) as pool, psycopg.connect(postgres_dsn, autocommit=True) as onlooker:
        waiting = pool.submit(far.wait, "a", after=0, timeout=ANSWER_SECONDS)
        eventually(lambda: onlooker.execute(listening).fetchone() == (1,))
        sent = time.monotonic()
        near.append(Append("a", 0, records))

        assert waiting.result(ANSWER_SECONDS)
        # It takes a few milliseconds; the rest is for slow machines.
        assert time.monotonic() - sent < ANSWER_SECONDS / 2


@pytest.mark.usefixtures("no_polling")
def test_a_new_or_released_run_wakes_an_idle_worker(postgres_dsn: str, opened: Open) -> None:
    """Of another process (NOTIFY) and of the same one."""
    near, far = opened(postgres_dsn), opened(postgres_dsn)
    Log(near)
    listening = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"

    with ThreadPoolExecutor(2) as pool, psycopg.connect(postgres_dsn, autocommit=True) as onlooker:
        waiting = [
            pool.submit(s.wait_due, [ClaimFilter("agent")], timeout=ANSWER_SECONDS)
            for s in (near, far)
        ]
        eventually(lambda: onlooker.execute(listening).fetchone() == (2,))
        assert near.release("a", 1)

        assert [True, True] == [one.result(ANSWER_SECONDS) for one in waiting]


# -- behind a pooler ---------------------------------------------------------------------------


@pytest.fixture
def pooled_dsn(postgres_dsn: str) -> Iterator[str]:
    """The database through PgBouncer in transaction mode, with fewer connections than we use."""
    if PGBOUNCER is None:
        pytest.skip("pgbouncer is not installed")
    url = urlsplit(postgres_dsn)
    port = free_port()
    folder = Path(tempfile.mkdtemp(prefix="hf-pgbouncer-"))
    folder.chmod(0o755)  # as root it becomes someone else, who has to get here
    (folder / "ini").write_text(
        f"""[databases]
* = host={url.hostname} port={url.port} user={url.username} password={url.password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 2
"""
    )
    user = ["-u", "nobody"] if os.geteuid() == 0 else []
    process = subprocess.Popen(
        [PGBOUNCER, "-q", *user, folder / "ini"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    dsn = urlunsplit(url._replace(netloc=f"{url.username}@127.0.0.1:{port}"))
    try:

        def answers() -> bool:
            assert process.poll() is None, "pgbouncer has ended"
            with contextlib.suppress(psycopg.OperationalError), psycopg.connect(dsn):
                return True
            return False

        eventually(answers)
        yield dsn
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder)


def test_everything_works_behind_a_transaction_pooler(pooled_dsn: str, opened: Open) -> None:
    """FAULTS 45: appends, leases, tools and waiting, with two server connections for two stores."""
    stores = [opened(pooled_dsn), opened(pooled_dsn)]
    logs = [Log(stores[i % 2], f"run-{i}") for i in range(6)]

    def work(one: Log) -> None:
        store = one.store
        for n in range(20):
            one.append(str(n))
            assert set() == store.renew([(one.run_id, one.epoch)], lease_us=LEASE_US)
        _, receipt = one.next("receipt", change=RowChange("waiting", due_at=0))
        with store.open_append(one.run_id, one.epoch) as ending:
            ending.tx.execute("SELECT 1")
            ending.commit(receipt)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, logs))
    assert stores[0].wait("run-1", after=20, timeout=ANSWER_SECONDS)
    wanted = [ClaimFilter("agent")]
    assert stores[0].wait_due(wanted, timeout=ANSWER_SECONDS)
    taken = [
        store.claim_due(worker="w", lease_us=LEASE_US, limit=3, filters=wanted) for store in stores
    ]

    assert [[*map(str, range(20)), "receipt"]] * 6 == [one.texts() for one in logs]
    assert [2] * 6 == [row.epoch for rows in taken for row in rows]


# -- schemas, rights, secrets ------------------------------------------------------------------


def test_a_newer_schema_is_refused_and_left_alone(postgres_dsn: str, opened: Open) -> None:
    """FAULTS 36."""
    opened(postgres_dsn).close()
    admin(postgres_dsn, "INSERT INTO holdfast.schema_steps VALUES (99, 'future', 'x', 0)")

    with pytest.raises(SchemaMismatch, match="update Holdfast"):
        PostgresStore(postgres_dsn)


def test_a_schema_owned_by_another_role_is_refused(postgres_dsn: str) -> None:
    """Its tables are not ours to touch."""
    admin(postgres_dsn, "CREATE SCHEMA holdfast", "CREATE TABLE holdfast.runs (id int)")

    with pytest.raises(SchemaMismatch, match="not Holdfast's"):
        PostgresStore(postgres_dsn)


def test_two_schemas_of_one_database_do_not_meet(postgres_dsn: str, opened: Open) -> None:
    """Nor when the other name has to be quoted."""
    Log(opened(postgres_dsn)).append("one")
    Log(opened(postgres_dsn, schema="order")).append("two")

    assert ["one"] == texts(opened(postgres_dsn), "a")
    assert ["two"] == texts(opened(postgres_dsn, schema="order"), "a")
    with pytest.raises(InvalidInput):
        PostgresStore(postgres_dsn, schema='x"; DROP SCHEMA holdfast; --')


@pytest.fixture
def restricted(postgres_dsn: str) -> Iterator[tuple[str, str]]:
    """A role without rights: its DSN and its name."""
    role = f"hf_restricted_{os.getpid()}"
    admin(postgres_dsn, f"CREATE ROLE {role} LOGIN PASSWORD 'limited'")
    url = urlsplit(postgres_dsn)
    yield urlunsplit(url._replace(netloc=f"{role}:limited@{url.hostname}:{url.port}")), role
    admin(postgres_dsn, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_a_role_without_rights_gets_an_error_that_lists_what_it_needs(
    restricted: tuple[str, str], postgres_dsn: str, opened: Open
) -> None:
    """FAULTS 49: at the start, whether there is a schema already or not."""
    dsn, role = restricted
    with pytest.raises(SchemaMismatch, match=role):
        PostgresStore(dsn)
    opened(postgres_dsn)
    with pytest.raises(SchemaMismatch, match="GRANT"):
        PostgresStore(dsn)


def test_a_role_that_may_only_read_can_look_and_not_write(
    restricted: tuple[str, str], postgres_dsn: str, opened: Open
) -> None:
    """A dashboard needs no more."""
    dsn, role = restricted
    one = Log(opened(postgres_dsn))
    one.append("seen")
    admin(
        postgres_dsn,
        f"GRANT USAGE ON SCHEMA holdfast TO {role}",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA holdfast TO {role}",
    )
    looking = opened(dsn)

    assert ["seen"] == texts(looking, "a")
    with pytest.raises(ReadOnlyStore):
        looking.append(one.next()[1])
    with pytest.raises(ReadOnlyStore):
        looking.claim("a", worker="w", lease_us=1)


def test_a_read_only_database_is_called_so(postgres_dsn: str, opened: Open) -> None:
    """FAULTS 46: a standby answers in the same way."""
    opened(postgres_dsn).close()
    admin(
        postgres_dsn,
        f'ALTER DATABASE "{dbname(postgres_dsn)}" SET default_transaction_read_only = on',
    )
    store = opened(postgres_dsn)

    assert [] == store.runs()
    with pytest.raises(ReadOnlyStore):
        Log(store)


def test_a_server_without_fsync_is_refused_unless_it_is_named(opened: Open) -> None:
    """FAULTS 40: it could lose everything; `doctor` shows it."""
    with PostgresServer(fsync=False) as server:
        with pytest.raises(UnsafeStore):
            PostgresStore(server.dsn())
        store = opened(server.dsn(), require_fsync=False)

        assert ["fsync"] == [finding.name for finding in store.examine() if not finding.ok]


@pytest.mark.parametrize("path", ["evil", "evil, pg_catalog"])
def test_a_function_of_another_role_on_the_search_path_is_never_called(
    path: str, postgres_dsn: str, opened: Open
) -> None:
    """FAULTS 49: another search_path, with tables and functions that bear our names; also in front of the
    system's own, as tools do that freeze time for tests."""
    admin(
        postgres_dsn,
        "CREATE SCHEMA evil",
        "CREATE TABLE evil.runs (id text)",
        "CREATE FUNCTION evil.coalesce(bigint, bigint) RETURNS bigint LANGUAGE sql AS 'SELECT 0::bigint'",
        "CREATE FUNCTION evil.pg_notify(text, text) RETURNS void LANGUAGE sql AS 'SELECT 1/0'",
        "CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS "
        "$$SELECT '1999-01-01'::timestamptz$$",
        "CREATE FUNCTION evil.unnest(text[]) RETURNS SETOF text LANGUAGE sql AS $$SELECT 'x' WHERE false$$",
        "CREATE FUNCTION evil.current_setting(text) RETURNS text LANGUAGE sql AS $$SELECT 'off'$$",
        "CREATE FUNCTION evil.pg_is_in_recovery() RETURNS boolean LANGUAGE sql AS 'SELECT true'",
        f'ALTER DATABASE "{dbname(postgres_dsn)}" SET search_path = {path}',
    )
    store = opened(postgres_dsn)
    before = time.time()
    one = Log(store)
    one.append("x", change=RowChange("waiting"))

    assert ["x"] == one.texts()
    assert store.now() / 1_000_000 > before - 60
    row = store.get(one.run_id)
    assert row is not None and row.updated_at / 1_000_000 > before - 60
    assert [] == [finding.name for finding in store.examine() if not finding.ok]


def test_every_function_of_the_system_is_called_by_its_full_name(postgres_dsn: str) -> None:
    """But for what is syntax: also `unnest` of several arrays, which the parser itself looks up there."""
    with psycopg.connect(postgres_dsn) as db:
        known = {name for (name,) in db.execute("SELECT proname FROM pg_catalog.pg_proc")}
    syntax = {"coalesce", "greatest", "least", "extract", "unnest"}
    texts = [
        *sql.queries("postgres").values(),
        connections._TRANSACTION_SETTINGS,
        connections._LOOK_AROUND,
        timeline._TIMELINE,
    ]
    called = {name for text in texts for name in re.findall(r"(?<![.\w])([a-z_0-9]+)\(", text)}

    assert set() == (called & known) - syntax


@pytest.mark.parametrize(
    "broken", ["postgresql://u:s3cr3t-canary@127.0.0.1:bad/x", "host=x s3cr3t-canary"]
)
def test_a_url_that_cannot_be_read_is_not_repeated(broken: str) -> None:
    """FAULTS 106: it may hold a password."""
    with pytest.raises(InvalidInput) as caught:
        PostgresStore(broken)

    assert "s3cr3t" not in "".join(traceback.format_exception(caught.value))


def test_no_password_is_in_errors_or_in_the_url(
    killable_postgres: PostgresServer, opened: Open
) -> None:
    """FAULTS 106: neither when it is wrong nor when the server is away."""
    dsn = killable_postgres.dsn(killable_postgres.create_database())
    password = urlsplit(dsn).password
    assert password
    said: list[HoldfastError] = []
    with pytest.raises(StoreUnavailable) as caught:
        PostgresStore(dsn.replace(password, f"not-{password}"))
    said.append(caught.value)
    store = opened(dsn, patience=0.1)
    killable_postgres.stop()
    with pytest.raises(StoreUnavailable) as caught:
        store.runs()
    said.append(caught.value)
    texts = ["".join(traceback.format_exception(error)) for error in said]

    assert [] == [text for text in [store.url, *texts] if password in text]
    assert [] == [finding for finding in texts if "postgresql://" not in finding]


def test_the_clock_is_not_set_back_by_an_answer_that_took_less_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A timer that was over would be recorded as ended before its time."""
    here, clock = [1_000_000], connections.ServerClock()
    monkeypatch.setattr(connections, "_elapsed_ns", lambda: here[0] * 1000)

    def ask(server: int, took: int) -> None:
        with clock.reading() as set_clock:
            here[0] += took
            set_clock(server)

    ask(50_000_000, took=300)
    slow = clock.now()
    ask(50_000_005, took=10)
    assert slow == clock.now()  # it stands still, until its time has come
    here[0] += 300
    assert slow + 15 == clock.now()
    ask(10_000_000, took=10)  # the server's own clock was set back
    assert 10_000_010 == clock.now()
