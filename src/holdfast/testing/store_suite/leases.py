"""What holds between a run and the one worker that has it."""

from __future__ import annotations

from functools import partial

from holdfast.core.events import RunClaimed
from holdfast.core.log import Head, seal
from holdfast.errors import LeaseLost, StoreError
from holdfast.store.base import UNCLAIMABLE_STATUSES, Append, RowChange
from holdfast.testing.store_suite.bench import (
    LEASE_SECONDS,
    LEASE_US,
    Bench,
    counted,
    expect,
    refused,
    same,
    together,
)


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
    """Due or not: a caller that knows why it should continue now may claim it."""
    bench.create()
    bench.settle("run", "waiting", waiting_for="a person", waiting_kinds="person")

    same([], bench.due())
    same(["person"], [row.waiting_kinds for row in bench.store.runs()])
    row = bench.claimed()
    same(("running", "", ""), (row.status, row.waiting_for, row.waiting_kinds))


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
    """Even when no worker has claimed the run: another one may be about to."""
    bench.create(worker="w")
    bench.clock.advance(LEASE_SECONDS)

    same({"run"}, bench.store.renew([("run", 1)], lease_us=LEASE_US))
    same(["run"], bench.due())


def renewing_tells_lost_leases_from_held_ones(bench: Bench) -> None:
    """One answer for many runs: expired, taken over, resolved, released, unknown are lost."""
    for run_id in ("held", "settled", "released", "newer"):
        bench.create(run_id, worker="w")
    bench.settle("settled", "waiting", due_at=bench.clock.now() + 1)
    bench.store.release("released", 1)
    held = [("held", 1), ("settled", 1), ("released", 1), ("newer", 2), ("absent", 1)]

    same({"settled", "released", "newer", "absent"}, bench.store.renew(held, lease_us=LEASE_US))
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
    """Status, due time and what it is waiting for are as given; the owner is cleared, the epoch stays."""
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
        change = RowChange(status, due_at, "a sign", waiting_kinds="signal timer")
        bench.append(run_id, epoch=1, change=change)
        row = bench.row(run_id)
        same((status, due_at, "a sign"), (row.status, row.due_at, row.waiting_for))
        same("signal timer", row.waiting_kinds)
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


def a_run_that_was_released_is_not_counted_against(bench: Bench) -> None:
    """Its worker lives; unless that says that it died of the run."""
    bench.create()
    for _ in range(3):
        same(1, (row := bench.claimed()).claims)
        same(True, bench.store.release("run", row.epoch))
    same(1, (row := bench.claimed()).claims)
    same(True, bench.store.release("run", row.epoch, died=True))
    same(2, bench.claimed().claims)
