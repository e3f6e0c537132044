"""What fits into a model's view of a run: goal, open questions, artifacts, facts, under a cap.

Parts are packed by importance. A part that does not fit is skipped, because a smaller one after it may fit. The
size is that of the text that a model is given, with every key and heading, and artifacts at their real size.

Pure: the run's knowledge goes in, a `ContextSlice` comes out. The run records what was shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct, field

from holdfast.core import values
from holdfast.core.dialogue import text_of
from holdfast.core.parts import Artifact, Fact, Part
from holdfast.errors import InvalidInput

Measure = Callable[[str], int]


class ShownArtifact(Part, frozen=True, omit_defaults=True):
    """An artifact in a slice: with its content, or by its summary alone."""

    name: str
    type: str = ""
    bytes: int = 0
    summary: str = ""
    content: str | None = None

    @property
    def text(self) -> str:
        about = f"{self.name} ({self.type or 'unknown'}, {self.bytes:,} bytes)"
        if self.content is not None:
            return f"--- {about}\n{self.content}\n---\n"
        return f"- {about}: {self.summary or 'no summary'}\n"


class ContextSlice(Part, frozen=True, omit_defaults=True):
    """What a model is shown of a run. `str(slice)` is the text to give it; `size` is how long that is."""

    goal: str = ""
    questions: tuple[str, ...] = ()
    artifacts: tuple[ShownArtifact, ...] = ()
    facts: tuple[Fact, ...] = ()
    left_out: tuple[str, ...] = ()
    """What did not fit, by name."""
    step: int = 0
    size: int = 0
    unit: str = "bytes"

    def __str__(self) -> str:
        return "".join(
            title + "".join(items)
            for title, items in (
                (_GOAL, [f"{self.goal}\n"] if self.goal else []),
                (_QUESTIONS, [_question(q) for q in self.questions]),
                (_ARTIFACTS, [shown.text for shown in self.artifacts]),
                (_FACTS, [_fact(fact) for fact in self.facts]),
            )
            if items
        )


_GOAL = "# Goal\n"
_QUESTIONS = "# Open questions\n"
_ARTIFACTS = "# Artifacts\n"
_FACTS = "# Known facts, newest first\n"


def _question(text: str) -> str:
    return f"- {text}\n"


def _fact(fact: Fact) -> str:
    source = f" (from {fact.source})" if fact.source else ""
    return f"- {fact.key}: {text_of(fact.value)}{source}\n"


class _Packer(Struct):
    """Takes what fits, and remembers what did not. A section's title comes with its first item."""

    limit: int
    measure: Measure
    used: int = 0
    left_out: list[str] = field(default_factory=list)
    _titles: set[str] = field(default_factory=set)

    def fits(self, title: str, text: str) -> bool:
        """Whether the item was taken in."""
        size = self.measure(text if title in self._titles else title + text)
        if self.used + size > self.limit:
            return False
        self.used += size
        self._titles.add(title)
        return True


def pack(
    *,
    goal: str,
    questions: Iterable[str],
    facts: Sequence[Fact],
    artifacts: Sequence[Artifact],
    content: Callable[[Artifact], bytes | None],
    step: int,
    limit: int,
    measure: Measure,
    unit: str,
    artifact_bytes_max: float | None = None,
) -> ContextSlice:
    """The goal, open questions, this step's artifacts, the newest facts, then other artifacts by summary.

    Of facts with the same key only the newest counts. All artifact contents together take at most
    `artifact_bytes_max` bytes; one that is too big, no text, or kept elsewhere appears by its summary.
    """
    packer = _Packer(limit, measure)
    if goal and not packer.fits(_GOAL, f"{goal}\n"):
        needed = measure(f"{_GOAL}{goal}\n")
        raise InvalidInput(f"{limit:,} {unit} are not enough for the goal, which needs {needed:,}")
    shown_questions = tuple(
        q for q in questions if _taken(packer, _QUESTIONS, _question(q), f"question {q!r}")
    )
    here = [a for a in reversed(artifacts) if a.step == step]
    shown = list(_artifacts(packer, here, content, artifact_bytes_max))
    shown_facts = tuple(
        fact for fact in _newest(facts) if _taken(packer, _FACTS, _fact(fact), f"fact {fact.key!r}")
    )
    others = [a for a in reversed(artifacts) if a.step != step]
    shown += list(_artifacts(packer, others, content, 0))
    return ContextSlice(
        goal,
        shown_questions,
        tuple(shown),
        shown_facts,
        tuple(packer.left_out),
        step,
        packer.used,
        unit,
    )


def _taken(packer: _Packer, title: str, text: str, name: str) -> bool:
    if packer.fits(title, text):
        return True
    packer.left_out.append(name)
    return False


def _newest(facts: Sequence[Fact]) -> list[Fact]:
    """The newest of each key, newest first."""
    found: dict[str, Fact] = {}
    for fact in reversed(facts):
        found.setdefault(fact.key, fact)
    return list(found.values())


def _artifacts(
    packer: _Packer,
    artifacts: Sequence[Artifact],
    content: Callable[[Artifact], bytes | None],
    bytes_max: float | None,
) -> Iterable[ShownArtifact]:
    left = bytes_max
    for kept in artifacts:
        brief = ShownArtifact(kept.name, kept.type, kept.bytes, kept.summary)
        if (left is None or kept.bytes <= left) and kept.bytes <= values.BYTES_MAX:
            text = _text(content(kept))
            if text is not None:
                whole = ShownArtifact(kept.name, kept.type, kept.bytes, kept.summary, text)
                if packer.fits(_ARTIFACTS, whole.text):
                    left = None if left is None else left - kept.bytes
                    yield whole
                    continue
        if _taken(packer, _ARTIFACTS, brief.text, f"artifact {kept.name!r}"):
            yield brief


def _text(data: bytes | None) -> str | None:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return None
