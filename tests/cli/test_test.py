"""`holdfast test`, `check` and `rerun`: good input, JSON, and bad input. What starts processes of its own
goes through the real command; the rest in this process, through click's runner.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast import Holdfast, RunCancelled
from holdfast.cli.load import load
from holdfast.cli.verbs import cli

AGENT = '''
from pathlib import Path
from holdfast import Run, agent, step, tool

@step
def draft(notes: str) -> str:
    return notes.upper()

@tool
def send_email(to: str, body: str, idempotency_key: str = "") -> dict:
    Path(__file__).with_name("sent").write_text(f"{to} {idempotency_key}")
    return {"message_id": "real"}

@agent(stages=("drafting", "complete"))
def recap(run: Run, to: str, notes: str = "hi") -> str:
    run.stage = "drafting"
    run.state.draft = draft(notes)
    if not run.state.message_id:
        run.state.message_id = send_email(to, run.state.draft)["message_id"]
    run.stage = "complete"
    return run.state.message_id

MOCKS = {"send_email": {"returns": {"message_id": "m-1"}}}

SPEC = """
Feature: recap
  Scenario: sends once
    Given the input to is sam
    When the procedure runs
    Then the send_email tool should be called exactly 1 time
    And the state message_id should exist
    And the stage should be complete
"""
'''
FAILING = """Feature: more
  Scenario: gets it wrong
    Given the input to is sam
    When the agent runs
    Then the output should be "m-2"
"""
SET_ORDER = '''
from holdfast import Run, agent, tool

@tool
def send(to: str, idempotency_key: str = "") -> str:
    return to + idempotency_key

@agent
def everybody(run: Run) -> int:
    return len([send(name) for name in {"ann", "bob", "carl", "dora"}])

MOCKS = {"send": {"returns": "sent"}}
SPEC = """
Feature: everybody
  Scenario: all
    When the agent runs
    Then the output should be 4
"""
'''


DEVOPS = '''
from holdfast import LLMAgent, tool
from holdfast.agents.models import OpenAIModel

@tool(risk="read")
def check_disk(path: str) -> str:
    return "97 % full"

@tool
def clean_logs(path: str, idempotency_key: str = "") -> str:
    return "cleaned"

devops = LLMAgent("devops", model=OpenAIModel("gpt-x"), instructions="Fix it.", tools=[check_disk, clean_logs])

MOCKS = {"clean_logs": {"returns": "cleaned"}, "check_disk": {"returns": "97 % full"}}
SPEC = """
Feature: devops
  Scenario: cleans once
    Given the input goal is "I am out of disk space"
    And the model answers in turn:
      | {"tool": "check_disk", "with": {"path": "/"}} |
      | {"tool": "clean_logs", "with": {"path": "/var/log"}} |
      | All done |
    When the agent runs
    Then the clean_logs tool should be called exactly 1 time
    And the output should be "All done"
"""
'''


class Folder:
    """A folder with an agent's file, in which commands run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.db = path / "runs.db"
        self.write("recap.py", AGENT)

    def write(self, name: str, text: str) -> None:
        (self.path / name).write_text(text, encoding="utf-8")

    def __call__(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        env = {k: v for k, v in os.environ.items() if k != "HOLDFAST_URL"}
        done = subprocess.run(
            [sys.executable, "-m", "holdfast.cli", *words],
            cwd=self.path,
            env=env,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert code == done.returncode, done.stdout + done.stderr
        return done

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self(*words, "--json", code=code).stdout)

    def here(self, *words: str, code: int = 0) -> Result:
        """The same in this process."""
        done = CliRunner().invoke(cli, [*words])
        unexpected = done.exception if not isinstance(done.exception, SystemExit) else None
        assert (code, None) == (done.exit_code, unexpected), done.output
        return done

    def json_here(self, *words: str, code: int = 0) -> Any:
        return json.loads(self.here(*words, "--json", code=code).stdout)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    monkeypatch.setattr(sys, "path", sys.path[:])  # loading an agent's file puts its folder there
    return Folder(tmp_path)


# ── what need not be installed ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("pytest", "has test functions, and pytest is not installed: pip install"),
        (
            "gherkin",
            "a spec in Gherkin needs the package gherkin-official: pip install 'holdfast[test]'",
        ),
    ],
)
def test_what_is_not_installed_is_named_with_the_way_to_get_it(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, missing: str, said: str
) -> None:
    folder.write(
        "alone.py",
        AGENT.replace("Feature:", "# A comment, which is read by the parser.\nFeature:")
        if missing == "gherkin"
        else f"{AGENT.split('MOCKS', maxsplit=1)[0]}\ndef test_it(): pass\n",
    )
    names = [name for name in sys.modules if name.split(".")[0] == missing] or [missing]
    for name in names:
        monkeypatch.setitem(sys.modules, name, None)

    assert said in folder.here("test", "alone.py", code=1).stderr


