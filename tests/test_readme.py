"""The README: short, to the point, and complete. That all of it works is `test_docs.py`."""

import asyncio
import contextlib
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

from holdfast import Holdfast, Run, agent, tool
from support.pages import ROOT, Block, blocks

PAGE = ROOT / "README.md"
README = PAGE.read_text(encoding="utf-8")

LINES_MAX = 150
FIRST_COMMAND_BY = 15
FIRST_PYTHON_BY = 30
KNOWN_KINDS = {"python", "console", "text"}


def first(kind: str) -> Block:
    return next(block for block in blocks(PAGE) if block.kind == kind)


def test_every_block_is_of_a_kind_that_is_checked() -> None:
    assert set() == {block.kind for block in blocks(PAGE)} - KNOWN_KINDS
    assert [] == [block for block in blocks(PAGE) if block.skipped]


def test_the_readme_is_short() -> None:
    """At most 150 lines; a command to try first, and Python soon after."""
    assert README.count("\n") <= LINES_MAX
    assert first("console").line <= FIRST_COMMAND_BY
    assert first("python").line <= FIRST_PYTHON_BY


def test_every_verb_of_the_command_line_is_named() -> None:
    from holdfast.cli.verbs import VERBS

    assert [] == [verb for verb in VERBS if not re.search(rf"(`|holdfast |make ){verb}\b", README)]


# -- its pictures --------------------------------------------------------------------------------


def drawing() -> ModuleType:
    """docs/pictures/draw.py, which is not a module of the package."""
    path = ROOT / "docs" / "pictures" / "draw.py"
    spec = importlib.util.spec_from_file_location("draw", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def words(picture: str) -> list[str]:
    """The text of a picture, line by line, without what is another each time."""
    lines: dict[float, str] = {}
    for text in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}text"):
        y = float(text.get("y", "0"))
        lines[y] = lines.get(y, "") + (text.text or "").replace("\xa0", " ")
    changing = r"\d{4}-\d\d-\d\d [\d:]+|[\d.]+\s(?:ms|s)\b|last by \S+|\s+"
    return [re.sub(changing, " ", lines[y]).strip() for y in sorted(lines)]


def test_the_pictures_are_files_that_ask_no_other_host() -> None:
    """Three badges that say what pyproject.toml says, one of a terminal, two of the page; all that there are."""
    shown = re.findall(r"!\[[^]]*\]\(([^)]+)\)", README)
    found = {ROOT / x: (ROOT / x).read_text("utf-8") for x in shown if x.endswith(".svg")}
    photos = [ROOT / name for name in shown if name.endswith(".png")]

    assert sorted(photos) == sorted((ROOT / "docs" / "pictures").glob("*.png"))
    assert [] == [path.name for path in photos if path.stat().st_size > 200_000]

    assert set(found) == set((ROOT / "docs" / "pictures").glob("*.svg"))
    assert drawing().badges() == {
        path.name: text for path, text in found.items() if path.stem != "show"
    }
    assert [] == [
        text for text in found.values() if re.search(r"url\(['\"]?http|href=['\"]http", text)
    ]
    assert (
        "step 6: attempt 1 started and left no receipt: its process died or lost the run"
        in words(found[ROOT / "docs" / "pictures" / "show.svg"])
    )


@pytest.mark.nightly
def test_the_picture_of_a_terminal_is_what_the_command_prints_today() -> None:
    draw = drawing()

    assert words((ROOT / "docs/pictures/show.svg").read_text("utf-8")) == words(
        draw.drawn(draw.session())
    )


# -- with your stack -----------------------------------------------------------------------------


@contextlib.contextmanager
def a_loop_of_this_thread() -> Iterator[None]:
    """`run_sync` takes the thread's event loop, or makes one and leaves it open: so one that is closed."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        yield
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def test_a_run_of_a_graph_or_of_a_pydantic_ai_agent_is_one_recorded_step(tmp_path: Path) -> None:
    """The README's own lines, called."""
    (block,) = [block for block in blocks(PAGE) if "pydantic_ai" in block.text]

    @tool
    def send_email(to: str) -> str:
        return to

    names: dict[str, Any] = {"send_email": send_email}
    exec(block.text, names)

    @agent
    def asking(_: Run) -> str:
        return str(names["think"]("Is it sent?"))

    with a_loop_of_this_thread(), Holdfast(tmp_path / "h.db") as hf:
        assert "success (no tool calls)" == hf.run(asking, id="r")
        assert ["think"] == [call.name for call in hf.get("r").calls]
