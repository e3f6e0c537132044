"""What a run is waiting for: its kinds, and the sentences about them."""

from typing import get_args

import pytest

from holdfast.waiting import (
    FOR_PEOPLE,
    WaitingFor,
    WaitingKind,
    is_for_people,
    is_in_doubt,
    kinds_of,
)
from holdfast.words.waiting import phrase

KINDS = get_args(WaitingKind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_contains_whether_its_run_is_waiting_for_a_person(kind: str) -> None:
    stored = kinds_of([WaitingFor("signal", "go"), WaitingFor(kind), WaitingFor(kind)])

    assert (kind in FOR_PEOPLE, kind == "decision") == (is_for_people(stored), is_in_doubt(stored))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_phrase(kind: str) -> None:
    assert phrase(WaitingFor(kind, "name", names=("go",), run_id="r", reason="because"))
