"""Calls that the agent's own code stops waiting for: a time limit, a failed sibling, a lost race.

What the code saw then, it sees again when the run is resumed: no answer. What such a call did is not
guessed: a tool that may have acted is in doubt.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Approval,
    AsyncRun,
    Diverged,
    Holdfast,
    NotNow,
    Options,
    Run,
    RunCancelled,
    RunFailed,
    RunWaiting,
    Timer,
    agent,
    control,
    step,
    tool,
)
from holdfast.core import events as e
from holdfast.runtime.call import recover
from holdfast.runtime.lines import unasked
from support.waiting import eventually

happened: list[str] = []
when_begun: list[Callable[[], None]] = []


@pytest.fixture(autouse=True)
def _nothing_happened_yet() -> None:
    happened.clear()
    when_begun.clear()


async def _never(name: str) -> None:
    happened.append(f"{name} begins")
    for act in when_begun:
        act()
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        happened.append(f"{name} ends")


@step
async def slow_step(name: str) -> str:
    await _never(name)
    return name


@tool
async def slow_keyed(name: str, idempotency_key: str = "") -> str:
    await _never(name)
    return name


@tool
async def slow_once(name: str) -> str:
    await _never(name)
    return name


def _look_up(key: str) -> str | None:
    return "it was sent" if "happened" in happened else None


@tool(check=_look_up)
async def slow_checked(name: str) -> str:
    happened.append("happened")
    await _never(name)
    return name


@tool
async def quick(name: str, idempotency_key: str = "") -> str:
    happened.append(f"quick {name}")
    return name


@step
async def fails(name: str) -> str:
    happened.append(f"fails {name}")
    if happened.count(f"fails {name}") > 1:
        return name
    raise ValueError("no")


@step
async def fails_always(name: str) -> str:
    await asyncio.sleep(0)
    raise ValueError(name)


async def too_late(slow: Any) -> str:
    """The limit begins when the call has, and on replay at once: no time is guessed."""
    begun = asyncio.Event()
    when_begun[:] = [begun.set]
    if "x begins" in happened:
        begun.set()
    call = asyncio.ensure_future(slow("x"))
    await begun.wait()
    try:
        return str(await asyncio.wait_for(call, 0.001))
    except TimeoutError:
        return "too late"


async def in_time(slow: Any) -> str:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(None) as limit:
            when_begun[:] = [lambda: limit.reschedule(loop.time())]
            if "x begins" in happened:
                when_begun[0]()
            return str(await slow("x"))
    except TimeoutError:
        return "too late"


async def beside_a_failure(slow: Any) -> str:
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(slow("x"))
            group.create_task(fails_always("y"))
    except* Exception:
        pass
    return "too late"


async def beaten(slow: Any) -> str:
    tasks = [asyncio.create_task(slow("x")), asyncio.create_task(quick("winner"))]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await asyncio.wait(pending)
    return "too late" if next(iter(done)).result() == "winner" else "?"


WAYS = [too_late, in_time, beside_a_failure, beaten]


def impatient(way: Callable[[Any], Any], slow: Any) -> Any:
    @agent(name="impatient")
    async def main(run: AsyncRun) -> list[str]:
        found = [await way(slow)]
        found.append(await quick("fallback"))
        await run.wait_for("go")
        return found

    return main


@pytest.mark.parametrize("slow", [slow_step, slow_keyed], ids=["step", "keyed"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_code_that_stopped_waiting_continues_and_is_resumed_where_it_was(
    home: Any, way: Any, slow: Any
) -> None:
    main = impatient(way, slow)
    with pytest.raises(RunWaiting, match="go"):
        home.open().run(main, id="r")
    before = list(happened)
    assert before.count("x begins") == before.count("x ends") == 1

    with pytest.raises(RunWaiting, match="go"):
        home.open().run(main, id="r")
    hf = home.open(main)
    hf.signal("r", "go")

    assert hf.run(main, id="r") == ["too late", "fallback"]
    assert happened == before  # neither is made again
    call = next(c for c in hf.get("r").calls if c.name == slow.__name__)
    assert ("failed", "Cancelled") == (call.status, call.error and call.error.type)
    assert hf.verify("r").ok


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_tool_that_may_have_acted_is_in_doubt_and_the_run_waits(home: Any, way: Any) -> None:
    main = impatient(way, slow_once)

    with pytest.raises(RunWaiting, match="may or may not have happened"):
        home.open().run(main, id="r")

    assert "quick fallback" not in happened
    hf = home.open(main)
    call = next(c for c in hf.get("r").calls if c.name == "slow_once")
    assert "in_doubt" == call.status
    hf.resolve("r", call.step, done="it was sent", by="ann")
    hf.signal("r", "go")
    if way is not beaten:  # there the other one may have won: who was first is told again
        said = "too late" if way is beside_a_failure else "it was sent"
        assert hf.run(main, id="r") == [said, "fallback"]
    assert happened.count("x begins") == 1


def test_a_check_reports_what_happened_to_a_cancelled_tool_call(home: Any) -> None:
    main = impatient(too_late, slow_checked)
    with pytest.raises(RunWaiting, match="go"):
        home.open().run(main, id="r")
    hf = home.open(main)
    hf.signal("r", "go")

    assert hf.run(main, id="r") == ["it was sent", "fallback"]
    assert happened.count("x begins") == 1


def test_a_check_that_the_code_does_not_wait_for_leaves_the_call_in_doubt(home: Any) -> None:
    answers: list[str] = []

    async def look_up(_: str) -> str:
        if not answers:
            await _never("x")
        return answers[0]

    @tool(check=look_up)
    async def pay() -> str:
        happened.append("paid")
        return "paid"

    main = impatient(in_time, lambda _: pay())
    home.crash(main, "r", at="before commit call_succeeded")
    home.clock.advance(31)
    with pytest.raises(RunWaiting, match="may or may not have happened"):
        home.open().run(main, id="r")

    answers.append("found")
    hf = home.open(main)
    hf.signal("r", "go")
    assert hf.run(main, id="r") == ["found", "fallback"]
    assert happened.count("paid") == 1


def test_a_run_that_failed_next_to_it_repeats_the_call_when_it_is_resumed(home: Any) -> None:
    """Nothing was done after it was cancelled: it is part of what failed."""
    release: list[str] = []

    @step
    async def other(name: str) -> str:
        happened.append(f"other {name}")
        if not release:
            await asyncio.get_running_loop().create_future()
        return name

    @agent(name="grouped")
    async def main(_: AsyncRun) -> list[str]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(other("a")), group.create_task(fails("b"))]
        return [task.result() for task in tasks]

    with pytest.raises(RunFailed):
        home.open().run(main, id="r")
    release.append("now")

    assert home.open(main).resume("r") == ["a", "b"]
    assert sorted(happened) == ["fails b", "fails b", "other a", "other a"]


def test_a_child_run_whose_parent_no_longer_waits_is_cancelled(home: Any) -> None:
    @agent(name="child")
    async def child(_: AsyncRun) -> str:
        return await slow_step("x")

    main = impatient(too_late, lambda _: child())
    with pytest.raises(RunWaiting, match="go"):
        home.open(child).run(main, id="r")
    hf = home.open(main, child)
    assert hf.get("r~1").cancel_requested

    hf.worker().run(once=True)

    assert "cancelled" == hf.get("r~1").status
    assert happened.count("x begins") == 1


def test_a_child_run_is_cancelled_though_its_parents_task_is_cancelled_twice(home: Any) -> None:
    tasks: list[asyncio.Task[Any]] = []

    @agent(name="child")
    async def child(_: AsyncRun) -> str:
        return await slow_step("x")

    @agent(name="cancels")
    async def main(run: AsyncRun) -> None:
        tasks.append(asyncio.create_task(child()))
        when_begun[:] = [tasks[-1].cancel]
        await asyncio.wait(tasks[-1:])
        assert tasks[-1].cancelled()
        await run.wait_for("go")

    def cancel_again(name: str) -> None:
        if name == "before ask_to_cancel" and "again" not in happened:
            happened.append("again")
            tasks[0].cancel()

    with pytest.raises(RunWaiting, match="go"):
        home.open(child, boundary=cancel_again).run(main, id="r")

    assert "again" in happened
    hf = home.open(child)
    assert hf.get("r~1").cancel_requested
    assert 1 == sum(isinstance(x, e.CallFailure) for _, x in hf.events("r"))


def test_a_child_run_is_cancelled_though_the_process_died_before_it_cancelled_it(
    home: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by the fuzzer (seed 400022): the child was executed to its end though no one waited for it."""

    @agent(name="child")
    async def child(_: AsyncRun) -> str:
        return await slow_step("x")

    main = impatient(too_late, lambda _: child())
    monkeypatch.setattr(recover, "ask_to_cancel", lambda store, run_id: None)
    with pytest.raises(RunWaiting, match="go"):
        home.open(child).run(main, id="r")
    monkeypatch.undo()
    assert not home.open(child).get("r~1").cancel_requested

    hf = home.open(main, child)
    hf.signal("r", "go")
    hf.run(main, id="r")
    assert hf.get("r~1").cancel_requested


