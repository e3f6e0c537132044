"""Warm processes that lives are forked from: each a fresh interpreter with the agent's file loaded.

There are two, with different hash seeds, and the lives of a run take turns between them: so a run that
is resumed meets another order of sets, as it would in a new process, at the price of a fork. A server
has one thread and opens nothing, so that forking it is safe.

`ForkServers` is the side that asks; `serve` is what a server does. What is loaded there is the caller's
business: both sides must know the same plays under the same numbers.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from holdfast.errors import HoldfastError
from holdfast.testing.crash import how_it_ended, life_and_death
from holdfast.testing.scenario import ExecutionResult, Executor, How, ScenarioRun, ScenarioSetup

SEEDS = ("1", "2")


def serve(fd: int, setup_of: Callable[[int], ScenarioSetup]) -> None:
    """Fork a process for every request, until there are no more."""
    with socket.socket(fileno=fd) as asked, asked.makefile("rwb") as orders:
        os.set_inheritable(fd, False)
        _say(orders, {"ready": True})
        for line in orders:
            order = json.loads(line)
            setup = setup_of(order["setup"])
            stage = ScenarioRun(Path(order["folder"]), setup)
            try:
                status = life_and_death(stage, setup.agent, order["how"], order["kill_at"])
            finally:
                stage.close()
            _say(orders, {"status": status})


def _say(to: Any, what: dict[str, Any]) -> None:
    to.write(json.dumps(what).encode() + b"\n")
    to.flush()


class ForkServers:
    """Two servers, started when the first life is asked for. `command` gets the socket's number."""

    def __init__(self, command: Callable[[int], Sequence[str]]) -> None:
        self._command = command
        self._started: list[_ForkServer] = []

    def __enter__(self) -> ForkServers:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._started:
            server.close()

    def lives(self, setup: int) -> Callable[[int | None], Executor]:
        """How this scenario is executed."""

        def performance(kill_at: int | None) -> Executor:
            lived = 0

            def live(stage: ScenarioRun, agent: Callable[..., Any], how: How) -> ExecutionResult:  # noqa: ARG001 - the server has it
                nonlocal lived
                lived += 1
                order = {
                    "setup": setup,
                    "folder": str(stage.sandbox.folder),
                    "how": how,
                    "kill_at": kill_at,
                }
                return how_it_ended(stage, self._server(lived).ask(order)["status"])

            return live

        return performance

    def _server(self, lived: int) -> _ForkServer:
        if not self._started:
            self._started += [_ForkServer(self._command, seed) for seed in SEEDS]
        return self._started[lived % len(SEEDS)]


class _ForkServer:
    def __init__(self, command: Callable[[int], Sequence[str]], seed: str) -> None:
        ours, theirs = socket.socketpair()
        self._says: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the server
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter
                command(theirs.fileno()),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._says,
                env={**os.environ, "PYTHONHASHSEED": seed},
            )
        self._talk = ours.makefile("rwb")
        ours.close()
        self._ready = False

    def ask(self, order: dict[str, Any]) -> Any:
        if not self._ready:
            self._ready = bool(self._heard()["ready"])
        try:
            _say(self._talk, order)
        except OSError:
            self._gone()
        return self._heard()

    def _heard(self) -> Any:
        line = self._talk.readline()
        if not line:
            self._gone()
        return json.loads(line)

    def _gone(self) -> None:
        self._says.seek(0)
        said = self._says.read().decode(errors="replace")[-2000:]
        raise HoldfastError(f"the fork server has ended:\n{said}")

    def close(self) -> None:
        self._talk.close()
        self._process.wait()
        self._says.close()
