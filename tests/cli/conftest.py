"""Fixtures of the command line's tests."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.shell import HOLDFAST, Shell, Terminal, copy_world, make_world


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A folder with an agent file; the verbs run in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    monkeypatch.setattr(sys, "path", sys.path[:])  # loading an agent's file puts its folder there
    return Shell(tmp_path)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose store has a run in every state. Only to look at, or to copy."""
    folder = tmp_path_factory.mktemp("world")
    make_world(folder)
    return folder


@pytest.fixture
def own_world(world: Path, tmp_path: Path) -> Path:
    """The same, to change."""
    copy_world(world, tmp_path)
    return tmp_path


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """Open the installed command at a terminal of its own, in this test's folder."""
    open_ones: list[Terminal] = []

    def open_one(*words: str, **env: str) -> Terminal:
        open_ones.append(Terminal(tmp_path, HOLDFAST, *words, **env))
        return open_ones[-1]

    yield open_one
    for session in open_ones:
        session.close()
