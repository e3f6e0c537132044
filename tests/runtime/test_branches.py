"""Branches that wait, race and write at the same time: none is forgotten, and a replay decides as the first time did.

Waits are ended while the run is about to be suspended, through the boundary that comes right before that commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from holdfast import (
    AsyncRun,
    Budget,
    CallFailed,
    Done,
    Holdfast,
    NotNow,
    Options,
    Run,
    RunCancelled,
    RunFailed,
    RunWaiting,
    agent,
    step,
    tool,
)
from holdfast.core import events as e
from holdfast.runtime.lines.parking import Parking
from holdfast.runtime.log.branches import current_branch
from holdfast.runtime.log.lineage import AwaitedChildren
from holdfast.store.base import TERMINAL_STATUSES
from holdfast.store.outside import RunUpdate, update_run
from support.waiting import eventually
from support.workers import STORES, url_of

HOUR = 3600.0
SUSPENDING = "before commit run_suspended"


class Crash(BaseException):
    """The process ends here: nothing that follows in it reaches the store."""


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


@contextlib.contextmanager
def opened(
    url: str, *agents: Any, boundary: Callable[[str], None] | None = None
) -> Iterator[Holdfast]:
    """A process in which waits be suspended at once."""
    options = Options(patience_seconds=0, boundary=boundary)
    with Holdfast(url, agents=agents, options=options) as hf:
        yield hf


def at(boundary: str, act: Callable[[], Any], *, passing: int = 0) -> Callable[[str], None]:
    """Do this once, in a thread, when the process comes to the boundary; the first times it passes."""
    left = [passing]

    def come(name: str) -> None:
        if name != boundary or left[0] < 0:
            return
        left[0] -= 1
        if left[0] < 0:
            thread = threading.Thread(target=act)
            thread.start()
            thread.join()

    return come


def crash_at(boundary: str) -> Callable[[str], None]:
    def come(name: str) -> None:
        if name == boundary:
            raise Crash(name)

    return come


def result_of(hf: Holdfast, agent: Any) -> Any:
    """What the run ends with. If it was suspended, a worker has to find it due."""
    with contextlib.suppress(RunWaiting):
        hf.run(agent, id="r")

    def has_ended() -> bool:
        hf.worker().run(once=True)
        return hf.handle("r").status in TERMINAL_STATUSES

    # Not at once: what is due now by our clock may not be so yet by that of a busy server.
    eventually(has_ended, "the end of the run")
    return hf.result("r", timeout=1)


def opened_patiently(url: str, boundary: Callable[[str], None]) -> Holdfast:
    """A process in which waits stay in memory for a while."""
    return Holdfast(url, options=Options(boundary=boundary))


def resolve(url: str, **fields: Any) -> None:
    """What a person decided before this process claimed the run, and reaches the log only now."""
    resolved = e.CallResolved(index=0, step=1, name="send", by="sam", **fields)
    with opened(url) as other:
        update_run(other.store, "r", lambda *_: RunUpdate([resolved]))


def kinds_at(url: str) -> list[str]:
    with Holdfast(url) as hf:
        return kinds(hf)


def kinds(hf: Holdfast) -> list[str]:
    return [type(event).__name__ for _, event in hf.events("r")]


# ── a step of what is the only line ──────────────────────────────────────────────────────────

RECEIPT = "before commit call_succeeded"


@step
async def alone(name: str) -> str:
    return name


continued: list[str] = []
others: list[asyncio.Task[str]] = []


def commit_when(hf: Holdfast, ready: Callable[[], bool]) -> None:
    """From here on, let the store commit a batch only when that is so."""
    store: Any = hf.store
    commit = store._group._commit

    def commit_late(batch: Any) -> Any:
        assert ready(), "what was waited for has not come"
        return commit(batch)

    store._group._commit = commit_late


async def note_that_it_continues(name: str) -> str:
    result = await alone(name)
    continued.append(name)
    return result


@agent
async def starts_another_meanwhile(run: AsyncRun) -> list[str]:
    """A callback of its event loop starts a task while the result of the only line is recorded."""
    continued.clear()
    first = await note_that_it_continues("first")
    return [first, *await asyncio.gather(*others)]


def test_the_result_of_an_only_line_comes_before_that_of_a_line_that_begins_meanwhile(
    url: str,
) -> None:
    second_is_written = threading.Event()

    def start_another(name: str) -> None:
        if name == RECEIPT and not others:
            others.append(asyncio.create_task(note_that_it_continues("second")))
        elif name == RECEIPT:
            second_is_written.set()

    others.clear()
    with opened(url, starts_another_meanwhile, boundary=start_another) as hf:
        commit_when(hf, lambda: not others or second_is_written.wait(60))
        result = hf.run(starts_another_meanwhile, id="r")

    assert ["first", "second"] == result
    assert ["first", "second"] == continued, "not in the order of the log, as on replay"


async def time_out_at_once() -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0):
            await asyncio.get_running_loop().create_future()
    continued.append("timeout")


@agent
async def times_out_meanwhile(run: AsyncRun) -> list[str]:
    """A callback of its event loop starts a task, whose timeout fires while the result of the only line is recorded."""
    continued.clear()
    await note_that_it_continues("first")
    await asyncio.gather(*others)
    return continued.copy()


def test_a_timeout_that_fires_while_the_result_of_an_only_line_is_recorded_takes_effect_after_it(
    url: str,
) -> None:
    has_fired = threading.Event()

    def turn(left: int) -> None:
        """Let the event loop turn so often."""
        if left:
            asyncio.get_running_loop().call_soon(turn, left - 1)
        else:
            has_fired.set()

    def start_another(name: str) -> None:
        if name == RECEIPT and not others:
            others.append(asyncio.create_task(time_out_at_once()))
            turn(50)

    others.clear()
    with opened(url, times_out_meanwhile, boundary=start_another) as hf:
        commit_when(hf, lambda: not others or has_fired.wait(60))
        result = hf.run(times_out_meanwhile, id="r")

    assert ["first", "timeout"] == result, "not in the order of the log, as on replay"


@agent
async def cancels_itself(run: AsyncRun) -> list[str]:
    seen = []
    try:
        seen.append(await alone("first"))
        seen.append(await alone("second"))
    except asyncio.CancelledError:
        seen.append("cancelled")
    return seen


def test_an_only_line_that_is_cancelled_while_its_result_is_recorded_is_so_at_its_next_await(
    url: str,
) -> None:
    begun: list[str] = []

    def cancel(name: str) -> None:
        task = asyncio.current_task()
        if name == RECEIPT and not begun and task is not None:
            begun.append(name)
            task.cancel()

    with opened(url, cancels_itself, boundary=cancel) as hf:
        result = hf.run(cancels_itself, id="r")
        calls = [call.name for call in hf.get("r").calls]

    assert (["first", "cancelled"], ["alone"]) == (result, calls)


# ── the order of outcomes ────────────────────────────────────────────────────────────────────


def test_a_buffered_outcome_is_given_to_the_code_after_a_task_has_ended_with_an_earlier_one(
    url: str,
) -> None:
    """Found by the fuzzer (seed 300007): the last line that was left was never given its outcome."""
    acted = asyncio.Event()

    @tool
    async def act() -> int:
        acted.set()
        return 1

    @step
    async def follow() -> int:
        await acted.wait()  # its receipt is buffered while that of `act` is being committed
        return 2

    @agent(checkpoint="every_iteration")
    async def both(run: AsyncRun) -> list[int]:
        acting = asyncio.create_task(act())
        return [await follow(), await acting]

    with opened(url, both) as hf:
        assert [2, 1] == hf.run(both, id="r")


# ── waits that end while another branch is at work ───────────────────────────────────────────


def _losing_its_answer(sent: list[str], *, is_async: bool) -> Any:
    """A function that acts, and whose caller does not hear of it."""

    def send() -> Any:
        sent.append("sent")
        raise ConnectionResetError

    async def send_async() -> Any:
        send()

    return send_async if is_async else send


def gathered(work: Callable[[], None], first: Callable[[], Any] | None = None) -> Any:
    @step
    async def working() -> str:
        await asyncio.to_thread(work)
        return "done"

    @agent(name="both")
    async def both(run: AsyncRun) -> list[Any]:
        other = run.wait_for("go") if first is None else first()
        return list(await asyncio.gather(other, working()))

    return both


def mapped(work: Callable[[], None], first: Callable[[], Any] | None = None) -> Any:
    @step
    def working() -> str:
        work()
        return "done"

    @agent(name="both")
    def both(run: Run) -> list[Any]:
        other = first or (lambda: run.wait_for("go"))
        return run.map(lambda call: call(), [other, working])

    return both


@pytest.mark.parametrize("make", [gathered, mapped])
def test_a_signal_that_comes_while_another_branch_is_at_work_is_not_lost(
    url: str, make: Any
) -> None:
    def work() -> None:
        with opened(url) as other:
            other.signal("r", "go", "come")

    both = make(work)
    with opened(url, both) as hf:
        assert ["come", "done"] == result_of(hf, both)


@pytest.mark.parametrize("make", [gathered, mapped])
def test_a_caller_does_not_hear_of_a_wait_that_ended_while_another_branch_was_at_work(
    url: str, make: Any
) -> None:
    """Threads that must wait end. By the time that all have, the run can continue."""

    def work() -> None:
        with opened(url) as other:
            eventually(lambda: other.get("r").waits, "the wait")
            other.signal("r", "go", "come")

    both = make(work)
    with opened(url, both) as hf:
        assert ["come", "done"] == hf.run(both, id="r")


@pytest.mark.parametrize("make", [gathered, mapped])
def test_a_call_in_doubt_is_resolved_while_another_branch_is_at_work(url: str, make: Any) -> None:
    sent: list[str] = []

    def work() -> None:
        with opened(url) as other:
            eventually(lambda: other.get("r").in_doubt, "the doubt")
            other.resolve("r", done="sent", by="sam")

    both = make(work, tool(_losing_its_answer(sent, is_async=make is gathered)))
    with opened(url, both) as hf:
        assert ["sent", "done"] == result_of(hf, both)
        assert ["sent"] == sent
        assert hf.replay("r").reached_end


def test_a_call_in_progress_cannot_be_resolved_while_another_one_is_in_doubt(url: str) -> None:
    @tool
    def send() -> None:
        raise ConnectionResetError

    answers: list[str] = []

    @tool
    def post() -> str:
        with opened(url) as other:
            eventually(lambda: other.get("r").in_doubt, "the doubt")
            try:
                other.resolve("r", "post", done="posted")
            except NotNow as refusal:
                answers.append(str(refusal))
            other.resolve("r", failed="it was not sent")  # the only one that can be meant
        return "posted"

    @agent
    def both(run: Run) -> list[Any]:
        def attempt(call: Callable[[], Any]) -> str:
            try:
                return str(call())
            except CallFailed as error:
                return error.message

        return run.map(attempt, [send, post])

    with opened(url, both) as hf:
        assert ["it was not sent", "posted"] == result_of(hf, both)
        assert len(answers) == 1
        assert re.search(r"is being executed by .* not in doubt", answers[0])


def test_a_signal_that_another_branch_has_read_wakes_the_one_that_waits_for_it(url: str) -> None:
    """The receipt of a step is refused because of the signal, which is read then. A task that is at work keeps the run
    from being suspended, so nothing else would look at the wait."""
    waiting, enough = threading.Event(), 200

    def boundary(name: str) -> None:
        if name == "after commit wait_began":
            waiting.set()

    @step
    async def signal() -> None:
        await asyncio.to_thread(waiting.wait)
        for _ in range(10):  # by then the line is parked
            await asyncio.sleep(0)
        with Holdfast(url) as other:
            other.signal("r", "go", 1)

    @agent
    async def main(run: AsyncRun) -> str:
        woken = asyncio.Event()

        async def wait() -> None:
            await run.wait_for("go")
            woken.set()

        async def work() -> str:
            for _ in range(enough):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(woken.wait(), 0.05)
                    return "woken"
            return "not woken"

        found = await asyncio.gather(wait(), signal(), work())
        return str(found[-1])

    options = Options(patience_seconds=60, boundary=boundary)
    with Holdfast(url, agents=[main], options=options) as hf:
        assert "woken" == hf.run(main, id="r")
        assert hf.replay("r").reached_end


@pytest.mark.parametrize("make", [gathered, mapped])
def test_a_signal_that_comes_right_before_the_suspension_is_not_lost(url: str, make: Any) -> None:
    def send() -> None:
        with opened(url) as other:
            other.signal("r", "go", "come")

    both = make(lambda: None)
    with opened(url, both, boundary=at(SUSPENDING, send)) as hf:
        assert ["come", "done"] == result_of(hf, both)


def test_code_whose_suspension_is_refused_continues_without_being_unwound(url: str) -> None:
    """The signal comes right before the commit: the same call of the agent's function gets it."""
    seen: list[str] = []

    @agent
    async def waiting(run: AsyncRun) -> Any:
        seen.append("begins")
        try:
            return await run.wait_for("go")
        finally:
            seen.append("ends")

    def send() -> None:
        assert ["begins"] == seen
        with opened(url) as other:
            other.signal("r", "go", "come")

    with opened(url, waiting, boundary=at(SUSPENDING, send)) as hf:
        assert "come" == hf.run(waiting, id="r")
        assert ["begins", "ends"] == seen
        assert "RunSuspended" not in kinds(hf)


