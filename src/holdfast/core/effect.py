"""The effect class of a call: what repeating it would do, by what its tool declares.

This decides everything that matters after a crash: whether an intent is recorded before the call, whether it may be in
doubt, and whether it may be called again. Logs contain the values as text.
"""

from __future__ import annotations

from enum import StrEnum


class Effect(StrEnum):
    """How a call may be repeated. Adding one: here, `effect_class` (declaration) and `recover`."""

    REPEATABLE = "repeatable"
    """It only reads, or computes: it is repeated freely."""
    KEYED = "keyed"
    """Its receiver knows its idempotency key: it is repeated with the same key."""
    CHECKED = "checked"
    """Its `check` finds out whether it happened."""
    TRANSACTIONAL = "transactional"
    """Its writes are committed together with its receipt, or not at all."""
    ONCE = "once"
    """Nothing is known: it is never repeated without a person's decision."""
    CHILD = "child"
    """It is a run of its own, which resumes by itself."""
    UNDO_CHILD = "undo_child"
    """It undoes a child run, which contains what has been undone: to ask for that again does nothing twice."""

    @property
    def has_intent(self) -> bool:
        """Whether the log must contain that it is about to start."""
        return self is not Effect.REPEATABLE

    @property
    def may_be_in_doubt(self) -> bool:
        """Whether it may have happened although no receipt is recorded."""
        return self in _DOUBTFUL

    @property
    def acts(self) -> bool:
        """Whether it changes something outside the run itself."""
        return self in _DOUBTFUL or self is Effect.TRANSACTIONAL

    @property
    def is_in_child(self) -> bool:
        """Whether all it does is in the log of a child run."""
        return self in (Effect.CHILD, Effect.UNDO_CHILD)

    @classmethod
    def recorded(cls, text: str) -> Effect:
        """The class that a log contains. One that this version does not know is treated as the strictest."""
        try:
            return cls(text)
        except ValueError:
            return cls.ONCE


_DOUBTFUL = frozenset((Effect.ONCE, Effect.KEYED, Effect.CHECKED))
