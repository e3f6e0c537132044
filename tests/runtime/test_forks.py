"""A fork of an agent that passes its run's id to its calls: what it inherited is replayed, what is new has
the fork's own id."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any

import pytest

from holdfast import (
    AgentState,
    AsyncRun,
    CallFailed,
    Diverged,
    Holdfast,
    LLMAgent,
    Question,
    Rejected,
    Run,
    RunFailed,
    RunWaiting,
    agent,
    loop,
    step,
    tool,
)
from holdfast.agents.models import ScriptedModel, call
from holdfast.core.ancestors import ForkAncestry


class World:
    """Tools that keep what they were called with."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.keys: list[str] = []
        self.fails = False

        @step
        def look(what: Any) -> str:
            self.calls.append(what)
            return "seen"

        @tool
        def send(what: Any, idempotency_key: str = "") -> str:
            if self.fails:
                raise ValueError("no such address")
            self.calls.append(what)
            self.keys.append(idempotency_key)
            return "sent"

        self.look, self.send = look, send


@pytest.fixture
def world() -> World:
    return World()


def agrees(hf: Holdfast, run_id: str) -> bool:
    replayed = hf.replay(run_id)
    return replayed.reached_end and replayed.diverged is None and hf.verify(run_id).ok


# ── calls ────────────────────────────────────────────────────────────────────────────────────


def test_a_fork_replays_calls_that_were_given_the_run_id_and_continues_with_its_own(
    home: Any, world: World
) -> None:
    @agent
    def main(run: Run) -> list[str]:
        first = world.look({"run": run.id, "n": 1})
        second = world.send([f"job-{run.id}", f"{run.id}~3", run.id])
        return [first, second, world.send({run.id: f"last of {run.id}"})]

    hf = home.open(main)
    hf.run(main, id="order-17")
    before = list(world.calls)

    hf.fork("order-17", 2, id="copy")

    assert hf.run(main, id="copy") == ["seen", "sent", "sent"]
    assert world.calls == [*before, {"copy": "last of copy"}]
    assert world.keys[-1].startswith("copy:3:send:")
    assert agrees(hf, "copy")


def test_a_fork_of_a_fork_replays_what_both_recorded(home: Any, world: World) -> None:
    """The ids that are made when none is given contain one another."""

    @agent
    def main(run: Run) -> list[str]:
        return [world.send(f"{n}-{run.id}") for n in range(4)]

    hf = home.open(main)
    hf.run(main, id="r")
    fork = hf.fork("r", 1)
    hf.run(main, id=fork.id)
    second = hf.fork(fork.id, 2)
    third = hf.fork(second.id, 2, id="last")
    del world.calls[:]

    hf.run(main, id=second.id)
    hf.run(main, id="last")

    assert world.calls == [f"{n}-{name}" for name in (second.id, third.id) for n in (2, 3)]
    assert agrees(hf, second.id)
    assert agrees(hf, "last")


@pytest.mark.parametrize("size", [10, 5_000, 100_000])
@pytest.mark.parametrize("kind", ["look", "send"])
def test_arguments_are_compared_however_the_log_keeps_them(
    home: Any, world: World, kind: str, size: int
) -> None:
    """Short ones in the event, long ones of a step as a digest, long ones of a tool in an artifact."""

    @agent
    def main(run: Run) -> list[str]:
        call = getattr(world, kind)
        return [call(f"{n}: run {run.id}. {'far off ' * (size // 8)}") for n in range(2)]

    hf = home.open(main)
    hf.run(main, id="r")
    hf.fork("r", 1, id="f")
    del world.calls[:]

    hf.run(main, id="f")

    assert [call[:9] for call in world.calls] == ["1: run f."]
    assert agrees(hf, "f")


def test_branches_and_children_of_a_fork_are_found_again(home: Any, world: World) -> None:
    @agent
    def child(run: Run, of: str) -> str:
        return world.send(f"{of} in {run.id}")

    @agent
    def main(run: Run) -> Any:
        def one(n: int) -> str:
            return world.look(f"{n}-{run.id}")

        return [*run.map(one, [1, 2]), child(run.id), world.send(run.id)]

    hf = home.open(main, child)
    hf.run(main, id="r")
    last = next(call.step for call in hf.get("r").calls if call.name == "child")
    hf.fork("r", last, id="f")
    del world.calls[:]

    assert hf.run(main, id="f") == ["seen", "seen", "sent", "sent"]

    assert world.calls == ["f"]
    assert agrees(hf, "f")