@agent
def child(run: Run) -> Any:
    return run.wait_for("go")


@agent(name="parent")
def parent(run: Run) -> list[Any]:
    return [child()]


@agent(name="child")
async def child_async(run: AsyncRun) -> Any:
    return await run.wait_for("go")


@agent(name="parent")
async def parent_async(run: AsyncRun) -> list[Any]:
    async def ask() -> Any:
        return await run.ask("ready?")

    return list(await asyncio.gather(child_async(), ask()))[:1]


@pytest.mark.parametrize("agents", [(parent, child), (parent_async, child_async)])
def test_a_child_that_ends_right_before_its_parent_is_suspended_wakes_it(
    url: str, agents: Any
) -> None:
    """The child is suspended first. Its end is in no log that the parent reads."""

    def end_the_child() -> None:
        with opened(url, agents[1]) as other:
            if agents[0] is parent_async:
                other.answer("r", "yes")
            other.signal("r~1", "go", "come")
            other.worker().run(once=True)

    with opened(url, *agents, boundary=at(SUSPENDING, end_the_child, passing=1)) as hf:
        assert ["come"] == result_of(hf, agents[0])


@agent(name="parent")
async def lone_parent(run: AsyncRun) -> list[Any]:
    return [await child_async()]


def test_a_child_that_ends_while_the_watcher_looks_and_its_parent_is_suspended_wakes_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent has looked at its child, and the child ends. Before the suspension is built, the watcher sees that: it
    looks at children in a thread of its own."""
    looks: list[set[str]] = []
    ended = AwaitedChildren.ended

    def ends_after_the_look(children: AwaitedChildren) -> set[str]:
        found = ended(children)
        if not looks and threading.current_thread().name != "holdfast-cancel-watcher":
            looks.append(found)
            with opened(url, child_async) as other:
                other.signal("r~1", "go", "come")
                other.worker().run(once=True)
            assert {"r~1"} == ended(children)  # as the watcher does
        return found

    monkeypatch.setattr(AwaitedChildren, "ended", ends_after_the_look)
    with opened(url, lone_parent, child_async) as hf:
        assert ["come"] == hf.run(lone_parent, id="r")
    assert [set()] == looks


@agent
async def lone_wait(run: AsyncRun) -> Any:
    return await run.wait_for("go")


def test_a_signal_that_the_watcher_reads_right_before_the_run_is_suspended_wakes_it(
    url: str,
) -> None:
    """The watcher reads the log in a thread of its own. So the suspension follows the signal in the log without a
    conflict, although the wait has not seen it."""

    def signal_and_watch() -> None:
        with opened(url) as other:
            other.signal("r", "go", "come")
        hf.engine.cancel_watcher.notice_cancel("r")  # as it does once in a second

    with opened(url, lone_wait, boundary=at(SUSPENDING, signal_and_watch)) as hf:
        assert "come" == result_of(hf, lone_wait)


def test_a_decision_that_another_branch_has_read_is_not_asked_for_again(url: str) -> None:
    """Found by the fuzzer (seed 2500095): the decision was on its way when a worker claimed the run. One branch read it
    while another had found its call without an outcome, and was about to record the doubt."""
    lives, sent = [0], [0]
    decided, is_read = threading.Event(), threading.Event()

    def decide(_key: str) -> str:
        resolve(url, branch="0-1", how="retry")
        decided.set()
        assert is_read.wait(30)
        return "wait"

    @tool(on_doubt=decide)
    def send() -> int:
        sent[0] += 1
        return sent[0]

    @step
    def first() -> None:
        assert decided.wait(30)

    @step
    def second() -> None:
        is_read.set()

    def branch(sends: bool) -> Any:
        if sends:
            return send()
        return [first(), second()] if lives[0] == 2 else None

    @agent
    def both(run: Run) -> Any:
        lives[0] += 1
        return run.map(branch, [True, False])

    with opened(url, both, boundary=crash_at("after send")) as hf, pytest.raises(Crash):
        hf.run(both, id="r")
    with opened(url, both) as hf:
        eventually(lambda: hf.run(both, id="r") == [2, [None, None]], "the end of the run")
        assert "CallDoubted" not in kinds(hf)
    assert sent == [2]


@pytest.mark.parametrize("option", ["check", "on_doubt"])
def test_a_decision_that_comes_while_a_doubt_is_looked_into_holds(url: str, option: str) -> None:
    sent: list[str] = []

    def look(_key: str) -> str | None:
        """That it did not happen; but a person knows better."""
        resolve(url, how="done", result=e.Value(json=Raw(b'"by sam"')))
        return None if option == "check" else "retry"

    @tool(**{option: look})  # type: ignore[call-overload,untyped-decorator]
    def send() -> str:
        sent.append("it")
        return "by the tool"

    @agent
    def sending(run: Run) -> Any:
        return send()

    with opened(url, sending, boundary=crash_at("after send")) as hf, pytest.raises(Crash):
        hf.run(sending, id="r")
    with opened(url, sending) as hf:
        assert "by sam" == result_of(hf, sending)
    assert sent == ["it"]


def test_a_decision_that_comes_right_before_a_call_is_made_again_holds(url: str) -> None:
    sent: list[str] = []

    @tool
    def send(idempotency_key: str = "") -> str:
        sent.append(idempotency_key)
        return "by the tool"

    @agent
    def sending(run: Run) -> Any:
        return send()

    def decide() -> None:
        resolve(url, how="done", result=e.Value(json=Raw(b'"by sam"')))

    with opened(url, sending, boundary=crash_at("after send")) as hf, pytest.raises(Crash):
        hf.run(sending, id="r")
    with opened(url, sending, boundary=at("before commit call_started", decide)) as hf:
        assert "by sam" == result_of(hf, sending)
    assert len(sent) == 1


def test_the_last_call_of_a_budget_is_made_also_if_its_intent_is_refused_at_first(url: str) -> None:
    @tool
    def send() -> str:
        return "sent"

    @agent(budget=Budget(max_steps=1))
    def sending(run: Run) -> Any:
        return send()

    def signal() -> None:
        with opened(url) as other:
            other.signal("r", "go", 1)

    with opened(url, sending, boundary=at("before commit call_started", signal)) as hf:
        assert "sent" == hf.run(sending, id="r")


def test_no_call_starts_after_another_branch_has_read_that_the_run_is_cancelled(url: str) -> None:
    """Its branch had passed the gate before, and records its intent without a conflict."""
    sent: list[int] = []
    cancelled, is_read = threading.Event(), threading.Event()

    def cancel() -> None:
        with opened(url) as other:
            other.cancel("r")
        cancelled.set()
        assert is_read.wait(30)

    @tool
    def send() -> None:
        sent.append(1)

    @step
    def work() -> None:
        assert cancelled.wait(30)

    def branch(sends: bool) -> None:
        if sends:
            send()
        else:
            work()  # its receipt is refused, and what came is read
            is_read.set()

    @agent
    def both(run: Run) -> None:
        run.map(branch, [True, False])

    with (
        opened(url, both, boundary=at("before commit call_started", cancel)) as hf,
        pytest.raises(RunCancelled),
    ):
        hf.run(both, id="r")
    assert sent == []


@agent(name="timer")
async def timer_async(run: AsyncRun) -> Any:
    return list(await asyncio.gather(run.wait_for("go"), run.sleep(HOUR)))


@agent(name="timer")
def timer_mapped(run: Run) -> Any:
    return run.map(lambda wait: run.wait_for("go") if wait else run.sleep(HOUR), [True, False])


@pytest.mark.parametrize("timer", [timer_async, timer_mapped])
def test_a_suspended_run_is_due_when_the_first_timer_of_any_branch_ends(
    url: str, timer: Any
) -> None:
    with opened(url) as hf:
        with pytest.raises(RunWaiting):
            hf.run(timer, id="r")
        row = hf.store.get("r")
        assert row is not None and row.due_at is not None
        assert 0 < row.due_at - row.created_at - HOUR * 1e6 < HOUR * 1e6


def test_a_branch_that_must_wait_does_not_cancel_its_siblings(url: str) -> None:
    """In a TaskGroup, a task that fails cancels the others. A task that waits has not failed."""
    seen: list[str] = []

    async def watched(name: str, wait: Any) -> Any:
        try:
            return await wait
        except asyncio.CancelledError:
            seen.append(name)
            raise

    @agent
    async def group(run: AsyncRun) -> list[Any]:
        async with asyncio.TaskGroup() as tasks:
            question = tasks.create_task(watched("question", run.ask("ready?")))
            helper = tasks.create_task(watched("helper", child_async()))
        return [question.result(), helper.result()]

    with opened(url, group, child_async) as hf:
        with pytest.raises(RunWaiting):
            hf.run(group, id="r")
        assert [] == seen
        hf.answer("r", "yes")
        hf.signal("r~1", "go", "come")
        hf.worker().run(once=True)
        assert (["yes", "come"], []) == (hf.result("r", timeout=1), seen)


def test_a_task_that_still_waits_when_the_agent_returns_suspends_the_run(url: str) -> None:
    @agent
    async def returns(run: AsyncRun) -> str:
        asyncio.get_running_loop().create_task(run.wait_for("go"))
        await asyncio.sleep(0)
        return "returned"

    with opened(url, returns) as hf:
        with pytest.raises(RunWaiting, match="the signal 'go'"):
            hf.run(returns, id="r")
        hf.signal("r", "go")
        assert "returned" == hf.run(returns, id="r")


def test_a_run_is_cancelled_while_a_task_is_left_of_it(url: str) -> None:
    @agent
    async def returns(run: AsyncRun) -> str:
        asyncio.get_running_loop().create_task(hangs())
        return "returned"

    @tool(risk="read")
    async def hangs() -> None:
        threading.Thread(target=hf.cancel, args=("r",)).start()
        await asyncio.Event().wait()

    with opened(url, returns) as hf, pytest.raises(RunCancelled):
        hf.run(returns, id="r")


# ── races ────────────────────────────────────────────────────────────────────────────────────


def racing(calls: list[str]) -> Any:
    """Two tasks, of which the one that was started last ends first, and the other has passed a gather."""

    @step
    async def quick(name: str) -> str:
        calls.append(name)
        return name

    @step
    async def never() -> str:
        calls.append("never")
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async def slow() -> str:
        await asyncio.gather(quick("one"), quick("two"))
        return await never()

    async def fast() -> str:
        for name in ("three", "four", "five"):
            await quick(name)
        return "fast"

    @agent
    async def race(run: AsyncRun) -> str:
        tasks = [asyncio.ensure_future(slow()), asyncio.ensure_future(fast())]
        done, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in left:
            task.cancel()
        await asyncio.wait(tasks)
        return await quick(f"after {done.pop().result()}")

    return race


def test_a_race_whose_loser_had_passed_a_gather_is_replayed_as_it_was(url: str) -> None:
    calls: list[str] = []
    race = racing(calls)
    with opened(url, race) as hf:
        assert "after fast" == hf.run(race, id="r")
        made = list(calls)
        assert "after fast" == hf.replay("r").result
        assert made == calls


def test_of_two_recorded_outcomes_the_first_in_the_log_wins_the_race_again(url: str) -> None:
    """Both calls have ended by the time of the replay, and the loser's is the first that the code asks for."""

    @step
    async def waits(other: str) -> str:
        await ended[other].wait()
        return "late"

    @step
    async def ends(name: str) -> str:
        return "early"

    async def early() -> str:
        told = await ends("early")
        ended["early"].set()
        return told

    @step
    def report(winner: str) -> str:
        return winner

    @agent
    async def race(run: AsyncRun) -> list[str]:
        tasks = [asyncio.ensure_future(waits("early")), asyncio.ensure_future(early())]
        order = [await task for task in asyncio.as_completed(tasks)]
        return [report(name) for name in order]

    ended = {"early": asyncio.Event()}
    with opened(url, race) as hf:
        assert ["early", "late"] == hf.run(race, id="r")
        ended = {"early": asyncio.Event()}
        assert ["early", "late"] == hf.replay("r").result


