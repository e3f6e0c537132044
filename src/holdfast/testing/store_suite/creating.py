"""What holds when runs are created."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from holdfast.core.log import Blob, origin
from holdfast.errors import InputConflict, InvalidInput, KeyTaken
from holdfast.store.base import Creation, NewRun, RunRow
from holdfast.testing.store_suite.bench import (
    LEASE_US,
    Bench,
    counted,
    refused,
    same,
    sealed,
    together,
)


def a_new_run_is_pending_and_due_at_once(bench: Bench) -> None:
    """A run created without an owner can be claimed by any worker at once."""
    run = NewRun("run", "agent", "digest", code_version="v7", parent="mother", priority=3)
    row, created = bench.make(run, sealed(origin("run"), 2))

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


def a_run_is_created_with_the_keys_that_its_events_hold(bench: Bench) -> None:
    """They are taken from then on; one that another run holds stays where it is."""
    bench.create("holder")
    bench.append("holder", claims_key="taken")
    run, records = NewRun("run", "agent", "digest"), sealed(origin("run"), 3)
    bench.make(run, records, keys=[("own", 1), ("taken", 2)])
    bench.make(run, records, keys=[("never", 1)])

    same(("run", 1), bench.store.find_key("own"))
    same(("holder", 1), bench.store.find_key("taken"))
    same(None, bench.store.find_key("never"), "it existed already: nothing is written")
    error = refused(KeyTaken, bench.append, claims_key="own")
    same(("run", 1), (error.run_id, error.seq))
    same(3, bench.length())
    bad = [("nul\0", 1)]
    refused(
        InvalidInput,
        bench.make,
        NewRun("bad", "a", "d"),
        sealed(origin("bad"), 1),
        keys=bad,
    )
    same(None, bench.store.get("bad"))


def a_run_created_for_a_worker_is_its_own(bench: Bench) -> None:
    """It has the first epoch and a lease from the beginning, and no other worker can claim it."""
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
        row, created = bench.make(again, sealed(origin("run"), 3), worker="x", lease_us=LEASE_US)
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
            bench.make,
            run,
            sealed(origin("run"), 1),
            blobs=[blob],
            worker="w",
            lease_us=LEASE_US,
        )
        same("run", error.run_id)
    same((before, log, None), (bench.row(), bench.log(), bench.store.blob("run", "aa")))


def creating_one_id_at_once_creates_it_once(bench: Bench) -> None:
    """Many callers, one run: one of them created it, the others get the same row."""
    run, records = NewRun("run", "agent", "digest"), sealed(origin("run"), 1)
    answers = together(*[partial(bench.make, run, records)] * 8)

    same({"tuple": 8}, counted(answers))
    same(1, sum(created for _, created in answers))
    same(1, len({row for row, _ in answers}))
    same(1, bench.length())


def blobs_of_a_new_run_are_kept(bench: Bench) -> None:
    """Big inputs lie next to the log from the first moment."""
    run = NewRun("run", "agent", "digest")
    bench.make(run, sealed(origin("run"), 1), blobs=[Blob("aa", b"big"), Blob("bb", b"")])

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
        refused(InvalidInput, bench.make, run, records)
    same([], bench.store.runs())


def runs_created_together_are_each_created_once(bench: Bench) -> None:
    """Those that exist are found as they are, one that was meant otherwise fails alone."""
    bench.create("there")

    def wanted(run_id: str, digest: str = "digest") -> Creation:
        records = sealed(origin(run_id), 1, epoch=1, time=bench.clock.now())
        run = NewRun(run_id, "agent", digest)
        return Creation(run, records, [Blob("aa", run_id.encode())], "w", LEASE_US)

    async def create_all() -> list[Any]:
        batch = [*map(wanted, "dcab"), wanted("a"), wanted("there"), wanted("b", "other")]
        answers = map(bench.store.create, batch)
        return await asyncio.gather(*answers, return_exceptions=True)

    *answers, conflict = asyncio.run(create_all())
    same("InputConflict", type(conflict).__name__)
    same([*"dcab", "a", "there"], [one.made[0].id for one in answers])
    is_new = [one.is_new for one in answers]
    same([True, True, True, False], [is_new[0], is_new[1], is_new[3], is_new[5]])
    same(1, is_new[2] + is_new[4])
    same(["w"] * 5 + [""], [one.made[0].owner for one in answers])
    same([b"d", b"c", b"a", b"b"], [bench.store.blob(run_id, "aa") for run_id in "dcab"])
    same([1] * 4, [bench.length(run_id) for run_id in "dcab"])
    for run_id in "dcab":
        bench.append(run_id, epoch=1)