def test_a_fork_made_before_a_child_began_has_a_child_of_its_own(home: Any, world: World) -> None:
    @agent
    def child(run: Run, of: str) -> str:
        return world.send(f"{of} in {run.id}")

    @agent
    def main(run: Run) -> Any:
        return [world.look(run.id), child(run.id)]

    hf = home.open(main, child)
    hf.run(main, id="r")
    hf.fork("r", 1, id="f")
    hf.run(main, id="f")

    assert world.calls == ["r", "r in r~2", "f in f~2"]


def test_a_fork_of_a_resumed_run_finds_what_was_done_on_the_path_it_left(
    home: Any, world: World
) -> None:
    @agent
    def main(run: Run) -> list[str]:
        try:
            first = world.send(run.id)
        except CallFailed:
            world.look(f"failed: {run.id}")
            raise
        return [first, world.look(f"extra: {run.id}"), world.look(f"failed: {run.id}")]

    hf = home.open(main)
    world.fails = True
    with pytest.raises(RunFailed):
        hf.run(main, id="r")
    world.fails = False
    hf.resume("r")
    last = max(call.step for call in hf.get("r").calls)
    hf.fork("r", last, id="f")
    del world.calls[:]

    assert hf.run(main, id="f") == ["sent", "seen", "seen"]
    assert world.calls == []


# ── what still diverges ──────────────────────────────────────────────────────────────────────


def test_nothing_but_the_id_may_differ_in_a_fork(home: Any, world: World) -> None:
    version = ["old"]

    @agent
    def main(run: Run) -> Any:
        return [world.look(f"{version[0]} {run.id}"), world.look(2)]

    hf = home.open(main)
    hf.run(main, id="r")
    hf.fork("r", 1, id="f")
    version[0] = "new"

    with pytest.raises(Diverged):
        hf.run(main, id="f")
    assert len(world.calls) == 2


def test_a_number_is_not_an_id(home: Any, world: World) -> None:
    @agent
    def main(run: Run) -> Any:
        return [world.look({"n": int(run.id)}), world.look(2)]

    hf = home.open(main)
    hf.run(main, id="1")
    hf.fork("1", 1, id="2")

    with pytest.raises(Diverged, match="a fork of '1'"):
        hf.run(main, id="2")


def test_what_a_fork_recorded_itself_is_compared_exactly(home: Any, world: World) -> None:
    use_origin = [False]

    @agent
    def main(run: Run) -> Any:
        first = world.look(run.id)
        second = world.look(run.origin_id if use_origin[0] else run.id)
        return [first, second, run.wait_for("go")]

    hf = home.open(main)
    with pytest.raises(RunWaiting):
        hf.run(main, id="r")
    hf.fork("r", 1, id="f")
    with pytest.raises(RunWaiting):
        hf.run(main, id="f")
    use_origin[0] = True
    hf.signal("f", "go")

    with pytest.raises(Diverged):
        hf.run(main, id="f")


def test_a_hash_of_the_id_diverges_and_the_error_names_the_id_that_forks_share(
    home: Any, world: World
) -> None:
    of = ["id"]

    @agent
    def main(run: Run) -> Any:
        name = hashlib.sha256(getattr(run, of[0]).encode()).hexdigest()
        return [world.send(name), world.send("second")]

    hf = home.open(main)
    hf.run(main, id="r")
    hf.fork("r", 1, id="f")
    with pytest.raises(Diverged, match=r"fork of 'r' and has its own id(.|\n)*run\.origin_id"):
        hf.run(main, id="f")
    of[0] = "origin_id"

    assert hf.run(main, id="f") == ["sent", "sent"]
    assert len(world.calls) == 3


def test_the_error_of_a_run_that_is_not_a_fork_does_not_mention_forks(
    home: Any, world: World
) -> None:
    version = ["old"]

    @agent
    def main(run: Run) -> Any:
        return [world.look(version[0]), run.wait_for("go")]

    hf = home.open(main)
    with pytest.raises(RunWaiting):
        hf.run(main, id="r")
    version[0] = "new"
    hf.signal("r", "go")

    with pytest.raises(Diverged) as raised:
        hf.run(main, id="r")
    assert "origin_id" not in str(raised.value)


def test_a_run_that_is_not_a_fork_is_its_own_origin(home: Any, world: World) -> None:
    @agent
    def main(run: Run) -> list[str]:
        world.look("x")
        return [run.id, run.origin_id]

    hf = home.open(main)
    assert hf.run(main, id="r") == ["r", "r"]
    hf.fork("r", 1, id="f")
    assert hf.run(main, id="f") == ["f", "r"]
    hf.fork("f", 1, id="g")
    assert hf.run(main, id="g") == ["g", "r"]


# ── waits ────────────────────────────────────────────────────────────────────────────────────


