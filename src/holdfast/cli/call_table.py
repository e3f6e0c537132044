"""The calls of a run as a table, and below it what does not fit: failed attempts, doubt, and how it was resolved."""

from __future__ import annotations

from collections.abc import Sequence

import click

from holdfast import views
from holdfast.cli import describe, text
from holdfast.core.effect import Effect
from holdfast.core.state import Call
from holdfast.words.outcomes import evidence, resolution

CALLS_SHOWN = 100
"""Of a long run so many calls are shown, the last ones, and earlier ones that did not simply succeed."""


def worth_a_look(calls: Sequence[Call]) -> Sequence[Call]:
    """The last ones, and of those before them what is not simply done."""
    earlier = calls[:-CALLS_SHOWN]
    return [*(c for c in earlier if c.status != "done" or _story(c)), *calls[-CALLS_SHOWN:]]


def show_calls(calls: Sequence[Call], left_out: int) -> None:
    if not calls:
        return
    text.heading("calls")
    if left_out:
        click.echo(f"  {text.count(left_out, 'earlier call')} not shown; --all shows every call")
    text.table(
        ("step", "call", "status", "tries", "took", "arguments", "result"),
        [
            (
                str(c.step),
                text.visible(c.name),
                _standing(c),
                str(len(c.attempts)),
                text.span(c.duration_us) if c.ended_at else "–",
                _arguments(c),
                _outcome(c),
            )
            for c in calls
        ],
        indent=2,
    )
    for call in calls:
        for line in _story(call):
            click.echo(f"  step {call.step}: {line}")


def _standing(call: Call) -> str:
    return "undone" if call.undone else call.status.replace("_", " ")


def _arguments(call: Call) -> str:
    args = views.to_plain(call.args)
    return text.one_line(args, 60) if isinstance(args, dict) else "–"


def _outcome(call: Call) -> str:
    if call.error is not None and call.status == "failed":
        return text.cut(text.visible(f"{call.error.type}: {call.error.message}"), 60)
    return text.compact(call.result, 60) if call.result is not None else "–"


def _story(call: Call) -> list[str]:
    """What does not fit in the table: failed attempts, doubt, and how it was resolved."""
    lines = []
    # A call of a child run is started again whenever its parent continues, which says nothing of its process.
    is_in_child = bool(call.effect) and Effect.recorded(call.effect).is_in_child
    for attempt in call.attempts:
        is_last = attempt is call.attempts[-1]
        if not (attempt.error or attempt.ended_at is not None or is_last or is_in_child):
            lines.append(
                f"attempt {attempt.number} started and left no receipt: its process died or lost the run"
            )
        if attempt.error is not None:
            said = text.visible(f"{attempt.error.type}: {attempt.error.message}")
            again = ""
            if attempt.retry_at is not None and attempt.ended_at is not None:
                again = f"; next attempt after {text.span(attempt.retry_at - attempt.ended_at)}"
            lines.append(f"attempt {attempt.number} failed: {text.cut(said, 120)}{again}")
    if call.status == "in_doubt":
        lines.append(
            click.style(
                f"in doubt: it may or may not have happened. {describe.doubt_of(call)} (key {text.visible(call.key)})",
                fg="magenta",
            )
        )
    lines += [f"evidence: {text.visible(evidence(found))}" for found in call.evidence]
    if call.resolution is not None:
        lines.append(f"doubt resolved: {text.visible(resolution(call.resolution))}")
    return lines
