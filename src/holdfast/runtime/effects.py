"""What a flow may ask its driver for, and what a call is while it flows.

A flow is a generator that yields these effects; a driver performs them (`drivers.py`). Nothing here
does anything. (Structs, because several are made for every call, and C makes them.)
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NoReturn

import msgspec

from holdfast.core.values import digest
from holdfast.errors import (
    StoreError,
    Suspend,
)
from holdfast.runtime.context import Branch, Inside
from holdfast.runtime.declare import (
    CallSpec,
)
from holdfast.runtime.session import Pending, Session

Flow = Generator["Effect", Any, Any]
Never = Generator["Effect", Any, NoReturn]


class StoreEffect(msgspec.Struct, eq=False):
    """Build an append, make it durable, and return it."""

    session: Session
    build: Callable[[], Pending]
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
    finish: Callable[[Any], tuple[Any, Pending]] | None = None
    """For a tool with `tx`: its result and its receipt, to be committed with its writes."""


class Pause(msgspec.Struct, eq=False):
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


class Leave(msgspec.Struct, eq=False):
    """Wait out of memory: raise this signal, as soon as nothing else of the run goes on."""

    branch: Branch
    signal: Suspend

    @property
    def session(self) -> Session:
        return self.branch.session


Effect = StoreEffect | Invoke | Pause | Leave


class Asked(msgspec.Struct, eq=False):
    """One call as it was asked for: who, where, with what."""

    spec: CallSpec
    branch: Branch
    index: int
    bound: dict[str, Any]
    args: bytes
    own_key: str = ""
    undoes: int = 0
    forks: int = 0
    _digest: str = ""

    @property
    def digest(self) -> str:
        """The name of the arguments. Made when it is wanted: replay mostly compares the bytes themselves."""
        if not self._digest:
            self._digest = digest(self.args)
        return self._digest

    @property
    def session(self) -> Session:
        return self.branch.session

    @property
    def where(self) -> str:
        return place(self.branch.path, self.index)

    def __str__(self) -> str:
        text = self.args.decode()
        return f"{self.spec.name}({text if len(text) <= 200 else text[:199] + '…'})"


def place(branch: str, index: int) -> str:
    """A place in the log, in words."""
    return f"call {index + 1}" + (f" of branch {branch}" if branch else "")


class Refused(Exception):
    """An append was not written: which one, and why."""

    def __init__(self, pending: Pending, error: StoreError) -> None:
        self.pending, self.error = pending, error
        super().__init__(str(error))


class CutOff(BaseException):
    """The agent's own code has cancelled the task that makes this call; `cancelled` is how it is told.

    Not raised when the run as a whole is ended from outside: then its code is not what stopped waiting.
    """

    def __init__(self, cancelled: BaseException, *, began: bool) -> None:
        self.cancelled, self.began = cancelled, began
        super().__init__("the agent's code stopped waiting for it")