def test_coroutines_that_asyncio_starts_in_random_order_are_refused_before_one_is_started(
    url: str,
) -> None:
    @step
    async def fetch(number: int) -> int:
        called.append(number)
        return number

    @agent
    async def fetch_all(run: AsyncRun, start: bool) -> list[int]:
        made = [fetch(n) for n in range(8)]
        todo = [asyncio.ensure_future(one) for one in made] if start else made
        try:
            return sorted([await one for one in asyncio.as_completed(todo)])
        finally:
            for one in made:
                one.close()  # or Python warns that it was never awaited

    called: list[int] = []
    with opened(url, fetch_all) as hf:
        with pytest.raises(RunFailed, match=r"NotDurable: .* Pass it tasks"):
            hf.run(fetch_all, False, id="coroutines")
        assert [] == called
        assert list(range(8)) == hf.run(fetch_all, True, id="tasks")
        assert list(range(8)) == hf.replay("tasks").result


def test_nothing_new_begins_before_the_code_has_what_is_recorded(url: str) -> None:
    """The winner's outcome is recorded before the crash. Resumed, the loser is ready to call first, and loses again."""
    calls: list[str] = []

    @step
    async def loses() -> None:
        calls.append("loser")

    @step
    async def wins() -> str:
        calls.append("winner")
        return "won"

    async def losing() -> None:
        await ready.wait()
        await loses()

    @agent
    async def race(run: AsyncRun) -> str:
        tasks = [asyncio.ensure_future(losing()), asyncio.ensure_future(wins())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        tasks[0].cancel()
        await asyncio.wait(tasks)
        return str(tasks[1].result())

    ready = asyncio.Event()
    with opened(url, boundary=crash_at("after commit call_succeeded")) as hf, pytest.raises(Crash):
        hf.run(race, id="r")
    ready = asyncio.Event()
    ready.set()
    with opened(url) as hf:
        assert "won" == hf.run(race, id="r")
    assert ["winner"] == calls


def test_a_call_that_was_given_up_ends_again_where_it_ended_in_the_log(url: str) -> None:
    """Its clean-up took until after the other branch had an outcome, so that branch won, and wins again."""

    @tool(risk="read")
    async def cleans_up() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
            await has_ended.wait()

    @step
    async def ends() -> None:
        await cancelled.wait()
        has_ended.set()

    @step
    def report(winner: str) -> str:
        return winner

    async def gives_up() -> str:
        task = asyncio.ensure_future(cleans_up())
        await started()
        task.cancel()
        await asyncio.wait([task])
        return "gave up"

    @step
    async def started() -> None: ...

    async def ended() -> str:
        await ends()
        return "ended"

    @agent
    async def race(run: AsyncRun) -> str:
        tasks = [asyncio.ensure_future(gives_up()), asyncio.ensure_future(ended())]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait(tasks)
        return report(done.pop().result())

    cancelled, has_ended = asyncio.Event(), asyncio.Event()
    with opened(url, race) as hf:
        assert "ended" == hf.run(race, id="r")
        assert "ended" == hf.replay("r").result


@pytest.mark.parametrize("gives_up", ["a call", "a wait"])
def test_what_the_code_saw_after_it_gave_something_up_it_sees_again(
    url: str, gives_up: str
) -> None:
    """A patch from outside came before the end of what was given up, and so the code sees it after that."""

    @tool(risk="read")
    async def never() -> None:
        await asyncio.Event().wait()

    @agent
    async def looks(run: AsyncRun) -> int:
        task = asyncio.ensure_future(run.wait_for("go") if gives_up == "a wait" else never())
        await asyncio.wait([asyncio.ensure_future(begun())])
        task.cancel()
        await asyncio.wait([task])
        return int(run.state.get("n", 0))

    @step
    async def begun() -> None: ...

    ends = "wait_ended" if gives_up == "a wait" else "call_failed"
    patch = at(f"before commit {ends}", lambda: hf.patch("r", {"n": 7}))
    with opened(url, looks, boundary=patch) as hf:
        assert 7 == hf.run(looks, id="r")
        assert 7 == hf.replay("r").result


def test_what_a_nested_task_gave_up_long_before_a_failure_is_not_tried_again(url: str) -> None:
    calls: list[str] = []

    @tool(risk="read")
    async def never() -> None:
        calls.append("never")
        await asyncio.Event().wait()

    @step
    def fails() -> str:
        calls.append("fails")
        if calls.count("fails") == 1:
            raise RuntimeError("not yet")
        return "done"

    async def ends() -> None:
        await made("begun")
        raise KeyError

    async def gives_up() -> None:
        await first_of(never(), ends())

    async def first_of(*works: Any) -> None:
        tasks = [asyncio.ensure_future(work) for work in works]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @agent
    async def main(run: AsyncRun) -> str:
        await first_of(run.wait_for("go"), gives_up())
        return fails()

    with Holdfast(url, agents=[main]) as hf:
        with pytest.raises(RunFailed):
            hf.run(main, id="r")
        assert "done" == hf.resume("r")
    assert ["never", "fails", "fails"] == calls


def test_what_the_code_gave_up_before_it_started_tasks_is_not_tried_again(url: str) -> None:
    """Found by the fuzzer (seed 500034): only later calls of the same branch counted, not tasks."""
    calls: list[str] = []

    @tool(risk="read")
    async def never() -> None:
        calls.append("never")
        await asyncio.Event().wait()

    @step
    async def fails() -> str:
        calls.append("fails")
        if calls.count("fails") == 1:
            raise RuntimeError("not yet")
        return "done"

    @agent
    async def main(run: AsyncRun) -> str:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.001):
                await never()
        return (await asyncio.gather(fails()))[0]

    with Holdfast(url, agents=[main]) as hf:
        with pytest.raises(RunFailed):
            hf.run(main, id="r")
        assert "done" == hf.resume("r")
    assert ["never", "fails", "fails"] == calls


