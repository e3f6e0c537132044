"""Checkpoint strategies: when is committed, what a kill may lose, and what it may never lose."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    AgentState,
    AsyncHoldfast,
    AsyncRun,
    Budget,
    BudgetExceeded,
    Checkpoint,
    Holdfast,
    InvalidInput,
    LLMAgent,
    NotResumable,
    Options,
    Phase,
    Run,
    RunCancelled,
    RunFailed,
    RunWaiting,
    agent,
    loop,
    step,
    tool,
    views,
)
from holdfast.agents.models import ScriptedModel, call
from holdfast.core import events as e
from holdfast.core.events import Usage
from holdfast.core.policy import STRATEGIES
from holdfast.runtime.call import checkpoints
from holdfast.store.base import LIVE, Snapshot
from holdfast.store.sqlite import SQLiteStore
from holdfast.testing.clock import ManualClock
from holdfast.words.advice import advice
from support.kill import LEASE_SECONDS, Clock, live

PAGE = Path(__file__).parent.parent.parent / "docs" / "checkpoints.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


# ── the table ────────────────────────────────────────────────────────────────────────────────


@dataclass
class Work:
    """Three iterations of two steps in one phase; then a step, an effect, a step; then it is done."""

    strategy: Any
    folder: Path

    def __post_init__(self) -> None:
        self.done = self.folder / f"done-{self.strategy}"

        @step
        def look(number: int) -> int:
            return self._count("step", number)

        @tool
        def act(number: int, idempotency_key: str = "") -> int:
            return self._count("effect", number)

        @loop(max_iterations=9, checkpoint=self.strategy)
        def work(run: Run, state: AgentState) -> AgentState:
            self._count("iteration", state.iteration)
            if state.phase is Phase.EXECUTING:
                numbers = [look(90), act(91), look(92)]
                return state.record(numbers).to_done()
            look(10 * state.iteration)
            look(10 * state.iteration + 1)
            return state.to_executing() if state.iteration == 3 else state

        self.agent = work

    def _count(self, what: str, number: int) -> int:
        with self.done.open("a") as file:
            file.write(f"{what} {number}\n")
        return number

    def counted(self) -> Counter[str]:
        """How often each thing was done more than once, by kind."""
        lines = Counter(self.done.read_text().split("\n")[:-1])
        again: Counter[str] = Counter()
        for line, times in lines.items():
            again[line.split()[0]] += times - 1
        return again

    def run_killed_at(self, number: int | None) -> tuple[bool, Counter[str]]:
        """Kill it at this boundary, let it come to its end; whether it was killed, what was done again."""
        self.done.unlink(missing_ok=True)
        clock = Clock()
        path = self.folder / f"{self.strategy}-{number}.db"

        def make(at: Clock) -> SQLiteStore:
            return SQLiteStore(path, clock=at)

        def run(hf: Holdfast) -> Any:
            return hf.run(self.agent, "go", id="r").phase.value

        killed = live(make, clock, run, number).killed
        if killed:
            clock.skip(LEASE_SECONDS + 1)
            assert "done" == live(make, clock, run, None).result
        return killed, self.counted()


@dataclass(frozen=True)
class Measured:
    """Commits of an undisturbed run, and the worst that a kill made it do again."""

    strategy: str
    commits: int
    calls: int
    again: Counter[str]

    def __str__(self) -> str:
        again = " | ".join(str(self.again[what]) for what in ("step", "iteration", "effect"))
        return f"| `{self.strategy}` | {self.commits} | {self.commits / self.calls:.2f} | {again} |"


def measured(strategy: Any, folder: Path, *, first: int = 1, stride: int = 1) -> Measured:
    """Killed at every boundary, or at some."""
    work = Work(strategy, folder)
    names: list[str] = []
    with Holdfast(folder / f"count-{strategy}.db", options=Options(boundary=names.append)) as hf:
        hf.run(work.agent, "go", id="r")
        calls = hf.get("r").steps
        assert hf.verify("r").ok
    commits = sum(name.startswith("after commit") for name in names)
    worst: Counter[str] = Counter()
    for number in range(first, len(names) + 1, stride):
        killed, again = work.run_killed_at(number)
        assert killed, f"boundary {number} was not reached"
        worst |= again
    return Measured(strategy, commits, calls, worst)


def table_in_the_docs() -> tuple[str, str, str]:
    """What stands before it, the table, what stands after it."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    table, _, after = rest.partition(END)
    return before, table.strip(), after


