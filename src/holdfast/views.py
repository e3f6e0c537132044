"""What people may see of a run. Reads only, works without the agent's code.

`hf.get`, `hf.at`, `hf.diff`, `hf.events`, `hf.verify` and the windows are these functions. The state is
always a fold of the log; here it also learns from the lease whether an open call has a living owner.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from holdfast.core import log, snapshot, still_open, values
from holdfast.core.events import ALL, Event, Noted, RunClaimed, Value, artifacts
from holdfast.core.fold import fold
from holdfast.core.log import Head, Record
from holdfast.core.state import Call, RunState, Waiting
from holdfast.errors import InvalidInput, LogDamaged, NoSuchRun, NotFound, StoreError
from holdfast.store.artifacts import read_artifact, read_value
from holdfast.store.base import RunRow, Snapshot, Store
from holdfast.store.checks import check_whole
from holdfast.store.tail import newest_first

SNAPSHOT_AFTER: Final = 1000
"""A log that grew by this many events since the last snapshot gets a new one when it is read."""
PAGE: Final = 5000
"""So many events of a long log are read at once."""

Through = Callable[[Iterable[Record]], Iterable[Record]]
"""What the events of a long log pass on their way, one by one: where somebody may count them."""


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between two states: a path, and what stood there before and after."""

    path: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class Verdict:
    """What `verify` found."""

    run_id: str
    ok: bool
    events: int
    head: str
    problem: str = ""


def row_of(store: Store, run_id: str) -> RunRow:
    """The run's row, or NotFound."""
    row = store.get(run_id)
    if row is None:
        raise NoSuchRun(run_id)
    return row


def records(store: Store, run_id: str, through: Through = iter) -> list[Record]:
    """The run's log, checked, from the beginning."""
    found = list(log.verify(run_id, log.origin(run_id), through(_in_pages(store, run_id))))
    if not found:
        row_of(store, run_id)
    return found


def _in_pages(store: Store, run_id: str) -> Iterator[Record]:
    """The run's log as it is kept."""
    after = -1
    while page := store.read(run_id, after=after, limit=PAGE):
        yield from page
        if len(page) < PAGE or page[-1].seq <= after:
            return
        after = page[-1].seq


def get(store: Store, run_id: str) -> RunState:
    """The state now, with calls in doubt marked as such."""
    row, state = _row_and_state(store, run_id)
    return _with_dialogue(with_owner(state, row, store.now()))


def _row_and_state(store: Store, run_id: str) -> tuple[RunRow, RunState]:
    """The row and the fold of the log; LogDamaged if they contradict each other."""
    while True:
        row, state = row_of(store, run_id), folded(store, run_id)
        damage = _contradiction(row, state)
        if damage is None:
            return row, state
        if row == row_of(store, run_id):  # else it was written in between: read both again
            raise damage


def _contradiction(row: RunRow, state: RunState) -> LogDamaged | None:
    """What is wrong if a run's row and its log do not agree.

    A row is not part of the hash chain, and a chain that has lost its end is still a chain. But how a run
    ended, or that it waits, is written to both in one transaction.
    """
    if not state.agent:
        return LogDamaged(row.id, 0, "it is missing")
    if row.agent != state.agent:
        what = f"the run is stored as one of agent {row.agent!r}, its log as one of {state.agent!r}"
        return LogDamaged(row.id, 0, what)
    if row.status not in (state.status, *_NOT_RECORDED):
        what = f"the run is stored as {row.status}, but its log ends as {state.status}"
        return LogDamaged(row.id, state.seq + 1, f"it may be missing: {what}")
    return None


_NOT_RECORDED: Final = ("pending", "running", "paused", "quarantined")
"""Statuses that a run can have without an event that says so: claims and releases are not recorded."""


def _with_dialogue(state: RunState) -> RunState:
    """A loop's dialogue is in its own state; whoever looks at the run finds it with the run's messages."""
    own = state.agent_state
    if own is None or not own.messages:
        return state
    return msgspec.structs.replace(state, messages=(*state.messages, *own.messages))