# ── timeouts of the code ─────────────────────────────────────────────────────────────────────


@step
async def made(name: str) -> str:
    return name


@pytest.mark.parametrize("around", ["a call", "several calls", "a pause"])
def test_a_timeout_of_the_code_fires_again_on_replay(url: str, around: str) -> None:
    calls = []

    @tool(risk="read")
    async def never() -> None:
        calls.append("never")
        await asyncio.Event().wait()

    @agent
    async def limited(run: AsyncRun) -> str:
        try:
            async with asyncio.timeout(0.05):
                await made("first")
                match around:
                    case "a call":
                        await never()
                    case "several calls":
                        await asyncio.gather(never(), never(), run.wait_for("go"))
                    case _:
                        await asyncio.Event().wait()
        except TimeoutError:
            return await made("too late")
        return await made("in time")

    with Holdfast(url, agents=[limited]) as hf:
        assert "too late" == hf.run(limited, id="r")
        made_live = list(calls)
        assert "too late" == hf.replay("r").result
        assert made_live == calls
    assert "TimeoutFired" in kinds_at(url)


def test_a_timeout_that_had_not_fired_does_not_fire_on_a_slow_replay(url: str) -> None:
    is_slow = threading.Event()

    async def slowly(name: str) -> str:
        await asyncio.sleep(0)
        if is_slow.is_set():
            threading.Event().wait(0.1)  # the event loop is blocked: the timer is due
        return await made(name)

    @agent
    async def limited(run: AsyncRun) -> str:
        try:
            async with asyncio.timeout(0.05):
                names = await asyncio.gather(*(slowly(name) for name in "abc"))
        except TimeoutError:
            return await made("too late")
        return await made("".join(names))

    with Holdfast(url, agents=[limited]) as hf:
        is_slow.clear()
        assert "abc" == hf.run(limited, id="r") or kinds(hf).count("TimeoutFired")
        is_slow.set()
        assert hf.result("r") == hf.replay("r").result


