"""Requests to people: how one is named, and which must be named because several are open.

The calls and commands that decide them are made in `words`.
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
