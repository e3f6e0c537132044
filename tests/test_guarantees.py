"""The list of guarantees names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "guarantees.md").read_text("utf-8")
ROWS = re.findall(r"^\| (\d+) \| (.+?) \| (.+?) \|$", PAGE, flags=re.MULTILINE)
TESTS = {
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"def (test_\w+)", path.read_text("utf-8"))
}


@pytest.mark.parametrize(
    ("number", "shown_by"), [(row[0], row[2]) for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_every_guarantee_is_shown_by_tests_that_exist(number: str, shown_by: str) -> None:
    named = re.findall(r"`(test_\w+)`", shown_by)

    assert named and set(named) <= TESTS, f"guarantee {number}: {sorted(set(named) - TESTS)}"


def test_guarantees_are_numbered_once() -> None:
    numbers = [int(row[0]) for row in ROWS]

    assert numbers == sorted(set(numbers)) and len(numbers) >= 15
