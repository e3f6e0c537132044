"""Every command that errors and `show` print works as printed, on a store that is not the default."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from holdfast import Budget, Holdfast, Run, RunCancelled, RunFailed, RunWaiting, agent, tool
from support.shell import HOLDFAST, commands, environment

AGENTS = """
from holdfast import Budget, Run, agent, step, tool
import os


@step
def look(n: int) -> int:
    return n


@tool
def pay(n: int) -> int:
    if os.environ.get("DIE"):
        os._exit(9)
    return n


@agent
def approval(run: Run) -> str:
    run.approve("Send it?")
    return "sent"


@agent
def question(run: Run) -> object:
    return run.ask("Which one?", options=["red one", "blue"])


@agent
def open_question(run: Run) -> object:
    return run.ask("How many?")


@agent
def signal(run: Run) -> object:
    return run.wait_for("go on")


@agent
def several(run: Run) -> object:
    return run.map(lambda n: run.approve(f"Send {n}?"), [1, 2])


@agent
def doubt(run: Run) -> int:
    return pay(1)


@tool
def connect() -> object:
    return object()


@agent
def lost(run: Run) -> object:
    return connect()


@agent
def failing(run: Run) -> int:
    if os.environ.get("FAIL"):
        raise ValueError("no")
    return look(1)


@agent
def sleeping(run: Run) -> str:
    run.sleep(3600)
    return "awake"


@agent
def parent(run: Run) -> object:
    return approval()


@agent(budget=Budget(max_steps=1))
def budget(run: Run) -> int:
    return look(1) + look(2)


@agent(deadline=0.001)
def deadline(run: Run) -> int:
    return sum(look(n) for n in range(500))


@agent
def diverged(run: Run) -> bool:
    look(2 if os.environ.get("CHANGED") else 1)
    return run.approve("Send it?")


@agent
def added(run: Run) -> bool:
    if os.environ.get("CHANGED"):
        pay(1)
    look(1)
    return run.approve("Send it?")
"""
CASES = {
    "approval": {},
    "question": {},
    "open_question": {},
    "signal": {},
    "several": {},
    "doubt": {"DIE": "1"},
    "lost": {},
    "failing": {"FAIL": "1"},
    "sleeping": {},
    "parent": {},
    "budget": {},
    "deadline": {},
    "diverged": {},
    "added": {},
    "paused": {},
}
SECOND = {
    "doubt": ("resume", "agents.py", "r-1"),  # the process died; the next one finds the doubt
    "diverged": ("resume", "agents.py", "r-1"),
    "added": ("resume", "agents.py", "r-1"),
    "paused": ("pause", "r-1", "--yes"),
}
"""What happens before the run is looked at."""


def holdfast(folder: Path, *words: str, **env: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [HOLDFAST, *words],
        cwd=folder,
        env=environment(**env),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )


def as_typed(line: str) -> list[str]:
    """A printed command as a person types it: what is in capitals is filled in."""
    filled = {"FILE": "agents.py", "VALUE": "7", "RESULT": "1", "WHY": "not done"}
    words = [filled.get(word, word) for word in shlex.split(line)]
    asks = words[1] in ("approve", "reject", "answer", "resolve", "rerun", "cancel")
    return [*words[1:], *(["--yes"] if asks else []), *(["--once"] if words[1] == "worker" else [])]


@pytest.mark.parametrize("case", CASES)
def test_every_printed_command_works(case: str, tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    (folder / "agents.py").write_text(AGENTS)
    store = ["--db", "other store.db"]
    agent = "approval" if case == "paused" else case
    begin = ["run", f"agents.py:{agent}", "--id", "r 1".replace(" ", "-"), "--lease", "0.2", *store]
    first = holdfast(folder, *begin, **CASES[case])
    if case in SECOND:
        first = holdfast(folder, *SECOND[case], *store, CHANGED="1")
    shown = holdfast(folder, "show", "r-1", *store)
    assert shown.returncode == 0, shown.stderr
    printed = dict.fromkeys([*commands(first.stderr), *commands(shown.stdout)])
    assert printed, (first.stderr, shown.stdout)
    saved = {path.name: path.read_bytes() for path in folder.glob("other store.db*")}
    for line in printed:
        for path in folder.glob("other store.db*"):
            path.unlink()
        for name, data in saved.items():
            (folder / name).write_bytes(data)
        done = holdfast(folder, *as_typed(line))
        is_refused = "error:" in done.stderr or "Usage:" in done.stderr
        assert not is_refused, (line, done.stderr)
        assert "'other store.db'" in line


@agent
def failing(run: Run) -> None:
    raise ValueError("no")


@agent(deadline=0.001)
def late(run: Run) -> None:
    while True:
        pay(1)


@agent(budget=Budget(max_steps=1))
def costly(run: Run) -> None:
    pay(1)
    pay(2)


@tool
def pay(n: int) -> int:
    return n


@agent
def waiting(run: Run) -> bool:
    return run.approve("Send it?")


def test_every_command_in_an_error_names_its_store(tmp_path: Path) -> None:
    path = tmp_path / "other store.db"
    printed: list[str] = []
    with Holdfast(path, agents=[failing, late, costly, waiting]) as hf:
        for number, agent_ in enumerate((failing, late, costly)):
            with pytest.raises(RunFailed) as failed:
                hf.run(agent_, id=f"r{number}")
            printed += commands(str(failed.value))
        with pytest.raises(RunWaiting):
            hf.run(waiting, id="w")
        hf.cancel("w")
        with pytest.raises(RunCancelled) as cancelled:
            hf.resume("w")
        printed += commands(str(cancelled.value))

    assert len(printed) == 4
    for line in printed:
        done = holdfast(tmp_path, *as_typed(line))
        assert not done.returncode, (line, done.stderr)


REFUSED_AGENTS = """
import os
from holdfast import Checkpoint, Run, agent, tool

