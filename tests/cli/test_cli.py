"""The command line through its real commands: each verb with good input, its JSON, and bad input.

Most run in this process through click's runner; a few are processes of their own, and two sit at a
pseudo-terminal, because only there is somebody asked and only there is Ctrl-C a key.
"""

import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Holdfast, cli
from holdfast.cli import VERBS, text
from holdfast.store.sqlite import SQLiteStore

AGENTS = """
import datetime, os, pathlib, signal, sys, time
from typing import Literal
from holdfast import Retry, Run, agent, step, tool

HERE = pathlib.Path(__file__).parent

@step
def draft(notes: str) -> str:
    return notes.upper()

def unsend(to: str, result: dict) -> None:
    (HERE / "undone").write_text(to)

@tool(risk="external_action", retry=Retry(attempts=3, initial=0.001), undo=unsend)
def send(to: str, body: str, idempotency_key: str = "") -> dict:
    with (HERE / "sent").open("a") as file:
        file.write(to + "\\n")
    if not (HERE / "fixed").exists() and to == "nobody":
        raise ConnectionError("nobody is there")
    return {"message_id": "m-1"}

@tool
def charge(amount: int) -> str:
    with (HERE / "charged").open("a") as file:
        file.write(f"{amount}\\n")
    if not (HERE / "fixed").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return "charged"

@step
def wait_for_file(name: str) -> str:
    print("waiting for the file", flush=True)
    while not (HERE / name).exists():
        time.sleep(0.01)
    return name

@agent(stages=("drafting", "sending", "complete"))
def recap(run: Run, to: str, notes: str = "hello") -> str:
    run.stage = "drafting"
    run.decide("route", "email", why="they asked", options=["email", "letter"])
    run.state.draft = draft(notes)
    run.stage = "sending"
    run.state.message_id = send(to, run.state.draft)["message_id"]
    run.stage = "complete"
    return run.state.message_id

@agent(approve=("external_action",))
def careful(run: Run, to: str) -> dict:
    return send(to, draft("hello"))

@agent
def asking(run: Run) -> str:
    draft("first")
    return f"{run.ask('Which colour?', options=['red', 'blue'])}"

@agent
def listening(run: Run) -> dict:
    draft("first")
    return {"got": run.wait_for("payment")}

@agent
def paying(run: Run, amount: int) -> str:
    draft("first")
    return charge(amount)

@agent
def patient(run: Run) -> str:
    draft("first")
    return wait_for_file("go")

@agent
def typed(run: Run, n: int, ratio: float = 0.5, on: bool = False, day: datetime.date | None = None,
          kind: Literal["a", "b"] = "a", tags: list[str] = [], loose=None) -> dict:
    return {"n": n, "ratio": ratio, "on": on, "day": str(day), "kind": kind, "tags": tags, "loose": loose}
"""