def test_code_that_stops_waiting_while_its_child_is_being_cancelled_continues_on_replay(
    home: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by the fuzzer (seed 500027): the cancellation was lost, and the run hung."""
    tasks: list[Any] = []

    @agent(name="child")
    async def child(_: AsyncRun) -> str:
        return await slow_step("x")

    @agent(name="gives_up")
    async def main(run: AsyncRun) -> str:
        begun = asyncio.Event()
        when_begun[:] = [begun.set]
        if "x begins" in happened:
            begun.set()
        tasks[:] = [asyncio.create_task(child())]
        await begun.wait()
        await quick("outside")
        tasks[0].cancel()
        await asyncio.wait(tasks)
        await run.wait_for("go")
        return "went on"

    with pytest.raises(RunWaiting, match="go"):
        home.open(child).run(main, id="r")
    ask_to_cancel = recover.ask_to_cancel

    def ask_when_given_up(store: Any, run_id: str) -> None:
        eventually(tasks[0].cancelling, "the code stops waiting")
        ask_to_cancel(store, run_id)

    monkeypatch.setattr(recover, "ask_to_cancel", ask_when_given_up)
    hf = home.open(main, child)
    hf.signal("r", "go")
    assert "went on" == hf.run(main, id="r")


def test_a_child_that_is_ending_when_its_parent_is_cancelled_is_not_recorded_as_given_up(
    home: Any,
) -> None:
    """Found by the fuzzer (seed 2800145): the child's own work was interrupted, and its parent took that for a decision
    of its code. After a crash it diverged."""

    @agent(name="child")
    async def child(run: AsyncRun) -> str:
        return str(run.now())

    @agent(name="parent")
    async def parent(_: AsyncRun) -> str:
        return await child()

    def come_to(name: str) -> None:
        if name == "before child":  # the child inherits it; its parent has not read it yet
            control.cancel(home.open().store, "r")
        elif name == "before end":  # the child ends: it has returned, and was cancelled
            hf.engine.cancel_watcher.notice_cancel("r")

    hf = home.open(child, boundary=come_to)
    with pytest.raises(RunCancelled):
        hf.run(parent, id="r")

    assert not [x for _, x in hf.events("r") if isinstance(x, e.CallFailure)]


def test_code_cancelled_while_a_doubt_is_being_recorded_is_suspended_until_the_decision(
    home: Any,
) -> None:
    """Found by the fuzzer (seed 500039): the call was recorded as given up, though it may have happened."""
    limits: list[asyncio.Timeout] = []

    @tool
    async def act() -> str:
        return "acted"

    @agent(name="acts")
    async def main(_: AsyncRun) -> str:
        try:
            async with asyncio.timeout(None) as limit:
                if limits:  # it fires again
                    limit.reschedule(0)
                limits[:] = [limit]
                return await act()
        except TimeoutError:
            return "too late"

    def give_up(name: str) -> None:
        if name == "before commit call_doubted":
            limits[0].reschedule(0)

    home.crash(main, "r", at="before act")
    limits.clear()
    home.clock.advance(3600)
    with pytest.raises(RunWaiting, match="may or may not have happened"):
        home.open(boundary=give_up).run(main, id="r")
    hf = home.open(main)
    hf.resolve("r", 1, done="it was sent", by="ann")
    assert "it was sent" == hf.run(main, id="r")


def test_a_decision_reaches_a_cancelled_call_while_the_run_is_executed(home: Any) -> None:
    """The call looks at the log again. Its code gets what the person said, and is cancelled at its next await."""
    begun = threading.Event()
    when_begun.append(begun.set)

    async def sends() -> None:
        said = await slow_once("x")
        happened.append(f"the code continues: {said}")
        await quick("after")

    @step
    async def until_it_begins() -> None:
        await asyncio.to_thread(begun.wait, 60)

    @step
    async def decide() -> None:
        def resolve() -> None:
            hf = home.open()
            eventually(lambda: "in_doubt" in [call.status for call in hf.get("r").calls])
            hf.resolve("r", 1, done="it was sent", by="ann")
            eventually(lambda: any("continues" in x for x in happened))

        await asyncio.to_thread(resolve)

    @agent(name="cancels")
    async def main(_: AsyncRun) -> bool:
        task = asyncio.create_task(sends())
        await until_it_begins()
        task.cancel()
        await decide()
        await asyncio.wait((task,))
        return task.cancelled()

    hf = home.open(main)
    assert hf.run(main, id="r")

    assert ["x begins", "x ends", "the code continues: it was sent"] == happened
    assert hf.replay("r").result is True


def test_a_tool_whose_intent_was_on_its_way_does_not_begin(home: Any) -> None:
    tasks: list[asyncio.Task[Any]] = []

    @agent(name="cancels")
    async def main(run: AsyncRun) -> str:
        task = asyncio.create_task(slow_once("x"))
        tasks.append(task)
        await asyncio.wait((task,))
        await quick("after")
        await run.wait_for("go")
        return "ok"

    def cancel(name: str) -> None:
        if name == "before commit call_started" and len(tasks) == 1 and not happened:
            tasks[0].cancel()

    with pytest.raises(RunWaiting, match="go"):
        home.open(boundary=cancel).run(main, id="r")

    assert happened == ["quick after"]
    call = home.open(main).get("r").calls[0]
    assert ("failed", "none") == (call.status, call.error and call.error.effect)


def test_a_result_that_was_being_recorded_is_what_the_code_gets(home: Any) -> None:
    tasks: list[asyncio.Task[Any]] = []

    @agent(name="cancels")
    async def main(run: AsyncRun) -> str:
        task = asyncio.create_task(quick("x"))
        tasks.append(task)
        await asyncio.wait((task,))
        got = "cancelled" if task.cancelled() else task.result()
        await run.wait_for("go")
        return str(got)

    def cancel(name: str) -> None:
        if name == "before commit call_succeeded":
            tasks[0].cancel()

    with pytest.raises(RunWaiting, match="go"):
        home.open(boundary=cancel).run(main, id="r")
    hf = home.open(main)
    hf.signal("r", "go")
    assert hf.run(main, id="r") == "x"


def test_a_cancellation_that_comes_while_a_result_is_recorded_ends_the_code_at_its_next_await(
    home: Any,
) -> None:
    tasks: list[asyncio.Task[Any]] = []

    async def two_calls() -> None:
        await quick("x")
        happened.append("the code continues")
        await quick("after")

    @agent(name="cancels")
    async def main(run: AsyncRun) -> bool:
        task = asyncio.create_task(two_calls())
        tasks.append(task)
        await asyncio.wait((task,))
        return task.cancelled()

    def cancel(name: str) -> None:
        if name == "before commit call_succeeded":
            tasks[0].cancel()

    was_cancelled = home.open(boundary=cancel).run(main, id="r")

    assert (True, ["quick x", "the code continues"]) == (was_cancelled, happened)


def test_ending_the_run_from_outside_is_not_recorded_as_the_code_s_doing(home: Any) -> None:
    begun = asyncio.Event()

    @step
    async def patient(name: str) -> str:
        happened.append(name)
        if len(happened) == 1:
            begun.set()
            await asyncio.get_running_loop().create_future()
        return name

    @agent(name="patient")
    async def main(_: AsyncRun) -> list[str]:
        return list(await asyncio.gather(patient("a")))

    async def interrupted() -> None:
        from holdfast import AsyncHoldfast

        async with AsyncHoldfast(home.store()) as hf:
            task = asyncio.create_task(hf.run(main, id="r"))
            await begun.wait()
            task.cancel()
            await asyncio.wait((task,))
            assert task.cancelled()

    asyncio.run(interrupted())
    home.clock.advance(31)

    assert home.open().run(main, id="r") == ["a"]
    assert happened == ["a", "a"]
    assert not [x for _, x in home.open().events("r") if isinstance(x, e.CallFailure)]


def test_a_cancellation_that_a_tool_makes_itself_is_its_failure(home: Any) -> None:
    @step
    async def odd() -> str:
        raise asyncio.CancelledError

    @agent(name="odd")
    async def main(_: AsyncRun) -> str:
        return await odd()

    with pytest.raises(RunFailed, match="was not cancelled"):
        home.open().run(main, id="r")


@pytest.mark.parametrize("between", ["call", "wait"])
def test_a_task_that_is_given_up_after_a_recorded_call_begins_before_on_resume_too(
    home: Any, between: str
) -> None:
    async def inner() -> None:
        await quick("inside")
        await slow_step("x")

    async def outer() -> None:
        await asyncio.gather(inner(), inner())

    @agent(name="busy")
    async def main(run: AsyncRun) -> str:
        begun = asyncio.Event()
        when_begun[:] = [begun.set]
        if "x begins" in happened:
            begun.set()
        task = asyncio.create_task(outer())
        await (quick("outside") if between == "call" else run.wait_for("first"))
        await begun.wait()
        task.cancel()
        await run.wait_for("go")
        return "ok"

    home.open().start(main, id="r")
    home.open().signal("r", "first")
    with pytest.raises(RunWaiting, match="go"):
        home.open(main).run(main, id="r")
    before = list(happened)
    hf = home.open(main)
    hf.signal("r", "go")

    assert hf.run(main, id="r") == "ok"
    assert happened == before


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_replay_continues_where_the_code_gives_a_call_up_without_waiting_for_time(
    home: Any, way: Any
) -> None:
    main = impatient(way, slow_step)
    with pytest.raises(RunWaiting):
        home.open().run(main, id="r")
    hf = home.open(main)
    hf.signal("r", "go")
    hf.run(main, id="r")

    replayed = hf.replay("r")

    assert replayed.diverged is None
    if way in (beside_a_failure, beaten):  # else it depends on a timer of the code's own
        assert replayed.reached_end


# ── waits ────────────────────────────────────────────────────────────────────────────────────

WAITS: dict[str, Callable[[AsyncRun], Any]] = {
    "timer": lambda run: run.sleep(3),
    "signal": lambda run: run.wait_for("letter", timeout=3),
    "approval": lambda run: run.approve("Ship it?", timeout=3),
    "answer": lambda run: run.ask("Which one?", timeout=3),
    "several": lambda run: run.wait_any("letter", Approval("Ship it?"), Timer(3)),
}


class Paused:
    """A wait in the process that does not end before the code has continued."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.loop: asyncio.AbstractEventLoop | None = None

    def __call__(self, _: float) -> None:
        assert self.loop is not None
        self.loop.call_soon_threadsafe(self._begins)
        assert self.over.wait(60)

    def _begins(self) -> None:
        happened.append("x begins")
        for act in when_begun:
            act()


FAR: dict[str, Callable[[AsyncRun], Any]] = {
    "timer": lambda run: run.sleep(3600),
    "signal": lambda run: run.wait_for("letter"),
    "approval": lambda run: run.approve("Ship it?"),
    "answer": lambda run: run.ask("Which one?", timeout=3600),
    "several": lambda run: run.wait_any("letter", Approval("Ship it?"), Timer(3600)),
}


async def beaten_and_left(far: Any) -> str:
    """No one looks what became of the one that lost."""
    tasks = [asyncio.create_task(far("x")), asyncio.create_task(quick("winner"))]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    tasks[0].cancel()
    return "too late"


async def beaten_by_two(far: Any) -> str:
    """The task that cancels it is not the one that waits for it."""
    task = asyncio.create_task(far("x"))

    async def both() -> None:
        await asyncio.gather(*(asyncio.wait_for(quick(name), 60) for name in ("one", "two")))
        task.cancel()

    await asyncio.gather(task, asyncio.create_task(both()), return_exceptions=True)
    return "too late" if task.cancelled() else "?"


async def at_work_meanwhile(far: Any) -> str:
    task = asyncio.create_task(far("x"))
    names = [await quick(name) for name in ("one", "two", "three")]
    task.cancel()
    return "too late" if len(names) == 3 else "?"


FAR_WAYS = [beside_a_failure, beaten, beaten_and_left, beaten_by_two, at_work_meanwhile]


def waiting(way: Callable[[Any], Any], wait: Callable[[AsyncRun], Any], paused: Paused) -> Any:
    @agent(name="waiting")
    async def main(run: AsyncRun) -> list[str]:
        paused.loop = asyncio.get_running_loop()

        async def begin(_: str) -> Any:
            return await wait(run)

        try:
            found = [await way(begin)]
        finally:
            paused.over.set()
        found.append(await quick("fallback"))
        await run.wait_for("go")
        found.append(await run.wait_for("letter"))
        return found

    return main


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS.keys())
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_wait_that_the_code_gave_up_gives_no_answer_on_replay_either(
    home: Any, way: Any, wait: Any
) -> None:
    paused = Paused()
    main = waiting(way, wait, paused)
    with pytest.raises(RunWaiting, match="go"):
        home.open(sleep=paused).run(main, id="r")
    before = list(happened)

    hf = home.open(main)
    hf.signal("r", "letter", "it came late")
    assert ["go"] == [w.name for w in hf.get("r").waits]
    with pytest.raises(NotNow):
        hf.approve("r")
    with pytest.raises(RunWaiting, match="go"):
        home.open().run(main, id="r")
    hf.signal("r", "go")

    assert hf.run(main, id="r") == ["too late", "fallback", "it came late"]
    assert happened == before
    assert hf.verify("r").ok


