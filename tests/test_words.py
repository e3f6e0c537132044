"""Sentences for people, and what is read back out of them."""

from typing import get_args

import pytest

from holdfast.waiting import WaitingFor, WaitingKind
from holdfast.words.waiting import is_for_people, is_in_doubt, phrase

KINDS = get_args(WaitingKind)
PEOPLE = {"approval", "answer", "decision", "resume", "quarantine", "override", "person"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_shows_whether_its_run_is_waiting_for_a_person(kind: str) -> None:
    """Rows have words, not kinds: a new phrase must not change what the inbox counts."""
    shown = phrase(WaitingFor(kind, "name", names=("go",), run_id="r", reason="because"))

    assert (kind in PEOPLE, kind == "decision") == (is_for_people(shown), is_in_doubt(shown))
