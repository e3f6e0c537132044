"""The API reference: complete, and built without a warning. Its text comes from signatures and docstrings."""

import inspect
import re
import subprocess
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

import pytest

from holdfast import (
    AgentState,
    AsyncHandle,
    AsyncHoldfast,
    AsyncRun,
    Handle,
    Holdfast,
    Options,
    Run,
)
from holdfast.testing.builtin_steps import builtin_sentences
from support.pages import ROOT

REFERENCE = (ROOT / "docs" / "reference.md").read_text("utf-8")
DOCUMENTED = ("holdfast", "holdfast.agents.models", "holdfast.agents.tokens", "holdfast.testing")


@pytest.mark.parametrize("module", DOCUMENTED)
def test_every_public_name_is_in_the_reference(module: str) -> None:
    """Add `::: holdfast.Name` to docs/reference.md for each name that is missing here."""
    listed = set(re.findall(r"^::: \S+\.(\w+)$", REFERENCE, re.M))

    assert set() == set(import_module(module).__all__) - listed


def test_every_name_in_the_reference_exists() -> None:
    names = re.findall(r"^::: (\S+)\.(\w+)$", REFERENCE, re.M)

    assert [] == [(home, name) for home, name in names if not hasattr(import_module(home), name)]


def test_every_built_in_sentence_is_on_the_page_on_testing() -> None:
    page = (ROOT / "docs" / "testing.md").read_text("utf-8")

    assert [] == [s.text for s in builtin_sentences() if f"- `{s.text}`" not in page]


PAGES = "\n".join(
    page.read_text("utf-8")
    for page in sorted((ROOT / "docs").glob("*.md"))
    if page.name != "reference.md"
)


def missing(names: Iterable[str]) -> list[str]:
    """Those that no page mentions."""
    return [name for name in names if not re.search(rf"\b{re.escape(name)}(?!\w)", PAGES)]


@pytest.mark.parametrize(
    "cls",
    [Run, AsyncRun, Holdfast, AsyncHoldfast, Handle, AsyncHandle],
    ids=lambda cls: cls.__name__,
)
def test_every_method_is_on_a_page_besides_the_reference(cls: type) -> None:
    public = [name for name, _ in inspect.getmembers(cls) if not name.startswith("_")]

    assert [] == missing(public)


def test_every_option_and_every_change_of_an_agent_state_is_on_a_page() -> None:
    changes = [
        name for name, _ in inspect.getmembers(AgentState) if name.startswith(("with_", "to_"))
    ]

    assert [] == missing([*Options.__struct_fields__, *changes, "state=", "tx.execute"])


def test_the_documentation_site_builds_without_warnings(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )

    assert 0 == built.returncode, built.stderr
    assert "Holdfast.run" in (tmp_path / "site" / "reference.html").read_text("utf-8")