@pytest.mark.parametrize(
    ("way", "kind"),
    [*((way, "timer") for way in FAR_WAYS), *((beaten, kind) for kind in FAR if kind != "timer")],
    ids=lambda x: x if isinstance(x, str) else x.__name__,
)
def test_a_long_wait_that_the_code_cancels_does_not_keep_the_run_waiting(
    home: Any, way: Any, kind: str
) -> None:
    @agent(name="racing")
    async def main(run: AsyncRun) -> list[str]:
        found = [await way(lambda _: FAR[kind](run))]
        run.state.found = found[0]
        found.append(await quick("fallback"))
        await run.wait_for("go")
        found.append(await run.wait_for("letter"))
        return found

    with pytest.raises(RunWaiting, match="go"):
        home.open().run(main, id="r")
    before = list(happened)

    hf = home.open(main)
    assert {"cut"} == {w.outcome for w in ended(hf)}
    hf.signal("r", "letter", "it came late")
    assert ["go"] == [w.name for w in hf.get("r").waits]
    with pytest.raises(RunWaiting, match="go"):
        home.open().run(main, id="r")
    hf.signal("r", "go")

    assert hf.run(main, id="r") == ["too late", "fallback", "it came late"]
    assert happened == before
    assert hf.verify("r").ok
    assert hf.replay("r").reached_end


