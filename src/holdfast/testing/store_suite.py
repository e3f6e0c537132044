"""What `holdfast.store.base` says in words, as checks that any store can run.

    from holdfast.testing import check_store

    def test_my_store(tmp_path):
        check_store(lambda clock: MyStore(tmp_path / uuid4().hex, clock=clock))

A store is done when it passes. Each check is a function that gets a `Bench` with a fresh, empty store
and says in one sentence what holds. With pytest, make a test of each:

    @pytest.mark.parametrize("check", store_checks(), ids=lambda check: check.__name__)
    def test_my_store(check, tmp_path):
        with Bench(lambda clock: MyStore(tmp_path / "my.db", clock=clock)) as bench:
            check(bench)

Nothing here knows a database or a test framework, and no check waits for time to pass: the clock is
moved by hand.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from holdfast.core.events import NULL, NoteTaken, RunClaimed, RunRestarted
from holdfast.core.log import Blob, Head, Record, origin, seal, verify
from holdfast.errors import (
    Conflict,
    InputConflict,
    InvalidInput,
    KeyTaken,
    LeaseLost,
    NotFound,
    StoreError,
    StoreUnavailable,
)
from holdfast.store.base import (
    LIVE,
    MICROSECONDS,
    UNCLAIMABLE_STATUSES,
    Append,
    Creation,
    Filter,
    Kind,
    NewRun,
    RowChange,
    RunRow,
    Schedule,
    Snapshot,
    Store,
    Wanted,
)
from holdfast.testing.clock import ManualClock

LEASE_SECONDS: Final = 10
LEASE_US: Final = LEASE_SECONDS * MICROSECONDS
PATIENCE_SECONDS: Final = 60
"""How long a check waits for another thread. Only a store that hangs ever takes so long."""

MakeStore = Callable[[Callable[[], int]], Store]
Reopen = Callable[[Store], Store]
Error = TypeVar("Error", bound=BaseException)


class Bench:
    """One fresh store with its clock, and short words for what checks do with them.

    `reopen(store)` opens the same place once more, as another process would; the given store stays
    open. Checks that need it are satisfied when it is not given.
    """

    def __init__(self, make_store: MakeStore, reopen: Reopen | None = None) -> None:
        self.clock = ManualClock()
        self.store = make_store(self.clock.now)
        self._reopen = reopen
        self._opened = [self.store]

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        for store in self._opened:
            store.close()

    def reopened(self) -> Store | None:
        """The same place, opened once more; None if this store cannot be."""
        if self._reopen is None:
            return None
        self._opened.append(self._reopen(self.store))
        return self._opened[-1]

    def create(
        self, run_id: str = "run", *, worker: str = "", agent: str = "agent", **rest: Any
    ) -> RunRow:
        """A new run with one record; claimed if a worker is given."""
        run = NewRun(run_id, agent, "digest", **rest)
        records = sealed(origin(run_id), 1, epoch=1 if worker else 0, time=self.clock.now())
        row, created = self.store.create(run, records, worker=worker, lease_us=LEASE_US)
        expect(created, f"run {run_id!r} is new")
        return row

    def work(
        self, run_id: str = "run", *, count: int = 1, epoch: int | None = None, **rest: Any
    ) -> Append:
        """An append of `count` records that fits the log as it is now."""
        log = self.store.read(run_id)
        head = Head(log[-1].seq, log[-1].hash, log[-1].time) if log else origin(run_id)
        records = sealed(head, count, epoch=epoch or 0, time=self.clock.now())
        return Append(run_id, head.seq, records, epoch, **rest)

    def append(self, run_id: str = "run", **work: Any) -> None:
        """Append records that fit the log as it is now."""
        self.store.append(self.work(run_id, **work))

    def settle(self, run_id: str = "run", status: str = "completed", **change: Any) -> None:
        """Give the run a new status, which ends its lease."""
        self.append(run_id, change=RowChange(status=status, **change))

    def claim(self, run_id: str = "run", worker: str = "w") -> RunRow | None:
        """Try to take the run."""
        return self.store.claim(run_id, worker=worker, lease_us=LEASE_US)

    def claimed(self, run_id: str = "run", worker: str = "w") -> RunRow:
        """Take the run, which must be possible."""
        row = self.claim(run_id, worker)
        if row is None:
            raise AssertionError(f"run {run_id!r} could not be claimed")
        return row

    def due(
        self,
        *wanted: Wanted | str,
        limit: int = 100,
        but: Sequence[str] = (),
    ) -> list[str]:
        """Take what is due; the ids in the order in which they were given."""
        asked = [Wanted(one) if isinstance(one, str) else one for one in wanted]
        rows = self.store.claim_due(
            worker="w",
            lease_us=LEASE_US,
            limit=limit,
            wanted=asked if wanted else None,
            but=but,
        )
        return [row.id for row in rows]

    def row(self, run_id: str = "run") -> RunRow:
        """The run's row, which must be there."""
        row = self.store.get(run_id)
        if row is None:
            raise AssertionError(f"run {run_id!r} is gone")
        return row

    def log(self, run_id: str = "run") -> list[Record]:
        """The run's records, checked as a chain."""
        return list(verify(run_id, origin(run_id), self.store.read(run_id)))

    def length(self, run_id: str = "run") -> int:
        """How many records the run's log has."""
        return len(self.log(run_id))


def sealed(head: Head, count: int, *, epoch: int = 0, time: int = 0) -> list[Record]:
    """Some records that continue a log."""
    notes = [NoteTaken(key=f"note {head.seq + 1 + i}", value=NULL) for i in range(count)]
    return seal(head, notes, epoch=epoch, time=time)[1]


# ── saying what is wrong ─────────────────────────────────────────────────────────────────────
# Not `assert`: the suite must also say so under `python -O`.


def expect(true: object, what: str) -> None:
    if not true:
        raise AssertionError(f"not so: {what}")


def same(expected: object, actual: object, what: str = "") -> None:
    if expected != actual:
        raise AssertionError(f"{what or 'the answer'}: expected {expected!r}, got {actual!r}")


def refused(
    kind: type[Error], action: Callable[..., object], *args: object, **named: object
) -> Error:
    """The error that the action raised, which must be of this kind."""
    try:
        answer = action(*args, **named)
    except kind as error:
        return error
    raise AssertionError(f"expected {kind.__name__}, got {answer!r}")


