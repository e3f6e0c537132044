"""Advice on the command line: each command that is printed works as printed, on any store."""

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.cli.verbs import cli
from support.shell import Shell

AGENTS = """
import os
from holdfast import Approval, Question, Run, agent, step, tool

@tool(risk="external_action")
def pay(amount: int) -> int:
    return amount

@agent(approve=("external_action",))
def two(run: Run) -> list[int]:
    return run.map(pay, [1, 2])

@agent
def either(run: Run) -> str:
    return run.wait_any(Approval("Send?"), Approval("Keep?"), Question("Which?", options=["a b", "c"]))[0]

@step
def first() -> int:
    return 1

@step
def added() -> int:
    return 2

@agent
def changing(run: Run) -> str:
    run.state.seen = first()
    if os.environ.get("CHANGED"):
        added()
    return run.wait_for("payment")

@agent
def parent(run: Run) -> str:
    return changing()
"""


@pytest.fixture
def here(shell: Shell) -> Shell:
    (shell.folder / "ways.py").write_text(AGENTS)
    (shell.folder / "elsewhere too").mkdir()
    shell.db = shell.folder / "elsewhere too" / "runs.db"
    return shell


def stop(shell: Shell, agent: str, code: int = 1) -> None:
    shell("run", f"ways.py:{agent}", "--id", "r1", code=code)


def ways(shell: Shell) -> list[str]:
    """The commands that `show` gives for continuing the run, with FILE filled in."""
    said = shell.json("show", "r1")["continue"]
    return [line.partition("   (")[0].replace("FILE", "ways.py") for line in said]


def paste(line: str, code: int = 0) -> str:
    program, *words = shlex.split(line)
    assert program == "holdfast"
    yes = ["--yes"] if words[0] in ("approve", "answer", "reject", "rerun") else []
    result = CliRunner().invoke(cli, [*words, *yes])
    assert code == result.exit_code, result.output
    return result.stdout


def test_each_of_two_approvals_can_be_pasted(here: Shell) -> None:
    stop(here, "two")
    approve = [line for line in ways(here) if " approve " in line]
    assert len(approve) == 2

    for line in approve:
        paste(line)

    assert [1, 2] == here.json("resume", "ways.py", "r1")["result"]


def test_show_as_json_gives_the_ids_of_requests(here: Shell) -> None:
    stop(here, "two")

    waits = here.json("show", "r1")["waits"]

    for wait in waits:
        here("approve", "r1", "--request", wait["id"], "--yes")
    assert [1, 2] == here.json("resume", "ways.py", "r1")["result"]


def test_requests_of_one_choice_can_be_pasted(here: Shell) -> None:
    stop(here, "either")
    second = [line for line in ways(here) if " approve " in line][1]

    paste(second)

    assert "Keep?" == here.json("resume", "ways.py", "r1")["result"]


def test_the_only_question_among_approvals_can_be_pasted(here: Shell) -> None:
    stop(here, "either")
    (answer,) = (line for line in ways(here) if " answer " in line)

    paste(answer)

    assert "Which?" == here.json("resume", "ways.py", "r1")["result"]


def test_approve_without_a_request_among_several_prints_commands_that_work(here: Shell) -> None:
    stop(here, "two")

    refused = here("approve", "r1", "--yes", code=1).stderr

    lines = [line.strip() for line in refused.splitlines() if line.strip().startswith("holdfast ")]
    assert [' {"amount": 1}', ' {"amount": 2}'] == [line.partition("  #")[2] for line in lines]
    for line in lines:
        paste(line.partition("  #")[0])
    assert [1, 2] == here.json("resume", "ways.py", "r1")["result"]


# -- after a divergence ----------------------------------------------------------------------------


def diverge(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> str:
    stop(shell, "changing")
    monkeypatch.setenv("CHANGED", "1")
    return shell("resume", "ways.py", "r1", code=1).stderr


def test_after_a_divergence_show_prints_what_to_do(
    here: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    diverge(here, monkeypatch)

    said = here("show", "r1").stdout

    assert "wait for signal 'payment'" in said  # recorded
    assert "added({})" in said  # attempted
    assert "holdfast signal" not in said
    again, accept, rerun = ways(here)
    assert "--accept-new-steps" in accept and "--accept-new-steps" not in again
    assert " rerun " in rerun


@pytest.mark.parametrize("way", [0, 1, 2], ids=["old code", "accept", "rerun"])
def test_each_way_out_of_a_divergence_works_as_printed(
    here: Shell, monkeypatch: pytest.MonkeyPatch, way: int
) -> None:
    diverge(here, monkeypatch)
    line = ways(here)[way]
    if way == 0:
        monkeypatch.delenv("CHANGED")

    paste(line, code=1)  # it continues with where it waits

    here("signal", "r1", "payment", "paid")
    assert "paid" == here.json("resume", "ways.py", "r1")["result"]


def test_resume_of_changed_code_prints_commands_for_the_command_line(
    here: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = diverge(here, monkeypatch)

    assert "hf." not in said
    assert f"holdfast resume ways.py r1 --accept-new-steps --db '{here.db}'" in said


def test_a_child_that_diverged_is_named_with_its_own_commands(
    here: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop(here, "parent")
    monkeypatch.setenv("CHANGED", "1")
    here("resume", "ways.py", "r1~1", code=1)

    assert all("r1~1" in line for line in ways(here))
    assert not any(" signal " in line for line in ways(here))


# -- completed runs, the beginning, the home folder ------------------------------------------------


def test_resume_of_a_completed_run_prints_its_result_without_the_agents_file(
    shell: Shell,
) -> None:
    shell.run("recap", "r1", "to=sam")
    (shell.folder / "agents.py").unlink()

    assert "m-1\n" == shell("resume", "r1").stdout
    assert "m-1" == shell.json("resume", "agents.py", "r1")["result"]


def test_resume_without_a_file_of_an_unfinished_run_asks_for_the_file(shell: Shell) -> None:
    shell.run("asking", "r1", code=1)

    said = shell("resume", "r1", code=2).stderr

    assert "holdfast resume FILE r1" in said


def test_the_beginning_can_be_shown_and_compared(shell: Shell) -> None:
    shell.run("recap", "r1", "to=sam")

    assert "state after step 0" in shell("show", "r1", "--step", "0").stdout
    changes = {c["path"]: c["after"] for c in shell.json("diff", "r1", "0", "1")["changes"]}
    assert "HELLO" == changes["state.draft"]


def test_a_store_in_the_home_folder_may_be_quoted(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    monkeypatch.setattr(shell, "db", "~/at home.db")

    shell.run("recap", "r1", "to=sam")

    assert (tmp_path / "at home.db").exists()
    assert "m-1" == shell.json("resume", "r1")["result"]
