"""Two agents in two processes, with the SDK's client, hand one task over."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from support import mcp_tasks
from support.mcp_tasks import MODES, migration, waits
from support.workers import url_of

TASK = "move-billing"


@contextmanager
def agent(role: str, url: str, mode: str) -> Iterator[subprocess.Popen[str]]:
    """An agent's process; what is left of it is killed."""
    words = [sys.executable, mcp_tasks.__file__, role, url, TASK, mode]
    process = subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(mcp_tasks.__file__).parent.parent)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "the agent has ended"
    return json.loads(line)


@contextmanager
def worker(hf: Holdfast) -> Iterator[None]:
    """Executes what is due, meanwhile."""
    working = hf.worker(agents=[migration])
    thread = threading.Thread(target=working.run)
    thread.start()
    try:
        yield
    finally:
        working.stop()
        thread.join()


NIGHTLY = [
    pytest.param("sqlite", MODES[1], marks=pytest.mark.nightly),
    pytest.param("postgres", MODES[0], marks=[pytest.mark.nightly, pytest.mark.postgres]),
]


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        ("sqlite", MODES[0]),
        pytest.param("postgres", MODES[1], marks=pytest.mark.postgres),
        *NIGHTLY,
    ],
)
def test_an_agent_is_killed_and_another_one_completes_its_task(
    kind: str, mode: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """One agent writes progress, another one reads it and continues (issue 17)."""
    url = url_of(kind, request, tmp_path)
    with Holdfast(url, agents=[migration]) as hf:
        uri = waits(hf, migration, TASK, goal="Move billing")
        with agent("reader", url, mode) as b:
            listening = said(b)
            with agent("writer", url, mode) as a:
                wrote = said(a)
                assert {"notified": True} == said(b)
                a.send_signal(signal.SIGKILL)
                assert -signal.SIGKILL == a.wait()
            with worker(hf):
                assert b.stdin is not None
                b.stdin.write("continue\n")
                b.stdin.flush()
                told = said(b)
        result = hf.result(TASK)

    assert {"legacy": "2025-11-25", "auto": "2026-07-28"}[mode] == listening["listening"]
    (due,) = told["due"]
    note = "Config is next. Use the namespace billing."
    assert {"to": "writer", "from": "researcher", "note": note} == due["handed_over"]
    assert ["done", "pending", "pending"] == told["read"]["plan_status"]
    assert "mcp:researcher (kubectl)" == told["read"]["known_facts"][1]["source"]
    assert wrote["wrote"] + 1 == told["conflict"]["current_version"]
    assert "VersionConflict" == told["conflict"]["error"]
    assert {"namespace": "billing"} == told["conflict"]["yours"]["state"]
    assert "known_facts[1]" in [change["path"] for change in told["conflict"]["theirs"]]
    assert "completed" == told["after"]["status"]
    assert [] == told["after"]["open_questions"]
    assert {"outcome": "moved", "namespace": "billing"} == told["after"]["result"] == result
    assert uri == due["uri"]
