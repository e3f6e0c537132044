"""The traceback of a failure as its author wants to read it: frames of their own code, ours folded.

Not here: secrets, and how an error is stored (`receipt.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from traceback import FrameSummary, StackSummary, TracebackException
from typing import Final

import holdfast.errors

MAX_CHARS: Final = 8_000
_PACKAGE: Final = str(Path(holdfast.errors.__file__).parent) + "/"
_USERS: Final = f"{_PACKAGE}cli/demo"
"""The demo's agent is part of the package, but what a user would write."""


def user_traceback(error: BaseException) -> str:
    """The traceback of an exception and of what led to it, with Holdfast's own frames left out and counted.

    One without any frame of the author's is whole: then the place inside Holdfast is all there is.
    """
    report = TracebackException.from_exception(error, compact=True)
    _drop_own_contexts(report)
    parts = list(_parts(report))
    if all(_is_ours(frame) for part in parts for frame in part.stack):
        return "".join(report.format())
    folded = 0
    for part in parts:
        kept = [frame for frame in part.stack if not _is_ours(frame)]
        folded += len(part.stack) - len(kept)
        part.stack = StackSummary.from_list(kept)
    note = f"({folded} frame{'s' * (folded != 1)} inside Holdfast not shown)\n" if folded else ""
    return "".join(report.format()) + note


def _is_ours(frame: FrameSummary) -> bool:
    return frame.filename.startswith(_PACKAGE) and not frame.filename.startswith(_USERS)


def _drop_own_contexts(report: TracebackException) -> None:
    """Leave out what was being handled inside Holdfast when the failure came: it says nothing to an author."""
    for part in list(_parts(report)):
        context = part.__context__
        if context is not None and all(map(_is_ours, context.stack)):
            part.__context__ = context.__cause__ or context.__context__


def _parts(report: TracebackException) -> Iterator[TracebackException]:
    """The exception, and all that are shown with it."""
    seen: set[int] = set()
    left: list[TracebackException | None] = [report]
    while left:
        part = left.pop()
        if part is not None and id(part) not in seen:
            seen.add(id(part))
            yield part
            left += [part.__cause__, part.__context__, *(part.exceptions or ())]


def shortened(text: str) -> str:
    """Of a long traceback the beginning, where the author's own frames are, and the end with the error."""
    if len(text) <= MAX_CHARS:
        return text
    cut = "\n  …\n"
    head = (MAX_CHARS - len(cut)) // 2
    return text[:head] + cut + text[head + len(cut) - MAX_CHARS :]