class Shell:
    """`holdfast` in a folder that has an agent file and, after the first run, a store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.db = folder / "runs.db"
        (folder / "agents.py").write_text(AGENTS)

    def __call__(self, *words: str, input: str | None = None, code: int = 0) -> Result:
        result = CliRunner().invoke(cli.cli, [*words, "--db", str(self.db)], input=input)
        unexpected = result.exception if not isinstance(result.exception, SystemExit) else None
        assert (code, None) == (result.exit_code, unexpected), result.output
        return result

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self(*words, "--json", code=code).stdout)

    def run(self, agent: str, run_id: str, *params: str, code: int = 0) -> Result:
        given = [word for param in params for word in ("--param", param)]
        return self("run", f"agents.py:{agent}", "--id", run_id, *given, code=code)

    def process(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "holdfast.cli", *words, "--db", str(self.db)]
        return subprocess.run(command, cwd=self.folder, env={**os.environ, **env}, capture_output=True,
                              text=True, timeout=60)  # fmt: skip

    def log(self, run_id: str) -> list[Any]:
        with Holdfast(self.db) as hf:
            return [record for record, _ in hf.events(run_id)]

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    monkeypatch.setattr(sys, "path", sys.path[:])  # loading an agent's file puts its folder there
    return Shell(tmp_path)


# -- the command itself ------------------------------------------------------------------------


def test_every_verb_loads_and_says_what_it_does() -> None:
    """A verb that is listed exists, under its own name, with a sentence of help."""
    for verb in VERBS:
        result = CliRunner().invoke(cli.cli, [verb, "--help"])

        assert 0 == result.exit_code, verb
        assert f" {verb} " in result.stdout.splitlines()[0]


def test_the_version_comes_without_loading_holdfast() -> None:
    """Nothing heavy is imported at start: that is what makes `holdfast --version` fast."""
    code = (
        "import sys\nfrom holdfast.cli import cli\n"
        "try:\n    cli(['--version'])\nfinally:\n"
        "    print([m for m in ('apsw', 'msgspec', 'holdfast.app', 'holdfast.core.events', 'rich', 'asyncio')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert ["[]"] == done.stdout.splitlines()[1:]
    assert re.search(r"version \d", done.stdout)


def test_an_unknown_verb_is_a_usage_error() -> None:
    result = CliRunner().invoke(cli.cli, ["frobnicate"])

    assert 2 == result.exit_code
    assert "frobnicate" in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["list"], ["show", "x"], ["trace", "x"], ["events", "x"], ["diff", "x", "1", "2"], ["verify", "x"],
        ["resume", "agents.py", "x"], ["replay", "agents.py", "x"], ["approve", "x", "--yes"],
        ["reject", "x", "--yes"], ["answer", "x", "y", "--yes"], ["signal", "x", "y"],
        ["resolve", "x", "--retry", "--yes"], ["pause", "x"], ["cancel", "x", "--yes"],
        ["undo", "x", "--yes"], ["fork", "x", "1"], ["doctor"], ["gc", "--keep", "0", "--yes"], ["export", "x"],
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_a_store_that_is_not_there_is_not_made(shell: Shell, words: list[str]) -> None:
    """Looking somewhere wrong says so, and leaves nothing behind."""
    result = shell(*words, code=1)

    assert f"there is no store at {shell.db}" in result.stderr
    assert "" == result.stdout
    assert ["agents.py"] == [
        path.name for path in shell.folder.iterdir() if path.name != "__pycache__"
    ]


@pytest.mark.parametrize(
    "words",
    [
        ["show", "no-such"], ["trace", "no-such"], ["events", "no-such"], ["diff", "no-such", "1", "2"],
        ["verify", "no-such"], ["resume", "agents.py", "no-such"], ["replay", "agents.py", "no-such"],
        ["approve", "no-such", "--yes"], ["reject", "no-such", "--yes"], ["answer", "no-such", "y", "--yes"],
        ["signal", "no-such", "y"], ["resolve", "no-such", "--retry", "--yes"], ["pause", "no-such"],
        ["cancel", "no-such", "--yes"], ["undo", "no-such", "--yes"], ["fork", "no-such", "1"],
        ["export", "no-such"],
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_an_unknown_run_is_one_message_and_exit_code_1(shell: Shell, words: list[str]) -> None:
    shell.run("recap", "r1", "to=sam")

    result = shell(*words, code=1)

    assert "error: there is no run 'no-such' in this store; `holdfast list`" in result.stderr
    assert "" == result.stdout


def test_a_url_of_an_unknown_kind_is_refused(shell: Shell) -> None:
    result = CliRunner().invoke(cli.cli, ["list", "--url", "mongodb://x"])

    assert 1 == result.exit_code
    assert "not a kind of store" in result.stderr


def test_a_file_that_is_no_store_is_refused_and_left_alone(shell: Shell) -> None:
    shell.db.write_text("my shopping list, which is much longer than a hundred bytes " * 10)
    before = shell.db.read_bytes()

    assert "is not a SQLite database" in shell("list", code=1).stderr
    assert before == shell.db.read_bytes()
    shell.db = shell.folder
    assert shell("list", code=1).stderr.startswith("error: ")


def test_the_store_comes_from_the_environment(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.run("recap", "r1", "to=sam")
    monkeypatch.setenv("HOLDFAST_URL", str(shell.db))

    result = CliRunner().invoke(cli.cli, ["list", "--json"])

    assert ["r1"] == [run["id"] for run in json.loads(result.stdout)["runs"]]


# -- run and its parameters --------------------------------------------------------------------


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
        "error": "",
        "continue": [],
    } == found


def test_run_without_an_id_makes_one_up_and_says_it(shell: Shell) -> None:
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


def test_text_stays_text_also_if_it_looks_like_a_number(shell: Shell) -> None:
    shell.run("recap", "r1", "to=007", "notes=null")

    assert {"to": "007", "notes": "null"} == shell.json("show", "r1")["input"]


def test_wrong_and_missing_parameters_are_all_listed_and_nothing_runs(shell: Shell) -> None:
    """One error says everything: what is wrong, what is missing, and what the agent takes."""
    result = shell.run("typed", "r1", "ratio=fast", "kind=c", "tags=x", "colour=red", code=2)

    for said in ("ratio='fast' is not float", "kind='c' is not", "tags='x' is not list[str]",
                 "colour is not a parameter", "n is missing", "n: int\n", "ratio: float = 0.5"):  # fmt: skip
        assert said in result.stderr
    assert not shell.db.exists()


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("agents.py", "several agents; say which: agents.py:recap"),
        ("agents.py:nobody", "has no agent 'nobody'"),
        ("nothing.py", "there is no file nothing.py"),
        ("broken.py", "SyntaxError"),
        ("raises.py", "ZeroDivisionError: division by zero (line 2)"),
        ("empty.py", "has no agent; decorate"),
    ],
)
def test_a_file_that_cannot_be_run_says_why(shell: Shell, target: str, said: str) -> None:
    (shell.folder / "broken.py").write_text("def f(:")
    (shell.folder / "raises.py").write_text("x = 1\n1 / 0\n")
    (shell.folder / "empty.py").write_text("x = 1\n")

    result = shell("run", target, code=1)

    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert not shell.db.exists()


def test_the_same_id_with_another_input_is_refused(shell: Shell) -> None:
    shell.run("recap", "r1", "to=sam")
    before = shell.log("r1")

    result = shell.run("recap", "r1", "to=ann", code=1)

    assert "exists with another input" in result.stderr
    assert before == shell.log("r1")


def test_an_id_that_is_no_id_is_refused(shell: Shell) -> None:
    assert "is not a run id" in shell.run("recap", "../x", "to=sam", code=1).stderr


def test_a_failed_run_says_how_to_look_and_to_try_again_and_does(shell: Shell) -> None:
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

    assert (
        "'asking', which other.py does not have" in shell("resume", "other.py", "r1", code=1).stderr
    )
    assert before == shell.log("r1")


def test_a_run_left_by_a_killed_process_is_taken_up_when_its_lease_ends(shell: Shell) -> None:
    """The lease is waited for, once; a call that may have happened is not repeated."""
    died = shell.process("run", "agents.py:paying", "--id", "r1", "-p", "amount=5", "--lease", "1")
    assert -signal.SIGKILL == died.returncode

    result = shell("resume", "agents.py", "r1", code=1)

    assert "waits for a decision about step 2, charge" in result.stderr
    assert f"holdfast resolve r1 2 --done … --db {shell.db}" in result.stderr
    assert ["5"] == shell.lines("charged")


# -- list --------------------------------------------------------------------------------------


def test_list_as_json_is_runs_and_next(shell: Shell) -> None:
    for run_id in ("r1", "r2", "r3"):
        shell.run("recap", run_id, "to=sam")
    shell.run("asking", "a1", code=1)

    page = shell.json("list", "--limit", "2")
    rest = shell.json("list", "--limit", "2", "--cursor", str(page["next"]))

    assert ["a1", "r3", "r2", "r1"] == [run["id"] for run in page["runs"] + rest["runs"]]
    assert None is rest["next"]
    assert {"id", "agent", "status", "created_at", "updated_at", "waiting_for"} <= page["runs"][
        0
    ].keys()


def test_list_filters_by_status_and_agent(shell: Shell) -> None:
    shell.run("recap", "r1", "to=sam")
    shell.run("asking", "a1", code=1)

    assert ["a1"] == [run["id"] for run in shell.json("list", "--status", "waiting")["runs"]]
    assert ["r1"] == [run["id"] for run in shell.json("list", "--agent", "recap")["runs"]]
    assert [] == shell.json("list", "--status", "interrupted")["runs"]
    assert "no runs that match" in shell("list", "--status", "failed").stdout


def test_list_for_people_is_an_aligned_table(shell: Shell) -> None:
    shell.run("recap", "r1", "to=sam")
    shell.run("asking", "a-long-id", code=1)

    head, first, second = shell("list").stdout.splitlines()

    assert head.index("agent") == first.index("asking") == second.index("recap")


@pytest.mark.parametrize("words", [["--status", "sleeping"], ["--limit", "0"], ["--limit", "many"]])
def test_list_refuses_what_it_does_not_know(shell: Shell, words: list[str]) -> None:
    shell("list", *words, code=2)


# -- show, trace, events, diff, verify ---------------------------------------------------------


def test_show_tells_where_a_run_is_and_what_happened(shell: Shell) -> None:
    shell.run("careful", "r1", "to=sam", code=1)

    said = shell("show", "r1").stdout

    for part in ("r1  waiting", "step 2; 1 committed", "approval of send", f"holdfast approve r1 --db {shell.db}",
                 '1     draft  done', "notes=\"hello\"", '"HELLO"'):  # fmt: skip
        assert part in said


def test_show_tells_attempts_decisions_state_and_the_failure_with_its_input(shell: Shell) -> None:
    shell.run("recap", "r1", "to=nobody", code=1)

    said = shell("show", "r1").stdout

    for part in ("attempt 1 failed: ConnectionError: nobody is there; next attempt after", "attempt 3 failed",
                 'route: "email", because they asked', 'draft = "HELLO"', "drafting → [sending] → complete",
                 "error at step 2, send", 'input  {"body": "HELLO", "to": "nobody"}', 'state  {"draft": "HELLO"}',
                 "continue    holdfast resume FILE r1"):  # fmt: skip
        assert part in said


def test_show_as_json_is_the_whole_state(shell: Shell) -> None:
    shell.run("recap", "r1", "to=sam")

    found = shell.json("show", "r1")

    assert ("completed", "complete", "m-1") == (found["status"], found["stage"], found["result"])
    assert {"step": 2, "of": None, "name": "", "committed": "1–2"} == found["position"]
    assert [("draft", "done"), ("send", "done")] == [
        (c["name"], c["status"]) for c in found["calls"]
    ]
    assert {"draft": "HELLO", "message_id": "m-1"} == found["state"]
    assert [("route", "email", "they asked")] == [
        (d["name"], d["choice"], d["why"]) for d in found["decisions"]
    ]


def test_show_at_a_step_is_the_state_as_it_was_then(shell: Shell) -> None:
    shell.run("recap", "r1", "to=sam")

    assert {} == shell.json("show", "r1", "--step", "1", "--before")["state"]
    assert {"draft": "HELLO"} == shell.json("show", "r1", "--step", "1")["state"]
    assert {"draft": "HELLO"} == shell.json("show", "r1", "--step", "2", "--before")["state"]
    assert "has no step 9; it has 2" in shell("show", "r1", "--step", "9", code=1).stderr


def test_trace_is_a_timeline_in_words(shell: Shell) -> None:
    shell.run("recap", "r1", "to=sam")

    said = shell("trace", "r1").stdout
    found = shell.json("trace", "r1")

    assert re.search(r"\+0\.\d+  step 2 send +begins \(keyed\): body=\"HELLO\" to=\"sam\"", said)
    assert re.search(r"completed → \"m-1\"", said)
    assert ("r1", list(range(len(found["timeline"])))) == (
        found["run"],
        [x["seq"] for x in found["timeline"]],
    )


def test_events_are_the_log_as_it_is_kept(shell: Shell) -> None:
    shell.run("recap", "r1", "to=sam")

    found = shell.json("events", "r1", "--after", "1")["events"]

    assert [(r.seq, r.kind, r.hash.hex()) for r in shell.log("r1")[2:]] == [
        (x["seq"], x["kind"], x["hash"]) for x in found
    ]
    assert "run_completed" in shell("events", "r1").stdout


def test_diff_names_what_changed_between_two_steps(shell: Shell) -> None:
    shell.run("recap", "r1", "to=sam")

    changes = shell.json("diff", "r1", "1", "2")["changes"]

    assert {"path": "state.message_id", "before": None, "after": "m-1"} in changes
    assert "state.message_id" in shell("diff", "r1", "1", "2").stdout
    assert "nothing changed" in shell("diff", "r1", "1", "1").stdout
    assert "has no step 7" in shell("diff", "r1", "1", "7", code=1).stderr
    shell("diff", "r1", "one", "2", code=2)


def damage(shell: Shell, run_id: str) -> None:
    """One flipped byte in one event of one run."""
    store = SQLiteStore(shell.db)
    with store._write:
        store._db.execute(
            "UPDATE events SET data = CAST(replace(CAST(data AS TEXT), 'HELLO', 'HALLO') AS BLOB) WHERE seq > 0 AND run ="
            " (SELECT key FROM runs WHERE id = ?)", (run_id,))  # fmt: skip
    store.close()


def test_verify_holds_for_a_log_as_written_and_fails_for_a_changed_one(shell: Shell) -> None:
    shell.run("recap", "r1", "to=sam")
    assert {"run": "r1", "ok": True, "problem": ""}.items() <= shell.json("verify", "r1").items()

    damage(shell, "r1")

    assert not shell.json("verify", "r1", code=1)["ok"]
    assert "DAMAGED: run 'r1' is damaged at event" in shell("verify", "r1", code=1).stdout
    assert "damaged at event" in shell("show", "r1", code=1).stderr


def test_doctor_names_weak_settings_and_damaged_runs(shell: Shell) -> None:
    shell.run("recap", "r1", "to=sam")
    shell.run("recap", "r2", "to=sam")
    found = shell.json("doctor")
    assert (True, 2, []) == (found["ok"], found["runs"], found["damaged"])

    damage(shell, "r1")
    shell.db.chmod(0o644)

    hurt = shell.json("doctor", code=1)
    assert ["r1"] == [run["run"] for run in hurt["damaged"]]
    assert ["file mode"] == [finding["name"] for finding in hurt["findings"] if not finding["ok"]]
    said = shell("doctor", code=1).stdout
    assert "WEAK" in said
    assert "2 runs checked, 1 damaged" in said


# -- replay ------------------------------------------------------------------------------------


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


# -- people decide -----------------------------------------------------------------------------


def test_approve_shows_the_exact_arguments_before_it_asks(shell: Shell) -> None:
    shell.run("careful", "r1", "to=sam", code=1)

    result = shell("approve", "r1", "--by", "ann", "--why", "fine", input="y\n")

    assert '"to": "sam"' in result.stderr
    assert '"body": "HELLO"' in result.stderr
    assert "approve this?" in result.stderr
    assert "r1: approved" in result.stdout
    assert '{\n  "message_id": "m-1"\n}\n' == shell("resume", "agents.py", "r1").stdout
    assert any(
        "approved by ann: fine" in line["text"] for line in shell.json("show", "r1")["lines"]
    )


@pytest.mark.parametrize(
    ("input", "said"), [("n\n", "nothing was done"), ("", "--yes skips the question")]
)
def test_approve_without_a_yes_changes_nothing(shell: Shell, input: str, said: str) -> None:
    shell.run("careful", "r1", "to=sam", code=1)
    before = shell.log("r1")

    assert said in shell("approve", "r1", input=input, code=1).stderr
    assert before == shell.log("r1")


def test_reject_is_told_to_the_agent(shell: Shell) -> None:
    shell.run("careful", "r1", "to=sam", code=1)
    assert (
        "rejected"
        == shell.json("reject", "r1", "--yes", "--by", "ann", "--why", "not today")["did"]
    )

    assert "ann said no: not today" in shell("resume", "agents.py", "r1", code=1).stderr
    assert [] == shell.lines("sent")


def test_a_second_decision_is_refused_and_told_the_first(shell: Shell) -> None:
    shell.run("careful", "r1", "to=sam", code=1)
    shell("approve", "r1", "--yes", "--by", "ann")
    before = shell.log("r1")

    assert "already decided: approved by ann" in shell("reject", "r1", "--yes", code=1).stderr
    assert before == shell.log("r1")


@pytest.mark.parametrize(
    "words",
    [
        ["approve", "r1", "--yes"], ["reject", "r1", "--yes"], ["answer", "r1", "x", "--yes"],
        ["signal", "r1", "x"], ["pause", "r1"], ["cancel", "r1", "--yes"], ["resolve", "r1", "1", "--retry", "--yes"],
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_a_run_that_has_ended_takes_no_decisions(shell: Shell, words: list[str]) -> None:
    shell.run("recap", "r1", "to=sam")
    before = shell.log("r1")

    result = shell(*words, code=1)

    assert result.stderr.startswith("error: ")
    assert before == shell.log("r1")


def test_answer_takes_an_option_and_refuses_others(shell: Shell) -> None:
    shell.run("asking", "r1", code=1)
    before = shell.log("r1")

    assert (
        "not one of the options: red, blue"
        in shell("answer", "r1", "green", "--yes", code=1).stderr
    )
    assert before == shell.log("r1")
    assert "Which colour?" in shell("answer", "r1", "blue", input="y\n").stderr
    assert "blue\n" == shell("resume", "agents.py", "r1").stdout


def test_a_signal_carries_json_and_counts_once_by_its_id(shell: Shell) -> None:
    shell.run("listening", "r1", code=1)

    for _ in range(2):
        shell("signal", "r1", "payment", '{"euro": 5}', "--signal-id", "p-1")

    assert 1 == sum(record.kind == "signal_received" for record in shell.log("r1"))
    assert {"got": {"euro": 5}} == shell.json("resume", "agents.py", "r1")["result"]
    assert "not empty" in shell("signal", "r1", " ", code=1).stderr


def in_doubt(shell: Shell) -> None:
    """A run whose step 2 may or may not have happened."""
    shell.process("run", "agents.py:paying", "--id", "r1", "-p", "amount=5", "--lease", "0.3")
    shell("resume", "agents.py", "r1", code=1)


@pytest.mark.parametrize(
    ("how", "code", "output", "charged"),
    [
        (["--done", "charged by hand"], 0, "charged by hand\n", 1),
        (["--failed", "the bank knows nothing"], 1, "", 1),
        (["--retry"], 0, "charged\n", 2),
    ],
    ids=["done", "failed", "retry"],
)
def test_resolve_settles_a_call_in_doubt(
    shell: Shell, how: list[str], code: int, output: str, charged: int
) -> None:
    in_doubt(shell)
    assert "in doubt" in shell("show", "r1").stdout

    shown = shell("resolve", "r1", "2", *how, "--by", "ann", input="y\n")
    (shell.folder / "fixed").touch()

    assert '"amount": 5' in shown.stderr
    assert output == shell("resume", "agents.py", "r1", code=code).stdout
    assert charged == len(shell.lines("charged"))


def test_resolve_refuses_what_is_unclear(shell: Shell) -> None:
    shell.run("recap", "r1", "to=sam")

    shell("resolve", "r1", "2", code=2)
    shell("resolve", "r1", "2", "--retry", "--failed", "x", code=2)
    assert (
        "there is no doubt about it"
        in shell("resolve", "r1", "2", "--retry", "--yes", code=1).stderr
    )
    assert "no call in doubt" in shell("resolve", "r1", "9", "--retry", "--yes", code=1).stderr


def test_pause_holds_a_run_until_it_is_resumed(shell: Shell) -> None:
    shell.run("listening", "r1", code=1)
    assert "paused" == shell.json("pause", "r1", "--by", "ann")["status"]
    shell("signal", "r1", "payment", "5")

    assert {"executed": 0} == shell.json("worker", "agents.py", "--once")
    assert "paused already" in shell("pause", "r1", code=1).stderr
    assert {"got": 5} == shell.json("resume", "agents.py", "r1")["result"]


def test_cancel_ends_a_run_at_its_next_call(shell: Shell) -> None:
    shell.run("listening", "r1", code=1)

    assert (
        "cancel r1 of listening" in shell("cancel", "r1", "--why", "too late", input="y\n").stderr
    )
    assert {"executed": 1} == shell.json("worker", "agents.py", "--once")
    assert "cancelled" == shell.json("show", "r1")["status"]


def test_undo_takes_back_what_was_done_and_says_so_before(shell: Shell) -> None:
    shell.run("recap", "r1", "to=sam")

    asked = shell("undo", "r1", input="y\n")
    shell("resume", "agents.py", "r1", code=1)

    assert 'would undo step 2, send {"body": "HELLO", "to": "sam"}' in asked.stderr
    assert ["sam"] == shell.lines("undone")
    assert "undone" in shell("show", "r1").stdout


def test_fork_begins_with_the_first_steps_and_goes_its_own_way(shell: Shell) -> None:
    shell.run("recap", "r1", "to=sam")

    made = shell.json("fork", "r1", "1", "--id", "r2", "--state", "colour=red")

    assert {"run": "r2", "forked_from": "r1", "step": 1, "inherited_effects": []} == made
    assert "m-1\n" == shell("resume", "agents.py", "r2").stdout
    assert "red" == shell.json("show", "r2")["state"]["colour"]
    assert "exists" in shell("fork", "r1", "1", "--id", "r2", code=1).stderr
    assert "has no step 9" in shell("fork", "r1", "9", code=1).stderr
    shell("fork", "r1", "1", "--state", "nonsense", code=2)


# -- worker ------------------------------------------------------------------------------------


def test_a_worker_executes_what_is_due_and_then_stops_if_told_once(shell: Shell) -> None:
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
        assert "red" == hf.result("r1", timeout=60)

    process.terminate()
    said, _ = process.communicate(timeout=60)

    assert (0, "executed 1 run\n") == (process.returncode, said)


# -- another store -----------------------------------------------------------------------------


def test_the_verbs_are_the_same_on_postgresql_and_no_password_is_printed(
    shell: Shell, postgres_dsn: str
) -> None:
    password = urlsplit(postgres_dsn).password

    def hf(*words: str) -> Result:
        return CliRunner().invoke(cli.cli, [*words, "--url", postgres_dsn])

    waits = hf("run", "agents.py:careful", "--id", "r1", "-p", "to=sam")
    assert 1 == waits.exit_code, waits.output
    assert "holdfast approve r1 --db" in waits.stderr
    assert 0 == hf("approve", "r1", "--yes").exit_code
    assert {"executed": 1} == json.loads(hf("worker", "agents.py", "--once", "--json").stdout)
    assert "completed" in hf("list").stdout
    checked = hf("doctor", "--json")
    assert [] == json.loads(checked.stdout)["damaged"]
    assert not password or password not in waits.output + checked.output


# -- gc, export, import ------------------------------------------------------------------------


def test_gc_deletes_only_what_has_ended_and_keeps_the_newest(shell: Shell) -> None:
    for run_id in ("r1", "r2", "r3"):
        shell.run("recap", run_id, "to=sam")
    shell.run("asking", "a1", code=1)

    assert {"deleted": ["r2", "r1"], "dry_run": True} == shell.json(
        "gc", "--keep", "1", "--dry-run"
    )
    assert [] == shell.json("gc", "--older-than", "1h", "--yes")["deleted"]
    assert "nothing was done" in shell("gc", "--keep", "0", input="n\n", code=1).stderr
    assert {"deleted": ["r2", "r1"], "dry_run": False} == shell.json("gc", "--keep", "1", "--yes")
    assert ["a1", "r3"] == [run["id"] for run in shell.json("list")["runs"]]


@pytest.mark.parametrize("words", [[], ["--older-than", "soon"], ["--keep", "-1"]])
def test_gc_refuses_what_is_unclear(shell: Shell, words: list[str]) -> None:
    shell.run("recap", "r1", "to=sam")

    shell("gc", *words, "--yes", code=2)

    assert 1 == len(shell.json("list")["runs"])


def exported(shell: Shell, run_id: str) -> Path:
    file = shell.folder / f"{run_id}.jsonl"
    shell("export", run_id, "-o", str(file))
    return file


def test_a_run_goes_to_another_store_and_is_the_same_there(shell: Shell) -> None:
    """Chained as it was; what lies beside the log goes along."""
    shell.run("recap", "r1", "to=sam", f"notes={'x' * 100_000}")
    file, before = exported(shell, "r1"), shell.log("r1")
    shell.db = shell.folder / "other.db"

    assert {"run": "r1", "status": "completed", "events": len(before)} == shell.json(
        "import", str(file)
    )
    assert before == shell.log("r1")
    assert "m-1\n" == shell("resume", "agents.py", "r1").stdout
    assert "exists already" in shell("import", str(file), code=1).stderr


def test_an_imported_run_that_had_not_ended_executes_nothing_until_resumed(shell: Shell) -> None:
    shell.run("asking", "r1", code=1)
    shell("answer", "r1", "red", "--yes")
    file = exported(shell, "r1")
    shell.db = shell.folder / "other.db"

    assert "paused" == shell.json("import", str(file))["status"]
    assert {"executed": 0} == shell.json("worker", "agents.py", "--once")
    assert "red\n" == shell("resume", "agents.py", "r1").stdout


def _without(number: int) -> Callable[[list[str]], list[str]]:
    return lambda lines: [line for i, line in enumerate(lines) if i != number]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: [], "its first line"),
        (lambda lines: ["hello", *lines], "its first line"),
        (lambda lines: [lines[0].replace('"version":1', '"version":2'), *lines[1:]], "version 2"),
        (lambda lines: [lines[0].replace("r1", "r2"), *lines[1:]], "damaged at event 0"),
        (lambda lines: [line.replace("recap", "racap") for line in lines], "damaged at event 0"),
        (_without(3), "damaged at event 2"),
        (_without(-1), ""),
        (lambda lines: lines[:-1], "is missing from it"),
        (lambda lines: [*lines[:-1], lines[-1].replace('"data":"', '"data":"AAAA')], "has other bytes"),
        (lambda lines: [*lines[:2], '{"seq": -1}', *lines[2:]], "line 3 does not read"),
        (lambda lines: lines[:1], "does not begin with the creation"),
    ],
)  # fmt: skip
def test_an_import_that_was_tampered_with_is_refused_whole(
    shell: Shell, change: Callable[[list[str]], list[str]], said: str
) -> None:
    shell.run("recap", "r1", "to=sam", f"notes={'x' * 100_000}")
    file = exported(shell, "r1")
    lines = file.read_text().splitlines()
    file.write_text("\n".join(change(lines)))
    shell.db = shell.folder / "other.db"

    result = shell("import", str(file), code=1 if said else 0)

    assert said in result.stderr
    if said:
        assert not shell.db.exists()


# -- what a terminal is shown ------------------------------------------------------------------

TRICKS = "\x1b[31mred\x07\x9b2J\u202eevil\u2066\u200b\r\n\x00\U000e0041\ud800"


@given(st.text(alphabet=st.characters(codec=None)))
def test_nothing_shown_can_steer_a_terminal_or_hide(said: str) -> None:
    """FAULTS 105: control, bidirectional and invisible characters come out as escapes."""
    for lines in (False, True):
        kinds = {
            unicodedata.category(c)
            for c in text.visible(said, lines=lines)
            if not (lines and c in "\n\t")
        }

        assert set() == kinds & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


@given(st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126)))
def test_plain_text_is_shown_as_it_is(said: str) -> None:
    assert said == text.visible(said)


def test_escape_sequences_in_data_never_reach_the_screen(shell: Shell) -> None:
    """In the input, in results, state and errors, through every verb that shows them."""
    trick = TRICKS.replace("\ud800", "").replace("\x00", "")
    shell.run("recap", "r1", "to=nobody", f"notes={trick}", code=1)
    for words in (["show", "r1"], ["trace", "r1"], ["events", "r1"], ["diff", "r1", "1", "2"], ["list"],
                  ["show", "r1", "--json"], ["events", "r1", "--json"]):  # fmt: skip
        said = CliRunner().invoke(cli.cli, [*words, "--db", str(shell.db)], color=True).stdout

        assert "\x1b[31mred" not in said
        without_own_colours = re.sub(r"\x1b\[[0-9;]*m", "", said)
        assert not set("\x1b\x07\x9b\u202e\u2066\u200b\r\U000e0041") & set(without_own_colours), (
            words
        )


@pytest.mark.parametrize(
    ("age", "seconds"),
    [("90", 90), ("30s", 30), ("1.5m", 90), ("2h", 7200), ("1d", 86_400), ("1w", 604_800)],
)
def test_ages_are_read_with_their_units(age: str, seconds: float) -> None:
    assert seconds == text.seconds_of(age)


# -- at a terminal -----------------------------------------------------------------------------


# A process that makes a pseudo-terminal its own before it becomes the command: forking here, in a
# process with threads, is what Python warns of.
LOGIN = """
import fcntl, os, sys, termios
fd = os.open(sys.argv[1], os.O_RDWR)
fcntl.ioctl(fd, termios.TIOCSCTTY, 0)
for number in range(3):
    os.dup2(fd, number)