def test_waits_whose_names_have_the_run_id_are_found_again(home: Any, world: World) -> None:
    @agent
    def main(run: Run) -> Any:
        paid = f"paid-{run.id}"
        which = run.wait_any(paid, f"refused-{run.id}")
        assert which is not None
        answer = run.ask(f"Ship {run.id}?") if which[0] == paid else "not asked"
        return [
            answer,
            run.wait_any(Question(f"Sure about {run.id}?")),
            world.look(1),
            world.look(2),
        ]

    hf = home.open(main)
    with pytest.raises(RunWaiting):
        hf.run(main, id="r")
    hf.signal("r", "paid-r", 7)
    for answer in ("yes", "sure"):
        with pytest.raises(RunWaiting):
            hf.run(main, id="r")
        hf.answer("r", answer)
    assert hf.run(main, id="r") == ["yes", ["Sure about r?", "sure"], "seen", "seen"]
    hf.fork("r", 1, id="f")

    assert hf.run(main, id="f") == ["yes", ["Sure about f?", "sure"], "seen", "seen"]


@pytest.mark.parametrize("kind", ["signal", "question", "choice"])
def test_an_open_wait_that_names_the_run_is_begun_again_by_the_fork(
    home: Any, world: World, kind: str
) -> None:
    @agent
    def main(run: Run) -> Any:
        def one(n: int) -> Any:
            if n:
                return world.look("beside")
            if kind == "signal":
                return run.wait_for(f"paid-{run.id}")
            if kind == "question":
                return run.ask(f"Ship {run.id}?")
            return run.wait_any("other", Question(f"Ship {run.id}?"))

        return run.map(one, [0, 1], threads=1)

    hf = home.open(main)
    with pytest.raises(RunWaiting):
        hf.run(main, id="one")
    hf.fork("one", 1, id="two")
    with pytest.raises(RunWaiting):
        hf.run(main, id="two")
    if kind == "signal":
        hf.signal("two", "paid-two", "yes")
    else:
        assert [w.name for w in hf.get("two").waits][-1] == "Ship two?"
        hf.answer("two", "yes", hf.get("two").waits[-1].id)

    result = hf.run(main, id="two")

    assert json.dumps(result[0]).count("yes") == 1
    assert world.calls == ["beside"]


# ── keys and approvals ───────────────────────────────────────────────────────────────────────


def test_a_failed_call_that_a_fork_inherited_is_tried_again_under_the_forks_own_key(
    home: Any, world: World
) -> None:
    @agent
    def main(run: Run) -> Any:
        return world.send(run.id)

    hf = home.open(main)
    world.fails = True
    with pytest.raises(RunFailed):
        hf.run(main, id="r")
    hf.fork("r", 1, id="f")
    with pytest.raises(RunFailed):
        hf.run(main, id="f")
    world.fails = False

    assert hf.resume("f") == "sent"
    assert world.calls == ["f"]
    assert world.keys[0].startswith("f:1:send:")
    assert agrees(hf, "f")


def test_an_approval_of_a_call_that_failed_does_not_count_in_a_fork(
    home: Any, world: World
) -> None:
    """It was given for the bytes of the other run's call."""

    @agent(approve=("external_action",))
    def main(run: Run) -> Any:
        return world.send(run.id)

    hf = home.open(main)
    world.fails = True
    with pytest.raises(RunWaiting):
        hf.run(main, id="r")
    hf.approve("r")
    with pytest.raises(RunFailed):
        hf.run(main, id="r")
    hf.fork("r", 1, id="f")
    with pytest.raises(RunFailed):
        hf.run(main, id="f")
    world.fails = False

    with pytest.raises(RunWaiting, match="approval of send"):
        hf.resume("f")
    assert world.calls == []
    hf.approve("f")
    assert hf.run(main, id="f") == "sent"
    assert world.calls == ["f"]


def test_a_rejection_is_inherited_as_the_outcome_of_its_call(home: Any, world: World) -> None:
    @agent(approve=("external_action",))
    def main(run: Run) -> Any:
        try:
            return world.send(run.id)
        except Rejected:
            return world.look(f"rejected: {run.id}")

    hf = home.open(main)
    with pytest.raises(RunWaiting):
        hf.run(main, id="r")
    hf.reject("r")
    assert hf.run(main, id="r") == "seen"
    hf.fork("r", 1, id="f")
    del world.calls[:]

    assert hf.run(main, id="f") == "seen"
    assert world.calls == ["rejected: f"]


# ── async ────────────────────────────────────────────────────────────────────────────────────


def test_an_async_agents_fork_replays_its_calls_too(home: Any) -> None:
    calls: list[str] = []

    @step
    async def look(what: str) -> str:
        calls.append(what)
        return "seen"

    @agent
    async def main(run: AsyncRun) -> list[str]:
        async def one(n: int) -> str:
            return await look(f"{n}-{run.id}")

        return [*await run.map(one, [1, 2]), await look(run.id)]

    hf = home.open(main)
    hf.run(main, id="r")
    hf.fork("r", 2, id="f")
    del calls[:]

    hf.run(main, id="f")

    assert calls == ["f"]


