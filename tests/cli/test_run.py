"""The verbs that execute an agent's file: run, resume, replay, worker. Most in this process, through click's runner."""

import json
import re
import signal
import subprocess
import sys
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner, Result

from holdfast import Holdfast
from holdfast.cli.load import load
from holdfast.cli.verbs import cli
from support.shell import AGENTS, HOLDFAST, Shell, environment
from support.waiting import Door

# -- run and its parameters ----------------------------------------------------------------------


def test_run_prints_the_result_and_the_same_id_does_nothing_again(shell: Shell) -> None:
    first = shell.run("recap", "r1", "to=sam")
    again = shell.run("recap", "r1", "to=sam")

    assert ("m-1\n", "m-1\n") == (first.stdout, again.stdout)
    assert ["sam"] == shell.lines("sent")


def test_run_as_json_names_the_run_its_status_and_result(shell: Shell) -> None:
    found = shell.json("run", "agents.py:recap", "-p", "to=sam", "--id", "r1")

    assert {
        "run": "r1",
        "status": "completed",
        "result": "m-1",
        "waiting_for": "",
        "waiting": [],
        "error": "",
        "continue": [],
    } == found


def test_limits_are_set_for_one_run_and_raised_with_the_command_that_is_printed(
    shell: Shell,
) -> None:
    limits = ("--deadline", "3600", "--budget", "max_steps=1")
    failed = shell.json("run", "agents.py:recap", "-p", "to=sam", "--id", "r1", *limits, code=1)

    assert ("failed", []) == (failed["status"], shell.lines("sent"))
    assert any("--budget max_steps=2" in line for line in failed["continue"])
    shell("resume", "agents.py", "r1", "--budget", "max_steps=2", "--deadline", "3600")
    assert ["sam"] == shell.lines("sent")


def test_a_limit_that_does_not_exist_is_refused_before_anything_happens(shell: Shell) -> None:
    refused = shell("run", "agents.py:recap", "-p", "to=sam", "--budget", "max_stepz=1", code=2)

    assert "max_steps" in refused.stderr
    assert not shell.db.exists()


def test_run_without_an_id_generates_one_and_prints_it(shell: Shell) -> None:
    found = shell.json("run", "agents.py:recap", "-p", "to=sam")

    assert re.fullmatch(r"recap-[0-9a-f]{12}", found["run"])


def test_parameters_are_converted_by_the_agents_signature(shell: Shell) -> None:
    given_ = [
        "n=5",
        "ratio=2",
        "on=true",
        "day=2025-01-31",
        "kind=b",
        'tags=["x", "5"]',
        'loose={"a": 1}',
    ]
    result = shell.run("typed", "r1", *given_)

    expected = {
        "n": 5,
        "ratio": 2.0,
        "on": True,
        "day": "2025-01-31",
        "kind": "b",
        "tags": ["x", "5"],
        "loose": {"a": 1},
    }
    assert expected == json.loads(result.stdout)


def test_text_that_looks_like_a_number_stays_text(shell: Shell) -> None:
    shell.run("recap", "r1", "to=007", "notes=null")

    assert {"to": "007", "notes": "null"} == shell.json("show", "r1")["input"]


def test_wrong_and_missing_parameters_are_all_listed_and_nothing_runs(shell: Shell) -> None:
    """One error says everything: what is wrong, what is missing, and what the agent takes."""
    result = shell.run("typed", "r1", "ratio=fast", "kind=c", "tags=x", "colour=red", code=2)

    for said in (
        "ratio='fast' is not float",
        "kind='c' is not",
        "tags='x' is not list[str]",
        "colour is not a parameter",
        "n is missing",
        "n: int\n",
        "ratio: float = 0.5",
    ):
        assert said in result.stderr
    assert not shell.db.exists()


CHATTY = """
from holdfast import agent, step
print("loading")

@step
def draft() -> int:
    print("drafting")
    return 1

@agent
def chatty(run) -> int:
    print("running")
    return draft()
"""


def test_what_an_agent_prints_does_not_spoil_the_json(shell: Shell) -> None:
    """Data on stdout, all else on stderr, in every verb that runs the user's code."""
    (shell.folder / "chatty.py").write_text(CHATTY)
    with Holdfast(shell.db) as hf:
        hf.start(load("chatty.py").chosen(), id="r2")

    for words in (
        ["run", "chatty.py", "--id", "r1"],
        ["resume", "chatty.py", "r1"],
        ["replay", "chatty.py", "r1"],
        ["worker", "chatty.py", "--once"],
        ["check", "chatty.py"],
    ):
        done = shell.process(*words, "--json")

        assert 0 == done.returncode, done.stderr
        assert isinstance(json.loads(done.stdout), dict)
    for_people = shell.process("run", "chatty.py", "--id", "r3")
    assert "running\ndrafting\n1\n" == for_people.stdout
    assert "loading\n" in for_people.stderr