@tool
def pay(n: int) -> int:
    os._exit(9)

@agent(version=os.environ.get("VERSION", "1"), checkpoint=Checkpoint(max_age=float(os.environ.get("MAX_AGE", "3600"))))
def waiting(run: Run) -> object:
    return run.wait_for("go")

@agent
def doubt(run: Run) -> int:
    return pay(1)
"""


@pytest.mark.parametrize(
    ("name", "before", "refused", "env", "verbs"),
    [
        ("waiting", [], ["resume", "agents.py", "r-1"], {"VERSION": "2"}, ["resume", "rerun"]),
        (
            "waiting",
            [],
            ["resume", "agents.py", "r-1"],
            {"MAX_AGE": "0.000001"},
            ["resume", "rerun"],
        ),
        (
            "waiting",
            [["cancel", "r-1", "--yes"], ["resume", "agents.py", "r-1"]],
            ["resume", "agents.py", "r-1"],
            {},
            ["rerun"],
        ),
        ("waiting", [], ["undo", "r-1", "--yes"], {}, ["cancel"]),
        (
            "doubt",
            [["resume", "agents.py", "r-1"]],
            ["rerun", "agents.py", "r-1", "--yes"],
            {},
            ["resolve", "resolve", "resolve"],
        ),
    ],
    ids=["version", "age", "cancelled", "undo", "doubt"],
)
def test_a_refusal_advises_commands_that_work_as_printed_and_name_the_store(
    name: str,
    before: list[list[str]],
    refused: list[str],
    env: dict[str, str],
    verbs: list[str],
    tmp_path: Path,
) -> None:
    (tmp_path / "agents.py").write_text(REFUSED_AGENTS)
    store = ["--db", "other store.db"]
    holdfast(tmp_path, "run", f"agents.py:{name}", "--id", "r-1", "--lease", "0.2", *store)
    for words in before:
        holdfast(tmp_path, *words, *store)

    said = holdfast(tmp_path, *refused, *store, **env)

    printed = commands(said.stderr)
    assert verbs == [line.split()[1] for line in printed], said.stderr
    assert "hf." not in said.stderr
    assert "FILE" not in said.stderr
    saved = {path.name: path.read_bytes() for path in tmp_path.glob("other store.db*")}
    for line in printed:
        for path in tmp_path.glob("other store.db*"):
            path.unlink()
        for file, data in saved.items():
            (tmp_path / file).write_bytes(data)
        assert "'other store.db'" in line
        done = holdfast(tmp_path, *as_typed(line), **env)
        assert "error:" not in done.stderr and "Usage:" not in done.stderr, (line, done.stderr)


def test_an_unknown_run_id_gets_the_command_that_lists_runs(
    tmp_path: Path,
) -> None:
    Holdfast(tmp_path / "other store.db").close()

    refused = holdfast(tmp_path, "show", "nowhere", "--db", "other store.db")

    assert "`holdfast list --db 'other store.db'` lists its runs" in refused.stderr


STORE = ["--db", "other store.db"]


@pytest.mark.parametrize(
    ("words", "advised"),
    [
        (["unschedule", "nightly", *STORE], "schedules"),
        (["start", "desk", *STORE], "worker"),
        (["token", "revoke", "bob", *STORE], "token"),
        (["token", "create", "ann", "--role", "viewer", *STORE], "token"),
        (
            ["serve", "--check", "--host", "0.0.0.0", "--credentials", "no one.json", *STORE],
            "token",
        ),
    ],
    ids=["unschedule", "start", "revoke", "create", "serve"],
)
def test_a_command_inside_a_sentence_works_as_printed_on_another_store(
    words: list[str], advised: str, tmp_path: Path
) -> None:
    """A store and credentials that are not the default ones are named in it."""
    (tmp_path / "agents.py").write_text(AGENTS)
    holdfast(tmp_path, "run", "agents.py:approval", "--id", "r-1", *STORE)
    holdfast(tmp_path, "token", "create", "ann", "--role", "viewer", *STORE)

    refused = holdfast(tmp_path, *words)

    assert refused.returncode == 1, refused.stderr
    (line,) = re.findall(r"holdfast (?:token|schedules|worker)\b[^`\n]*", refused.stderr)
    assert advised == line.split()[1]
    done = holdfast(tmp_path, *as_typed(line.replace("NAME", "carl")))
    assert not done.returncode, (line, done.stderr)
    assert not (tmp_path / ".holdfast").exists(), "it was about the default store"
