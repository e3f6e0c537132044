"""The calls of `hf` with which people decide what a run asks for, as text that works when it is pasted.

Pure, and used both by errors of a run that was suspended and by refused decisions. Not here: the commands of
the command line (`cli/describe.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, Protocol


class OpenRequest(Protocol):
    """What is known of a request: an event `WaitBegan`, or a `Waiting` of a state."""

    @property
    def wait(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def branch(self) -> str: ...
    @property
    def index(self) -> int: ...


DECIDED_BY_PEOPLE: Final = ("approval", "answer")


def request_id(request: OpenRequest) -> str:
    """How people name a request when they decide: its branch and position."""
    return f"{request.branch}#{request.index}"


def ambiguous(requests: Sequence[OpenRequest]) -> set[str]:
    """The kinds of which several requests are open: a decision about one of those must name it."""
    counts = Counter(request.wait for request in requests)
    return {kind for kind in DECIDED_BY_PEOPLE if counts[kind] > 1}


def decision_calls(run_id: str, requests: Sequence[OpenRequest]) -> list[str]:
    """For each request the calls that decide it, with its id where several of its kind are open."""
    named = ambiguous(requests)
    found = []
    for request in requests:
        which = f", {request_id(request)!r}" if request.wait in named else ""
        if request.wait == "approval":
            calls = f"hf.approve({run_id!r}{which}) or hf.reject({run_id!r}{which})"
        elif request.wait == "answer":
            calls = f"hf.answer({run_id!r}, …{which})"
        else:
            continue
        found.append(f"{calls}   # {request.name}")
    return found