@pytest.mark.nightly
def test_the_table_in_the_docs_is_what_is_measured(tmp_path: Path) -> None:
    """Killed at every boundary. `HOLDFAST_WRITE_DOCS=1` writes the table into the page."""
    rows = [
        "| strategy | commits | commits per call | steps done again, at most | iterations begun again, "
        "at most | effects sent again (same key), at most |",
        "|---|---|---|---|---|---|",
        *(str(measured(strategy, tmp_path)) for strategy in STRATEGIES),
    ]
    table = "\n".join(rows)
    before, written, after = table_in_the_docs()
    if os.environ.get("HOLDFAST_WRITE_DOCS"):
        PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")
        return

    assert table == written


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_kill_repeats_more_than_the_table_in_the_docs_states(
    strategy: Any, tmp_path: Path
) -> None:
    """The commits are as it says; of the kills, some: the night takes all."""
    _, table, _ = table_in_the_docs()
    (row,) = [line for line in table.splitlines() if line.startswith(f"| `{strategy}`")]
    commits, _, *again = [cell.strip() for cell in row.strip("| ").split("|")[1:]]

    found = measured(strategy, tmp_path, first=4, stride=8)

    assert int(commits) == found.commits
    worst = zip(("step", "iteration", "effect"), map(int, again), strict=True)
    assert all(found.again[what] <= most for what, most in worst), (found, row)
    assert found.again.total() > 0


# ── strategies ───────────────────────────────────────────────────────────────────────────────


@step
def think(text: str) -> str:
    return text


def commits_of(strategy: Any, folder: Path, body: Any, **options: Any) -> list[str]:
    names: list[str] = []
    declared = agent(checkpoint=strategy, **options)(body)
    with Holdfast(folder / "h.db", options=Options(boundary=names.append)) as hf:
        hf.run(declared)
    return [name.removeprefix("after commit ") for name in names if name.startswith("after commit")]


@pytest.mark.parametrize(
    ("strategy", "commits"),
    [
        ("every_step", ["call_succeeded"] * 2 + ["iteration_ended"] + ["call_succeeded"] * 2),
        ("every_iteration", ["iteration_ended", "call_succeeded"]),
        ("on_state_change", ["call_succeeded"]),
    ],
)
def test_a_finer_strategy_includes_the_triggers_of_the_coarser(
    strategy: Any, commits: list[str], tmp_path: Path
) -> None:
    """A change of stage under all, the end of an iteration under two, each step under the finest."""

    def body(run: Run) -> None:
        think("a")
        think("b")
        run.checkpoint()
        run.stage = "next"
        think("c")
        think("d")

    assert [*commits, "run_completed"] == commits_of(strategy, tmp_path, body, stages=("next",))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_intent_of_an_effect_is_committed_first_with_all_that_waits(
    strategy: Any, tmp_path: Path
) -> None:
    seen: list[list[str]] = []

    @tool
    def act() -> None:
        with Holdfast(tmp_path / "h.db") as other:
            seen.append([record.kind for record, _ in other.events("r")])

    @agent(checkpoint=strategy)
    def acting(run: Run) -> None:
        run.state.x = 1
        think("a")
        act()
        think("b")

    with Holdfast(tmp_path / "h.db") as hf:
        hf.run(acting, id="r")

        assert [["run_created", "state_changed", "call_succeeded", "call_started"]] == seen
        done = [x for _, x in hf.events("r") if isinstance(x, e.CallSucceeded)]
        assert [strategy != "every_step", False, strategy != "every_step"] == [
            x.buffered for x in done
        ]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_came_from_outside_is_seen_at_the_same_place_on_replay(
    strategy: Any, hf: Holdfast
) -> None:
    """Also if receipts that were buffered stand after it in the log."""
    seen: list[list[Any]] = []

    @agent(checkpoint=strategy)
    def watching(run: Run) -> Any:
        found: list[Any] = []
        seen.append(found)
        think("a")
        if len(seen) == 1:  # someone else does, while it runs for the first time
            hf.patch("r", {"word": "new"})
        for text in "bcd":
            think(text)
            found.append(run.state.word)
        run.checkpoint()
        found.append(run.state.word)
        run.wait_for("go")
        return found

    with pytest.raises(RunWaiting):
        hf.run(watching, id="r")
    hf.signal("r", "go")
    hf.resume("r")

    assert seen[0] == seen[1]
    assert "new" in seen[0] or strategy == "on_state_change"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_resumed_loop_sees_a_patch_from_outside_where_it_saw_it_first(
    strategy: Any, hf: Holdfast
) -> None:
    seen: dict[int, list[list[Any]]] = {}

    @loop(max_iterations=99, checkpoint=strategy)
    def watching(run: Run, state: AgentState) -> AgentState:
        found: list[Any] = []
        seen.setdefault(state.iteration, []).append(found)
        think("a")
        found.append(run.state.word)
        if state.iteration == 2 and len(seen[2]) == 1:
            hf.patch("r", {"word": "new"})
        think("b")
        found.append(run.state.word)
        if state.iteration == 5:
            found.append(run.wait_for("go"))
            found.append(run.state.word)
        return state.to_done() if state.iteration == 6 else state

    with pytest.raises(RunWaiting):
        hf.run(watching, "go", id="r")
    hf.signal("r", "go", 1)
    hf.resume("r")

    for lives in seen.values():
        for life in lives[1:]:
            assert lives[0] == life[: len(lives[0])]
    assert [1, "new"] == seen[5][-1][2:]
    assert hf.replay("r").reached_end


