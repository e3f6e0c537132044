"""The list of what was asked for names tests and examples that exist, and leaves no row without either."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "mission.md").read_text("utf-8")
ROWS = re.findall(r"^\| ([A-E]\d+) \| (.+?) \| (.+?) \|$", PAGE, flags=re.MULTILINE)
TESTS = {
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"def (test_\w+)", path.read_text("utf-8"))
}


@pytest.mark.parametrize(
    ("row", "shown_by"), [(row[0], row[2]) for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_every_row_is_shown_by_tests_that_exist(row: str, shown_by: str) -> None:
    named = re.findall(r"`(test_\w+)`", shown_by)

    assert named and set(named) <= TESTS, f"{row}: {sorted(set(named) - TESTS)}"


def test_rows_are_numbered_without_gaps() -> None:
    for letter, last in zip("ABCDE", (11, 15, 6, 6, 4), strict=True):
        numbers = [int(row[0][1:]) for row in ROWS if row[0][0] == letter]
        assert numbers == list(range(1, last + 1)), letter


def test_each_of_the_five_texts_has_an_example_that_exists() -> None:
    for letter in "ABCDE":
        (line,) = re.findall(rf"^\| {letter}, .+$", PAGE, flags=re.MULTILINE)
        named = re.findall(r"`(examples/\w+\.py)`", line)
        assert named and all((ROOT / name).is_file() for name in named), line
