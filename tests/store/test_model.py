"""Both stores against a model in plain Python: whatever is done, in whatever order, they agree.

The model is the store's contract in fifty lines without a database. hypothesis looks for a sequence
of operations after which a store says something else; threads and reopening are operations too.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from holdfast.core.log import Blob, Head, Record, origin, verify
from holdfast.errors import Conflict, InputConflict, KeyTaken, LeaseLost, NotFound
from holdfast.store.base import (
    MICROSECONDS,
    PRIORITY_US,
    TERMINAL_STATUSES,
    Append,
    ClaimFilter,
    Creation,
    Filter,
    NewRun,
    RowChange,
    RunRow,
    Snapshot,
    Store,
)
from holdfast.store.sqlite import SQLiteStore
from holdfast.testing import ManualClock
from holdfast.testing.store_suite.bench import counted, sealed, together

LEASE_SECONDS = 10
LEASE_US = LEASE_SECONDS * MICROSECONDS
IDS = ("a", "b", "c", "d")
STATUSES = ("waiting", "pending", "paused", "quarantined", *TERMINAL_STATUSES)

ids = st.sampled_from(IDS)
AGENTS = ("x", "y")
agents = st.sampled_from(AGENTS)


# -- the model ---------------------------------------------------------------------------------


@dataclasses.dataclass
class Run:
    """What a store should know of one run."""

    id: str
    agent: str
    digest: str
    priority: int
    status: str
    due_at: int | None
    epoch: int
    owner: str
    claims: int
    claimed_seq: int
    log: list[Record]
    waiting_for: str = ""
    blobs: dict[str, bytes] = dataclasses.field(default_factory=dict)
    snapshots: list[int] = dataclasses.field(default_factory=list)

    @property
    def head(self) -> Head:
        last = self.log[-1]
        return Head(last.seq, last.hash, last.time)

    def is_free(self, now: int) -> bool:
        expired = self.status == "running" and self.due_at is not None and self.due_at <= now
        return self.status in ("pending", "waiting") or expired

    def is_due(self, now: int) -> bool:
        return self.is_free(now) and self.due_at is not None and self.due_at <= now

    def claim(self, worker: str, now: int) -> None:
        grown = self.head.seq > self.claimed_seq
        self.claims = 1 if grown else self.claims + 1
        self.claimed_seq = self.head.seq
        self.epoch += 1
        self.owner, self.status, self.due_at = worker, "running", now + LEASE_US
        self.waiting_for = ""

    def settle(self, change: RowChange) -> None:
        if change.status is not None:
            self.status, self.due_at = change.status, change.due_at
            self.waiting_for, self.owner, self.claims = change.waiting_for, "", 0

    def wake(self, now: int) -> None:
        if self.status in ("waiting", "pending"):
            self.status, self.due_at = "pending", now

    def told(self) -> tuple[Any, ...]:
        return (
            self.id,
            self.agent,
            self.digest,
            self.priority,
            self.status,
            self.due_at,
            self.epoch,
            self.owner,
            self.claims,
            self.waiting_for,
        )


def told(row: RunRow) -> tuple[Any, ...]:
    """What a row says, in the model's order."""
    return (
        row.id,
        row.agent,
        row.input_digest,
        row.priority,
        row.status,
        row.due_at,
        row.epoch,
        row.owner,
        row.claims,
        row.waiting_for,
    )


# -- the machine -------------------------------------------------------------------------------


