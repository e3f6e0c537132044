"""The README, executed: every block of Python and every command, from top to bottom, in one folder.

A Python block that begins with `# name.py` is that file, and is run like the others. In a console
block, `$ holdfast …` runs the real command and what follows is its output, where `…` stands for
whatever is not the same twice; `$ make …` must be a target of the Makefile.
"""

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")

LINES_MAX = 150
FIRST_COMMAND_BY = 15
FIRST_PYTHON_BY = 30
KNOWN_KINDS = {"python", "console", "text"}


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its text, and the line where its text begins."""

    kind: str
    text: str
    line: int


def blocks() -> list[Block]:
    found = re.finditer(r"^```(\w*)\n(.*?)^```$", README, re.M | re.S)
    return [Block(m[1], m[2], README[: m.start(2)].count("\n") + 1) for m in found]


def commands(block: Block) -> list[tuple[str, str]]:
    """The commands of a console block, each with the output that is shown for it."""
    parts = re.split(r"^\$ (.*)$", block.text, flags=re.M)
    assert parts[0] == "", f"line {block.line}: a console block begins with a command"
    return [
        (command, output.strip("\n"))
        for command, output in zip(parts[1::2], parts[2::2], strict=True)
    ]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))


def run_python(block: Block, folder: Path, names: dict[str, Any]) -> None:
    first = re.match(r"# (\w+\.py)\n", block.text)
    if first:
        (folder / first[1]).write_text(block.text, encoding="utf-8")
    exec(compile(block.text, f"README.md:{block.line}", "exec"), names)


def run_command(command: str, expected: str, folder: Path) -> None:
    program, *words = shlex.split(command, comments=True)
    if program == "make":
        assert set(words) <= make_targets(), f"the Makefile lacks a target of `{command}`"
        return
    assert program == "holdfast", f"the README shows `{command}`, which nobody checks"
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    done = subprocess.run([sys.executable, "-m", "holdfast.cli", *words], cwd=folder, env=env, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=60)  # fmt: skip
    pattern = re.escape(expected).replace("…", ".*?")
    assert re.fullmatch(pattern, done.stdout.strip("\n"), re.S), f"`{command}` says:\n{done.stdout}"


def test_the_readme_works_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    names: dict[str, Any] = {"__name__": "readme"}
    for block in blocks():
        if block.kind == "python":
            run_python(block, tmp_path, names)
        elif block.kind == "console":
            for command, expected in commands(block):
                run_command(command, expected, tmp_path)


def test_every_block_is_of_a_kind_that_is_checked() -> None:
    assert set() == {block.kind for block in blocks()} - KNOWN_KINDS


def test_the_readme_is_short_and_comes_to_the_point() -> None:
    """At most 150 lines; a command to try first, and Python soon after."""
    first_command = next(block for block in blocks() if block.kind == "console")
    first_python = next(block for block in blocks() if block.kind == "python")

    assert README.count("\n") <= LINES_MAX
    assert first_command.line <= FIRST_COMMAND_BY
    assert first_python.line <= FIRST_PYTHON_BY


def test_links_into_the_repository_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)

    assert [] == [link for link in links if not (ROOT / link).exists()]


def test_every_verb_of_the_command_line_is_named() -> None:
    from holdfast.cli import VERBS

    assert [] == [verb for verb in VERBS if not re.search(rf"(`|holdfast |make ){verb}\b", README)]