def test_buffered_steps_count_against_the_budget(hf: Holdfast) -> None:
    class Answer(str):
        usage = Usage(input_tokens=40, output_tokens=10)

    @step
    def model(n: int) -> str:
        return Answer(n)

    @agent(checkpoint="on_state_change", budget=Budget(max_llm_tokens=120))
    def thrifty(run: Run) -> None:
        for n in range(9):
            model(n)

    with pytest.raises(BudgetExceeded):
        hf.run(thrifty, id="r")
    assert 150 == hf.get("r").usage.input_tokens + hf.get("r").usage.output_tokens


def test_no_more_than_so_many_events_are_buffered(tmp_path: Path) -> None:
    def body(run: Run) -> None:
        for n in range(2500):
            think(str(n))

    found = commits_of("on_state_change", tmp_path, body)

    assert ["call_succeeded", "call_succeeded", "run_completed"] == found


def test_an_async_agent_buffers_too(tmp_path: Path) -> None:
    @step
    async def look(n: int) -> int:
        await asyncio.sleep(0)
        return n

    @agent(checkpoint="every_iteration")
    async def gathering(run: AsyncRun) -> Any:
        first = await asyncio.gather(*map(look, range(5)))
        await run.checkpoint()
        return [first, await look(9)]

    async def main() -> Any:
        async with AsyncHoldfast(tmp_path / "h.db") as hf:
            result = await hf.run(gathering, id="r")
            return result, await hf.replay("r"), await hf.verify("r")

    result, replayed, verdict = asyncio.run(main())

    assert [[0, 1, 2, 3, 4], 9] == result
    assert replayed.reached_end and verdict.ok


def test_an_unknown_strategy_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidInput, match="every_step, every_iteration, on_state_change"):
        agent(checkpoint="daily")(lambda run: None)  # type: ignore[call-overload]
    with pytest.raises(InvalidInput, match="max_count"):
        Checkpoint(max_count=0)


# ── snapshots and resuming ───────────────────────────────────────────────────────────────────


def test_snapshots_beyond_the_newest_few_or_too_old_go_but_never_the_newest(tmp_path: Path) -> None:
    clock = ManualClock()
    store = SQLiteStore(tmp_path / "h.db", clock=clock.now)
    with Holdfast(store) as hf:

        @agent
        def one(run: Run) -> None: ...

        hf.run(one, id="r")

        def save(seq: int, **options: Any) -> None:
            kept = Snapshot(seq, b"h", f"{LIVE}1", store.now(), b"")
            store.snapshots.save("r", kept, **options)

        def left() -> list[int]:
            found, at = [], None
            while (one := store.snapshots.newest("r", at_most=at, live=True)) is not None:
                found.append(one.seq)
                at = one.seq - 1
            return found

        save(1)
        clock.advance(100)
        save(2, keep=5)
        save(3, keep=5)
        assert [3, 2, 1] == left()
        save(4, keep=5, max_age_us=50_000_000)  # 1 has expired
        assert [4, 3, 2] == left()
        save(5, keep=2)  # beyond two
        assert [5, 4] == left()
        # Another family.
        store.snapshots.save("r", Snapshot(9, b"h", "1", store.now(), b""), keep=1)
        assert [5, 4] == left()
        clock.advance(100)
        assert 1 == store.snapshots.rotate("r", max_age_us=50_000_000)  # by gc
        assert [5] == left()


