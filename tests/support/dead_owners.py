"""An agent that stops at a door in its second step, and a process that runs it until it is killed."""

from __future__ import annotations

import os
import sys

from holdfast import Holdfast, Options, Run, agent, step, tool
from support.waiting import go_through

LEASE_SECONDS = 3600.0  # a test that waits for it to end fails


@step
def note(done: list[str]) -> int:
    done.append("noted")
    return os.getpid()


@tool
def send(door: str, idempotency_key: str = "") -> str:
    print("inside", flush=True)
    go_through(door)
    return "sent"


@agent
def mailing(run: Run, door: str) -> str:
    note([])
    return send(door)


def open_store(url: str) -> Holdfast:
    return Holdfast(url, agents=[mailing], options=Options(lease_seconds=LEASE_SECONDS))


if __name__ == "__main__":
    with open_store(sys.argv[1]) as hf:
        hf.run(mailing, id="r", door=sys.argv[2])
        print("done", flush=True)
