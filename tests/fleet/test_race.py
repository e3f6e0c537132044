"""Two workers that want the same run at the same moment: one gets it, each time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from support.race import race

ROUNDS = 1000


def check(rounds: Sequence[tuple[int, int]]) -> None:
    winners = [[epoch for epoch in got if epoch] for got in rounds]
    assert [len(won) for won in winners] == [1] * ROUNDS
    assert [won[0] for won in winners] == list(range(1, ROUNDS + 1))  # an epoch is given once
    assert {got.index(0) for got in rounds} == {0, 1}, "only one ever wins: they do not race"


def test_of_two_processes_exactly_one_gets_the_run_a_thousand_times(tmp_path: Path) -> None:
    check(race(str(tmp_path / "h.db"), ROUNDS))


def test_on_postgresql_exactly_one_gets_the_run_a_thousand_times(postgres_dsn: str) -> None:
    check(race(postgres_dsn, ROUNDS))
