"""A loop: from state to state until done, resumed from its last committed state and nothing before it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import (
    AgentState,
    AsyncHoldfast,
    AsyncRun,
    Budget,
    BudgetExceeded,
    Holdfast,
    InvalidInput,
    IterationsExceeded,
    Phase,
    Run,
    RunCancelled,
    RunFailed,
    RunWaiting,
    StatePatch,
    agent,
    loop,
    step,
    tool,
)
from holdfast.core import events as e
from holdfast.core import snapshot
from holdfast.core.fold import fold
from holdfast.core.parts import Fact
from holdfast.core.state import RunState
from holdfast.runtime.call import checkpoints
from holdfast.store.sqlite import SQLiteStore


@step
def search(text: str) -> str:
    return f"found {text}"


def counting(until: int, calls: list[int], **options: Any) -> Callable[..., Any]:
    """A loop that iterates `until` times, with one step in each iteration."""
    limit = options.pop("max_iterations", 10**6)

    @loop(max_iterations=limit, **options)
    def counter(run: Run, state: AgentState) -> AgentState:
        calls.append(state.iteration)
        found = search(str(state.iteration))
        if state.iteration >= until:
            return state.with_note("found", found).to_done(state.iteration)
        return state.with_note("found", found)

    return counter


def test_a_loop_runs_until_its_state_is_done_and_returns_it(hf: Holdfast) -> None:
    phases = []

    @loop(max_iterations=20)
    def researcher(run: Run, state: AgentState) -> AgentState:
        phases.append((state.iteration, state.phase))
        match state.phase:
            case Phase.PLANNING:
                return state.with_plan(["look", "tell"]).to_executing()
            case Phase.EXECUTING:
                return state.record(search(state.goal), name="search").to_reflecting()
            case _:
                return state.to_done("because")

    last = hf.run(researcher, "why?", id="r")

    assert [(1, "planning"), (2, "executing"), (3, "reflecting")] == phases
    assert ("why?", Phase.DONE, 3, "because", "r") == (
        last.goal,
        last.phase,
        last.iteration,
        last.answer,
        last.session,
    )
    assert [
        ("user", "why?"),
        ("assistant", ""),
        ("tool", "found why?"),
        ("assistant", "because"),
    ] == [(m.role, m.content) for m in last.messages]
    assert last.messages[0].time == last.created_at > 0
    assert ["found why?"] == [call.result for call in last.memory.tool_calls]
    assert last == hf.get("r").agent_state == hf.run(researcher, "why?", id="r")
    assert hf.verify("r").ok
    assert 3 == len(phases)


def test_a_state_returned_unchanged_starts_another_iteration(hf: Holdfast) -> None:
    seen = []

    @loop(max_iterations=5)
    def stubborn(run: Run, state: AgentState) -> AgentState:
        seen.append(state.iteration)
        return state.to_done() if state.iteration == 3 else state

    assert 3 == hf.run(stubborn, "go").iteration
    assert [1, 2, 3] == seen


def test_a_loop_may_begin_with_a_state_and_take_more_input(hf: Holdfast) -> None:
    @loop(max_iterations=5)
    def deep(run: Run, state: AgentState, depth: int = 1) -> AgentState:
        return state.to_done(depth)

    first = AgentState(goal="given", constraints={"tone": "kind"})

    last = hf.run(deep, first, depth=7)

    assert ("given", 7, {"tone": "kind"}) == (last.goal, last.answer, last.constraints)


def test_too_many_iterations_are_an_error_of_their_own_and_more_may_be_allowed(
    hf: Holdfast,
) -> None:
    calls: list[int] = []
    with pytest.raises(IterationsExceeded, match="not done after 3 iterations"):
        hf.run(counting(5, calls, max_iterations=3), "go", id="r")
    assert ("failed", "iterations") == (hf.get("r").status, hf.get("r").failure.reason)  # type: ignore[union-attr]
    with pytest.raises(IterationsExceeded):
        hf.run(counting(5, calls, max_iterations=3), "go", id="r")

    hf.engine.agents.clear()
    more = counting(5, calls, max_iterations=9)
    with Holdfast(hf.store, agents=[more]) as again:
        assert 5 == again.resume("r").answer
        assert [1, 2, 3, 4, 5] == calls


def test_an_error_state_fails_the_run_and_a_resume_plans_again(hf: Holdfast) -> None:
    seen = []

    @loop(max_iterations=9)
    def failing(run: Run, state: AgentState) -> AgentState:
        seen.append((state.phase, state.error))
        return state.to_error("no key") if len(seen) == 1 else state.to_done("found it")

    with pytest.raises(RunFailed, match="no key") as failed:
        hf.run(failing, "open the door", id="r")
    assert ("AgentFailed", Phase.ERROR) == (failed.value.error_type, hf.get("r").agent_state.phase)  # type: ignore[union-attr]

    assert "found it" == hf.resume("r").answer
    assert [("planning", None), ("planning", None)] == seen


def test_a_value_that_is_not_a_state_is_refused_with_advice(hf: Holdfast) -> None:
    @loop(max_iterations=3)
    def forgetful(run: Run, state: AgentState) -> Any:
        return None

    with pytest.raises(RunFailed, match=r"must return a AgentState, not None \(iteration 1\)"):
        hf.run(forgetful, "go")
    with pytest.raises(InvalidInput, match="must take the run and its state"):
        loop(max_iterations=3)(lambda run: run)
    with pytest.raises(InvalidInput, match="max_iterations"):
        loop(max_iterations=0)
    with pytest.raises(InvalidInput, match="every_step, every_iteration, on_state_change"):
        loop(max_iterations=1, checkpoint="sometimes")(lambda run, state: state)  # type: ignore[arg-type]


class Watched(SQLiteStore):
    """A store that remembers what was read of its logs."""

    reads: list[tuple[int, int]]

    def read(self, run_id: str, *, after: int = -1, limit: int | None = None) -> list[Any]:
        found = super().read(run_id, after=after, limit=limit)
        self.reads.append((after, len(found)))
        return found


def test_a_resume_neither_replays_nor_reads_earlier_iterations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "SNAPSHOT_BYTES", 2000)
    calls: list[int] = []

    @loop(max_iterations=10**6, checkpoint="every_iteration")
    def waiting(run: Run, state: AgentState) -> AgentState:
        calls.append(state.iteration)
        search(str(state.iteration))
        if state.iteration == 200:
            run.wait_for("go")
            return state.to_done("over")
        return state

    with Holdfast(tmp_path / "h.db") as hf, pytest.raises(RunWaiting):
        hf.run(waiting, "go", id="r")
    calls.clear()
    store = Watched(tmp_path / "h.db")
    store.reads = []
    with Holdfast(store, agents=[waiting]) as hf:
        with pytest.raises(RunWaiting):
            hf.resume("r")
        assert [200] == calls
        assert sum(count for _, count in store.reads) < 40, store.reads
        hf.signal("r", "go")
        assert "over" == hf.resume("r").answer
        assert hf.verify("r").ok


def test_without_a_snapshot_the_log_gives_the_same_state(hf: Holdfast) -> None:
    """And a snapshot that does not fit the log is not used."""
    calls: list[int] = []
    hf.run(counting(30, calls, checkpoint="every_iteration"), "go", id="r")
    assert hf.store.snapshots.newest("r", live=True) is None
    with pytest.raises(IterationsExceeded):
        hf.run(counting(9, calls, max_iterations=5), "go", id="s")
    state = fold(RunState(), hf.store.read("s"))
    last = hf.store.read("s")[state.seq - 2]
    wrong = snapshot.dump(RunState(id="s", seq=last.seq, iteration=99))
    kept = checkpoints.Snapshot(last.seq, b"\0" * 32, checkpoints.VERSION, 0, wrong)
    hf.store.snapshots.save("s", kept)
    calls.clear()

    with Holdfast(hf.store, agents=[counting(9, calls)]) as again:
        assert 9 == again.resume("s").answer
        assert [6, 7, 8, 9] == calls


def test_a_signal_of_an_earlier_iteration_is_kept_also_over_a_snapshot(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "SNAPSHOT_BYTES", 1)

    @loop(max_iterations=50)
    def later(run: Run, state: AgentState) -> AgentState:
        if state.iteration == 1:
            run.wait_for("begin")
        if state.iteration < 8:
            return state.with_note("seen", search(str(state.iteration)))
        if state.iteration == 8:
            run.wait_for("more")
        return state.to_done(run.wait_for("early"))

    with pytest.raises(RunWaiting):
        hf.run(later, "go", id="r")
    hf.signal("r", "early", 42)
    hf.signal("r", "begin")
    with pytest.raises(RunWaiting):
        hf.resume("r")
    assert hf.store.snapshots.newest("r", live=True) is not None
    hf.signal("r", "more")

    assert 42 == hf.resume("r").answer


def test_patches_from_outside_are_taken_in_when_an_iteration_ends(hf: Holdfast) -> None:
    given: list[AgentState] = []

    @loop(max_iterations=9)
    def listening(run: Run, state: AgentState) -> AgentState:
        given.append(state)
        if state.iteration == 1:
            run.wait_for("go")
            return state.with_plan(["mine"])
        return state.to_done("over")

    with pytest.raises(RunWaiting):
        hf.run(listening, "go", id="r")
    hf.patch("r", StatePatch(facts={"namespace": "prod"}, flags=["budget_pressure"]), by="ops")
    hf.patch(
        "r",
        [
            {"op": "replace", "path": "/goal", "value": "stop"},
            {"op": "add", "path": "/memory/questions/-", "value": "why?"},
            {"op": "add", "path": "/memory/facts/-", "value": {"key": "pod", "value": 3}},
        ],
    )
    with pytest.raises(InvalidInput, match=r"operation 1 .*no /memory/nothing"):
        hf.patch("r", [{"op": "remove", "path": "/memory/nothing"}])
    with pytest.raises(InvalidInput, match="cannot be patched from outside"):
        hf.patch("r", [{"op": "replace", "path": "/iteration", "value": 7}])
    with pytest.raises(InvalidInput, match="patched state is invalid"):
        hf.patch("r", [{"op": "replace", "path": "/goal", "value": 7}])
    with pytest.raises(InvalidInput, match="no field /memory/moods"):
        hf.patch("r", [{"op": "add", "path": "/memory/moods", "value": []}])
    hf.signal("r", "go")

    last = hf.resume("r")

    assert ["go", "go", "stop"] == [state.goal for state in given]  # it ran again up to its wait
    memory = given[-1].memory
    assert [("namespace", "prod"), ("pod", 3)] == [(f.key, f.value) for f in memory.facts]
    assert (("budget_pressure",), ("why?",), ("mine",)) == (
        memory.flags,
        memory.questions,
        memory.pending,
    )
    assert all(isinstance(f, Fact) and f.time for f in memory.facts)
    assert last == hf.get("r").agent_state
    assert hf.replay("r").reached_end


def test_a_patch_is_applied_once_however_long_the_loop_runs_and_is_resumed(
    hf: Holdfast,
) -> None:
    @loop(max_iterations=9)
    def listening(run: Run, state: AgentState) -> AgentState:
        if state.iteration in (1, 4):
            run.wait_for("go")
        return state.to_done() if state.iteration == 6 else state

    with pytest.raises(RunWaiting):
        hf.run(listening, "go", id="r")
    hf.patch("r", StatePatch(facts={"namespace": "prod"}))
    hf.signal("r", "go")
    with pytest.raises(RunWaiting):
        hf.resume("r")
    hf.signal("r", "go")

    assert ["namespace"] == [fact.key for fact in hf.resume("r").memory.facts]
    assert hf.replay("r").reached_end


def test_a_patch_that_no_longer_fits_is_reported_and_changes_nothing(hf: Holdfast) -> None:
    @loop(max_iterations=9)
    def moving(run: Run, state: AgentState) -> AgentState:
        if state.iteration == 1:
            run.wait_for("go")
            return state.without_flag("old")
        return state.to_done("over")

    first = AgentState(goal="g").with_flag("old")
    with pytest.raises(RunWaiting):
        hf.run(moving, first, id="r")
    hf.patch(
        "r",
        [
            {"op": "test", "path": "/memory/flags/0", "value": "old"},
            {"op": "replace", "path": "/goal", "value": "other"},
        ],
    )
    hf.signal("r", "go")

    assert "g" == hf.resume("r").goal
    assert any("was not applied" in line.text for line in hf.get("r").lines)


class Scored(AgentState, frozen=True, omit_defaults=True):
    score: float = 0.0
    tags: tuple[str, ...] = ()


def test_a_patch_from_outside_reaches_the_fields_that_a_subclass_adds(hf: Holdfast) -> None:
    @loop(max_iterations=9)
    def scoring(run: Run, state: Scored) -> Scored:
        if state.iteration == 1:
            return msgspec.structs.replace(state, tags=("a",))
        if state.iteration == 2:
            run.wait_for("go")
        return state.to_done() if state.iteration == 3 else state

    with pytest.raises(RunWaiting):
        hf.run(scoring, "go", id="r")
    hf.patch("r", [{"op": "add", "path": "/score", "value": 1.5}])
    hf.patch(
        "r",
        [
            {"op": "test", "path": "/score", "value": 1.5},
            {"op": "add", "path": "/tags/-", "value": "b"},
        ],
    )
    hf.patch("r", [{"op": "add", "path": "/tags/-", "value": 5}])
    hf.patch("r", [{"op": "add", "path": "/nothing", "value": 5}])
    hf.signal("r", "go")

    last = hf.resume("r")

    assert (1.5, ("a", "b")) == (last.score, last.tags)
    told = [line.text for line in hf.get("r").lines if "was not applied" in line.text]
    assert ["Expected `str`, got `int`" in told[0], "no field /nothing" in told[1]] == [True, True]
    assert hf.replay("r").reached_end


def test_an_agents_own_patch_and_one_from_outside_change_what_the_run_knows(hf: Holdfast) -> None:
    @agent
    def plain(run: Run) -> Any:
        run.patch(
            StatePatch(facts={"a": [1]}, plan=["one", "two"], questions=["why?"], notes={"n": 1})
        )
        run.state.draft = "x"
        run.wait_for("go")
        return [
            list(run.questions),
            run.notes,
            [s.name for s in run.plan_steps],
            run.state.draft,
            [(f.key, f.value) for f in run.facts],
            list(run.flags),
        ]

    with pytest.raises(RunWaiting):
        hf.run(plain, id="r")
    hf.patch("r", StatePatch(closed=["why?"], flags=["late"]))
    hf.patch(
        "r",
        [
            {"op": "add", "path": "/facts/-", "value": {"key": "b", "value": 2}},
            {"op": "test", "path": "/state/draft", "value": "x"},
            {"op": "replace", "path": "/state/draft", "value": "y"},
        ],
    )
    before = len(hf.events("r"))
    with pytest.raises(InvalidInput, match="operation 2"):
        hf.patch("r", [{"op": "remove", "path": "/state/draft"}, {"op": "remove", "path": "/no"}])
    with pytest.raises(InvalidInput, match="patched state is invalid"):
        hf.patch("r", [{"op": "replace", "path": "/facts", "value": 3}])
    assert before == len(hf.events("r"))
    hf.signal("r", "go")

    found = hf.resume("r")

    assert [[], {"n": 1}, ["one", "two"], "y", [["a", [1]], ["b", 2]], ["late"]] == found
    assert hf.replay("r").reached_end


@pytest.mark.parametrize("strategy", ["every_step", "every_iteration", "on_state_change"])
def test_replay_checks_all_iterations_and_finds_changed_code(hf: Holdfast, strategy: Any) -> None:
    calls: list[int] = []
    good = counting(6, calls, checkpoint=strategy)
    hf.run(good, "go", id="r")
    calls.clear()

    assert hf.replay("r").reached_end
    assert [1, 2, 3, 4, 5, 6] == calls

    @loop(max_iterations=99, checkpoint=strategy)
    def counter(run: Run, state: AgentState) -> AgentState:
        return state.with_note("found", search(str(state.iteration)) + "!")

    with Holdfast(hf.store, agents=[counter]) as other:
        diverged = other.replay("r").diverged
        assert diverged is not None
        assert "the end of iteration 1" == diverged.where


def test_time_travel_shows_the_state_of_a_loop_at_each_step(hf: Holdfast) -> None:
    hf.run(counting(4, []), "go", id="r")

    assert 2 == hf.at("r", 3, "before").agent_state.iteration  # type: ignore[union-attr]
    assert [1, 2] == [hf.at("r", n, "before").iteration for n in (2, 3)]
    assert any(change.path == "loop.memory.notes.found" for change in hf.diff("r", 2, 4))


def test_a_fork_of_a_loop_continues_independently_from_a_step(hf: Holdfast) -> None:
    calls: list[int] = []
    original = hf.run(counting(5, calls), "go", id="r")
    calls.clear()

    hf.fork("r", 3, id="f")
    forked = hf.resume("f")

    assert [3, 4, 5] == calls  # it continues in the iteration of that step
    assert original.memory.notes == forked.memory.notes


def test_a_rerun_of_a_loop_begins_with_its_first_state_again(hf: Holdfast) -> None:
    calls: list[int] = []
    hf.run(counting(3, calls), "go", id="r")

    assert 3 == hf.rerun("r").answer
    assert [1, 2, 3, 1, 2, 3] == calls
    assert [c.step for c in hf.get("r").calls] == [1, 2, 3, 4, 5, 6]
    assert hf.verify("r").ok


def test_an_async_loop_and_a_loop_inside_an_agent_are_durable_too(tmp_path: Path) -> None:
    @step
    async def look(text: str) -> str:
        await asyncio.sleep(0)
        return f"saw {text}"

    @loop(max_iterations=9, checkpoint="every_iteration")
    async def looking(run: AsyncRun, state: AgentState) -> AgentState:
        seen = await asyncio.gather(*(look(f"{state.iteration}.{n}") for n in range(3)))
        state = state.record(seen)
        return state.to_done(len(state.memory.tool_calls)) if state.iteration == 3 else state

    @agent
    async def outer(run: AsyncRun) -> Any:
        inner = await looking("inside")
        return [inner.answer, inner.memory.tool_calls[-1].result]

    async def main() -> Any:
        async with AsyncHoldfast(tmp_path / "h.db") as hf:
            alone = await hf.run(looking, "alone", id="a")
            inside = await hf.run(outer, id="o")
            return alone, inside, await hf.replay("a")

    alone, inside, replayed = asyncio.run(main())

    assert 3 == alone.answer
    assert [3, ["saw 3.0", "saw 3.1", "saw 3.2"]] == inside
    assert replayed.reached_end


def test_a_loop_without_calls_ends_when_it_is_cancelled_or_has_used_its_budget(
    hf: Holdfast,
) -> None:
    @loop(max_iterations=10**6)
    def idle(run: Run, state: AgentState) -> AgentState:
        if state.iteration == 5:
            hf.cancel("r", by="test")
        return state

    with pytest.raises(RunCancelled):
        hf.run(idle, "go", id="r")
    with pytest.raises(BudgetExceeded):
        hf.run(counting(99, [], budget=Budget(max_steps=4)), "go", id="b")
    assert 4 == hf.get("b").steps


def test_a_budget_that_the_state_holds_ends_the_loop_before_the_next_iteration(
    hf: Holdfast,
) -> None:
    thrifty = AgentState.begin("go", budget=Budget(max_steps=4))

    with pytest.raises(BudgetExceeded, match="max_steps is 4, and 4 are used"):
        hf.run(counting(99, []), thrifty, id="r")

    assert 4 == hf.get("r").steps


def test_a_budget_that_the_state_holds_does_not_stop_an_iteration_that_began_in_tasks(
    hf: Holdfast,
) -> None:
    """All its calls are in branches: nothing is recorded in the agent's own line since the last iteration."""

    @loop(max_iterations=3)
    async def work(run: AsyncRun, state: AgentState) -> AgentState:
        async def look(text: str) -> None:
            search(text)

        async with asyncio.TaskGroup() as group:
            group.create_task(look("a"))
            group.create_task(look("b"))
            group.create_task(run.wait_for("go"))
        return state.to_done()

    with pytest.raises(RunWaiting):
        hf.run(work, AgentState.begin("go", budget=Budget(max_steps=2)), id="r")
    hf.signal("r", "go")

    assert Phase.DONE == hf.resume("r").phase


