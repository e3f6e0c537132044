"""Which run, and which line of its code, is executing here: one context variable.

A `Branch` is one line of execution within a run: the agent's own, a task it started, a thread of
`run.map`. Calls are numbered within their branch, so branches that finish in another order on replay
still find their own calls. While the body of a step or tool executes, an `Inside` is in the
variable instead: what is called there belongs to that call.

A branch that has to wait stays so, and so do those it was started from: code that catches everything
cannot continue past a wait.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, final

import msgspec
from msgspec import Struct

from holdfast.core.branch_path import BranchPath
from holdfast.core.effect import Effect

if TYPE_CHECKING:
    from holdfast.errors import Suspend
    from holdfast.runtime.log.session import Session


@final
class Branch(Struct):
    """One line of execution. `index` is the position of its next call or wait."""

    session: Session
    path: str = ""
    index: int = 0
    forks: int = 0
    """How many branches were started since the last call or wait."""
    forked: int = 0
    """How many had been started right before the one that is being made now."""
    parent: Branch | None = None
    insertion: Branch | None = None
    """What was inserted into it last."""
    waiting: Suspend | None = None
    """What this branch, or one that was started from it, has to wait for."""
    call_failed: bool = False
    """Whether the code of this branch has seen a call fail."""

    def take(self, count: int = 1) -> int:
        """The position of the call that is being made now, or the first of several waits."""
        if self.waiting is not None:
            raise self.waiting
        index = self.index
        self.index += count
        self.forked, self.forks = self.forks, 0
        return index

    def give_back(self, index: int) -> None:
        """The position that was taken is free again: what was asked there is elsewhere."""
        self.index, self.forks = index, self.forked

    def fork(self) -> Branch:
        """A line of execution that starts here; named by the order in which the code starts them.

        They are counted again after each call, so that one more here does not rename those further on.
        """
        self.forks += 1
        path = BranchPath(self.path).fork(self.index, self.forks)
        return Branch(self.session, path, parent=self)

    def inserted_at(self, path: str) -> Branch:
        """Where requests are recorded that were inserted before what the log contains at a position: that of this
        path."""
        if self.insertion is None or self.insertion.path != path:
            self.insertion = Branch(self.session, path, parent=self)
        return self.insertion

    @property
    def is_insertion(self) -> bool:
        """Whether this is not a line of execution of its own, but part of its parent."""
        return BranchPath(self.path).is_insertion

    @property
    def line(self) -> Branch:
        """The line of execution that this is part of."""
        return self.parent.line if self.parent is not None and self.is_insertion else self

    @property
    def forks_above(self) -> tuple[int, ...]:
        """How many branches each of the branches above has started since its last call, the nearest first."""
        above = self.line.parent
        return () if above is None else (above.forks, *above.forks_above)

    def suspend(self, signal: Suspend) -> None:
        """Nothing of this branch continues before what the signal names has come."""
        branch: Branch | None = self
        while branch is not None:
            branch.waiting = branch.waiting or signal
            branch = branch.parent


class Inside(msgspec.Struct, frozen=True, eq=False):
    """The body of a step or tool is executing."""

    name: str
    effect: Effect
    run_id: str = ""
    instead: Callable[..., Any] | None = None
    """Called with the spec and the arguments of what is called in this body: where tests mock."""


CURRENT: Final[ContextVar[Branch | Inside | None]] = ContextVar("holdfast_current", default=None)


def current_branch() -> Branch | None:
    """The branch that is executing here, if any."""
    here = CURRENT.get()
    return here if isinstance(here, Branch) else None
