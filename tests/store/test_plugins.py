"""A store of another package is opened by the scheme of its URL, through the entry point group holdfast.stores."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import Holdfast, InvalidInput

PLUGIN = """
from holdfast.store.sqlite import SQLiteStore


def open_store(url):
    return SQLiteStore(url.removeprefix("shelf://"))
"""
AGENT = """
from holdfast import Run, agent


@agent
def hello(run: Run, name: str) -> str:
    return f"hello {name}"
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """An installed package that provides shelf:// (and broken://, which cannot be loaded)."""
    folder = tmp_path / "site packages"
    info = folder / "shelf-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "shelf.py").write_text(PLUGIN)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shelf\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[holdfast.stores]\nshelf = shelf:open_store\nbroken = shelf:nothing\n"
    )
    return folder


def test_a_third_scheme_works_in_the_cli(package: Path, tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text(AGENT)
    paths = os.pathsep.join(filter(None, [str(package), os.environ.get("PYTHONPATH", "")]))
    env = {**os.environ, "PYTHONPATH": paths, "HOLDFAST_URL": f"shelf://{tmp_path}/shelf.db"}

    def holdfast(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "holdfast.cli", *words],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert holdfast("run", "hello.py", "-p", "name=Sam", "--id", "r") == "hello Sam\n"
    assert "completed" in holdfast("show", "r")
    assert (tmp_path / "shelf.db").exists()


def test_a_scheme_without_a_provider_or_with_a_broken_one_is_refused(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(package))
    with pytest.raises(InvalidInput, match=r"broken:// cannot be loaded from shelf:nothing"):
        Holdfast("broken://here")
    with pytest.raises(InvalidInput, match="'oracle' is not a known kind of store"):
        Holdfast("oracle://here")
