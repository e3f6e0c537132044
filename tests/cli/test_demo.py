"""The demo as users run it: it ends well, with one invite, and what it says is true."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import Holdfast


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """One demo for all tests of this file."""
    folder = tmp_path_factory.mktemp("demo") / "here"
    command = [sys.executable, "-m", "holdfast.cli", "demo", "--folder", str(folder)]
    # Somebody's own settings must not lead the demo into their store, nor decide whether it crashes.
    env = {
        **os.environ,
        "HOLDFAST_URL": "/nowhere/at.db",
        "HOLDFAST_DEMO_CALENDAR": "http://127.0.0.1:9",
    }
    return folder, subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)


def test_the_demo_ends_well_and_quickly_with_one_invite(
    told: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, done = told

    assert 0 == done.returncode, done.stdout + done.stderr
    ledger = [json.loads(line) for line in (folder / "calendar.jsonl").read_text().splitlines()]
    invites = [line for line in ledger if line["page"] == "/invites"]
    assert ["made", "answered again"] == [line["did"] for line in invites]
    assert 1 == len({line["key"] for line in invites})


def test_the_calendar_really_failed_and_was_tried_again(
    told: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, _ = told
    ledger = [json.loads(line) for line in (folder / "calendar.jsonl").read_text().splitlines()]

    assert ["/slot", "/posts"] == [line["page"] for line in ledger if line["did"] == "answered 503"]


def test_the_second_process_repeats_only_what_had_no_receipt(
    told: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    """Steps 1–5 happened once, in the first process; from step 6 on it was the second."""
    _, done = told
    calls = re.findall(r"\[process (\d+)\] (GET|POST) (/\w+)", done.stdout)
    first, second = dict.fromkeys(pid for pid, _, _ in calls)

    assert ["/slot", "/slot", "/rooms", "/invites"] == [
        page for pid, _, page in calls if pid == first
    ]
    assert ["/invites", "/posts", "/posts"] == [page for pid, _, page in calls if pid == second]


def test_the_log_of_the_demo_is_a_run_of_nine_steps(
    told: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, _ = told
    with Holdfast(folder / ".holdfast" / "holdfast.db") as hf:
        state, verdict = hf.get("onboard-ada"), hf.verify("onboard-ada")

    assert ("completed", 9, True) == (state.status, state.steps, verdict.ok)
    assert [1, 2, 3, 4, 5, 6, 7, 8, 9] == [call.step for call in state.calls]
    assert {"done"} == {call.status for call in state.calls}
    assert 2 == len(state.calls[5].attempts)


def test_the_demo_shows_where_the_run_was_and_what_to_try_next(
    told: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, done = told

    assert "step 6 of 9, invite; 1–5 committed" in done.stdout
    assert "step 9 of 9; 1–9 committed" in done.stdout
    assert f"cd {folder}" in done.stdout


def test_the_demo_does_not_touch_an_earlier_one(
    told: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, _ = told
    before = (folder / "calendar.jsonl").read_bytes()
    command = [sys.executable, "-m", "holdfast.cli", "demo", "--folder", str(folder)]
    again = subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert 1 == again.returncode
    assert "holds an earlier demo" in again.stderr
    assert before == (folder / "calendar.jsonl").read_bytes()
