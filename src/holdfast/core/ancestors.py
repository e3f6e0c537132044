"""The ids of a fork and of the runs that it was forked from.

A fork replays calls that were made under another run's id. Code that passes `run.id` to a call now passes
the fork's own id, so the arguments differ from the recorded ones in that id and in nothing else. Such
arguments count as the same: a recorded text may have an ancestor's id wherever the fork has its own.
Only texts are compared this way, and only for events that the fork inherited.

Pure: nothing here reads the log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from holdfast.core import events as e
from holdfast.core import values


class ForkAncestry(Struct, frozen=True, gc=False):
    """Which run this is, and which runs it was forked from."""

    run_id: str = ""
    ancestors: tuple[str, ...] = ()
    """Oldest first; empty if the run is not a fork."""
    inherited: int = 0
    """The seq of the last event that a fork inherited."""

    @property
    def origin_id(self) -> str:
        """The id of the oldest ancestor: the same in a run and in all of its forks."""
        return self.ancestors[0] if self.ancestors else self.run_id

    def is_inherited(self, seq: int) -> bool:
        """Whether an ancestor recorded this event."""
        return 0 < seq <= self.inherited

    def is_same_text(self, recorded: str, current: str) -> bool:
        """Whether two texts differ at most in that the recorded one names an ancestor where `current` names
        this run."""
        first, *rest = current.split(self.run_id)
        ends = {len(first)} if recorded.startswith(first) else set()
        for piece in rest:  # each follows an occurrence of our id; ids may contain one another
            ends = {
                end + len(run_id) + len(piece)
                for end in ends
                for run_id in (self.run_id, *self.ancestors)
                if recorded.startswith(run_id + piece, end)
            }
        return len(recorded) in ends

    def is_same_value(self, recorded: Any, current: Any) -> bool:
        """The same for plain JSON values, all the way down."""
        if isinstance(current, str):
            return isinstance(recorded, str) and self.is_same_text(recorded, current)
        if isinstance(current, list):
            return (
                isinstance(recorded, list)
                and len(recorded) == len(current)
                and all(map(self.is_same_value, recorded, current))
            )
        if isinstance(current, dict):
            return (
                isinstance(recorded, dict)
                and len(recorded) == len(current)
                and all(self._has_item(recorded, key, value) for key, value in current.items())
            )
        return type(recorded) is type(current) and bool(recorded == current)

    def _has_item(self, recorded: dict[str, Any], key: str, value: Any) -> bool:
        keys = (key,) if key in recorded else recorded
        return any(
            self.is_same_text(k, key) and self.is_same_value(recorded[k], value) for k in keys
        )

    def possible_digests(self, args: bytes) -> Iterator[str]:
        """The digests that an ancestor's arguments may have had, if these are the fork's.

        For long arguments of which the log contains no more than the digest. The id is replaced where it is
        its own word, or else everywhere.
        """
        if self.run_id.encode() not in args:
            return
        plain, own = values.decode(args), re.escape(self.run_id)
        for pattern in (rf"(?<![A-Za-z0-9]){own}(?![A-Za-z0-9])", own):
            for ancestor in reversed(self.ancestors):
                yield values.digest(
                    values.canonical(_replaced(plain, re.compile(pattern), ancestor))
                )


def _replaced(value: Any, pattern: re.Pattern[str], by: str) -> Any:
    if isinstance(value, str):
        return pattern.sub(by, value)  # ids hold no backslash, so nothing is expanded
    if isinstance(value, list):
        return [_replaced(item, pattern, by) for item in value]
    if isinstance(value, dict):
        return {
            _replaced(key, pattern, by): _replaced(item, pattern, by) for key, item in value.items()
        }
    return value


def ancestry_of(created: e.RunCreated) -> ForkAncestry:
    """Read it from the first event of a run."""
    if not created.forked_from:
        return ForkAncestry(created.run_id)
    ancestors = (*created.ancestors, created.forked_from)
    return ForkAncestry(created.run_id, ancestors, created.inherited_events)
