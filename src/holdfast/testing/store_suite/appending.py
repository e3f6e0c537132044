"""What holds when events are appended: alone, in batches, and by many at once."""

from __future__ import annotations

import asyncio
from functools import partial

from holdfast.core.log import Blob, Head, Record, origin
from holdfast.errors import Conflict, InvalidInput, KeyTaken, LeaseLost, NotFound, StoreError
from holdfast.store.base import Append, RowChange
from holdfast.testing.store_suite.bench import (
    LEASE_SECONDS,
    Bench,
    counted,
    refused,
    same,
    sealed,
    together,
)


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
    """A signal or a decision is appended whichever worker owns the run, and does not change its row."""
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
    records = sealed(origin("absent"), 1)
    for epoch in (None, 1):
        refused(NotFound, bench.store.append, Append("absent", -1, records, epoch))
    same([], bench.store.read("absent"))


def an_append_that_makes_no_sense_is_refused(bench: Bench) -> None:
    """Gaps, keys without a record, impossible states: InvalidInput, nothing is written."""
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
    """Eight runs ask for it in eight threads: seven get an error that names the holder."""
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

    same(
        ["KeyTaken", "Conflict", "NoneType"],
        [type(answer).__name__ for answer in bench.write_together(batch)],
    )
    same((1, 2), (bench.length("run"), bench.length("other")))


def an_append_whose_caller_is_cancelled_comes_to_its_end_first(bench: Bench) -> None:
    """Its caller gets the cancellation when the append is durable, and not before."""
    bench.create(worker="w")
    found: list[int] = []

    async def write() -> None:
        try:
            await bench.store.submit(bench.work(epoch=1))
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
    """Eight threads append after the same event: one wins, the others get a Conflict, each time."""
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
                await bench.store.submit(bench.work(run_id, epoch=1))

        await asyncio.gather(*[write(f"run-{i}") for i in range(8)])

    def write(run_id: str) -> None:
        for _ in range(5):
            bench.append(run_id, epoch=1)

    threads = [partial(write, f"run-{i}") for i in range(8, 16)]
    same([None] * 9, together(lambda: asyncio.run(write_all()), *threads))
    same([6] * 16, [bench.length(f"run-{i}") for i in range(16)])


def one_stale_append_in_a_batch_fails_alone(bench: Bench) -> None:
    """Those that are sent together with it are written."""
    for i in range(10):
        bench.create(f"run-{i}", worker="w")
    batch = [bench.work(f"run-{i}", epoch=1) for i in range(10)]
    batch[3] = bench.work("run-3", epoch=2)
    batch[6] = Append("absent", -1, sealed(origin("absent"), 1), 1)
    batch[8] = Append("run-8", 4, sealed(Head(4, b"", 0), 1), 1)

    answers = bench.write_together(batch)
    same({"Conflict": 1, "LeaseLost": 1, "NoneType": 7, "NotFound": 1}, counted(answers))
    kinds = [type(answers[i]) for i in (3, 6, 8)]
    same([LeaseLost, NotFound, Conflict], kinds)
    same(
        [2, 2, 2, 1, 2, 2, 2, 1, 2], [bench.length(f"run-{i}") for i in (0, 1, 2, 3, 4, 5, 7, 8, 9)]
    )
