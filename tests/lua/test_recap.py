"""The chapter's flow as a file: killed at every boundary and every pair, on both stores, it sends exactly once; also
after a code change, after an error returned by the tool, and in a second run with the same key."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, Options, RunFailed, tool
from holdfast.lua import procedure

FILE = Path(__file__).parent / "files" / "recap.tac"
INPUT = {"recipient_name": "Sam", "recipient_email": "sam@example.com", "raw_notes": "Q1"}

# A process that runs the file with a receiver that honours keys, and dies at the n-th boundary.
CHILD = """
import json, os, signal, sys
from pathlib import Path
from holdfast import Holdfast, Options, tool
from holdfast.lua import procedure

url, file, sent, given, kill_at = sys.argv[1:]
left = int(kill_at)

def boundary(name):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

@tool
def send_email(to: str, subject: str, body: str, idempotency_key: str = "") -> dict:
    known = Path(sent).read_text().splitlines() if Path(sent).exists() else []
    if idempotency_key not in known:
        with open(sent, "a") as out:
            out.write(idempotency_key + "\\n")
    return {"message_id": f"m-{to}"}

recap = procedure(file, tools=[send_email])
with Holdfast(url, options=Options(boundary=boundary, lease_seconds=0.3)) as hf:
    print(json.dumps(hf.run(recap, id="r", wait=True, **json.loads(given))))
print(-left)
"""


def hosted(folder: Path) -> Path:
    """The file, with its tool given by Python."""
    source = FILE.read_text()
    body = re.search(r"send_email = Tool \{.*?\n\}\n", source, re.DOTALL)
    assert body is not None
    path = folder / "recap.tac"
    path.write_text(source.replace(body[0], 'send_email = Tool { use = "host.send_email" }\n'))
    return path


def live(url: str, folder: Path, kill_at: int) -> subprocess.CompletedProcess[str]:
    words = [
        sys.executable,
        "-c",
        CHILD,
        url,
        str(folder / "recap.tac"),
        str(folder / "sent"),
        json.dumps(INPUT),
        str(kill_at),
    ]
    return subprocess.run(words, capture_output=True, text=True, timeout=200, env=dict(os.environ))


def sent(folder: Path) -> list[str]:
    return (folder / "sent").read_text().splitlines() if (folder / "sent").exists() else []


def check_once(url: str, folder: Path, schedule: tuple[int, ...]) -> int:
    """Kill by the schedule, then run to the end; how many boundaries the last life passed."""
    for kill_at in schedule:
        done = live(url, folder, kill_at)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
    done = live(url, folder, 0)
    assert 0 == done.returncode, done.stderr
    result, passed = done.stdout.splitlines()
    assert {"message_id": "m-sam@example.com"} == json.loads(result)
    assert ["recap:sam@example.com:Q1"] == sent(folder)
    with Holdfast(url) as hf:
        state = hf.get("r")
        assert ("completed", "complete", 1) == (
            state.status,
            state.stage,
            state.state["send_attempts"],
        )
    return int(passed)


BOUNDARIES = 10
# Next to the send: at every change; the others every night.
DAILY = range(4, 8)


@pytest.mark.parametrize(
    "kill_at",
    [
        pytest.param(n, marks=() if n in DAILY else pytest.mark.nightly)
        for n in range(1, BOUNDARIES + 1)
    ],
)
def test_killed_at_every_boundary_it_sends_once_on_sqlite(kill_at: int, tmp_path: Path) -> None:
    hosted(tmp_path)

    check_once(str(tmp_path / "h.db"), tmp_path, (kill_at,))


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(1, BOUNDARIES + 1))
def test_killed_at_every_pair_it_sends_once_on_sqlite(first: int, tmp_path: Path) -> None:
    for second in range(1, BOUNDARIES + 1):
        folder = tmp_path / str(second)
        folder.mkdir()
        hosted(folder)
        check_once(str(folder / "h.db"), folder, (first, second))


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(1, BOUNDARIES + 1))
def test_killed_at_every_boundary_and_pair_it_sends_once_on_postgres(
    first: int, tmp_path: Path, postgres_server: Any
) -> None:
    for second in (0, *range(1, BOUNDARIES + 1)):
        folder = tmp_path / str(second)
        folder.mkdir()
        hosted(folder)
        name = postgres_server.create_database()
        url = postgres_server.dsn(name)
        check_once(url, folder, (first, second) if second else (first,))
        postgres_server.drop_database(name)


def test_killed_before_and_after_the_send_it_sends_once_on_postgres(
    tmp_path: Path, postgres_dsn: str
) -> None:
    hosted(tmp_path)

    check_once(postgres_dsn, tmp_path, (5, 3))


def test_every_boundary_is_tested(tmp_path: Path) -> None:
    hosted(tmp_path)

    assert BOUNDARIES == check_once(str(tmp_path / "h.db"), tmp_path, ())


def test_resumed_after_a_code_change_it_does_not_send_again(tmp_path: Path) -> None:
    """The chapter's first case: the code changes and the procedure is run again, with its state kept."""
    path, calls = hosted(tmp_path), []

    @tool
    def send_email(to: str, subject: str, body: str, idempotency_key: str = "") -> dict[str, str]:
        calls.append(idempotency_key)
        return {"message_id": "m-1"}

    with Holdfast(tmp_path / "h.db") as hf:
        hf.run(procedure(path, tools=[send_email]), id="r", **INPUT)
    path.write_text(path.read_text().replace('"Recap"', '"A better recap"'))
    with Holdfast(tmp_path / "h.db", agents=[procedure(path, tools=[send_email])]) as hf:
        again = hf.rerun("r")
        assert "A better recap" == hf.get("r").state["draft_subject"]

    assert {"message_id": "m-1"} == again
    assert 1 == len(calls)