def test_a_run_that_crashes_after_a_timeout_resumes_on_the_same_path(url: str) -> None:
    @agent
    async def limited(run: AsyncRun) -> str:
        try:
            async with asyncio.timeout(0.05):
                await asyncio.gather(never(), run.wait_for("go"))
        except TimeoutError:
            await made("too late")
            return await made("over")
        return "in time"

    @tool(risk="read")
    async def never() -> None:
        await asyncio.Event().wait()

    crash = crash_at("after commit call_succeeded")
    with opened_patiently(url, crash) as hf, pytest.raises(Crash):
        hf.run(limited, id="r")
    with Holdfast(url) as hf:
        assert "over" == hf.run(limited, id="r")


def test_a_timeout_that_fired_after_its_block_does_so_on_replay(url: str) -> None:
    """It fires while the beginning of a wait is being written, and by then the wait is over too."""

    @agent
    async def limited(run: AsyncRun) -> str:
        try:
            async with asyncio.timeout(0.05):
                await run.sleep(0.01)
        except TimeoutError:
            return await made("too late")
        return await made("in time")

    block = at("before commit wait_began", lambda: threading.Event().wait(0.1))
    with Holdfast(url, agents=[limited], options=Options(boundary=block)) as hf:
        live = hf.run(limited, id="r")
        assert live == hf.replay("r").result


