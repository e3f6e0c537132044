"""The README: short, to the point, and complete. That all of it works is `test_docs.py`."""

import re

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


def test_the_readme_is_short_and_comes_to_the_point() -> None:
    """At most 150 lines; a command to try first, and Python soon after."""
    assert README.count("\n") <= LINES_MAX
    assert first("console").line <= FIRST_COMMAND_BY
    assert first("python").line <= FIRST_PYTHON_BY


def test_every_verb_of_the_command_line_is_named() -> None:
    from holdfast.cli import VERBS

    assert [] == [verb for verb in VERBS if not re.search(rf"(`|holdfast |make ){verb}\b", README)]
