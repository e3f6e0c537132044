"""A change to what an agent knows, as a value: facts to append, a plan to put in place, questions to open
or close, notes, artifacts, flags.

A component that normalises observations returns one; `apply` is the pure function that takes it in. The
same patch applies to everything that has these fields: a run's state, an agent's working memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec.structs import force_setattr, replace

from holdfast.core.parts import Artifact, Fact, Part, PlanStep, each, kept, plan_of
from holdfast.core.values import FrozenDict
from holdfast.errors import InvalidInput


class StatePatch(Part, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What to change. Facts may also be given as `{key: value}`, plan steps as their names.

    `questions` and `flags` are added, `closed` and `cleared` are taken away; `plan=None` leaves the plan.
    """

    facts: tuple[Fact, ...] = ()
    plan: tuple[PlanStep, ...] | None = None
    questions: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()
    notes: dict[str, Any] = FrozenDict()
    artifacts: tuple[Artifact, ...] = ()
    flags: tuple[str, ...] = ()
    cleared: tuple[str, ...] = ()

    @classmethod
    def _user_values(cls) -> tuple[str, ...]:
        return ("notes",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.notes, dict):
            raise InvalidInput(f"StatePatch.notes must be a dict, not {self.notes!r}")
        given: Iterable[Any] = self.facts
        if isinstance(given, Mapping):
            given = [Fact(key, value) for key, value in given.items()]
        force_setattr(self, "facts", each(given, Fact, "StatePatch.facts"))
        force_setattr(self, "artifacts", each(self.artifacts, Artifact, "StatePatch.artifacts"))
        if self.plan is not None:
            force_setattr(self, "plan", plan_of(self.plan, "StatePatch.plan"))
        for name in ("questions", "closed", "flags", "cleared"):
            force_setattr(self, name, each(getattr(self, name), str, f"StatePatch.{name}"))


class Knowledge(Protocol):
    """What a patch changes: a run's state, a working memory, the draft of a state."""

    @property
    def plan(self) -> Sequence[PlanStep]: ...
    @property
    def facts(self) -> Sequence[Fact]: ...
    @property
    def questions(self) -> Sequence[str]: ...
    @property
    def notes(self) -> Mapping[str, Any]: ...
    @property
    def artifacts(self) -> Sequence[Artifact]: ...
    @property
    def flags(self) -> Sequence[str]: ...


S = TypeVar("S", bound=msgspec.Struct)


def apply(patch: StatePatch, knowledge: S, *, time: int = 0) -> S:
    """The same value with the patch taken in. Facts and artifacts without a time get this one."""
    return replace(knowledge, **changed(patch, knowledge, time=time))  # type: ignore[arg-type]


def changed(patch: StatePatch, knowledge: Knowledge, *, time: int = 0) -> dict[str, Any]:
    """The fields that the patch changes, with their new values."""
    new: dict[str, Any] = {}
    if patch.plan is not None:
        new["plan"] = patch.plan
    if patch.facts:
        new["facts"] = (*knowledge.facts, *(stamped(fact, time) for fact in patch.facts))
    if patch.artifacts:
        new["artifacts"] = (*knowledge.artifacts, *(stamped(x, time) for x in patch.artifacts))
    if patch.notes:
        new["notes"] = FrozenDict({**knowledge.notes, **kept(patch.notes)})
    if patch.questions or patch.closed:
        new["questions"] = _with(knowledge.questions, patch.questions, patch.closed)
    if patch.flags or patch.cleared:
        new["flags"] = _with(knowledge.flags, patch.flags, patch.cleared)
    return new


T = TypeVar("T", Fact, Artifact)


def stamped(part: T, time: int) -> T:
    """The part with its time, if it has none yet."""
    return part if part.time or not time else replace(part, time=time)


def _with(texts: Sequence[str], added: Sequence[str], removed: Sequence[str]) -> tuple[str, ...]:
    remaining = [text for text in texts if text not in removed]
    return (*remaining, *dict.fromkeys(text for text in added if text not in remaining))
