"""Where a run is: its step, by its plan or by its calls."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from holdfast.core.state import Call, RunState
from holdfast.store.base import TERMINAL_STATUSES

ENDED: Final = TERMINAL_STATUSES
"""The statuses of a run that has ended."""


class Position(Struct, frozen=True):
    """Where a run is: step 6 of 9, 1–5 committed. `of` is None for a run without a plan."""

    step: int
    of: int | None
    name: str
    committed: str

    def __str__(self) -> str:
        if not self.step:
            return "no steps"
        place = f"step {self.step}" + (f" of {self.of}" if self.of else "")
        name = f", {self.name}" if self.name else ""
        return f"{place}{name}; {self.committed or 'none'} committed"


def position(state: RunState) -> Position:
    """By the plan if the code goes by it (`run.doing`), else by the calls."""
    if state.plan and (not state.calls or any(step.status != "pending" for step in state.plan)):
        done = [n for n, step in enumerate(state.plan, 1) if step.status == "done"]
        doing = [n for n, step in enumerate(state.plan, 1) if step.status == "doing"]
        left = [n for n, step in enumerate(state.plan, 1) if step.status != "done"]
        now = (doing or left or [len(state.plan)])[0]
        return Position(
            now, len(state.plan), state.plan[now - 1].name if left else "", ranges(done)
        )
    under_way = [c for c in state.calls if c.status not in ("done", "failed")]
    over = _committed(state, under_way)
    if under_way:
        return Position(under_way[0].step, None, under_way[0].name, over)
    # Between two calls: the next one has no name yet. After the end there is no next one.
    return Position(state.steps + (state.status not in ENDED), None, "", over)


def _committed(state: RunState, under_way: Sequence[Call]) -> str:
    """The steps that are over. A brief state does not name them all: they are those that are not under way."""
    if not state.left_out:
        return ranges([c.step for c in state.calls if c.status in ("done", "failed")])
    gaps = [0, *sorted({c.step for c in under_way}), state.steps + 1]
    between = [(a + 1, b - 1) for a, b in itertools.pairwise(gaps) if a + 1 < b]
    return ", ".join(_range(a, b) for a, b in between)


def ranges(numbers: Sequence[int]) -> str:
    """1–5, 7, 9–10."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(_range(a, b) for a, b in runs)


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}–{last}"
