"""Every example runs with one command, offline, and does what it says; also when it is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
NAMES = sorted(path.name for path in EXAMPLES.glob("*.py"))

# Runs an example as `python` would, but dies at its n-th boundary, with a lease that soon ends.
KILLED = """
import functools, os, runpy, signal, sys
from holdfast.runtime.exec import engine

left = int(sys.argv[1])

def boundary(name):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

engine.Options = functools.partial(engine.Options, boundary=boundary, lease_seconds=2.0)
runpy.run_path(sys.argv[2], run_name="__main__")
"""


def run(words: list[str], folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """In a folder of its own, without a network's or a user's settings."""
    kept = {
        k: v for k, v in os.environ.items() if not k.startswith(("HOLDFAST", "OPENAI", "ANTHROPIC"))
    }
    env = {
        **kept,
        "TMPDIR": str(folder),
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": str(ROOT / "src"),
        **more,
    }
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=240,
    )


def said(words: list[str], folder: Path, **more: str) -> str:
    done = run(words, folder, **more)
    assert 0 == done.returncode, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (
            ["meeting_recap.py"],
            [
                "mail server: I know this key",
                "the guard held; send_email was attempted 2 times",
                "In the outbox: 1 message",
            ],
        ),
        (
            ["deploy.py"],
            [
                "is waiting for approval of deploy",
                "deploying shop:4fd8a01 to production",
                "stage live",
            ],
        ),
        (
            ["deploy.py", "--reject"],
            ["not deployed: rejected by ann: not before the weekend", "stage stopped"],
        ),
        (
            ["disk_space.py"],
            [
                "turn 1: disk_usage, disk_usage: I look where",
                "step 5 delete_log: failed",
                "Left on the disk: data/shop.db, logs/new.log",
            ],
        ),
        (["research.py"], ["… the power fails", "knows of tides, spring tides, neap tides"]),
        (
            ["booking.py"],
            [
                "Step 9, pay, failed after 3 attempts",
                "step 8: guide",
                "Still booked: nothing",
                "before step 9 it had made 8 calls",
                "with a bank that accepts: done, 'paid'",
            ],
        ),
        (["lesson.py"], ["after 5 iterations: because of the moon", "search: the moon pulls"]),
        (
            ["migration.py"],
            [
                "waiting for approval of apply",
                "5 facts, 0 open questions. Attempts of each call: [3, 1, 1, 1]",
                "4 steps in the plan",
            ],
        ),
        (
            ["handover.py"],
            [
                "the first worker is killed",
                "step 2 of 2, send; 1 committed; knows {'orders': 12}",
                "Completed: sent. Attempts: [('count_orders', 1), ('send_report', 2)]",
            ],
        ),
    ],
    ids=lambda value: (
        "-".join(value) if isinstance(value, list) and value[0].endswith(".py") else ""
    ),
)
def test_an_example_does_what_its_docstring_states(
    words: list[str], lines: list[str], tmp_path: Path
) -> None:
    shown = said([str(EXAMPLES / words[0]), *words[1:]], tmp_path)

    assert [] == [line for line in lines if line not in shown], shown


def test_every_example_is_listed_and_tested() -> None:
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    tested = Path(__file__).read_text(encoding="utf-8")

    assert [] == [
        name for name in NAMES if f"examples/{name}" not in listed or f'"{name}"' not in tested
    ]


def test_the_lessons_agent_has_at_most_30_lines() -> None:
    assert len((EXAMPLES / "lesson.py").read_text(encoding="utf-8").splitlines()) <= 30


def test_the_research_continues_where_it_was_without_searching_twice(tmp_path: Path) -> None:
    """But for the search that was under way when the power failed."""
    shown = said([str(EXAMPLES / "research.py")], tmp_path)
    after = shown.partition("Another process")[2]

    assert 1 == shown.count("searching the library for 'tides'")
    assert "iteration 2" not in after and "iteration 5" in after


@pytest.mark.parametrize("kill_at", [6, 9, 12])
def test_a_recap_whose_process_is_killed_is_sent_once(kill_at: int, tmp_path: Path) -> None:
    home = {"RECAP_HOME": str(tmp_path)}
    killed = run(["-c", KILLED, str(kill_at), str(EXAMPLES / "meeting_recap.py")], tmp_path, **home)
    assert -signal.SIGKILL == killed.returncode, killed.stdout + killed.stderr

    assert "In the outbox: 1 message" in said(
        [str(EXAMPLES / "meeting_recap.py")], tmp_path, **home
    )


@pytest.mark.parametrize("kill_at", [12, 40, 60])
def test_a_journey_whose_process_is_killed_leaves_nothing_booked(
    kill_at: int, tmp_path: Path
) -> None:
    """While it books, and while it undoes; and the agency saw every key once."""
    home = {"BOOKING_HOME": str(tmp_path)}
    killed = run(["-c", KILLED, str(kill_at), str(EXAMPLES / "booking.py")], tmp_path, **home)
    assert -signal.SIGKILL == killed.returncode, killed.stdout + killed.stderr

    assert "Still booked: nothing" in said([str(EXAMPLES / "booking.py")], tmp_path, **home)
    book = [json.loads(line) for line in (tmp_path / "bookings.jsonl").read_text().splitlines()]
    assert len(book) == len({line["key"] for line in book}) == 14
