"""The path of a branch: which line of execution of a run it is, and where it was started.

    ""          the agent's own line
    "3-1"       the first branch that the code started before its call or wait 3 (the first one is 0)
    "3-1.0-2"   the second branch that this one started before its first call
    "3+"        what was inserted into the agent's own line before what is recorded at 3 (new steps were accepted)
    "undo"      what undoes the run

Events contain paths as plain text. Only this module parses it.
"""

from __future__ import annotations

from holdfast.core.entry import Place

UNDO = "undo"
"""The branch of what undoes a run."""


class BranchPath(str):
    """A path, with what can be read out of it."""

    __slots__ = ()

    def fork(self, index: int, number: int) -> str:
        """The path of a branch that is started from here before this position."""
        return f"{self._prefix}{index}-{number}"

    def insertion(self, index: int) -> str:
        """The path of what is inserted here before what is recorded at this position."""
        return f"{self._prefix}{index}+"

    @property
    def is_insertion(self) -> bool:
        """Whether it is not a line of execution of its own, but what was inserted into its parent."""
        return self.endswith("+")

    @property
    def is_main(self) -> bool:
        """Whether it is that of the agent's own line of execution, or of what was inserted into it."""
        return "-" not in self

    @property
    def is_undo(self) -> bool:
        """Whether what is recorded there undoes the run."""
        return self.startswith(UNDO)

    @property
    def parent(self) -> BranchPath:
        """The branch that it was started from."""
        return BranchPath(self.rpartition(".")[0])

    @property
    def started_at(self) -> int | None:
        """The position in its parent before which it goes off; None of the main branch and of an undo."""
        digits = self.rpartition(".")[2].partition("-")[0].removesuffix("+")
        return int(digits) if digits.isdigit() else None

    @property
    def number(self) -> int:
        """Which of the branches it is that its parent started before the same position; 0 if it is none."""
        digits = self.rpartition(".")[2].partition("-")[2]
        return int(digits) if digits.isdigit() else 0

    def child_above(self, path: str) -> BranchPath | None:
        """The branch started from this one that a path is, or is below; named from here. None if there is none."""
        prefix = self._prefix
        if not path.startswith(prefix) or path == self:
            return None
        return BranchPath(path[len(prefix) :].partition(".")[0])

    def position_of(self, place: Place) -> int | None:
        """Where a place is in this branch: its own position, or that at which its branch goes off; None elsewhere."""
        path, index = place
        if path == self:
            return index
        child = self.child_above(path)
        return None if child is None else child.started_at

    @property
    def _prefix(self) -> str:
        return f"{self}." if self else ""


MAIN = BranchPath("")
