"""The installed command at a pseudo-terminal: only there is someone asked, only there is Ctrl-C a
key, and only there is colour. What a command tells people to type is typed, as it stands.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.cli.load import load
from support.shell import AGENTS, Terminal, copy_world, real, typed
from support.waiting import Door

Open = Callable[..., Terminal]
STYLE = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the terminal is: a folder with an agent file."""
    (tmp_path / "agents.py").write_text(AGENTS)
    return tmp_path


def shown(folder: Path, run_id: str) -> Any:
    return json.loads(real(folder, "show", run_id, "--json").stdout)


def commands(said: str) -> list[str]:
    """The commands that are on lines of their own, without what is said next to them."""
    return [line.split("   ")[0] for line in re.findall(r"^  (holdfast .*)$", said, re.M)]


# -- questions -----------------------------------------------------------------------------------


def test_run_asks_for_an_approval_on_the_spot(terminal: Open, folder: Path) -> None:
    """It shows the exact arguments, takes the decision with its reason, and continues."""
    session = terminal("run", "agents.py:careful", "--id", "r1", "--param", "to=sam")
    session.expect('"to": "sam"')
    session.expect("approve?")
    assert not (folder / "sent").exists()
    session.type("y\n")
    session.expect("why")
    session.type("looks right\n")
    code = session.end()

    assert (0, "sam\n") == (code, (folder / "sent").read_text())
    assert "step 2 send" in session.text
    assert any("looks right" in line["text"] for line in shown(folder, "r1")["lines"])


def test_a_rejection_at_the_prompt_is_passed_to_the_agent(terminal: Open, folder: Path) -> None:
    session = terminal("run", "agents.py:careful", "--id", "r1", "--param", "to=sam")
    session.expect("approve?")
    session.type("n\n")
    session.expect("why")
    session.type("not today\n")
    code = session.end()

    assert (1, False) == (code, (folder / "sent").exists())
    assert "rejected by" in session.text


def test_later_at_the_prompt_leaves_the_run_waiting_and_prints_the_command(
    terminal: Open, folder: Path
) -> None:
    session = terminal("run", "agents.py:asking", "--id", "r1")
    session.expect("Which colour?")
    session.expect("answer (empty: later)")
    session.type("\n")
    code = session.end()

    assert (1, "waiting") == (code, shown(folder, "r1")["status"])
    (answer,) = commands(session.text)
    assert "holdfast answer r1 red" == answer
    (go_on,) = re.findall(r"^  then: (.*)$", session.text, re.M)
    assert 0 == typed(folder, f"{answer} --yes").returncode
    assert "red\n" == typed(folder, go_on).stdout


def test_approve_shows_the_arguments_and_asks(terminal: Open, folder: Path, world: Path) -> None:
    copy_world(world, folder)
    session = terminal("approve", "approval", "--db", "runs.db", "--by", "ann", "--why", "fine")
    session.expect('"body": "HELLO"')
    session.expect('"to": "sam"')
    session.expect("approve this? [y/N]")
    session.type("y\n")
    code = session.end()

    assert 0 == code
    assert "approval: approved" in session.text


def test_resolve_shows_the_call_in_doubt_and_asks(
    terminal: Open, folder: Path, world: Path
) -> None:
    copy_world(world, folder)
    session = terminal("resolve", "doubt", "2", "--done", "charged", "--db", "runs.db")
    session.expect("charge may or may not have happened")
    session.expect('"amount": 5')
    session.expect("record it as done? [y/N]")
    session.type("n\n")
    code = session.end()

    assert 1 == code
    assert "nothing was done" in session.text


# -- Ctrl-C --------------------------------------------------------------------------------------


def test_ctrl_c_leaves_a_run_that_the_printed_command_resumes(terminal: Open, folder: Path) -> None:
    with Door(folder / "go"):
        session = terminal("run", "agents.py:patient", "--id", "r1")
        session.expect("waiting at the door")
        session.type("\x03")
        code = session.end()

    assert 130 == code
    assert "interrupted; nothing is lost. To continue:" in session.text
    assert "pending" == shown(folder, "r1")["status"]
    (printed,) = commands(session.text)
    done = typed(folder, printed)
    assert (0, "waiting at the door\ngo\n") == (done.returncode, done.stdout)
    assert [1, 1] == [len(call["attempts"]) for call in shown(folder, "r1")["calls"]]


def test_ctrl_c_inside_an_effect_prints_that_it_is_in_doubt_and_how_to_resolve_it(
    terminal: Open, folder: Path
) -> None:
    with Door(folder / "go"):
        session = terminal("run", "agents.py:risky", "--id", "r1")
        session.expect("charging")
        session.type("\x03")
        code = session.end()

    assert 130 == code
    assert "step 2, charge_slowly, may or may not have happened" in session.text
    settle, *_, go_on = commands(session.text)
    assert 0 == typed(folder, f"{settle.replace('RESULT', 'charged')} --yes").returncode
    assert "charged\n" == typed(folder, go_on).stdout


# -- what is drawn -------------------------------------------------------------------------------