# ── test ─────────────────────────────────────────────────────────────────────────────────────


def test_specs_in_the_file_and_next_to_it_are_run_and_a_failure_is_explained(
    folder: Folder,
) -> None:
    folder.write("recap.feature", FAILING)

    said = folder("test", "recap.py", "--mock", code=1).stdout

    assert "passed  sends once" in said
    assert "FAILED  gets it wrong  (recap.feature:2)" in said
    assert 'Then the output should be "m-2"   (recap.feature:5)' in said
    assert 'expected: the output to be "m-2"' in said
    assert 'actual:   "m-1"' in said
    assert "what happened: completed; step 2; 1–2 committed, stage complete" in said
    assert 'step 2 send_email(body="HI" to="sam") done → {"message_id": "m-1"}' in said
    assert said.endswith("1 passed, 1 failed\n")
    assert not (folder.path / "sent").exists()


def test_the_json_of_a_test_is_for_programs(folder: Folder) -> None:
    """Whatever the agent prints goes elsewhere."""
    folder.write("recap.feature", FAILING)
    folder.write("recap.py", AGENT.replace("return notes", "print('drafting'); return notes"))

    found = folder.json("test", "recap.feature", "--mock", code=1)

    assert {"ok", "passed", "failed", "scenarios", "tests"} == found.keys()
    (one,) = found["scenarios"]
    assert {"name", "place", "ok", "failed", "problem", "run", "crashes"} == one.keys()
    assert one["failed"] == {
        "sentence": 'the output should be "m-2"',
        "place": "recap.feature:5",
        "expected": 'the output to be "m-2"',
        "actual": '"m-1"',
    }
    assert "completed" == one["run"]["status"]
    assert ["draft", "send_email"] == [call["name"] for call in one["run"]["calls"]]


def test_without_mock_tools_are_executed_for_real(folder: Folder) -> None:
    said = folder("test", "recap.py").stdout

    assert "executed for real" in said
    assert (folder.path / "sent").read_text().startswith("sam test:2:send_email:")


def test_crash_everywhere_passes_a_right_agent(folder: Folder) -> None:
    found = folder.json("test", "recap.py", "--mock", "--crash-everywhere")

    (one,) = found["scenarios"]
    assert (True, [], "") == (
        one["crashes"]["ok"],
        one["crashes"]["faults"],
        one["crashes"]["problem"],
    )
    assert one["crashes"]["boundaries"] >= 14


def test_crash_everywhere_passes_an_agent_that_branches_on_recorded_chance(folder: Folder) -> None:
    """Every schedule, in whatever process, draws what the undisturbed run drew."""
    folder.write(
        "coin.py",
        '''
from holdfast import Run, agent, step

@step
def look(what: str) -> str:
    return what

@agent
def coin(run: Run) -> list[str]:
    found = [look("first")]
    for n in range(8):
        if run.random() < 0.9:
            found.append(look(f"{n}"))
    return [*found, str(run.uuid()), run.now().isoformat()]

SPEC = """
Feature: coin
  Scenario: any
    When the agent runs
    Then the run should be completed
"""
''',
    )

    found = folder.json("test", "coin.py", "--mock", "--crash-everywhere")

    assert [] == found["scenarios"][0]["crashes"]["faults"]


