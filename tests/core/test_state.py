"""State is the fold of the log, whichever way the log is cut."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from holdfast.core import events as e
from holdfast.core import log, snapshot, values
from holdfast.core.events import ErrorInfo, Event, Usage, Value
from holdfast.core.fold import fold
from holdfast.core.log import Record
from holdfast.core.state import RunState

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "$blob", "$dict"]), inner, max_size=3)
    ),
    max_leaves=6,
)
KEYS = st.sampled_from(["x", "y", "z"])
PLACES = {"branch": st.sampled_from(["", "0-1"]), "index": st.integers(0, 3)}
NOTED = {"branch": st.sampled_from(["", "0-1"]), "after": st.integers(0, 3)}


def inline(data: Any) -> Value:
    return Value(json=Raw(values.encode(data)))


VALUES = JSON.map(inline) | st.builds(lambda n: Value(blob=f"hash{n}", bytes=n), st.integers(0, 9))
ERRORS = st.builds(ErrorInfo, type=st.just("OSError"), message=st.text(max_size=5, alphabet="abc"))
STEPS = st.integers(1, 6)
NAMES = st.sampled_from(["draft", "send"])

PATCHES = st.sampled_from(
    [
        inline({"facts": [{"key": "k", "value": [1]}], "notes": {"a": {}}, "flags": ["f", "g"]}),
        inline({"plan": [{"name": "p"}], "questions": ["a", "b"], "cleared": ["f"]}),
        inline({"closed": ["a"], "artifacts": [{"name": "x"}]}),
        inline({"facts": 7}),  # a foreign log may hold anything
        inline({"unknown": 1}),
    ]
)
OPERATIONS = st.sampled_from(
    [
        inline([{"op": "add", "path": "/state/x", "value": {"$blob": ["h", 3]}}]),
        inline([{"op": "add", "path": "/facts/-", "value": {"key": "k", "value": 2}}]),
        inline([{"op": "remove", "path": "/state/a"}]),
        inline([{"op": "replace", "path": "/flags", "value": 5}]),
        inline("nonsense"),
    ]
)
DELTAS = st.sampled_from(
    [
        inline([{"op": "add", "path": "/messages/-", "value": {"role": "user", "$blob": 1}}]),
        inline([{"op": "replace", "path": "/goal", "value": "other"}]),
        inline([{"op": "remove", "path": "/nothing"}]),
    ]
)
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(e.RunClaimed, worker=KEYS),
    st.builds(e.RunSuspended, waiting_for=KEYS, wake_at=st.none() | st.integers(0, 99)),
    st.builds(e.RunCompleted, result=VALUES),
    st.builds(e.RunFailure, error=ERRORS, step=STEPS),
    st.builds(e.RunCancellation, by=KEYS),
    st.builds(e.RunReopened),
    st.builds(e.RunRestarted),
    st.builds(e.StepsAccepted),
    st.builds(e.LimitsChanged, deadline_at=st.none() | st.integers(0, 99)),
    st.builds(e.RunPaused),
    st.builds(e.RunQuarantined, reason=KEYS),
    st.builds(e.CancelRequested),
    st.builds(e.UndoRequested),
    st.builds(e.UndoStarted, reason=KEYS),
    st.builds(
        e.CallStarted,
        **PLACES,
        step=STEPS,
        name=NAMES,
        effect=st.sampled_from(["once", "keyed"]),
        key=KEYS,
        digest=KEYS,
        args=VALUES,
        attempt=st.integers(1, 3),
        undoable=st.booleans(),
        undoes=st.integers(0, 3),
    ),
    st.builds(
        e.CallSucceeded,
        **PLACES,
        step=STEPS,
        name=NAMES,
        result=VALUES,
        digest=st.just("") | KEYS,
        attempt=st.integers(1, 3),
        usage=st.none() | st.builds(Usage, input_tokens=st.integers(0, 9)),
    ),
    st.builds(
        e.CallFailure,
        **PLACES,
        step=STEPS,
        name=NAMES,
        error=ERRORS,
        attempt=st.integers(1, 3),
        retry_at=st.none() | st.integers(0, 99),
    ),
    st.builds(e.CallDoubted, **PLACES, step=STEPS, name=NAMES),
    st.builds(
        e.CallResolved,
        **PLACES,
        step=STEPS,
        name=NAMES,
        how=st.sampled_from(["done", "failed", "retry"]),
    ),
    st.builds(
        e.CallEvidence,
        step=STEPS,
        name=NAMES,
        key=KEYS,
        digest=KEYS,
        worker=KEYS,
        epoch=st.just(1),
        outcome=KEYS,
    ),
    st.builds(e.WaitBegan, **PLACES, wait=st.sampled_from(["timer", "approval"]), name=KEYS),
    st.builds(e.TimeoutFired, **PLACES, within_us=st.integers(0, 9)),
    st.builds(e.WaitEnded, **PLACES, wait=st.just("timer"), outcome=KEYS, source=st.integers(0, 9)),
    st.builds(e.SignalReceived, id=KEYS, name=KEYS, value=VALUES),
    st.builds(
        e.ItemPut,
        collection=KEYS,
        key=KEYS,
        number=st.integers(1, 9),
        value=VALUES,
        adds=st.booleans(),
    ),
    st.builds(e.ApprovalDecided, **PLACES, approved=st.booleans()),
    st.builds(e.AnswerGiven, **PLACES, value=VALUES),
    st.builds(
        e.StateChanged,
        **NOTED,
        op=st.sampled_from(["set", "increment", "append", "delete"]),
        key=KEYS,
        value=VALUES,
    ),
    st.builds(
        e.StatePatched, changes=KEYS.map(lambda k: inline([{"op": "set", "key": k, "value": [1]}]))
    ),
    st.builds(e.StatePatched, changes=st.just(inline([])), id=KEYS, patch=PATCHES),
    st.builds(e.StatePatched, changes=st.just(inline([])), id=KEYS, operations=OPERATIONS),
    st.builds(e.KnowledgePatched, **NOTED, patch=PATCHES),
    st.builds(
        e.IterationEnded,
        index=STEPS,
        iteration=STEPS,
        state=st.just(inline({"goal": "g", "messages": []})),
    ),
    st.builds(
        e.IterationEnded,
        index=STEPS,
        iteration=STEPS,
        phase=KEYS,
        delta=DELTAS,
        taken=st.lists(KEYS, max_size=1).map(tuple),
        refused=st.lists(KEYS, max_size=1).map(tuple),
    ),
    st.builds(e.ValueRecorded, **NOTED, name=KEYS, value=VALUES),
    st.builds(e.StageEntered, **NOTED, stage=KEYS),
    st.builds(e.PlanMade, **NOTED, steps=st.lists(KEYS, max_size=3).map(tuple)),
    st.builds(e.PlanStepBegan, **NOTED, step=KEYS),
    st.builds(e.PlanStepEnded, **NOTED, step=KEYS),
    st.builds(e.DecisionMade, **NOTED, name=KEYS, choice=VALUES),
    st.builds(e.FactLearned, **NOTED, key=KEYS, value=VALUES),
    st.builds(e.QuestionRaised, **NOTED, question=KEYS),
    st.builds(e.QuestionClosed, **NOTED, question=KEYS),
    st.builds(e.NoteTaken, **NOTED, key=KEYS, value=VALUES),
    st.builds(e.MessageAdded, **NOTED, role=KEYS, content=VALUES, metadata=st.none() | VALUES),
    st.builds(e.ArtifactSaved, **NOTED, name=KEYS, type=KEYS, blob=KEYS, bytes=st.integers(0, 9)),
    st.builds(e.ContextShown, **NOTED, slice=VALUES),
    st.builds(e.LogWritten, **NOTED, level=KEYS, text=KEYS),
)


def records(events: list[Event]) -> list[Record]:
    is_loop = any(isinstance(event, e.IterationEnded) for event in events[:2])
    created = e.RunCreated(run_id="r", agent="a", input=inline({"n": 1}), loop=is_loop)
    return log.seal(log.origin("r"), [created, *events], epoch=1, time=5)[1]


def test_the_corpus_holds_every_kind_of_event() -> None:
    kinds = {s.wrapped_strategy.target.kind for s in EVENTS.original_strategies}  # type: ignore[attr-defined]

    assert kinds == set(e.ALL) - {"run_created"}


@given(st.lists(EVENTS, max_size=25), st.integers(0, 26))
def test_a_fold_from_any_snapshot_and_the_tail_equals_the_fold_of_all(
    events: list[Event], cut: int
) -> None:
    whole = records(events)

    half = fold(RunState(), whole[:cut])
    restored = snapshot.load(snapshot.dump(half))

    assert restored == half
    assert fold(restored, whole[cut:]) == fold(RunState(), whole)


@given(st.lists(EVENTS, max_size=15), st.lists(EVENTS, max_size=15))
def test_folding_on_never_changes_an_earlier_state(first: list[Event], more: list[Event]) -> None:
    whole = records([*first, *more])
    before = fold(RunState(), whole[: len(first) + 1])
    copy = snapshot.dump(before)

    fold(before, whole[len(first) + 1 :])

    assert snapshot.dump(before) == copy


def test_a_snapshot_keeps_references_apart_from_dicts_that_look_like_them() -> None:
    reference, impostor = Value(blob="h", bytes=3), {"$blob": ["h", 3]}
    events: list[Event] = [
        e.StateChanged(op="set", key="big", value=reference),
        e.StateChanged(op="set", key="fake", value=inline(impostor)),
    ]

    restored = snapshot.load(snapshot.dump(fold(RunState(), records(events))))

    assert restored.state == {"big": reference, "fake": impostor}