def test_an_async_agent_asks_again_in_a_fork_next_to_a_task_whose_call_it_inherited(
    home: Any,
) -> None:
    calls: list[str] = []

    @step
    async def look(what: str) -> str:
        calls.append(what)
        return "seen"

    @agent
    async def main(run: AsyncRun) -> list[Any]:
        beside = asyncio.create_task(look(f"beside {run.id}"))
        return [await run.ask(f"Ship {run.id}?"), await beside]

    hf = home.open(main)
    with pytest.raises(RunWaiting):
        hf.run(main, id="one")
    hf.fork("one", 1, id="two")
    with pytest.raises(RunWaiting, match="Ship two"):
        hf.run(main, id="two")
    hf.answer("two", "yes")

    assert hf.run(main, id="two") == ["yes", "seen"]
    assert calls == ["beside one"]


# ── comparing texts ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("recorded", "own", "expected"),
    [
        ("r", "r~2", True),
        ("r~2", "r", False),
        ("rr", "r~2r~2", True),
        ("r~2", "r~2", True),
        ("xrx", "xr~2x", True),
        ("xrx", "xr~2y", False),
        ("", "", True),
        ("", "r~2", False),
        ("far", "far", True),
        ("far", "fa", False),
        ("a-r", "b-r~2", False),
        ("r-q", "r~2-r~2", True),
    ],
)
def test_texts_are_the_same_if_they_differ_only_in_an_ancestors_id(
    recorded: str, own: str, expected: bool
) -> None:
    lineage = ForkAncestry("r~2", ("q", "r"), 5)
    assert lineage.is_same_text(recorded, own) is expected


def test_values_are_the_same_only_if_their_types_are() -> None:
    lineage = ForkAncestry("2", ("1",), 5)
    same, other = lineage.is_same_value, object()
    assert same({"1": ["1", None, True]}, {"2": ["2", None, True]})
    assert not any(
        same(a, b)
        for a, b in [
            (1, 2),
            (1, "1"),
            ("1", 1),
            (True, 1),
            (1, 1.0),
            ([], {}),
            ({}, []),
            (["1"], ["2", "2"]),
            ({"1": 1}, {"2": 2}),
            ({"a": "1"}, {"b": "2"}),
            (None, 0),
            (other, "1"),
        ]
    )


def test_a_digest_is_found_if_the_id_is_a_word_or_if_it_is_everywhere() -> None:
    from holdfast.core.values import canonical, digest

    lineage = ForkAncestry("f", ("q", "r"), 5)
    for recorded, own in (
        ("run r is far off", "run f is far off"),
        ("job7r", "job7f"),
        ({"q": ["q"]}, {"f": ["f"]}),
    ):
        wanted = digest(canonical(recorded))
        assert wanted in set(lineage.possible_digests(canonical(own)))
    assert not list(lineage.possible_digests(b'"nothing"'))


# ── model loops and loops ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size", [10, 6_000])
def test_a_fork_of_a_model_agent_whose_instructions_name_the_run_asks_only_what_is_new(
    home: Any, world: World, size: int
) -> None:
    """Long prompts are in the log by their digest only; its messages hold the other run's id."""
    model = ScriptedModel(call("send", what="one"), "Done.")
    names = LLMAgent(
        "names",
        model=model,
        tools=[world.send],
        instructions="You are run {run.id}. " + "Be brief. " * (size // 10),
    )
    hf = home.open(names)
    hf.run(names, "go", id="order-17")
    hf.fork("order-17", 2, id="copy")
    del world.calls[:]

    assert hf.run(names, "go", id="copy") == "Done."

    assert world.calls == []
    assert agrees(hf, "copy")
    assert [c.name for c in hf.get("copy").calls] == ["model", "send", "model"]


def test_a_fork_of_a_loop_that_passes_its_run_id_continues_with_its_own(
    home: Any, world: World
) -> None:
    @loop(max_iterations=9)
    def main(run: Run, state: AgentState) -> AgentState:
        world.look(f"a{state.iteration} {run.id}")
        world.look(f"b{state.iteration} {run.id}")
        return state.to_done("enough") if state.iteration == 3 else state

    hf = home.open(main)
    hf.run(main, "go", id="r")
    before = [text.removesuffix(" r") for text in world.calls]
    hf.fork("r", 3, id="f")
    del world.calls[:]

    hf.resume("f")

    assert world.calls == [f"{text} f" for text in before[3:]]
    assert agrees(hf, "f")
