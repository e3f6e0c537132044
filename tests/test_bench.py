"""The benchmarks still run: a moment's work, nothing compared."""

from __future__ import annotations

import importlib
import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.nightly
def test_every_figure_of_a_loop_is_taken(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "loop", "--quick", "--results", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert not done.returncode, done.stderr
    kept: dict[str, Any] = json.loads((tmp_path / "loop.json").read_text("utf-8"))
    said = [f"{fact['what']}: {fact['value']}" for fact in kept["facts"]]

    assert not [line for line in said if "no figure" in line]
    for database in ("SQLite", "PostgreSQL"):
        for what in ("µs of cpu time", "resumed in", "memory of the resume", "@loop: twice the"):
            assert any(line.startswith(database) and what in line for line in said), (what, said)
        assert any(line.startswith(f"{database}, LangGraph") for line in said)  # or it is missing


def test_every_benchmark_can_be_called_as_the_command_does() -> None:
    sys.path.insert(0, str(ROOT))
    try:
        from bench.__main__ import NAMES

        mains = {name: importlib.import_module(f"bench.{name}").main for name in NAMES}
    finally:
        sys.path.remove(str(ROOT))

    wanted = ["databases", "quick", "results", "rounds"]
    assert mains and all(wanted == sorted(inspect.signature(m).parameters) for m in mains.values())


@pytest.mark.parametrize(
    "database", ["sqlite", pytest.param("postgres", marks=pytest.mark.nightly)]
)
def test_every_figure_of_the_benchmark_is_taken(database: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "steps", "--quick", "--database", database]
    done = subprocess.run(
        [*command, "--results", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert not done.returncode, done.stderr
    kept: dict[str, Any] = json.loads((tmp_path / "steps.json").read_text("utf-8"))
    said = [*(f"{row['what']}: {row['ratio']}" for row in kept["rows"])]
    said += [f"{fact['what']}: {fact['value']}" for fact in kept["facts"]]

    assert not [line for line in said if "no figure" in line and "Holdfast" in line]
    wanted = ("one run alone", "50 runs", "500 runs", "tools", "resume after", "process start",
              "message loop", "conversation of", "on disk", "memory")  # fmt: skip
    assert [x for x in wanted if not any(x in line for line in said)] == []
    assert (tmp_path / "steps.svg").read_text("utf-8").startswith("<svg")
    assert "goals:" in done.stdout
