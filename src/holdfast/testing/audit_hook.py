"""See what the code of a process does to the world, by Python's own audit events.

For processes that are about to be killed: an audit hook cannot be taken out again. It sees files
opened for writing, files removed, programs started, connections made and mail sent, each with the
line of the user's code that did it. It does not see what a connection that is already open carries,
nor what libraries do below Python.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Final

from holdfast.runtime.log.branches import CURRENT, Branch, Inside
from holdfast.testing.sandbox import FactLog, is_ours, user_place

# event: (what it is in words, whether doing it twice is surely not the same as doing it once)
SEEN: Final = {
    "smtplib.send": ("sends mail", True),
    "os.remove": ("removes a file", True),
    "os.rename": ("renames a file", True),
    "os.rmdir": ("removes a folder", True),
    "shutil.rmtree": ("removes a folder", True),
    "shutil.move": ("moves a file", True),
    "os.truncate": ("truncates a file", True),
    "os.mkdir": ("creates a folder", False),
    "os.system": ("starts a program", False),
    "subprocess.Popen": ("starts a program", False),
    "socket.connect": ("connects to", False),
    "socket.sendto": ("sends a packet to", False),
    "sqlite3.connect": ("opens a database", False),
}
_WRITES: Final = os.O_WRONLY | os.O_RDWR


def watch(journal: FactLog) -> None:
    """From here on, everything that this process does to the world is journaled."""

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" or event in SEEN:
            _see(journal, event, args)

    sys.addaudithook(hook)


def _see(journal: FactLog, event: str, args: tuple[Any, ...]) -> None:
    here = CURRENT.get()
    if here is None or (isinstance(here, Inside) and here.effect.may_be_in_doubt):
        return  # outside any run, or in the body of a tool that has declared its effect
    what, is_sure = _opened(args) if event == "open" else SEEN[event]
    frame = sys._getframe(2)
    if not what or is_ours(frame):
        return
    place = user_place(frame)
    if place:
        journal.add(
            "saw",
            what=what,
            detail=_detail(event, args),
            sure=is_sure or isinstance(here, Branch),
            at=place,
            inside=here.name if isinstance(here, Inside) else "",
        )


def _opened(args: tuple[Any, ...]) -> tuple[str, bool]:
    path, flags = args[0], args[2] if len(args) > 2 and isinstance(args[2], int) else 0
    if (
        not flags & _WRITES
        or isinstance(path, int)
        or "__pycache__" in str(path)
        or str(path) == os.devnull
    ):
        return "", False
    return ("appends to", True) if flags & os.O_APPEND else ("writes", False)


def _detail(event: str, args: tuple[Any, ...]) -> str:
    if event in ("socket.connect", "socket.sendto"):
        return str(args[1]) if len(args) > 1 else ""
    if event == "smtplib.send":
        return ""
    return str(args[0]) if args else ""
