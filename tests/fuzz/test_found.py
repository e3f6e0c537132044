"""What the fuzzer found beyond the list of its issue, each as small as it could be made."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from fuzz.dying import signal_and_die
from fuzz.world import stand_still
from holdfast import (
    AgentState,
    AsyncHoldfast,
    AsyncRun,
    Budget,
    Holdfast,
    Options,
    Retry,
    Run,
    RunCancelled,
    RunFailed,
    RunWaiting,
    agent,
    control,
    loop,
    step,
    tool,
)
from holdfast.core import events as e
from holdfast.core import log
from holdfast.core.values import decode, digest
from holdfast.errors import Abandon, LeaseLost
from holdfast.runtime.log.branches import current_branch
from holdfast.store import cancel
from holdfast.store.base import Creation, NewRun, Store
from holdfast.store.sqlite import SQLiteStore
from holdfast.testing import ManualClock
from support.waiting import eventually
from support.workers import STORES, url_of

IS_SLOW = False
NAMES_TIMEOUTS = pytest.mark.skipif(
    sys.version_info < (3, 11, 3), reason="asyncio does not tell a task that a timeout was entered"
)
SHORT = Options(patience_seconds=0.05)


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


@agent
async def two_tasks(run: AsyncRun) -> list[Any]:
    return list(await asyncio.gather(run.wait_for("go"), run.wait_for("go")))


def test_one_signal_ends_the_wait_of_one_branch(url: str) -> None:
    """Two branches wait for signals of one name, and one signal comes."""
    with Holdfast(url, options=SHORT) as hf:
        with contextlib.suppress(RunWaiting):
            hf.run(two_tasks, id="r")
        hf.signal("r", "go", "first")

        with pytest.raises(RunWaiting):
            hf.run(two_tasks, id="r")


def test_no_attempt_begins_after_the_deadline(url: str) -> None:
    """The waits between attempts are short, so the run stays in memory. Its third attempt would be after 0.4 s."""
    called = []

    @tool(retry=Retry(attempts=4, initial=0.2, factor=1.0, jitter=0))
    def unwell(idempotency_key: str = "") -> None:
        called.append(1)
        raise ConnectionError("no")

    @agent(deadline=0.3)
    def limited(run: Run) -> None:
        unwell()

    with Holdfast(url) as hf:
        with pytest.raises(RunFailed) as failed:
            hf.run(limited, id="r")

        assert len(called) <= 2
        assert failed.value.reason == "deadline"


def test_a_call_that_happened_before_a_crash_is_not_recorded_as_not_done_when_it_is_given_up(
    url: str,
) -> None:
    """Its first attempt acted and died; its second is cancelled before it begins."""
    acted = []

    @tool
    async def pay(idempotency_key: str = "") -> None:
        acted.append(idempotency_key)
        raise KeyboardInterrupt

    @agent
    async def impatient(run: AsyncRun) -> str:
        task = asyncio.ensure_future(pay())
        await asyncio.wait((task,))
        return "gave up" if task.cancelled() else "paid"

    def cancel(where: str) -> None:
        task = asyncio.current_task()
        if where == "before commit call_started" and task is not None:
            task.cancel()

    with Holdfast(url) as hf, contextlib.suppress(KeyboardInterrupt):
        hf.run(impatient, id="r")
    with Holdfast(url, options=Options(boundary=cancel)) as hf:
        assert "gave up" == hf.run(impatient, id="r")
        failures = [x for _, x in hf.events("r") if isinstance(x, e.CallFailure)]

    assert (1, [""]) == (len(acted), [x.error.effect for x in failures])


def test_a_call_that_happened_before_its_run_failed_is_not_recorded_as_not_done_when_it_is_given_up(
    url: str,
) -> None:
    """Its first attempt acted and was cancelled; the run was resumed, and cancels the second before it begins."""
    acted, has_acted = [], asyncio.Event()

    @tool
    async def pay(idempotency_key: str = "") -> None:
        acted.append(idempotency_key)
        has_acted.set()
        await asyncio.Event().wait()

    @step
    async def until_paid() -> None:
        await has_acted.wait()

    @agent
    async def impatient(run: AsyncRun) -> None:
        task = asyncio.ensure_future(pay())
        await asyncio.gather(until_paid())
        task.cancel()
        await asyncio.wait((task,))
        raise RuntimeError("every time")

    with Holdfast(url, agents=[impatient]) as hf:
        with pytest.raises(RunFailed):
            hf.run(impatient, id="r")
        with pytest.raises(RunFailed):
            hf.resume("r")
        failures = [x for _, x in hf.events("r") if isinstance(x, e.CallFailure)]

    assert (1, ["", ""]) == (len(acted), [x.error.effect for x in failures])


def test_a_cancelled_run_with_branches_is_undone_by_a_process_that_did_not_book(url: str) -> None:
    """A branch that has to stop keeps the others from reaching the calls that are to be undone."""
    world = []

    def unbook(idempotency_key: str = "") -> None:
        world.append("unbooked")

    @tool(undo=unbook, risk="write_local")
    def book(idempotency_key: str = "") -> None:
        world.append("booked")

    @agent(on_failure="undo")
    def trip(run: Run) -> None:
        def one(item: int) -> None:
            if item:
                run.uuid()
                book()
            else:
                run.wait_for("never")

        run.map(one, [0, 1], threads=1)

    with Holdfast(url) as hf:
        with contextlib.suppress(RunWaiting):
            hf.run(trip, id="r")
        hf.cancel("r")
    with Holdfast(url) as hf:
        with contextlib.suppress(RunFailed, LookupError):
            hf.run(trip, id="r")

        assert (["booked", "unbooked"], "cancelled") == (world, hf.get("r").status)


def test_a_decision_about_a_doubt_that_comes_while_a_worker_claims_the_run_holds(url: str) -> None:
    """The worker has read the log, and is about to record the doubt."""
    world: list[str] = []
    decided: list[str] = []

    @tool
    def pay() -> str:
        world.append("paid")
        if len(world) == 1:
            raise KeyboardInterrupt
        return "paid"

    @agent
    def paying(run: Run) -> str:
        return pay()

    def decide(where: str) -> None:
        if where == "before commit call_doubted" and not decided:
            decided.append(where)
            event = e.CallResolved(
                index=0,
                step=1,
                name="pay",
                how="done",
                result=e.Value(json=Raw(b'"paid"')),
                by="ann",
            )
            control.update_run(hf.store, "r", lambda *_: control.RunUpdate([event]))

    with Holdfast(url) as hf, contextlib.suppress(KeyboardInterrupt):
        hf.run(paying, id="r")
    with Holdfast(url, options=Options(boundary=decide)) as hf:
        with contextlib.suppress(RunWaiting):
            hf.run(paying, id="r")
        kinds = [record.kind for record, _ in hf.events("r")]

    assert "call_doubted" not in kinds[kinds.index("call_resolved") :]


def test_a_run_that_crashed_while_it_was_undone_still_reports_why_it_failed(url: str) -> None:
    """Its deadline passed; the first process died in the middle of the undo."""
    world: list[str] = []

    def unbook(idempotency_key: str = "") -> None:
        world.append("unbooked")
        if len(world) == 2:
            raise KeyboardInterrupt

    @tool(undo=unbook)
    def book(idempotency_key: str = "") -> None:
        world.append("booked")

    @agent(on_failure="undo", deadline=0.2)
    def trip(run: Run) -> None:
        book()
        run.wait_for("never")

    with Holdfast(url) as hf, contextlib.suppress(KeyboardInterrupt):
        hf.run(trip, id="r", wait=True)
    with Holdfast(url) as hf:
        with pytest.raises(RunFailed) as failed:
            hf.run(trip, id="r", wait=True)

        assert "deadline" == failed.value.reason


def test_a_signal_is_not_lost_if_the_process_dies_right_after_it_has_suspended_the_run(
    url: str,
) -> None:
    """The signal comes after the wait has looked and before the suspension; one branch, no parallel code."""
    process = multiprocessing.get_context("spawn").Process(target=signal_and_die, args=(url,))
    process.start()
    process.join()
    assert -signal.SIGKILL == process.exitcode

    with Holdfast(url) as hf:
        row = hf.store.get("r")
        kinds = [record.kind for record, _ in hf.events("r")]
    assert ["signal_received", "run_suspended"] == kinds[-2:]
    assert row is not None and row.due_at is not None, "the run waits for a signal that it has"


@tool(retry=Retry(attempts=3, initial=0.001, jitter=0))
async def tried_twice(idempotency_key: str = "") -> str:
    return "done"


@step
def at_once(n: int) -> int:
    return n


@step
async def awaited(n: int) -> int:
    return n


@agent
async def late_for_a_retry(run: AsyncRun) -> int:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.05):
            await tried_twice()
            at_once(1)  # not awaited: no cancellation arrives here
            await awaited(2)
    return await awaited(3)


def killed_before_its_second_attempt(store: Store) -> None:
    """A run whose timeout fired while its first failure was recorded: the process died before the second attempt."""
    name = digest(b"{}")
    call = {"index": 0, "step": 1, "name": "tried_twice"}
    intent = e.CallStarted(
        **call,
        effect="keyed",
        key=f"r:1:tried_twice:{name}",
        digest=name,
        args=e.Value(json=Raw(b"{}")),
    )
    events = [
        e.RunCreated(run_id="r", agent="late_for_a_retry", input=e.Value(json=Raw(b"{}"))),
        intent,
        e.CallFailure(**call, error=e.ErrorInfo("ValueError", "no"), retry_at=store.now()),
        e.TimeoutFired(index=1, within_us=50_000, entered_at=0, number=1),
        msgspec.structs.replace(intent, attempt=2),
    ]
    _, records = log.seal(log.origin("r"), events, epoch=1, time=store.now())
    new = NewRun("r", "late_for_a_retry", name, "")
    store.create(Creation(new, records, worker="of another process", lease_us=1)).wait()


@NAMES_TIMEOUTS
def test_a_timeout_that_is_recorded_before_an_outcome_fires_before_it_on_replay(url: str) -> None:
    """Seed 910001: in a run with one line, a result was given to the code before the timeout had fired again."""

    def hesitate(where: str) -> None:
        if where == "before commit call_succeeded":  # so that the timeout fires while it is written
            threading.Event().wait(0.1)

    with Holdfast(url, options=Options(boundary=hesitate)) as hf:
        killed_before_its_second_attempt(hf.store)
        assert 3 == hf.run(late_for_a_retry, id="r")
    with Holdfast(url, agents=[late_for_a_retry]) as hf:
        again = hf.replay("r")
        assert (True, None) == (again.reached_end, again.diverged)


STALL_AFTER: list[int] = []


def stand_still_after(turns: int) -> None:
    """After so many turns of the event loop the process stands still, so that a timer is due when it continues."""
    loop = asyncio.get_running_loop()
    if turns:
        loop.call_soon(stand_still_after, turns - 1)
    else:
        threading.Event().wait(0.03)


async def stalled(n: int) -> int:
    found: int = await awaited(n)
    if n == 1 and STALL_AFTER:
        stand_still_after(STALL_AFTER[0])
    return found


@agent
async def limits_its_branches(run: AsyncRun, waits_inside: bool) -> str:
    try:
        async with asyncio.timeout(0.02 if STALL_AFTER else 60):
            await asyncio.gather(stalled(1), stalled(2))
            if waits_inside:
                await run.wait_for("go")
                return "in time"
    except TimeoutError:
        return f"late {await awaited(3)}"
    await awaited(4)
    await run.wait_for("go")
    return "in time"


@pytest.mark.parametrize("waits_inside", [False, True])
def test_a_timeout_that_fires_on_replay_while_a_branch_ends_does_not_change_the_path(
    url: str, waits_inside: bool
) -> None:
    """Seeds 1600044 and 1600128: the code had yet to hear of the end of its last branch, and was taken for blocked."""
    for turns in range(12):
        STALL_AFTER.clear()
        with Holdfast(url, agents=[limits_its_branches], options=SHORT) as hf:
            with pytest.raises(RunWaiting):
                hf.run(limits_its_branches, id=f"r{turns}", waits_inside=waits_inside)
            hf.signal(f"r{turns}", "go")
            STALL_AFTER.append(turns)
            # Where the wait is in the block, both are right: the signal has come, and the time is over.
            assert hf.resume(f"r{turns}") in ("in time", "late 3" if waits_inside else "")
    STALL_AFTER.clear()


CALLER: list[asyncio.Task[Any]] = []
TURNS: list[int] = []


@step
async def cleans_up() -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        if CALLER:
            CALLER.pop().cancel()
            for _ in range(TURNS[0]):
                await asyncio.sleep(0)
        raise


@agent
async def gives_up_a_call(run: AsyncRun) -> int:
    async def branch() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.02):
                await cleans_up()
        await awaited(1)

    async with asyncio.TaskGroup() as group:
        group.create_task(branch())
        group.create_task(awaited(2))
    return await awaited(3)


@pytest.mark.timeout(60)
def test_code_does_not_continue_after_a_timeout_when_its_caller_is_cancelled(url: str) -> None:
    """Seed 1004: a branch gave up a call when the run was being ended here, which is not recorded, and continued."""

    async def cancelled(run_id: str) -> None:
        async with AsyncHoldfast(url) as hf:
            CALLER[:] = [asyncio.create_task(hf.run(gives_up_a_call, id=run_id))]
            with contextlib.suppress(asyncio.CancelledError):
                await CALLER[0]

    for turns in range(6):
        TURNS[:] = [turns]
        asyncio.run(cancelled(f"r{turns}"))
        with Holdfast(url) as hf:
            assert [] == [x.args for x in hf.get(f"r{turns}").calls if x.args == {"n": 1}]
            assert 3 == hf.run(gives_up_a_call, id=f"r{turns}")


@agent
async def cut_before_it_waits(run: AsyncRun) -> list[int]:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.05):
            await awaited(0)
            await run.sleep(5)
    await awaited(1)
    return await asyncio.gather(awaited(2), awaited(3))


@NAMES_TIMEOUTS
def test_a_timeout_that_fired_before_a_wait_began_fires_there_again_although_branches_follow(
    url: str,
) -> None:
    """Seed 940003: the wait was new, and what its run did in branches later was taken for a divergence."""

    def done(index: int, n: int, branch: str = "") -> e.CallSucceeded:
        args, result = e.Value(json=Raw(b'{"n":%d}' % n)), e.Value(json=Raw(b"%d" % n))
        call = {"index": index, "step": n + 1, "name": "awaited", "branch": branch}
        return e.CallSucceeded(**call, args=args, result=result)

    events = [
        e.RunCreated(run_id="r", agent="cut_before_it_waits", input=e.Value(json=Raw(b"{}"))),
        done(0, 0),
        e.TimeoutFired(index=2, within_us=50_000, entered_at=0, number=1),
        done(2, 1),
        done(0, 2, "3-1"),
    ]
    with Holdfast(url) as hf:
        _, records = log.seal(log.origin("r"), events, epoch=1, time=hf.store.now())
        new = NewRun("r", "cut_before_it_waits", digest(b"{}"), "")
        hf.store.create(Creation(new, records, worker="of another process", lease_us=1)).wait()
        assert [2, 3] == hf.run(cut_before_it_waits, id="r")


@step
async def swallows_its_cancellation() -> str:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return "late"
    return "never"


@agent
async def loses_a_race(run: AsyncRun) -> int:
    async def lose() -> None:
        await swallows_its_cancellation()
        await asyncio.gather(awaited(1), awaited(3))

    loser = asyncio.create_task(lose())
    await awaited(0)
    loser.cancel()
    await asyncio.wait((loser,))
    return await awaited(2)


def test_a_cancellation_that_a_call_swallows_reaches_the_code_at_its_next_await(url: str) -> None:
    """Seed 920357: a child run that failed at that moment did. A replay delivered it, the first execution did not."""
    with Holdfast(url) as hf:
        assert 2 == hf.run(loses_a_race, id="r")
        again = hf.replay("r")

    assert (True, None) == (again.reached_end, again.diverged)


def check_that_finds(key: str) -> str:
    return f"found {key.partition(':')[0]}"


@tool(check=check_that_finds)
async def slow_but_done() -> str:
    await asyncio.Event().wait()
    return "never returned here"


@step
async def afterwards(n: int) -> int:
    return n


@agent
async def cancelled_after_a_call_that_its_check_found(run: AsyncRun) -> int:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.02):
            await slow_but_done()
            await run.sleep(5)
    return await afterwards(1)


def test_a_timeout_that_hit_after_a_call_was_found_done_hits_at_the_same_place_on_replay(
    url: str,
) -> None:
    """The next call had not begun, and its position holds what the code did after the timeout."""
    with Holdfast(url) as hf:
        hf.run(cancelled_after_a_call_that_its_check_found, id="r")

        again = hf.replay("r")
        assert (True, None) == (again.reached_end, again.diverged)


@agent
async def two_timeouts(run: AsyncRun) -> str:
    try:
        async with asyncio.timeout(1.2):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.01):
                    await run.sleep(3)
            await afterwards(1)
            await run.sleep(3)
    except TimeoutError:
        await afterwards(2)
    await run.wait_for("go")
    return "done"


def test_an_outer_timeout_that_fires_while_an_inner_one_is_recorded_is_recorded_too(
    url: str,
) -> None:
    def take_long(where: str) -> None:
        if where == "before commit wait_ended":
            begun = time.monotonic()
            eventually(lambda: time.monotonic() > begun + 1.3, "the outer timeout's time")

    slow = Options(patience_seconds=4, boundary=take_long)
    with Holdfast(url, options=slow) as hf:
        with contextlib.suppress(RunWaiting):
            hf.run(two_timeouts, id="r")
        hf.signal("r", "go")
        assert [1, 2] == [decode(x.result.json) for x in hf.get("r").calls if x.result is not None]

    with Holdfast(url, options=Options(patience_seconds=4)) as hf:
        hf.run(two_timeouts, id="r")
        assert hf.replay("r").reached_end


@agent
async def slow_on_its_way(run: AsyncRun) -> str:
    came = ""
    try:
        async with asyncio.timeout(0.3):
            begun = time.monotonic()
            if IS_SLOW:
                eventually(lambda: time.monotonic() > begun + 0.5, "half a second")
            try:
                async with asyncio.timeout(0.1):
                    await run.sleep(0.9)
            except TimeoutError:
                came = "inner"
    except TimeoutError:
        came = "outer"
    await afterwards(1 if came == "inner" else 2)
    return came


@NAMES_TIMEOUTS
def test_of_two_timeouts_the_same_one_fires_on_replay(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Live, the code was slow between the two, so that the outer one fired first."""
    monkeypatch.setitem(globals(), "IS_SLOW", True)
    with Holdfast(url, options=Options(patience_seconds=1.0)) as hf:
        came = hf.run(slow_on_its_way, id="r")
        monkeypatch.setitem(globals(), "IS_SLOW", False)

        assert ("outer", True) == (came, hf.replay("r").reached_end)


