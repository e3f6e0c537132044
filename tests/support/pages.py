"""Execute a page of documentation: its files, its Python and its commands, from top to bottom.

A Python block that begins with `# name.py` is that file. In a console block `$ holdfast …` and
`$ pytest …` run the real command, and what follows is its output, where `…` stands for anything.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

MODULES = {"holdfast": "holdfast.cli", "pytest": "pytest"}


def play_page(page: Path, folder: Path) -> int:
    """Execute every block in this folder; how many there were."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)
    for kind, body in blocks:
        if kind == "python":
            _python(body, folder)
        elif kind == "console":
            parts = re.split(r"^\$ (.*)$", body, flags=re.M)
            for command, output in zip(parts[1::2], parts[2::2], strict=True):
                _command(command, output.strip("\n"), folder)
        else:
            raise AssertionError(f"{page.name}: a block of kind {kind!r}, which nobody checks")
    return len(blocks)


def _python(body: str, folder: Path) -> None:
    named = re.match(r"# (\w+\.py)\n", body)
    file = folder / (named[1] if named else "block.py")
    file.write_text(body, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, file.name], cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, f"{file.name}:\n{done.stderr}"


def _command(command: str, expected: str, folder: Path) -> None:
    program, *words = shlex.split(command)
    env = {k: v for k, v in os.environ.items() if k not in ("HOLDFAST_URL", "PYTEST_ADDOPTS")}
    done = subprocess.run([sys.executable, "-m", MODULES[program], *words], cwd=folder, env=env, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=100)  # fmt: skip
    pattern = re.escape(expected).replace("…", ".*?")
    assert re.fullmatch(pattern, done.stdout.strip("\n"), re.S), f"`{command}` says:\n{done.stdout}"
