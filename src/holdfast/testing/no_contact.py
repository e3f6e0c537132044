"""Refuse every contact with something outside the process while only mocks may be called.

A tool or model without a mock is refused before it begins (`sandbox.py`). What the body of a step or the agent's
plain code does by itself is seen here, by Python's audit events. An audit hook cannot be removed: this one does
nothing unless the code that is executing belongs to a sandbox that refuses contacts. It does not see threads that a
library starts by itself, nor connections that are already open.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any, Final

from holdfast.runtime.declare.mocks import MockMissing
from holdfast.runtime.log.branches import CURRENT, Branch, Inside

CONTACTS: Final = ("socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo")


@cache
def refuse_contacts() -> None:
    """From here on, code of strict sandboxes contacts nothing."""
    sys.addaudithook(_refuse)


def _refuse(event: str, args: tuple[Any, ...]) -> None:
    if event not in CONTACTS:
        return
    here = CURRENT.get()
    if isinstance(here, Inside):
        sandbox, name = getattr(here.instead, "__self__", None), here.name
    elif isinstance(here, Branch):
        sandbox, name = getattr(here.session.stand_in, "__self__", None), "the agent's own code"
    else:
        return
    if getattr(sandbox, "strict", False):
        sandbox.missing = MockMissing(name, contacts=_address(event, args))  # type: ignore[union-attr]
        raise sandbox.missing  # type: ignore[union-attr]


def _address(event: str, args: tuple[Any, ...]) -> str:
    """The host or path that would be contacted."""
    given = args[0] if event == "socket.getaddrinfo" else args[-1]
    return str(given[0] if isinstance(given, tuple) and given else given)
