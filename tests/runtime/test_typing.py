"""Type checkers see the real signatures: `tests/typing/api.py` says what they must find."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

API = Path(__file__).parent.parent / "typing" / "api.py"
SRC = Path(__file__).parent.parent.parent / "src"


def comments() -> dict[int, str]:
    """By line: what the checker must reveal there, or `refused: code`."""
    found = {}
    for number, line in enumerate(API.read_text().splitlines(), 1):
        if "reveal_type(" in line or "# refused" in line:
            found[number] = line.rpartition("  # ")[2].strip()
    return found


def plain(text: str) -> str:
    """A revealed type in the words of the source: no modules, no quotes."""
    text = re.sub(r"\b(?:builtins|typing|holdfast(?:\.\w+)*)\.", "", text.strip())
    return text.strip('"').replace("Union[", "").rstrip("*")


@pytest.mark.timeout(900)
def test_mypy_in_strict_mode_sees_the_kept_signatures(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--config-file", "",
            "--cache-dir", str(tmp_path / "cache"), "--follow-imports", "silent", str(API),
        ],
        capture_output=True, text=True, env={"MYPYPATH": str(SRC), "PATH": ""}, cwd=tmp_path,
    )  # fmt: skip
    said: dict[int, str] = {}
    for line in done.stdout.splitlines():
        match = re.match(r".*api\.py:(\d+): (\w+): (.*)", line)
        assert match, line
        number, kind, text = int(match[1]), match[2], match[3]
        if kind == "error":
            said.setdefault(number, f"refused: {text.rpartition('[')[2].rstrip(']')}")
        elif text.startswith("Revealed type is"):
            said[number] = plain(text.removeprefix("Revealed type is"))
    expected = comments()

    assert expected.keys() == said.keys(), done.stdout + done.stderr
    for number, wanted in expected.items():
        assert wanted == said[number], f"line {number}"


@pytest.mark.timeout(900)
def test_pyright_refuses_only_what_must_be_refused() -> None:
    """With pyright's engine as basedpyright packs it: a wheel, nothing to fetch when it runs."""
    command = [sys.executable, "-m", "basedpyright", "--level", "error", str(API)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    refused = {int(n) for n in re.findall(r"api\.py:(\d+):\d+ - error", done.stdout)}

    assert {n for n, wanted in comments().items() if wanted.startswith("refused")} == refused
