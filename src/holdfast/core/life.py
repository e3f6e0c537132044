"""What is recorded about a run as a whole: its limits, and whether it was cancelled, paused, undone or has ended."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.core import events as e
from holdfast.core.ancestors import ForkAncestry, ancestry_of
from holdfast.core.events import Event


class RunLife:
    """The life of a run, as far as its log has been read."""

    def __init__(self) -> None:
        self.created: e.RunCreated | None = None
        """Its first event, with what was changed of its limits since."""
        self.created_at = 0
        self.lineage = ForkAncestry()
        self.cancel: e.CancelRequested | None = None
        self.undo: e.UndoRequested | None = None
        self.undoing = False
        self.undo_started: e.UndoStarted | None = None
        self.paused: e.RunPaused | None = None
        self.terminal: Event | None = None
        self.may_stop_calls = False
        """Whether the log contains anything at all that could keep a new call from beginning."""

    @property
    def is_undone(self) -> bool:
        """Whether the run is being undone: then nothing new of it starts."""
        return self.undo is not None or self.undoing

    def feed(self, time: int, event: Event) -> None:
        """Take in an event about the run as a whole."""
        match event:
            case e.CancelRequested():
                self.cancel, self.may_stop_calls = event, True
            case e.UndoRequested():
                self.undo, self.terminal, self.may_stop_calls = event, None, True
            case e.UndoStarted():
                self.undo_started, self.undoing, self.may_stop_calls = event, True, True
            case e.RunCreated():
                self.created, self.created_at = event, time
                self.lineage = ancestry_of(event)
                if event.deadline_at is not None or event.budget:
                    self.may_stop_calls = True
            case e.RunPaused():
                self.paused, self.may_stop_calls = event, True
            case e.RunReopened():
                if self.terminal is not None and self.cancel is not None and self.cancel.reason:
                    self.cancel = None  # it failed because its parent did, and may try again
                self.paused = self.terminal = None
            case e.RunRestarted():
                self.terminal = self.cancel = self.paused = self.undo = self.undo_started = None
                self.undoing = False
            case e.LimitsChanged():
                self.set_limits(event.deadline_at, event.budget)
            case e.RunCompleted() | e.RunFailure() | e.RunCancellation():
                self.terminal = event

    def starts_to_undo(self) -> None:
        """A call that undoes another one has been started."""
        self.undoing = self.may_stop_calls = True

    def set_limits(self, deadline_at: int | None, budget: Mapping[str, float]) -> None:
        """What its first event says of its limits, with what was changed since."""
        assert self.created is not None
        self.created = msgspec.structs.replace(
            self.created,
            deadline_at=self.created.deadline_at if deadline_at is None else deadline_at,
            budget={**self.created.budget, **budget},
        )
        self.may_stop_calls = True
