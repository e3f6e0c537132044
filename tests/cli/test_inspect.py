"""The verbs that look: list, show, trace, events, diff, verify, doctor. In this process, through click's runner."""

import re
from typing import Any

import apsw
import pytest

from holdfast import Holdfast, Run, RunWaiting, agent, step
from holdfast.store.sqlite import SQLiteStore
from support.long_runs import write_steps
from support.shell import Shell, damage

# -- list ----------------------------------------------------------------------------------------


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


# -- show, trace, events, diff, verify -----------------------------------------------------------


def test_show_prints_where_a_run_is_and_what_happened(shell: Shell) -> None:
    shell.run("careful", "r1", "to=sam", code=1)

    said = shell("show", "r1").stdout

    for part in (
        "r1  waiting",
        "step 2; 1 committed",
        "approval of send",
        f"holdfast approve r1 --db {shell.db}",
        "1     draft  done",
        'notes="hello"',
        '"HELLO"',
    ):
        assert part in said


def test_show_prints_attempts_decisions_state_and_the_failure_with_its_input(shell: Shell) -> None:
    shell.run("recap", "r1", "to=nobody", code=1)

    said = shell("show", "r1").stdout

    for part in (
        "attempt 1 failed: ConnectionError: nobody is there; next attempt after",
        "attempt 3 failed",
        'route: "email", because they asked',
        'draft = "HELLO"',
        "drafting → [sending] → complete",
        "error at step 2, send",
        'input  {"body": "HELLO", "to": "nobody"}',
        'state  {"draft": "HELLO"}',
        "continue     holdfast resume FILE r1",
    ):
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
    assert "running" == shell.json("show", "r1", "--step", "1")["status"]
    assert re.search(
        r"state after step 1, at .*; it is completed now\nrun +r1  running",
        shell("show", "r1", "--step", "1").stdout,
    )
    assert "has no step 9; it has 2" in shell("show", "r1", "--step", "9", code=1).stderr


def test_trace_is_a_timeline_in_words(shell: Shell) -> None:
    shell.run("recap", "r1", "to=sam")

    said = shell("trace", "r1").stdout
    found = shell.json("trace", "r1")

    assert re.search(r"\+0\.\d+  step 2 send +started \(keyed\): body=\"HELLO\" to=\"sam\"", said)
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


def test_verify_holds_for_a_log_as_written_and_fails_for_a_changed_one(shell: Shell) -> None:
    shell.run("recap", "r1", "to=sam")
    assert {"run": "r1", "ok": True, "problem": ""}.items() <= shell.json("verify", "r1").items()

    damage(shell.db, "r1")

    assert not shell.json("verify", "r1", code=1)["ok"]
    assert "DAMAGED: run 'r1' is damaged at event" in shell("verify", "r1", code=1).stdout
    assert "damaged at event" in shell("show", "r1", code=1).stderr


def test_doctor_names_weak_settings_and_damaged_runs(shell: Shell) -> None:
    shell.run("recap", "r1", "to=sam")
    shell.run("recap", "r2", "to=sam")
    found = shell.json("doctor")
    assert (True, 2, []) == (found["ok"], found["runs"], found["damaged"])

    damage(shell.db, "r1")
    shell.db.chmod(0o644)

    hurt = shell.json("doctor", code=1)
    assert ["r1"] == [run["run"] for run in hurt["damaged"]]
    assert ["file mode"] == [finding["name"] for finding in hurt["findings"] if not finding["ok"]]
    said = shell("doctor", code=1).stdout
    assert "WEAK" in said
    assert "2 runs checked, 1 damaged" in said


