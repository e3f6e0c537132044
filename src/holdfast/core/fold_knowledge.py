"""How what an agent notes changes a run's state: its memory, plan, facts, questions, messages, artifacts, and patches
from outside."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from holdfast.core import events as e
from holdfast.core import knowledge
from holdfast.core import patch as patches
from holdfast.core.draft import Document, DraftState, Handlers
from holdfast.core.events import Value, plain
from holdfast.core.parts import Artifact, Fact, Message, PlanStep, ToolCall
from holdfast.core.patch import StatePatch
from holdfast.core.state import Decision, QueuedPatch, TimelineEntry
from holdfast.errors import InvalidInput


def _state(draft: DraftState, x: e.StateChanged) -> None:
    knowledge.change_state(draft.open.state, x.op, x.key, plain(x.value))


def _patched(draft: DraftState, x: e.StatePatched) -> None:
    for op in knowledge.operations(x.changes):
        knowledge.change_state(draft.open.state, op["op"], op["key"], op.get("value"))
    if draft.is_loop and (x.patch is not None or x.operations is not None):
        draft.open.queued[x.id] = QueuedPatch(x.id, x.patch, x.operations, x.by)
    elif x.patch is not None:
        _apply_patch(draft, x.patch)
    elif x.operations is not None:
        _apply_operations(draft, x.operations)
    draft.add_line("patch", x.by, x.why, "state patched")


def _iteration_ended(draft: DraftState, x: e.IterationEnded) -> None:
    draft.iteration, draft.iteration_index = x.iteration, x.index
    if x.state is not None:
        draft.loop = Document(plain(x.state))
    elif x.delta is not None:
        draft.loop.apply(plain(x.delta))
    for taken in x.taken:
        draft.open.queued.pop(taken, None)
    for why in x.refused:
        draft.lines.append(
            TimelineEntry(draft.updated_at, "patch", f"a patch was not applied: {why}")
        )


def _knowledge(draft: DraftState, x: e.KnowledgePatched) -> None:
    _apply_patch(draft, x.patch)


def _apply_patch(draft: DraftState, patch: Value) -> None:
    try:
        read = msgspec.convert(plain(patch), StatePatch)
    except (ValueError, InvalidInput):  # a foreign log may contain anything
        return
    _set_fields(draft, patches.changed(read, draft, time=draft.updated_at))


def _apply_operations(draft: DraftState, ops: Value) -> None:
    try:
        _set_fields(draft, knowledge.apply_operations(draft, plain(ops)))
    except (ValueError, InvalidInput):
        return


def _set_fields(draft: DraftState, new: dict[str, Any]) -> None:
    for name, value in new.items():
        if name in ("state", "notes"):
            setattr(draft.open, name, dict(value))
        else:
            setattr(draft, name, list(value))


def _stage(draft: DraftState, x: e.StageEntered) -> None:
    draft.stage = x.stage
    draft.stage_history.append(x.stage)


def _plan(draft: DraftState, x: e.PlanMade) -> None:
    draft.plan[:] = [PlanStep(name) for name in x.steps]


def _plan_began(draft: DraftState, x: e.PlanStepBegan) -> None:
    _plan_status(draft, x.step, "doing")


def _plan_ended(draft: DraftState, x: e.PlanStepEnded) -> None:
    _plan_status(draft, x.step, "done")


def _plan_status(draft: DraftState, name: str, status: str) -> None:
    for i, step in enumerate(draft.plan):
        if step.name == name and step.status != "done":
            draft.plan[i] = PlanStep(name, status)
            return
    draft.plan.append(PlanStep(name, status))


def _decision(draft: DraftState, x: e.DecisionMade) -> None:
    draft.decisions.append(
        Decision(x.name, plain(x.choice), x.why, x.options, draft.steps, draft.updated_at)
    )


def _fact(draft: DraftState, x: e.FactLearned) -> None:
    draft.facts.append(Fact(x.key, plain(x.value), x.source, draft.updated_at))


def _question(draft: DraftState, x: e.QuestionRaised) -> None:
    if x.question not in draft.questions:
        draft.questions.append(x.question)


def _question_closed(draft: DraftState, x: e.QuestionClosed) -> None:
    if x.question in draft.questions:
        draft.questions.remove(x.question)


def _note(draft: DraftState, x: e.NoteTaken) -> None:
    draft.open.notes[x.key] = plain(x.value)


def _message(draft: DraftState, x: e.MessageAdded) -> None:
    draft.messages.append(message_of(x, draft.updated_at))


def _artifact(draft: DraftState, x: e.ArtifactSaved) -> None:
    draft.artifacts.append(
        Artifact(x.name, x.type, x.blob, x.bytes, x.summary, draft.steps, draft.updated_at)
    )


def _context(draft: DraftState, x: e.ContextShown) -> None:
    draft.context = x.slice


def _item(draft: DraftState, x: e.ItemPut) -> None:
    count = draft.items.get(x.collection, 0) + x.adds - (x.value is None)
    draft.items = {**draft.items, x.collection: count}


def _log(draft: DraftState, x: e.LogWritten) -> None:
    draft.lines.append(TimelineEntry(draft.updated_at, x.level, x.text))


def message_of(x: e.MessageAdded, time: int) -> Message:
    """The message that an event has added."""
    metadata = None if x.metadata is None else plain(x.metadata)
    calls = tuple(map(_tool_call, x.tool_calls))
    return Message(x.role, plain(x.content), time, metadata, calls, x.tool_call_id)


def _tool_call(x: e.RecordedToolCall) -> ToolCall:
    result = None if x.result is None else plain(x.result)
    return ToolCall(x.id, x.name, plain(x.arguments), result, x.error, x.duration)


KNOWLEDGE: Final[Handlers] = {
    e.StateChanged: _state,
    e.StatePatched: _patched,
    e.StageEntered: _stage,
    e.PlanMade: _plan,
    e.PlanStepBegan: _plan_began,
    e.PlanStepEnded: _plan_ended,
    e.DecisionMade: _decision,
    e.FactLearned: _fact,
    e.QuestionRaised: _question,
    e.QuestionClosed: _question_closed,
    e.NoteTaken: _note,
    e.MessageAdded: _message,
    e.ArtifactSaved: _artifact,
    e.LogWritten: _log,
    e.KnowledgePatched: _knowledge,
    e.IterationEnded: _iteration_ended,
    e.ContextShown: _context,
    e.ItemPut: _item,
}
