"""What `run.context` shows a model: collected from the run, its loop's state and its artifacts.

Not here: choosing what fits within the limit (`core/context.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from holdfast.core import dialogue, jsonpatch, values
from holdfast.core import events as e
from holdfast.core.agent_state import AgentState
from holdfast.core.context import ContextSlice, pack
from holdfast.core.parts import Artifact, Fact, Message, Role
from holdfast.core.tokens import TokenCounter
from holdfast.errors import Abandon, ArtifactDamaged, InvalidInput
from holdfast.runtime.api.memory import Recorder
from holdfast.runtime.log.session import Session

SLICE: Final = values.Codec(ContextSlice)


def collect(
    run: Recorder,
    *,
    goal: str,
    facts: Iterable[Fact],
    step: int | None,
    max_bytes: int | None,
    max_tokens: int | None,
    counter: TokenCounter,
    artifact_bytes_max: float | None,
) -> ContextSlice:
    """The slice of what is known that fits within the one limit that is given."""
    sizes = [limit for limit in (max_bytes, max_tokens) if limit is not None]
    if len(sizes) != 1 or not isinstance(sizes[0], int) or sizes[0] < 1:  # type: ignore[redundant-expr]
        raise InvalidInput("run.context takes one limit: max_bytes= or max_tokens=, of 1 or more")
    session = run._session
    view, own = session.view.run_state(), loop_state(session)
    artifacts = {(x.name, x.id): x for x in (*own.memory.artifacts, *view.artifacts)}
    return pack(
        goal=goal or own.goal or _goal(run, view.messages),
        questions=tuple(dict.fromkeys((*view.questions, *own.memory.questions))),
        facts=sorted((*facts, *own.memory.facts), key=lambda fact: fact.time),
        artifacts=tuple(artifacts.values()),
        content=lambda artifact: _content(session, artifact),
        step=view.steps if step is None else step,
        limit=sizes[0],
        measure=counter.count if max_tokens is not None else lambda text: len(text.encode()),
        unit="tokens" if max_tokens is not None else "bytes",
        artifact_bytes_max=artifact_bytes_max,
    )


def loop_state(session: Session) -> AgentState:
    """A loop's state at the start of this iteration; an empty one if the run is not a loop."""
    document = session.view.draft.loop.frozen()
    for ended in session.view.pending(e.IterationEnded):  # not committed yet
        if ended.state is not None:
            document = e.plain(ended.state)
        elif ended.delta is not None:
            document = jsonpatch.apply(document, e.plain(ended.delta))
    return AgentState() if document is None else msgspec.convert(document, AgentState)


def input_of(session: Session) -> dict[str, Any]:
    """The run's input by name; empty if it has none."""
    created = session.journal.life.created
    given = None if created is None else values.decode(session.unwrap(created.input))
    return given if isinstance(given, dict) else {}


def _content(session: Session, artifact: Artifact) -> bytes | None:
    """The stored bytes of an artifact; None for one that only a patch named."""
    try:
        return session.artifact(artifact.id) if artifact.id else None
    except ArtifactDamaged as damage:
        if damage.missing and damage.seq < 0:  # no event stored it
            return None
        raise session.stop(Abandon(damage)) from None


def _goal(run: Recorder, messages: Iterable[Message]) -> str:
    first = next((m for m in messages if m.role == Role.USER), None)
    if first is not None:
        return dialogue.text_of(run._load(first.content))
    found = input_of(run._session).get("goal")
    return found if isinstance(found, str) else ""
