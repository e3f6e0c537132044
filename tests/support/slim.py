"""Kill scenarios from a small process: forking the test runner, with all tests and their libraries in
it, costs several times what the run itself does.

`Slim` is the side that asks; the process reads orders from stdin, one line of JSON each, explores as
`support.kill` does, and answers in the same way. It has a ledger of its own.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

from holdfast.store.base import Store
from holdfast.store.sqlite import SQLiteStore
from support import scenarios
from support.kill import Clock, explore
from support.ledger import Ledger

TESTS = Path(__file__).parent.parent
START = "import sys; sys.path.insert(0, sys.argv[1]); from support.slim import serve; serve()"


class Slim:
    """The process, started when it is first needed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def explore(self, scenario: str, url: str, *, pairs: bool, stride: int) -> int:
        """How many schedules were killed without a violation; AssertionError at the first one."""
        order = {
            "scenario": scenario,
            "url": url,
            "pairs": pairs,
            "stride": stride,
        }
        try:
            answer = self._ask(order)
        except BaseException:  # also a test that takes too long: nobody waits for its answer
            self.close()
            raise
        assert "broke" not in answer, answer["broke"]
        return int(answer["schedules"])

    def _ask(self, order: dict[str, Any]) -> Any:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-c", START, str(TESTS)], text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
        asked, answered = self._process.stdin, self._process.stdout
        assert asked is not None and answered is not None
        asked.write(json.dumps(order) + "\n")
        asked.flush()
        line = answered.readline()
        assert line, "the process that explores has ended; see what it said on stderr"
        return json.loads(line)

    def close(self) -> None:
        """Let it end, or end it and all that it has started."""
        if self._process is None:
            return
        process, self._process = self._process, None
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        process.stdout.close()


# ── in the process ───────────────────────────────────────────────────────────────────────────


def serve() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever somebody prints is no answer
    ledger = Ledger().start()
    scenarios.use(ledger)
    known = {scenario.name: scenario for scenario in scenarios.ALL}
    for line in sys.stdin:
        order = json.loads(line)
        gc.collect()
        gc.freeze()  # what is here stays: children need not look at it, and so copy it
        try:
            found = explore(
                known[order["scenario"]], lambda clock, url=order["url"]: _store(url, clock), ledger,
                pairs=order["pairs"], stride=order["stride"],
            )  # fmt: skip
            answer = {"schedules": found.schedules}
        except BaseException:  # carried to whoever gave the order, who fails with it
            answer = {"broke": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    ledger.stop()


def _store(url: str, clock: Clock) -> Store:
    if not url.startswith("postgresql:"):
        return SQLiteStore(url, clock=clock)
    from holdfast.store.postgres import PostgresStore

    return PostgresStore(url, clock=clock)
