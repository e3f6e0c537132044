"""Looking at the end of a long log reads the end of it. What is counted is events, not time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import (
    CallFailed,
    Holdfast,
    InvalidInput,
    Options,
    Run,
    RunBusy,
    RunWaiting,
    agent,
    step,
    tool,
    views,
)
from holdfast.core import events as e
from holdfast.core import log
from holdfast.core.fold import fold
from holdfast.core.log import Record
from holdfast.core.state import RunState
from holdfast.store import brief
from holdfast.store.brief import BriefFold
from support.long_runs import write_steps
from support.waiting import eventually

STEPS = 3000


@step
def look(i: int) -> int:
    return 2 * i


@tool(risk="read")
def flaky(i: int) -> int:
    raise ValueError(f"no {i}")


@agent
def long(run: Run, steps: int) -> int:
    for i in range(steps):
        look(i)
    run.state.seen = steps
    run.approve("Go on?")
    return steps


class Counting:
    """A Holdfast whose reads of logs are counted."""

    def __init__(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hf = Holdfast(url, agents=[long])
        self.events = self.questions = 0
        real: Callable[..., list[Record]] = self.hf.store.read

        def read(*args: Any, **kwargs: Any) -> list[Record]:
            found = real(*args, **kwargs)
            self.events, self.questions = self.events + len(found), self.questions + 1
            return found

        monkeypatch.setattr(self.hf.store, "read", read)

    def reads(self, act: Callable[[], Any]) -> int:
        before = self.events
        act()
        return self.events - before


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def opened(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Counting]:
    """A run that has done many steps and is waiting for approval."""
    url = (
        tmp_path / "h.db" if request.param == "sqlite" else request.getfixturevalue("postgres_dsn")
    )
    counting = Counting(str(url), monkeypatch)
    with counting.hf as hf:
        write_steps(hf.store, long, "r", STEPS, look, steps=STEPS)
        with pytest.raises(RunWaiting):
            hf.run(long, id="r", steps=STEPS)
        yield counting


def test_a_process_that_has_executed_a_long_run_leaves_a_snapshot(
    opened: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So not even the first look reads all of it."""
    hf = opened.hf
    monkeypatch.setattr("holdfast.runtime.exec.sessions.LONG_LOG", STEPS)
    with pytest.raises(RunWaiting):
        hf.resume("r")

    assert opened.reads(lambda: hf.get("r", brief=True)) <= 10
    assert hf.get("r", brief=True).left_out == STEPS - 100


@step
def wait_for_a_snapshot() -> str:
    eventually(WAITS["snapshot"])
    return "seen"


WAITS: dict[str, Callable[[], bool]] = {}


@agent
def busy(run: Run) -> str:
    for i in range(20):
        look(i)
    return wait_for_a_snapshot()


def test_while_a_long_run_executes_its_process_leaves_snapshots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.runtime.exec.sessions.LONG_LOG", 10)
    monkeypatch.setattr("holdfast.store.brief.SNAPSHOT_AFTER", 10)
    with Holdfast(tmp_path / "h.db", options=Options(lease_seconds=3)) as hf:
        WAITS["snapshot"] = lambda: hf.store.snapshots.newest("r") is not None

        assert hf.run(busy, id="r") == "seen"


def test_after_the_first_look_a_brief_state_reads_only_what_is_new(opened: Counting) -> None:
    hf = opened.hf
    first = hf.get("r", brief=True)

    assert opened.reads(lambda: hf.get("r", brief=True)) <= 5
    hf.signal("r", "more")
    assert opened.reads(lambda: hf.get("r", brief=True)) <= 5
    assert opened.reads(lambda: views.next_steps(hf.store, "r")) <= 5
    assert (first.left_out, len(first.calls), first.state) == (STEPS - 100, 100, {"seen": STEPS})


def test_a_brief_state_equals_the_full_one_except_for_the_calls(opened: Counting) -> None:
    hf = opened.hf
    whole, short = hf.get("r"), hf.get("r", brief=True)

    assert whole.calls[-100:] == short.calls
    assert views.position(whole) == views.position(short)
    assert whole.committed == short.committed == STEPS
    assert without_calls(whole) == without_calls(short)
    assert without_calls(whole) == without_calls(hf.get("r", brief=True))  # from the snapshot


def without_calls(state: RunState) -> dict[str, Any]:
    hidden = ("calls", "left_out")
    return {name: getattr(state, name) for name in state.__struct_fields__ if name not in hidden}