class StoreMachine(RuleBasedStateMachine):
    """Does the same to a store and to the model, and compares."""

    def __init__(
        self, make: Callable[[Callable[[], int]], tuple[Store, Callable[[], Store]]]
    ) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.store, self.reopen = make(self.clock.now)
        self.runs: dict[str, Run] = {}  # in the order of creation
        self.keys: dict[str, tuple[str, int]] = {}

    def teardown(self) -> None:
        try:
            for run_id in IDS:
                self.the_log_is_right(run_id)
        finally:
            self.store.close()

    def the_log_is_right(self, run_id: str) -> None:
        run = self.runs.get(run_id)
        records = self.store.read(run_id)
        assert (run.log if run else []) == list(verify(run_id, origin(run_id), records))
        for name in ("h0", "h1"):
            assert (run.blobs.get(name) if run else None) == self.store.blob(run_id, name)
        newest = self.store.snapshots.newest(run_id)
        assert (max(run.snapshots, default=None) if run else None) == (newest and newest.seq)

    @invariant()
    def the_rows_are_right(self) -> None:
        rows = self.store.runs(limit=100)
        assert [run.told() for run in reversed(self.runs.values())] == [told(row) for row in rows]
        assert sorted((row.cursor for row in rows), reverse=True) == [row.cursor for row in rows]

    @invariant()
    def the_next_due_time_is_right(self) -> None:
        due = [run.due_at for run in self.runs.values() if run.due_at is not None]
        assert min(due, default=None) == min(
            (kind.due_at for kind in self.store.kinds()), default=None
        )

    # -- one caller ----------------------------------------------------------------------------

    @rule(
        run_id=ids,
        agent=agents,
        digest=st.sampled_from("12"),
        worker=st.sampled_from(("", "w")),
        priority=st.integers(-1, 1),
        count=st.integers(1, 3),
    )
    def create(
        self, run_id: str, agent: str, digest: str, worker: str, priority: int, count: int
    ) -> None:
        now = self.clock.now()
        records = sealed(origin(run_id), count, epoch=1 if worker else 0, time=now)
        new = NewRun(run_id, agent, digest, priority=priority)

        def create() -> tuple[RunRow, bool]:
            creation = Creation(new, records, worker=worker, lease_us=LEASE_US)
            return self.store.create(creation).wait().made

        known = self.runs.get(run_id)
        if known is None:
            row, created = create()
            self.runs[run_id] = Run(
                run_id,
                agent,
                digest,
                priority,
                "running" if worker else "pending",
                now + LEASE_US if worker else now,
                1 if worker else 0,
                worker,
                1 if worker else 0,
                count - 1 if worker else -1,
                records,
            )
            assert created
            assert self.runs[run_id].told() == told(row)
        elif (known.agent, known.digest) == (agent, digest):
            row, created = create()
            assert (False, known.told()) == (created, told(row))
        else:
            with pytest.raises(InputConflict):
                create()

    @rule(
        run_id=ids,
        count=st.integers(0, 3),
        epoch=st.sampled_from(("mine", "outside", "old", "new")),
        off_by=st.sampled_from((0, 0, 0, -1, 1)),
        key=st.sampled_from(("", "", "k1", "k2")),
        blob=st.sampled_from(((), (Blob("h0", b"0"),), (Blob("h0", b"0"), Blob("h1", b"\0")))),
        status=st.sampled_from((None, None, *STATUSES)),
        due_in=st.none() | st.integers(-5, 15),
        wake=st.booleans(),
        wakes=st.lists(ids, max_size=2, unique=True),
    )
    def append(
        self,
        run_id: str,
        count: int,
        epoch: str,
        off_by: int,
        key: str,
        blob: tuple[Blob, ...],
        status: str | None,
        due_in: int | None,
        wake: bool,
        wakes: list[str],
    ) -> None:
        now = self.clock.now()
        run = self.runs.get(run_id)
        head = run.head if run else origin(run_id)
        head = msgspec.structs.replace(head, seq=head.seq + off_by)
        number = {"mine": 0, "old": -1, "new": 1}.get(epoch)
        fence = None if number is None else max(0, (run.epoch if run else 1) + number)
        due_at = None if due_in is None else now + due_in * MICROSECONDS
        if status == "pending" and due_at is None:
            due_at = now
        if status not in ("pending", "waiting"):
            due_at = None
        change = RowChange(status, due_at, "a sign" if status else "", wake, tuple(wakes))
        records = sealed(head, count, epoch=fence or 0, time=now)
        claims_key = key if count else ""
        send = partial(
            self.store.append, Append(run_id, head.seq, records, fence, change, blob, claims_key)
        )

        if run is None:
            with pytest.raises(NotFound):
                send()
        elif fence is not None and fence != run.epoch:
            with pytest.raises(LeaseLost):
                send()
        elif off_by:
            with pytest.raises(Conflict):
                send()
        elif claims_key in self.keys:
            with pytest.raises(KeyTaken) as taken:
                send()
            assert self.keys[claims_key] == (taken.value.run_id, taken.value.seq)
        else:
            send()
            run.log.extend(records)
            run.blobs.update({b.hash: b.data for b in blob})
            if claims_key:
                self.keys[claims_key] = (run_id, run.head.seq)
            run.settle(change)
            if wake:
                run.wake(now)
            for other in wakes:
                if other in self.runs:
                    self.runs[other].wake(now)

    @rule(run_id=ids)
    def claim(self, run_id: str) -> None:
        row = self.store.claim(run_id, worker="c", lease_us=LEASE_US)
        run = self.runs.get(run_id)
        if run is None or not run.is_free(self.clock.now()):
            assert row is None
        else:
            run.claim("c", self.clock.now())
            assert row is not None
            assert run.told() == told(row)

    @rule(limit=st.integers(0, 5), agents=st.just(AGENTS) | st.lists(agents, unique=True))
    def claim_due(self, limit: int, agents: Sequence[str]) -> None:
        now = self.clock.now()
        wanted = [ClaimFilter(agent) for agent in agents]
        rows = self.store.claim_due(worker="d", lease_us=LEASE_US, limit=limit, filters=wanted)
        due = {
            run.id: (run.due_at or 0) - run.priority * PRIORITY_US
            for run in self.runs.values()
            if run.is_due(now) and run.agent in agents
        }
        # Equally urgent runs may come in any order.
        assert sorted(due.values())[:limit] == [due[row.id] for row in rows]
        for row in rows:
            self.runs[row.id].claim("d", now)
            assert self.runs[row.id].told() == told(row)

    @rule(old=st.booleans())
    def renew(self, old: bool) -> None:
        now = self.clock.now()
        held = [(run.id, max(0, run.epoch - old)) for run in self.runs.values()] + [("nobody", 1)]
        lost = {"nobody"}
        for run_id, epoch in held[:-1]:
            run = self.runs[run_id]
            if run.status == "running" and (run.due_at or 0) > now and run.epoch == epoch:
                run.due_at = now + LEASE_US
            else:
                lost.add(run_id)

        assert lost == self.store.renew(held, lease_us=LEASE_US)

    @rule(run_id=ids, old=st.booleans())
    def release(self, run_id: str, old: bool) -> None:
        run = self.runs.get(run_id)
        epoch = max(0, run.epoch - old) if run else 1
        mine = run is not None and run.status == "running" and run.epoch == epoch
        assert mine == self.store.release(run_id, epoch)
        if run is not None and mine:
            run.status, run.owner, run.due_at = "pending", "", self.clock.now()
            run.claims = max(0, run.claims - 1)

    @rule(seconds=st.sampled_from((0.000001, 1, LEASE_SECONDS - 1, LEASE_SECONDS, 100)))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(run_id=ids, seq=st.integers(0, 9), keep=st.integers(1, 3))
    def save_snapshot(self, run_id: str, seq: int, keep: int) -> None:
        save = partial(
            self.store.snapshots.save, run_id, Snapshot(seq, b"h", "v", 1, b"s"), keep=keep
        )
        run = self.runs.get(run_id)
        if run is None:
            with pytest.raises(NotFound):
                save()
            return
        save()
        run.snapshots = sorted({*run.snapshots, seq})[-keep:]
        for at_most in (0, 4, 8):
            found = self.store.snapshots.newest(run_id, at_most=at_most)
            best = max((s for s in run.snapshots if s <= at_most), default=None)
            assert best == (found.seq if found else None)

    @rule(run_id=ids)
    def delete(self, run_id: str) -> None:
        run = self.runs.get(run_id)
        ended = run is not None and run.status in TERMINAL_STATUSES
        assert ended == self.store.delete(run_id)
        if ended:
            del self.runs[run_id]
            self.keys = {key: owner for key, owner in self.keys.items() if owner[0] != run_id}

    # -- looking -------------------------------------------------------------------------------

    @rule(run_id=ids)
    def look(self, run_id: str) -> None:
        run = self.runs.get(run_id)
        row = self.store.get(run_id)
        assert (run.told() if run else None) == (told(row) if row else None)
        self.the_log_is_right(run_id)
        for key in ("k1", "k2"):
            assert self.keys.get(key) == self.store.find_key(key)
        assert (run is not None) == self.store.wait(run_id, after=-1, timeout=0)

    @rule(
        status=st.sampled_from(("", "running", *STATUSES)),
        agent=st.sampled_from(("", "x", "y")),
        limit=st.integers(1, 3),
    )
    def list_pages(self, status: str, agent: str, limit: int) -> None:
        found: list[str] = []
        cursor = None
        while page := self.store.runs(Filter(status, agent), limit=limit, cursor=cursor):
            found += [row.id for row in page]
            cursor = page[-1].cursor
        assert found == [
            run.id
            for run in reversed(self.runs.values())
            if (not status or run.status == status) and (not agent or run.agent == agent)
        ]

    # -- many callers --------------------------------------------------------------------------

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), fenced=st.booleans())
    def threads_append_at_one_place(self, data: st.DataObject, fenced: bool) -> None:
        run = self.runs[data.draw(st.sampled_from(list(self.runs)))]
        epoch = run.epoch if fenced else None
        rivals = [
            sealed(run.head, count, epoch=run.epoch, time=self.clock.now())
            for count in (1, 2, 3, 4)
        ]
        answers = together(
            *[
                partial(self.store.append, Append(run.id, run.head.seq, records, epoch))
                for records in rivals
            ]
        )
        assert {"Conflict": 3, "NoneType": 1} == counted(answers)
        run.log.extend(rivals[answers.index(None)])

    @precondition(lambda self: len(self.runs) > 1)
    @rule()
    def threads_append_to_runs_of_their_own(self) -> None:
        works = [
            Append(run.id, run.head.seq, sealed(run.head, 2, time=self.clock.now()))
            for run in self.runs.values()
        ]
        assert {None} == set(together(*[partial(self.store.append, work) for work in works]))
        for work in works:
            self.runs[work.run_id].log.extend(work.records)

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def threads_claim_one_run(self, data: st.DataObject) -> None:
        run = self.runs[data.draw(st.sampled_from(list(self.runs)))]
        answers = together(
            *[
                partial(self.store.claim, run.id, worker=f"t{i}", lease_us=LEASE_US)
                for i in range(3)
            ]
        )
        won = [row for row in answers if row is not None]
        assert int(run.is_free(self.clock.now())) == len(won)
        for row in won:
            run.claim(row.owner, self.clock.now())
            assert run.told() == told(row)

    @rule(close_first=st.booleans())
    def reopen_the_store(self, close_first: bool) -> None:
        """As another process that takes over, or that works beside us."""
        old = self.store
        if close_first:
            old.close()
        self.store = self.reopen()
        old.close()


