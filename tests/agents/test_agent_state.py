"""AgentState: typed, frozen to the bottom, kept without loss; every change is a new state."""

from __future__ import annotations

import copy
import math
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import AgentState, Budget, InvalidInput, InvalidTransition, Message, Phase, StatePatch
from holdfast.agents.state import Artifact, Fact, PlanStep, Role, ToolCall, WorkingMemory
from holdfast.core import jsonpatch, loop_state, values
from holdfast.core import patch as patches
from holdfast.core.agent_state import ALLOWED
from holdfast.core.state import RunState
from holdfast.core.values import Codec
from holdfast.errors import NotStorable

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | TEXT
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
TIMES = st.integers(0, 2**53)
SECONDS = st.floats(0, 1e6, allow_nan=False)


def several(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(strategy, max_size=2)


CALLS = st.builds(ToolCall, TEXT, TEXT, JSON, JSON, st.none() | TEXT, SECONDS)
MESSAGES = st.builds(Message, st.sampled_from(Role), JSON, TIMES, JSON, several(CALLS), TEXT)
FACTS = st.builds(Fact, TEXT, JSON, TEXT, TIMES)
ARTIFACTS = st.builds(Artifact, TEXT, TEXT, TEXT, TIMES, TEXT, TIMES, TIMES)
STEPS = st.builds(PlanStep, TEXT, TEXT)
NOTES = st.dictionaries(TEXT, JSON, max_size=3)
MEMORIES = st.builds(
    WorkingMemory,
    several(STEPS),
    several(FACTS),
    several(TEXT),
    NOTES,
    several(ARTIFACTS),
    several(TEXT),
    several(CALLS),
)
STATES = st.builds(
    AgentState,
    goal=TEXT,
    phase=st.sampled_from(Phase),
    iteration=st.integers(0, 9),
    messages=several(MESSAGES),
    memory=MEMORIES,
    constraints=NOTES,
    budget=st.builds(
        Budget, max_steps=st.none() | st.integers(0, 9), max_cost_usd=st.none() | SECONDS
    ),
    answer=JSON,
    error=st.none() | TEXT,
    session=TEXT,
    created_at=TIMES,
    updated_at=TIMES,
)
PATCHES = st.builds(
    StatePatch,
    several(FACTS),
    st.none() | several(STEPS),
    several(TEXT),
    several(TEXT),
    NOTES,
    several(ARTIFACTS),
    several(TEXT),
    several(TEXT),
)
CHANGES: st.SearchStrategy[Any] = st.one_of(
    st.just(lambda s: s.to_planning()),
    st.just(lambda s: s.to_executing()),
    st.just(lambda s: s.to_reflecting()),
    JSON.map(lambda answer: lambda s: s.to_done(answer)),
    TEXT.map(lambda why: lambda s: s.to_error(why)),
    several(TEXT).map(lambda steps: lambda s: s.with_plan(steps)),
    JSON.map(lambda result: lambda s: s.record(result, name="tool")),
    CALLS.map(lambda call: lambda s: s.record(call)),
    st.tuples(st.sampled_from(Role), JSON).map(lambda x: lambda s: s.with_message(*x)),
    st.tuples(TEXT, JSON).map(lambda x: lambda s: s.with_fact(*x, source="here")),
    st.tuples(TEXT, JSON).map(lambda x: lambda s: s.with_note(*x)),
    ARTIFACTS.map(lambda x: lambda s: s.with_artifact(x)),
    TEXT.map(lambda x: lambda s: s.with_question(x)),
    TEXT.map(lambda x: lambda s: s.with_question(x).without_question(x)),
    TEXT.map(lambda x: lambda s: s.with_flag(x)),
    PATCHES.map(lambda x: lambda s: s.patched(x)),
    TIMES.map(lambda at: lambda s: s.stamped(at)),
    st.integers(0, 99).map(lambda n: lambda s: s.at_iteration(n)),
)


# A whole state takes long to make up; each holds many parts, so that few states say much.
lean = settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow], deadline=None)


def changed(state: AgentState, change: Any) -> AgentState:
    """The state after a change, or as it was if the change is not allowed in its phase."""
    try:
        after: AgentState = change(state)
    except InvalidTransition:
        return state
    return after