def test_a_page_of_the_log_reads_no_more_than_the_page(opened: Counting) -> None:
    hf = opened.hf

    assert opened.reads(lambda: hf.events("r", limit=10)) <= 11
    assert opened.reads(lambda: hf.events("r", after=STEPS // 2, limit=10)) <= 11
    assert opened.reads(lambda: hf.events("r", last=10)) <= 11
    assert opened.reads(lambda: hf.timeline("r", after=STEPS // 2, limit=10)) <= 11
    assert opened.reads(lambda: hf.timeline("r", last=10)) <= 11
    assert opened.reads(lambda: next(views.events(hf.store, "r"))) <= 5000


def test_the_last_events_are_the_end_of_the_log(opened: Counting) -> None:
    hf = opened.hf
    whole = hf.events("r")

    assert whole[-7:] == hf.events("r", last=7)
    assert whole == hf.events("r", last=10 * STEPS)
    assert [] == hf.events("r", last=0)
    assert hf.timeline("r")[-7:] == hf.timeline("r", last=7)
    with pytest.raises(InvalidInput, match="either last, or after and limit"):
        hf.events("r", last=7, limit=3)


def test_waiting_for_the_result_of_a_long_run_reads_none_of_its_log(opened: Counting) -> None:
    def no_result() -> None:
        with pytest.raises(RunBusy):
            opened.hf.result("r", timeout=0.01)

    assert 0 == opened.reads(no_result)


def test_a_caller_that_waits_reads_the_log_once_and_then_only_rows(opened: Counting) -> None:
    """To know what its code is waiting for, the code is replayed once."""
    hf = opened.hf
    looked = threading.Semaphore(0)
    real = hf.store.get

    def get(run_id: str) -> Any:
        looked.release()
        return real(run_id)

    thread = threading.Thread(target=lambda: hf.run(long, id="r", steps=STEPS, wait=True))
    thread.start()
    eventually(lambda: opened.events >= STEPS)
    eventually(lambda: hf.store.get("r").status == "waiting")  # type: ignore[union-attr]
    hf.store.get = get  # type: ignore[method-assign]
    looked.acquire()
    before = opened.events
    for _ in range(5):
        looked.acquire()
    assert before == opened.events
    hf.approve("r")
    thread.join()


def test_of_calls_that_did_not_simply_succeed_the_last_are_kept(tmp_path: Path) -> None:
    @agent
    def careless(run: Run) -> None:
        for i in range(150):
            look(i)
            try:
                flaky(i)
            except CallFailed:
                pass
        run.wait_for("more")

    with Holdfast(tmp_path / "h.db", agents=[careless]) as hf:
        with pytest.raises(RunWaiting):
            hf.run(careless, id="r")
        short = hf.get("r", brief=True)

    assert list(range(101, 301)) == [call.step for call in short.calls]
    assert 100 == short.left_out
    assert "step 301; 1–300 committed" == str(views.position(short))


def written(kinds: list[str]) -> list[Record]:
    """A log with these calls, one after the other."""
    events: list[e.Event] = [e.RunCreated(run_id="r", agent="a", input=e.Value())]
    for index, kind in enumerate(kinds):
        call: dict[str, Any] = {"index": index, "step": index + 1, "name": "t"}
        if kind == "restart":
            events.append(e.RunRestarted(by="sam"))
            continue
        if kind in ("tool", "open"):
            events.append(e.CallStarted(**call, key="k", digest="", effect="once", args=e.Value()))
        if kind in ("tool", "step"):
            events.append(e.CallSucceeded(**call, result=e.Value()))
        if kind == "failed":
            events.append(e.CallFailure(**call, error=e.ErrorInfo("E", "no")))
    return log.seal(log.origin("r"), events, epoch=1, time=5)[1]


KINDS = st.sampled_from(("step", "tool", "failed", "open", "restart"))


@given(st.lists(KINDS, max_size=30), st.integers(0, 30))
def test_every_call_that_is_not_over_is_in_a_brief_state(kinds: list[str], cut: int) -> None:
    """With room for two calls of each sort, and a snapshot anywhere."""
    records = written(kinds)
    whole = fold(RunState(), records)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(brief, "KEPT", 2)
        patch.setattr(brief, "_SLACK", 0)
        short = folded(folded(RunState(), records[:cut]), records[cut:])

    assert without_calls(whole) == without_calls(short)
    assert not set(short.calls) - set(whole.calls)
    assert [c for c in whole.calls if c.status not in brief.OVER] == [
        c for c in short.calls if c.status not in brief.OVER
    ]
    assert len(short.calls) + short.left_out == len(whole.calls)
    assert whole.committed == short.committed
    assert sum(c.status in brief.OVER for c in short.calls) <= 4


def folded(start: RunState, records: list[Record]) -> RunState:
    fold_ = BriefFold(start)
    for record in records:
        fold_.apply("r", record)
    return fold_.state()