def test_a_long_wait_that_is_not_cancelled_keeps_the_run_waiting(home: Any) -> None:
    @agent(name="patient")
    async def main(run: AsyncRun) -> list[Any]:
        task = asyncio.create_task(run.wait_for("letter"))
        names = [await quick(name) for name in ("one", "two")]
        await asyncio.wait((task,))
        names.append(await quick("three"))
        return [*names, task.result()]

    with pytest.raises(RunWaiting, match="letter"):
        home.open().run(main, id="r")
    assert happened == ["quick one", "quick two"]  # it works while it waits

    hf = home.open(main)
    hf.signal("r", "letter", "it came")
    assert hf.run(main, id="r") == ["one", "two", "three", "it came"]
    assert happened == ["quick one", "quick two", "quick three"]


def test_a_limit_on_a_long_wait_is_kept_while_the_run_is_executed(home: Any) -> None:
    @agent(name="limited")
    async def main(run: AsyncRun) -> str:
        beside = asyncio.create_task(slow_step("x"))
        try:
            async with asyncio.timeout(None) as limit:
                loop = asyncio.get_running_loop()
                when_begun[:] = [lambda: limit.reschedule(loop.time())]
                if "x begins" in happened:
                    when_begun[0]()
                await run.wait_for("letter")
        except TimeoutError:
            beside.cancel()
            await asyncio.wait((beside,))
        await run.wait_for("go")
        return "too late"

    with pytest.raises(RunWaiting, match="go"):
        home.open().run(main, id="r")
    hf = home.open(main)
    assert ["cut"] == [w.outcome for w in ended(hf)]
    hf.signal("r", "go")

    assert hf.run(main, id="r") == "too late"