def test_a_loop_keeps_as_many_snapshots_as_its_checkpoint_declares(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "SNAPSHOT_BYTES", 1)

    @loop(max_iterations=99, checkpoint=Checkpoint("every_iteration", max_count=2))
    def counter(run: Run, state: AgentState) -> AgentState:
        return state.to_done() if state.iteration == 30 else state.with_note("n", think("x"))

    hf.run(counter, "go", id="r")

    newest = hf.store.snapshots.newest("r", live=True)
    assert newest is not None
    second = hf.store.snapshots.newest("r", at_most=newest.seq - 1, live=True)
    assert second is not None
    assert hf.store.snapshots.newest("r", at_most=second.seq - 1, live=True) is None


def waiting(**options: Any) -> Any:
    @agent(name="waiting", **options)
    def body(run: Run) -> Any:
        return run.wait_for("go")

    return body


def test_a_run_that_is_too_old_is_not_resumed_unless_that_is_asked_for(tmp_path: Path) -> None:
    clock = ManualClock()
    old = waiting(checkpoint=Checkpoint(max_age=3600))
    with Holdfast(SQLiteStore(tmp_path / "h.db", clock=clock.now)) as hf:
        hf.start(old, id="pending")
        with pytest.raises(RunWaiting):
            hf.run(old, id="r")
        clock.advance(1800)
        with pytest.raises(RunWaiting):  # it is not too old, and pending does not prevent it
            hf.resume("pending")
        clock.advance(3000)
        for again in (lambda: hf.resume("r"), lambda: hf.run(old, id="r")):
            with pytest.raises(NotResumable, match="age check failed") as refused:
                again()
            assert "hf.resume('r', override=['age'])" in str(refused.value)
        hf.signal("r", "go", 1)  # someone has written to it: it lives

        assert 1 == hf.resume("r", override=["age"])


def test_a_run_of_another_version_is_not_resumed_unless_that_is_asked_for(hf: Holdfast) -> None:
    with pytest.raises(RunWaiting):
        hf.run(waiting(version="1"), id="r")
    hf.signal("r", "go", 1)
    newer = waiting(version="2")

    with pytest.raises(
        NotResumable, match="started with version '1' of waiting, this is '2'"
    ) as no:
        hf.run(newer, id="r")
    assert ("version", "r") == (no.value.check, no.value.run_id)
    with pytest.raises(InvalidInput, match="is not a check; checks that can be overridden are"):
        hf.resume("r", override=["luck"])

    assert 1 == hf.resume("r", override=["version"])


def parent_of(child: Any, *, is_async: bool = False) -> Any:
    if is_async:

        @agent(name="parent")
        async def parent_async(run: AsyncRun) -> Any:
            return await child()

        return parent_async

    @agent(name="parent")
    def parent(run: Run) -> Any:
        return child()

    return parent


def waiting_async(**options: Any) -> Any:
    @agent(name="waiting", **options)
    async def body(run: AsyncRun) -> Any:
        return await run.wait_for("go")

    return body


@pytest.mark.parametrize("child", [waiting, waiting_async])
def test_a_child_run_of_another_version_holds_its_parent_until_a_person_overrides_it(
    child: Any, hf: Holdfast
) -> None:
    is_async = child is waiting_async
    with pytest.raises(RunWaiting):
        hf.run(parent_of(child(version="1"), is_async=is_async), id="r")
    hf.signal("r~1", "go", 1)
    newer = parent_of(child(version="2"), is_async=is_async)

    with pytest.raises(
        RunWaiting, match="started with version '1' of waiting, this is '2'"
    ) as held:
        hf.run(newer, id="r")
    assert "hf.resume('r~1', override=['version'])" in str(held.value)
    ways = [advice(way) for way in views.next_steps(hf.store, "r")]
    assert "holdfast resume FILE 'r~1' --override version" in ways

    assert 1 == hf.resume("r~1", override=["version"])
    assert 1 == hf.run(newer, id="r")