def test_crash_everywhere_with_real_tools_needs_a_yes_and_then_calls_them(folder: Folder) -> None:
    refused = folder("test", "recap.py", "--crash-everywhere", code=2).stderr
    assert "--mock" in refused and "--real" in refused
    assert not (folder.path / "sent").exists()

    found = folder.json("test", "recap.py", "--crash-everywhere", "--real")

    assert found["scenarios"][0]["crashes"]["ok"]
    assert (folder.path / "sent").read_text().startswith("sam ")


def test_a_model_agent_is_tested_without_its_model_and_crashed_everywhere(folder: Folder) -> None:
    folder.write("devops.py", DEVOPS)

    found = folder.json("test", "devops.py", "--mock", "--crash-everywhere")

    (one,) = found["scenarios"]
    assert one["ok"] and one["crashes"]["ok"]
    assert ["model", "check_disk", "model", "clean_logs", "model"] == [
        call["name"] for call in one["run"]["calls"]
    ]


def test_every_kind_of_mock_answers_as_declared(folder: Folder) -> None:
    folder.write(
        "asking.py",
        '''
from holdfast import CallFailed, Run, agent, tool

@tool(risk="read")
def look(name: str) -> str:
    return "real"

@agent
def asking(run: Run, names: list[str]) -> list[str]:
    said = []
    for name in names:
        try:
            said.append(look(name))
        except CallFailed as error:
            said.append(f"{error.error_type}: {error.message}")
    return said

MOCKS = {"look": {"when": [{"with": {"name": "sam"}, "returns": "seven"},
                           {"if": lambda args: args["name"].startswith("x"), "raises": TimeoutError("gone")}],
                  "error": "nobody by that name"}}
SPEC = """
Feature: asking
  Scenario: by what is asked
    Given the input names is ["sam", "xy", "ann"]
    When the agent runs
    Then the output should be ["seven", "TimeoutError: gone", "MockFailure: nobody by that name"]
"""
''',
    )
    folder.write(
        "function.py",
        (folder.path / "asking.py").read_text().split("MOCKS")[0]
        + '''
MOCKS = {"look": lambda name: name.upper()}
SPEC = """
Feature: asking
  Scenario: a function
    Given the input names is ["sam"]
    When the agent runs
    Then the output should be ["SAM"]
"""
''',
    )

    for file in ("asking.py", "function.py"):
        assert folder.here("test", file, "--mock").stdout.endswith("1 passed, 0 failed\n")


def test_crash_everywhere_finds_what_depends_on_the_order_of_a_set(folder: Folder) -> None:
    """Each life has another hash seed than the one before, as new processes have."""
    folder.write("everybody.py", SET_ORDER)

    said = folder("test", "everybody.py", "--mock", "--crash-everywhere", code=1).stdout

    assert "DIVERGES" in said
    assert f"at: {folder.path / 'everybody.py'}:10" in said
    assert "sorted(…)" in said


def test_crash_everywhere_names_the_call_that_stays_in_doubt_and_the_remedy(folder: Folder) -> None:
    folder.write(
        "recap.py",
        AGENT.replace(', idempotency_key: str = ""', "").replace("{idempotency_key}", ""),
    )

    found = folder.json("test", "recap.py", "--mock", "--crash-everywhere", code=1)

    (fault,) = found["scenarios"][0]["crashes"]["faults"]
    assert {"kind", "says", "at", "declared", "killed", "remedy", "crashes"} == fault.keys()
    assert "in doubt" == fault["kind"]
    assert f"{folder.path / 'recap.py'}:19" == fault["at"]
    assert f"{folder.path / 'recap.py'}:9" == fault["declared"]
    assert "idempotency_key" in fault["remedy"]


