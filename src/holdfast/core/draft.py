"""A changeable copy of a run's state: what events are folded into.

Not here: how each event changes it (`fold.py`, `fold_life.py`, `fold_knowledge.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Final, Self

from msgspec import Struct, field

from holdfast.core import values
from holdfast.core.events import Divergence, Event, Usage, Value
from holdfast.core.parts import Artifact, Fact, Message, PlanStep
from holdfast.core.state import (
    Call,
    Decision,
    Failure,
    QueuedPatch,
    ReceivedSignal,
    RunState,
    TimelineEntry,
    Waiting,
    signed,
)
from holdfast.core.values import FrozenDict
from holdfast.errors import InvalidInput
from holdfast.waiting import WaitingFor


class _Collections(Struct, gc=False):
    """Changeable copies of a state's collections, by the keys that events name."""

    state: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    calls: dict[tuple[str, int], Call] = field(default_factory=dict)
    waits: dict[tuple[str, int], Waiting] = field(default_factory=dict)
    signals: dict[int, ReceivedSignal] = field(default_factory=dict)
    queued: dict[str, QueuedPatch] = field(default_factory=dict)
    past_calls: list[Call] = field(default_factory=list)


_LISTS: Final = (
    "decisions",
    "facts",
    "messages",
    "artifacts",
    "lines",
    "plan",
    "questions",
    "flags",
    "stage_history",
    "workers",
)
_PLAIN: Final = tuple(
    f
    for f in RunState.__struct_fields__
    if f not in _LISTS
    and f not in ("state", "notes", "calls", "waits", "signals", "queued", "loop")
)
_EMPTY: Final = RunState()
_plain_of: Final = attrgetter(*_PLAIN)
_lists_of: Final = attrgetter(*_LISTS)


class Document:
    """A loop's state as plain JSON. It is copied only when it is read after a change."""

    def __init__(self, frozen: Any) -> None:
        self._frozen = frozen
        self._thawed: Any = None

    def frozen(self) -> Any:
        if self._frozen is None and self._thawed is not None:
            self._frozen = values.freeze(self._thawed)
        return self._frozen

    def apply(self, delta: Any) -> None:
        from holdfast.core import jsonpatch  # here, as most runs are not loops

        if self._thawed is None:
            self._thawed = values.thaw(self._frozen)
        self._frozen = None
        try:
            self._thawed = jsonpatch.apply_in_place(self._thawed, jsonpatch.operations(delta))
        except InvalidInput:  # a foreign log may contain anything
            return


class DraftState(Struct, eq=False, gc=False):
    """The fields of a `RunState`, to be changed in place; `freeze` returns them as a `RunState`.

    With `keep_calls=False` finished calls are forgotten, so that a live run of any length needs no
    more memory than what its agent can still read.
    """

    keep_calls: bool
    open: _Collections
    loop: Document
    id: str
    agent: str
    status: str
    code_version: str
    input: Value | None
    result: Value | None
    failure: Failure | None
    stage: str
    stages: tuple[str, ...]
    stage_history: list[str]
    context: Value | None
    plan: list[PlanStep]
    steps: int
    child_steps: int
    left_out: int
    decisions: list[Decision]
    facts: list[Fact]
    questions: list[str]
    messages: list[Message]
    artifacts: list[Artifact]
    flags: list[str]
    lines: list[TimelineEntry]
    usage: Usage
    items: dict[str, int]
    is_recorded: bool
    budget: dict[str, float]
    deadline_at: int | None
    waiting_for: str
    waiting: tuple[WaitingFor, ...]
    wake_at: int | None
    diverged: Divergence | None
    cancel_requested: bool
    parent: str
    forked_from: str
    inherited_effects: tuple[str, ...]
    is_loop: bool
    iteration: int
    iteration_index: int
    workers: list[str]
    restarts: int
    created_at: int
    updated_at: int
    seq: int

    @classmethod
    def of(cls, start: RunState | None = None, *, keep_calls: bool = True) -> Self:
        """A draft of this state; by default of a run without events."""
        start = start if start is not None else _EMPTY
        plain: dict[str, Any] = dict(zip(_PLAIN, _plain_of(start), strict=True))
        lists: dict[str, Any] = dict(zip(_LISTS, map(list, _lists_of(start)), strict=True))
        collections = _Collections(
            state=dict(start.state),
            notes=dict(start.notes),
            calls={(c.branch, c.index): c for c in start.calls if c.index >= 0},
            waits={(w.branch, w.index): w for w in start.waits},
            signals={s.seq: s for s in start.signals},
            queued={x.id: x for x in start.queued},
            past_calls=[c for c in start.calls if c.index < 0],
        )
        loop = Document(start.loop)
        return cls(keep_calls=keep_calls, open=collections, loop=loop, **plain, **lists)

    def freeze(self, *, loop: bool = True) -> RunState:
        """The state now, as an immutable value; without the loop's own state if that is not wanted."""
        parts = self.open
        same: dict[str, Any] = {name: getattr(self, name) for name in _PLAIN}
        lists: dict[str, Any] = {name: tuple(getattr(self, name)) for name in _LISTS}
        return RunState(
            **same,
            **lists,
            state=FrozenDict(parts.state),
            notes=FrozenDict(parts.notes),
            calls=tuple(sorted([*parts.past_calls, *parts.calls.values()], key=lambda c: c.step)),
            waits=tuple(parts.waits.values()),
            signals=tuple(parts.signals.values()),
            queued=tuple(parts.queued.values()),
            loop=self.loop.frozen() if loop else None,
        )

    @property
    def state(self) -> dict[str, Any]:
        """The explicit memory."""
        return self.open.state

    @property
    def notes(self) -> dict[str, Any]:
        """The private scratchpad."""
        return self.open.notes

    def add_line(self, level: str, by: str, why: str, what: str) -> None:
        """Add what a person did to the run's lines."""
        self.lines.append(TimelineEntry(self.updated_at, level, signed(what, by, why)))


Handlers = Mapping[type[Event], Callable[[DraftState, Any], None]]
"""For each type of event, the function that changes a draft by one of them."""