# -- the stores --------------------------------------------------------------------------------


def sqlite_stores(request: pytest.FixtureRequest) -> Callable[..., Any]:
    folder = request.getfixturevalue("tmp_path")
    number = itertools.count()

    def make(clock: Callable[[], int]) -> tuple[Store, Callable[[], Store]]:
        open_it = partial(SQLiteStore, folder / f"{next(number)}.db", clock=clock)
        return open_it(), open_it

    return make


def postgres_stores(request: pytest.FixtureRequest) -> Callable[..., Any]:
    from holdfast.store.postgres import PostgresStore

    dsn = request.getfixturevalue("postgres_dsn")
    number = itertools.count()

    def make(clock: Callable[[], int]) -> tuple[Store, Callable[[], Store]]:
        open_it = partial(PostgresStore, dsn, schema=f"model_{next(number)}", clock=clock)
        return open_it(), open_it

    return make


@pytest.mark.parametrize(
    "stores",
    [sqlite_stores, pytest.param(postgres_stores, marks=pytest.mark.postgres)],
    ids=["sqlite", "postgres"],
)
def test_a_store_does_what_its_model_does(
    stores: Callable[..., Any], request: pytest.FixtureRequest
) -> None:
    """A handful of histories at every change; under the nightly profile, hundreds."""
    run_state_machine_as_test(
        partial(StoreMachine, stores(request)),
        settings=settings(max_examples=settings().max_examples // 3, stateful_step_count=40),
    )
