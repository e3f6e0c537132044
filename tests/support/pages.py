"""Pages of Markdown, executed: what a reader would do with one, from top to bottom, in an empty folder.

    python pages.py docs/quickstart.md       (in an empty folder)

- A block of Python is executed; the blocks of a page share their names. One that begins with
  `# name.py` is also that file. `__name__` is not `"__main__"`.
- In a console block, `$ holdfast …`, `$ python …` and `$ pytest …` run the real program, and the lines
  below are its output, where `…` stands for whatever is not the same twice. `$ NAME=value holdfast …`,
  `$ export NAME=value`, `$ rm …` and `$ sed …` work as in a shell. `$ make …` must be a target of the Makefile.
- A block marked `notest` (```` ```console notest ````) is not executed: because it needs a server, a
  key, or does not end. Its `holdfast` commands must still exist, with the options that it shows.
- A block in an HTML comment is executed and not shown.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).parent.parent.parent
SECONDS_MAX = 240

_FENCE = re.compile(r"^( *)```(\w*)([^\n`]*)\n(.*?)^\1```$", re.M | re.S)
_ASSIGNMENT = re.compile(r"[A-Z_]+=.*", re.S)


class Wrong(Exception):
    """A page does not hold; the message says where and why."""


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, what follows that, its text, and the line where it begins."""

    kind: str
    rest: str
    text: str
    line: int

    @property
    def skipped(self) -> bool:
        return self.rest.split(":")[0].strip() == "notest"


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in order; those in lists and in comments too."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(m[2], m[3].strip(), textwrap.dedent(m[4]), text[: m.start(4)].count("\n") + 1)
        for m in _FENCE.finditer(text)
    ]


def commands(block: Block) -> list[tuple[str, str]]:
    """The commands of a console block, each with the output that is shown for it.

    A line that ends with a backslash continues in the next one.
    """
    parts = re.split(r"^\$ ((?:.*\\\n)*.*)$", block.text, flags=re.M)
    if parts[0].strip():
        raise Wrong(f"line {block.line}: a console block begins with a command, `$ …`")
    return [
        (command.replace("\\\n", " "), output.strip("\n"))
        for command, output in zip(parts[1::2], parts[2::2], strict=True)
    ]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))


def check_exists(command: str) -> None:
    """Wrong if a `holdfast` or `make` command has a verb or an option that does not exist."""
    words = [w for w in shlex.split(command, comments=True) if w not in ("&", "sudo", "nohup")]
    while words and _ASSIGNMENT.fullmatch(words[0]):
        words.pop(0)
    if words[:1] == ["make"]:
        _check_targets(command, words[1:])
    if words[:1] != ["holdfast"]:
        return
    from holdfast.cli.verbs import cli

    context = click.Context(cli, info_name="holdfast")
    name = next((word for word in words[1:] if not word.startswith("-")), "")
    try:
        if name not in ("", *cli.list_commands(context)):
            raise click.UsageError(f"there is no command {name!r}")
        verb = cli.get_command(context, name) if name else None
        found: click.Command = cli if verb is None else verb
        given = words[words.index(name) + 1 :] if name else words[1:]
        found.make_parser(click.Context(found, parent=context)).parse_args(given)
    except click.UsageError as error:
        raise Wrong(f"`{command}`: {error.format_message()}") from None


def _check_targets(command: str, words: list[str]) -> None:
    unknown = {w for w in words if "=" not in w} - make_targets()
    if unknown:
        raise Wrong(f"the Makefile lacks a target of `{command}`")


# ── doing what a page says ───────────────────────────────────────────────────────────────────


class Reader:
    """Someone who does all that a page says, in the present folder."""

    def __init__(self, page: Path) -> None:
        self.page = page
        self.names: dict[str, Any] = {"__name__": f"page_{page.stem.replace('-', '_')}"}
        # The plugins of other packages cost a second of each pytest that a page starts.
        plugins = "-p no:schemathesis -p no:langsmith_plugin"
        self.environment = {
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            "COLUMNS": "120",
            "PYTEST_ADDOPTS": plugins,
        }

    def follow(self) -> None:
        for block in blocks(self.page):
            try:
                if block.kind == "python" and not block.skipped:
                    self._python(block)
                elif block.kind == "console":
                    for command, shown in commands(block):
                        check_exists(command)
                        if not block.skipped:
                            self._command(command, shown)
            except Wrong as error:
                raise Wrong(f"{self.page.name}, block at line {block.line}: {error}") from None

    def _python(self, block: Block) -> None:
        first = re.match(r"# (\w+\.py)\n", block.text)
        if first:
            Path(first[1]).write_text(block.text, encoding="utf-8")
        code = "\n" * (block.line - 1) + block.text  # so that a traceback names the page's line
        exec(compile(code, str(self.page), "exec", dont_inherit=True), self.names)

    def _command(self, command: str, expected: str) -> None:
        words = shlex.split(command, comments=True)
        environment = self.environment
        if words[0] == "export":
            self.environment |= dict(word.split("=", 1) for word in words[1:])
            return
        while _ASSIGNMENT.fullmatch(words[0]):
            name, value = words.pop(0).split("=", 1)
            environment = {**environment, name: value}
        programs = {
            "holdfast": [sys.executable, "-m", "holdfast.cli"],
            "python": [sys.executable],
            "pytest": [sys.executable, "-m", "pytest"],
            "rm": ["rm"],
            "sed": ["sed"],
        }
        if words[0] == "make":
            return
        if words[0] not in programs:
            raise Wrong(f"`{command}` is not executed; mark the block `console notest` and say why")
        done = subprocess.run(
            [*programs[words[0]], *words[1:]],
            env=environment,
            text=True,
            timeout=SECONDS_MAX,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        if not is_shown(expected, done.stdout):
            raise Wrong(
                f"`{command}` prints something other than the page:\n{done.stdout}\n"
                "(where it differs every time, write …; what cannot be run here is `console notest`)"
            )


def is_shown(expected: str, output: str) -> bool:
    """Whether a page shows this output. How many blanks are in a row depends on what they align."""
    pattern = re.sub(r"(\\ )+", " +", re.escape(expected)).replace("…", ".*?")
    trimmed = re.sub(r" +$", "", output, flags=re.M).strip("\n")
    return re.fullmatch(pattern, trimmed, re.S) is not None


def main(page: Path) -> None:
    sys.path.insert(0, str(Path.cwd()))
    try:
        Reader(page).follow()
    except Wrong as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