def test_what_a_loop_did_long_ago_can_be_undone_after_a_resume(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "SNAPSHOT_BYTES", 1)
    undone: list[str] = []

    def unbook(room: str) -> None:
        undone.append(room)

    @tool(undo=unbook)
    def book(room: str) -> str:
        return room

    @loop(max_iterations=20, on_failure="undo")
    def trip(run: Run, state: AgentState) -> AgentState:
        if state.iteration <= 2:
            return state.record(book(f"room {state.iteration}"))
        if state.iteration == 8:
            run.wait_for("go")
            raise RuntimeError("the trip is off")
        return state.with_note("n", search(str(state.iteration)))

    with pytest.raises(RunWaiting):
        hf.run(trip, "go", id="r")
    with Holdfast(hf.store, agents=[trip]) as again:  # it has not seen the first iterations
        again.signal("r", "go")
        with pytest.raises(RunFailed, match="the trip is off"):
            again.resume("r")

        assert ["room 2", "room 1"] == undone


def test_the_log_grows_with_what_happens_and_not_with_what_happened_before(hf: Holdfast) -> None:
    """A dialogue that grows: each iteration writes what it added, snapshots included."""

    @loop(max_iterations=10**6, checkpoint="every_iteration")
    def talking(run: Run, state: AgentState) -> AgentState:
        state = state.with_message("assistant", f"{state.iteration:0100d}")
        return state.to_done() if state.iteration == 600 else state

    hf.run(talking, "go", id="r")

    sizes = [len(r.data) for r in hf.store.read("r") if r.kind == e.IterationEnded.kind]
    assert max(sizes[1:]) < 1.2 * min(sizes[1:])
    assert 601 == len(hf.get("r").agent_state.messages)  # type: ignore[union-attr]
