"""What an agent knows, as facts of its run: decisions, facts, questions, notes, flags and artifacts.

Each method notes one fact, or reads what the facts add up to. Not here: `run.state` and `run.messages` (`memory.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar, cast

import msgspec

from holdfast.core import events as e
from holdfast.core import log, values
from holdfast.core.parts import Artifact, Fact, texts
from holdfast.core.parts import text as _text
from holdfast.core.patch import StatePatch
from holdfast.core.values import FrozenDict
from holdfast.errors import InvalidInput
from holdfast.runtime.api.memory import Recorder

T = TypeVar("T")


class KnowledgeRecorder(Recorder):
    """What a run offers its agent to say what it knows."""

    def decide(self, name: str, choice: T, *, why: str = "", options: Iterable[str] = ()) -> T:
        """Record a decision and its reason. On replay the recorded choice is returned."""
        value, blobs = self._encode(choice)
        made = self._note(
            e.DecisionMade(
                name=_text(name, "run.decide: the name"),
                choice=value,
                why=_text(why, "run.decide: why"),
                options=texts(options, "run.decide: options"),
            ),
            blobs,
        )
        return cast(T, values.decode(self._session.unwrap(made.choice)))

    def fact(self, key: str, value: Any, *, source: str = "") -> None:
        """Record a fact and its source."""
        wrapped, blobs = self._encode(value)
        key, source = _text(key, "run.fact: the key"), _text(source, "run.fact: source")
        self._note(e.FactLearned(key=key, value=wrapped, source=source), blobs)

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The recorded facts, oldest first."""
        return tuple(
            msgspec.structs.replace(x, value=self._load(x.value))
            for x in self._session.view.run_state().facts
        )

    def ask_later(self, question: str) -> None:
        """Add an open question."""
        self._note(e.QuestionRaised(question=_text(question, "run.ask_later: the question")))

    def close_question(self, question: str) -> None:
        """Close an open question."""
        self._note(e.QuestionClosed(question=_text(question, "run.close_question: the question")))

    @property
    def questions(self) -> tuple[str, ...]:
        """Questions that are still open."""
        return self._session.view.run_state().questions

    def patch(self, patch: StatePatch) -> None:
        """Apply a patch: facts, a plan, questions, notes, artifacts, flags."""
        if not isinstance(patch, StatePatch):
            raise InvalidInput(f"run.patch takes a StatePatch, not {patch!r}")
        data = values.encode_struct(patch)
        value, blobs = log.wrap(data)
        if blobs:
            raise InvalidInput(
                f"a patch may have up to {log.SPILL_BYTES:,} bytes; this one has {len(data):,}; "
                "store large values with run.artifact"
            )
        self._note(e.KnowledgePatched(patch=value))

    @property
    def flags(self) -> tuple[str, ...]:
        """The risk flags that are raised."""
        return self._session.view.run_state().flags

    def note(self, key: str, value: Any) -> None:
        """Write a note to the agent's private scratchpad."""
        wrapped, blobs = self._encode(value)
        self._note(e.NoteTaken(key=_text(key, "run.note: the key"), value=wrapped), blobs)

    @property
    def notes(self) -> dict[str, Any]:
        """The private scratchpad."""
        return FrozenDict(
            {k: self._load(v) for k, v in self._session.view.run_state().notes.items()}
        )

    def artifact(
        self, name: str, data: bytes | str | Any, *, type: str = "", summary: str = ""
    ) -> Artifact:
        """Store a large output verbatim, by its hash. The state contains only a reference."""
        what = Artifact(name, type, summary=summary)  # or an error that names what is wrong
        kind, raw = _artifact_bytes(data)
        blob = log.Blob(values.digest(raw), raw)
        saved = self._note(
            e.ArtifactSaved(
                name=what.name,
                type=what.type or kind,
                blob=blob.hash,
                bytes=len(raw),
                summary=what.summary,
            ),
            [blob],
        )
        # Without its time: the code must see the same when it runs again. A loop stamps it.
        return Artifact(
            what.name,
            saved.type,
            saved.blob,
            saved.bytes,
            saved.summary,
            self._session.view.draft.steps,
        )


def _artifact_bytes(data: bytes | str | Any) -> tuple[str, bytes]:
    """What an artifact is stored as: its type, unless the agent gives one, and its bytes."""
    if isinstance(data, bytes):
        return "bytes", data
    return ("text", data.encode()) if isinstance(data, str) else ("json", values.encode(data))