def test_after_an_error_that_the_tool_returned_it_sends_with_the_same_key(tmp_path: Path) -> None:
    """The tool fails after the effect. The resumed run calls it again with the same key: the receiver sends once."""
    path = hosted(tmp_path)
    keys: list[str] = []

    @tool
    def send_email(to: str, subject: str, body: str, idempotency_key: str = "") -> dict[str, str]:
        keys.append(idempotency_key)
        if len(keys) == 1:
            raise ValueError("the mail was sent, but its answer was wrong")
        return {"message_id": "m-1"}

    recap = procedure(path, tools=[send_email])
    with Holdfast(tmp_path / "h.db", options=Options()) as hf:
        with pytest.raises(RunFailed):
            hf.run(recap, id="r", **INPUT)
        assert {"message_id": "m-1"} == hf.resume("r")

    assert 1 == len(set(keys))


def test_a_second_run_with_the_same_key_gets_the_recorded_result(tmp_path: Path) -> None:
    path, calls = hosted(tmp_path), []

    @tool
    def send_email(to: str, subject: str, body: str, idempotency_key: str = "") -> dict[str, str]:
        calls.append(to)
        return {"message_id": f"m-{len(calls)}"}

    recap = procedure(path, tools=[send_email])
    with Holdfast(tmp_path / "h.db") as hf:
        results = [hf.run(recap, id=run_id, **INPUT) for run_id in ("r-1", "r-2")]

    assert [{"message_id": "m-1"}] * 2 == results
    assert 1 == len(calls)


def test_after_a_returned_error_and_a_code_change_it_has_sent_once(tmp_path: Path) -> None:
    """The tool sends, and returns an error instead of an id. Resumed, and run again with better code, it sends no more."""
    path = hosted(tmp_path)
    outbox: dict[str, int] = {}

    @tool
    def send_email(to: str, subject: str, body: str, idempotency_key: str = "") -> dict[str, str]:
        outbox[idempotency_key] = outbox.get(idempotency_key, 0) + 1
        return {"error": "the receiver answered too late"}

    with Holdfast(tmp_path / "h.db") as hf, pytest.raises(RunFailed, match="message_id is missing"):
        hf.run(procedure(path, tools=[send_email]), id="r", **INPUT)
    changed = path.read_text().replace(
        "state.message_id = result.message_id",
        'state.message_id = result.message_id or ("unconfirmed: " .. result.error)',
    )
    path.write_text(changed)
    better = procedure(path, tools=[send_email])
    with Holdfast(tmp_path / "h.db", agents=[better]) as hf:
        resumed = hf.resume("r")
        again = hf.rerun("r")

    assert {"message_id": "unconfirmed: the receiver answered too late"} == resumed == again
    assert {"recap:sam@example.com:Q1": 1} == outbox