def pending(store: Store, run_id: str) -> RunState:
    """What is open in the run now: its requests and its calls without a receipt, as in `get`.

    They are found from the end of the log, so this costs no more the longer the run is. Of anything else the
    state that is returned says only what happened since they began.
    """
    records = still_open.tail(run_id, newest_first(store, run_id))
    row = row_of(store, run_id)
    return with_owner(fold(RunState(id=run_id), records), row, store.now())


def folded(store: Store, run_id: str) -> RunState:
    """The fold of the whole log, begun at a snapshot if there is a good one.

    Whoever has folded a long log leaves a snapshot for the next. It saves time and nothing else: a
    snapshot that does not fit the log exactly is not used.
    """
    start, head = _from_snapshot(store, run_id)
    found = list(log.verify(run_id, head, store.read(run_id, after=head.seq)))
    state = fold(start, found)
    if len(found) >= SNAPSHOT_AFTER and not _ends_at_live(store, run_id, found[-1].seq):
        last = found[-1]
        kept = Snapshot(last.seq, last.hash, snapshot.VERSION, store.now(), snapshot.dump(state))
        with contextlib.suppress(
            StoreError
        ):  # a cache: a store that is read-only or full does without
            store.save_snapshot(run_id, kept)
    return state


def _ends_at_live(store: Store, run_id: str, seq: int) -> bool:
    """Whether a loop goes on from a snapshot that ends here: one place holds one snapshot."""
    live = store.snapshot(run_id, live=True)
    return live is not None and live.seq == seq


def _from_snapshot(store: Store, run_id: str) -> tuple[RunState, Head]:
    """A state to begin with and the end of the log that it is the fold of."""
    kept = store.snapshot(run_id)
    if kept is not None and kept.code_version == snapshot.VERSION:
        at = store.read(run_id, after=kept.seq - 1, limit=1)
        if at and at[0].seq == kept.seq and at[0].hash == kept.hash:
            with contextlib.suppress(ValueError):
                state = snapshot.load(kept.data)
                if (state.id, state.seq) == (run_id, kept.seq):
                    return state, Head(kept.seq, kept.hash, at[0].time)
    return RunState(), log.origin(run_id)


def with_owner(state: RunState, row: RunRow, now: int) -> RunState:
    """An intent without a receipt and without a living owner is in doubt."""
    calls = state.calls if row.is_live(now) else tuple(map(_doubted, state.calls))
    return msgspec.structs.replace(state, status=standing(row, now), calls=calls)


def standing(row: RunRow, now: int) -> str:
    """The row's status; `interrupted` if its worker has let the lease end."""
    return "interrupted" if row.status == "running" and not row.is_live(now) else row.status


def _doubted(call: Call) -> Call:
    may_have_happened = call.status == "running" and call.effect in ("once", "keyed", "checked")
    return msgspec.structs.replace(call, status="in_doubt") if may_have_happened else call


@dataclass(frozen=True, slots=True)
class Position:
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
    over = [c.step for c in state.calls if c.status in ("done", "failed")]
    under_way = [c for c in state.calls if c.status not in ("done", "failed")]
    if under_way:
        return Position(under_way[0].step, None, under_way[0].name, ranges(over))
    # Between two calls: the next one has no name yet. After the end there is no next one.
    return Position(state.steps + (state.status not in ENDED), None, "", ranges(over))


ENDED: Final = ("completed", "failed", "cancelled")


