"""Worker processes: started as a user would start them, watched, and ended by their test."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from support.waiting import PATIENCE_SECONDS

TESTS = Path(__file__).parent.parent
AGENTS = TESTS / "support" / "fleet_agents.py"
STORES = ("sqlite", pytest.param("postgres", marks=pytest.mark.postgres))


def url_of(kind: str, request: pytest.FixtureRequest, folder: Path) -> str:
    """The URL of a fresh store of this kind."""
    return str(folder / "h.db") if kind == "sqlite" else request.getfixturevalue("postgres_dsn")


@dataclass
class Workers:
    """Worker processes over one store."""

    url: str
    folder: Path
    alive: list[subprocess.Popen[str]] = field(default_factory=list)
    news: tuple[int, int] = field(default_factory=os.pipe)
    """A pipe by which workers say that there is a new deed; the file says which."""

    @property
    def deeds(self) -> list[str]:
        """What tools have done, in order, each with its process."""
        file = self.folder / "deeds"
        return file.read_text("utf-8").splitlines() if file.exists() else []

    def did(self) -> list[str]:
        """What tools have done, in any process."""
        return [line.rpartition(" ")[0] for line in self.deeds]

    def wait_for(self, deed: str) -> None:
        """Wait until some worker has done this."""
        end = time.monotonic() + PATIENCE_SECONDS
        while deed not in self.did():
            ready, _, _ = select.select([self.news[0]], [], [], end - time.monotonic())
            assert ready, f"{deed!r} did not happen"
            os.read(self.news[0], 65536)

    def expect(self, process: subprocess.Popen[str], text: str) -> None:
        """Wait until this worker says so on stderr."""
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            if text in line:
                return
            lines.append(line)
        raise AssertionError(f"it ended without {text!r}: {lines}")

    def start(
        self,
        *words: str,
        target: str = str(AGENTS),
        stdin: int | None = None,
        before: Sequence[str] = (),
    ) -> subprocess.Popen[str]:
        """A worker; `before` stands before its command, and ends when it does."""
        command = [sys.executable, "-m", "holdfast.cli", "worker", target, "--db", self.url, *words]
        process = subprocess.Popen(
            [*before, *command],
            cwd=TESTS,
            env={
                **os.environ,
                "DEEDS": str(self.folder / "deeds"),
                "DEEDS_NEWS": str(self.news[1]),
            },
            pass_fds=[self.news[1]],
            stdin=stdin,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.alive.append(process)
        return process

    def once(self, *words: str, target: str = str(AGENTS)) -> tuple[int, str, str]:
        """A worker that drains the queue: its exit code, and what it said."""
        process = self.start("--once", *words, target=target, stdin=subprocess.DEVNULL)
        said, told = process.communicate(timeout=PATIENCE_SECONDS)
        return process.returncode, said, told

    def close(self) -> None:
        for process in self.alive:
            with contextlib.suppress(ProcessLookupError):  # all of its session are gone
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        for end in self.news:
            os.close(end)


def workers(url: str, folder: Path) -> Iterator[Workers]:
    made = Workers(url, folder)
    os.set_blocking(made.news[1], False)
    try:
        yield made
    finally:
        made.close()