@tool(undo=lambda result, idempotency_key: undoing())
def reserve(idempotency_key: str = "") -> str:
    return "reserved"


def undoing() -> None:
    raise KeyboardInterrupt


@agent
def helper_that_works(run: Run) -> None:
    for n in range(20):
        plain_step(n)


@step
def plain_step(n: int) -> int:
    return n


@agent(on_failure="undo", budget=Budget(max_steps=9))
def stops_in_its_child(run: Run) -> None:
    reserve()
    helper_that_works()


def test_a_run_whose_undo_was_interrupted_still_ends_for_the_reason_it_was_undone(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its child had used up the budget, and is not asked again: only the log can say why it failed."""
    with Holdfast(url) as hf:
        with pytest.raises(KeyboardInterrupt):
            hf.run(stops_in_its_child, id="r")
        monkeypatch.setitem(globals(), "undoing", lambda: None)

        with pytest.raises(RunFailed) as failed:
            hf.resume("r")
        assert failed.value.reason == "budget"


@loop(max_iterations=9)
async def counting(run: AsyncRun, state: AgentState) -> AgentState:
    seen = str(run.state.get("outside", ""))
    after = state.with_note(f"seen in {state.iteration}", seen)
    return after if state.iteration < 3 else after.to_done(seen)


def test_an_async_loop_sees_a_patch_in_the_same_iteration_on_replay(url: str) -> None:
    """Its iterations make no call, so that nothing else shows it what came from outside."""
    with Holdfast(url, agents=[counting]) as hf:
        hf.start(counting, "goal", id="r")
        hf.patch("r", {"outside": 1})
        hf.run(counting, "goal", id="r")

        again = hf.replay("r")
        assert (True, None) == (again.reached_end, again.diverged)


@loop(max_iterations=9)
def answering(run: Run, state: AgentState) -> AgentState:
    if state.iteration == 2:
        CLOCK.append(1_000_000)  # an hour or so earlier than before
        return state.to_done("answer")
    return state.with_note("n", state.iteration)


CLOCK: list[int] = []


def test_a_loop_replays_although_the_clock_ran_backwards_before_its_last_iteration(
    tmp_path: Path,
) -> None:
    CLOCK[:] = [9_000_000_000]
    with Holdfast(SQLiteStore(tmp_path / "h.db", clock=lambda: CLOCK[-1])) as hf:
        hf.run(answering, "goal", id="r")

        assert hf.replay("r").diverged is None


@agent
async def cancelled_and_going_on(run: AsyncRun) -> None:
    await afterwards(1)
    if IS_SLOW:
        branch = current_branch()
        assert branch is not None
        branch.session.stop(Abandon(LeaseLost(run.id, 1, 2)))
    await afterwards(3 if IS_SLOW else 2)
    await run.wait_for("go")


def test_a_run_that_lost_its_lease_is_not_recorded_as_diverged_whatever_its_code_does_then(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Holdfast(url, options=SHORT) as hf:
        with pytest.raises(RunWaiting):
            hf.run(cancelled_and_going_on, id="r")
        monkeypatch.setitem(globals(), "IS_SLOW", True)
        with pytest.raises(LeaseLost):
            hf.run(cancelled_and_going_on, id="r")
        assert "code" not in [waiting.kind for waiting in hf.get("r").waiting]


@agent
async def waiting_for_its_own(run: AsyncRun) -> None:
    await asyncio.gather(asyncio.Event().wait(), run.wait_for("go"))


def test_an_async_run_that_lost_its_lease_ends_here_although_its_code_makes_no_call(
    url: str,
) -> None:
    """Otherwise the only worker of a fleet believes forever that it executes the run, and does not claim it."""
    patient = Options(lease_seconds=0.6, patience_seconds=3600)
    with Holdfast(url, agents=[waiting_for_its_own], options=patient) as hf:
        hf.start(waiting_for_its_own, id="r")
        worker = hf.worker()
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        eventually(lambda: hf.get("r").waits, "the wait")
        row = hf.store.get("r")
        assert row is not None
        hf.store.release("r", row.epoch)
        taken = eventually(lambda: hf.store.claim("r", worker="another", lease_us=1))

        def is_claimed_again() -> bool:
            row = hf.store.get("r")
            return row is not None and row.epoch > taken.epoch

        eventually(is_claimed_again, "that the worker claims it again", seconds=30)
        worker.stop()
        thread.join()


@tool(check=lambda _: "done")
async def found_done() -> str:
    await asyncio.Event().wait()
    return ""


@agent
async def late_twice(run: AsyncRun) -> str:
    async with asyncio.timeout(0.02), asyncio.timeout(0.04):
        return await found_done()


def test_a_timeout_that_fires_while_a_check_is_recorded_replays(url: str) -> None:
    """Its line has been given the result of the check by then, and has left the timeout."""

    def hesitate(where: str) -> None:
        if where == "before commit call_resolved":
            threading.Event().wait(0.1)

    with Holdfast(url, options=Options(boundary=hesitate)) as hf:
        with contextlib.suppress(RunFailed):
            hf.run(late_twice, id="r")
        again = hf.replay("r")
        assert (True, None) == (again.reached_end, again.diverged)


@step
async def never_ending() -> None:
    await asyncio.Event().wait()


@agent
async def only_in_branches(run: AsyncRun, waits: bool) -> None:
    slow = asyncio.create_task(run.wait_for("never") if waits else never_ending())
    quick = asyncio.create_task(afterwards(1))
    await asyncio.wait((slow, quick), return_when=asyncio.FIRST_COMPLETED)
    slow.cancel()
    await asyncio.gather(afterwards(2), afterwards(3))
    raise RuntimeError("every time")


@pytest.mark.parametrize("waits", [True, False])
def test_a_lost_race_stays_lost_when_a_run_that_failed_later_is_resumed(
    url: str, waits: bool
) -> None:
    """Its main branch makes no call, so that only the branches that it started afterwards show that it continued."""
    with Holdfast(url, agents=[only_in_branches], options=SHORT) as hf:
        with pytest.raises(RunFailed):
            hf.run(only_in_branches, waits, id="r")
        before = hf.get("r").seq
        with pytest.raises(RunFailed):
            hf.resume("r")
        kinds = [event.kind for _, event in hf.events("r", after=before)]
        assert kinds == ["run_reopened", "run_claimed", "run_failed"]
        assert hf.replay("r").diverged is None


MADE: list[str] = []


def _cancelled_meanwhile(_key: str) -> None:
    control.cancel(OPEN[0], "r")


@tool(check=_cancelled_meanwhile)
def checked_once() -> None:
    MADE.append("checked_once")
    if len(MADE) == 1:
        raise KeyboardInterrupt  # so its outcome is not recorded


@agent
def checking(run: Run) -> None:
    checked_once()


@tool
def approved_once() -> None:
    MADE.append("approved_once")


@agent(approve=["external_action"])
def approving(run: Run) -> None:
    approved_once()


@step
def approved_step() -> None:
    MADE.append("approved_step")


@agent(approve=["read"])
def approving_step(run: Run) -> None:
    approved_step()


OPEN: list[Store] = []


@pytest.mark.parametrize(
    ("which", "made"), [(checking, ["checked_once"]), (approving, []), (approving_step, [])]
)
def test_a_cancellation_that_comes_while_a_call_is_prepared_prevents_it(
    url: str, monkeypatch: pytest.MonkeyPatch, which: Any, made: list[str]
) -> None:
    """Its check reports that it did not happen, or it is approved, at the same time."""

    def decide(where: str) -> None:
        if where == "after commit wait_began":
            control.approve(hf.store, "r")
            control.cancel(hf.store, "r")

    monkeypatch.setitem(globals(), "MADE", [])
    with Holdfast(url, agents=[which], options=Options(boundary=decide)) as hf:
        monkeypatch.setitem(globals(), "OPEN", [hf.store])
        with contextlib.suppress(KeyboardInterrupt, RunCancelled):
            hf.run(which, id="r")
        with pytest.raises(RunCancelled):
            hf.run(which, id="r")
    assert made == MADE


IS_SLOW: list[bool] = []


@step
async def never_returns() -> None:
    await asyncio.Event().wait()


@agent
async def late_before_its_call_begins(run: AsyncRun) -> list[Any]:
    async def limited() -> str:
        try:
            async with asyncio.timeout(0.02):
                if IS_SLOW:
                    stand_still(0.05)
                await never_returns()
        except TimeoutError:
            return "late"
        return "in time"

    return list(await asyncio.gather(limited(), awaited(2)))


@pytest.mark.timeout(60)
def test_a_timeout_that_fires_while_a_new_call_may_not_begin_yet_ends_it_when_it_has_begun(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call waits until a recorded outcome has been given to the code. Nobody looked at the timeout after that."""

    crashes: list[str] = []

    def crash(where: str) -> None:
        if crashes:  # asyncio cancels the other tasks: they must record nothing
            raise RuntimeError("the process is dead")
        if where == "after commit call_succeeded":
            crashes.append(where)
            raise KeyboardInterrupt

    with (
        Holdfast(url, options=Options(boundary=crash)) as hf,
        pytest.raises(KeyboardInterrupt),
    ):
        hf.run(late_before_its_call_begins, id="r")
    monkeypatch.setitem(globals(), "IS_SLOW", [True])
    with Holdfast(url) as hf:
        assert hf.run(late_before_its_call_begins, id="r") == ["late", 2]
        assert hf.replay("r").reached_end


class Late:
    """A run whose deadline passes while the only call that it made has no known outcome."""

    def __init__(self, folder: Path, options: Options, **declared: Any) -> None:
        undone = self.undone = list[str]()
        self.clock = ManualClock()

        @tool(undo=lambda: undone.append("pay"), **declared)
        def pay() -> str:
            raise KeyboardInterrupt  # so its outcome is not recorded

        @agent(deadline=60, on_failure="undo")
        def late(run: Run) -> None:
            pay()

        self.agent = late
        store = SQLiteStore(folder / "late.db", clock=self.clock.now)
        self.hf = Holdfast(store, agents=[late], options=options)

    def crash(self) -> Holdfast:
        with pytest.raises(KeyboardInterrupt):
            self.hf.run(self.agent, id="r")
        self.clock.advance(61)
        return self.hf


@pytest.fixture
def make_late(tmp_path: Path) -> Iterator[Callable[..., Late]]:
    made: list[Late] = []

    def make(options: Options = SHORT, **declared: Any) -> Late:
        made.append(Late(tmp_path, options, **declared))
        return made[-1]

    yield make
    for late in made:
        late.hf.close()
        late.hf.store.close()


def test_a_late_run_that_waits_for_a_decision_before_it_is_undone_is_not_due(
    make_late: Callable[..., Late],
) -> None:
    """Otherwise workers claim it all the time, and the person who decides is told that it executes."""
    late = make_late()
    hf = late.crash()
    with pytest.raises(RunWaiting):
        hf.run(late.agent, id="r")
    row = hf.store.get("r")
    assert row is not None
    assert ("waiting", None) == (row.status, row.due_at)

    hf.resolve("r", done="paid")
    with pytest.raises(RunFailed) as failed:
        hf.run(late.agent, id="r")
    assert ("deadline", ["pay"]) == (failed.value.reason, late.undone)


@pytest.mark.parametrize(("happened", "expected"), [("paid", ["pay"]), (None, [])])
def test_a_late_run_asks_the_check_of_a_call_in_doubt_before_it_is_undone(
    make_late: Callable[..., Late], happened: str | None, expected: list[str]
) -> None:
    """So no person is needed to find out what the tool says how to find out."""
    late = make_late(check=lambda _: happened)
    hf = late.crash()
    with pytest.raises(RunFailed) as failed:
        hf.run(late.agent, id="r")
    assert ("deadline", expected) == (failed.value.reason, late.undone)


def test_a_late_run_whose_check_fails_waits_for_a_decision_before_it_is_undone(
    make_late: Callable[..., Late],
) -> None:
    def fails(_key: str) -> None:
        raise ConnectionError("unreachable")

    late = make_late(check=fails)
    hf = late.crash()
    with pytest.raises(RunWaiting) as waiting:
        hf.run(late.agent, id="r")
    assert "its check failed: ConnectionError: unreachable" == waiting.value.waits[0].reason
    hf.resolve("r", done="paid")
    with pytest.raises(RunFailed):
        hf.run(late.agent, id="r")
    assert ["pay"] == late.undone


def test_a_run_that_lost_its_lease_while_it_is_suspended_to_be_undone_says_so(
    make_late: Callable[..., Late],
) -> None:
    """Its caller gets an error that names the other worker, not a signal of the runtime."""

    def lose(where: str) -> None:
        if where == "before commit run_suspended":
            late.hf.store.release("r", 2)
            late.hf.store.claim("r", worker="another", lease_us=1)

    late = make_late(Options(boundary=lose))
    hf = late.crash()
    with pytest.raises(LeaseLost):
        hf.run(late.agent, id="r")


@pytest.mark.parametrize("reason", ["deadline", "budget", ""])
def test_a_cancelled_run_that_waits_for_a_decision_before_it_is_undone_is_not_due(
    make_late: Callable[..., Late], reason: str
) -> None:
    """Whether a person has cancelled it or a limit of its parent: that has done its work by then."""
    late = make_late()
    hf = late.crash()
    with pytest.raises(RunWaiting):
        hf.run(late.agent, id="r")
    assert cancel.request(hf.store, "r", e.CancelRequested(why="of its parent", reason=reason))
    with pytest.raises(RunWaiting):
        hf.run(late.agent, id="r")
    row = hf.store.get("r")
    assert row is not None
    assert ("waiting", None) == (row.status, row.due_at)
