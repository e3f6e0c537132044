"""Which run, and which line of its code, is executing here: one context variable.

A `Branch` is one line of execution within a run: the agent's own, a task it started, a thread of
`run.map`. Calls are numbered within their branch, so branches that finish in another order on replay
still find their own calls. While the body of a step or tool executes, an `Inside` stands in the
variable instead: what is called there belongs to that call.

A branch that has to wait stays so, and so do those it was started from: code that catches everything
cannot go on past a wait.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from holdfast.errors import Suspend
    from holdfast.runtime.session import Session
    from holdfast.runtime.together import Together


@dataclass(slots=True)
class Branch:
    """One line of execution. `index` is the position of its next call or wait."""

    session: Session
    path: str = ""
    index: int = 0
    forks: int = 0
    parent: Branch | None = None
    together: Together | None = None
    waiting: Suspend | None = None
    """What this branch, or one that was started from it, has to wait for."""
    call_failed: bool = False
    """Whether the code of this branch has been told of a call that failed."""

    def take(self) -> int:
        """The position of the call that is being made now."""
        if self.waiting is not None:
            raise self.waiting
        index = self.index
        self.index += 1
        return index

    def fork(self) -> Branch:
        """A line of execution that starts here; named by the order in which the code starts them."""
        self.forks += 1
        dot = "." if self.path else ""
        path = f"{self.path}{dot}{self.index}-{self.forks}"
        return Branch(self.session, path, parent=self, together=self.together)

    def suspend(self, signal: Suspend) -> None:
        """Nothing of this branch goes on before what the signal names has come."""
        branch: Branch | None = self
        while branch is not None:
            branch.waiting = branch.waiting or signal
            branch = branch.parent


class Inside(msgspec.Struct, frozen=True, eq=False):
    """The body of a step or tool is executing."""

    name: str
    effect: str
    run_id: str = ""
    instead: Callable[..., Any] | None = None
    """Called with the spec and the arguments of what is called in this body: where tests mock."""


CURRENT: Final[ContextVar[Branch | Inside | None]] = ContextVar("holdfast_current", default=None)


def current_branch() -> Branch | None:
    """The branch that is executing here, if any."""
    here = CURRENT.get()
    return here if isinstance(here, Branch) else None