def test_test_functions_are_handed_to_pytest(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    # They cost seconds, and do nothing here.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    folder.write(
        "test_recap.py", "def test_right():\n    pass\n\ndef test_wrong():\n    assert 1 == 2\n"
    )

    found = folder.json("test", "recap.py", "--mock", code=1)

    assert [("test_right", True), ("test_wrong", False)] == [
        (t["name"], t["ok"]) for t in found["tests"]
    ]
    assert "assert 1 == 2" in found["tests"][1]["message"]
    assert ["test_right"] == [
        t["name"] for t in folder.json("test", "recap.py", "-k", "right")["tests"]
    ]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["test", "nothing.py"], 1, "no file or module is named nothing.py"),
        (["test", "empty.py"], 1, "has nothing to test"),
        (["test", "lonely.feature"], 1, "belongs to an agent in lonely.py, which does not exist"),
        (["test", "recap.py", "--crash-everywhere"], 2, "use --mock, or --real"),
        (["test", "recap.py", "-k", "nobody"], 1, "no scenario or test matches 'nobody'"),
        (["test", "unknown.py", "--mock"], 1, "unknown.py:7: unknown sentence: the agent flies"),
        (["test", "badmock.py", "--mock"], 1, "has 'return', which is unknown"),
        (["check", "nothing.py"], 1, "no file or module is named nothing.py"),
        (["check", "recap.py"], 1, "no store at"),
        (["rerun", "recap.py", "nobody", "--yes"], 1, "no store at"),
    ],
)
def test_bad_input_is_refused_with_a_message(
    folder: Folder, words: list[str], code: int, says: str
) -> None:
    plain = "from holdfast import Run, agent\n@agent\ndef a(run: Run) -> int:\n    return 1\n"
    folder.write("empty.py", plain)
    folder.write("lonely.feature", FAILING)
    folder.write(
        "unknown.py", plain + 'SPEC = """Feature: x\n  Scenario: y\n    When the agent flies\n"""\n'
    )
    folder.write("badmock.py", plain + 'MOCKS = {"a": {"return": 1}}\nSPEC = """Feature: x"""\n')

    assert says in folder.here(*words, code=code).output


# ── check ────────────────────────────────────────────────────────────────────────────────────

OLD = """
from holdfast import Run, agent, step
@step
def look(n: int) -> int:
    return n
@agent
def flow(run: Run, n: int = 1) -> int:
    first = look(n)
    look(first + 1)
    return run.wait_for("go")
@agent
def other(run: Run) -> int:
    return run.wait_for("go")
"""


@pytest.fixture
def waiting(folder: Folder) -> Folder:
    """A store with four unfinished runs and one that is over."""
    folder.write("old.py", OLD)
    for run_id, agent in (("r-1", "flow"), ("r-2", "flow"), ("o-1", "other"), ("r-0", "flow")):
        folder.here("run", f"old.py:{agent}", "--id", run_id, "--db", str(folder.db), code=1)
    folder.here("signal", "r-0", "go", "5", "--yes", "--db", str(folder.db))
    folder.here("resume", "old.py", "r-0", "--db", str(folder.db))
    return folder


def logs(folder: Folder) -> Any:
    with Holdfast(folder.db) as hf:
        return {
            row.id: (row, [record.hash for record, _ in hf.events(row.id)]) for row in hf.runs()
        }


def test_check_lists_the_runs_that_would_diverge_and_the_step_and_changes_nothing(
    waiting: Folder,
) -> None:
    waiting.write(
        "new.py",
        OLD.replace("first + 1", "first + 2")
        .replace("return n", "raise SystemExit('executed')")
        .replace("def other", "def another"),
    )
    before = logs(waiting)

    found = waiting.json_here("check", "new.py", "--db", str(waiting.db), code=1)
    said = waiting.here("check", "new.py", "--db", str(waiting.db), code=1).stdout

    assert {"ok", "checked", "counts", "runs"} == found.keys()
    assert {"agrees": 0, "diverges": 2, "fails": 0, "damaged": 0, "unknown": 1} == found["counts"]
    first = found["runs"][0]
    assert ("r-1", "diverges", 2) == (first["run"], first["verdict"], first["step"])
    assert ('look({"n":2})', 'look({"n":3})') == (first["recorded"], first["attempted"])
    assert (
        'r-1 of flow (waiting) diverges at step 2\n  recorded:  look({"n":2})\n  attempted: look({"n":3})'
        in said
    )
    assert "unknown: 1 of agent other" in said
    assert before == logs(waiting)