def test_a_child_run_that_is_too_old_holds_its_parent_until_a_person_overrides_it(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    parent = parent_of(waiting(checkpoint=Checkpoint(max_age=3600)))
    with Holdfast(SQLiteStore(tmp_path / "h.db", clock=clock.now)) as hf:
        with pytest.raises(RunWaiting):
            hf.run(parent, id="r")
        clock.advance(7200)

        with pytest.raises(RunWaiting, match="last activity was 7,200 s ago") as held:
            hf.run(parent, id="r")
        assert "hf.resume('r~1', override=['age'])" in str(held.value)
        with pytest.raises(RunWaiting, match="the signal 'go'"):
            hf.resume("r~1", override=["age"])
        hf.signal("r~1", "go", 1)

        assert 1 == hf.run(parent, id="r")


def test_a_failed_run_is_checked_before_it_is_resumed_and_not_before_its_failure_is_reported(
    tmp_path: Path,
) -> None:
    def failing(version: str) -> Any:
        @agent(name="failing", version=version, checkpoint=Checkpoint(max_age=3600))
        def body(run: Run) -> int:
            if version == "1":
                raise ValueError("the first version has a mistake")
            return 2

        return body

    clock = ManualClock()
    with Holdfast(SQLiteStore(tmp_path / "h.db", clock=clock.now)) as hf:
        with pytest.raises(RunFailed):
            hf.run(failing("1"), id="r")
        clock.advance(7200)
        with pytest.raises(RunFailed, match="the first version has a mistake"):
            hf.run(failing("2"), id="r")
        with pytest.raises(NotResumable, match="age check failed"):
            hf.resume("r")
        with pytest.raises(NotResumable, match="started with version '1' of failing, this is '2'"):
            hf.resume("r", override=["age"])
        assert "failed" == hf.get("r").status

        assert 2 == hf.resume("r", override=["age", "version"])


def looping(**options: Any) -> Any:
    @loop(max_iterations=9, name="waiting", **options)
    def body(run: Run, state: AgentState) -> AgentState:
        return state.to_done(run.wait_for("go"))

    return body


def answering(**options: Any) -> Any:
    @agent(name="ask")
    def ask(run: Run) -> Any:
        return run.wait_for("go")

    return LLMAgent("waiting", model=ScriptedModel(call("ask"), "1"), tools=[ask], **options)


@pytest.mark.parametrize(
    ("make", "given"), [(waiting, ()), (looping, ("go",)), (answering, ("go",))]
)
def test_a_run_of_a_version_that_its_agent_continues_is_resumed_here_and_by_workers(
    make: Any, given: Any, hf: Holdfast
) -> None:
    for run_id in ("here", "there"):
        with pytest.raises(RunWaiting):
            hf.run(make(version="1"), *given, id=run_id)
        (waits,) = [row.id for row in hf.runs(parent=run_id)] or [run_id]
        hf.signal(waits, "go", 1)

    hf.run(make(version="2", continues=("1",)), *given, id="here")
    hf.worker().run(once=True)

    assert ["completed"] * 2 == [hf.handle(run_id).status for run_id in ("here", "there")]


@pytest.mark.parametrize(
    ("strategy", "commits"),
    [
        ("every_step", ["call_succeeded", "call_succeeded", "iteration_ended"]),
        ("every_iteration", ["iteration_ended"]),
        ("on_state_change", []),
    ],
)
def test_a_model_agent_ends_an_iteration_with_each_reply_and_commits_by_its_strategy(
    strategy: Any, commits: list[str], tmp_path: Path
) -> None:
    """A turn that only reads, one that acts, and the answer."""
    names: list[str] = []

    @tool
    def act(idempotency_key: str = "") -> str:
        return "acted"

    script = ScriptedModel(call("think", text="x"), call("act"), "done")
    clerk = LLMAgent("clerk", model=script, tools=[think, act], checkpoint=strategy)
    with Holdfast(tmp_path / "h.db", options=Options(boundary=names.append)) as hf:
        assert "done" == hf.run(clerk, "go", id="r")
        assert 2 == hf.get("r").iteration
        assert hf.replay("r").reached_end

    answered, ended = commits[:1] * (strategy == "every_step"), commits[-1:]
    acted = ["call_started", "call_succeeded"]  # the intent takes the answer along
    assert [*commits, *answered, *acted, *ended, *answered, "run_completed"] == [
        name.removeprefix("after commit ") for name in names if name.startswith("after commit")
    ]


def test_a_cancelled_run_is_not_resumed_and_the_error_has_advice(hf: Holdfast) -> None:
    with pytest.raises(RunWaiting):
        hf.run(waiting(), id="r")
    hf.cancel("r")
    with pytest.raises(RunCancelled, match="cancelled"):
        hf.resume("r")

    with pytest.raises(NotResumable, match=r"status check failed: it was cancelled") as no:
        hf.resume("r")
    assert "hf.rerun('r')" in str(no.value)
