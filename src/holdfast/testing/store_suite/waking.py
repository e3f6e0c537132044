"""What holds of wake-ups: each one counts, and a run is suspended only if none came since its worker looked."""

from __future__ import annotations

from holdfast.core.log import Blob
from holdfast.errors import Woken
from holdfast.store.base import Append, RowChange
from holdfast.testing.store_suite.bench import LEASE_US, Bench, refused, same


def every_wake_counts_whatever_the_run_is_doing(bench: Bench) -> None:
    """Pending, running, waiting or paused: `woken` grows by one with each append that wakes the run."""
    same(0, bench.create(worker="w").woken)
    bench.append(change=RowChange(wake=True))
    same(("running", 1), _status_and_count(bench))
    bench.settle(status="waiting")
    bench.append(change=RowChange(wake=True))
    same(("pending", 2), _status_and_count(bench))
    bench.append(change=RowChange(wake=True))
    same(("pending", 3), _status_and_count(bench))
    bench.settle(status="paused")
    bench.append(change=RowChange(wake=True))
    same(("paused", 4), _status_and_count(bench))

    bench.append()
    bench.settle(status="waiting")
    same(("waiting", 4), _status_and_count(bench), "an append that does not wake it")


def a_wake_by_another_run_counts_also_while_the_run_is_running(bench: Bench) -> None:
    """The end of a child counts for its parent even if the parent cannot become due by it."""
    bench.create("parent", worker="w")
    bench.create("child", worker="w")
    before = bench.row("parent")
    bench.append("child", epoch=1, change=RowChange(status="completed", wakes=("parent",)))

    after = bench.row("parent")
    same(("running", before.due_at, before.owner), (after.status, after.due_at, after.owner))
    same((0, 1), (before.woken, after.woken))


def the_count_of_wakes_is_in_every_row_that_is_returned(bench: Bench) -> None:
    """A claimed row, a listed row and a row by its id have the same count."""
    bench.create()
    bench.append(change=RowChange(wake=True))
    bench.append(change=RowChange(wake=True))

    same((2, [2]), (bench.row().woken, [row.woken for row in bench.store.runs()]))
    same(2, bench.claimed().woken)
    bench.store.release("run", 1)
    rows = bench.store.claim_due(worker="w", lease_us=LEASE_US, limit=1, filters=bench.kinds())
    same([2], [row.woken for row in rows])


def a_run_is_suspended_if_nothing_has_woken_it_since(bench: Bench) -> None:
    """A current count is accepted: the run waits, its lease has ended, and its due time is the given one."""
    bench.create(worker="w")
    bench.append(change=RowChange(wake=True))
    due_at = bench.clock.now() + LEASE_US
    bench.append(epoch=1, change=RowChange("waiting", due_at, "a signal", woken=1))

    row = bench.row()
    same(("waiting", due_at, "a signal", ""), (row.status, row.due_at, row.waiting_for, row.owner))
    same((1, 3), (row.woken, bench.length()))


def a_run_that_was_woken_since_is_not_suspended(bench: Bench) -> None:
    """Woken, and nothing of the append is written: no record, blob or key, and no other run is woken."""
    bench.create(worker="w")
    bench.create("other")
    bench.settle("other", "waiting")
    bench.append(change=RowChange(wake=True))
    change = RowChange("waiting", None, "a signal", wakes=("other",), woken=0)
    before = bench.row()
    work = bench.work(epoch=1, change=change, blobs=[Blob("aa", b"x")], claims_key="key")

    same("run", refused(Woken, bench.store.append, work).run_id)
    same((before, 2), (bench.row(), bench.length()))
    same((None, None), (bench.store.blob("run", "aa"), bench.store.find_key("key")))
    same(("waiting", 0), _status_and_count(bench, "other"))

    bench.append(epoch=1, change=RowChange("waiting", None, "a signal", woken=1))
    same(("waiting", 1), _status_and_count(bench))


