"""Fork a run: a new run that starts with the first steps of another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.control.patches import state_operations
from holdfast.control.requests import received
from holdfast.core import events as e
from holdfast.core import log
from holdfast.core.ancestors import ForkAncestry, ancestry_of
from holdfast.core.effect import Effect
from holdfast.core.events import Event
from holdfast.core.fold import fold
from holdfast.core.log import Blob
from holdfast.core.state import RunState
from holdfast.errors import InvalidInput, NoSuchRun, NotFound, NotNow
from holdfast.store.artifacts import read_artifact
from holdfast.store.base import NewRun, Store
from holdfast.store.outside import create
from holdfast.store.pages import everything


def fork(
    store: Store,
    run_id: str,
    step: int,
    new_id: str,
    state: Mapping[str, Any],
    *,
    by: str = "",
    why: str = "",
) -> None:
    """A new run that holds this one's log up to the end of a step. It has keys of its own, and says
    which effects of the past it inherits."""
    log.check_run_id(new_id)
    row = store.get(run_id)
    if row is None:
        raise NoSuchRun(run_id)
    records = everything(store, run_id)
    whole = fold(RunState(), records)
    last = whole.call(step)
    if last is None:
        raise NotFound(f"run {run_id!r} has no step {step}; it has {whole.steps}")
    if last.status not in ("done", "failed"):
        raise NotNow(
            f"run {run_id!r}: step {step} is {last.status}; fork from a step that has ended"
        )
    kept = [log.read_event(run_id, r) for r in records[: last.last_seq + 1]]
    created = kept[0]
    assert isinstance(created, e.RunCreated)
    finished = {
        (c.branch, c.index)
        for c in whole.calls
        if c.last_seq <= last.last_seq and c.status in ("done", "failed")
    }
    gated = {(x.branch, x.index) for x in kept if isinstance(x, e.WaitBegan) and x.tool}
    resumed = _resumed(kept)
    asked_again = _waits_to_begin_again(kept, ancestry_of(created))
    past = [
        (seq, x)
        for seq, x in enumerate(kept)
        if seq and (x in resumed or _belongs(x, finished, gated, asked_again))
    ]
    effects = tuple(
        f"step {c.step}: {c.name}"
        for c in whole.calls
        if (c.branch, c.index) in finished and c.effect != Effect.REPEATABLE
    )
    first = msgspec.structs.replace(
        created,
        run_id=new_id,
        parent="",
        forked_from=run_id,
        forked_step=step,
        inherited_effects=effects,
        by=by,
        why=why,
        ancestors=ancestry_of(created).ancestors,
        inherited_events=len(past) + bool(state),
    )
    new: list[Event] = [first, *_renumbered(past)]
    if state:  # before the step's receipt, so that the code has it when the step returns
        new.insert(-1, state_patch(state, by=by, why=why))
    needed = set().union(*map(e.artifacts, new))
    blobs = [Blob(name, read_artifact(store, run_id, name)) for name in sorted(needed)]
    run = NewRun(new_id, row.agent, row.input_digest, row.code_version)
    made, fresh = create(store, run, new, blobs, received(new_id, enumerate(new)), now=store.now())
    if not fresh:
        raise InvalidInput(f"run {made.id!r} already exists; choose another id")


def state_patch(state: Mapping[str, Any], *, by: str = "", why: str = "") -> e.StatePatched:
    """The event with which a fork begins with other state."""
    return e.StatePatched(changes=state_operations(state), by=by, why=why or "forked")


def _resumed(events: Sequence[Event]) -> list[Event]:
    """Failures after which the run was resumed, and the resumptions: they explain why a call that had
    failed was made again, and what the code had done in between."""
    found: list[Event] = []
    failed: e.RunFailure | None = None
    for event in events:
        if isinstance(event, e.RunFailure):
            failed = event
        elif isinstance(event, e.RunReopened) and failed is not None:
            found += [failed, event]
            failed = None
    return found


def _renumbered(events: Sequence[tuple[int, Event]]) -> list[Event]:
    """Events as they follow the first one of a fork: what names another by its seq names it there."""
    now = {seq: number for number, (seq, _) in enumerate(events, start=1)}

    def renumber(event: Event) -> Event:
        if isinstance(event, e.WaitEnded) and event.source:
            return msgspec.structs.replace(event, source=now.get(event.source, 0))
        if isinstance(event, e.CallStarted) and event.approval is not None:
            return msgspec.structs.replace(event, approval=now.get(event.approval))
        return event

    return [renumber(event) for _, event in events]


def _waits_to_begin_again(events: Sequence[Event], lineage: ForkAncestry) -> set[tuple[str, int]]:
    """Open waits that name the run: a fork starts them itself, under its own id. (No process would send it a
    signal whose name has the other run's id.) Those of one choice stay together."""
    ended = {(x.branch, x.index) for x in events if isinstance(x, e.WaitEnded)}
    still_open = [
        x
        for x in events
        if isinstance(x, e.WaitBegan) and not x.tool and (x.branch, x.index) not in ended
    ]
    ids = (lineage.run_id, *lineage.ancestors)
    named = {x.branch for x in still_open if any(_names(x, run_id) for run_id in ids)}
    return {(x.branch, x.index) for x in still_open if x.branch in named}


def _names(wait: e.WaitBegan, run_id: str) -> bool:
    shown = b"" if wait.show is None else bytes(wait.show.json)
    return run_id in wait.name or run_id.encode() in shown


def _belongs(
    event: Event,
    finished: set[tuple[str, int]],
    gated: set[tuple[str, int]],
    asked_again: set[tuple[str, int]],
) -> bool:
    """Whether a fork inherits this: facts, and calls and waits that were over. Not decisions about
    calls that had not started: a fork asks again."""
    if isinstance(
        event,
        e.RunClaimed
        | e.RunSuspended
        | e.RunReopened
        | e.CancelRequested
        | e.RunPaused
        | e.RunFailure
        | e.CallEvidence
        | e.RunCompleted
        | e.RunCancellation,
    ):
        return False
    if isinstance(
        event, e.CallStarted | e.CallSucceeded | e.CallFailure | e.CallDoubted | e.CallResolved
    ):
        return (event.branch, event.index) in finished
    if isinstance(event, e.WaitBegan | e.ApprovalDecided | e.AnswerGiven):
        place = (event.branch, event.index)
        return place in finished or (place not in gated and place not in asked_again)
    return True