def test_sigterm_leaves_a_run_that_can_be_resumed(shell: Shell) -> None:
    """As a service manager stops it: like Ctrl-C, with the command to continue."""
    words = [HOLDFAST, "run", "agents.py:patient", "--id", "r1", "--db", str(shell.db)]
    with Door(shell.folder / "go"):
        process = subprocess.Popen(
            words,
            cwd=shell.folder,
            env=environment(),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert "waiting at the door\n" == process.stdout.readline()
        process.terminate()
        _, said = process.communicate(timeout=120)

    assert 130 == process.returncode
    assert f"holdfast resume agents.py:patient r1 --db {shell.db}" in said
    assert "go\n" in shell("resume", "agents.py", "r1").stdout


def test_the_installed_command_converts_parameters_and_lists_what_is_wrong(shell: Shell) -> None:
    """As a script calls it: the result on stdout, all that is wrong at once on stderr."""
    words = ("run", "agents.py:typed", "--id", "r1", "--param", "n=5", "-p", "day=2025-01-31")
    done = shell.process(*words, "-p", "on=yes")
    wrong = shell.process(
        "run", "agents.py:typed", "--id", "r2", "-p", "day=soon", "-p", "colour=red"
    )

    result = json.loads(done.stdout)
    assert (0, 5, "2025-01-31", True) == (done.returncode, result["n"], result["day"], result["on"])
    assert (2, "") == (wrong.returncode, wrong.stdout)
    for said in (
        "day='soon' is not",
        "colour is not a parameter",
        "n is missing",
        "typed takes:",
        "ratio: float = 0.5",
    ):
        assert said in wrong.stderr
    assert ["r1"] == [run["id"] for run in shell.json("list")["runs"]]


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("agents.py", "several agents; choose one: agents.py:risky, agents.py:recap"),
        ("agents.py:nobody", "has no agent 'nobody'"),
        ("nothing.py", "no file or module is named nothing.py"),
        ("broken.py", "SyntaxError"),
        ("raises.py", "ZeroDivisionError: division by zero (line 2)"),
        ("empty.py", "has no agent; decorate"),
        ("leaves.py", "cannot be loaded: SystemExit: 0 (line 2)"),
    ],
)
def test_a_file_that_cannot_be_run_is_refused_with_the_reason(
    shell: Shell, target: str, said: str
) -> None:
    (shell.folder / "broken.py").write_text("def f(:")
    (shell.folder / "raises.py").write_text("x = 1\n1 / 0\n")
    (shell.folder / "empty.py").write_text("x = 1\n")
    (shell.folder / "leaves.py").write_text("import sys\nsys.exit(0)\n")

    result = shell("run", target, code=1)

    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert not shell.db.exists()


def test_the_same_id_with_another_input_is_refused(shell: Shell) -> None:
    shell.run("recap", "r1", "to=sam")
    before = shell.log("r1")

    result = shell.run("recap", "r1", "to=ann", code=1)

    assert "exists with a different input" in result.stderr
    assert before == shell.log("r1")


def test_an_invalid_id_is_refused(shell: Shell) -> None:
    assert "is not a run id" in shell.run("recap", "../x", "to=sam", code=1).stderr


def test_a_failed_run_prints_how_to_inspect_and_resume_it_and_both_work(shell: Shell) -> None:
    failed = shell.run("recap", "r1", "to=nobody", code=1)

    assert "r1 failed at step 2: ConnectionError: nobody is there" in failed.stderr
    assert f"holdfast resume agents.py:recap r1 --db {shell.db}" in failed.stderr
    assert (
        "failed"
        == shell.json("run", "agents.py:recap", "-p", "to=nobody", "--id", "r1", code=1)["status"]
    )

    (shell.folder / "fixed").touch()
    assert "m-1\n" == shell("resume", "agents.py", "r1").stdout


def test_resume_takes_file_and_id_in_either_order(shell: Shell) -> None:
    shell.run("recap", "r1", "to=sam")

    assert "m-1\n" == shell("resume", "r1", "agents.py:recap").stdout


def test_resume_with_a_file_that_lacks_the_agent_changes_nothing(shell: Shell) -> None:
    shell.run("asking", "r1", code=1)
    (shell.folder / "other.py").write_text(
        "from holdfast import agent\n@agent\ndef other(run): pass\n"
    )
    before = shell.log("r1")

    assert "'asking', which is not in other.py" in shell("resume", "other.py", "r1", code=1).stderr
    assert before == shell.log("r1")


