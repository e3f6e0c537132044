"""What can be done about a refusal, on a page: a link to the action, and the command.

An error carries its remedies as data (`errors.Remedy`); in its own text they are calls of Python.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request

from holdfast.errors import HoldfastError, NoSuchRun, NotNow, Remedy
from holdfast.web.context import server_of
from holdfast.web.pages.render import linker
from holdfast.words.advice import command

_ACTIONS: Final = {"cancel": "Cancel", "rerun": "Start over", "resume": "Resume"}


@dataclass(frozen=True, slots=True)
class NextAction:
    """One thing to do. `href` is empty if no page does it."""

    purpose: str
    command: str
    href: str = ""
    name: str = ""


def message_of(error: HoldfastError) -> str:
    """What is refused and why, without the calls."""
    if isinstance(error, NoSuchRun):
        return f"No run {error.run_id!r} in this store; it may have been deleted."
    return error.what if isinstance(error, NotNow) and error.remedies else str(error)


def ways_on(request: Request, error: HoldfastError) -> list[NextAction]:
    """What can be done instead."""
    found: Iterable[Remedy] = getattr(error, "remedies", ())
    return [_way(request, remedy) for remedy in found]


def _way(request: Request, remedy: Remedy) -> NextAction:
    url, link = server_of(request).store().url, linker(request)
    said = command(url, *remedy.words)
    match remedy.words:
        case ("resolve", run_id, step, *_):
            return NextAction(remedy.purpose, said, link("inbox", run_id, f"step-{step}"), "Decide")
        case ("cancel" as verb, run_id) | ("rerun" | "resume" as verb, "FILE", run_id):
            return NextAction(
                remedy.purpose, said, link("runs", run_id, "actions", verb), _ACTIONS[verb]
            )
    return NextAction(remedy.purpose, said)
