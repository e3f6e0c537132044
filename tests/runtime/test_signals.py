"""Signals, durable timers, and recorded time and chance."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Approval,
    AsyncHoldfast,
    AsyncRun,
    Diverged,
    InvalidInput,
    NotFound,
    NotNow,
    Question,
    Run,
    RunFailed,
    RunWaiting,
    Timer,
    agent,
    step,
)
from holdfast.core import events as e
from support.runs import of_kind, waits


@agent
def one_signal(run: Run) -> Any:
    return run.wait_for("go")


def test_a_signal_brings_its_value(home: Any) -> None:
    hf = home.open()
    waiting = waits(hf, one_signal)
    assert waiting.waiting_for == "the signal 'go'"
    assert waiting.how == "hf.signal('r', 'go')"
    hf.signal("r", "go", {"n": [1, None]})

    assert home.open().run(one_signal, id="r") == {"n": [1, None]}


def test_a_signal_that_comes_before_the_wait_is_kept(home: Any) -> None:
    @agent
    def main(run: Run) -> Any:
        first = run.wait_for("first")
        return [first, run.wait_for("second")]

    hf = home.open(main)
    hf.start(main, id="r")
    hf.signal("r", "second", 2)
    hf.signal("r", "first", 1)

    assert hf.run(main, id="r") == [1, 2]


def test_signals_are_delivered_once_each_and_in_order(home: Any) -> None:
    @agent
    def main(run: Run) -> list[Any]:
        return [run.wait_for("n") for _ in range(3)]

    hf = home.open(main)
    hf.start(main, id="r")
    for n in range(3):
        hf.signal("r", "n", n)

    assert hf.run(main, id="r") == [0, 1, 2]
    taken = [x.source for x in of_kind(hf, "r", e.WaitEnded)]
    assert taken == sorted(set(taken))


def test_a_delivered_signal_is_not_delivered_again_after_a_restart(home: Any) -> None:
    @agent
    def main(run: Run) -> list[Any]:
        return [run.wait_for("n"), run.wait_for("n")]

    hf = home.open()
    waits(hf, main)
    hf.signal("r", "n", "only one")
    waits(hf, main)
    waits(home.open(), main)
    hf.signal("r", "n", "another")

    assert home.open().run(main, id="r") == ["only one", "another"]


def test_the_same_signal_id_counts_once(home: Any) -> None:
    hf = home.open()
    waits(hf, one_signal)
    for value in (1, 2, 3):
        hf.signal("r", "go", value, signal_id="webhook-7")

    assert len(of_kind(hf, "r", e.SignalReceived)) == 1
    assert hf.run(one_signal, id="r") == 1


def test_signals_from_many_threads_all_arrive_in_one_order(home: Any) -> None:
    @agent
    def main(run: Run) -> list[Any]:
        return [run.wait_for("n") for _ in range(24)]

    hf, other = home.open(main), home.open()
    hf.start(main, id="r")

    def send(n: int) -> None:
        for i in range(6):
            (hf, other)[i % 2].signal("r", "n", n * 10 + i, signal_id=f"{n}-{i}")
            hf.signal("r", "n", "twice", signal_id=f"{n}-{i}")

    threads = [threading.Thread(target=send, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    got = hf.run(main, id="r")

    assert sorted(got) == sorted(n * 10 + i for n in range(4) for i in range(6))
    for n in range(4):  # each sender's own order is kept
        assert [x for x in got if x // 10 == n] == [n * 10 + i for i in range(6)]


def test_a_signal_to_a_finished_or_unknown_run_is_refused(home: Any) -> None:
    @agent
    def main(run: Run) -> None: ...

    hf = home.open()
    hf.run(main, id="r")

    with pytest.raises(NotNow, match="is already completed"):
        hf.signal("r", "go")
    with pytest.raises(NotFound):
        hf.signal("nobody", "go")


@pytest.mark.parametrize("bad", ["", "  "])
def test_a_signal_needs_a_name(home: Any, bad: str) -> None:
    @agent
    def main(run: Run) -> None:
        run.wait_for(bad)

    hf = home.open()
    with pytest.raises(RunFailed, match="a signal needs a non-empty name"):
        hf.run(main, id="r")
    waits(hf, one_signal, "other")
    with pytest.raises(InvalidInput, match="a signal needs a non-empty name"):
        hf.signal("other", bad)


def test_wait_any_returns_the_first_event_and_keeps_the_others(home: Any) -> None:
    @agent
    def main(run: Run) -> list[Any]:
        first = run.wait_any("paid", "refused", "expired")
        run.state.first = first[0]
        return [first, run.wait_for("paid")]

    hf = home.open()
    assert "'paid' or 'refused' or 'expired'" in waits(hf, main).waiting_for
    hf.signal("r", "refused", "no money")
    hf.signal("r", "paid", 10)

    assert home.open().run(main, id="r") == [["refused", "no money"], 10]


def test_wait_any_and_wait_for_return_none_on_timeout(home: Any, clock: Any) -> None:
    @agent
    def main(run: Run) -> list[Any]:
        return [run.wait_any("a", "b", timeout=60), run.wait_for("c", timeout=60)]

    hf = home.open(main)
    waits(hf, main)
    clock.advance(60)
    assert hf.worker().run(once=True) == 1
    assert hf.handle("r").status == "waiting"
    clock.advance(60)
    hf.worker().run(once=True)

    assert hf.handle("r").result() == [None, None]


@agent
def choosing(run: Run) -> Any:
    first = run.wait_any(
        "paid", Approval("Ship anyway?", show={"to": "sam"}), Question("Why so late?"), timeout=3600
    )
    return [first, run.wait_for("paid", timeout=60)]


@pytest.mark.parametrize(
    ("act", "first"),
    [
        (lambda hf: hf.signal("r", "paid", 10), ["paid", 10]),
        (lambda hf: hf.approve("r", by="ann"), ["Ship anyway?", True]),
        (lambda hf: hf.reject("r", by="ann"), ["Ship anyway?", False]),
        (lambda hf: hf.answer("r", "snow"), ["Why so late?", "snow"]),
    ],
)
def test_wait_any_mixes_signals_and_people_and_cancels_the_losers(
    home: Any, clock: Any, act: Any, first: Any
) -> None:
    hf = home.open()
    said = waits(hf, choosing)
    assert (
        said.waiting_for == "the signal 'paid' or approval: Ship anyway? or an answer: Why so late?"
    )
    assert [w.wait for w in hf.get("r").waits] == ["signal", "approval", "answer"]

    act(hf)

    waits(home.open(), choosing)  # for the signal that comes next
    assert [w.wait for w in hf.get("r").waits] == ["signal"]
    with pytest.raises(NotNow, match="is not waiting for an approval"):
        hf.approve("r")
    with pytest.raises(NotNow, match="is not waiting for an answer"):
        hf.answer("r", "x")
    hf.signal("r", "paid", "late")
    assert home.open().run(choosing, id="r") == [first, "late"]


def test_of_several_events_the_first_in_the_log_wins(home: Any) -> None:
    hf = home.open()
    waits(hf, choosing)
    hf.answer("r", "snow")
    hf.signal("r", "paid", 10)
    hf.approve("r")

    # The signal that lost is kept for the next wait; the approval is of no use to anyone.
    assert home.open().run(choosing, id="r") == [["Why so late?", "snow"], 10]


def test_wait_any_returns_none_on_timeout_and_the_name_of_a_timer_that_fires_first(
    home: Any, clock: Any
) -> None:
    @agent
    async def timed(run: AsyncRun) -> Any:
        first = await run.wait_any(Approval("ok?"), Timer(60, "remind"), Timer(600), timeout=3600)
        return [first, await run.wait_any("go", Approval("ok?"), timeout=3600)]

    hf = home.open(timed)
    waits(hf, timed)
    for seconds in (60, 3600):
        clock.advance(seconds)
        assert hf.worker().run(once=True) == 1

    assert hf.handle("r").result() == [["remind", None], None]


def test_wait_any_refuses_what_it_cannot_wait_for(home: Any) -> None:
    @agent
    def main(run: Run, what: int) -> Any:
        return run.wait_any(*[[Timer(1), 7], [Timer(1)], []][what], timeout=5)

    for what, message in enumerate(
        ["not 7", "use another Timer", "a signal needs a non-empty name"]
    ):
        with pytest.raises(RunFailed, match=message):
            home.open().run(main, id=f"r{what}", what=what)


def test_a_wait_for_other_things_than_recorded_diverges(home: Any) -> None:
    def waiting_for(*what: Any) -> Any:
        @agent(name="main")
        def main(run: Run) -> Any:
            return run.wait_any(*what)

        return main

    hf = home.open()
    waits(hf, waiting_for("go", Approval("ok?")))
    for other in (("go", Approval("other?")), ("go", Approval("ok?"), Timer(5))):
        with pytest.raises(Diverged):
            home.open().run(waiting_for(*other), id="r")
    hf.approve("r")
    assert home.open().run(waiting_for("go", Approval("ok?")), id="r") == ["ok?", True]


def test_a_signal_after_the_timeout_does_not_change_the_recorded_outcome(
    home: Any, clock: Any
) -> None:
    @agent
    def main(run: Run) -> list[Any]:
        first = run.wait_for("go", timeout=60)
        return [first, run.wait_for("end"), run.wait_for("go", timeout=60)]

    hf = home.open()
    waits(hf, main)
    clock.advance(61)
    waits(home.open(), main)  # time is up
    hf.signal("r", "go", "late")
    hf.signal("r", "end", "end")

    assert home.open().run(main, id="r") == [None, "end", "late"]


def test_a_signal_recorded_before_the_timeout_wins(home: Any, clock: Any) -> None:
    @agent
    def main(run: Run) -> Any:
        return run.wait_for("go", timeout=60)

    hf = home.open()
    waits(hf, main)
    hf.signal("r", "go", "in time")
    clock.advance(3600)  # no one was there to see it

    assert home.open().run(main, id="r") == "in time"


# ── timers ───────────────────────────────────────────────────────────────────────────────────


def test_a_long_timer_suspends_the_run_and_survives_a_restart(home: Any, clock: Any) -> None:
    ran: list[str] = []

    @step
    def work(name: str) -> None:
        ran.append(name)

    @agent
    def main(run: Run) -> str:
        work("before")
        run.sleep(3600)
        work("after")
        return "done"

    with pytest.raises(RunWaiting, match="a timer"):
        home.open().run(main, id="r")
    clock.advance(3590)
    waits(home.open(), main)  # not early
    hf = home.open(main)
    assert hf.worker().run(once=True) == 0
    clock.advance(10)

    assert hf.worker().run(once=True) == 1
    assert hf.handle("r").result() == "done"
    assert ran == ["before", "after"]
    assert len([x for x in of_kind(hf, "r", e.WaitEnded) if x.wait == "timer"]) == 1


def test_a_near_timer_stays_in_the_process(home: Any, clock: Any) -> None:
    @agent
    def main(run: Run) -> str:
        run.sleep(2)
        return "done"

    start = clock.now()

    assert home.open().run(main, id="r") == "done"
    assert clock.now() - start == 2_000_000


def test_sleep_zero_is_recorded(home: Any) -> None:
    @agent
    def main(run: Run) -> None:
        run.sleep(0)

    hf = home.open()
    hf.run(main, id="r")
    assert len(of_kind(hf, "r", e.WaitEnded)) == 1


@pytest.mark.parametrize("bad", [-1, float("nan"), float("inf"), 10**13, "5", None, True])
def test_a_sleep_that_makes_no_sense_is_refused(home: Any, bad: Any) -> None:
    @agent
    def main(run: Run) -> str:
        try:
            run.sleep(bad)
        except InvalidInput as refused:
            return str(refused)
        return "?"

    assert "run.sleep must be a number of seconds" in home.open().run(main, id="r")


def test_the_end_of_time_can_be_waited_for(home: Any) -> None:
    @agent
    def main(run: Run) -> None:
        run.sleep(100 * 365 * 86400)

    waits(home.open(), main)


def test_a_clock_that_steps_back_neither_loses_nor_doubles_a_timer(home: Any, clock: Any) -> None:
    @agent
    def main(run: Run) -> str:
        run.sleep(100)
        return "done"

    hf = home.open(main)
    waits(hf, main)
    clock.advance(-3600)
    assert hf.worker().run(once=True) == 0
    clock.advance(3700)
    hf.worker().run(once=True)

    assert hf.handle("r").result() == "done"
    times = [record.time for record, _ in hf.events("r")]
    assert times == sorted(times)


# ── recorded time and chance ─────────────────────────────────────────────────────────────────


def test_now_random_and_uuid_are_the_same_on_every_replay(home: Any, clock: Any) -> None:
    seen: list[Any] = []

    @step
    def work() -> None: ...

    @agent
    def main(run: Run) -> list[Any]:
        first = [run.now().isoformat(), run.random(), str(run.uuid()), run.random()]
        work()
        second = [run.now().isoformat(), run.random(), str(run.uuid())]
        seen.append(first + second)
        run.wait_for("go")
        return first + second

    waits(home.open(), main)
    clock.advance(1000)
    waits(home.open(), main)
    hf = home.open()
    hf.signal("r", "go")

    assert hf.run(main, id="r") == seen[0]
    assert seen[0] == seen[1] == seen[2]
    first = seen[0]
    assert first[1] != first[3]
    assert len({first[1], first[3], first[5]}) == 3
    assert 0 <= first[1] < 1
    assert first[0].endswith("+00:00")


def test_now_is_the_stores_time(home: Any, clock: Any) -> None:
    @agent
    def main(run: Run) -> float:
        return run.now().timestamp()

    assert home.open().run(main, id="r") == clock.now() / 1_000_000


def test_recorded_chance_of_branches_is_their_own(home: Any) -> None:
    seen: list[Any] = []

    @agent
    def main(run: Run) -> None:
        seen.append(run.map(lambda _: run.random(), range(4)))
        run.wait_for("go")

    waits(home.open(), main)
    waits(home.open(), main)

    assert seen[0] == seen[1]
    assert len(set(seen[0])) == 4


def test_an_async_agent_waits_the_same_way(home: Any, clock: Any) -> None:
    @agent
    async def main(run: AsyncRun) -> Any:
        got = await run.wait_for("go")
        await run.sleep(3600)
        return [got, await run.wait_any("a", "b", timeout=60), run.random() == run.random()]

    hf = home.open(main)
    waits(hf, main)
    hf.signal("r", "go", 1)
    waits(home.open(), main)
    clock.advance(3600)
    waits(home.open(), main)
    clock.advance(61)

    assert home.open().run(main, id="r") == [1, None, False]


def test_a_signal_that_is_not_named_in_a_wait_stays_in_the_inbox(home: Any) -> None:
    hf = home.open()
    waits(hf, one_signal)
    hf.signal("r", "other", 1)
    waits(home.open(), one_signal)

    assert [s.name for s in hf.get("r").signals] == ["other"]


@pytest.mark.parametrize("name", ["time", "lost", "cut"])
def test_a_signal_may_have_any_name(home: Any, name: str) -> None:
    @agent
    def main(run: Run) -> list[Any]:
        return [run.wait_for(name, timeout=60), run.wait_any(name, Approval("ok?"), timeout=60)]

    hf = home.open(main)
    for value in (1, 2):
        with pytest.raises(RunWaiting):
            hf.run(main, id="r")
        hf.signal("r", name, value)

    assert hf.run(main, id="r") == [1, [name, 2]]


def test_async_runs_that_sleep_for_a_moment_take_no_thread(tmp_path: Path) -> None:
    """A loop has few of them: with one for each, the seventh run would sleep after the first."""
    sent: list[Any] = []

    class Watched(ThreadPoolExecutor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
            sent.append(getattr(fn, "args", (fn,))[0])
            return super().submit(fn, *args, **kwargs)

    @agent
    async def dozing(run: AsyncRun) -> str:
        await run.sleep(0.01)
        return "up"

    async def main() -> str:
        asyncio.get_running_loop().set_default_executor(Watched())
        async with AsyncHoldfast(tmp_path / "h.db") as hf:
            return str(await hf.run(dozing, id="r"))

    assert "up" == asyncio.run(main())
    assert time.sleep not in sent