def test_a_run_left_by_a_killed_process_is_claimed_when_its_lease_ends(shell: Shell) -> None:
    """The lease is waited for, once; a call that may have happened is not repeated."""
    died = shell.process("run", "agents.py:paying", "--id", "r1", "-p", "amount=5", "--lease", "1")
    assert -signal.SIGKILL == died.returncode

    result = shell("resume", "agents.py", "r1", code=1)

    assert "is waiting for a decision about step 2, charge" in result.stderr
    assert f"holdfast resolve r1 2 --done RESULT --db {shell.db}" in result.stderr
    assert ["5"] == shell.lines("charged")


# -- replay --------------------------------------------------------------------------------------


def test_replay_agrees_executes_nothing_and_finds_a_change(shell: Shell) -> None:
    shell.run("recap", "r1", "to=sam")
    assert {"run": "r1", "steps": 2, "reached_end": True, "diverged": None} == shell.json(
        "replay", "agents.py", "r1"
    )

    changed = AGENTS.replace("send(to, run.state.draft)", 'send("ann", run.state.draft)')
    (shell.folder / "agents.py").write_text(changed)
    found = shell.json("replay", "agents.py", "r1", code=1)

    assert "sam" in found["diverged"]["recorded"]
    assert "ann" in found["diverged"]["attempted"]
    assert "diverges from the log" in shell("replay", "agents.py", "r1", code=1).stdout
    assert ["sam"] == shell.lines("sent")


# -- worker --------------------------------------------------------------------------------------


def test_a_worker_with_once_executes_what_is_due_and_then_stops(shell: Shell) -> None:
    shell.run("asking", "r1", code=1)
    shell.run("asking", "r2", code=1)
    shell("answer", "r1", "red", "--yes")
    shell("answer", "r2", "red", "--yes")

    found = shell.json("worker", "agents.py", "--concurrency", "2", "--lease", "10", "--once")

    assert {"executed": 2} == found
    assert {"completed"} == {run["status"] for run in shell.json("list")["runs"]}
    shell("worker", "agents.py", "--concurrency", "0", code=2)
    shell("worker", code=2)


def test_a_worker_ends_cleanly_on_sigterm(shell: Shell) -> None:
    shell.run("asking", "r1", code=1)
    shell("answer", "r1", "red", "--yes")
    command = [sys.executable, "-m", "holdfast.cli", "worker", "agents.py", "--db", str(shell.db)]
    process = subprocess.Popen(
        command, cwd=shell.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with Holdfast(shell.db) as hf:
        assert "red" == hf.result("r1", timeout=120)

    process.terminate()
    said, _ = process.communicate(timeout=120)

    assert (0, "executed 1 run\n") == (process.returncode, said)


# -- another store -------------------------------------------------------------------------------


def test_the_verbs_are_the_same_on_postgresql_and_no_password_is_printed(
    shell: Shell, postgres_dsn: str
) -> None:
    password = urlsplit(postgres_dsn).password

    def hf(*words: str) -> Result:
        return CliRunner().invoke(cli, [*words, "--url", postgres_dsn])

    waits = hf("run", "agents.py:careful", "--id", "r1", "-p", "to=sam")
    assert 1 == waits.exit_code, waits.output
    assert "holdfast approve r1 --db" in waits.stderr
    assert 0 == hf("approve", "r1", "--yes").exit_code
    assert {"executed": 1} == json.loads(hf("worker", "agents.py", "--once", "--json").stdout)
    assert "completed" in hf("list").stdout
    checked = hf("doctor", "--json")
    assert [] == json.loads(checked.stdout)["damaged"]
    assert not password or password not in waits.output + checked.output


def test_a_resume_that_a_check_refuses_names_it_and_continues_with_override(shell: Shell) -> None:
    file = shell.folder / "versions.py"
    text = "from holdfast import agent\n@agent(version='1')\ndef asking(run):\n    return run.wait_for('go')\n"
    file.write_text(text)
    shell("run", "versions.py", "--id", "r1", code=1)
    shell("signal", "r1", "go", "7")
    file.write_text(text.replace("'1'", "'2.0'"))  # another length: bytecode is told apart by it

    refused = shell("resume", "versions.py", "r1", code=1).stderr

    assert "the version check failed: it was started with version '1' of asking" in refused
    assert f"holdfast resume versions.py r1 --override version --db {shell.db}" in refused
    shell("resume", "versions.py", "r1", "--override", "luck", code=2)
    assert "7\n" == shell("resume", "versions.py", "r1", "--override", "version").stdout
