"""What a flow may ask its driver for, and what a call is while it flows.

A flow is a generator that yields these effects; a driver performs them (`driver.py`). Nothing here
does anything. (Structs, because several are made for every call, and C makes them.)
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

import msgspec

from holdfast.core.entry import Place
from holdfast.core.waits import OpenWait
from holdfast.errors import Suspend
from holdfast.runtime.log.branches import Branch, Inside
from holdfast.runtime.log.session import Session
from holdfast.runtime.log.writer import Batch

if TYPE_CHECKING:  # only runs of async agents have lines
    from holdfast.runtime.lines.turns import Turn

T = TypeVar("T")
Flow: TypeAlias = Generator["Operation", Any, T]
"""A flow that returns a T. Each operation says what it returns; where a flow yields one, its answer has that type."""
Never: TypeAlias = Generator["Operation", Any, NoReturn]


class Write(msgspec.Struct, eq=False):
    """Make a batch durable. BatchRefused if it was not written."""

    session: Session
    batch: Batch
    label: str


class Invoke(msgspec.Struct, eq=False):
    """Call a function, within a time limit if it has one. The only place where effects happen."""

    session: Session
    fn: Callable[..., Any]
    kwargs: dict[str, Any]
    where: Branch | Inside
    is_async: bool
    timeout: float | None = None
    args: tuple[Any, ...] = ()
    finish: Callable[[Any], tuple[Any, Batch]] | None = None
    """For a tool with `tx`: its result and its receipt, to be committed with its writes."""


class Read(msgspec.Struct, eq=False):
    """Read what others have written, to its end; off the event loop if there is one."""

    session: Session
    read: Callable[[], Any]


class Sleep(msgspec.Struct, eq=False):
    """Wait here, in the process."""

    session: Session
    seconds: float


class Draw(msgspec.Struct, eq=False):
    """Read the time, or draw a number or an id, at a place in the code. Not an effect of a flow: it is
    noted, not awaited. A test may put another source in the place of `make`."""

    session: Session
    name: str
    branch: str
    index: int
    make: Callable[[], Any]


class Park(msgspec.Struct, eq=False):
    """Wait for something that the log will bring. Returns when it has; a caller that blocks unwinds with the
    signal instead, and so does every line when the run is suspended."""

    session: Session
    wait: OpenWait
    signal: Suspend


class Begin(msgspec.Struct, eq=False):
    """Wait until something new may start: the code has been given all that is recorded."""

    session: Session
    attempted: object


class Replay(msgspec.Struct, eq=False):
    """Wait until the recorded outcome of these places is next."""

    session: Session
    places: Sequence[Place]
    is_cut: bool = False
    """The code had stopped waiting there: it gets no answer, and this ends when it stops waiting again."""
    given_up: BaseException | None = None
    """By this it has done so already."""


class HandOver(msgspec.Struct, eq=False):
    """Wait until an outcome that was just recorded may be given to the code, and show it."""

    session: Session
    seq: int | None
    turn: Turn | None


Operation = Write | Invoke | Read | Sleep | Park | Begin | Replay | HandOver


class BatchRefused(Exception):
    """A batch was not written: which one, and why."""

    def __init__(self, batch: Batch, error: BaseException) -> None:
        self.batch, self.error = batch, error
        super().__init__(str(error))


class TimeUp(TimeoutError):
    """The time of an `Invoke` was up. (A function may raise a TimeoutError of its own.)"""


class LookAgain(Exception):
    """What a parked call was waiting for has come: it continues from what is recorded of it."""


class TaskCancelled(BaseException):
    """The agent's own code has cancelled the task that makes this call; `cancelled` is the exception to raise there.

    Not raised if the whole run is ended from outside.
    """

    def __init__(self, cancelled: BaseException, *, began: bool) -> None:
        self.cancelled, self.began = cancelled, began
        super().__init__("the agent's code stopped waiting for it")