def test_a_call_that_proves_to_have_happened_is_answered_and_the_timeout_follows(url: str) -> None:
    @tool(check=lambda _key: Done("sent"))
    async def sends() -> str:
        await asyncio.Event().wait()
        return ""

    @agent
    async def limited(run: AsyncRun) -> list[str]:
        got = []
        try:
            async with asyncio.timeout(1.0):
                got.append(await sends())
                got.append(await made("never"))
        except TimeoutError:
            got.append(await made("too late"))
        return got

    with Holdfast(url, agents=[limited]) as hf:
        assert ["sent", "too late"] == hf.run(limited, id="r")
        assert ["sent", "too late"] == hf.replay("r").result


async def in_time(how: str, work: Coroutine[Any, Any, str]) -> bool:
    """Whether this ends within a short time."""
    if how == "asyncio.wait_for":
        try:
            await asyncio.wait_for(work, 0.05)
        except TimeoutError:
            return False
        return True
    task = asyncio.create_task(work)
    done, _ = await asyncio.wait([task], timeout=0.05)
    task.cancel()
    return bool(done)


@pytest.mark.parametrize("how", ["asyncio.wait", "asyncio.wait_for"])
def test_code_that_waited_for_a_task_for_some_time_waits_no_longer_on_replay(
    url: str, how: str
) -> None:
    """The time passes while an outcome of the task is being written."""

    @tool(risk="read")
    async def never() -> str:
        await asyncio.Event().wait()
        return ""

    async def work() -> str:
        await made("first")
        return await never()

    @agent
    async def limited(run: AsyncRun) -> str:
        return await made("in time" if await in_time(how, work()) else "too late")

    block = at("before commit call_succeeded", lambda: threading.Event().wait(0.1))
    with Holdfast(url, agents=[limited], options=Options(boundary=block)) as hf:
        assert "too late" == hf.run(limited, id="r")
    with Holdfast(url, agents=[limited]) as hf:
        assert "too late" == hf.replay("r").result
        assert 1 == kinds(hf).count("TimeoutFired")