def test_check_accepts_code_that_continues_and_finds_code_that_breaks(waiting: Folder) -> None:
    waiting.write("same.py", OLD + "\n# a comment more\n")
    waiting.write("broken.py", OLD.replace("    first = look(n)", "    raise KeyError('n')"))
    waiting.write(
        "shorter.py",
        OLD.replace('    look(first + 1)\n    return run.wait_for("go")', "    return first"),
    )

    agrees = waiting.json_here("check", "same.py", "--db", str(waiting.db))
    broken = waiting.json_here(
        "check", "broken.py", "--agent", "flow", "--db", str(waiting.db), code=1
    )
    shorter = waiting.json_here(
        "check", "shorter.py:flow", "--agent", "flow", "--db", str(waiting.db), code=1
    )

    assert (True, 3, 3) == (agrees["ok"], agrees["checked"], agrees["counts"]["agrees"])
    assert ["the agent fails with KeyError: 'n'"] * 2 == [
        run["attempted"] for run in broken["runs"]
    ]
    assert [("the end of the agent", 2)] * 2 == [
        (run["attempted"], run["step"]) for run in shorter["runs"]
    ]


def test_check_looks_at_failed_runs_when_asked(folder: Folder) -> None:
    failing = OLD.replace('    return run.wait_for("go")', "    raise ValueError('no')")
    folder.write("failing.py", failing)
    folder.here("run", "failing.py:flow", "--id", "f-1", "--db", str(folder.db), code=1)
    folder.write("new.py", failing.replace("first + 1", "first + 2"))

    left_out = folder.json_here("check", "new.py", "--db", str(folder.db))
    found = folder.json_here("check", "new.py", "--failed", "--db", str(folder.db), code=1)

    assert 0 == left_out["checked"]
    assert ["f-1"] == [run["run"] for run in found["runs"] if run["verdict"] == "diverges"]


def test_check_reads_page_after_page_and_leaves_out_what_has_ended(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.store.pages.RUNS_PAGE", 2)
    folder.write("paged.py", OLD)
    agents = load("paged.py").agents
    with Holdfast(folder.db) as hf:
        for number in range(5):
            hf.start(agents["flow"], id=f"r-{number}")
        hf.cancel("r-4")
        with pytest.raises(RunCancelled):
            hf.resume("r-4")

    found = folder.json_here("check", "paged.py", "--db", str(folder.db))

    assert [f"r-{number}" for number in range(4)] == [run["run"] for run in found["runs"]]


# ── rerun ────────────────────────────────────────────────────────────────────────────────────


def test_rerun_starts_the_code_over_with_its_state_kept(folder: Folder) -> None:
    db = ["--db", str(folder.db)]
    folder.here("run", "recap.py", "--id", "r", "--param", "to=sam", *db)
    (folder.path / "sent").unlink()

    refused = folder.here("rerun", "recap.py", "r", *db, code=1)
    found = folder.json_here("rerun", "recap.py", "r", "--yes", "--why", "new template", *db)

    assert "step 2, send_email" in refused.stderr
    assert "no confirmation" in refused.stderr
    assert ("completed", "real") == (found["status"], found["result"])
    assert not (folder.path / "sent").exists()  # the guard by state held
    with Holdfast(folder.db) as hf:
        assert 1 == hf.get("r").restarts


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["rerun", "recap.py", "nobody", "--yes"], "no run 'nobody'"),
        (["rerun", "other.py", "r", "--yes"], "which is not in other.py"),
    ],
)
def test_rerun_refuses_what_it_cannot_do(folder: Folder, words: list[str], says: str) -> None:
    folder.write("other.py", OLD)
    folder.here("run", "recap.py", "--id", "r", "--param", "to=sam", "--db", str(folder.db))
    before = logs(folder)

    assert says in folder.here(*words, "--db", str(folder.db), code=1).stderr
    assert before == logs(folder)
