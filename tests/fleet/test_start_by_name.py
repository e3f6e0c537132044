"""Starting a run by its agent's name: without the agent's code, with the same outcome."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import pytest

from holdfast import (
    AgentState,
    AsyncHoldfast,
    Budget,
    Holdfast,
    InputConflict,
    InvalidInput,
    NotFound,
    Run,
    RunFailed,
    agent,
    control,
    loop,
    views,
)
from support.waiting import eventually


@agent(stages=("drafting",), deadline=300, budget=Budget(max_steps=9), version="2")
def recap(run: Run, to: str, copies: int = 1, tone: str | None = None) -> str:
    """Write a recap.

    Args:
        to: Whom it is for.
    """
    run.stage = "drafting"
    return f"{copies} for {to} ({tone})"


@agent
def strict(run: Run, count: Annotated[int, msgspec.Meta(ge=1)]) -> int:
    return count


@agent
def loose(run: Run, to: str, **more: int) -> dict[str, object]:
    return {"to": to, **more}


@loop(max_iterations=3)
def count(run: Run, state: AgentState) -> AgentState:
    return state.to_done("ten")


AGENTS = [recap, strict, loose, count]


@pytest.fixture
def hf(url: str) -> Iterator[Holdfast]:
    with Holdfast(url, agents=AGENTS) as hf:
        yield hf


def work(hf: Holdfast) -> None:
    hf.worker().run(once=True)


def test_a_worker_executes_a_run_that_was_started_by_name(hf: Holdfast) -> None:
    work(hf)
    row = control.start(hf.store, "recap", {"to": "Sam"}, id="r", by="Ann", why="asked")
    assert (row.status, row.code_version) == ("pending", "2")
    work(hf)
    assert hf.result("r") == "1 for Sam (None)"


def test_a_run_started_by_name_is_the_same_as_one_started_with_the_code(hf: Holdfast) -> None:
    hf.register()
    control.start(hf.store, "recap", {"to": "Sam"}, id="by-name")
    hf.start(recap, to="Sam", id="with-code")
    a, b = hf.get("by-name"), hf.get("with-code")
    for name in ("agent", "stages", "budget", "code_version", "is_loop", "status"):
        assert getattr(a, name) == getattr(b, name)
    assert a.deadline_at is not None and b.deadline_at is not None
    assert a.deadline_at - a.created_at == b.deadline_at - b.created_at == 300_000_000
    assert hf.value("by-name", a.input) == hf.value("with-code", b.input)


def test_the_same_id_and_input_is_the_same_run_and_another_input_conflicts(hf: Holdfast) -> None:
    hf.register()
    first = hf.start("recap", to="Sam", id="r")
    assert hf.start(recap, to="Sam", copies=1, id="r").id == first.id
    assert control.start(hf.store, "recap", {"to": "Sam", "copies": 1}, id="r").id == "r"
    assert len(hf.runs()) == 1
    with pytest.raises(InputConflict):
        hf.start("recap", to="Kim", id="r")
    with pytest.raises(InputConflict, match="agent"):
        hf.start("loose", to="Sam", id="r")


def test_an_input_that_the_schema_forbids_is_refused_before_anything_is_created(
    hf: Holdfast,
) -> None:
    hf.register()
    for agent_name, given, wrong in [
        ("recap", {}, "'to' is missing"),
        ("recap", {"to": 5}, "'to' is wrong"),
        ("recap", {"to": "Sam", "nope": 1}, "'nope' is not a parameter"),
        ("strict", {"count": 0}, "'count' is wrong"),
    ]:
        with pytest.raises(InvalidInput, match=wrong):
            control.start(hf.store, agent_name, given)
    with pytest.raises(InvalidInput, match="by name"):
        control.start(hf.store, "recap", ["Sam"])  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="by name too"):
        hf.start("recap", "Sam")
    assert hf.runs() == []


def test_an_input_that_the_code_no_longer_accepts_fails_the_run(
    url: str,
) -> None:
    @agent(name="job")
    def before(run: Run, a: int = 0) -> int:
        return a

    @agent(name="job")
    def after(run: Run, b: int) -> int:
        return b

    with Holdfast(url) as hf:
        hf.register(before)
        hf.start("job", a=1, id="r")
        seen: list[str] = []
        hf.worker(agents=[after], report=lambda said: seen.append(said.status)).run(once=True)
        with pytest.raises(RunFailed, match="'a' is not a parameter; 'b' is missing"):
            hf.result("r")
        assert seen == ["failed"]


def test_an_agent_with_keyword_arguments_gets_all_names(hf: Holdfast) -> None:
    hf.register()
    hf.start("loose", to="Sam", x=1, y=2, id="r")
    work(hf)
    assert hf.result("r") == {"to": "Sam", "x": 1, "y": 2}


def test_a_loop_is_started_by_name(hf: Holdfast) -> None:
    hf.register()
    hf.start("count", goal="to ten", id="r")
    assert hf.get("r").is_loop
    work(hf)
    assert hf.get("r").agent_state.goal == "to ten"  # type: ignore[union-attr]


def test_an_agent_that_is_not_registered_is_refused_with_those_that_are(hf: Holdfast) -> None:
    with pytest.raises(NotFound, match=r"none is registered\. A worker registers"):
        hf.start("recap", to="Sam")
    hf.register(recap)
    with pytest.raises(NotFound, match="registered: recap"):
        hf.start("recpa", to="Sam")
    with pytest.raises(
        NotFound, match="version '1' of agent 'recap' is not registered; registered: '2'"
    ):
        control.start(hf.store, "recap", {"to": "Sam"}, version="1")


def test_a_worker_registers_its_agents_when_it_starts(url: str) -> None:
    with Holdfast(url) as hf:
        worker = hf.worker(agents=[recap])
        thread = threading.Thread(target=worker.run)
        thread.start()
        eventually(lambda: [one.name for one in hf.agents()] == ["recap"])
        assert hf.start("recap", to="Sam").result(timeout=60) == "1 for Sam (None)"
        worker.stop()
        thread.join()


def test_the_known_agents_are_those_registered_and_those_with_runs(hf: Holdfast) -> None:
    hf.run(strict, count=3)
    hf.register(recap)
    known = {one.name: one for one in views.agents(hf.store)}
    assert list(known) == ["recap", "strict"]
    assert (known["recap"].is_registered, known["strict"].is_registered) == (True, False)
    said = known["recap"]
    assert (said.description, said.version, said.stages) == ("Write a recap.", "2", ("drafting",))
    assert said.parameters["properties"]["to"] == {
        "type": "string",
        "description": "Whom it is for.",
    }
    assert said.parameters["required"] == ["to"]


def test_of_several_versions_the_last_registered_is_started(
    url: str,
) -> None:
    @agent(name="job", version="1")
    def old(run: Run) -> str:
        return "old"

    @agent(name="job", version="2")
    def new(run: Run) -> str:
        return "new"

    with Holdfast(url) as hf:
        hf.register(old)
        hf.register(new)
        assert control.start(hf.store, "job").code_version == "2"
        assert control.start(hf.store, "job", version="1").code_version == "1"
        hf.register(old)
        assert hf.agents()[0].versions == ("1", "2")


def test_an_async_caller_starts_by_name_too(tmp_path: Path) -> None:
    async def main() -> str:
        async with AsyncHoldfast(tmp_path / "a.db", agents=[recap]) as hf:
            await hf.register()
            handle = await hf.start("recap", to="Sam", id="r")
            return str(handle.id)

    assert asyncio.run(main()) == "r"
