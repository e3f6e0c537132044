"""The demo as users run it, at a terminal: it ends well, with one invite, and what it says is true."""

import json
import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast import Holdfast
from support.shell import HOLDFAST, Terminal, real, typed


class Told(NamedTuple):
    """A demo that was seen to its end."""

    folder: Path
    code: int
    text: str
    """What stood on the screen, without its colours."""
    said: str


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """One demo for all tests of this file."""
    folder = tmp_path_factory.mktemp("demo") / "it's here, überall"
    # Someone's own settings must not lead the demo into their store, nor decide whether it crashes.
    env = {"HOLDFAST_URL": "/nowhere/at.db", "HOLDFAST_DEMO_CALENDAR": "http://127.0.0.1:9"}
    session = Terminal(folder.parent, HOLDFAST, "demo", "--folder", str(folder), **env)
    try:
        return Told(folder, session.end(), session.text, session.said)
    finally:
        session.close()


def test_the_demo_ends_well_and_quickly_with_one_invite(told: Told) -> None:
    folder = told.folder

    assert 0 == told.code, told.text
    ledger = [json.loads(line) for line in (folder / "calendar.jsonl").read_text().splitlines()]
    invites = [line for line in ledger if line["page"] == "/invites"]
    assert ["made", "answered again"] == [line["did"] for line in invites]
    assert 1 == len({line["key"] for line in invites})


def test_the_calendar_really_failed_and_was_tried_again(told: Told) -> None:
    folder = told.folder
    ledger = [json.loads(line) for line in (folder / "calendar.jsonl").read_text().splitlines()]

    assert ["/slot", "/posts"] == [line["page"] for line in ledger if line["did"] == "answered 503"]


def test_the_second_process_repeats_only_what_had_no_receipt(told: Told) -> None:
    """Steps 1–5 happened once, in the first process; from step 6 on it was the second."""
    calls = re.findall(r"\[process (\d+)\] (GET|POST) (/\w+)", told.text)
    first, second = dict.fromkeys(pid for pid, _, _ in calls)

    assert ["/slot", "/slot", "/rooms", "/invites"] == [
        page for pid, _, page in calls if pid == first
    ]
    assert ["/invites", "/posts", "/posts"] == [page for pid, _, page in calls if pid == second]


def test_the_log_of_the_demo_is_a_run_of_nine_steps(told: Told) -> None:
    folder = told.folder
    with Holdfast(folder / ".holdfast" / "holdfast.db") as hf:
        state, verdict = hf.get("onboard-ada"), hf.verify("onboard-ada")

    assert ("completed", 9, True) == (state.status, state.steps, verdict.ok)
    assert [1, 2, 3, 4, 5, 6, 7, 8, 9] == [call.step for call in state.calls]
    assert {"done"} == {call.status for call in state.calls}
    assert 2 == len(state.calls[5].attempts)


def test_the_demo_shows_where_the_run_was_and_what_to_try_next(told: Told) -> None:
    assert "step 6 of 9, invite; 1–5 committed" in told.text
    assert "step 9 of 9; 1–9 committed" in told.text
    assert f"cd {shlex.quote(str(told.folder))}" in told.text


def test_the_demo_does_not_touch_an_earlier_one(told: Told) -> None:
    folder = told.folder
    before = (folder / "calendar.jsonl").read_bytes()
    again = real(folder, "demo", "--folder", str(folder))

    assert 1 == again.returncode
    assert "contains an earlier demo" in again.stderr
    assert before == (folder / "calendar.jsonl").read_bytes()


def test_the_demo_prints_its_steps_in_order_and_in_colour(told: Told) -> None:
    """Killed at step 6, resumed at step 6, one invite."""
    story = [
        "nine steps",
        "kill -9 before it is recorded",
        "Killed.",
        "step 6 of 9, invite; 1–5 committed",
        "Another process resumes it",
        "completed",
        "ok: onboard-ada",
        "requested twice, with one key: one invite",
        "Try next:",
    ]
    places = [told.text.find(part) for part in story]

    assert -1 not in places
    assert sorted(places) == places
    assert re.search(r"\x1b\[[0-9;]*m", told.said)


def test_the_page_that_the_demo_offers_is_that_of_its_store(told: Told) -> None:
    """The printed command works as it stands; `--check` ends it."""
    offered = told.text.partition("See the run in a browser:")[2].splitlines()[1].strip()
    assert " serve --open " in offered
    done = typed(Path("/"), f"{offered} --check")
    assert (0, "") == (done.returncode, done.stderr if done.returncode else "")


def test_the_commands_that_the_demo_suggests_work_as_printed(told: Told) -> None:
    """The calendar is gone: looking and replaying need it no more."""
    lines = told.text.partition("Try next:")[2].splitlines()
    go, *suggested = [line.strip() for line in lines if line.startswith("    ")]

    assert 6 == len(suggested)
    for line in suggested:
        done = typed(Path("/"), f"{go} && {line}")
        assert (0, "") == (done.returncode, done.stderr if done.returncode else ""), line
