"""The state of a run, now, at any step and around a call: a fold of its log. And what follows from it: where the run is,
by its plan or its calls, and how it ended.

The run's row adds whether an open call has a live owner.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from holdfast.core import events as e
from holdfast.core import log, values
from holdfast.core.events import ALL, ErrorInfo, Noted, RunClaimed, Value
from holdfast.core.fold import Draft, fold
from holdfast.core.log import Head, Record
from holdfast.core.state import Call, RunState, to_plain
from holdfast.errors import InvalidInput, NotFound
from holdfast.store.artifacts import read_artifact, read_value
from holdfast.store.base import TERMINAL_STATUSES, RunRow, Store
from holdfast.store.pages import Through, checked, end_of, what_is_open
from holdfast.store.process import is_held
from holdfast.views.listing import shown_status
from holdfast.views.log import contradiction, records, row_of


def get(store: Store, run_id: str) -> RunState:
    """The state now, with calls in doubt marked as such. This reads the whole log."""
    return _shown(store, run_id, folded)


def brief(store: Store, run_id: str, *, through: Through = iter) -> RunState:
    """The same without most calls that are over: of those only the last ones (`store/brief.py`). Of a long log only the
    end is read, unless no process has left a snapshot."""
    from holdfast.store.brief import read_brief  # here, as a run that is tested is read as a whole

    return _shown(store, run_id, partial(read_brief, through=through))


def _shown(store: Store, run_id: str, read: Callable[[Store, str], RunState]) -> RunState:
    row, state = _row_and_state(store, run_id, read)
    return with_dialogue(with_owner(state, row, store.now()))


def _row_and_state(
    store: Store, run_id: str, read: Callable[[Store, str], RunState]
) -> tuple[RunRow, RunState]:
    """The row and the fold of the log; LogDamaged if they contradict each other."""
    while True:
        row, state = row_of(store, run_id), read(store, run_id)
        damage = contradiction(row, state)
        if damage is None:
            return row, state
        if row == row_of(store, run_id):  # else it was written in between: read both again
            raise damage


def with_dialogue(state: RunState) -> RunState:
    """A loop's dialogue is in its own state; here it is shown with the run's messages."""
    own = state.agent_state
    if own is None or not own.messages:
        return state
    return msgspec.structs.replace(state, messages=(*state.messages, *own.messages))


def pending(store: Store, run_id: str) -> RunState:
    """What is open in the run now: its requests and its calls without a receipt, as in `get`.

    They are found from the end of the log, so this costs no more the longer the run is. Of anything else the
    state that is returned says only what happened since they started.
    """
    records = what_is_open(store, run_id)
    row = row_of(store, run_id)
    return with_owner(fold(RunState(id=run_id), records), row, store.now())


def folded(store: Store, run_id: str) -> RunState:
    """The fold of the whole log."""
    draft = Draft.of()
    for record in checked(store, run_id):
        draft.apply(record.seq, record.time, log.read_event(run_id, record))
    return draft.freeze()


def with_owner(state: RunState, row: RunRow, now: int) -> RunState:
    """An intent without a receipt and without a living owner is in doubt."""
    calls = state.calls if is_held(row, now) else tuple(map(_doubted, state.calls))
    return msgspec.structs.replace(state, status=shown_status(row, now), calls=calls)


def _doubted(call: Call) -> Call:
    may_have_happened = call.status == "running" and call.may_be_in_doubt
    return msgspec.structs.replace(call, status="in_doubt") if may_have_happened else call


def at(
    store: Store, run_id: str, step: int, when: Literal["before", "after"] = "after"
) -> RunState:
    """The state before or after a step: what the agent knew then.

    After a step means: with what the agent made of it, until it called the next one. Step 0 is the beginning:
    before it the agent's code has not started, after it the code has not made its first call.
    """
    if when not in ("before", "after"):
        raise InvalidInput(f"when must be 'before' or 'after', not {when!r}")
    found = records(store, run_id)
    whole = fold(RunState(), found)
    call = whole.call(step)
    if call is None and step != 0:
        raise NotFound(f"run {run_id!r} has no step {step}; it has {whole.steps}")
    end = 1 if call is None else call.first_seq
    if when == "after":
        end = end if call is None else call.last_seq + 1
        while end < len(found) and found[end].kind in BETWEEN_CALLS:
            end += 1
    then = fold(RunState(), found[:end])
    # Who creates a run and executes it at once does not say that he claims it.
    then = msgspec.structs.replace(then, status="running") if then.status == "pending" else then
    return with_dialogue(then)


BETWEEN_CALLS: Final = frozenset(
    kind for kind, cls in ALL.items() if issubclass(cls, Noted | RunClaimed)
)


class Change(msgspec.Struct, frozen=True):
    """One difference between two states: a path, and what stood there before and after."""

    path: str
    before: Any
    after: Any


def diff(store: Store, run_id: str, step_a: int, step_b: int) -> list[Change]:
    """What changed in the state between the ends of two steps. Step 0 is the beginning."""
    return changes(at(store, run_id, step_a), at(store, run_id, step_b))


def changes(before: RunState, after: RunState) -> list[Change]:
    """What differs in what the agent knew in two states."""
    return compare(knowledge_of(before), knowledge_of(after))


def knowledge_of(state: RunState) -> dict[str, Any]:
    """The part of a state that is the agent's knowledge and position."""
    names = (
        "state",
        "stage",
        "plan",
        "decisions",
        "facts",
        "questions",
        "notes",
        "messages",
        "artifacts",
        "context",
        "flags",
        "steps",
        "usage",
        "iteration",
        "loop",
    )
    return {name: to_plain(getattr(state, name)) for name in names}