def ranges(numbers: Sequence[int]) -> str:
    """1–5, 7, 9–10."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in runs)


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
        while end < len(found) and found[end].kind in _BETWEEN_CALLS:
            end += 1
    then = fold(RunState(), found[:end])
    # Who creates a run and executes it at once does not say that he takes it up.
    then = msgspec.structs.replace(then, status="running") if then.status == "pending" else then
    return _with_dialogue(then)


_BETWEEN_CALLS: Final = frozenset(
    kind for kind, cls in ALL.items() if issubclass(cls, Noted | RunClaimed)
)


def diff(store: Store, run_id: str, step_a: int, step_b: int) -> list[Change]:
    """What changed in what the agent knew between the ends of two steps. Step 0 is the beginning."""
    return changes(at(store, run_id, step_a), at(store, run_id, step_b))


def changes(before: RunState, after: RunState) -> list[Change]:
    """What differs in what the agent knew in two states."""
    return compare(_known(before), _known(after))


def _known(state: RunState) -> dict[str, Any]:
    """The part of a state that is the agent's knowledge and position."""
    names = ("state", "stage", "plan", "decisions", "facts", "questions", "notes", "messages",
             "artifacts", "context", "flags", "steps", "usage", "iteration", "loop")  # fmt: skip
    return {name: to_plain(getattr(state, name)) for name in names}


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


def to_plain(value: Any) -> Any:
    """Any part of a state as plain JSON values, for `--json` and for comparing."""
    if isinstance(value, Value):
        if value.blob:
            return {"artifact": value.blob, "bytes": value.bytes}
        return values.decode(value.json)
    if isinstance(value, Waiting):
        return {"id": value.id, **_fields(value)}
    if isinstance(value, msgspec.Struct):
        return _fields(value)
    if isinstance(value, dict):
        return {k: to_plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(v) for v in value]
    return value


def _fields(value: msgspec.Struct) -> dict[str, Any]:
    return {name: to_plain(getattr(value, name)) for name in value.__struct_fields__}


def artifact(store: Store, run_id: str, name: str) -> bytes:
    """The bytes of an artifact, by its name (the newest of that name) or its id."""
    for kept in reversed(get(store, run_id).artifacts):
        if name in (kept.name, kept.id):
            return read_artifact(store, run_id, kept.id)
    raise NotFound(f"run {run_id!r} has no artifact {name!r}")


def value(store: Store, run_id: str, found: Any) -> Any:
    """Something found in a state, whole: what was too big for its event is fetched."""
    if isinstance(found, Value):
        return values.decode(read_value(store, run_id, found))
    if isinstance(found, dict):
        return {k: value(store, run_id, v) for k, v in found.items()}
    if isinstance(found, list | tuple):
        return [value(store, run_id, v) for v in found]
    return found


def events(
    store: Store, run_id: str, *, after: int = -1, through: Through = iter
) -> Iterator[tuple[Record, Event]]:
    """The run's log: each record with its event."""
    check_whole("after", after)
    for record in records(store, run_id, through):
        if record.seq > after:
            yield record, log.read_event(run_id, record)


def verify(store: Store, run_id: str, *, through: Through = iter) -> Verdict:
    """Check the run's whole log against its hash chain, and every value stored outside it."""
    seen: list[Record] = []  # the last one that verified
    try:
        while True:
            row = row_of(store, run_id)
            state = fold(RunState(), _verified(store, run_id, through, seen))
            damage = _contradiction(row, state)
            if damage is None:
                break
            if row == row_of(store, run_id):  # else it was written in between: read both again
                raise damage
    except LogDamaged as found:
        return _verdict(run_id, seen, str(found))
    return _verdict(run_id, seen)


def _verdict(run_id: str, seen: Sequence[Record], problem: str = "") -> Verdict:
    events, head = (seen[-1].seq + 1, seen[-1].hash.hex()) if seen else (0, "")
    return Verdict(run_id, not problem, events, head, problem)


def _verified(store: Store, run_id: str, through: Through, seen: list[Record]) -> Iterator[Record]:
    """The run's records, each checked with all that it refers to; the last one is left in `seen`."""
    known: set[str] = set()
    for record in log.verify(run_id, log.origin(run_id), through(_in_pages(store, run_id))):
        new = artifacts(log.read_event(run_id, record)) - known
        for name in sorted(new):
            read_artifact(store, run_id, name, seq=record.seq)
        known |= new
        seen[:] = [record]
        yield record
