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
from holdfast.core.events import ALL, Event, Noted, Value
from holdfast.core.fold import fold
from holdfast.core.log import Head, Record
from holdfast.core.state import Call, RunState
from holdfast.errors import InvalidInput, LogDamaged, NoSuchRun, NotFound, StoreError
from holdfast.store.base import RunRow, Snapshot, Store
from holdfast.store.ending import newest_first

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
    row = row_of(store, run_id)
    return _with_dialogue(with_owner(folded(store, run_id), row, store.now()))


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

    After a step means: with what the agent made of it, until it called the next one.
    """
    if when not in ("before", "after"):
        raise InvalidInput(f"when must be 'before' or 'after', not {when!r}")
    found = records(store, run_id)
    whole = fold(RunState(), found)
    call = whole.call(step)
    if call is None:
        raise NotFound(f"run {run_id!r} has no step {step}; it has {whole.steps}")
    end = call.first_seq
    if when == "after":
        end = call.last_seq + 1
        while end < len(found) and found[end].kind in _NOTED:
            end += 1
    then = fold(RunState(), found[:end])
    # Who creates a run and executes it at once does not say that he takes it up.
    then = msgspec.structs.replace(then, status="running") if then.status == "pending" else then
    return _with_dialogue(then)


_NOTED: Final = frozenset(kind for kind, cls in ALL.items() if issubclass(cls, Noted))


def diff(store: Store, run_id: str, step_a: int, step_b: int) -> list[Change]:
    """What changed in what the agent knew between the ends of two steps."""
    return compare(_known(at(store, run_id, step_a)), _known(at(store, run_id, step_b)))


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
    if isinstance(value, msgspec.Struct):
        return {name: to_plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {k: to_plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(v) for v in value]
    return value


def artifact(store: Store, run_id: str, name: str) -> bytes:
    """The bytes of an artifact, by its name (the newest of that name) or its id."""
    for kept in reversed(get(store, run_id).artifacts):
        if name in (kept.name, kept.id):
            return _blob(store, run_id, kept.id)
    raise NotFound(f"run {run_id!r} has no artifact {name!r}")


def value(store: Store, run_id: str, found: Any) -> Any:
    """Something found in a state, whole: what was too big for its event is fetched."""
    if isinstance(found, Value):
        return values.decode(_blob(store, run_id, found.blob) if found.blob else found.json)
    if isinstance(found, dict):
        return {k: value(store, run_id, v) for k, v in found.items()}
    if isinstance(found, list | tuple):
        return [value(store, run_id, v) for v in found]
    return found


def _blob(store: Store, run_id: str, hash: str) -> bytes:
    data = store.blob(run_id, hash)
    if data is None or values.digest(data) != hash:
        raise NotFound(f"run {run_id!r}: artifact {hash} is missing or damaged")
    return data


def events(
    store: Store, run_id: str, *, after: int = -1, through: Through = iter
) -> Iterator[tuple[Record, Event]]:
    """The run's log: each record with its event."""
    for record in records(store, run_id, through):
        if record.seq > after:
            yield record, log.read_event(run_id, record)


def verify(store: Store, run_id: str, *, through: Through = iter) -> Verdict:
    """Check the run's whole log against its hash chain."""
    row_of(store, run_id)
    count, head = 0, ""
    try:
        for record in log.verify(run_id, log.origin(run_id), through(_in_pages(store, run_id))):
            log.read_event(run_id, record)
            count, head = count + 1, record.hash.hex()
    except LogDamaged as damage:
        return Verdict(run_id, False, count, head, str(damage))
    return Verdict(run_id, True, count, head)