def together(*actions: Callable[[], object]) -> list[Any]:
    """Run actions at the same moment, in threads; what each returned or raised, in their order."""
    answers: list[Any] = [None] * len(actions)
    start = threading.Barrier(len(actions))

    def act(i: int) -> None:
        try:
            start.wait(PATIENCE_SECONDS)
            answers[i] = actions[i]()
        except Exception as error:  # noqa: BLE001 - handed to the check, which looks at it
            answers[i] = error

    threads = [threading.Thread(target=act, args=(i,), daemon=True) for i in range(len(actions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
        expect(not thread.is_alive(), "every thread comes back")
    return answers


def counted(answers: Iterable[object]) -> dict[str, int]:
    """How many answers there are of each type."""
    names = sorted(type(answer).__name__ for answer in answers)
    return {name: len(list(group)) for name, group in itertools.groupby(names)}


# ── creating ─────────────────────────────────────────────────────────────────────────────────


def a_new_run_is_pending_and_due_at_once(bench: Bench) -> None:
    """A run created for nobody can be taken by any worker, at once."""
    run = NewRun("run", "agent", "digest", code_version="v7", parent="mother", priority=3)
    row, created = bench.store.create(run, sealed(origin("run"), 2))

    now = bench.clock.now()
    same(True, created)
    expected = RunRow(
        "run",
        "agent",
        "pending",
        now,
        now,
        0,
        "",
        now,
        "",
        0,
        "digest",
        "v7",
        "mother",
        3,
        row.cursor,
    )
    same(expected, row, "the row that create returns")
    same(row, bench.row(), "the row that is read")
    same(2, bench.length())


def a_run_created_for_a_worker_is_its_own(bench: Bench) -> None:
    """It has the first epoch and a lease from the beginning, and nobody else can take it."""
    row = bench.create(worker="me")

    same(("running", 1, "me", 1), (row.status, row.epoch, row.owner, row.claims))
    same(bench.clock.now() + LEASE_US, row.due_at)
    same(None, bench.claim())
    same([], bench.due())
    bench.append(epoch=1)


def creating_a_run_again_gives_the_same_run(bench: Bench) -> None:
    """The same id, agent and input: nothing is written, whatever has become of the run."""
    bench.create()
    bench.append()
    again = NewRun("run", "agent", "digest", code_version="other", priority=9)
    for status in ("pending", "running", "completed"):
        if status == "running":
            bench.claimed()
        elif status == "completed":
            bench.settle()
        before, log = bench.row(), bench.log()
        row, created = bench.store.create(
            again, sealed(origin("run"), 3), worker="x", lease_us=LEASE_US
        )
        same((before, False), (row, created), f"when {status}")
        same((before, log), (bench.row(), bench.log()), f"afterwards, when {status}")


def another_input_or_agent_for_an_id_is_a_conflict(bench: Bench) -> None:
    """InputConflict names the run, and nothing is written."""
    bench.create()
    before, log = bench.row(), bench.log()
    for run in (NewRun("run", "agent", "other"), NewRun("run", "other", "digest")):
        blob = Blob("aa", b"data")
        error = refused(
            InputConflict,
            bench.store.create,
            run,
            sealed(origin("run"), 1),
            blobs=[blob],
            worker="w",
            lease_us=LEASE_US,
        )
        same("run", error.run_id)
    same((before, log, None), (bench.row(), bench.log(), bench.store.blob("run", "aa")))


def creating_one_id_at_once_creates_it_once(bench: Bench) -> None:
    """Many callers, one run: one is told that it created it, the others get the same row."""
    run, records = NewRun("run", "agent", "digest"), sealed(origin("run"), 1)
    answers = together(*[partial(bench.store.create, run, records)] * 8)

    same({"tuple": 8}, counted(answers))
    same(1, sum(created for _, created in answers))
    same(1, len({row for row, _ in answers}))
    same(1, bench.length())


def blobs_of_a_new_run_are_kept(bench: Bench) -> None:
    """Big inputs lie beside the log from the first moment."""
    run = NewRun("run", "agent", "digest")
    bench.store.create(run, sealed(origin("run"), 1), blobs=[Blob("aa", b"big"), Blob("bb", b"")])

    same(b"big", bench.store.blob("run", "aa"))
    same(b"", bench.store.blob("run", "bb"))


def a_run_that_makes_no_sense_is_refused(bench: Bench) -> None:
    """No agent, no first record, records out of order: InvalidInput, and no run."""
    three = sealed(origin("run"), 3)
    for run, records in (
        (NewRun("run", "", "digest"), three),
        (NewRun("run", "agent", "digest"), []),
        (NewRun("run", "agent", "digest"), three[1:]),
        (NewRun("run", "agent", "digest"), [three[0], three[2]]),
    ):
        refused(InvalidInput, bench.store.create, run, records)
    same([], bench.store.runs())


# ── appending ────────────────────────────────────────────────────────────────────────────────


def what_is_appended_is_read_back_exactly(bench: Bench) -> None:
    """Every field of every record, whatever bytes it holds."""
    bench.create(worker="w")
    odd = bytes(range(256)) + b"\0'\";--%_\\"
    records = [
        Record(1, 2**62, 1, "note_taken", odd, bytes(32)),
        Record(2, -(2**62), 1, "note_taken.7", b"", odd[:32]),
        Record(3, 0, 1, "note_taken", b"x" * 1_000_000, b"\xff" * 32),
    ]
    bench.store.append(Append("run", 0, records, 1))

    same(records, bench.store.read("run", after=0))


def appended_records_follow_each_other_without_gap(bench: Bench) -> None:
    """Many appends, of one record and of hundreds: 0, 1, 2 … in order, and the chain verifies."""
    bench.create(worker="w")
    for count in (1, 49, 50, 51, 120):
        bench.append(epoch=1, count=count)

    same(list(range(272)), [record.seq for record in bench.log()])


def an_event_from_outside_needs_no_lease(bench: Bench) -> None:
    """A signal or a decision is appended whoever owns the run, and does not touch its row."""
    bench.create(worker="w")
    before = bench.row()
    bench.append(epoch=None)

    same((before, 2), (bench.row(), bench.length()))


def an_append_after_the_wrong_event_is_a_conflict(bench: Bench) -> None:
    """The log has grown since it was read: Conflict says where it ends, nothing is written."""
    bench.create(worker="w")
    late = bench.work(epoch=1)
    bench.append(epoch=1)
    for epoch in (1, None):
        error = refused(Conflict, bench.store.append, Append("run", 0, late.records, epoch))
        same(("run", 0, 1), (error.run_id, error.expected, error.head))

    early = sealed(Head(7, b"", 0), 1)
    same(1, refused(Conflict, bench.store.append, Append("run", 7, early, 1)).head)
    same(2, bench.length())


def an_append_under_another_epoch_is_lost(bench: Bench) -> None:
    """Older, newer or never given: LeaseLost names the current epoch, nothing is written."""
    bench.create(worker="w")
    bench.clock.advance(LEASE_SECONDS)
    same(2, bench.claimed(worker="other").epoch)
    for epoch in (0, 1, 3):
        error = refused(LeaseLost, bench.append, epoch=epoch)
        same(("run", epoch, 2), (error.run_id, error.epoch, error.current))

    same(1, bench.length())
    bench.append(epoch=2)


def a_worker_that_was_overtaken_hears_of_its_lease_first(bench: Bench) -> None:
    """When both the epoch and the place in the log are wrong, LeaseLost: it must stop, not retry."""
    bench.create(worker="w")
    stale = bench.work(epoch=1)
    bench.clock.advance(LEASE_SECONDS)
    bench.claimed(worker="other")
    bench.append(epoch=2)

    refused(LeaseLost, bench.store.append, stale)
    same(2, bench.length())


def an_owner_may_write_until_another_takes_over(bench: Bench) -> None:
    """A lease that ran out frees the run for others; the receipt of a slow call is still welcome."""
    bench.create(worker="w")
    bench.clock.advance(LEASE_SECONDS * 100)
    bench.append(epoch=1)

    same(2, bench.length())


def appending_to_no_run_is_not_found(bench: Bench) -> None:
    """NotFound, with and without an epoch."""
    records = sealed(origin("nobody"), 1)
    for epoch in (None, 1):
        refused(NotFound, bench.store.append, Append("nobody", -1, records, epoch))
    same([], bench.store.read("nobody"))


def an_append_that_makes_no_sense_is_refused(bench: Bench) -> None:
    """Gaps, keys without a record, states nobody could leave: InvalidInput, nothing is written."""
    bench.create(worker="w")
    before = bench.row()
    three = sealed(Head(0, bench.log()[-1].hash, 0), 3)
    for work in (
        Append("run", 0, three[1:], 1),
        Append("run", 0, [three[0], three[2]], 1),
        Append("run", 0, [three[0], three[0]], 1),
        Append("run", 0, three, -1),
        Append("run", 0, (), 1, claims_key="key"),
        Append("run", 0, three, 1, RowChange(status="running")),
        Append("run", 0, three, 1, RowChange(status="no such status")),
        Append("run", 0, three, 1, RowChange(status="pending")),
        Append("run", 0, three, 1, RowChange(status="completed", due_at=5)),
        Append("run", 0, three, 1, RowChange(status="waiting", due_at=2**63)),
        Append("run", 0, three, 1, RowChange(status="waiting", due_at=-1)),
    ):
        refused(InvalidInput, bench.store.append, work)

    same((before, 1, None), (bench.row(), bench.length(), bench.store.find_key("key")))


def an_append_is_all_or_nothing(bench: Bench) -> None:
    """Records, blobs, the row, the key and other runs' waking: together, or none of them."""
    bench.create(worker="w")
    bench.create("sleeper")
    bench.settle("sleeper", "waiting")
    bench.create("holder")
    bench.append("holder", claims_key="taken")
    before, asleep = bench.row(), bench.row("sleeper")

    def work(after: int = 0, epoch: int = 1, key: str = "mine") -> Append:
        change = RowChange(status="completed", wakes=("sleeper",))
        records = sealed(Head(after, bench.log()[-1].hash, 0), 60, epoch=epoch)
        return Append("run", after, records, epoch, change, [Blob("aa", b"data")], key)

    refused(Conflict, bench.store.append, work(after=4))
    refused(LeaseLost, bench.store.append, work(epoch=9))
    refused(KeyTaken, bench.store.append, work(key="taken"))
    same((before, asleep, 1), (bench.row(), bench.row("sleeper"), bench.length()))
    same((None, None), (bench.store.blob("run", "aa"), bench.store.find_key("mine")))

    bench.store.append(work())
    same(("completed", "pending"), (bench.row().status, bench.row("sleeper").status))
    same((61, b"data"), (bench.length(), bench.store.blob("run", "aa")))
    same(("run", 60), bench.store.find_key("mine"))


def an_append_without_records_changes_only_the_row(bench: Bench) -> None:
    """It passes the same fence as any other."""
    bench.create(worker="w")
    for work in (Append("run", 5, (), 1), Append("run", 0, (), 2)):
        refused(StoreError, bench.store.append, work)
    bench.store.append(Append("run", 0, (), 1, RowChange(status="waiting", waiting_for="a sign")))

    same(("waiting", "a sign", 1), (bench.row().status, bench.row().waiting_for, bench.length()))


# ── reading ──────────────────────────────────────────────────────────────────────────────────


def a_log_is_read_by_range(bench: Bench) -> None:
    """`after` and `limit` cut it; beyond the end, and of no run, there is nothing."""
    bench.create()
    bench.append(count=9)
    log = bench.log()

    same(log[4:], bench.store.read("run", after=3))
    same(log[4:6], bench.store.read("run", after=3, limit=2))
    same(log[:3], bench.store.read("run", limit=3))
    same([], bench.store.read("run", limit=0))
    same([], bench.store.read("run", after=9))
    same([], bench.store.read("run", after=10**9))
    same([], bench.store.read("nobody"))


def what_is_not_there_is_none(bench: Bench) -> None:
    """Unknown runs, keys, blobs and snapshots are absent, not errors."""
    bench.create()
    same(None, bench.store.get("nobody"))
    same(None, bench.claim("nobody"))
    same(None, bench.store.find_key("no key"))
    same(None, bench.store.snapshot("nobody"))
    same(None, bench.store.blob("nobody", "aa"))
    same(None, bench.store.blob("run", "aa"))
    same(False, bench.store.release("nobody", 1))
    same(False, bench.store.delete("nobody"))


# ── leases ───────────────────────────────────────────────────────────────────────────────────


def a_claim_gives_the_run_under_a_new_epoch(bench: Bench) -> None:
    """The worker gets the row as it is now: running, its own, until the lease ends."""
    bench.create(priority=2)
    bench.clock.advance(5)
    row = bench.claimed(worker="me")

    same(("running", 1, "me", 1), (row.status, row.epoch, row.owner, row.claims))
    same(bench.clock.now() + LEASE_US, row.due_at)
    same(row, bench.row())
    expect(row.is_live(bench.clock.now()), "the lease is live")


def a_live_run_is_not_given_away(bench: Bench) -> None:
    """Until the last microsecond of its lease; not to its own owner either."""
    bench.create(worker="me")
    bench.clock.advance(LEASE_SECONDS - 0.000001)

    same((None, None, []), (bench.claim(worker="other"), bench.claim(worker="me"), bench.due()))
    same(1, bench.row().epoch)


def an_expired_run_is_given_to_the_next(bench: Bench) -> None:
    """From the moment its lease ends, by its name or as due work."""
    for run_id in ("by-name", "as-due"):
        bench.create(run_id, worker="dead")
    bench.clock.advance(LEASE_SECONDS)

    same((2, "w"), ((row := bench.claimed("by-name")).epoch, row.owner))
    same(["as-due"], bench.due())
    same((2, "w"), ((row := bench.row("as-due")).epoch, row.owner))


def a_waiting_run_can_be_claimed_by_name(bench: Bench) -> None:
    """Due or not: somebody who knows why it should go on now may take it."""
    bench.create()
    bench.settle("run", "waiting", waiting_for="a person")

    same([], bench.due())
    row = bench.claimed()
    same(("running", ""), (row.status, row.waiting_for))


def epochs_only_grow(bench: Bench) -> None:
    """Over release, expiry, settling and claiming again, no epoch is ever given twice."""
    bench.create(worker="w")
    epochs = [1]
    for how in ("release", "expire", "wait", "release", "expire", "pend"):
        epoch = epochs[-1]
        if how == "release":
            same(True, bench.store.release("run", epoch))
        elif how == "expire":
            bench.clock.advance(LEASE_SECONDS)
        elif how == "wait":
            bench.append(epoch=epoch, change=RowChange(status="waiting"))
        else:
            bench.append(epoch=epoch, change=RowChange(status="pending", due_at=0))
        same(epoch, bench.row().epoch, f"the epoch after {how}")
        epochs.append(bench.claimed().epoch)

    same([1, 2, 3, 4, 5, 6, 7], epochs)


def a_worker_that_was_overtaken_can_do_nothing(bench: Bench) -> None:
    """It cannot write, renew or release: its successor is not disturbed."""
    bench.create(worker="old")
    bench.clock.advance(LEASE_SECONDS)
    bench.claimed(worker="new")
    before = bench.row()

    refused(LeaseLost, bench.append, epoch=1, change=RowChange(status="completed"))
    same({"run"}, bench.store.renew([("run", 1)], lease_us=LEASE_US))
    same(False, bench.store.release("run", 1))
    same(before, bench.row())


def heads_tell_where_each_log_ends(bench: Bench) -> None:
    """One question for many runs; what is not there is left out."""
    for run_id in ("one", "two", "three"):
        bench.create(run_id)
    bench.append("two")
    bench.append("two")

    same({"one": 0, "two": 2}, bench.store.heads(["one", "nobody", "two"]))
    same({}, bench.store.heads([]))


def renewing_extends_a_live_lease(bench: Bench) -> None:
    """Each renewal counts from now, by the store's clock."""
    bench.create(worker="w")
    for _ in range(3):
        bench.clock.advance(LEASE_SECONDS - 1)
        same(set(), bench.store.renew([("run", 1)], lease_us=LEASE_US))
        same(bench.clock.now() + LEASE_US, bench.row().due_at)
        same(None, bench.claim())
    same(1, bench.row().epoch)


def renewing_after_the_end_is_refused(bench: Bench) -> None:
    """Even when nobody has taken the run: another worker may be about to."""
    bench.create(worker="w")
    bench.clock.advance(LEASE_SECONDS)

    same({"run"}, bench.store.renew([("run", 1)], lease_us=LEASE_US))
    same(["run"], bench.due())


def renewing_tells_lost_leases_from_held_ones(bench: Bench) -> None:
    """One answer for many runs: expired, taken over, settled, released, unknown are lost."""
    for run_id in ("held", "settled", "released", "newer"):
        bench.create(run_id, worker="w")
    bench.settle("settled", "waiting", due_at=bench.clock.now() + 1)
    bench.store.release("released", 1)
    held = [("held", 1), ("settled", 1), ("released", 1), ("newer", 2), ("nobody", 1)]

    same({"settled", "released", "newer", "nobody"}, bench.store.renew(held, lease_us=LEASE_US))
    same(set(), bench.store.renew([], lease_us=LEASE_US))


def a_released_run_is_due_at_once(bench: Bench) -> None:
    """Only its owner can release it, and only once."""
    bench.create(worker="w")
    same(False, bench.store.release("run", 2))
    bench.clock.advance(1)
    same(True, bench.store.release("run", 1))

    row = bench.row()
    same(("pending", "", bench.clock.now(), 1), (row.status, row.owner, row.due_at, row.epoch))
    same(False, bench.store.release("run", 1))
    same(["run"], bench.due())


def claiming_at_once_has_one_winner(bench: Bench) -> None:
    """Eight workers ask for one run; then eight workers share what is due, each run once."""
    bench.create()
    rows = together(*[partial(bench.claim, worker=f"w{i}") for i in range(8)])
    same({"NoneType": 7, "RunRow": 1}, counted(rows))

    ids = [f"run-{i}" for i in range(24)]
    for run_id in ids:
        bench.create(run_id)
    answers = together(*[partial(bench.due, limit=5)] * 8)
    taken = [run_id for answer in answers for run_id in answer]
    same(len(taken), len(set(taken)), "runs given to two workers")
    same(sorted(ids), sorted(taken + bench.due()))
    same({1}, {bench.row(run_id).epoch for run_id in ids})


def claims_without_progress_are_counted(bench: Bench) -> None:
    """A run that kills its workers is seen: the count grows at each claim, and restarts when the log has grown."""
    bench.create(worker="w")
    counts = [bench.row().claims]
    for _ in range(3):
        bench.clock.advance(LEASE_SECONDS)
        counts.append(bench.claimed().claims)
    same([1, 2, 3, 4], counts)

    bench.append(epoch=4)
    bench.clock.advance(LEASE_SECONDS)
    same(1, bench.claimed().claims)
    bench.clock.advance(LEASE_SECONDS)
    same(2, bench.claimed().claims)


def settling_ends_the_lease(bench: Bench) -> None:
    """Status, due time and what it waits for are as told; the owner is gone, the epoch stays."""
    now = bench.clock.now()
    for status, due_at in (
        ("waiting", None),
        ("waiting", now + 5),
        ("pending", now + 7),
        ("paused", None),
        ("quarantined", None),
        ("completed", None),
        ("failed", None),
        ("cancelled", None),
    ):
        run_id = f"{status}-{due_at or 0}"
        bench.create(run_id, worker="w")
        bench.append(run_id, epoch=1, change=RowChange(status, due_at, "a sign"))
        row = bench.row(run_id)
        same((status, due_at, "a sign"), (row.status, row.due_at, row.waiting_for))
        same(("", 1, 0), (row.owner, row.epoch, row.claims))
        same({run_id}, bench.store.renew([(run_id, 1)], lease_us=LEASE_US))


def what_has_ended_cannot_be_claimed(bench: Bench) -> None:
    """Nor what is paused or quarantined: not by name, not as due, not after a wake."""
    for status in UNCLAIMABLE_STATUSES:
        bench.create(status)
        bench.settle(status, status)
        bench.append(status, change=RowChange(wake=True))
        same((status, None), ((row := bench.row(status)).status, row.due_at))
        same(None, bench.claim(status))
    bench.clock.advance(10**6)
    same([], bench.due())


# ── what is due ──────────────────────────────────────────────────────────────────────────────


def due_runs_come_in_order(bench: Bench) -> None:
    """The one that has been due for longest first, where each point of priority counts like a minute;
    `limit` cuts the tail."""
    for run_id, priority in (("b", 0), ("c", 0), ("urgent", 5), ("idle", -1), ("d", 0)):
        bench.create(run_id, priority=priority)
        bench.clock.advance(1)
    bench.settle("d", "waiting", due_at=bench.clock.now() - 100 * MICROSECONDS)

    same(["urgent", "d"], bench.due(limit=2))
    same([], bench.due(limit=0))
    same(["b", "c", "idle"], bench.due())
    same([], bench.due())


def due_runs_are_those_of_the_named_agents(bench: Bench) -> None:
    """A worker takes only what it has code for."""
    for agent in ("a", "b", "c"):
        bench.create(f"of-{agent}", agent=agent)

    same([], bench.store.claim_due(worker="w", lease_us=LEASE_US, limit=9, wanted=[]))
    same([], bench.due("nobody"))
    same({"of-a", "of-c"}, set(bench.due("a", "c", "nobody")))
    same(["of-b"], bench.due())


def only_what_may_run_is_due(bench: Bench) -> None:
    """Timers that have come and leases that have ended; nothing that lives, waits or is over."""
    bench.create("live", worker="w")
    for run_id, status, due_in in (
        ("timer", "waiting", 20),
        ("later", "waiting", 21),
        ("person", "waiting", None),
        ("retry", "pending", 20),
        ("paused", "paused", None),
        ("over", "completed", None),
    ):
        bench.create(run_id)
        due_at = None if due_in is None else bench.clock.now() + due_in * MICROSECONDS
        bench.settle(run_id, status, due_at=due_at)
    same([], bench.due())

    bench.clock.advance(19)
    same(set(), bench.store.renew([("live", 1)], lease_us=LEASE_US) - {"live"})
    bench.create("fresh", worker="w")
    bench.clock.advance(1)
    same({"timer", "retry", "live"}, set(bench.due()))
    bench.clock.advance(1)
    same(["later"], bench.due())


def the_next_due_time_is_known(bench: Bench) -> None:
    """The earliest of timers and lease ends; none when nothing will come by itself."""
    same(None, bench.store.next_due())
    start = bench.clock.now()
    bench.create("leased", worker="w")
    same(start + LEASE_US, bench.store.next_due())
    bench.create("new")
    same(start, bench.store.next_due())
    bench.settle("new", "waiting", due_at=start + 3)
    same(start + 3, bench.store.next_due())
    bench.settle("new", "completed")
    bench.settle("leased", "waiting")
    same(None, bench.store.next_due())


# ── waking ───────────────────────────────────────────────────────────────────────────────────


def a_wake_makes_a_waiting_run_due(bench: Bench) -> None:
    """With a timer or without: what it waited for may have come."""
    for run_id, due_at in (("person", None), ("timer", bench.clock.now() + LEASE_US)):
        bench.create(run_id)
        bench.settle(run_id, "waiting", due_at=due_at, waiting_for="a sign")
        bench.append(run_id, change=RowChange(wake=True))
        same(("pending", bench.clock.now()), ((row := bench.row(run_id)).status, row.due_at))
    same({"person", "timer"}, set(bench.due()))


def a_wake_leaves_a_running_run_alone(bench: Bench) -> None:
    """Its owner sees the event in the log; the lease is not shortened."""
    bench.create(worker="w")
    before = bench.row()
    bench.clock.advance(1)
    bench.append(change=RowChange(wake=True))

    after = bench.row()
    same((before.status, before.owner, before.due_at), (after.status, after.owner, after.due_at))
    same([], bench.due())


def other_runs_are_woken_with_the_append(bench: Bench) -> None:
    """A child's end wakes its parent; runs that do not wait, or do not exist, are passed over."""
    for run_id in ("parent", "second", "paused"):
        bench.create(run_id)
        bench.settle(run_id, "paused" if run_id == "paused" else "waiting")
    bench.create("busy", worker="w")
    bench.create("child", worker="w")
    wakes = ("parent", "second", "paused", "busy", "nobody")
    refused(LeaseLost, bench.append, "child", epoch=7, change=RowChange(wakes=wakes))
    same("waiting", bench.row("parent").status)

    bench.append("child", epoch=1, change=RowChange(status="completed", wakes=wakes))
    statuses = [bench.row(run_id).status for run_id in wakes[:-1]]
    same(["pending", "pending", "paused", "running"], statuses)
    same({"parent", "second"}, set(bench.due()))


# ── listing ──────────────────────────────────────────────────────────────────────────────────


def pages(
    bench: Bench, *filters: Filter, limit: int, between: Callable[[], object] = lambda: None
) -> list[str]:
    """All ids, page by page, with something happening between the pages."""
    found: list[str] = []
    cursor: int | None = None
    while page := bench.store.runs(*filters, limit=limit, cursor=cursor):
        expect(len(page) <= limit, "no page is longer than asked for")
        found += [row.id for row in page]
        expect(len(found) < 1000, "the pages come to an end")
        cursor = page[-1].cursor
        between()
    return found


def runs_are_listed_newest_first_page_by_page(bench: Bench) -> None:
    """Every run once, while others are being added and changed between the pages."""
    ids = [f"run-{i:02}" for i in range(23)]
    for run_id in ids:
        bench.create(run_id)
    added = iter(range(1000))

    def meanwhile() -> None:
        bench.create(f"new-{next(added)}")
        bench.append(ids[next(added) % 23])

    for limit in (1, 5, 23, 100):
        found = pages(bench, limit=limit, between=meanwhile)
        same(ids[::-1], [run_id for run_id in found if run_id in ids], f"pages of {limit}")
        same(len(found), len(set(found)), "runs listed twice")
    same([], bench.store.runs(limit=0))


def runs_are_listed_by_what_they_are(bench: Bench) -> None:
    """By status, agent, parent and time of creation, alone and together."""
    start = bench.clock.now()
    for i in range(12):
        bench.create(f"r{i}", agent=f"agent-{i % 2}", parent=f"p{i % 3}" if i % 3 else "")
        if i % 4 == 0:
            bench.settle(f"r{i}", "completed")
        bench.clock.advance(1)

    def listed(**which: Any) -> list[int]:
        found = pages(bench, Filter(**which), limit=2)
        same(
            found,
            [row.id for row in bench.store.runs(Filter(**which), limit=100)],
            "one page or many",
        )
        return sorted(int(run_id[1:]) for run_id in found)

    second = MICROSECONDS
    same([0, 4, 8], listed(status="completed"))
    same([], listed(status="no such status"))
    same([1, 3, 5, 7, 9, 11], listed(agent="agent-1"))
    same([1, 4, 7, 10], listed(parent="p1"))
    same([4], listed(status="completed", parent="p1"))
    same([0, 4, 8], listed(status="completed", agent="agent-0"))
    same([], listed(status="completed", agent="agent-1"))
    same([1, 7], listed(agent="agent-1", parent="p1"))
    same([9, 10, 11], listed(created_after=start + 9 * second))
    same([0, 1, 2], listed(created_before=start + 3 * second))
    between = {"created_after": start + 2 * second, "created_before": start + 9 * second}
    same([2, 3, 4, 5, 6, 7, 8], listed(**between))
    same([4, 8], listed(status="completed", **between))
    same([3, 5, 7], listed(agent="agent-1", **between))
    same([2, 5, 8], listed(parent="p2", **between))
    same([4], listed(status="completed", agent="agent-0", parent="p1", **between))


# ── keys, blobs, snapshots ───────────────────────────────────────────────────────────────────


def a_key_belongs_to_one_call_over_all_runs(bench: Bench) -> None:
    """KeyTaken says whose it is; a key that was not taken can be."""
    for run_id in ("first", "second"):
        bench.create(run_id)
    bench.append("first", count=3, claims_key="recap:sam")
    same(("first", 3), bench.store.find_key("recap:sam"))

    for run_id in ("second", "first"):
        error = refused(KeyTaken, bench.append, run_id, claims_key="recap:sam")
        same(("recap:sam", "first", 3), (error.key, error.run_id, error.seq))
    same((4, 1), (bench.length("first"), bench.length("second")))
    bench.append("second", claims_key="Recap:sam")
    same(("second", 1), bench.store.find_key("Recap:sam"))


def claiming_one_key_at_once_has_one_winner(bench: Bench) -> None:
    """Eight runs ask for it in eight threads: seven are told who has it."""
    ids = [f"run-{i}" for i in range(8)]
    for run_id in ids:
        bench.create(run_id)
    answers = together(*[partial(bench.append, run_id, claims_key="key") for run_id in ids])

    same({"KeyTaken": 7, "NoneType": 1}, counted(answers))
    winner = ids[answers.index(None)]
    same((winner, 1), bench.store.find_key("key"))
    same({winner}, {error.run_id for error in answers if error})
    same(9, sum(bench.length(run_id) for run_id in ids))


def what_builds_on_a_refused_append_is_refused(bench: Bench) -> None:
    """Two appends sent together, the first refused for its key: no gap in the log, others unharmed."""
    for run_id in ("holder", "run", "other"):
        bench.create(run_id)
    bench.append("holder", claims_key="taken")
    both = bench.work(count=2).records
    batch = [
        Append("run", 0, both[:1], claims_key="taken"),
        Append("run", 1, both[1:]),
        bench.work("other"),
    ]

    async def send() -> list[Any]:
        return await asyncio.gather(*map(bench.store.append_async, batch), return_exceptions=True)

    same(
        ["KeyTaken", "Conflict", "NoneType"],
        [type(answer).__name__ for answer in asyncio.run(send())],
    )
    same((1, 2), (bench.length("run"), bench.length("other")))


def blobs_are_kept_by_run_and_hash(bench: Bench) -> None:
    """One run's blob is not another's; keeping the same one again is harmless."""
    for run_id in ("one", "two"):
        bench.create(run_id)
    big = bytes(range(256)) * 4096
    bench.append("one", blobs=[Blob("aa", big), Blob("bb", b"")])
    bench.append("one", blobs=[Blob("aa", big)])
    bench.append("two", blobs=[Blob("aa", b"other")])

    same((big, b""), (bench.store.blob("one", "aa"), bench.store.blob("one", "bb")))
    same((b"other", None), (bench.store.blob("two", "aa"), bench.store.blob("two", "bb")))


def the_last_record_of_a_kind_is_found(bench: Bench) -> None:
    """By its seq, of this run only; -1 if there is none, or no such run."""
    bench.create("run")
    bench.create("other")
    bench.append("run", count=3)
    end = bench.log("run")[-1]
    _, again = seal(Head(end.seq, end.hash, end.time), [RunRestarted()], epoch=0, time=end.time)
    bench.store.append(Append("run", end.seq, again))
    bench.append("run", count=2)
    same(6, bench.store.last("run", NoteTaken.kind))
    same(4, bench.store.last("run", RunRestarted.kind))
    same(-1, bench.store.last("other", RunRestarted.kind))
    same(-1, bench.store.last("nobody", NoteTaken.kind))


def an_append_whose_caller_is_cancelled_comes_to_its_end_first(bench: Bench) -> None:
    """Who awaits it is told of the cancellation when the append is durable, and not before."""
    bench.create(worker="w")
    found: list[int] = []

    async def write() -> None:
        try:
            await bench.store.append_async(bench.work(epoch=1))
        except asyncio.CancelledError:
            found.append(bench.length())
            raise

    async def cancel() -> None:
        task = asyncio.create_task(write())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))

    asyncio.run(cancel())
    same([2], found)


def snapshots_rotate_but_never_the_newest(bench: Bench) -> None:
    """The newest `keep` stay; one is asked for by the last event it may cover."""
    bench.create()

    def snapshot(seq: int, data: bytes = b"\0state") -> Snapshot:
        return Snapshot(seq, bytes([seq]) * 32, "v1", bench.clock.now(), data)

    for seq in (5, 1, 3, 7):
        bench.store.save_snapshot("run", snapshot(seq))
    same(snapshot(7), bench.store.snapshot("run"))
    same(snapshot(7), bench.store.snapshot("run", at_most=7))
    same(snapshot(5), bench.store.snapshot("run", at_most=6))
    same(snapshot(3), bench.store.snapshot("run", at_most=4))
    same(None, bench.store.snapshot("run", at_most=2))

    bench.store.save_snapshot("run", snapshot(7, b"again"))
    same(snapshot(7, b"again"), bench.store.snapshot("run"))
    bench.store.save_snapshot("run", snapshot(9), keep=1)
    same((snapshot(9), None), (bench.store.snapshot("run"), bench.store.snapshot("run", at_most=8)))
    bench.store.save_snapshot("run", snapshot(11), keep=0)
    same(snapshot(11), bench.store.snapshot("run"))
    refused(NotFound, bench.store.save_snapshot, "nobody", snapshot(1))
    same(None, bench.store.snapshot("nobody"))


def snapshots_that_are_too_old_go_and_families_are_apart(bench: Bench) -> None:
    """Beyond the newest few *or* expired; what a loop goes on from does not rotate with the others."""
    bench.create()
    store = bench.store

    def save(seq: int, version: str = f"{LIVE}1", **options: Any) -> None:
        store.save_snapshot("run", Snapshot(seq, b"h", version, store.now(), b""), **options)

    def left(live: bool = True) -> list[int]:
        found: list[int] = []
        while (
            one := store.snapshot("run", at_most=(found or [99])[-1] - 1, live=live)
        ) is not None:
            found.append(one.seq)
        return found

    save(1)
    bench.clock.advance(100)
    save(2)
    save(3)
    same([3, 2, 1], left())
    save(4, keep=9, max_age_us=50_000_000)
    same([4, 3, 2], left())
    save(5, "v1", keep=1)
    same(([4, 3, 2], [5]), (left(), left(live=False)))
    bench.clock.advance(100)
    same(2, store.rotate_snapshots("run", keep=9, max_age_us=50_000_000))
    same(([4], [5]), (left(), left(live=False)))
    same(0, store.rotate_snapshots("nobody", keep=1))


# ── deleting ─────────────────────────────────────────────────────────────────────────────────


def only_what_has_ended_is_deleted(bench: Bench) -> None:
    """A run that may still go on is kept, whatever it waits for."""
    bench.create("new")
    bench.create("live", worker="w")
    for status in ("waiting", "paused", "quarantined", "completed", "failed", "cancelled"):
        bench.create(status)
        bench.settle(status, status)
    deleted = {row.id for row in bench.store.runs() if bench.store.delete(row.id)}

    same({"completed", "failed", "cancelled"}, deleted)
    kept = {row.id for row in bench.store.runs()}
    same({"new", "live", "waiting", "paused", "quarantined"}, kept)
    same({1, 2}, {bench.length(run_id) for run_id in kept})


def deleting_leaves_nothing_behind(bench: Bench) -> None:
    """Row, log, blobs, snapshots and keys are gone; the id can be used again, from the beginning."""
    bench.create(worker="w", agent="old")
    bench.append(epoch=1, count=5, blobs=[Blob("aa", b"data")], claims_key="key")
    bench.store.save_snapshot("run", Snapshot(3, b"h", "v", 0, b"state"))
    bench.settle()
    bench.create("bystander")
    bench.append("bystander", blobs=[Blob("aa", b"mine")], claims_key="other")
    same(True, bench.store.delete("run"))
    same(False, bench.store.delete("run"))

    def nothing() -> None:
        same((None, None), (bench.store.blob("run", "aa"), bench.store.snapshot("run")))
        same(None, bench.store.find_key("key"))

    same((None, []), (bench.store.get("run"), bench.store.read("run")))
    nothing()
    refused(NotFound, bench.append, epoch=1)
    row = bench.create(agent="new")
    same(("new", 0, 1), (row.agent, row.epoch, bench.length()))
    nothing()
    bench.append(claims_key="key")
    same(("run", 1), bench.store.find_key("key"))
    same(
        (b"mine", ("bystander", 1)),
        (bench.store.blob("bystander", "aa"), bench.store.find_key("other")),
    )


# ── waiting ──────────────────────────────────────────────────────────────────────────────────


def waiting_for_what_is_there_returns_at_once(bench: Bench) -> None:
    """An event beyond `after` exists: True, without any patience."""
    bench.create()
    bench.append()

    same(True, bench.store.wait("run", after=0, timeout=0))
    same(True, bench.store.wait("run", after=-1, timeout=PATIENCE_SECONDS))


def waiting_ends_when_the_time_is_over(bench: Bench) -> None:
    """False: nothing came (nor for a run that does not exist)."""
    bench.create()

    same(False, bench.store.wait("run", after=0, timeout=0.02))
    same(False, bench.store.wait("run", after=0, timeout=0))
    same(False, bench.store.wait("nobody", after=-1, timeout=0.02))


def waiting_ends_with_an_append(bench: Bench) -> None:
    """Made by another thread of this process, or through another opening of the same place."""
    bench.create()
    for store in (bench.store, bench.reopened()):
        if store is None:
            continue
        last = bench.length() - 1
        answers = together(
            partial(bench.store.wait, "run", after=last, timeout=PATIENCE_SECONDS),
            partial(store.append, bench.work()),
        )
        same([True, None], answers)


def waiting_for_due_work_ends_when_there_is_some(bench: Bench) -> None:
    """True at once if something is due, True when something becomes due, False when time is over."""
    same(False, bench.store.wait_due(timeout=0.02))
    answers = together(partial(bench.store.wait_due, timeout=PATIENCE_SECONDS), bench.create)
    same(True, answers[0])
    same(True, bench.store.wait_due(timeout=0))
    bench.due()
    same(False, bench.store.wait_due(timeout=0))
    same(True, bench.store.release("run", 1))
    same(True, bench.store.wait_due(timeout=PATIENCE_SECONDS))


# ── hostile text ─────────────────────────────────────────────────────────────────────────────

UNLIKE_IDS: Final = (
    "'; DROP TABLE runs; --",
    '" OR "1"="1',
    "100%",
    "back\\slash",
    "$1 %s ? :name {0}",
    "tab\tnew\nline\r",
    "\x1b[31mred\x7f",
    "ünïcödé 統一碼 \U0001f600 \u202e\u200b\ufeff\ufb33",
    "e\u0301 is not \u00e9",
    "a" * 2000,
    '["a", "b"]',
    " ",
)
HOSTILE: Final = (*UNLIKE_IDS, "NULL", "under_score", "undersscore")
UNKEEPABLE: Final = ("nul\0", "\0", "lone \ud800 surrogate", "\udcff")


def ids_that_could_mislead_are_refused(bench: Bench) -> None:
    """Ids become parts of keys, paths and URLs: nothing but a plain pattern."""
    for run_id in (
        *UNLIKE_IDS,
        *UNKEEPABLE,
        "",
        "../x",
        "a/b",
        ".hidden",
        "-x",
        "a b",
        "é",
        "a" * 201,
    ):
        run = NewRun(run_id, "agent", "digest")
        refused(InvalidInput, bench.store.create, run, sealed(origin("x"), 1))
    same([], bench.store.runs())


def hostile_ids_find_nothing(bench: Bench) -> None:
    """Asking for an id that no run can have is like asking for any other that is not there."""
    bench.create()
    for run_id in UNLIKE_IDS:
        same((None, []), (bench.store.get(run_id), bench.store.read(run_id)))
        same((None, False), (bench.claim(run_id), bench.store.delete(run_id)))
        refused(NotFound, bench.store.append, Append(run_id, -1, sealed(origin("x"), 1)))
    same(("pending", 1), (bench.row().status, bench.length()))


def hostile_text_is_only_text(bench: Bench) -> None:
    """Quotes, wildcards and statements in names, keys and filters mean themselves."""
    for i, text in enumerate(HOSTILE):
        row = bench.create(f"r{i}", agent=text, parent=text, code_version=text)
        same((text, text, text), (row.agent, row.parent, row.code_version))
        bench.append(f"r{i}", claims_key=text)
        bench.settle(f"r{i}", "waiting", waiting_for=text, due_at=0)

    for i, text in enumerate(HOSTILE):
        run_id = f"r{i}"
        same((f"r{i}", 1), bench.store.find_key(text))
        for which in (
            Filter(agent=text),
            Filter(parent=text),
            Filter(status="waiting", agent=text),
        ):
            same([run_id], [row.id for row in bench.store.runs(which)])
        same([], bench.store.runs(Filter(status=text)))
        same([run_id], bench.due(Wanted(text, text)))
        same(text, bench.row(run_id).agent)
        same(True, bench.store.release(run_id, 1))
        same(text, bench.store.claim(run_id, worker=text, lease_us=1) and bench.row(run_id).owner)


def text_that_no_database_keeps_alike_is_refused(bench: Bench) -> None:
    """NUL and lone surrogates: InvalidInput everywhere, before anything happens."""
    bench.create()
    before = bench.row()
    one = bench.work().records
    for text in UNKEEPABLE:
        for run in (
            NewRun("new", text, "digest"),
            NewRun("new", "agent", text),
            NewRun("new", "agent", "digest", code_version=text),
            NewRun("new", "agent", "digest", parent=text),
        ):
            refused(InvalidInput, bench.store.create, run, sealed(origin("new"), 1))
        for work in (
            Append("run", 0, one, claims_key=text),
            Append("run", 0, one, change=RowChange(status="waiting", waiting_for=text)),
            Append("run", 0, one, change=RowChange(wakes=(text,))),
            Append(text, 0, one),
        ):
            refused(InvalidInput, bench.store.append, work)
        for which in (Filter(status=text), Filter(agent=text), Filter(parent=text)):
            refused(InvalidInput, bench.store.runs, which)
        refused(InvalidInput, bench.due, text)
        refused(InvalidInput, bench.due, Wanted("agent", text))
        refused(InvalidInput, bench.store.find_key, text)
    same((before, 1, 1), (bench.row(), bench.length(), len(bench.store.runs())))


# ── many at once ─────────────────────────────────────────────────────────────────────────────


def threads_on_runs_of_their_own_do_not_disturb_each_other(bench: Bench) -> None:
    """Eight threads, each with its own run: every append is there, in its order."""
    for i in range(8):
        bench.create(f"run-{i}", worker="w")

    def write(run_id: str) -> None:
        for count in range(1, 9):
            bench.append(run_id, epoch=1, count=count)

    same([None] * 8, together(*[partial(write, f"run-{i}") for i in range(8)]))
    same([37] * 8, [bench.length(f"run-{i}") for i in range(8)])


def one_place_in_a_log_is_taken_once(bench: Bench) -> None:
    """Eight threads append after the same event: one wins, the others are told, again and again."""
    bench.create(worker="w")
    for epoch in (1, None) * 4:
        rivals = [bench.work(epoch=epoch, count=i + 1) for i in range(8)]
        before = bench.length()
        answers = together(*[partial(bench.store.append, work) for work in rivals])
        same({"Conflict": 7, "NoneType": 1}, counted(answers))
        same(before + answers.index(None) + 1, bench.length())


def callers_on_an_event_loop_and_on_threads_share_a_store(bench: Bench) -> None:
    """All that was acknowledged is there, whichever way it came."""
    for i in range(16):
        bench.create(f"run-{i}", worker="w")

    async def write_all() -> None:
        async def write(run_id: str) -> None:
            for _ in range(5):
                await bench.store.append_async(bench.work(run_id, epoch=1))

        await asyncio.gather(*[write(f"run-{i}") for i in range(8)])

    def write(run_id: str) -> None:
        for _ in range(5):
            bench.append(run_id, epoch=1)

    threads = [partial(write, f"run-{i}") for i in range(8, 16)]
    same([None] * 9, together(lambda: asyncio.run(write_all()), *threads))
    same([6] * 16, [bench.length(f"run-{i}") for i in range(16)])


def runs_created_together_are_each_created_once(bench: Bench) -> None:
    """Those that exist are found as they are, one that was meant otherwise fails alone."""
    bench.create("there")

    def wanted(run_id: str, digest: str = "digest") -> Creation:
        records = sealed(origin(run_id), 1, epoch=1, time=bench.clock.now())
        run = NewRun(run_id, "agent", digest)
        return Creation(run, records, [Blob("aa", run_id.encode())], "w", LEASE_US)

    async def create_all() -> list[Any]:
        batch = [*map(wanted, "dcab"), wanted("a"), wanted("there"), wanted("b", "other")]
        answers = map(bench.store.create_async, batch)
        return await asyncio.gather(*answers, return_exceptions=True)

    *answers, conflict = asyncio.run(create_all())
    same("InputConflict", type(conflict).__name__)
    same([*"dcab", "a", "there"], [row.id for row, _ in answers])
    is_new = [new for _, new in answers]
    same([True, True, True, False], [is_new[0], is_new[1], is_new[3], is_new[5]])
    same(1, is_new[2] + is_new[4])
    same(["w"] * 5 + [""], [row.owner for row, _ in answers])
    same([b"d", b"c", b"a", b"b"], [bench.store.blob(run_id, "aa") for run_id in "dcab"])
    same([1] * 4, [bench.length(run_id) for run_id in "dcab"])
    for run_id in "dcab":
        bench.append(run_id, epoch=1)


def one_stale_append_in_a_batch_fails_alone(bench: Bench) -> None:
    """Those that are sent together with it are written."""
    for i in range(10):
        bench.create(f"run-{i}", worker="w")
    batch = [bench.work(f"run-{i}", epoch=1) for i in range(10)]
    batch[3] = bench.work("run-3", epoch=2)
    batch[6] = Append("nobody", -1, sealed(origin("nobody"), 1), 1)
    batch[8] = Append("run-8", 4, sealed(Head(4, b"", 0), 1), 1)

    async def send() -> list[Any]:
        return await asyncio.gather(*map(bench.store.append_async, batch), return_exceptions=True)

    answers = asyncio.run(send())
    same({"Conflict": 1, "LeaseLost": 1, "NoneType": 7, "NotFound": 1}, counted(answers))
    kinds = [type(answers[i]) for i in (3, 6, 8)]
    same([LeaseLost, NotFound, Conflict], kinds)
    same(
        [2, 2, 2, 1, 2, 2, 2, 1, 2], [bench.length(f"run-{i}") for i in (0, 1, 2, 3, 4, 5, 7, 8, 9)]
    )


def a_claim_and_the_old_owners_append_exclude_each_other(bench: Bench) -> None:
    """Whichever comes first: an append under the old epoch is never behind the new one's claim."""
    for i in range(8):
        run_id = f"run-{i}"
        bench.create(run_id, worker="old")
        bench.clock.advance(LEASE_SECONDS)
        work = bench.work(run_id, epoch=1)
        wrote, row = together(partial(bench.store.append, work), partial(bench.claimed, run_id))
        same(2, row.epoch)
        same(1 if isinstance(wrote, LeaseLost) else 2, bench.length(run_id))
        refused(StoreError, bench.store.append, work)


# ── a tool's own writes ──────────────────────────────────────────────────────────────────────


def effects(bench: Bench, run_id: str = "run", epoch: int = 1) -> list[int]:
    """What tools have written, read inside a transaction that is then given up."""

    class GiveUp(Exception):
        pass

    found: list[int] = []
    try:
        with bench.store.open_append(run_id, epoch) as opened:
            rows = opened.tx.execute("SELECT n FROM suite_effects ORDER BY n")
            found = [int(n) for (n,) in rows]
            raise GiveUp
    except GiveUp:
        return found


def _make_effect_table(bench: Bench) -> None:
    """A claimed run, and an empty table for tools to write to, made by a tool."""
    bench.create(worker="w")
    with bench.store.open_append("run", 1) as opened:
        opened.tx.execute("CREATE TABLE IF NOT EXISTS suite_effects (n INTEGER NOT NULL UNIQUE)")
        opened.tx.execute("DELETE FROM suite_effects")
        opened.commit(bench.work(epoch=1))


def a_tools_writes_commit_with_its_receipt(bench: Bench) -> None:
    """Effect and receipt, with blobs, row and key, in one transaction."""
    _make_effect_table(bench)
    change = RowChange(status="completed")
    work = bench.work(
        epoch=1, count=2, blobs=[Blob("aa", b"data")], change=change, claims_key="key"
    )
    with bench.store.open_append("run", 1) as opened:
        same([], opened.tx.execute("INSERT INTO suite_effects VALUES (1)"))
        same([(1,)], [tuple(row) for row in opened.tx.execute("SELECT n FROM suite_effects")])
        opened.commit(work)

    same(([1], 4, b"data"), (effects(bench), bench.length(), bench.store.blob("run", "aa")))
    same(("completed", ("run", 3)), (bench.row().status, bench.store.find_key("key")))


def a_tool_that_fails_leaves_nothing(bench: Bench) -> None:
    """Its error comes out as it is; its writes are gone."""
    _make_effect_table(bench)

    def fail() -> None:
        with bench.store.open_append("run", 1) as opened:
            opened.tx.execute("INSERT INTO suite_effects VALUES (1)")
            raise ZeroDivisionError

    refused(ZeroDivisionError, fail)
    same(([], 2), (effects(bench), bench.length()))
    bench.append(epoch=1)


def a_receipt_is_durable_when_it_is_acknowledged(bench: Bench) -> None:
    """What happens in the tool's block afterwards cannot undo it, nor add to it."""
    _make_effect_table(bench)
    work = bench.work(epoch=1)

    def fail_late() -> None:
        with bench.store.open_append("run", 1) as opened:
            opened.tx.execute("INSERT INTO suite_effects VALUES (1)")
            opened.commit(work)
            refused(StoreError, opened.tx.execute, "INSERT INTO suite_effects VALUES (2)")
            raise ZeroDivisionError

    refused(ZeroDivisionError, fail_late)
    same(([1], 3), (effects(bench), bench.length()))


def a_statement_that_fails_leaves_the_store_well(bench: Bench) -> None:
    """Wrong SQL, or a broken constraint, ends the tool's transaction and nothing else."""
    _make_effect_table(bench)

    def fail(statement: str) -> None:
        with bench.store.open_append("run", 1) as opened:
            opened.tx.execute("INSERT INTO suite_effects VALUES (1)")
            opened.tx.execute(statement)

    for statement in ("NO SUCH STATEMENT", "INSERT INTO suite_effects VALUES (1)"):
        refused(Exception, fail, statement)
    same(([], 2), (effects(bench), bench.length()))
    bench.append(epoch=1)


def a_tool_without_a_receipt_leaves_nothing(bench: Bench) -> None:
    """Effect present, receipt present: one is never without the other."""
    _make_effect_table(bench)

    def forget() -> None:
        with bench.store.open_append("run", 1) as opened:
            opened.tx.execute("INSERT INTO suite_effects VALUES (1)")

    refused(StoreError, forget)
    same(([], 2), (effects(bench), bench.length()))


def a_tool_cannot_end_its_transaction(bench: Bench) -> None:
    """COMMIT and ROLLBACK are not the tool's: they are refused, and effect and receipt stay one."""
    _make_effect_table(bench)
    work = bench.work(epoch=1)

    def meddle(statement: str) -> None:
        with bench.store.open_append("run", 1) as opened:
            opened.tx.execute("INSERT INTO suite_effects VALUES (1)")
            opened.tx.execute(statement)
            opened.commit(work)

    for statement in ("COMMIT", "ROLLBACK", "BEGIN", "END", "/* x */ commit", "SELECT 1; COMMIT"):
        refused(Exception, meddle, statement)
        same(([], 2), (effects(bench), bench.length()), f"after {statement}")


def a_tool_whose_lease_is_lost_leaves_nothing(bench: Bench) -> None:
    """Lost before it begins, or a receipt that does not fit: LeaseLost, Conflict, KeyTaken, NotFound."""
    _make_effect_table(bench)
    bench.create("other", worker="w")
    bench.append("other", epoch=1, claims_key="taken")
    begun: list[object] = []

    def attempt(work: Append, run_id: str = "run", epoch: int = 1) -> None:
        with bench.store.open_append(run_id, epoch) as opened:
            begun.append(opened)
            opened.tx.execute("INSERT INTO suite_effects VALUES (1)")
            opened.commit(work)

    work = bench.work(epoch=1)
    refused(LeaseLost, attempt, work, epoch=2)
    refused(LeaseLost, attempt, work, epoch=0)
    refused(NotFound, attempt, work, run_id="nobody")
    same([], begun, "tools begun without a lease")

    refused(LeaseLost, attempt, bench.work(epoch=2))
    refused(Conflict, attempt, Append("run", 0, sealed(_head_at(bench, 0), 1), 1))
    refused(KeyTaken, attempt, bench.work(epoch=1, claims_key="taken"))
    refused(InvalidInput, attempt, Append("run", 1, sealed(_head_at(bench, 0), 1), 1))
    same(([], 2), (effects(bench), bench.length()))

    attempt(work)
    same(([1], 3), (effects(bench), bench.length()))


def _head_at(bench: Bench, seq: int) -> Head:
    record = bench.log()[seq]
    return Head(record.seq, record.hash, record.time)


# ── the same place, opened again ─────────────────────────────────────────────────────────────


def what_was_written_is_there_after_reopening(bench: Bench) -> None:
    """Rows, logs, leases, keys, blobs and snapshots."""
    bench.create(worker="w", priority=4, parent="mother")
    bench.append(epoch=1, count=70, blobs=[Blob("aa", b"data")], claims_key="key")
    snapshot = Snapshot(3, b"\0hash", "v1", 12, b"\xffstate")
    bench.store.save_snapshot("run", snapshot)
    row, log = bench.row(), bench.log()
    bench.store.close()

    store = bench.reopened()
    if store is not None:
        same((row, log), (store.get("run"), store.read("run")))
        same((b"data", ("run", 70)), (store.blob("run", "aa"), store.find_key("key")))
        same((snapshot, None), (store.snapshot("run"), store.claim("run", worker="x", lease_us=1)))


def two_openings_of_one_place_see_the_same(bench: Bench) -> None:
    """As two processes would: runs, fences and leases are shared; an id used again is the new run."""
    other = bench.reopened()
    if other is None:
        return
    bench.create(worker="w")
    bench.append(epoch=1)
    same(None, other.claim("run", worker="x", lease_us=LEASE_US))
    stale = bench.work(epoch=1)
    other.append(bench.work(epoch=1))
    refused(Conflict, bench.store.append, stale)

    bench.settle()
    same(True, other.delete("run"))
    other.create(NewRun("run", "agent", "another"), sealed(origin("run"), 1))
    same(("another", 1), (bench.row().input_digest, bench.length()))
    bench.append()
    same((2, None), (len(other.read("run")), other.snapshot("run")))


def a_closed_store_refuses_work(bench: Bench) -> None:
    """It says that it is closed; closing again is harmless."""
    bench.create()
    work = bench.work()
    bench.store.close()
    bench.store.close()

    refused(StoreUnavailable, bench.store.append, work)
    refused(StoreUnavailable, bench.store.get, "run")
    refused(StoreUnavailable, bench.claim)


def what_has_waited_long_enough_comes_before_what_is_urgent(bench: Bench) -> None:
    """Nothing waits for ever: ten points of priority are worth ten minutes, and no more."""
    bench.create("low", priority=-5)
    bench.clock.advance(5 * 60 + 1)
    bench.create("middle")
    bench.clock.advance(10 * 60 + 2)
    bench.create("urgent", priority=10)

    same(["low", "middle", "urgent"], bench.due())
    for run_id in ("low", "middle", "urgent"):
        bench.settle(run_id, "pending", due_at=bench.clock.now())
    same(["urgent", "middle", "low"], bench.due())


def a_priority_out_of_range_is_refused(bench: Bench) -> None:
    """InvalidInput, and no run."""
    for priority in (11, -11, 10**9, True, 1.5):
        run = NewRun("run", "agent", "digest", priority=priority)  # type: ignore[arg-type]
        refused(InvalidInput, bench.store.create, run, sealed(origin("run"), 1))
    same([], bench.store.runs())


def due_runs_are_those_of_the_wanted_versions(bench: Bench) -> None:
    """A run that was recorded under a version that a worker may not run is left for others."""
    for version in ("", "1", "2"):
        bench.create(f"v{version}", code_version=version)

    same([], bench.due(Wanted("agent", "3")))
    same(["v2"], bench.due(Wanted("agent", "2")))
    same({"v", "v1"}, set(bench.due(Wanted("agent", "1"), Wanted("agent"))))


def runs_that_a_worker_still_executes_are_not_given_to_it_again(bench: Bench) -> None:
    """Not even when their lease has ended; others may take them."""
    bench.create("mine", worker="w")
    bench.create("other")
    bench.clock.advance(LEASE_SECONDS)

    same(["other"], bench.due(but=["mine"]))
    same(["mine"], bench.due(but=["other"]))


def no_more_runs_of_an_agent_are_under_way_than_it_allows(bench: Bench) -> None:
    """Counted over all workers and versions, and by live leases; other agents are not held up."""
    for i in range(4):
        bench.create(f"a{i}", agent="a", code_version=str(i % 2))
    bench.create("b", agent="b")
    wanted = [Wanted("a", "0", 2), Wanted("a", "1", 2), Wanted("b")]

    first = bench.due(*wanted)
    same((3, True), (len(first), "b" in first))
    same([], bench.due(*wanted))
    bench.settle(next(run_id for run_id in first if run_id != "b"))
    same(1, len(bench.due(*wanted)))
    same([], bench.due(*wanted))
    bench.clock.advance(LEASE_SECONDS)  # those who held them are gone
    same(2, len([run_id for run_id in bench.due(*wanted) if run_id != "b"]))


def workers_that_claim_at_once_keep_an_agents_limit(bench: Bench) -> None:
    """Eight workers, three places: three runs, each given to one."""
    for i in range(20):
        bench.create(f"r{i}")
    wanted = [Wanted("agent", "", 3)]
    claim = partial(bench.store.claim_due, lease_us=LEASE_US, limit=2, wanted=wanted)
    answers = together(*[partial(claim, worker=f"w{i}") for i in range(8)])

    same(3, len({row.id for rows in answers for row in rows}))
    same(3, sum(len(rows) for rows in answers))


def due_runs_are_taken_in_batches_and_in_order(bench: Bench) -> None:
    """Whatever the size of the batches: each run once, the longest due first."""
    for i in range(30):
        bench.create(f"r{i:02}")
        bench.clock.advance(0.001)
    taken: list[str] = []
    while found := bench.due(limit=7):
        taken += found

    same([f"r{i:02}" for i in range(30)], taken)


def the_kinds_of_runs_that_are_to_be_done_are_known(bench: Bench) -> None:
    """By agent and version, with the time of the next; those that wait for nobody's time are not."""
    same([], bench.store.kinds())
    start = bench.clock.now()
    bench.create("a1", agent="a")
    bench.clock.advance(1)
    bench.create("a2", agent="a")
    bench.create("b1", agent="b", code_version="2")
    bench.create("b2", agent="b", code_version="1", worker="w")
    bench.create("c", agent="c")
    bench.settle("c", "waiting")

    same(
        [
            Kind("a", "", start),
            Kind("b", "1", start + MICROSECONDS + LEASE_US),
            Kind("b", "2", start + MICROSECONDS),
        ],
        sorted(bench.store.kinds()),
    )
    same(start, bench.store.next_due([Wanted("a"), Wanted("b", "1")]))
    same(start + MICROSECONDS, bench.store.next_due([Wanted("b", "2"), Wanted("c")]))
    same(None, bench.store.next_due([Wanted("c"), Wanted("b", "3")]))
    same(None, bench.store.next_due([]))


def a_run_that_only_shows_signs_of_life_does_not_get_on(bench: Bench) -> None:
    """Claims are counted until the log grows by more than a claim or an intent; settling ends it."""
    bench.create()
    for count in (1, 2, 3):
        same(count, bench.claimed().claims)
        log = bench.store.read("run")
        head = Head(log[-1].seq, log[-1].hash, log[-1].time)
        signs = seal(head, [RunClaimed(worker="w")], epoch=count, time=bench.clock.now())[1]
        bench.store.append(Append("run", head.seq, signs, count))
        bench.clock.advance(LEASE_SECONDS)
    bench.append(epoch=3)
    same(1, bench.claimed().claims)
    bench.clock.advance(LEASE_SECONDS)
    same(2, bench.claimed().claims)
    bench.settle("run", "pending", due_at=bench.clock.now())
    same(1, bench.claimed().claims)


def a_run_that_was_given_back_is_not_counted_against(bench: Bench) -> None:
    """Its worker lives; unless that says that it died of the run."""
    bench.create()
    for _ in range(3):
        same(1, (row := bench.claimed()).claims)
        same(True, bench.store.release("run", row.epoch))
    same(1, (row := bench.claimed()).claims)
    same(True, bench.store.release("run", row.epoch, died=True))
    same(2, bench.claimed().claims)


def waiting_for_due_work_ends_only_for_what_is_wanted(bench: Bench) -> None:
    """Runs of others do not keep a worker awake; a nudge ends its wait."""
    bench.create(agent="other")
    mine = [Wanted("mine")]
    same(False, bench.store.wait_due(mine, timeout=0.02))
    same(True, bench.store.wait_due([Wanted("other")], timeout=0))

    stop = threading.Event()
    wait = partial(bench.store.wait_due, mine, timeout=PATIENCE_SECONDS, or_when=stop.is_set)

    def nudge() -> None:
        stop.set()
        bench.store.nudge()

    same([True, None], together(wait, nudge))
    same(True, wait(), "the answer when it is true already")


# ── schedules and limits ─────────────────────────────────────────────────────────────────────


def schedules_are_kept_changed_and_deleted(bench: Bench) -> None:
    """By their id; a changed one keeps when it was made and when it last was due."""
    schedules = bench.store.schedules
    one = Schedule("a", "agent", "* * * * *", "UTC", b"{}", 0, "latest", 5, 100)
    two = Schedule("b", "agent", "@daily", "Europe/Berlin", b'{"n":1}', 3, "all", 6, 50)
    schedules.put(one)
    schedules.put(two)
    same([one, two], schedules.all())

    same(True, schedules.advance(one, next_at=200, last_at=100))
    schedules.put(one._replace(cron="@hourly", created_at=9, next_at=300, last_at=7))
    same(one._replace(cron="@hourly", next_at=300, last_at=100), schedules.all()[0])
    same([True, False], [schedules.delete("a"), schedules.delete("a")])
    same([two], schedules.all())


def a_due_schedule_is_advanced_by_one_worker(bench: Bench) -> None:
    """Of several that have seen it due, and only if it is still as it was."""
    schedules = bench.store.schedules
    now = bench.clock.now()
    due = Schedule("due", "agent", "* * * * *", "UTC", b"{}", 0, "latest", 5, now)
    older = due._replace(id="older", next_at=now - 5)
    schedules.put(due)
    schedules.put(older)
    schedules.put(due._replace(id="later", next_at=now + 1))
    schedules.put(due._replace(id="foreign", agent="other"))

    same([older, due], schedules.due(["agent", "nobody"]))
    same(True, bench.store.wait_due([Wanted("agent")], timeout=0))
    same(False, bench.store.wait_due([Wanted("nobody")], timeout=0))
    answers = together(*[partial(schedules.advance, due, next_at=now + 9, last_at=now)] * 8)
    same(1, sum(answers))
    same([older], schedules.due(["agent"]))


def a_rate_is_kept_in_every_window(bench: Bench) -> None:
    """At most `count` begin within `per`; who comes later is told when, in the order of coming."""
    took = partial(
        bench.store.limits.take_turn, "mail", count=2, per_us=10 * MICROSECONDS, slack_us=0
    )
    start = bench.clock.now()
    same([None, None], [took("a"), took("b")])
    later = start + 10 * MICROSECONDS
    same([later, later, later + 10 * MICROSECONDS], [took("c"), took("d"), took("e")])
    same(later, took("c"), "the turn of one that asks again")
    same(None, bench.store.limits.take_turn("other", "a", count=1, per_us=1, slack_us=0))

    bench.clock.advance(10)
    same([None, None], [took("d"), took("c")])
    same(later + 10 * MICROSECONDS, took("e"))
    same(later + 10 * MICROSECONDS, took("c"), "a new turn, as the first was used")


def a_turn_that_was_missed_is_not_kept(bench: Bench) -> None:
    """After an outage those who had a turn queue again, so that they do not all begin at once."""
    took = partial(
        bench.store.limits.take_turn,
        "mail",
        count=1,
        per_us=10 * MICROSECONDS,
        slack_us=MICROSECONDS,
    )
    took("first")
    for i in range(5):
        took(f"w{i}")
    bench.clock.advance(3600)
    now = bench.clock.now()

    same(
        [None, *(now + i * 11 * MICROSECONDS for i in (1, 2, 3, 4))],
        [took(f"w{i}") for i in range(5)],
    )
    bench.clock.advance(11.5)
    same(None, took("w1"), "a little late is in time")


def many_that_come_at_once_keep_a_rate(bench: Bench) -> None:
    """Eight threads, three turns."""
    take = partial(bench.store.limits.take_turn, "mail", count=3, per_us=MICROSECONDS, slack_us=0)
    answers = together(*[partial(take, f"w{i}") for i in range(8)])

    same(3, sum(answer is None for answer in answers))
    same(2, len({answer for answer in answers if answer is not None}))


def seats_are_limited_and_end_with_the_lease(bench: Bench) -> None:
    """A holder has its seat until it leaves, or until its run's lease under that epoch ends."""
    limits = bench.store.limits
    for run_id in ("r1", "r2", "r3"):
        bench.create(run_id, worker="w")

    def take(run_id: str, epoch: int = 1) -> bool:
        return limits.take_seat("gpu", run_id, run_id=run_id, epoch=epoch, most=2)

    same([True, True, False], [take("r1"), take("r2"), take("r3")])
    same(True, take("r1"), "its own seat again")
    limits.leave_seat("gpu", "r1")
    same([True, False], [take("r3"), take("r1")])

    bench.clock.advance(LEASE_SECONDS)
    bench.claimed("r1")
    same(
        [True, True], [take("r1", 2), limits.take_seat("other", "r2", run_id="r2", epoch=1, most=1)]
    )
    bench.claimed("r2")
    bench.claimed("r3")
    same([True, False], [take("r2", 2), take("r3", 2)])


def seats_taken_at_once_are_not_more_than_there_are(bench: Bench) -> None:
    """Eight threads, three seats."""
    bench.create(worker="w")
    take = partial(bench.store.limits.take_seat, "gpu", run_id="run", epoch=1, most=3)
    answers = together(*[partial(take, f"h{i}") for i in range(8)])

    same(3, sum(answers))


# ── running the suite ────────────────────────────────────────────────────────────────────────

Check = Callable[[Bench], None]


STORE_CHECKS: Final[tuple[Check, ...]] = tuple(
    thing
    for name, thing in vars(sys.modules[__name__]).items()
    if inspect.isfunction(thing)
    and not name.startswith("_")
    and list(inspect.signature(thing).parameters) == ["bench"]
)


def store_checks() -> tuple[Check, ...]:
    """All checks. Each has a name that states the outcome, and a sentence as its docstring."""
    return STORE_CHECKS


def check_store(make_store: MakeStore, *, reopen: Reopen | None = None) -> None:
    """Run every check, each with a store of its own; raise with the names of those that failed.

    `make_store(clock)` returns a fresh, empty store whose time is `clock()`, in microseconds since
    1970. `reopen(store)` opens the same place once more while the given store stays open.
    """
    failures: list[Exception] = []
    for check in STORE_CHECKS:
        try:
            with Bench(make_store, reopen) as bench:
                check(bench)
        except Exception as error:  # noqa: BLE001 - collected, and raised together below
            error.add_note(f"{check.__name__}: {check.__doc__}")
            failures.append(error)
    if failures:
        names = ", ".join(error.__notes__[-1].partition(":")[0] for error in failures)
        raise ExceptionGroup(
            f"{len(failures)} of {len(STORE_CHECKS)} checks failed: {names}", failures
        )
