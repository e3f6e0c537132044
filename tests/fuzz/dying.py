"""A process that dies right after it has suspended a run; see `test_found.py`."""

from __future__ import annotations

import os
import signal
from typing import Any

from holdfast import Holdfast, Options, Run, agent


@agent
def waiting(run: Run) -> Any:
    return run.wait_for("go")


def signal_and_die(url: str) -> None:
    """The signal comes after the wait has looked, and before the run is suspended."""

    def meet(where: str) -> None:
        if where == "before commit run_suspended" and not sent:
            sent.append(where)
            hf.signal("r", "go", "went")
        elif where == "after commit run_suspended":
            os.kill(os.getpid(), signal.SIGKILL)

    sent: list[str] = []
    with Holdfast(url, options=Options(boundary=meet)) as hf:
        hf.run(waiting, id="r")