os.execv(sys.executable, [sys.executable, "-m", "holdfast.cli", *sys.argv[2:]])
"""


class Terminal:
    """A command at a pseudo-terminal: type, and wait for what it says."""

    def __init__(self, shell: Shell, *words: str) -> None:
        self.said = ""
        self._fd, theirs = pty.openpty()
        command = [sys.executable, "-c", LOGIN, os.ttyname(theirs), *words, "--db", str(shell.db)]
        env = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
        self._process = subprocess.Popen(command, cwd=shell.folder, env=env, start_new_session=True)
        self._theirs: int | None = theirs

    def expect(self, wanted: str, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while wanted not in self.said:
            assert time.monotonic() < end, f"waited for {wanted!r}, got {self.said!r}"
            assert self._read(), f"ended before {wanted!r}: {self.said!r}"

    def _read(self) -> bool:
        if self._process.poll() is not None and self._theirs is not None:
            os.close(self._theirs)  # until now it kept open what the process had not opened yet
            self._theirs = None
        ready, _, _ = select.select([self._fd], [], [], 0.05)
        if not ready:
            return True
        try:
            data = os.read(self._fd, 4096)
        except OSError:  # how Linux says that the other side is closed
            return False
        self.said += data.decode(errors="replace")
        return bool(data)

    def type(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def end(self) -> int:
        while self._read():
            pass
        return self._process.wait(60)

    def close(self) -> None:
        """Leave nothing behind, however the test ended."""
        self._process.kill()
        self._process.wait()
        for fd in (self._fd, self._theirs):
            if fd is not None:
                os.close(fd)


@pytest.fixture
def terminal(shell: Shell) -> Iterator[Callable[..., Terminal]]:
    open_ones: list[Terminal] = []

    def open_one(*words: str) -> Terminal:
        open_ones.append(Terminal(shell, *words))
        return open_ones[-1]

    yield open_one
    for session in open_ones:
        session.close()


def test_at_a_terminal_run_asks_on_the_spot(
    shell: Shell, terminal: Callable[..., Terminal]
) -> None:
    """It shows the exact arguments, takes the decision, and goes on."""
    session = terminal("run", "agents.py:careful", "--id", "r1", "--param", "to=sam")
    session.expect('"to": "sam"')
    session.expect("approve?")
    session.type("y\n")
    session.expect("why")
    session.type("looks right\n")
    code = session.end()

    assert (0, ["sam"]) == (code, shell.lines("sent"))
    assert "step 2 send" in session.said
    assert any("looks right" in line["text"] for line in shell.json("show", "r1")["lines"])


def test_at_a_terminal_later_leaves_the_run_waiting(
    shell: Shell, terminal: Callable[..., Terminal]
) -> None:
    session = terminal("run", "agents.py:asking", "--id", "r1")
    session.expect("Which colour?")
    session.expect("answer (empty: later)")
    session.type("\n")
    code = session.end()

    assert 1 == code
    assert f"holdfast answer r1 red --db {shell.db}" in session.said.replace("\r\n", "\n")
    assert "waiting" == shell.json("show", "r1")["status"]


def test_ctrl_c_leaves_a_run_that_the_printed_command_resumes(
    shell: Shell, terminal: Callable[..., Terminal]
) -> None:
    session = terminal("run", "agents.py:patient", "--id", "r1")
    session.expect("waiting for the file")
    session.type("\x03")
    session.expect("To go on:")
    code = session.end()
    found = re.search(r"^  (holdfast resume .*)$", session.said.replace("\r\n", "\n"), re.M)

    assert 130 == code
    assert found is not None
    assert "pending" == shell.json("show", "r1")["status"]
    (shell.folder / "go").touch()
    words = shlex.split(found[1])[1:]
    done = CliRunner().invoke(cli.cli, words)
    assert (0, "go\n") == (done.exit_code, done.stdout.replace("waiting for the file\n", ""))
    assert ["draft"] == [c["name"] for c in shell.json("show", "r1")["calls"] if c["step"] == 1]


def test_at_a_terminal_tables_are_drawn_and_data_is_no_markup(
    shell: Shell, terminal: Callable[..., Terminal]
) -> None:
    shell.run("recap", "r1", "to=[bold]sam[/bold]")
    session = terminal("show", "r1")
    code = session.end()

    assert 0 == code
    assert "[bold]sam[/bold]" in session.said
    assert "\x1b[" in session.said


def test_help_is_click_s_own_for_completion() -> None:
    """Shells complete the verbs through click; nothing of ours stands in the way."""
    from click.shell_completion import ShellComplete

    found = ShellComplete(cli.cli, {}, "holdfast", "_HOLDFAST_COMPLETE").get_completions([], "tr")

    assert ["trace"] == [item.value for item in found]
    assert isinstance(cli.cli, click.Group)