def test_code_that_stopped_waiting_for_a_task_and_lets_it_run_does_so_on_replay(url: str) -> None:
    @tool(risk="read")
    async def never() -> str:
        await asyncio.Event().wait()
        return ""

    @agent
    async def limited(run: AsyncRun) -> str:
        task = asyncio.create_task(never())
        await asyncio.wait([task], timeout=0.05)
        await made("too late")
        task.cancel()
        return await made("over")

    with Holdfast(url, agents=[limited]) as hf:
        assert "over" == hf.run(limited, id="r")
        assert "over" == hf.replay("r").result


@pytest.mark.parametrize("how", ["asyncio.wait", "asyncio.wait_for"])
def test_a_task_that_ends_in_time_on_replay_does_so_also_if_the_process_is_slow(
    url: str, how: str
) -> None:
    is_slow = threading.Event()

    async def work(name: str) -> str:
        await asyncio.sleep(0)
        if is_slow.is_set():
            threading.Event().wait(0.1)  # the event loop is blocked: the timer is due
        return await made(name)

    @agent
    async def limited(run: AsyncRun) -> str:
        works = asyncio.gather(work("a"), work("b"))
        try:
            if how == "asyncio.wait_for":
                names = await asyncio.wait_for(works, 0.05)
            else:
                done, _ = await asyncio.wait([works], timeout=0.05)
                names = done.pop().result() if done else await made("late")
        except TimeoutError:
            names = await made("late")
        return await made("".join(names))

    with Holdfast(url, agents=[limited]) as hf:
        hf.run(limited, id="r")
        is_slow.set()
        assert hf.result("r") == hf.replay("r").result


def test_a_timeout_in_the_body_of_a_tool_is_its_own(url: str) -> None:
    @tool(risk="read")
    async def tries() -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            return "gave up"
        return "never"

    @agent
    async def limited(run: AsyncRun) -> list[str]:
        return list(await asyncio.gather(tries(), tries()))

    with Holdfast(url) as hf:
        assert ["gave up", "gave up"] == hf.run(limited, id="r")
        assert "TimeoutFired" not in kinds(hf)


# ── signals and conflicts ────────────────────────────────────────────────────────────────────


def test_one_signal_ends_the_wait_of_one_branch_only(url: str) -> None:
    @agent
    async def two(run: AsyncRun) -> list[Any]:
        return list(await asyncio.gather(run.wait_for("go"), run.wait_for("go")))

    with opened(url, two) as hf:
        with pytest.raises(RunWaiting):
            hf.run(two, id="r")
        hf.signal("r", "go", "first")
        hf.worker().run(once=True)
        assert "waiting" == hf.get("r").status
        hf.signal("r", "go", "second")
        hf.worker().run(once=True)
        assert ["first", "second"] == sorted(hf.result("r", timeout=1))