def test_a_closed_question_is_not_open_any_more() -> None:
    asked = AgentState.begin("g").with_question("which?").with_question("when?")

    assert ("when?",) == asked.without_question("which?").memory.questions


@lean
@given(STATES)
def test_every_state_comes_back_equal(state: AgentState) -> None:
    """From its own JSON, through the codec of results and inputs, and as a part of something else."""
    assert state == AgentState.from_json(state.to_json())
    codec = Codec(AgentState)
    assert state == codec.decode(codec.encode(state))
    assert state == msgspec.convert(values.decode(state.stored()), AgentState)


@lean
@given(STATES, st.lists(CHANGES, max_size=6))
def test_a_change_never_changes_the_old_state(state: AgentState, changes: list[Any]) -> None:
    """Not its history, not its memory, nor anything inside them."""
    seen = []
    for change in changes:
        seen.append((state, state.to_json(), copy.deepcopy(msgspec.to_builtins(state))))
        state = changed(state, change)

    for before, as_json, as_values in seen:
        assert as_json == before.to_json()
        assert as_values == msgspec.to_builtins(before)


@lean
@given(STATES, st.lists(CHANGES, max_size=6))
def test_the_recorded_difference_of_an_iteration_restores_its_state(
    state: AgentState, changes: list[Any]
) -> None:
    """The delta between any two states, applied to the stored form of one, is that of the other."""
    after = state
    for change in changes:
        after = changed(after, change)

    stored = values.decode(loop_state.encode(loop_state.delta(state, after)))
    document = jsonpatch.apply(values.decode(state.stored()), stored)

    assert after == msgspec.convert(document, AgentState)
    assert values.decode(after.stored()) == document


@lean
@given(STATES, st.lists(PATCHES, max_size=4))
def test_patches_one_after_the_other_are_what_was_asked_for(
    state: AgentState, asked: list[StatePatch]
) -> None:
    """fold(patches) = state: on a working memory, on a run's state, and through their stored form."""
    memory, run = (
        state.memory,
        RunState(
            plan=state.memory.plan,
            facts=state.memory.facts,
            questions=state.memory.questions,
            notes=state.memory.notes,
            artifacts=state.memory.artifacts,
            flags=state.memory.flags,
        ),
    )
    facts, notes, plan = list(memory.facts), dict(memory.notes), memory.plan
    for patch in asked:
        stored = msgspec.json.decode(values.encode_struct(patch), type=StatePatch)
        assert patch == stored
        memory, run, state = (
            patches.apply(patch, memory),
            patches.apply(stored, run),
            state.patched(stored),
        )
        facts, notes = facts + list(patch.facts), {**notes, **patch.notes}
        plan = plan if patch.plan is None else patch.plan
        assert not set(patch.closed) & set(memory.questions) - set(patch.questions)
        assert set(patch.questions) <= set(memory.questions)
        assert set(patch.flags) <= set(memory.flags)

    assert memory == state.memory
    assert (tuple(facts), notes, plan) == (memory.facts, memory.notes, memory.plan)
    for name in ("plan", "facts", "questions", "notes", "artifacts", "flags"):
        assert getattr(memory, name) == getattr(run, name)


@pytest.mark.parametrize("here", Phase)
@pytest.mark.parametrize("there", [p for p in Phase if p is not Phase.IDLE])
def test_an_impossible_transition_names_both_phases_and_the_way_out(
    here: Phase, there: Phase
) -> None:
    state = AgentState(goal="g", phase=here)
    go: Any = getattr(state, f"to_{there.value}")
    args = ("why",) if there is Phase.ERROR else ()

    if there in ALLOWED[here]:
        assert there is go(*args).phase
    else:
        with pytest.raises(InvalidTransition) as refused:
            go(*args)
        said = str(refused.value)
        assert f"from {here.name} to {there.name}" in said
        assert all(phase.name in said for phase in ALLOWED[here])
        assert here is state.phase


