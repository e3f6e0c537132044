"""How far the log goes in each branch, and which branches the code has started."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.branch_path import BranchPath
from holdfast.core.entry import Place


class Extent:
    """The last position of each branch that is recorded, and how many branches were started before each."""

    def __init__(self) -> None:
        self.last: dict[str, int] = {}
        """By branch: the last position at which anything is recorded."""
        self.forks: dict[Place, int] = {}
        """By place: how many branches the code had started since the one before it."""

    def clear(self) -> None:
        self.last.clear()
        self.forks.clear()

    def reaches(self, branch: str, index: int) -> bool:
        """Whether the log contains this place or a later one of the branch."""
        return self.last.get(branch, -1) >= index

    def add(self, branch: str, index: int, forks: int = 0) -> None:
        """Something is recorded at this place."""
        if forks:
            self.forks[branch, index] = forks
        if index > self.last.get(branch, -1):
            self.last[branch] = index

    def has_started(self, branch: str, index: int, number: int) -> bool:
        """Whether the code started so many branches here, or the log does not say: it ends before."""
        return not self.reaches(branch, index) or self.forks.get((branch, index), 0) >= number

    def goes_on(self, place: Place, forks_above: tuple[int, ...]) -> bool:
        """Whether the log contains anything that the code did after this place, in its branch or in those above.

        `forks_above` says how many branches each of those above had started by then, the nearest first: further ones
        were started later. A log of version 0.1 does not say so.
        """
        path, index = BranchPath(place[0]), place[1]
        if self.reaches(path, index + 1) or any(at > index for at, _ in self._started_from(path)):
            return True
        counts = iter(forks_above)
        while path:
            started, path = path.started_at, path.parent
            count = next(counts, None)
            if started is None:
                continue
            if self.reaches(path, started):
                return True
            if count is not None and any(
                at == started and number > count for at, number in self._started_from(path)
            ):
                return True
        return False

    def _started_from(self, path: BranchPath) -> Iterator[tuple[int, int]]:
        """Of each branch that is recorded and was started from this one: its position and its number."""
        for below in map(path.child_above, self.last):
            if below is not None and below.started_at is not None:
                yield below.started_at, below.number