def test_after_a_conflict_no_effect_is_recorded_before_what_it_rests_on(url: str) -> None:
    """A branch notes a random id, the other's batch takes the note along, and an event from outside refuses both."""

    @tool
    async def pay(to: str, idempotency_key: str = "") -> str:
        return to

    async def noting(run: AsyncRun) -> str:
        to = str(run.uuid())
        await asyncio.sleep(0)
        return await pay(to)

    @agent
    async def paying(run: AsyncRun) -> list[str]:
        return list(await asyncio.gather(noting(run), pay("someone")))

    def send() -> None:
        with opened(url) as other:
            other.signal("r", "go")

    with opened(url, paying, boundary=at("before commit call_started", send)) as hf:
        to, _ = hf.run(paying, id="r")
        events = [event for _, event in hf.events("r")]
        notes = [n for n, event in enumerate(events) if isinstance(event, e.ValueRecorded)]
        started = {
            str(event.args): n for n, event in enumerate(events) if isinstance(event, e.CallStarted)
        }
        rests = next(n for args, n in started.items() if to in args)
        assert "SignalReceived" in kinds(hf)
        assert notes and max(notes) < rests


def test_a_plain_call_on_the_event_loop_does_not_stop_the_other_branches(url: str) -> None:
    """It keeps the loop waiting, and the batch of another branch is on its way when someone writes to the run."""

    @step
    async def quick() -> str:
        return "quick"

    @tool
    def plain(idempotency_key: str = "") -> str:
        return "plain"

    async def without_a_thread() -> str:
        return plain()

    @agent
    async def main(run: AsyncRun) -> list[str]:
        return list(await asyncio.gather(quick(), without_a_thread()))

    with opened(url) as outside:
        patch = at("before commit call_started", lambda: outside.patch("r", {"seen": True}))
        with opened(url, main, boundary=patch) as hf:
            assert ["quick", "plain"] == hf.run(main, id="r")
            assert hf.verify("r").ok


@step
def doubled(n: int) -> int:
    return 2 * n


@agent
async def maps_a_plain_step(run: AsyncRun) -> list[int]:
    first = await run.map(doubled, [1, 2, 3])
    await run.wait_for("go")
    return first


def test_an_async_agent_maps_a_plain_step(home: Any) -> None:
    hf = home.open(maps_a_plain_step)
    with pytest.raises(RunWaiting):
        hf.run(maps_a_plain_step, id="r")
    hf.signal("r", "go")

    assert home.open(maps_a_plain_step).run(maps_a_plain_step, id="r") == [2, 4, 6]
    assert [call.name for call in hf.get("r").calls] == ["doubled"] * 3


class _Guarded(list[Any]):
    """Batches on their way: other branches change them, so that they are read under the run's lock only."""

    lock: Any

    def __iter__(self) -> Iterator[Any]:
        assert self.lock._is_owned()
        return super().__iter__()


def test_whether_a_commit_is_due_is_asked_under_the_lock_of_the_run(tmp_path: Path) -> None:
    """Without it, branches in threads sometimes failed: "deque mutated during iteration" (fuzzer, seed 900032)."""

    @step
    def look(i: int) -> int:
        return i

    @agent(checkpoint="on_state_change")
    def main(run: Run) -> list[int]:
        branch = current_branch()
        assert branch is not None
        writer = branch.session.writer
        writer._queue = guarded = _Guarded(writer._queue)
        guarded.lock = writer._mutex
        return run.map(look, range(4))

    with Holdfast(tmp_path / "h.db") as hf:
        assert list(range(4)) == hf.run(main, id="r")


def test_nothing_is_logged_when_a_run_with_task_groups_is_suspended(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """asyncio logs an error for each task that ends after the group that it belongs to."""

    @agent
    async def main(run: AsyncRun) -> None:
        async def inner(n: int) -> None:
            async with asyncio.TaskGroup() as group:
                for i in range(4):
                    group.create_task(run.ask(f"{n}.{i}?"))

        async with asyncio.TaskGroup() as group:
            for n in range(3):
                group.create_task(inner(n))

    with opened(url) as hf, pytest.raises(RunWaiting):
        hf.run(main, id="r")

    assert [] == caplog.records


def test_a_wait_that_ends_when_the_run_is_about_to_be_suspended_is_not_lost(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 910010: its line had been woken, and continued while what others had written was read."""
    look_again = Parking.look_again

    def suspend_first(self: Any, *args: Any, **kwargs: Any) -> bool:
        self._lines.supervisor._leave()
        return look_again(self, *args, **kwargs)

    monkeypatch.setattr(Parking, "look_again", suspend_first)

    @agent
    async def main(run: AsyncRun) -> None:
        async def something_else() -> None:
            loop = asyncio.get_running_loop()
            for _ in range(6):  # as long as it moves, the run stays in memory
                moves = loop.create_future()
                loop.call_later(0.2, moves.set_result, None)
                await moves

        await asyncio.gather(run.sleep(0.7), run.wait_for("go"), something_else())

    options = Options(patience_seconds=0.6)
    with Holdfast(url, options=options) as hf:
        with pytest.raises(RunWaiting):
            hf.run(main, id="r")
        row = hf.store.get("r")
        ended = [x.wait for _, x in hf.events("r") if isinstance(x, e.WaitEnded)]

    assert row is not None
    assert ended == ["timer"] or row.due_at is not None