@pytest.mark.parametrize("kind", ["timer", "several"])
def test_a_wait_cancelled_next_to_a_failure_starts_over_when_the_run_is_resumed(
    home: Any, kind: str
) -> None:
    paused = Paused()

    @agent(name="grouped")
    async def main(run: AsyncRun) -> str:
        paused.loop = asyncio.get_running_loop()
        begun = asyncio.Event()
        when_begun[:] = [begun.set]
        if "x begins" in happened:
            begun.set()

        async def failing() -> str:
            await begun.wait()
            try:
                return await fails("b")
            finally:
                paused.over.set()

        async with asyncio.TaskGroup() as group:
            group.create_task(WAITS[kind](run))
            task = group.create_task(failing())
        return task.result()

    with pytest.raises(RunFailed):
        home.open(sleep=paused).run(main, id="r")
    began = [x for _, x in home.open().events("r") if isinstance(x, e.WaitBegan)]

    hf = home.open(main)
    assert hf.resume("r") == "b"
    again = [x for _, x in hf.events("r") if isinstance(x, e.WaitBegan)]
    assert 2 * len(began) == len(again)
    assert hf.replay("r").diverged is None


def test_a_wait_cancelled_while_it_was_being_recorded_does_not_start(home: Any) -> None:
    tasks: list[asyncio.Task[Any]] = []

    @agent(name="cancels")
    async def main(run: AsyncRun) -> str:
        tasks.append(asyncio.create_task(run.sleep(3)))
        await asyncio.wait(tasks[-1:])
        got = "cancelled" if tasks[-1].cancelled() else "slept"
        await run.wait_for("go")
        return got

    def cancel(name: str) -> None:
        if name == "before commit wait_began" and len(tasks) == 1 and not happened:
            happened.append("cancelled")
            tasks[0].cancel()

    def never(_: float) -> None:
        raise AssertionError("it was cancelled before")

    with pytest.raises(RunWaiting, match="go"):
        home.open(boundary=cancel, sleep=never).run(main, id="r")
    hf = home.open(main)
    assert ["cut", "go"] == [w.outcome for w in ended(hf)] + [w.name for w in hf.get("r").waits]


