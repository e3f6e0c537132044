"""A run that outlives its workers, and an observer who needs none of their code.

Three processes share one store. The first worker dies in the middle of a call, by SIGKILL. The observer then reads
where the run is and what it is waiting for. The second worker claims the run and completes it.

    python examples/handover.py
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from holdfast import Holdfast, Options, Run, agent, step, tool, views

HOME = Path(tempfile.mkdtemp(prefix="handover-"))


@step
def count_orders(day: str) -> int:
    print(f"    counting the orders of {day}", flush=True)
    return 12


@tool(risk="external_action")
def send_report(text: str, idempotency_key: str = "") -> str:
    if os.environ.get("WORKER") == "first":
        print("    … the first worker is killed while it sends", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    print(f"    sending {text!r}", flush=True)
    return "sent"


@agent
def report(run: Run, day: str) -> str:
    run.plan(["count", "send"])
    with run.doing("count"):
        run.state.orders = count_orders(day)
    with run.doing("send"):
        return send_report(f"{run.state.orders} orders on {day}")


def work(url: str) -> None:
    with Holdfast(url, agents=[report], options=Options(lease_seconds=1.0)) as hf:
        while hf.get("report").status not in views.ENDED:
            hf.worker().run(once=True)


def worker(name: str, url: str) -> int:
    """A process of its own, which could be on another machine."""
    words = [sys.executable, __file__, "--work", url]
    env = {**os.environ, "WORKER": name}
    return subprocess.run(words, env=env, check=False).returncode  # noqa: S603 - this file itself


def main() -> None:
    url = os.environ.get("HOLDFAST_URL") or str(HOME / "holdfast.db")
    with Holdfast(url) as hf:
        hf.start(report, id="report", day="Monday")
        print("The first worker:", flush=True)
        worker("first", url)

        state = hf.get("report")
        print(f"The observer: {state.status}, {views.position(state)}; knows {dict(state.state)}")
        print("The second worker:", flush=True)
        worker("second", url)
        calls = [(call.name, len(call.attempts)) for call in hf.get("report").calls]
        print(f"Completed: {hf.result('report')}. Attempts: {calls}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2])
    else:
        main()