def test_nothing_inside_a_state_can_be_changed_in_place() -> None:
    given = {"list": [1, {"deep": []}]}
    state = AgentState(goal="g", constraints=given).with_note("n", given).record(given)
    given["list"].append(2)

    assert {"list": [1, {"deep": []}]} == state.constraints == state.memory.notes["n"]
    for change in (
        lambda: state.constraints["list"].append(1),
        lambda: state.memory.notes.update(a=1),
        lambda: state.memory.tool_calls[0].result["list"][1]["deep"].append(1),
        lambda: setattr(state, "goal", "other"),
        lambda: setattr(state.memory, "plan", ()),
    ):
        with pytest.raises((TypeError, AttributeError)):
            change()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: AgentState(goal=5), "AgentState.goal must be text"),
        (lambda: AgentState(messages=["hello"]), r"AgentState.messages\[0\] must be a Message"),
        (lambda: AgentState(phase="resting"), "phases are idle, planning"),
        (lambda: AgentState(memory=WorkingMemory(facts=[1])), r"facts\[0\] must be a Fact"),
        (lambda: AgentState.begin(""), "a goal must be non-empty text"),
        (lambda: AgentState().with_message("boss", "hi"), "roles are system, user"),
        (lambda: AgentState().with_plan("one"), "not one text"),
        (lambda: AgentState().with_plan(["a"]).with_step("b", "done"), "'b' is not in the plan"),
        (lambda: AgentState().with_plan(["a"]).with_step("a", 3), "PlanStep.status must be text"),
        (lambda: AgentState().with_fact(1, 2), "Fact.key must be text, not 1"),
        (
            lambda: AgentState().record(1, name=None, arguments={}).record(ToolCall(7, "t")),
            "ToolCall.id",
        ),
        (lambda: ToolCall("1", "t", error=ValueError("no")), "ToolCall.error must be text or None"),
        (
            lambda: ToolCall("1", "t", duration=math.nan),
            "ToolCall.duration must be a finite number",
        ),
        (lambda: Message("user", "hi", time=1.5), "Message.time must be a whole number, not 1.5"),
        (lambda: AgentState().with_artifact(Artifact("a", bytes=True)), "Artifact.bytes must be"),
        (lambda: StatePatch(facts=[1]), r"StatePatch.facts\[0\]"),
        (lambda: StatePatch(flags="late"), "StatePatch.flags must be a list"),
    ],
)
def test_what_is_wrong_is_refused_when_it_is_made(make: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        make()


def test_what_cannot_be_kept_is_refused_with_its_path() -> None:
    with pytest.raises(NotStorable, match=r"Fact.value .*\$\[0\]"):
        Fact("k", [object()])
    with pytest.raises(InvalidInput, match="AgentState"):
        AgentState.from_json(b'{"goal": 5}')


def test_an_observation_is_text_for_a_model() -> None:
    assert "plain" == ToolCall("1", "t", result="plain").to_observation()
    assert '{"a":[1]}' == ToolCall("1", "t", result={"a": [1]}).to_observation()
    assert "error: no such file" == ToolCall("1", "t", error="no such file").to_observation()


def test_a_plan_shows_what_is_done_and_what_remains() -> None:
    state = (
        AgentState(goal="g").with_plan(["a", "b"]).with_step("a", "done").with_step("b", "doing")
    )

    assert (("a",), ("b",)) == (state.memory.completed, state.memory.pending)


def test_a_subclass_adds_fields_that_are_kept_and_frozen_too() -> None:
    class Mine(AgentState, frozen=True, omit_defaults=True):
        score: float = 0.0
        found: Any = ()
        names: tuple[str, ...] = ()

    state = Mine(goal="g", score=0.5, found=[1, [2]]).with_flag("f").to_planning()

    assert isinstance(state, Mine)
    assert state == Mine.from_json(state.to_json())
    with pytest.raises(TypeError):
        state.found.append(3)
    with pytest.raises(InvalidInput, match=r"Mine.score must be a finite number"):
        msgspec.structs.replace(state, score="high")
    with pytest.raises(InvalidInput, match=r"Mine.names: Expected `str`, got `int`"):
        msgspec.structs.replace(state, names=(1,))


def test_text_and_numbers_of_another_kind_are_kept_as_what_they_are() -> None:
    """An enum's member is its text, a whole number is a number: nothing comes back as something else."""
    call = ToolCall(Role.USER, "t", duration=2)

    assert (str, "user", float, 2.0) == (type(call.id), call.id, type(call.duration), call.duration)