def ended(hf: Any) -> list[e.WaitEnded]:
    return [x for _, x in hf.events("r") if isinstance(x, e.WaitEnded)]


def test_a_wait_that_async_code_gave_up_is_not_what_plain_code_waits_for(home: Any) -> None:
    paused = Paused()
    with pytest.raises(RunWaiting, match="go"):
        home.open(sleep=paused).run(waiting(in_time, WAITS["timer"], paused), id="r")

    @agent(name="waiting")
    def plain(run: Run) -> None:
        run.sleep(3)

    with pytest.raises(Diverged, match="given up"):
        home.open().run(plain, id="r")


def test_a_plain_replay_stops_at_a_wait_that_was_cancelled(home: Any) -> None:
    paused = Paused()
    main = waiting(too_late, WAITS["timer"], paused)
    with pytest.raises(RunWaiting):
        home.open(sleep=paused).run(main, id="r")

    assert home.open(main).replay("r").diverged is None


# ── code that does not stop waiting again ────────────────────────────────────────────────────


@pytest.mark.parametrize("way", [in_time, beside_a_failure], ids=lambda way: way.__name__)
def test_code_that_does_not_stop_waiting_again_diverges(home: Any, way: Any) -> None:
    """Its limit was removed since. Nothing can cancel the call any more, and nobody wants to wait for that."""

    async def patient(slow: Any) -> str:
        return str(await slow("x"))

    with pytest.raises(RunWaiting, match="go"):
        home.open().run(impatient(way, slow_step), id="r")

    with pytest.raises(Diverged):
        home.open(patience=0.01).run(impatient(patient, slow_step), id="r")
    assert happened.count("x begins") == 1


