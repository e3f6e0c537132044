"""What holds of the runs that are to be done: which are due, in what order, and who is woken."""

from __future__ import annotations

import threading
from functools import partial

from holdfast.core.log import origin
from holdfast.errors import InvalidInput, LeaseLost
from holdfast.store.base import MICROSECONDS, ClaimFilter, Kind, NewRun, RowChange, RunRow
from holdfast.testing.store_suite.bench import (
    LEASE_SECONDS,
    LEASE_US,
    PATIENCE_SECONDS,
    Bench,
    refused,
    same,
    sealed,
    together,
)


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

    same([], bench.store.claim_due(worker="w", lease_us=LEASE_US, limit=9, filters=[]))
    same([], bench.due("absent"))
    same({"of-a", "of-c"}, set(bench.due("a", "c", "absent")))
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


def _next_due(bench: Bench) -> int | None:
    return min((kind.due_at for kind in bench.store.kinds()), default=None)


def the_next_due_time_is_known(bench: Bench) -> None:
    """The earliest of timers and lease ends; none when nothing will come by itself."""
    same(None, _next_due(bench))
    start = bench.clock.now()
    bench.create("leased", worker="w")
    same(start + LEASE_US, _next_due(bench))
    bench.create("new")
    same(start, _next_due(bench))
    bench.settle("new", "waiting", due_at=start + 3)
    same(start + 3, _next_due(bench))
    bench.settle("new", "completed")
    bench.settle("leased", "waiting")
    same(None, _next_due(bench))


def what_has_waited_long_enough_comes_before_what_is_urgent(bench: Bench) -> None:
    """Nothing waits forever: ten points of priority are worth ten minutes, and no more."""
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
        refused(InvalidInput, bench.make, run, sealed(origin("run"), 1))
    same([], bench.store.runs())


def due_runs_are_those_of_the_wanted_versions(bench: Bench) -> None:
    """A run that was recorded under a version that a worker may not run is left for others."""
    for version in ("", "1", "2"):
        bench.create(f"v{version}", code_version=version)

    same([], bench.due(ClaimFilter("agent", "3")))
    same(["v2"], bench.due(ClaimFilter("agent", "2")))
    same({"v", "v1"}, set(bench.due(ClaimFilter("agent", "1"), ClaimFilter("agent"))))


def runs_that_a_worker_still_executes_are_not_given_to_it_again(bench: Bench) -> None:
    """Not even when their lease has ended; others may take them."""
    bench.create("mine", worker="w")
    bench.create("other")
    bench.clock.advance(LEASE_SECONDS)

    same(["other"], bench.due(exclude=["mine"]))
    same(["mine"], bench.due(exclude=["other"]))


def no_more_runs_of_an_agent_are_under_way_than_it_allows(bench: Bench) -> None:
    """Counted over all workers and versions, and by live leases; other agents are not held up."""
    for i in range(4):
        bench.create(f"a{i}", agent="a", code_version=str(i % 2))
    bench.create("b", agent="b")
    wanted = [ClaimFilter("a", "0", 2), ClaimFilter("a", "1", 2), ClaimFilter("b")]

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
    wanted = [ClaimFilter("agent", "", 3)]
    claim = partial(bench.store.claim_due, lease_us=LEASE_US, limit=2, filters=wanted)
    answers = together(*[partial(claim, worker=f"w{i}") for i in range(8)])

    same(3, len({row.id for rows in answers for row in rows}))
    same(3, sum(len(rows) for rows in answers))


def a_named_run_is_claimed_within_its_agents_limit_if_asked(bench: Bench) -> None:
    """Claimed by its id, it counts like any other; eight workers, three places: three runs."""
    for i in range(8):
        bench.create(f"r{i}")
    quota = ClaimFilter("agent", "", 3)

    def claim(i: int) -> RunRow | None:
        return bench.store.claim(f"r{i}", worker=f"w{i}", lease_us=LEASE_US, quota=quota)

    answers = together(*[partial(claim, i) for i in range(8)])
    same(3, sum(row is not None for row in answers))
    left = next(i for i, row in enumerate(answers) if row is None)
    same(None, claim(left))
    same(True, bench.store.claim(f"r{left}", worker="w", lease_us=LEASE_US) is not None)
    bench.clock.advance(LEASE_SECONDS)  # those who held them are gone
    same(True, claim(left) is not None)


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
    """By agent and version, with the time of the next; runs that do not wait for a time are not."""
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
    wakes = ("parent", "second", "paused", "busy", "absent")
    refused(LeaseLost, bench.append, "child", epoch=7, change=RowChange(wakes=wakes))
    same("waiting", bench.row("parent").status)

    bench.append("child", epoch=1, change=RowChange(status="completed", wakes=wakes))
    statuses = [bench.row(run_id).status for run_id in wakes[:-1]]
    same(["pending", "pending", "paused", "running"], statuses)
    same({"parent", "second"}, set(bench.due()))


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
    same(False, bench.store.wait("absent", after=-1, timeout=0.02))


def waiting_ends_with_an_append(bench: Bench) -> None:
    """Made by another thread of this process, or through another opening of the same place."""
    bench.create()
    for store in (bench.store, bench.reopened()):
        if store is None:
            continue
        last = bench.length() - 1
        answers = together(
            partial(bench.store.wait, "run", after=last, timeout=PATIENCE_SECONDS),
            store.submit(bench.work()).wait,
        )
        same(True, answers[0])


def waiting_for_due_work_ends_when_there_is_some(bench: Bench) -> None:
    """True at once if something is due, True when something becomes due, False when time is over."""
    any_run = [ClaimFilter("agent")]
    same(False, bench.store.wait_due(any_run, timeout=0.02))
    waits = partial(bench.store.wait_due, any_run, timeout=PATIENCE_SECONDS)
    answers = together(waits, bench.create)
    same(True, answers[0])
    same(True, bench.store.wait_due(any_run, timeout=0))
    bench.due()
    same(False, bench.store.wait_due(any_run, timeout=0))
    same(True, bench.store.release("run", 1))
    same(True, bench.store.wait_due(any_run, timeout=PATIENCE_SECONDS))


def waiting_for_due_work_ends_only_for_what_is_wanted(bench: Bench) -> None:
    """Runs of others do not keep a worker awake; a nudge ends its wait."""
    bench.create(agent="other")
    mine = [ClaimFilter("mine")]
    same(False, bench.store.wait_due(mine, timeout=0.02))
    same(True, bench.store.wait_due([ClaimFilter("other")], timeout=0))

    stop = threading.Event()
    wait = partial(bench.store.wait_due, mine, timeout=PATIENCE_SECONDS, stop_when=stop.is_set)

    def nudge() -> None:
        stop.set()
        bench.store.nudge()

    same([True, None], together(wait, nudge))
    same(True, wait(), "the answer when it is true already")
