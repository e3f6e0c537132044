"""Every command that errors and `show` print works as printed, on a store that is not the default."""

import shlex
import subprocess
from pathlib import Path

import pytest

from support.shell import HOLDFAST, commands, environment

AGENTS = """
from holdfast import Run, agent, step, tool
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
"""
CASES = {
    "approval": {},
    "question": {},
    "open_question": {},
    "signal": {},
    "several": {},
    "doubt": {"DIE": "1"},
    "failing": {"FAIL": "1"},
    "sleeping": {},
    "parent": {},
}


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
    asks = words[1] in ("approve", "reject", "answer", "resolve", "rerun")
    return [*words[1:], *(["--yes"] if asks else []), *(["--once"] if words[1] == "worker" else [])]


@pytest.mark.parametrize("case", CASES)
def test_every_printed_command_works(case: str, tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    (folder / "agents.py").write_text(AGENTS)
    store = ["--db", "other store.db"]
    begin = ["run", f"agents.py:{case}", "--id", "r 1".replace(" ", "-"), "--lease", "0.2", *store]
    first = holdfast(folder, *begin, **CASES[case])
    if case == "doubt":  # the process died; the next one finds the doubt
        first = holdfast(folder, "resume", "agents.py", "r-1", *store)
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