def test_a_timer_of_the_code_may_cancel_a_call_as_late_as_it_did_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was started before the call, so it takes longer than the call did; a replay waits for it."""
    monkeypatch.setattr(unasked, "TIMER_SECONDS", 0.01)

    @step
    async def takes_a_while() -> None:
        waiter = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.4, waiter.set_result, None)
        await waiter

    @agent
    async def main(run: AsyncRun) -> str:
        calling: list[asyncio.Task[str]] = []
        loop = asyncio.get_running_loop()

        def cancel() -> None:
            if calling:
                calling[0].cancel()
            else:  # the machine is slow
                loop.call_later(0.5, cancel)

        loop.call_later(0.5, cancel)
        await takes_a_while()
        calling.append(asyncio.create_task(slow_step("x")))
        try:
            await calling[0]
        except asyncio.CancelledError:
            await run.wait_for("go")
        return "end"

    for _ in range(2):
        with (
            Holdfast(tmp_path / "h.db", options=Options(patience_seconds=0.01)) as hf,
            pytest.raises(RunWaiting, match="go"),
        ):
            hf.run(main, id="r")
    assert happened.count("x begins") == 1


def test_a_replay_whose_process_stood_still_does_not_diverge(tmp_path: Path) -> None:
    """A frozen process finds its timers all due at once: that of the code, and the one after which it is other code."""
    is_replay: list[bool] = []

    @agent
    async def main(run: AsyncRun) -> str:
        if is_replay:
            asyncio.get_running_loop().call_later(0.1, threading.Event().wait, 1.5)
        try:
            async with asyncio.timeout(0.3):
                await slow_step("x")
        except TimeoutError:
            await run.wait_for("go")
        return "end"

    for _ in range(2):
        with (
            Holdfast(tmp_path / "h.db", options=Options(patience_seconds=0.01)) as hf,
            pytest.raises(RunWaiting, match="go"),
        ):
            hf.run(main, id="r")
        is_replay.append(True)
    assert happened.count("x begins") == 1
