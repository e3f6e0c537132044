"""Noting facts in a run, and reading values that are stored next to its log: the base of what an agent sees of its run.

Not here: the facts (`run.py`, `memory.py`), and how they are committed (`log/session.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from holdfast.core import values
from holdfast.core.events import Noted, Value
from holdfast.core.log import Blob
from holdfast.runtime.log.branches import Branch, current_branch
from holdfast.runtime.log.session import Session

N = TypeVar("N", bound=Noted)


class Recorder:
    """Notes facts in a run, each at the position of the code that is executing."""

    def __init__(self, session: Session, root: Branch) -> None:
        self._session = session
        self._root = root

    @property
    def _here(self) -> Branch:
        branch = current_branch()
        if branch is None or branch.session is not self._session:
            branch = self._root
        if branch.waiting is not None:
            raise branch.waiting  # the code caught the wait and continued; its notes are not the run's
        return branch

    def _note(self, fact: N, blobs: Sequence[Blob] = ()) -> N:
        """Note a fact here; returns the recorded one on a replay."""
        here = self._here
        return self._session.note(replace(fact, branch=here.path, after=here.index), blobs)

    def _encode(self, data: Any) -> tuple[Value, list[Blob]]:
        return self._session.wrap(values.encode(data))

    def _load(self, value: Any) -> Any:
        """The value itself, read from the store if it was too big for its event."""
        if not isinstance(value, Value):
            return value
        return values.freeze(values.decode(self._session.unwrap(value)))
