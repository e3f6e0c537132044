"""Have every open SQLite store close its connections around a fork.

Not here: how a store does that (`connections.py`).
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence
from typing import ClassVar, Final, Protocol


class Forked(Protocol):
    """What is called around a fork: the connections of a store."""

    def before_fork(self) -> None: ...
    def after_fork_in_parent(self) -> None: ...
    def after_fork_in_child(self) -> None: ...


class _Forks(threading.local):
    """The open stores.

    What is registered to run at a fork stays registered, so this is done once for all stores: hooks
    of each store's own would be kept, and called, long after it is gone. A thread that forks keeps
    those that it has stopped, so that it sets exactly these going again.
    """

    watched: ClassVar[weakref.WeakSet[Forked]] = weakref.WeakSet()
    stopped: Sequence[Forked] = ()

    def before(self) -> None:
        self.stopped = tuple(self.watched)
        for connections in self.stopped:
            connections.before_fork()

    def after_in_parent(self) -> None:
        for connections in self.stopped:
            connections.after_fork_in_parent()
        self.stopped = ()

    def after_in_child(self) -> None:
        for connections in self.stopped:
            connections.after_fork_in_child()
        self.stopped = ()


FORKS: Final = _Forks()
os.register_at_fork(
    before=FORKS.before,
    after_in_parent=FORKS.after_in_parent,
    after_in_child=FORKS.after_in_child,
)
