"""Compensation: what a run did is undone, newest first, each undo a durable call."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import (
    AgentState,
    AsyncRun,
    CallFailed,
    Diverged,
    NotNow,
    Retry,
    Run,
    RunCancelled,
    RunFailed,
    RunWaiting,
    agent,
    loop,
    step,
    tool,
)


class Trip:
    """A trip whose bookings can be undone, and what really happened to it."""

    def __init__(self, *, on_failure: str = "undo", then: str = "fail") -> None:
        self.done: list[Any] = []
        self.broken = [False]

        def unbook(room: str, result: dict[str, Any]) -> None:
            if self.broken[0]:
                raise ConnectionError("the hotel does not answer")
            self.done.append(("unbook", room, result["number"]))

        @tool(undo=unbook)
        def book(room: str) -> dict[str, Any]:
            self.done.append(("book", room))
            return {"number": len(self.done)}

        @tool
        def mail(to: str) -> None:
            self.done.append(("mail", to))

        @agent(on_failure=on_failure)  # type: ignore[arg-type]
        def trip(run: Run) -> str:
            book("red")
            mail("sam")
            book("blue")
            if then == "fail":
                raise RuntimeError("the trip is off")
            if then == "wait":
                run.wait_for("go")
            return "booked"

        self.agent = trip


BOTH_UNDONE = [
    ("book", "red"),
    ("mail", "sam"),
    ("book", "blue"),
    ("unbook", "blue", 3),
    ("unbook", "red", 1),
]


def test_on_failure_undo_runs_newest_first_with_arguments_and_result(home: Any) -> None:
    trip = Trip()
    hf = home.open()

    with pytest.raises(RunFailed, match="the trip is off"):
        hf.run(trip.agent, id="r")

    assert trip.done == BOTH_UNDONE
    calls = {(c.name, c.step): c for c in hf.get("r").calls}
    assert calls["book", 1].undone
    assert calls["book", 3].undone
    assert (calls["undo book", 4].undoes, calls["undo book", 5].undoes) == (3, 1)
    assert hf.get("r").status == "failed"


def test_without_on_failure_nothing_is_undone(home: Any) -> None:
    trip = Trip(on_failure="")
    with pytest.raises(RunFailed):
        home.open().run(trip.agent, id="r")
    assert [x[0] for x in trip.done] == ["book", "mail", "book"]


def test_a_cancelled_run_is_undone_too(home: Any) -> None:
    trip = Trip(then="wait")
    hf = home.open(trip.agent)
    with pytest.raises(RunWaiting):
        hf.run(trip.agent, id="r")
    hf.cancel("r")
    hf.worker().run(once=True)

    assert trip.done == BOTH_UNDONE
    assert hf.handle("r").status == "cancelled"


@pytest.mark.parametrize("after", ["completed", "failed", "waiting"])
def test_hf_undo_undoes_the_calls_of_a_run(home: Any, after: str) -> None:
    trip = Trip(on_failure="", then={"completed": "", "failed": "fail", "waiting": "wait"}[after])
    hf = home.open(trip.agent)
    try:
        hf.run(trip.agent, id="r")
    except (RunFailed, RunWaiting):
        pass

    hf.undo("r", by="ann", why="changed plans")
    with pytest.raises(RunCancelled, match="ann"):
        hf.resume("r")

    assert trip.done == BOTH_UNDONE
    assert hf.handle("r").status == "cancelled"
    with pytest.raises(RunCancelled):
        hf.run(trip.agent, id="r")
    assert trip.done == BOTH_UNDONE


@pytest.mark.parametrize("point", ["before unbook", "after unbook"])
def test_an_undo_resumes_after_a_crash_and_one_in_doubt_needs_a_person(
    home: Any, point: str
) -> None:
    trip = Trip()
    home.crash(trip.agent, "r", point)
    hf = home.open(trip.agent)
    before = list(trip.done)
    with pytest.raises(RunWaiting, match="undo book, which may or may not have happened"):
        hf.run(trip.agent, id="r")
    assert trip.done == before  # never guessed
    if point == "before unbook":
        hf.resolve("r", retry=True)
    else:
        hf.resolve("r", done=None)

    with pytest.raises(RunFailed, match="the trip is off"):
        hf.run(trip.agent, id="r")
    assert trip.done == BOTH_UNDONE


def test_a_keyed_undo_is_repeated_with_its_key_after_a_crash(home: Any) -> None:
    keys: list[str] = []

    def unpay(idempotency_key: str = "") -> None:
        keys.append(idempotency_key)

    @tool(undo=unpay)
    def pay(idempotency_key: str = "") -> None: ...

    @agent(on_failure="undo")
    def main(run: Run) -> None:
        pay()
        raise RuntimeError("no")

    home.crash(main, "r", "after unpay")
    with pytest.raises(RunFailed, match="no"):
        home.open().run(main, id="r")

    assert len(keys) == 2
    assert len(set(keys)) == 1
    assert keys[0].startswith("r:2:undo pay:")


def test_a_call_in_doubt_is_settled_before_anything_is_undone(home: Any) -> None:
    done: list[str] = []

    @tool(undo=lambda: done.append("unpay"))
    def pay() -> None:
        done.append("pay")

    @tool
    def mail() -> None:
        done.append("mail")

    @agent(on_failure="undo")
    def main(run: Run) -> None:
        pay()
        mail()

    home.crash(main, "r", "after mail")
    hf = home.open(main)
    hf.cancel("r")
    with pytest.raises(RunWaiting, match="step 2, mail"):
        hf.run(main, id="r")
    assert done == ["pay", "mail"]
    hf.resolve("r", done=None, by="ann")

    with pytest.raises(RunCancelled):
        hf.run(main, id="r")
    assert done == ["pay", "mail", "unpay"]


def test_a_doubtful_call_that_did_happen_is_undone(home: Any) -> None:
    done: list[Any] = []

    @tool(undo=lambda result: done.append(("unpay", result)))
    def pay() -> str:
        done.append("pay")
        return "receipt"

    @agent(on_failure="undo")
    def main(run: Run) -> None:
        pay()

    home.crash(main, "r", "after pay")
    hf = home.open(main)
    hf.cancel("r")
    hf.resolve("r", done="what ann saw")
    with pytest.raises(RunCancelled):
        hf.run(main, id="r")

    assert done == ["pay", ("unpay", "what ann saw")]


def test_failed_calls_are_not_undone(home: Any) -> None:
    done: list[str] = []

    @tool(undo=lambda: done.append("undo"))
    def pay() -> None:
        raise ValueError("insufficient")

    @agent(on_failure="undo")
    def main(run: Run) -> None:
        pay()

    with pytest.raises(RunFailed, match="insufficient"):
        home.open().run(main, id="r")
    assert done == []


def test_an_undo_that_fails_is_retried_by_the_tools_policy_and_then_stops_the_undoing(
    home: Any,
) -> None:
    trip = Trip()
    trip.broken[0] = True
    hf = home.open(trip.agent)

    with pytest.raises(RunFailed, match="the hotel does not answer"):
        hf.run(trip.agent, id="r")
    assert hf.get("r").status == "failed"
    assert not any(c.undone for c in hf.get("r").calls)
    trip.broken[0] = False

    hf.undo("r", by="ann")
    with pytest.raises(RunCancelled):
        hf.resume("r")
    assert trip.done == BOTH_UNDONE


def test_a_tool_can_be_the_undo_of_another(home: Any) -> None:
    keys: list[str] = []

    @tool
    def refund(amount: int, idempotency_key: str = "") -> None:
        keys.append(idempotency_key)

    @tool(undo=refund)
    def pay(amount: int) -> None: ...

    @agent(on_failure="undo")
    def main(run: Run) -> None:
        pay(5)
        raise RuntimeError("off")

    home.crash(main, "r", "after refund")
    with pytest.raises(RunFailed, match="off"):
        home.open().run(main, id="r")
    assert len(keys) == 2
    assert len(set(keys)) == 1


def test_a_rerun_after_an_undo_does_the_work_again_and_undoes_only_that(home: Any) -> None:
    trip = Trip()
    hf = home.open(trip.agent)
    with pytest.raises(RunFailed):
        hf.run(trip.agent, id="r")
    with pytest.raises(RunFailed):
        hf.rerun("r")

    assert [x[:2] for x in trip.done] == [x[:2] for x in BOTH_UNDONE] * 2


def test_an_undo_has_the_retries_of_its_tool(home: Any) -> None:
    tried: list[int] = []

    def unpay(idempotency_key: str = "") -> None:
        tried.append(1)
        if len(tried) < 3:
            raise ConnectionError("no")

    @tool(undo=unpay, retry=Retry(attempts=3, initial=0))
    def pay(idempotency_key: str = "") -> None: ...

    @agent(on_failure="undo")
    def main(run: Run) -> None:
        pay()
        raise RuntimeError("off")

    with pytest.raises(RunFailed, match="off"):
        home.open().run(main, id="r")
    assert len(tried) == 3


def test_an_async_undo_is_awaited(home: Any) -> None:
    done: list[Any] = []

    async def unpay(result: int) -> None:
        done.append(result)

    @tool(undo=unpay)
    async def pay() -> int:
        return 7

    @agent(on_failure="undo")
    async def main(run: AsyncRun) -> None:
        await pay()
        raise RuntimeError("off")

    with pytest.raises(RunFailed, match="off"):
        home.open().run(main, id="r")
    assert done == [7]


def test_branches_are_undone_in_reverse_order_of_the_log(home: Any) -> None:
    done: list[Any] = []

    @tool(undo=lambda n: done.append(("undo", n)))
    def pay(n: int) -> None:
        done.append(("pay", n))

    @agent(on_failure="undo")
    def main(run: Run) -> None:
        run.map(pay, [1, 2, 3], threads=1)
        raise RuntimeError("off")

    hf = home.open()
    with pytest.raises(RunFailed):
        hf.run(main, id="r")
    assert [x for x in done if x[0] == "undo"] == [("undo", 3), ("undo", 2), ("undo", 1)]


def test_a_caught_failure_undoes_nothing(home: Any) -> None:
    done: list[str] = []

    @tool(undo=lambda: done.append("undo"))
    def pay() -> None: ...

    @step
    def bad() -> None:
        raise ValueError

    @agent(on_failure="undo")
    def main(run: Run) -> str:
        pay()
        try:
            bad()
        except CallFailed:
            return "fine"
        return "?"

    assert home.open().run(main, id="r") == "fine"
    assert done == []


def test_undo_stops_with_a_reason_if_the_changed_code_no_longer_declares_it(
    home: Any,
) -> None:
    trip = Trip(on_failure="", then="wait")
    with pytest.raises(RunWaiting):
        home.open().run(trip.agent, id="r")

    @agent(name="trip")
    def changed(run: Run) -> None: ...

    hf = home.open(changed)
    hf.undo("r")
    with pytest.raises(Diverged, match=r"recorded: +book\("):
        hf.resume("r")
    assert not any(c.undone for c in hf.get("r").calls)
    with pytest.raises(RunCancelled):
        home.open(trip.agent).resume("r")
    assert trip.done == BOTH_UNDONE


def test_a_run_that_is_being_executed_cannot_be_undone(home: Any) -> None:
    other = home.open()
    said: list[str] = []

    @step
    def work() -> None:
        try:
            other.undo("r")
        except NotNow as refused:
            said.append(str(refused))

    @agent
    def main(run: Run) -> None:
        work()

    home.open().run(main, id="r")
    assert "cancel it first" in said[0]


def test_resume_after_an_undone_failure_does_not_pretend_that_the_bookings_are_there(
    home: Any,
) -> None:
    """What was undone is gone: going on from the failed step would build on nothing."""
    trip = Trip()
    hf = home.open(trip.agent)
    with pytest.raises(RunFailed):
        hf.run(trip.agent, id="r")

    with pytest.raises(NotNow, match="undone"):
        hf.resume("r")
    assert trip.done == BOTH_UNDONE


# ── child runs ───────────────────────────────────────────────────────────────────────────────


def with_child(trip: Trip, *, is_async: bool = False) -> Any:
    """An agent whose child books a trip, and which then fails."""

    @tool(undo=lambda name: trip.done.append(("unreserve", name)))
    def reserve(name: str) -> None:
        trip.done.append(("reserve", name))

    if is_async:

        @agent(on_failure="undo", name="parent")
        async def parent(run: AsyncRun) -> None:
            reserve("table")
            await async_trip()
            raise RuntimeError("no holiday")

        @agent(name="child")
        async def async_trip(run: AsyncRun) -> None:
            reserve("bike")

        return parent

    @agent(on_failure="undo")
    def main(run: Run) -> None:
        reserve("table")
        trip.agent()
        reserve("boat")
        raise RuntimeError("no holiday")

    return main


def test_what_a_child_run_did_is_undone_with_its_parent_newest_first(home: Any) -> None:
    trip = Trip(on_failure="", then="return")
    main = with_child(trip)
    hf = home.open()

    with pytest.raises(RunFailed, match="no holiday"):
        hf.run(main, id="r")

    undone = [x for x in trip.done if x[0] in ("unreserve", "unbook")]
    assert undone == [
        ("unreserve", "boat"),
        ("unbook", "blue", 4),
        ("unbook", "red", 2),
        ("unreserve", "table"),
    ]
    assert hf.get("r~2").status == "cancelled"


def test_what_an_async_child_did_is_undone_too(home: Any) -> None:
    trip = Trip()
    with pytest.raises(RunFailed, match="no holiday"):
        home.open().run(with_child(trip, is_async=True), id="r")

    assert [x for x in trip.done if x[0] == "unreserve"] == [
        ("unreserve", "bike"),
        ("unreserve", "table"),
    ]


def test_what_a_failed_child_did_before_it_failed_is_undone(home: Any) -> None:
    trip = Trip(on_failure="", then="fail")
    with pytest.raises(RunFailed, match="the trip is off"):
        home.open().run(with_child(trip), id="r")

    assert [x for x in trip.done if x[0] in ("unreserve", "unbook")] == [
        ("unbook", "blue", 4),
        ("unbook", "red", 2),
        ("unreserve", "table"),
    ]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_completed_loop_is_undone_by_tools_that_its_code_cannot_name(
    home: Any, is_async: bool
) -> None:
    """As when a helper in another module makes the call."""
    done: list[str] = []

    @tool(undo=lambda n: done.append(f"unreserve {n}"))
    def reserve(n: int) -> None:
        done.append(f"reserve {n}")

    helpers = {"reserve": reserve}

    if is_async:

        @loop(name="trip", max_iterations=3)
        async def async_trip(run: AsyncRun, state: AgentState) -> AgentState:
            helpers["reserve"](state.iteration)
            return state.to_done("booked") if state.iteration == 2 else state

        trip = async_trip
    else:

        @loop(name="trip", max_iterations=3)
        def plain_trip(run: Run, state: AgentState) -> AgentState:
            helpers["reserve"](state.iteration)
            return state.to_done("booked") if state.iteration == 2 else state

        trip = plain_trip
    home.open().run(trip, id="r", goal="a trip")
    hf = home.open(trip)
    hf.undo("r")
    with pytest.raises(RunCancelled):
        hf.resume("r")
    assert done == ["reserve 1", "reserve 2", "unreserve 2", "unreserve 1"]


def test_a_run_is_undone_by_tools_that_its_code_did_not_come_to_again(home: Any) -> None:
    """Its first branch comes to the end of the log, and so ends the run, before the second has begun."""
    done: list[str] = []

    @tool(undo=lambda: done.append("unreserve"))
    def reserve() -> None:
        done.append("reserve")

    helpers: dict[str, Any] = {"reserve": reserve}

    @agent
    def trip(run: Run) -> None:
        def item(name: str) -> None:
            helpers["reserve"]() if name == "reserve" else run.wait_for("go")

        run.map(item, ["wait", "reserve"], threads=1)

    with pytest.raises(RunWaiting):
        home.open().run(trip, id="r")
    hf = home.open(trip)
    hf.undo("r")
    with pytest.raises(RunCancelled):
        hf.resume("r")
    assert done == ["reserve", "unreserve"]


@pytest.mark.parametrize("calls_in", ["a branch", "no iteration"])
def test_a_loop_that_dies_while_it_is_undone_ends_with_its_own_failure(
    home: Any, calls_in: str
) -> None:
    done: list[str] = []

    @tool(undo=lambda: done.append("unreserve"))
    def reserve() -> None:
        done.append("reserve")

    @loop(max_iterations=3, on_failure="undo")
    def trip(run: Run, state: AgentState) -> AgentState:
        if calls_in == "a branch":
            run.map(lambda _: reserve(), [1])
        elif state.iteration == 1:
            reserve()
            return state
        raise RuntimeError("the trip is off")

    home.crash_in(lambda hf: hf.run(trip, id="r", goal="a trip"), at="before <lambda>")
    hf = home.open(trip)
    with pytest.raises(RunWaiting):
        hf.resume("r")
    hf.resolve("r", done=None)
    with pytest.raises(RunFailed, match="the trip is off"):
        hf.resume("r")


@pytest.mark.parametrize("is_async", [False, True])
def test_a_child_is_undone_in_a_process_in_which_its_parent_has_not_called_it(
    home: Any, is_async: bool
) -> None:
    """The parent is a loop: resumed, it does not come back to the iteration in which it called the child."""
    done: list[str] = []

    @tool(undo=lambda: done.append("unreserve"))
    def reserve() -> None:
        done.append("reserve")

    children: dict[str, Any] = {}
    if is_async:

        @loop(name="parent", max_iterations=2, on_failure="undo", deadline=60)
        async def async_parent(run: AsyncRun, state: AgentState) -> AgentState:
            if state.iteration == 1:
                await children["child"]()
            else:
                await run.wait_for("go")
            return state

        @agent(name="child")
        async def async_child(run: AsyncRun) -> None:
            reserve()

        main, children["child"] = async_parent, async_child
    else:

        @loop(max_iterations=2, on_failure="undo", deadline=60)
        def parent(run: Run, state: AgentState) -> AgentState:
            if state.iteration == 1:
                children["child"]()
            else:
                run.wait_for("go")
            return state

        @agent
        def child(run: Run) -> None:
            reserve()

        main, children["child"] = parent, child

    with pytest.raises(RunWaiting):
        home.open(patience=0.0).run(main, id="r", goal="a holiday")
    assert done == ["reserve"]
    home.clock.advance(61)
    hf = home.open(main, children["child"])
    with pytest.raises(RunFailed, match="deadline"):
        hf.resume("r")
    assert done == ["reserve", "unreserve"]
    assert hf.get("r~1").status == "cancelled"


def test_hf_undo_of_a_completed_parent_undoes_its_child(home: Any) -> None:
    trip = Trip(on_failure="", then="return")

    @agent
    def main(run: Run) -> str:
        return trip.agent()

    hf = home.open(main)
    assert hf.run(main, id="r") == "booked"
    hf.undo("r")
    with pytest.raises(RunCancelled):
        home.open(main).resume("r")

    assert trip.done == BOTH_UNDONE


@pytest.mark.parametrize(
    "point", ["before unbook", "after unbook", "before undo", "before commit call_started"]
)
def test_a_crash_while_a_child_is_undone_undoes_nothing_twice(home: Any, point: str) -> None:
    trip = Trip(on_failure="", then="return")

    @agent
    def main(run: Run) -> str:
        return trip.agent()

    hf = home.open(main)
    hf.run(main, id="r")
    hf.undo("r")
    home.crash_in(lambda hf: hf.resume("r"), main, at=point)

    hf = home.open(main)
    with pytest.raises((RunWaiting, RunCancelled)) as ended:
        hf.resume("r")
    if ended.type is RunWaiting:  # whether the room is booked, only a person can find out
        assert "undo book" in str(ended.value)
        if ("unbook", "blue", 3) in trip.done:
            hf.resolve("r~1", done=None)
        else:
            hf.resolve("r~1", retry=True)
        with pytest.raises(RunCancelled):
            hf.resume("r")
    assert trip.done == BOTH_UNDONE


def test_a_parent_that_waits_until_its_child_is_undone_is_not_in_doubt_however_often_it_is_resumed(
    home: Any,
) -> None:
    trip = Trip(on_failure="", then="return")

    @tool
    def pay() -> None:
        raise TimeoutError("no response")

    @agent
    def paying(run: Run) -> str:
        trip.agent()
        pay()
        return "paid"

    @agent
    def main(run: Run) -> str:
        return paying()

    hf = home.open(main)
    with pytest.raises(RunWaiting):
        hf.run(main, id="r")
    hf.undo("r")
    for _ in range(7):
        with pytest.raises(RunWaiting, match=r"is waiting for child run r~1, .* step 2, pay"):
            hf.resume("r")
    assert hf.get("r").in_doubt == ()
    with pytest.raises(NotNow):
        hf.resolve("r", 2, done=None)

    hf.resolve("r~1", 2, failed="nothing was paid")
    with pytest.raises(RunCancelled):
        hf.resume("r")
    assert trip.done == BOTH_UNDONE
    assert hf.get("r~1").status == "cancelled"
