"""The README and the pages in docs/, executed; see `support/pages.py` for how a page is read."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support import pages
from support.pages import ROOT, Block, Wrong, blocks, check_exists, commands

DOCS = sorted((ROOT / "docs").rglob("*.md"))
INDEX = ROOT / "docs" / "README.md"
PAGES = [ROOT / "README.md", *DOCS]
SECONDS_MAX = 280


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def links(text: str) -> list[str]:
    """Links to other files, without those to other places; blocks are not read."""
    prose = re.sub(r"^( *)```.*?^\1```$|`[^`\n]+`", "", text, flags=re.M | re.S)
    return re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", prose)


def anchors(page: Path) -> set[str]:
    """What `#…` may stand for: the page's headings, as GitHub spells them."""
    prose = re.sub(r"^( *)```.*?^\1```$", "", page.read_text("utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.+)$", prose, re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_works_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HOLDFAST", "PYTEST"))}
    done = subprocess.run(
        [sys.executable, pages.__file__, str(page)],
        cwd=tmp_path,
        env=kept,
        text=True,
        timeout=SECONDS_MAX,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )

    assert 0 == done.returncode, done.stdout


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    broken = []
    for link in links(page.read_text("utf-8")):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)

    assert [] == broken


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_block_escapes_the_reader(page: Path) -> None:
    """A fence that is not closed, or a shell block of another name, would go unchecked."""
    text = page.read_text("utf-8")
    fences = len(re.findall(r"^ *```", text, re.M))

    for line in "".join(b.text for b in blocks(page) if b.kind in ("", "text")).splitlines():
        if line.startswith("holdfast "):
            check_exists(line)
    assert 2 * len(blocks(page)) == fences
    assert set() == {block.kind for block in blocks(page)} & {
        "sh",
        "bash",
        "shell",
        "py",
        "python3",
    }


def test_the_index_names_every_page() -> None:
    found = {
        (INDEX.parent / link.split("#")[0]).resolve() for link in links(INDEX.read_text("utf-8"))
    }

    assert set() == set(DOCS) - {INDEX} - found


# ── the reader itself ────────────────────────────────────────────────────────────────────────


def follow(text: str, folder: Path) -> None:
    page = folder / "page.md"
    page.write_text(text, encoding="utf-8")
    pages.Reader(page).follow()


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n", AssertionError, None),
        (
            "```console\n$ holdfast --version\nversion 999\n```\n",
            Wrong,
            "something other than the page",
        ),
        ("```console notest\n$ holdfast fly\n```\n", Wrong, "no command 'fly'"),
        ("```console notest\n$ holdfast list --upside-down\n```\n", Wrong, "No such option"),
        ("```console\n$ make coffee\n```\n", Wrong, "lacks a target"),
        ("```console\n$ docker run x\n```\n", Wrong, "line 2: .*notest"),
        ("```console\nholdfast list\n```\n", Wrong, "begins with a command"),
        ("<!--\n```python\nx = 1 / 0\n```\n-->\n", ZeroDivisionError, None),
    ],
)
def test_a_page_that_does_not_hold_is_found(
    text: str,
    error: type[Exception],
    said: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(error, match=said):
        follow(text, tmp_path)


def test_a_page_that_holds_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    follow(
        "```python\n# hello.py\nprint('hello')\n```\n"
        "```console\n$ python hello.py\nhel…\n```\n"
        "```python notest: needs a key\nimport no_such_module\n```\n"
        "- in a list\n\n  ```python\n  assert True\n  ```\n",
        tmp_path,
    )

    assert (tmp_path / "hello.py").exists()


def test_commands_are_distinguished_from_their_output_and_may_span_lines() -> None:
    block = Block("console", "", "$ holdfast list \\\n    --json\n{}\n$ make test\n", 1)

    assert [("holdfast list      --json", "{}"), ("make test", "")] == commands(block)


@pytest.mark.parametrize(
    ("output", "same"),
    [
        ("  +0.1  step 1   done\n", True),
        (" +14.1  step 1   done\n", True),
        ("  +0.1  step 2   done\n", False),
    ],
)
def test_output_may_differ_at_an_ellipsis_and_in_its_blanks(output: str, same: bool) -> None:
    assert same is pages.is_shown("  …  step 1  done", output)


def test_a_command_is_looked_up_without_being_executed() -> None:
    check_exists("HOLDFAST_URL=postgresql://db/x holdfast worker agents.py --concurrency 8 &")
    with pytest.raises(Wrong, match="No such option"):
        check_exists("holdfast worker agents.py --speed 8")
