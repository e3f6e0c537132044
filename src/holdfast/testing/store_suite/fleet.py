"""What holds of registered agents, of schedules, and of limits that all workers keep together."""

from __future__ import annotations

from functools import partial

from holdfast.store.base import MICROSECONDS, ClaimFilter, RegisteredAgent, Schedule
from holdfast.testing.store_suite.bench import LEASE_SECONDS, Bench, same, together


def agents_are_registered_by_name_and_version(bench: Bench) -> None:
    """The last registration of a name and version counts; of one name the last version comes first."""
    agents = bench.store.agents
    same([], agents.all())
    old, new = RegisteredAgent("b", "1", b"{}", 5), RegisteredAgent("b", "2", b"{}", 6)
    agents.register([old, RegisteredAgent("a", "", b"{}", 9), new])
    agents.register([RegisteredAgent("a", "", b'{"n":1}', 7)])
    same([RegisteredAgent("a", "", b'{"n":1}', 7), new, old], agents.all())
    agents.register([])
    same(3, len(agents.all()))


def the_agents_that_have_runs_are_known(bench: Bench) -> None:
    """Each once, in order, registered or not."""
    same([], bench.store.agents.with_runs())
    for n, agent in enumerate(("b", "a", "b", "ä")):
        bench.create(f"run-{n}", agent=agent)
    same(["a", "b", "ä"], bench.store.agents.with_runs())


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

    same([older, due], schedules.due(["agent", "absent"]))
    same(True, bench.store.wait_due([ClaimFilter("agent")], timeout=0))
    same(False, bench.store.wait_due([ClaimFilter("absent")], timeout=0))
    answers = together(*[partial(schedules.advance, due, next_at=now + 9, last_at=now)] * 8)
    same(1, sum(answers))
    same([older], schedules.due(["agent"]))


def a_rate_is_kept_in_every_window(bench: Bench) -> None:
    """At most `count` start within `per`; later callers get the time of their turn, in the order of arrival."""
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
    """After an outage those who had a turn queue again, so that they do not all start at once."""
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
        return limits.take_seat("gpu", run_id, run_id=run_id, epoch=epoch, limit=2)

    same([True, True, False], [take("r1"), take("r2"), take("r3")])
    same(True, take("r1"), "its own seat again")
    limits.leave_seat("gpu", "r1")
    same([True, False], [take("r3"), take("r1")])

    bench.clock.advance(LEASE_SECONDS)
    bench.claimed("r1")
    same(
        [True, True],
        [take("r1", 2), limits.take_seat("other", "r2", run_id="r2", epoch=1, limit=1)],
    )
    bench.claimed("r2")
    bench.claimed("r3")
    same([True, False], [take("r2", 2), take("r3", 2)])


def seats_taken_at_once_are_not_more_than_there_are(bench: Bench) -> None:
    """Eight threads, three seats."""
    bench.create(worker="w")
    take = partial(bench.store.limits.take_seat, "gpu", run_id="run", epoch=1, limit=3)
    answers = together(*[partial(take, f"h{i}") for i in range(8)])

    same(3, sum(answers))
