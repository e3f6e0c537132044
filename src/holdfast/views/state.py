"""The state of a run, now and at any step: a fold of its log.

The run's row adds whether an open call has a live owner.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal

import msgspec

from holdfast.core import log, values
from holdfast.core.events import ALL, Noted, RunClaimed, Value
from holdfast.core.fold import Draft, fold
from holdfast.core.state import Call, RunState, to_plain
from holdfast.errors import InvalidInput, NotFound
from holdfast.store.artifacts import read_artifact, read_value
from holdfast.store.base import RunRow, Store
from holdfast.store.pages import Through, checked, what_is_open
from holdfast.store.process import is_held
from holdfast.views.listing import shown_status
from holdfast.views.log import contradiction, records, row_of


def get(store: Store, run_id: str) -> RunState:
    """The state now, with calls in doubt marked as such. This reads the whole log."""
    return _shown(store, run_id, folded)


def brief(store: Store, run_id: str, *, through: Through = iter) -> RunState:
    """The same without most calls that are over: of those only the last ones (`core/brief.py`). Of a long log only the
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
    draft = Draft()
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
