"""What a state demands (approval, budgets) holds for the run, and its canonical JSON is read and written whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    AgentState,
    Budget,
    Holdfast,
    InvalidInput,
    LLMAgent,
    Phase,
    Run,
    RunWaiting,
    agent,
    loop,
    step,
    tool,
)
from holdfast.agents.models import ScriptedModel, call
from holdfast.agents.state import Artifact, Fact, PlanStep, ToolCall

CANONICAL: dict[str, Any] = {
    "goal": "Move the billing service to the new cluster",
    "constraints": {
        "human_in_the_loop": {"required_for_risk_levels": ["write_local", "external_action"]}
    },
    "budget": {
        "max_steps": 20,
        "max_wall_time_ms": 300000,
        "max_llm_tokens": 200000,
        "max_artifact_bytes_in_context": 8000,
    },
    "plan": ["Check status", "Collect config", "Apply changes", "Verify"],
    "known_facts": [{"key": "service", "value": "billing", "source": "user"}],
    "open_questions": ["Which namespace?"],
    "artifacts": [
        {
            "artifact_id": "log_17",
            "type": "tool_result.logs",
            "summary": "nginx error log",
            "bytes": 48231,
        }
    ],
    "risk_flags": ["budget_pressure"],
}
"""As the mission gives it."""


def read(document: Any) -> AgentState:
    return AgentState.from_json(json.dumps(document).encode())


def written(state: AgentState) -> Any:
    return json.loads(state.to_json())


# ── canonical JSON ───────────────────────────────────────────────────────────────────────────


def test_the_canonical_json_is_read_whole_and_written_back() -> None:
    state = read(CANONICAL)

    assert CANONICAL == written(state)
    assert Budget(20, 300.0, 200_000, None, 8000) == state.budget
    assert ("Check status", "Collect config", "Apply changes", "Verify") == state.memory.pending
    assert (Fact("service", "billing", "user"),) == state.memory.facts
    assert ("Which namespace?",) == state.memory.questions
    [artifact] = state.memory.artifacts
    assert ("log_17", "tool_result.logs", 48231) == (artifact.id, artifact.type, artifact.bytes)
    assert ("budget_pressure",) == state.memory.flags
    assert ("write_local", "external_action") == state.required_approvals


def test_our_own_constraints_are_written_next_to_it_and_nothing_is_lost() -> None:
    state = (
        read(CANONICAL)
        .to_planning()
        .with_step("Check status", "done")
        .with_message("user", "Go on")
        .with_note("seen", ["a"])
        .with_fact("namespace", "prod")
        .with_artifact(Artifact("df.txt", "text", "0a1b", 12, "disk", 3))
        .with_artifact(Artifact("only a name"))
        .record(ToolCall("1", "check", {"x": 1}, "ok"))
        .to_executing()
        .stamped(1_700_000_000_000_000)
        .to_done({"moved": True})
    )

    assert state == AgentState.from_json(state.to_json())
    document = written(state)
    assert CANONICAL["plan"] == document["plan"]
    assert ["done", "pending", "pending", "pending"] == document["plan_status"]
    assert "0a1b" == document["artifacts"][1]["artifact_id"]


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"gaol": "x"}, r"\$\.gaol"),
        ({"budget": {"max_stepps": 3}}, r"\$\.budget\.max_stepps"),
        ({"known_facts": [{"key": "a", "value": 1, "sauce": "x"}]}, r"\$\.known_facts\[0\]\.sauce"),
        ({"artifacts": [{"artifact_id": "a", "size": 1}]}, r"\$\.artifacts\[0\]\.size"),
        ({"memory": {"nots": {}}}, r"\$\.memory\.nots"),
        ({"messages": [{"role": "user", "text": "x"}]}, r"\$\.messages\[0\]\.text"),
        ({"constraints": {"human_in_the_loop": {"for": []}}}, "human_in_the_loop"),
        (
            {"constraints": {"human_in_the_loop": {"required_for_risk_levels": ["external"]}}},
            r"required_for_risk_levels\[0\].*'external'",
        ),
        ({"constraints": {"human_in_the_loop": {"required_for_risk_levels": "read"}}}, "list"),
        ({"known_facts": [{"key": 5, "value": 1}]}, r"\$\.known_facts\[0\]\.key"),
        ({"open_questions": "why?"}, r"\$\.open_questions"),
        ({"budget": {"max_wall_time_ms": "long"}}, r"\$\.budget\.max_wall_time_ms"),
        ({"memory": {"plan": []}, "plan": []}, r"\$\.plan.*\$\.memory\.plan"),
        ({"artifacts": [{"summary": "no name"}]}, r"\$\.artifacts\[0\]"),
    ],
)
def test_what_it_does_not_know_is_refused_with_its_path(change: Any, path: str) -> None:
    with pytest.raises(InvalidInput, match=path) as refused:
        read({**CANONICAL, **change})
    assert "stored" not in str(refused.value)  # it was read


def test_other_constraints_are_the_users_own() -> None:
    state = read({"goal": "x", "constraints": {"region": "eu", "max_pods": 3}})
    assert {"region": "eu", "max_pods": 3} == dict(state.constraints)
    assert () == state.required_approvals


def test_the_stored_form_is_read_too() -> None:
    """As it is in logs, and as `to_json` wrote it before."""
    state = AgentState.begin("x").with_plan([PlanStep("a", "doing")]).with_fact("k", 1)
    assert state == AgentState.from_json(state.stored())


class Mine(AgentState, frozen=True):
    plan: str = "mine"
    score: int = 0


def test_a_field_of_a_subclass_keeps_its_name() -> None:
    state = Mine.begin("x", score=3, plan="own").with_plan(["a"])
    assert state == Mine.from_json(state.to_json())
    assert ("own", 3) == (written(state)["plan"], written(state)["score"])
    with pytest.raises(InvalidInput, match=r"\$\.score"):
        AgentState.from_json(b'{"goal": "x", "score": 3}')


# ── approval ─────────────────────────────────────────────────────────────────────────────────

sent: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_sent() -> None:
    sent.clear()


@tool(risk="external_action")
def send(text: str, idempotency_key: str = "") -> str:
    sent.append(text)
    return "sent"


@tool(risk="write_local")
def save(text: str, idempotency_key: str = "") -> str:
    sent.append(text)
    return "saved"


@step
def look() -> str:
    return "seen"


def demanding(*levels: str) -> dict[str, Any]:
    return {"human_in_the_loop": {"required_for_risk_levels": list(levels)}}


@loop(max_iterations=9)
def mover(run: Run, state: AgentState) -> AgentState:
    match state.phase:
        case Phase.PLANNING:
            return state.record(look(), name="look").to_executing()
        case Phase.EXECUTING:
            return state.record(save("config"), name="save").to_reflecting()
        case _:
            return state.record(send("moved"), name="send").to_done("moved")


@pytest.mark.parametrize("checkpoint", ["every_step", "every_iteration", "on_state_change"])
def test_a_risk_level_that_the_state_names_needs_a_person(checkpoint: Any, tmp_path: Path) -> None:
    main = loop(max_iterations=9, checkpoint=checkpoint, name="mover")(mover.__wrapped__)  # type: ignore[attr-defined]
    first = AgentState.begin("Move it", constraints=demanding("external_action"))
    with Holdfast(tmp_path / "h.db") as hf, pytest.raises(RunWaiting, match="approval of send"):
        hf.run(main, first, id="r")
    assert ["config"] == sent

    with Holdfast(tmp_path / "h.db") as hf:
        hf.approve("r", by="ann")
        assert "moved" == hf.run(main, first, id="r").answer
        assert hf.replay("r").reached_end
    assert ["config", "moved"] == sent


def test_what_the_agent_and_the_state_demand_is_added_up(hf: Holdfast) -> None:
    main = loop(max_iterations=9, name="mover", approve=["write_local"])(mover.__wrapped__)  # type: ignore[attr-defined]
    first = AgentState.begin("Move it", constraints=demanding("external_action"))
    for name in ("save", "send"):
        with pytest.raises(RunWaiting, match=f"approval of {name}"):
            hf.run(main, first, id="r")
        hf.approve("r", by="ann")
    assert "moved" == hf.run(main, first, id="r").answer


def test_a_step_needs_approval_if_the_state_requires_it_for_reads(hf: Holdfast) -> None:
    first = AgentState.begin("Move it", constraints=demanding("read"))
    with pytest.raises(RunWaiting, match="approval of look"):
        hf.run(mover, first, id="r")


def test_a_patch_from_outside_can_demand_a_person_from_the_next_iteration_on(hf: Holdfast) -> None:
    @loop(max_iterations=9)
    def patient(run: Run, state: AgentState) -> AgentState:
        if state.iteration == 1:
            run.wait_for("go")
            return state
        return state.record(send("x")).to_executing().to_done()

    with pytest.raises(RunWaiting):
        hf.run(patient, "Go", id="r")
    value = demanding("external_action")
    hf.patch("r", [{"op": "replace", "path": "/constraints", "value": value}])
    hf.signal("r", "go")
    with pytest.raises(RunWaiting, match="approval of send"):
        hf.run(patient, "Go", id="r")
    assert [] == sent


# ── budgets ──────────────────────────────────────────────────────────────────────────────────


def test_a_run_knows_the_budget_of_its_loops_state(hf: Holdfast) -> None:
    seen: list[Any] = []

    @loop(max_iterations=9, budget=Budget(max_steps=50, max_llm_tokens=1000))
    def main(run: Run, state: AgentState) -> AgentState:
        look()
        seen.append((run.budget.limits, run.budget.left["max_steps"]))
        return state.to_executing() if state.iteration == 1 else state.to_done()

    hf.run(main, AgentState.begin("x", budget=Budget(max_steps=20)), id="r")
    limits = {"max_steps": 20, "max_llm_tokens": 1000}
    assert [(limits, 19), (limits, 18)] == seen


def test_an_agent_under_budget_pressure_sees_the_flag_and_so_do_views(hf: Holdfast) -> None:
    seen: list[Any] = []

    @agent(budget=Budget(max_steps=5))
    def main(run: Run) -> None:
        for _ in range(4):
            look()
            seen.append(run.flags)

    hf.run(main, id="r")
    assert [(), (), (), ("budget_pressure",)] == seen
    assert ("budget_pressure",) == hf.get("r").flags
    assert () == hf.at("r", step=3).flags
    seen.clear()
    assert hf.replay("r").reached_end
    assert [(), (), (), ("budget_pressure",)] == seen


def test_a_loop_under_budget_pressure_finds_the_flag_in_its_state(hf: Holdfast) -> None:
    seen: list[Any] = []

    @loop(max_iterations=9)
    def main(run: Run, state: AgentState) -> AgentState:
        look()
        seen.append(state.memory.flags)
        return state if state.iteration < 5 else state.to_executing().to_done()

    hf.run(main, AgentState.begin("x", budget=Budget(max_steps=5)), id="r")
    assert [(), (), (), (), ("budget_pressure",)] == seen
    assert ["budget_pressure"] == written(hf.get("r").agent_state)["risk_flags"]
    assert hf.replay("r").reached_end


def test_tokens_of_a_model_raise_the_flag(hf: Holdfast) -> None:
    model = ScriptedModel(call("look"), "Done.", tokens_per_turn=40)
    main = LLMAgent("m", model=model, tools=[look], budget=Budget(max_llm_tokens=100))
    hf.run(main, "Go", id="r")
    assert ("budget_pressure",) == hf.get("r").flags
