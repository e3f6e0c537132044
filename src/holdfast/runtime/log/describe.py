"""Places of the log, and what is recorded there, in words: for messages about code that diverged."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.entry import Entry
from holdfast.core.events import Value


def place_name(branch: str, index: int) -> str:
    """A place in the log, for people."""
    if index < 0:
        return "a timeout" + (f" of branch {branch}" if branch else "")
    return f"call {index + 1}" + (f" of branch {branch}" if branch else "")


def recorded_text(entry: Entry, read: Callable[[Value], bytes]) -> str:
    """What is recorded at a place, for people. `read` gets a value that is kept outside the log."""
    if entry.iteration is not None:
        return f"the end of iteration {entry.iteration.iteration}"
    if entry.is_wait and entry.wait is not None:
        return f"wait for {entry.wait.wait} {entry.wait.name!r}".rstrip()
    if entry.timeout is not None:
        return "a timeout (asyncio.timeout) that cancels the task"
    args = entry.args
    text = read(args).decode() if args is not None else f"arguments with digest {entry.args_digest}"
    return f"{entry.name}({text if len(text) <= 200 else text[:199] + '…'})"