def artifact(store: Store, run_id: str, name: str) -> bytes:
    """The bytes of an artifact, by its name (the newest of that name) or its id."""
    for kept in reversed(get(store, run_id).artifacts):
        if name in (kept.name, kept.id):
            return read_artifact(store, run_id, kept.id)
    raise NotFound(f"run {run_id!r} has no artifact {name!r}")


def compare(before: Any, after: Any, path: str = "") -> list[Change]:
    """The differences between two plain values."""
    if isinstance(before, dict) and isinstance(after, dict):
        keys = [*before, *(k for k in after if k not in before)]
        return [
            c
            for k in keys
            for c in compare(before.get(k), after.get(k), f"{path}.{k}" if path else k)
        ]
    if isinstance(before, list) and isinstance(after, list):
        same = min(len(before), len(after))
        found = [c for i in range(same) for c in compare(before[i], after[i], f"{path}[{i}]")]
        found += [Change(f"{path}[{i}]", None, after[i]) for i in range(same, len(after))]
        return found + [Change(f"{path}[{i}]", before[i], None) for i in range(same, len(before))]
    return [] if before == after else [Change(path, before, after)]


def value(store: Store, run_id: str, found: Any) -> Any:
    """The full value of something in a state: a value that was too large for its event is fetched."""
    if isinstance(found, Value):
        return values.decode(read_value(store, run_id, found))
    if isinstance(found, dict):
        return {k: value(store, run_id, v) for k, v in found.items()}
    if isinstance(found, list | tuple):
        return [value(store, run_id, v) for v in found]
    return found


# ── before and after one call, in one reading of the log: for a slider through time ──────────


PAGE: Final = 1000


class Checkpoints:
    """States at some places of one run's log, without its calls: a second look at a place starts near it."""

    def __init__(self, every: int = 2000, limit: int = 100) -> None:
        self._every, self._limit = every, limit
        self._kept: dict[int, tuple[Head, RunState]] = {}

    def before(self, seq: int) -> tuple[Head, RunState] | None:
        """The last one from which the state before this event can be reached."""
        found = max((at for at in self._kept if at < seq), default=None)
        return None if found is None else self._kept[found]

    def offer(self, head: Head, draft: Draft) -> None:
        """Keep the state at this place, if it is one of those to keep."""
        if (
            head.seq % self._every == 0
            and head.seq not in self._kept
            and len(self._kept) < self._limit
        ):
            self._kept[head.seq] = (head, draft.freeze())


def around(
    store: Store, run_id: str, call: Call | None, marks: Checkpoints | None = None
) -> tuple[RunState, RunState]:
    """The states before and after a call, as `at` gives them, without the calls themselves. None is the beginning.

    The log is read only as far as needed, and what is not needed is not kept."""
    start = 1 if call is None else call.first_seq
    end = start if call is None else call.last_seq + 1
    near = marks.before(start) if marks is not None else None
    head, draft = (
        (log.origin(run_id), Draft.of(keep_calls=False))
        if near is None
        else (near[0], Draft.of(near[1], keep_calls=False))
    )
    before: RunState | None = None
    for record in _verified(store, run_id, head):
        if record.seq == start:
            before = draft.freeze()
        if record.seq >= end and record.kind not in BETWEEN_CALLS:
            break
        draft.apply(record.seq, record.time, log.read_event(run_id, record))
        if marks is not None:
            marks.offer(log.head_at(record), draft)
    after = draft.freeze()
    return _shown_then(after if before is None else before), _shown_then(after)


def _shown_then(state: RunState) -> RunState:
    # Who creates a run and executes it at once does not record a claim.
    if state.status == "pending":
        state = msgspec.structs.replace(state, status="running")
    return with_dialogue(state)


def _verified(store: Store, run_id: str, head: Head) -> Iterator[Record]:
    while page := store.read(run_id, after=head.seq, limit=PAGE):
        for record in log.verify(run_id, head, page):
            head = log.head_at(record)
            yield record
        if len(page) < PAGE:
            return


# ── where a run is ───────────────────────────────────────────────────────────────────────────


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


# ── how a run ended ──────────────────────────────────────────────────────────────────────────


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """`status` is that of the run; `result` is set if it completed, `error` and `reason` if it failed."""

    run_id: str
    status: str
    result: Value | None = None
    error: ErrorInfo | None = None
    reason: str = ""
    """Why it failed: error, deadline, budget, iterations …"""
    root: str = ""
    """The run whose limits hold for this one."""
    by: str = ""
    """Who cancelled it, and why."""
    why: str = ""
    waiting_for: str = ""
    """What it is waiting for, if it has not ended."""

    @property
    def has_ended(self) -> bool:
        return self.status in TERMINAL_STATUSES


def outcome(store: Store, run_id: str) -> Outcome:
    """How the run ended, or that it has not."""
    row = row_of(store, run_id)
    root = log.root_of(row.id, row.parent)
    if row.status not in TERMINAL_STATUSES:
        shown = shown_status(row, store.now())
        return Outcome(row.id, shown, root=root, waiting_for=row.waiting_for)
    match end_of(store, row)[1]:
        case e.RunCompleted(result=result):
            return Outcome(row.id, row.status, result=result, root=root)
        case e.RunFailure(error=error, reason=reason):
            return Outcome(row.id, row.status, error=error, reason=reason, root=root)
        case e.RunCancellation(by=by, why=why):
            return Outcome(row.id, row.status, by=by, why=why, root=root)
