"""Type checkers see the real signatures: `tests/typing/api.py` uses the whole public API and says what they must find."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast import AsyncHandle, AsyncHoldfast, AsyncRun, AsyncWorker, Handle, Holdfast, Run

ROOT = Path(__file__).parent.parent.parent
API = ROOT / "tests" / "typing" / "api.py"


def expected_errors() -> set[int]:
    """The lines that must be refused."""
    lines = enumerate(API.read_text(encoding="utf-8").splitlines(), 1)
    return {number for number, line in lines if line.endswith("# expect-error")}


@pytest.mark.timeout(900)
def test_mypy_in_strict_mode_refuses_what_must_be_refused_and_nothing_else(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--no-error-summary",
            "--config-file",
            "",
            "--cache-dir",
            str(tmp_path / "cache"),
            "--follow-imports",
            "silent",
            str(API),
        ],
        capture_output=True,
        text=True,
        env={"MYPYPATH": str(ROOT / "src"), "PATH": ""},
        cwd=tmp_path,
    )
    refused = {int(n) for n in re.findall(r"api\.py:(\d+): error", done.stdout)}

    assert expected_errors() == refused, done.stdout + done.stderr


@pytest.mark.timeout(900)
def test_pyright_refuses_what_must_be_refused_and_nothing_else() -> None:
    """With pyright's engine as basedpyright packs it: a wheel, nothing to fetch when it runs."""
    command = [sys.executable, "-m", "basedpyright", "--level", "error", str(API)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    refused = {int(n) for n in re.findall(r"api\.py:(\d+):\d+ - error", done.stdout)}

    assert expected_errors() == refused, done.stdout + done.stderr


def used() -> set[str]:
    """Names and attributes that the file uses."""
    tree = ast.parse(API.read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return names | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


@pytest.mark.parametrize(
    "cls", [Holdfast, AsyncHoldfast, Handle, AsyncHandle, AsyncWorker], ids=lambda cls: cls.__name__
)
def test_the_file_uses_every_method(cls: type) -> None:
    methods = {
        name
        for name, member in inspect.getmembers(cls)
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property))
    }

    assert set() == methods - used()


def test_the_file_uses_every_method_that_waits_inside_an_agent() -> None:
    assert (
        set() == {name for cls in (Run, AsyncRun) for name in vars(cls) if name[0] != "_"} - used()
    )


def test_the_file_uses_every_public_name_that_is_not_an_error() -> None:
    public = {
        name
        for name in holdfast.__all__
        if not (inspect.isclass(it := getattr(holdfast, name)) and issubclass(it, Exception))
    }

    assert set() == public - used()
