"""Ordinary functions become durable: how agents, steps and tools are called, run and resumed."""

from __future__ import annotations

import asyncio
import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    AsyncHoldfast,
    AsyncRun,
    CallFailed,
    Holdfast,
    InputConflict,
    InvalidInput,
    NotDurable,
    NotFound,
    NotStorable,
    Retry,
    Run,
    RunBusy,
    RunFailed,
    RunWaiting,
    agent,
    step,
    tool,
)
from holdfast.core import events as e
from holdfast.errors import NotRecorded
from support.waiting import eventually


def kinds(hf: Holdfast, run_id: str) -> list[str]:
    return [record.kind for record, _ in hf.events(run_id)]


@dataclass
class Price:
    amount: Decimal
    at: datetime


class Counter:
    """Counts how often something really ran."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def __call__(self, what: Any = None) -> int:
        self.calls.append(what)
        return len(self.calls)


# ── functions stay functions ─────────────────────────────────────────────────────────────────


def test_a_declared_function_keeps_its_name_signature_and_doc() -> None:
    @tool
    def send(to: str, body: str = "hi") -> dict[str, str]:
        """Send something."""
        return {"to": to, "body": body}

    assert send.__name__ == "send"
    assert send.__doc__ == "Send something."
    assert list(inspect.signature(send).parameters) == ["to", "body"]


def test_outside_a_run_a_tool_is_a_plain_call() -> None:
    marker = object()

    @tool
    def echo(what: object) -> object:
        return what

    assert echo(marker) is marker


def test_a_tool_called_in_a_thread_that_the_agent_started_by_itself_warns(home: Any) -> None:
    """It does not know the run: its durability would silently be off."""

    @tool
    def send(to: str) -> str:
        return to

    @agent
    def threaded(_: Run) -> list[str]:
        with ThreadPoolExecutor(max_workers=1) as pool:
            return list(pool.map(send, ["a"]))

    with pytest.warns(NotRecorded, match=r"send was called outside a run.*use run\.map"):
        home.open().run(threaded, id="r")
    assert "a" == send("a")  # no run is under way


def test_outside_a_run_a_tools_own_exception_is_raised() -> None:
    @tool(retry=Retry(attempts=5))
    def broken() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        broken()


def test_outside_a_run_an_async_tool_is_a_plain_coroutine() -> None:
    @tool
    async def double(n: int) -> int:
        return 2 * n

    assert inspect.iscoroutinefunction(double)
    assert asyncio.run(double(4)) == 8


def test_outside_a_run_a_key_without_a_default_is_empty() -> None:
    @tool
    def send(to: str, idempotency_key: str) -> str:
        return f"{to}|{idempotency_key}"

    assert send("sam") == "sam|"  # type: ignore[call-arg]
    assert send("sam", idempotency_key="mine") == "sam|mine"


def test_an_agent_called_outside_a_run_is_refused() -> None:
    @agent
    def lonely(run: Run, n: int) -> int:
        return n

    with pytest.raises(NotDurable, match=r"hf\.run\(lonely"):
        lonely(1)


def test_an_async_agent_called_outside_a_run_is_refused() -> None:
    @agent
    async def lonely(run: AsyncRun, n: int) -> int:
        return n

    with pytest.raises(NotDurable, match=r"hf\.run\(lonely"):
        asyncio.run(lonely(1))


def test_a_tool_inside_a_step_is_refused_because_the_log_would_not_know_of_it(hf: Holdfast) -> None:
    sent = Counter()

    @tool
    def send() -> int:
        return sent()

    @step
    def sneaky() -> int:
        return send()

    @agent
    def main(run: Run) -> int:
        return sneaky()

    with pytest.raises(RunFailed, match="send is a tool and was called inside sneaky"):
        hf.run(main, id="r")
    assert sent.calls == []


def test_an_agent_inside_a_step_is_refused(hf: Holdfast) -> None:
    @agent
    def child(run: Run) -> int:
        return 1

    @step
    def sneaky() -> int:
        return child()

    @agent
    def main(run: Run) -> int:
        return sneaky()

    with pytest.raises(RunFailed, match="child is an agent"):
        hf.run(main, id="r")


def test_a_step_inside_a_step_is_part_of_it(hf: Holdfast) -> None:
    @step
    def inner(n: int) -> int:
        return n + 1

    @step
    def outer(n: int) -> int:
        return inner(n) * 10

    @agent
    def main(run: Run) -> int:
        return outer(1)

    assert hf.run(main, id="r") == 20
    assert [call.name for call in hf.get("r").calls] == ["outer"]


def test_a_method_call_with_positional_and_keyword_arguments_binds_as_python_does(
    hf: Holdfast,
) -> None:
    @step
    def show(a: int, /, b: int, *rest: int, c: int = 3, **more: int) -> list[Any]:
        return [a, b, list(rest), c, more]

    @agent
    def main(run: Run) -> list[Any]:
        return [show(1, 2), show(1, 2, 4, 5, c=6, d=7), show(1, b=2)]

    assert hf.run(main, id="r") == [
        [1, 2, [], 3, {}],
        [1, 2, [4, 5], 6, {"d": 7}],
        [1, 2, [], 3, {}],
    ]


def test_wrong_arguments_raise_the_type_error_that_python_would(hf: Holdfast) -> None:
    @step
    def one(a: int) -> int:
        return a

    @agent
    def main(run: Run) -> list[str]:
        said = []
        for call in (one, lambda: one(1, 2), lambda: one(1, a=1), lambda: one(b=1)):  # type: ignore[call-arg,misc]
            try:
                call()
            except TypeError as error:
                said.append(str(error))
        return said

    assert len(hf.run(main, id="r")) == 4
    assert hf.get("r").calls == ()


def test_importing_and_declaring_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    @agent
    def main(run: Run) -> None: ...

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("bad", ["", " ", "a b", "../x", "a/b", "x" * 201, "-a", "a\0b", "naïve"])
def test_a_run_id_that_could_not_be_a_path_or_key_is_refused(hf: Holdfast, bad: str) -> None:
    @agent
    def main(run: Run) -> None: ...

    with pytest.raises(InvalidInput, match="not a run id"):
        hf.run(main, id=bad)


def test_what_is_not_an_agent_cannot_be_run(hf: Holdfast) -> None:
    @step
    def no_agent() -> None: ...

    with pytest.raises(InvalidInput, match="no_agent is not an agent"):
        hf.run(no_agent)


# ── run or resume ────────────────────────────────────────────────────────────────────────────


def test_a_new_id_starts_and_a_completed_one_returns_its_result_and_executes_nothing(
    home: Any,
) -> None:
    ran = Counter()

    @step
    def work(n: int) -> int:
        return ran(n) * 100

    @agent
    def main(run: Run, n: int) -> int:
        ran("code")
        return work(n)

    first = home.open().run(main, id="r", n=1)
    before = home.open().events("r")
    again = home.open().run(main, id="r", n=1)

    assert (first, again) == (200, 200)
    assert ran.calls == ["code", 1]
    assert home.open().events("r") == before


def test_the_same_id_with_another_input_is_a_conflict_and_runs_nothing(hf: Holdfast) -> None:
    ran = Counter()

    @agent
    def main(run: Run, n: int) -> int:
        return ran(n)

    hf.run(main, id="r", n=1)

    with pytest.raises(InputConflict, match="a different input"):
        hf.run(main, id="r", n=2)
    assert ran.calls == [1]


def test_the_same_id_with_another_agent_is_a_conflict(hf: Holdfast) -> None:
    @agent
    def one(run: Run) -> int:
        return 1

    @agent
    def two(run: Run) -> int:
        return 2

    hf.run(one, id="r")

    with pytest.raises(InputConflict):
        hf.run(two, id="r")


def test_positional_keyword_and_default_input_are_the_same_input(hf: Holdfast) -> None:
    @agent
    def main(run: Run, a: int, b: int = 2) -> int:
        return a + b

    assert hf.run(main, 1, id="r") == 3
    assert hf.run(main, id="r", a=1, b=2) == 3


def test_wrong_input_is_refused_before_a_run_exists(hf: Holdfast) -> None:
    @agent
    def main(run: Run, a: int) -> int:
        return a

    with pytest.raises(
        InvalidInput, match=r"agent main was given wrong input.*which is always the run"
    ):
        hf.run(main, id="r", nonsense=1)
    with pytest.raises(NotStorable, match=r"\$\.a"):
        hf.run(main, id="r", a=float("nan"))
    with pytest.raises(NotFound):
        hf.get("r")


def test_how_a_long_run_ended_is_read_from_the_end_of_its_log(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    @agent
    def main(run: Run) -> str:
        for n in range(500):
            run.log(f"line {n}")
        return "done"

    hf.run(main, id="r")
    read, rows = hf.store.read, []

    def reading(run_id: str, **which: Any) -> list[Any]:
        found = read(run_id, **which)
        rows.extend(found)
        return found

    monkeypatch.setattr(hf.store, "read", reading)

    assert "done" == hf.result("r") == hf.run(main, id="r")
    assert 0 < len(rows) <= 200 < len(read("r"))


def test_an_unfinished_run_resumes_where_it_stopped(home: Any) -> None:
    ran = Counter()

    @step
    def work(name: str) -> str:
        ran(name)
        return name.upper()

    @agent
    def main(run: Run) -> str:
        return work("a") + work("b") + work("c")

    home.crash(main, "r", "after commit call_succeeded")

    assert home.open().run(main, id="r") == "ABC"
    assert ran.calls == ["a", "b", "c"]


def test_a_failed_run_raises_and_executes_nothing(home: Any) -> None:
    ran = Counter()

    @step
    def work() -> None:
        ran()
        raise ValueError("no")

    @agent
    def main(run: Run) -> None:
        work()

    for _ in range(2):
        with pytest.raises(RunFailed) as failed:
            home.open().run(main, id="r")
        assert failed.value.error_type == "ValueError"
        assert failed.value.message == "no"
    assert len(ran.calls) == 1


def test_resume_of_a_failed_run_continues_from_the_failed_step_with_fresh_attempts(
    home: Any,
) -> None:
    ran = Counter()
    broken = [True]

    @step
    def good() -> str:
        ran("good")
        return "good"

    @step(retry=Retry(attempts=2, initial=0, jitter=0))
    def shaky() -> str:
        ran("shaky")
        if broken:
            raise ValueError("down")
        return "shaky"

    @agent
    def main(run: Run) -> list[str]:
        return [good(), shaky()]

    with pytest.raises(RunFailed):
        home.open().run(main, id="r")
    with pytest.raises(RunFailed):
        home.open(main).resume("r")
    assert ran.calls == ["good", "shaky", "shaky", "shaky", "shaky"]
    broken.clear()

    assert home.open(main).resume("r", by="ann", why="it is up again") == ["good", "shaky"]

    assert ran.calls == ["good"] + ["shaky"] * 5
    call = home.open().get("r").call(2)
    assert [attempt.number for attempt in call.attempts] == [1, 2, 3, 4, 5]
    assert any("ann" in line.text for line in home.open().get("r").lines)


def test_resume_of_a_failed_run_in_a_new_process_with_a_tool(home: Any) -> None:
    broken = [True]
    keys: list[str] = []

    @tool
    def send(to: str, idempotency_key: str = "") -> str:
        keys.append(idempotency_key)
        if broken:
            raise ConnectionError("down")
        return "sent"

    @agent
    def main(run: Run) -> str:
        return send("sam")

    with pytest.raises(RunFailed):
        home.open().run(main, id="r")
    broken.clear()

    assert home.open(main).resume("r") == "sent"
    assert len(set(keys)) == 1


def test_a_run_that_failed_by_its_own_code_resumes_too(home: Any) -> None:
    broken = [True]
    ran = Counter()

    @step
    def work() -> int:
        return ran()

    @agent
    def main(run: Run) -> int:
        n = work()
        if broken:
            raise RuntimeError("a bug")
        return n

    with pytest.raises(RunFailed, match="RuntimeError: a bug"):
        home.open().run(main, id="r")
    broken.clear()

    assert home.open(main).resume("r") == 1
    assert len(ran.calls) == 1


def test_a_caught_failure_stays_a_failure_when_a_later_step_fails_and_is_resumed(home: Any) -> None:
    ran = Counter()
    broken = [True]

    @step
    def first() -> None:
        ran("first")
        raise ValueError("always")

    @step
    def second() -> str:
        ran("second")
        if broken:
            raise ValueError("for now")
        return "ok"

    @agent
    def main(run: Run) -> str:
        try:
            first()
        except CallFailed:
            run.state.caught = True
        return second()

    with pytest.raises(RunFailed):
        home.open().run(main, id="r")
    broken.clear()

    assert home.open(main).resume("r") == "ok"
    assert ran.calls == ["first", "second", "second"]


def test_resume_of_a_completed_run_returns_its_result(home: Any) -> None:
    @agent
    def main(run: Run) -> int:
        return 7

    hf = home.open()
    hf.run(main, id="r")

    assert hf.resume("r") == 7


def test_resuming_a_run_of_an_unregistered_agent_fails_with_advice(home: Any) -> None:
    @agent
    def main(run: Run) -> None:
        run.wait_for("x")

    with pytest.raises(RunWaiting):
        home.open().run(main, id="r")

    with pytest.raises(NotFound, match="agents="):
        home.open().resume("r")


def test_a_run_that_another_worker_executes_is_busy(home: Any) -> None:
    inside, leave = threading.Event(), threading.Event()

    @step
    def slow() -> None:
        inside.set()
        assert leave.wait(120)

    @agent
    def main(run: Run) -> str:
        slow()
        return "done"

    first, second = home.open(), home.open()
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(first.run(main, id="r")))
    thread.start()
    assert inside.wait(120)

    with pytest.raises(RunBusy, match="executing it"):
        second.run(main, id="r")
    leave.set()
    thread.join()
    assert results == ["done"]


# ── what code gets is what a replay gets ─────────────────────────────────────────────────────


def test_the_first_execution_sees_the_value_that_a_replay_sees(home: Any) -> None:
    seen: list[Any] = []

    @step
    def pair() -> Any:
        return {"t": (1, 2), "n": {"x": [True, None, 1.5]}}

    @agent
    def main(run: Run) -> None:
        seen.append(pair())
        run.wait_for("go")

    for _ in range(2):
        with pytest.raises(RunWaiting):
            home.open().run(main, id="r")
    assert seen[0] == seen[1] == {"t": [1, 2], "n": {"x": [True, None, 1.5]}}


def test_a_mutated_result_is_not_mutated_on_replay(home: Any) -> None:
    seen: list[Any] = []

    @step
    def rows() -> list[int]:
        return [1]

    @agent
    def main(run: Run) -> None:
        found = rows()
        seen.append(list(found))
        found.append(2)
        run.wait_for("go")

    for _ in range(2):
        with pytest.raises(RunWaiting):
            home.open().run(main, id="r")
    assert seen == [[1], [1]]


def test_an_argument_that_cannot_be_stored_is_refused_before_the_effect_with_its_path(
    hf: Holdfast,
) -> None:
    sent = Counter()

    @tool
    def send(body: Any) -> int:
        return sent()

    @agent
    def main(run: Run) -> int:
        return send({"parts": [1, {2, float("inf")}]})

    with pytest.raises(RunFailed, match=r"arguments of send.*\$\.body\.parts\[1\]"):
        hf.run(main, id="r")
    assert sent.calls == []
    assert hf.get("r").calls == ()


def test_a_declared_return_type_comes_back_as_that_type(home: Any) -> None:
    seen: list[Any] = []

    @step
    def price() -> Price:
        return Price(Decimal("1.10"), datetime(2026, 1, 1, tzinfo=UTC))

    @agent
    def main(run: Run) -> None:
        seen.append(price())
        run.wait_for("go")

    for _ in range(2):
        with pytest.raises(RunWaiting):
            home.open().run(main, id="r")
    assert seen[0] == seen[1]


# ── start and handles ────────────────────────────────────────────────────────────────────────


def test_start_returns_at_once_and_a_worker_does_the_work(home: Any) -> None:
    ran = Counter()

    @agent
    def main(run: Run, n: int) -> int:
        ran(n)
        return n + 1

    hf = home.open(main)
    handle = hf.start(main, id="r", n=1)
    assert (handle.status, ran.calls) == ("pending", [])

    assert hf.worker().run(once=True) == 1

    assert handle.result() == 2
    assert handle.status == "completed"
    assert handle.state().agent == "main"


def test_start_twice_with_the_same_input_is_one_run(home: Any) -> None:
    ran = Counter()

    @agent
    def main(run: Run, n: int) -> int:
        return ran(n)

    hf = home.open(main)
    hf.start(main, id="r", n=1)
    hf.start(main, id="r", n=1)
    with pytest.raises(InputConflict):
        hf.start(main, id="r", n=2)

    assert hf.worker().run(once=True) == 1
    assert ran.calls == [1]


def test_a_handle_gives_the_error_that_the_run_ended_with(home: Any) -> None:
    @agent
    def main(run: Run) -> None:
        raise ValueError("no")

    hf = home.open(main)
    handle = hf.start(main, id="r")
    hf.worker().run(once=True)

    with pytest.raises(RunFailed, match="ValueError: no"):
        handle.result()


def test_a_handles_result_can_be_waited_for_only_so_long(home: Any) -> None:
    @agent
    def main(run: Run) -> None: ...

    handle = home.open(main).start(main, id="r")

    with pytest.raises(RunBusy, match="again later"):
        handle.result(timeout=0.01)


def test_hf_run_executes_a_run_that_was_only_started(home: Any) -> None:
    @agent
    def main(run: Run) -> int:
        return 5

    hf = home.open()
    hf.start(main, id="r")

    assert hf.run(main, id="r") == 5


def test_wait_true_blocks_until_the_run_can_continue(home: Any) -> None:
    @agent
    def main(run: Run) -> Any:
        return run.wait_for("go")

    hf, other = home.open(), home.open()
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(hf.run(main, id="r", wait=True)))
    thread.start()
    eventually(lambda: _waits(other, "r"), "that it waits")
    other.signal("r", "go", 42)
    thread.join(120)

    assert results == [42]


def _waits(hf: Holdfast, run_id: str) -> bool:
    try:
        return hf.handle(run_id).status == "waiting"
    except NotFound:
        return False


def test_driving_a_run_twice_is_harmless(home: Any) -> None:
    ran = Counter()

    @agent
    def main(run: Run) -> int:
        return ran()

    hf = home.open(main)
    hf.start(main, id="r")

    assert (hf.drive("r"), hf.drive("r")) == (1, 1)
    assert len(ran.calls) == 1


def test_two_holdfast_objects_do_not_meet(tmp_path: Path) -> None:
    @agent
    def main(run: Run, n: int) -> int:
        return n

    with Holdfast(tmp_path / "a.db") as one, Holdfast(tmp_path / "b.db") as two:
        assert one.run(main, id="r", n=1) == 1
        assert two.run(main, id="r", n=2) == 2
        assert one.engine.claims.worker != two.engine.claims.worker
        with pytest.raises(NotFound):
            two.get("other")


def test_a_run_of_one_object_inside_a_step_of_another_belongs_to_its_own_store(
    tmp_path: Path,
) -> None:
    @step
    def plain(n: int) -> int:
        return n

    @agent
    def inner(run: Run) -> int:
        return plain(2)

    with Holdfast(tmp_path / "a.db") as one, Holdfast(tmp_path / "b.db") as two:

        @step
        def elsewhere() -> int:
            return two.run(inner, id="inner")

        @agent
        def outer(run: Run) -> int:
            return elsewhere() + plain(1)

        assert one.run(outer, id="outer") == 3
        assert [c.name for c in one.get("outer").calls] == ["elsewhere", "plain"]
        assert [c.name for c in two.get("inner").calls] == ["plain"]


# ── child runs ───────────────────────────────────────────────────────────────────────────────


def test_an_agent_called_in_an_agent_is_a_run_of_its_own(home: Any) -> None:
    ran = Counter()

    @step
    def work(n: int) -> int:
        ran(n)
        return n * 10

    @agent
    def child(run: Run, n: int) -> int:
        run.state.n = n
        return work(n)

    @agent
    def parent(run: Run) -> int:
        return child(1) + child(n=2)

    hf = home.open()

    assert hf.run(parent, id="p") == 30

    children = sorted(hf.runs(parent="p"), key=lambda row: row.id)
    assert [row.id for row in children] == ["p~1", "p~2"]
    assert hf.get("p~2").state == {"n": 2}
    assert hf.get("p~2").parent == "p"
    assert hf.get("p").calls[1].child == "p~2"


def test_a_child_that_was_finished_when_its_parent_died_is_not_run_again(home: Any) -> None:
    ran = Counter()

    @agent
    def child(run: Run) -> int:
        return ran()

    @agent
    def parent(run: Run) -> int:
        return child() + 100

    home.crash(parent, "p", "after commit run_completed")

    assert home.open().run(parent, id="p") == 101
    assert len(ran.calls) == 1


def test_a_parent_waits_while_its_child_waits_and_is_woken_by_its_end(home: Any) -> None:
    @agent
    def child(run: Run) -> Any:
        return run.wait_for("go")

    @agent
    def parent(run: Run) -> Any:
        return [child()]

    hf = home.open(parent, child)
    with pytest.raises(RunWaiting, match="child run p~1"):
        hf.run(parent, id="p")
    hf.signal("p~1", "go", "now")

    hf.worker().run(once=True)

    assert hf.run(parent, id="p") == ["now"]


def test_a_failed_child_is_a_failed_call_that_its_parent_may_catch(home: Any) -> None:
    @agent
    def child(run: Run) -> None:
        raise ValueError("no")

    @agent
    def parent(run: Run) -> str:
        try:
            child()
        except CallFailed as failed:
            return failed.message
        return "?"

    assert "no" in home.open().run(parent, id="p")


def test_resume_of_a_parent_that_failed_by_its_child_resumes_the_child(home: Any) -> None:
    broken = [True]
    ran = Counter()

    @step
    def first() -> None:
        ran("first")

    @step
    def second() -> str:
        ran("second")
        if broken:
            raise ValueError("down")
        return "ok"

    @agent
    def child(run: Run) -> str:
        first()
        return second()

    @agent
    def parent(run: Run) -> str:
        return child()

    with pytest.raises(RunFailed):
        home.open().run(parent, id="p")
    broken.clear()

    assert home.open(parent, child).resume("p") == "ok"
    assert ran.calls == ["first", "second", "second"]


def test_a_child_sync_agent_inside_an_async_agent_and_the_other_way_round(home: Any) -> None:
    @step
    def work(n: int) -> int:
        return n + 1

    @agent
    def sync_child(run: Run, n: int) -> int:
        return work(n)

    @agent
    async def async_child(run: AsyncRun, n: int) -> int:
        return work(n) * 10

    @agent
    async def async_parent(run: AsyncRun) -> int:
        return sync_child(1) + await async_child(1)

    assert home.open().run(async_parent, id="p") == 22


# ── branches ─────────────────────────────────────────────────────────────────────────────────


def test_map_keeps_the_order_of_its_items_and_each_replays_its_own(home: Any) -> None:
    ran = Counter()
    gates = [threading.Event() for _ in range(3)]
    finished: list[int] = []

    @step
    def begin(n: int) -> int:
        if n == 2:
            gates[2].set()
        assert gates[n].wait(120)  # the branches finish in the order 2, 1, 0
        return n

    @tool
    def send(n: int, idempotency_key: str = "") -> int:
        ran(n)
        finished.append(n)
        if n:
            gates[n - 1].set()
        return n * 10

    @agent
    def main(run: Run) -> list[int]:
        got = run.map(lambda n: begin(n) + send(n), [0, 1, 2])
        run.wait_for("go")
        return got

    with pytest.raises(RunWaiting):
        home.open().run(main, id="r")
    assert finished == [2, 1, 0]
    hf = home.open()
    hf.signal("r", "go")

    assert hf.run(main, id="r") == [0, 11, 22]
    assert sorted(ran.calls) == [0, 1, 2]
    assert hf.replay("r").diverged is None


@pytest.mark.parametrize("how", ["gather", "taskgroup", "map"])
def test_async_branches_replay_whatever_order_they_finish_in(home: Any, how: str) -> None:
    ran = Counter()

    def agent_whose_branches_finish(order: list[int]) -> Any:
        gates: dict[int, asyncio.Event] = {}

        @step
        async def begin(n: int) -> int:
            ran(("begin", n))
            if order[0] == n:
                gates[n].set()
            await gates[n].wait()
            return n

        @tool
        async def send(n: int, idempotency_key: str = "") -> int:
            ran(("send", n))
            after = order.index(n) + 1
            if after < len(order):
                gates[order[after]].set()
            return n * 10

        async def one(n: int) -> int:
            return await begin(n) + await send(n)

        @agent
        async def main(run: AsyncRun) -> list[int]:
            gates.update({n: asyncio.Event() for n in order})
            if how == "gather":
                got = list(await asyncio.gather(one(0), one(1), one(2)))
            elif how == "map":
                got = await run.map(one, [0, 1, 2])
            else:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(one(n)) for n in range(3)]
                got = [task.result() for task in tasks]
            await run.wait_for("go")
            return got

        return main

    with pytest.raises(RunWaiting):
        home.open().run(agent_whose_branches_finish([2, 0, 1]), id="r")
    hf = home.open()
    hf.signal("r", "go")

    assert hf.run(agent_whose_branches_finish([0, 1, 2]), id="r") == [0, 11, 22]
    assert len(ran.calls) == 6


def test_nested_branches_have_names_of_their_own(home: Any) -> None:
    ran = Counter()

    @step
    def leaf(path: str) -> str:
        ran(path)
        return path

    @agent
    def main(run: Run) -> Any:
        def outer(a: str) -> list[str]:
            leaf(a)
            return run.map(lambda b: leaf(a + b), ["x", "y"])

        got = run.map(outer, ["a", "b"])
        again = run.map(leaf, ["c"])
        run.wait_for("go")
        return [got, again]

    with pytest.raises(RunWaiting):
        home.open().run(main, id="r")
    hf = home.open()
    branches = {call.branch for call in hf.get("r").calls}
    hf.signal("r", "go")

    assert hf.run(main, id="r") == [[["ax", "ay"], ["bx", "by"]], ["c"]]
    assert len(ran.calls) == 7
    assert len(branches) == 7


def test_a_crash_in_the_middle_of_branches_repeats_only_what_was_not_recorded(home: Any) -> None:
    ran = Counter()

    @step
    def work(n: int) -> int:
        ran(n)
        return n

    @agent
    def main(run: Run) -> list[int]:
        return run.map(work, range(6), threads=1)

    seen = [0]

    def die_at_third(name: str) -> None:
        if name == "before commit call_succeeded":
            seen[0] += 1
            if seen[0] >= 3:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        home.open(boundary=die_at_third).run(main, id="r")
    before = len(ran.calls)

    assert home.open().run(main, id="r") == list(range(6))
    assert len(ran.calls) == before + 4


def test_an_error_in_one_branch_is_the_error_of_the_map(home: Any) -> None:
    @step
    def work(n: int) -> int:
        if n == 1:
            raise ValueError("one")
        return n

    @agent
    def main(run: Run) -> Any:
        try:
            return run.map(work, [0, 1, 2])
        except CallFailed as failed:
            return failed.message

    assert home.open().run(main, id="r") == "one"


def test_gather_that_returns_exceptions_cannot_swallow_a_wait(home: Any) -> None:
    ran = Counter()

    @step
    async def quick() -> str:
        return "quick"

    @step
    async def after(got: list[Any]) -> list[Any]:
        ran(got)
        return got

    @agent
    async def main(run: AsyncRun) -> Any:
        got = await asyncio.gather(quick(), run.wait_for("go"), return_exceptions=True)
        return await after([str(x) for x in got])

    hf = home.open()
    with pytest.raises(RunWaiting, match="go"):
        hf.run(main, id="r")
    assert ran.calls == []
    hf.signal("r", "go", "came")

    assert home.open().run(main, id="r") == ["quick", "came"]


def test_an_agent_that_catches_everything_still_waits(home: Any) -> None:
    ran = Counter()

    @step
    def after() -> int:
        return ran()

    @agent
    def main(run: Run) -> int:
        try:
            run.wait_for("go")
        except BaseException:  # what is tested: code that swallows everything
            run.state.swallowed = True
        return after()

    hf = home.open()
    with pytest.raises(RunWaiting, match="go"):
        hf.run(main, id="r")
    assert ran.calls == []
    hf.signal("r", "go")

    assert home.open().run(main, id="r") == 1
    assert hf.get("r").state == {}


def test_a_tool_in_a_branch_that_is_under_way_when_another_branch_fails_is_recorded(
    home: Any,
) -> None:
    """Holdfast says what it knows: a call that came back is done, though the agent has failed."""
    entered, release = threading.Event(), threading.Event()

    @tool
    async def pay() -> str:
        entered.set()
        await asyncio.to_thread(release.wait, 120)
        return "paid"

    @step
    async def fail() -> None:
        await asyncio.to_thread(entered.wait, 120)
        asyncio.get_running_loop().call_later(0.05, release.set)
        raise ValueError("no")

    @agent
    async def main(run: AsyncRun) -> None:
        await asyncio.gather(pay(), fail())

    hf = home.open()
    with pytest.raises(RunFailed):
        hf.run(main, id="r")

    statuses = {call.name: call.status for call in hf.get("r").calls}
    assert statuses == {"pay": "done", "fail": "failed"}


@pytest.mark.parametrize("how", ["gather", "taskgroup", "map", "tasks"])
def test_one_resume_retries_every_branch_that_failed(home: Any, how: str) -> None:
    broken, ran = [True], Counter()

    @step
    async def work(n: int) -> int:
        await asyncio.sleep(0)
        if broken[0] and n < 3:
            raise ValueError(f"no {n}")
        ran(n)
        return n

    @agent
    async def main(run: AsyncRun) -> list[int]:
        async def one(n: int) -> int:
            return await work(n)

        if how == "gather":
            return list(await asyncio.gather(*(one(n) for n in range(5))))
        if how == "map":
            return await run.map(one, range(5))
        if how == "tasks":
            tasks = [asyncio.create_task(one(n)) for n in range(5)]
            return [await task for task in tasks]
        async with asyncio.TaskGroup() as group:
            made = [group.create_task(one(n)) for n in range(5)]
        return [task.result() for task in made]

    hf = home.open(main)
    with pytest.raises(RunFailed):
        hf.run(main, id="r")
    broken[0] = False

    assert home.open(main).resume("r") == [0, 1, 2, 3, 4]
    assert sorted(ran.calls) == [0, 1, 2, 3, 4]


def test_a_failure_that_the_code_handled_is_not_retried(home: Any) -> None:
    broken = [True]

    @step
    async def work(n: int) -> int:
        if broken[0]:
            raise ValueError(f"no {n}")
        return n

    @agent
    async def main(run: AsyncRun) -> list[Any]:
        async def one(n: int) -> int:
            return await work(n)

        first = await asyncio.gather(one(1), one(2), return_exceptions=True)
        return [len([x for x in first if isinstance(x, CallFailed)]), await work(3)]

    hf = home.open(main)
    with pytest.raises(RunFailed, match="no 3"):
        hf.run(main, id="r")
    broken[0] = False

    assert home.open(main).resume("r") == [2, 3]


# ── sync and async ───────────────────────────────────────────────────────────────────────────


def test_an_async_agent_runs_under_async_holdfast_with_the_same_method_names(home: Any) -> None:
    ran = Counter()

    @step
    async def work(n: int) -> int:
        await asyncio.sleep(0)
        return ran(n)

    @agent
    async def main(run: AsyncRun, n: int) -> Any:
        got = await work(n)
        run.state.got = got
        return [got, await run.wait_for("go")]

    async def story() -> Any:
        async with AsyncHoldfast(home.store()) as hf:
            with pytest.raises(RunWaiting):
                await hf.run(main, id="r", n=1)
            await hf.signal("r", "go", "x")
            assert (await hf.get("r")).state == {"got": 1}
            result = await hf.run(main, id="r", n=1)
            assert await hf.resume("r") == result
            assert (await hf.verify("r")).ok
            return result

    assert asyncio.run(story()) == [1, "x"]
    assert ran.calls == [1]


def test_an_async_agent_runs_under_the_sync_holdfast(home: Any) -> None:
    @step
    async def work() -> int:
        await asyncio.sleep(0)
        return 3

    @agent
    async def main(run: AsyncRun) -> int:
        return await work()

    assert home.open().run(main, id="r") == 3


def test_a_sync_agent_runs_under_async_holdfast_without_blocking_the_loop(home: Any) -> None:
    loop_moved = threading.Event()

    @step
    def slow() -> bool:
        return loop_moved.wait(120)

    @agent
    def main(run: Run) -> bool:
        return slow()

    async def story() -> Any:
        async with AsyncHoldfast(home.store()) as hf:
            asyncio.get_running_loop().call_later(0.01, loop_moved.set)
            return await hf.run(main, id="r")

    assert asyncio.run(story()) is True


def test_the_sync_holdfast_inside_an_event_loop_advises_the_async_one(home: Any) -> None:
    @agent
    async def main(run: AsyncRun) -> None: ...

    hf = home.open()

    async def story() -> None:
        hf.run(main, id="r")

    with pytest.raises(NotDurable, match="AsyncHoldfast"):
        asyncio.run(story())


def test_sync_steps_and_tools_work_in_async_agents(home: Any) -> None:
    ran = Counter()

    @step
    def think(n: int) -> int:
        return ran(n)

    @tool
    def send(n: int, idempotency_key: str = "") -> str:
        ran(n)
        return "sent"

    @agent
    async def main(run: AsyncRun) -> Any:
        got = [think(1), send(2)]
        await run.wait_for("go")
        return got

    with pytest.raises(RunWaiting):
        home.open().run(main, id="r")
    hf = home.open()
    hf.signal("r", "go")

    assert hf.run(main, id="r") == [1, "sent"]
    assert ran.calls == [1, 2]


def test_an_async_tool_in_a_plain_agent_is_refused_by_python_or_by_us(home: Any) -> None:
    @step
    async def work() -> int:
        return 1

    @agent
    def main(run: Run) -> int:
        return asyncio.run(work())

    assert home.open().run(main, id="r") == 1
    assert [call.name for call in home.open().get("r").calls] == ["work"]


def test_tasks_of_other_code_on_the_same_loop_are_not_touched(home: Any) -> None:
    @agent
    async def main(run: AsyncRun) -> int:
        return 1

    async def bystander() -> str:
        await asyncio.sleep(0)
        return "fine"

    async def story() -> Any:
        async with AsyncHoldfast(home.store()) as hf:
            other = asyncio.create_task(bystander())
            result = await hf.run(main, id="r")
            assert asyncio.get_running_loop().get_task_factory() is None
            return result, await other

    assert asyncio.run(story()) == (1, "fine")


def test_many_async_runs_share_one_loop(home: Any) -> None:
    @step
    async def work(n: int) -> int:
        await asyncio.sleep(0)
        return n

    @agent
    async def main(run: AsyncRun, n: int) -> int:
        return sum(await asyncio.gather(work(n), work(n + 1)))

    async def story() -> list[int]:
        async with AsyncHoldfast(home.store()) as hf:
            return await asyncio.gather(*(hf.run(main, id=f"r{n}", n=n) for n in range(20)))

    assert asyncio.run(story()) == [2 * n + 1 for n in range(20)]


def test_every_run_that_ends_has_one_terminal_event_at_its_end(home: Any) -> None:
    @agent
    def good(run: Run) -> int:
        return 1

    @agent
    def bad(run: Run) -> int:
        raise ValueError

    hf = home.open()
    hf.run(good, id="good")
    with pytest.raises(RunFailed):
        hf.run(bad, id="bad")

    assert isinstance(hf.events("good")[-1][1], e.RunCompleted)
    assert isinstance(hf.events("bad")[-1][1], e.RunFailure)


def test_resume_tries_every_branch_that_failed_again(home: Any) -> None:
    broken = [True]
    ran = Counter()

    @step
    def work(n: int) -> int:
        ran(n)
        if broken and n != 1:
            raise ValueError(str(n))
        return n

    @agent
    def main(run: Run) -> list[int]:
        return run.map(work, [0, 1, 2])

    with pytest.raises(RunFailed):
        home.open().run(main, id="r")
    broken.clear()

    assert home.open(main).resume("r") == [0, 1, 2]
    assert sorted(ran.calls) == [0, 0, 1, 2, 2]


@pytest.mark.parametrize("how", ["saved", "from", "group"])
def test_resume_finds_the_failed_step_behind_the_error_that_the_agent_raised(
    home: Any, how: str
) -> None:
    broken = [True]

    @step
    async def shaky() -> str:
        if broken:
            raise ValueError("down")
        return "up"

    @step
    async def other() -> str:
        return "other"

    @agent
    async def main(run: AsyncRun) -> Any:
        if how == "group":
            async with asyncio.TaskGroup() as group:
                task = group.create_task(shaky())
            return task.result()
        try:
            return await shaky()
        except CallFailed as failed:
            await other()
            if how == "saved":
                raise
            raise RuntimeError("it did not work") from failed

    with pytest.raises(RunFailed):
        home.open().run(main, id="r")
    assert home.open().get("r").failure.step == 1
    assert home.open().get("r").failure.tool == "shaky"
    broken.clear()

    assert home.open(main).resume("r") == "up"


def test_a_running_tool_is_not_interrupted_when_its_sibling_has_to_wait(home: Any) -> None:
    """A task group cancels the others when one raises; a wait is not an error, so they finish first."""
    entered, release = threading.Event(), threading.Event()
    ran = Counter()

    @tool
    async def pay(n: int) -> int:
        entered.set()
        await asyncio.to_thread(release.wait, 120)
        return ran(n)

    @agent
    async def main(run: AsyncRun) -> Any:
        async def patient() -> Any:
            await asyncio.to_thread(entered.wait, 120)
            asyncio.get_running_loop().call_later(0.05, release.set)
            return await run.wait_for("go")

        async def busy() -> list[int]:
            return [await pay(1), await pay(2)]

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(patient()), group.create_task(busy())]
        return [task.result() for task in tasks]

    hf = home.open()
    with pytest.raises(RunWaiting, match="go"):
        hf.run(main, id="r")
    assert [call.status for call in hf.get("r").calls] == ["done", "done"]
    hf.signal("r", "go", "came")

    assert home.open().run(main, id="r") == ["came", [1, 2]]
    assert ran.calls == [1, 2]


def test_a_task_that_is_never_awaited_is_part_of_the_run(home: Any) -> None:
    ran = Counter()

    @step
    async def work(n: int) -> int:
        await asyncio.sleep(0)
        return ran(n)

    @agent
    async def main(run: AsyncRun) -> str:
        async def aside() -> None:
            await work(1)
            await work(2)

        run.state.task = str(bool(asyncio.create_task(aside())))
        return "done"

    hf = home.open()
    assert hf.run(main, id="r") == "done"
    assert ran.calls == [1, 2]
    assert hf.replay("r").diverged is None