def a_run_that_another_run_woke_since_is_not_suspended(bench: Bench) -> None:
    """Its own log has not grown: only the count shows that a child has ended."""
    bench.create("parent", worker="w")
    bench.create("child", worker="w")
    suspension = bench.work("parent", epoch=1, change=RowChange("waiting", woken=0))
    bench.append("child", epoch=1, change=RowChange(status="failed", wakes=("parent",)))

    refused(Woken, bench.store.append, suspension)
    same(("running", 1), _status_and_count(bench, "parent"))
    same(1, bench.length("parent"))


def a_run_that_another_run_woke_after_its_last_append_is_not_suspended(bench: Bench) -> None:
    """A store may remember where a log ends, but not how often its run was woken: by itself, or in one batch."""
    for run_id in ("parent", "first", "second"):
        bench.create(run_id, worker="w")
    bench.append("parent", epoch=1)
    bench.append("first", epoch=1, change=RowChange(status="failed", wakes=("parent",)))
    refused(Woken, bench.append, "parent", epoch=1, change=RowChange("waiting", woken=0))

    answers = _sent_together(
        bench,
        bench.work("parent", epoch=1),
        bench.work("second", epoch=1, change=RowChange(status="completed", wakes=("parent",))),
    )
    refused(Woken, bench.append, "parent", epoch=1, change=RowChange("waiting", woken=1))
    same([None, None], answers)
    same(("running", 2, 3), (*_status_and_count(bench, "parent"), bench.length("parent")))


def a_wake_in_the_same_batch_refuses_a_suspension_behind_it(bench: Bench) -> None:
    """Sent together, in this order: what ended the child is written, and its parent is not suspended."""
    bench.create("parent", worker="w")
    bench.create("child", worker="w")
    bench.create("bystander", worker="w")
    answers = _sent_together(
        bench,
        bench.work("child", epoch=1, change=RowChange(status="completed", wakes=("parent",))),
        bench.work("parent", epoch=1, change=RowChange("waiting", woken=0)),
        bench.work("bystander", epoch=1, change=RowChange("waiting", woken=0)),
    )

    same([None, "Woken", None], answers)
    same(("running", 1), _status_and_count(bench, "parent"))
    same((2, 1, 2), tuple(map(bench.length, ("child", "parent", "bystander"))))


def a_wake_of_its_own_log_in_the_same_batch_refuses_a_suspension_behind_it(bench: Bench) -> None:
    """A signal and the suspension that is chained to it: the signal is written, and the run not suspended."""
    bench.create(worker="w")
    signal, suspension = bench.work(count=2).records
    answers = _sent_together(
        bench,
        Append("run", 0, [signal], None, RowChange(wake=True)),
        Append("run", 1, [suspension], None, RowChange("waiting", woken=0)),
    )

    same([None, "Woken"], answers)
    same(("running", 1, 2), (*_status_and_count(bench), bench.length()))


def a_wake_behind_a_suspension_makes_the_run_due(bench: Bench) -> None:
    """By its own log or by another run, sent later or in the same batch: the run can be claimed at once."""
    for run_id in ("alone", "batched"):
        bench.create(run_id, worker="w")
        bench.create(f"child-of-{run_id}", worker="w")
    ends = {
        run_id: bench.work(
            f"child-of-{run_id}", epoch=1, change=RowChange(status="completed", wakes=(run_id,))
        )
        for run_id in ("alone", "batched")
    }
    bench.append("alone", epoch=1, change=RowChange("waiting", woken=0))
    bench.store.append(ends["alone"])
    suspension = bench.work("batched", epoch=1, change=RowChange("waiting", woken=0))
    same([None, None], _sent_together(bench, suspension, ends["batched"]))

    same([("pending", 1)] * 2, [_status_and_count(bench, run_id) for run_id in ends])
    same({"alone", "batched"}, set(bench.due()))


def _status_and_count(bench: Bench, run_id: str = "run") -> tuple[str, int]:
    row = bench.row(run_id)
    return row.status, row.woken


def _sent_together(bench: Bench, *batch: Append) -> list[str | None]:
    """Appends that are given to the store in one turn of an event loop; the names of their errors."""

    return [
        None if answer is None else type(answer).__name__ for answer in bench.write_together(batch)
    ]
