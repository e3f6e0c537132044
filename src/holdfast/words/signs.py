"""How a status is shown: one table of word, glyph and tone for badges, timeline, legend and every other interface.

A tone is one of six colours (`busy`, `wait`, `ok`, `bad`, `doubt`, `idle`). Colour is never the only sign: each status has
its own glyph or word.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Sign(NamedTuple):
    """How one status is shown. `tone` is also the name of its CSS class."""

    tone: str
    glyph: str
    word: str


RUN_SIGNS: Final[dict[str, Sign]] = {
    "pending": Sign("idle", "○", "pending"),
    "running": Sign("busy", "▶", "running"),
    "interrupted": Sign("wait", "⌁", "interrupted"),
    "waiting": Sign("wait", "◔", "waiting"),
    "paused": Sign("idle", "‖", "paused"),
    "quarantined": Sign("doubt", "△", "quarantined"),
    "completed": Sign("ok", "✓", "completed"),
    "failed": Sign("bad", "✕", "failed"),
    "cancelled": Sign("idle", "⊘", "cancelled"),
}
"""By the status of a run, as `views.runs` shows it."""

CALL_SIGNS: Final[dict[str, Sign]] = {
    "waiting": Sign("wait", "◔", "waiting"),
    "running": Sign("busy", "▶", "running"),
    "retrying": Sign("wait", "↻", "retrying"),
    "done": Sign("ok", "✓", "done"),
    "failed": Sign("bad", "✕", "failed"),
    "in_doubt": Sign("doubt", "◇", "in doubt"),
    "cancelled": Sign("idle", "⊘", "cancelled"),
}
"""By the status of a row of a timeline: a call or a wait."""

SPAN_SIGNS: Final[dict[str, Sign]] = {
    "done": Sign("ok", "✓", "attempt that succeeded"),
    "failed": Sign("bad", "✕", "attempt that failed"),
    "cut": Sign("idle", "⊘", "attempt that was cancelled"),
    "running": Sign("busy", "▶", "running"),
    "lost": Sign("idle", "⌁", "attempt whose process died"),
    "doubt": Sign("doubt", "◇", "in doubt: may or may not have happened"),
    "backoff": Sign("wait", "↻", "waiting for the next attempt"),
    "approval": Sign("wait", "☺", "waiting for approval"),
    "answer": Sign("wait", "?", "waiting for an answer"),
    "signal": Sign("wait", "✉", "waiting for a signal"),
    "timer": Sign("wait", "◷", "sleeping"),
    "child": Sign("busy", "↳", "child run"),
}
"""By what is drawn in a row of a timeline."""

MARK_SIGNS: Final[dict[str, Sign]] = {
    "decision": Sign("busy", "◆", "decision"),
    "fact": Sign("idle", "●", "fact"),
    "stage": Sign("idle", "▸", "stage"),
    "patch": Sign("doubt", "✎", "patch from outside"),
    "signal": Sign("wait", "✉", "signal received"),
    "person": Sign("doubt", "☺", "action of a person"),
    "artifact": Sign("idle", "▤", "artifact"),
}
"""By what happened at one moment."""

UNKNOWN: Final = Sign("idle", "·", "")


def run_sign(status: str) -> Sign:
    """The sign of a run's status; one that a newer Holdfast knows is shown as a word."""
    return RUN_SIGNS.get(status, UNKNOWN._replace(word=status))


def call_sign(status: str) -> Sign:
    """The sign of a call's status."""
    return CALL_SIGNS.get(status, UNKNOWN._replace(word=status))
