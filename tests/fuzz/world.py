"""What lies outside of Holdfast: the ledger of effects, the acknowledgements that people got, and what the
processes of a batch found wrong.

Each is a file to which a line is appended by one `write`, so that a line is there or not, whatever kills the
process that writes it. Nothing here depends on Holdfast.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import time
from pathlib import Path
from typing import Any


class Refused(Exception):
    """The world says no, and nothing happened."""


def stand_still(seconds: float) -> None:
    """All threads of this process stand still for so long."""
    usleep = ctypes.PyDLL(None).usleep  # unlike CDLL, it does not release the interpreter's lock
    usleep(round(seconds * 1e6))


class World:
    """The files of one batch. Any process of the batch may open them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, int] = {}

    def _append(self, name: str, line: dict[str, Any]) -> None:
        if name not in self._files:
            path = self.folder / name
            self._files[name] = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(self._files[name], json.dumps(line).encode() + b"\n")

    def _read(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / name
        if not path.exists():
            return []
        whole, _, _ = path.read_bytes().rpartition(b"\n")  # another process may be writing the rest
        return [json.loads(line) for line in whole.splitlines()]

    # ── effects ──────────────────────────────────────────────────────────────────────────

    def dawdle(self, most_ms: float = 2.0) -> None:
        """A request, or its answer, is under way: time in which a process can die."""
        if random.random() < 0.3:
            time.sleep(random.uniform(0, most_ms) / 1000)

    def take(self, seconds: float) -> None:
        """Work that takes so long."""
        time.sleep(seconds)

    def act(self, tool: str, key: str, args: dict[str, Any]) -> dict[str, Any]:
        """Something happens in the world. Its receiver honours keys: the result tells what came first."""
        self.dawdle()
        found = self.find(key) if key else None
        result = found or {"tool": tool, "token": random.randrange(10**9)}
        self._append(
            "effects",
            {
                "tool": tool,
                "key": key,
                "args": args,
                "result": result,
                "pid": os.getpid(),
                "time": time.time(),
            },
        )
        self.dawdle()
        return result

    def fail_first(self, key: str, times: int) -> None:
        """Refuse the first requests that come with this key."""
        before = sum(line["key"] == key for line in self._read("requests"))
        self._append("requests", {"key": key, "pid": os.getpid()})
        if before < times:
            raise Refused("try again later")

    def find(self, key: str) -> dict[str, Any] | None:
        """What came of a request with this key."""
        result: dict[str, Any] | None
        result = next((x["result"] for x in self.effects() if x["key"] == key), None)
        return result

    def effects(self) -> list[dict[str, Any]]:
        return self._read("effects")

    # ── the last worker of a batch is frozen ─────────────────────────────────────────────

    def record_freeze(self, what: str) -> None:
        """The last worker is to be frozen ("planned"), or was and goes on ("over")."""
        self._append("freeze", {"what": what})

    def enter_hang(self, run: str) -> None:
        """This process awaits something for a run."""
        self._append("hangs", {"run": run, "pid": os.getpid()})

    def hangs(self, run: str) -> bool:
        """Whether what this process awaits does not come: as long as the last worker is to be frozen, and for good if
        another process has asked for it since. A process that has lost a run must not wait for it."""
        frozen = [line["what"] for line in self._read("freeze")]
        if "over" not in frozen:
            return bool(frozen)
        last = [line["pid"] for line in self._read("hangs") if line["run"] == run][-1]
        return bool(last != os.getpid())

    # ── people ───────────────────────────────────────────────────────────────────────────

    def acknowledge(self, act: str, run: str, token: str, **fields: Any) -> None:
        """A person was told that this was recorded; the token is the `by` of its event."""
        self._append("acks", {"act": act, "run": run, "token": token, **fields})

    def acks(self) -> list[dict[str, Any]]:
        return self._read("acks")

    # ── what went wrong ──────────────────────────────────────────────────────────────────

    def report(self, kind: str, run: str, text: str) -> None:
        """A violation that a process saw by itself."""
        self._append("findings", {"kind": kind, "run": run, "text": text})

    def findings(self) -> list[dict[str, Any]]:
        return self._read("findings")

    def record_life(self, **what: Any) -> None:
        """How a process of the batch lived, for people who look at a failure."""
        self._append("lives", what)

    def lives(self) -> list[dict[str, Any]]:
        return self._read("lives")
