"""A test that leaves something open fails itself, and not one that comes after it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

LEAKS = {
    "an event loop": "kept = [asyncio.new_event_loop()]",
    "a socket": "kept = [socket.socket()]",
    "a file": "kept = [open(__file__)]",
}


@pytest.mark.parametrize("leak", LEAKS.values(), ids=LEAKS.keys())
def test_what_is_left_open_is_found_where_it_was_opened(tmp_path: Path, leak: str) -> None:
    (tmp_path / "test_it.py").write_text(
        "import asyncio, socket\n\n"
        "def test_before():\n    pass\n\n"
        f"def test_leaking():\n    {leak}\n    kept.append(kept)\n\n"
        "def test_after():\n    pass\n"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-W",
            "error",
            "-p",
            "support.leaks",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            "--rootdir",
            tmp_path,
            "-rA",
            tmp_path / "test_it.py",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=240,
    )

    said = [line for line in done.stdout.splitlines() if line.startswith(("ERROR ", "FAILED "))]
    assert ["ERROR test_it.py::test_leaking"] == [line.partition(" - ")[0] for line in said]
    assert "3 passed, 1 error" in done.stdout
