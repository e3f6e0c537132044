"""What the lines of an async agent ask of their run. `Session` (`runtime/log/session.py`) is one.

Lines are below the session, so that they can be read and tested without it.
"""

from __future__ import annotations

from typing import Protocol

from holdfast.core.entry import Place
from holdfast.core.events import Event
from holdfast.core.journal import Journal
from holdfast.core.waits import OpenWait
from holdfast.errors import HoldfastError, Suspend
from holdfast.store.base import Store


class KnownLog(Protocol):
    """What is known of the log: `LogReader` is one."""

    @property
    def knows_all(self) -> bool: ...
    def read_all(self) -> None: ...


class VisibleLog(Protocol):
    """What the code may see of its log: `AgentView` is one."""

    def show(self, seq: int) -> None: ...


class ExecutedRun(Protocol):
    """A run that this process executes."""

    store: Store
    journal: Journal
    waits: dict[Place, OpenWait]
    suspensions: dict[Place, Suspend]
    patience_us: int
    only_replay: HoldfastError | None
    stop_signal: BaseException | None
    lost: BaseException | None
    is_unwinding: bool

    @property
    def is_ending(self) -> bool: ...
    @property
    def log(self) -> KnownLog: ...
    @property
    def view(self) -> VisibleLog: ...
    def check_alive(self) -> None: ...
    def stop(self, signal: BaseException) -> BaseException: ...
    def lose(self, signal: BaseException) -> None: ...
    def buffer(self, event: Event) -> object: ...
    def not_asked(self, place: Place, attempted: str) -> BaseException: ...