def test_show_answers_where_a_run_is_and_what_happened(
    terminal: Open, folder: Path, world: Path
) -> None:
    copy_world(world, folder)
    parts = {
        "failed": [
            "failed",
            "step 2; 1–2 committed",
            "drafting → [sending] → complete",
            "attempt 3 failed",
            'route: "email", because they asked',
            "error at step 2, send",
            'input  {"body": "HELLO", "to": "nobody"}',
            'state  {"draft": "HELLO"}',
            "holdfast resume FILE failed",
        ],
        "approval": [
            "waiting",
            "step 2; 1 committed",
            "approval of send",
            "holdfast approve approval",
        ],
        "doubt": [
            "in doubt",
            "It is not repeated; a person must resolve it",
            "holdfast resolve doubt 2 --done RESULT",
        ],
    }
    for run_id, expected in parts.items():
        session = terminal("show", run_id, "--db", "runs.db")
        assert 0 == session.end()
        assert [] == [part for part in expected if part not in session.text], session.text


def test_tables_are_drawn_and_data_is_not_treated_as_markup(terminal: Open, folder: Path) -> None:
    real(folder, "run", "agents.py:recap", "--id", "r1", "-p", "to=[bold]sam[/bold]")
    session = terminal("show", "r1")

    assert 0 == session.end()
    assert "[bold]sam[/bold]" in session.text
    assert "────" in session.text


@pytest.mark.parametrize(
    "words", [["show", "failed"], ["list"], ["trace", "done"], ["show", "no-such"]], ids="-".join
)
def test_colour_is_for_terminals_and_for_those_who_want_it(
    terminal: Open, folder: Path, world: Path, words: list[str]
) -> None:
    copy_world(world, folder)
    with_colour = terminal(*words, "--db", "runs.db")
    with_colour.end()
    without = terminal(*words, "--db", "runs.db", NO_COLOR="1")
    without.end()
    piped = real(folder, *words, "--db", "runs.db")

    assert STYLE.search(with_colour.said)
    assert "\x1b" not in without.said
    assert "\x1b" not in piped.stdout + piped.stderr


LONG = {
    "doctor": ("doctor", ["examining the store", "checking run 1"]),
    "verify": ("verify done", ["checking event 1"]),
    "export": ("export done -o again.jsonl", ["checking event 1", "writing event 1"]),
    "import": ("import foreign.jsonl", ["reading line 1", "checking event 1", "writing 11 events"]),
    "check": ("check agents.py", ["checking run 1"]),
    "gc": (
        "gc --keep 0 --snapshots 1 --yes",
        ["checking the snapshots of run 1", "checking run 1", "deleting run 1"],
    ),
}


@pytest.mark.parametrize("verb", LONG)
def test_long_work_shows_its_progress_on_a_line_that_disappears(
    terminal: Open, folder: Path, world: Path, verb: str
) -> None:
    """Only at a terminal; where stderr is none, it holds nothing but what the verb has to say."""
    line, expected = LONG[verb]
    words = [*line.split(), "--db", "runs.db"]
    copy_world(world, folder)
    if verb == "import":
        real(folder, "export", "done", "-o", "foreign.jsonl", "--db", "runs.db")
        words = [*line.split(), "--db", "new.db"]
    session = terminal(*words)
    session.end()
    (folder / "new.db").unlink(missing_ok=True)
    piped = real(folder, *words)

    shown = [part for part in expected if f"\r\x1b[K{part} …" in session.said]
    assert expected == shown, session.said
    assert session.said.count(" …\r\x1b[K") >= len(expected)  # and each is wiped away again
    assert [] == [part for part in expected if part in piped.stdout + piped.stderr]


def test_run_prints_each_step_while_it_is_executed(terminal: Open, folder: Path) -> None:
    """Step 1 is on the screen while step 2 still waits."""
    with Door(folder / "go"):
        session = terminal("run", "agents.py:patient", "--id", "r1")
        session.expect("step 1 draft")

    assert 0 == session.end()
    assert "step 2 wait_at" in session.text


# -- a worker --------------------------------------------------------------------------------------


def test_a_worker_shows_on_a_terminal_how_many_runs_are_under_way_and_what_became_of_others(
    terminal: Open, folder: Path
) -> None:
    """The count is on one line, which is cleared for every line that stays."""
    patient = load(str(folder / "agents.py")).agents["patient"]
    with Holdfast(folder / "runs.db") as hf:
        hf.start(patient, id="p1")
    with Door(folder / "go"):
        session = terminal("worker", "agents.py", "--db", "runs.db")
        session.expect("\r\x1b[K1 running")
    session.expect("p1 (patient)")
    session.expect("\r\x1b[K0 running; 1 completed")
    session.type("\x03")
    code = session.end()

    assert (0, True) == (code, session.text.endswith("executed 1 run\n"))
    of_agent = "(waiting at the door\r\n)?"  # it may print before the count is shown, or after
    shown = rf"\r\x1b\[K1 running{of_agent}\r\x1b\[K\d\d:\d\d:\d\d  p1 "
    assert re.search(shown, session.said)
