"""Names of workers, and whether the process behind a name has died on this machine.

A name contains what identifies a process: its pid, when it started (pids are reused), and where its pid counts (this
boot of this machine, its pid namespace). So a process on the same machine can know that an owner is dead, and need
not wait until its lease ends. A stopped or suspended process is alive. A name from elsewhere, or one that cannot be
checked here (there is no `/proc`), counts as alive: then the lease decides, as always.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import uuid
from pathlib import Path
from typing import Final

from holdfast.store.base import RunRow

PROC: Final = Path("/proc")
DEAD_STATES: Final = ("Z", "X")
"""A zombie has ended; only its parent has not asked how yet."""


def worker_name() -> str:
    """A name for this process that no other has had, and that says which process it is, where that is known."""
    pid = os.getpid()
    name = f"{os.uname().nodename[:40]}-{pid}-{uuid.uuid4().hex[:8]}"
    place, started = _place(), _started(pid)
    return f"{name}-{place}-{started}" if place and started else name


def is_held(row: RunRow, now: int) -> bool:
    """Whether a worker holds an unexpired lease on the run, and is not known to be dead."""
    return row.is_live(now) and not has_died_here(row.owner)


def has_died_here(owner: str) -> bool:
    """Whether the process of this name was one of this machine (and pid namespace) and is dead."""
    parts = owner.rsplit("-", 4)
    if len(parts) != 5 or not (parts[1].isdecimal() and parts[4].isdecimal()):
        return False
    pid, place, started = int(parts[1]), parts[3], parts[4]
    if place != _place():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass  # it exists and is not ours
    now = _started(pid)
    return (bool(now) and now != started) or _is_zombie(pid)


def _place() -> str:
    """Where a pid of this process is valid: empty if that is unknown."""
    with contextlib.suppress(OSError):
        if (PROC / "self").readlink().name != str(os.getpid()):
            return ""  # this /proc is that of another namespace
        boot = (PROC / "sys/kernel/random/boot_id").read_text(encoding="utf-8")
        spaces = [str((PROC / "self/ns" / name).readlink()) for name in ("pid", "time")]
        return hashlib.sha256(" ".join([boot, *spaces]).encode()).hexdigest()[:12]
    return ""


def _stat(pid: int) -> list[str]:
    """The fields of a process from its state on; the name before it may hold anything."""
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _started(pid: int) -> str:
    """When a process started, in ticks since the machine did; empty if that is unknown."""
    fields = _stat(pid)
    return fields[19] if len(fields) > 19 else ""


def _is_zombie(pid: int) -> bool:
    """Whether a process has ended, with all of its threads."""
    fields = _stat(pid)
    return len(fields) > 17 and fields[0] in DEAD_STATES and int(fields[17]) <= 1
