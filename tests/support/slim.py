"""A small process that forks in the place of the test runner: forking that, with all tests and their
libraries in it, costs several times what the children themselves do.

`Slim` is the side that asks. The process reads orders from stdin, one line of JSON each (a function of a
support module, and what it is given), and answers what came of it in the same way.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent.parent
START = "import sys; sys.path[:0] = sys.argv[1:]; from support.slim import serve; serve()"


class Slim:
    """The process, started when it is first needed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def call(self, function: str, **arguments: Any) -> Any:
        """What `module:function` returns there; AssertionError, with its traceback, if it raises."""
        try:
            answer = self._ask({"function": function, "given": arguments})
        except BaseException:  # also a test that takes too long: no one waits for its answer
            self.close()
            raise
        assert "broke" not in answer, answer["broke"]
        return answer["returned"]

    def _ask(self, order: dict[str, Any]) -> Any:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-c", START, str(TESTS), str(TESTS / "testing")],
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        asked, answered = self._process.stdin, self._process.stdout
        assert asked is not None and answered is not None
        asked.write(json.dumps(order) + "\n")
        asked.flush()
        line = answered.readline()
        assert line, "the small process has ended; see what it said on stderr"
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


def serve() -> None:
    """The process's own side."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a test prints is not an answer
    for line in sys.stdin:
        order = json.loads(line)
        module, _, name = order["function"].partition(":")
        try:
            function = getattr(importlib.import_module(module), name)
            gc.collect()
            gc.freeze()  # what is here stays: children need not look at it, and so copy it
            answer = {"returned": function(**order["given"])}
        except BaseException:  # passed to the caller, which fails with it
            answer = {"broke": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
