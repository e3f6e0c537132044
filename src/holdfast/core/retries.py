"""What a failed run may do again when it is resumed, and which part of its log its code may differ from.

A run that failed is resumed, and its failed call succeeds. What the code did after the failure (sent a notification,
cleaned up) is then in the log at places where it now does something else. So after a call that was *retried*, what was
recorded before the resumption binds only as far as the code asks for the same. Where it first asks for something else, it
leaves that path and continues at places behind it. What it had finished there is still never done again.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from holdfast.core.branch_path import BranchPath, Extent
from holdfast.core.entry import Entry, Place

Entries = dict[Place, Entry]


class RetriedCall(Struct, frozen=True):
    """A call of a failed run that was tried again: its place in its branch, and when the run was resumed."""

    index: int
    since: int


class Retries:
    """The calls of a failed run that may be tried again, and those that were."""

    def __init__(self) -> None:
        self.failed_steps: set[int] = set()
        """The calls that a run has failed with."""
        self.retried: dict[str, RetriedCall] = {}
        """By branch: the last call that was tried again."""
        self.left: dict[str, list[tuple[int, Entry]]] = {}
        """Finished calls on paths that the code has left, by branch."""
        self._granted: list[Place] = []
        """Failed calls that may be tried again."""

    def clear(self) -> None:
        self.retried.clear()
        self.left.clear()
        self._granted.clear()

    # ── when a failed run is resumed ─────────────────────────────────────────────────────

    def reopen(self, seq: int, entries: Entries, extent: Extent) -> None:
        """A failed run continues from its failed step, which may be tried again. So may what its code stopped waiting
        for last, because of that failure."""
        for place, entry in entries.items():
            is_last = entry.is_cut_off and not extent.goes_on(place, entry.forks_above)
            if entry.failed_finally and (entry.step in self.failed_steps or is_last):
                entry.granted, entry.granted_seq = True, seq
                self._granted.append(place)
                entry.attempts_before = entry.attempts
        self.failed_steps = set()
        given_up = [(p, x) for p, x in entries.items() if x.is_wait and x.is_cut_off]
        last = [
            place
            for place, x in given_up
            if not extent.goes_on(_last_together(place, entries), x.forks_above)
        ]
        for place in last:
            del entries[place]  # it starts over

    # ── what does not bind ───────────────────────────────────────────────────────────────

    def answered(self, place: Place, entry: Entry) -> None:
        """The code has been given the outcome of this place."""
        if entry.granted_seq:
            self.retried[place[0]] = RetriedCall(place[1], entry.granted_seq)

    def binds_after(self, branch: str, after: int) -> int:
        """The seq since which a fact that was noted in this branch after so many calls binds the code."""
        retried = self.retried.get(branch)
        return retried.since if retried is not None and after > retried.index else 0

    def is_past(self, place: Place, entry: Entry) -> bool:
        """Whether this was recorded after a failure, and before the failed call was retried."""
        if not self.retried:
            return False
        place = entry.position(place)
        for branch, retried in self.retried.items():
            index = BranchPath(branch).position_of(place)
            if entry.first_seq < retried.since and index is not None and index > retried.index:
                return True
        return False

    def is_unbound(self, place: Place, entry: Entry, entries: Entries) -> bool:
        """Whether the code need not ask for this: it follows a call that was, or will be, retried."""
        if self.is_past(place, entry):
            return True
        place = entry.position(place)
        for branch, index in self._granted:
            other = entries.get((branch, index))
            if other is not None and other.granted and entry.first_seq < other.granted_seq:
                at = BranchPath(branch).position_of(place)
                if at is not None and at > index:
                    return True
        return False

    def place_beyond(self, branch: str, index: int, entries: Entries) -> int | None:
        """The code asks for something other than is recorded here: where it continues, if it may.

        It may after a call that was retried, if this was recorded before the run was resumed.
        """
        entry = entries.get((branch, index))
        if entry is None or not self.is_past((branch, index), entry):
            return None
        past = self._past(entries)
        return 1 + max(place[1] for place, _ in past if place[0] == branch)

    def leave(self, branch: str, entries: Entries) -> None:
        """The code has left the path that it took after a failure. What it finished there is kept."""
        for place, x in self._past(entries):
            del entries[place]
            is_call = x.iteration is None and x.timeout is None and not x.is_wait
            if place[0] == branch and is_call and x.final and not x.failed_finally:
                self.left.setdefault(branch, []).append((place[1], x))

    def _past(self, entries: Entries) -> list[tuple[Place, Entry]]:
        known = list(entries.items())  # at once: other threads of the run read the log, too
        return [(place, x) for place, x in known if self.is_past(place, x)]

    def done_before(
        self, branch: str, is_same: Callable[[Entry], bool]
    ) -> tuple[int, Entry] | None:
        """The same call, finished on a path that the code has left: it is not made again."""
        return next((x for x in self.left.get(branch, ()) if is_same(x[1])), None)

    def use(self, place: Place) -> None:
        """The code has asked again for a call that it finished on a path that it has left."""
        branch, index = place
        self.left[branch] = [x for x in self.left[branch] if x[0] != index]


def _last_together(place: Place, entries: Entries) -> Place:
    """The last of the waits that started together with this one."""
    path, index = place
    entry, following = entries[place], entries.get((path, index + 1))
    if following is None or entry.wait_seq + 1 != following.wait_seq:
        return place
    return _last_together((path, index + 1), entries)