def test_doctor_names_a_sqlite_library_that_can_lose_commits(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.run("recap", "r1", "to=sam")
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.51.2")

    found = shell.json("doctor", code=1)

    assert [("SQLite library", "3.51.2", "this version can lose commits; update apsw")] == [
        (f["name"], f["value"], f["advice"]) for f in found["findings"] if not f["ok"]
    ]
    assert "1 run checked, 0 damaged" in shell("doctor", code=1).stdout


LOOP = """
from holdfast import AgentState, Run, loop

@loop(max_iterations=9)
def seeking(run: Run, state: AgentState) -> AgentState:
    if state.iteration == 1:
        return state.with_plan(["search"]).with_fact("hits", 3, source="search").to_executing()
    run.wait_for("go")
    return state.to_done("found")
"""


def test_show_prints_the_state_of_a_loop_and_patch_changes_it(shell: Shell) -> None:
    (shell.folder / "loops.py").write_text(LOOP)
    shell("run", "loops.py", "--id", "s1", "--param", "goal=why", code=1)
    ops = '[{"op": "add", "path": "/memory/flags/-", "value": "late"}, {"op": "test", "path": "/goal", "value": "why"}]'

    said = shell("show", "s1").stdout
    shell("patch", "s1", "--json-patch", ops, "--yes")
    shell("signal", "s1", "go")
    shell("resume", "loops.py", "s1")
    after = shell("show", "s1").stdout

    assert 'executing, iteration 1: "why"' in said
    assert ["· search", "hits = 3  (from search)", 'user: "why"'] == [
        line.strip()
        for line in said.splitlines()
        if line.strip().startswith(("· ", "hits", "user:"))
    ]
    assert "done, iteration 2" in after
    assert "flags\n  late\n" in after


FAMILY = """
import os
from holdfast import Run, agent, tool

@tool
def ring() -> str:
    os._exit(9)

@agent
def child(run: Run, how: str) -> object:
    return ring() if how == "doubt" else run.wait_for("go")

@agent
def parent(run: Run, how: str) -> object:
    return child(how)

@agent
def family(run: Run, how: str) -> object:
    return parent(how)
"""


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("signal", "holdfast signal 'r1~1~1' go"),
        ("doubt", "holdfast resolve 'r1~1~1' 1 --done RESULT"),
        ("pause", "holdfast resume FILE 'r1~1~1'"),
    ],
)
def test_the_open_request_of_a_child_is_offered_for_the_child(
    shell: Shell, how: str, said: str
) -> None:
    (shell.folder / "family.py").write_text(FAMILY)
    words = ["run", "family.py:family", "--id", "r1", "-p", f"how={how}"]
    if how == "doubt":
        shell.process(*words, "--lease", "1")
        shell("resume", "family.py:family", "r1", code=1)
    else:
        shell(*words, code=1)
    if how == "pause":
        shell("pause", "r1~1~1")

    assert [] != [line for line in shell.json("show", "r1")["continue"] if line.startswith(said)]


def test_show_of_a_run_that_only_waits_has_no_steps_and_prints_until_when(shell: Shell) -> None:
    (shell.folder / "napping.py").write_text(
        "from holdfast import Run, agent\n\n@agent\ndef napping(run: Run) -> str:\n"
        "    run.sleep(0.001)\n    return 'ok'\n"
    )
    shell("run", "napping.py", "--id", "r1")

    assert "no steps" in shell("show", "r1").stdout
    assert re.search(r"timer, until \d{4}-\d\d-\d\d ", shell("trace", "r1").stdout)


# -- runs that have lived long ---------------------------------------------------------------------


@step
def look(i: int) -> int:
    return i


@agent
def long(run: Run) -> None:
    for i in range(250):
        look(i)
    run.approve("Go on?")


def test_of_a_long_run_the_last_calls_are_shown_and_all_if_asked_for(shell: Shell) -> None:
    with Holdfast(shell.db, agents=[long]) as hf:
        write_steps(hf.store, long, "r", 250, look)

    def steps(*words: str) -> list[str]:
        return re.findall(r"^  (\d+) +look", shell("show", "r", *words).stdout, re.MULTILINE)

    assert [str(n) for n in range(151, 251)] == steps()
    assert "150 earlier calls not shown; --all shows every call" in shell("show", "r").stdout
    assert [str(n) for n in range(1, 251)] == steps("--all")
    brief = shell.json("show", "r")
    assert (len(brief["calls"]), brief["left_out"]) == (100, 150)
    assert len(shell.json("show", "r", "--all")["calls"]) == 250


@pytest.mark.parametrize(
    "words", ["approve r", "reject r", "signal r go", "cancel r", "pause r", "patch r --state k=1"]
)
def test_no_more_of_a_long_run_is_read_than_the_decision_needs(
    shell: Shell, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Holdfast(shell.db, agents=[long]) as hf:
        write_steps(hf.store, long, "r", 250, look)
        with pytest.raises(RunWaiting):
            hf.resume("r")
    read, seen = SQLiteStore.read, []

    def watched(*args: Any, **options: Any) -> Any:
        found = read(*args, **options)
        seen.extend(found)
        return found

    monkeypatch.setattr(SQLiteStore, "read", watched)
    shell(*words.split(), "--yes")

    assert 0 < len(seen) < 120
