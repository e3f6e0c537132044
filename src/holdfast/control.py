"""What people may do to a run. Works without the agent's code, on any machine that reaches the store.

Every act is one event (or two) appended to the run's log, under the condition that the log is still
what the decision was made upon. So of approve, reject, time-out and cancel racing, one wins, and the
others are told which. A worker that is executing the run sees the event at its next commit.

What a decision has to know says how much of the log is read for it (`Reads`): mostly the last event, or as far
back as anything is open. So it costs no more the longer the run has lived.
"""

from __future__ import annotations

import contextlib
import itertools
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from holdfast.core import events as e
from holdfast.core import jsonpatch, log, loop_state, still_open, values
from holdfast.core.ancestors import ForkAncestry, ancestry_of
from holdfast.core.events import ErrorInfo, Event
from holdfast.core.fold import fold
from holdfast.core.knowledge import operated
from holdfast.core.log import Blob, Record
from holdfast.core.patch import StatePatch
from holdfast.core.state import Call, RunState, Waiting
from holdfast.errors import (
    AlreadyDecided,
    Conflict,
    InvalidInput,
    KeyTaken,
    LogDamaged,
    NoSuchRun,
    NotFound,
    NotNow,
    NotResumable,
    NotStorable,
)
from holdfast.store.artifacts import read_artifact
from holdfast.store.base import (
    RESERVED,
    TERMINAL_STATUSES,
    Append,
    NewRun,
    RowChange,
    RunRow,
    Store,
)
from holdfast.store.cancel import cancel_children
from holdfast.store.tail import newest_first


class Act(NamedTuple):
    """What is to be recorded, with what changes beside it. Without events, nothing is."""

    events: Sequence[Event] = ()
    change: RowChange | None = None
    blobs: Sequence[Blob] = ()
    key: str = ""
    """A key that no other event may hold: KeyTaken if one does."""


Decide = Callable[[RunState, RunRow], Act]
"""Upon what is known of the run (as far as it was read) and its row."""

WAKE: Final = RowChange(wake=True)

# ── how much of the log a decision needs ─────────────────────────────────────────────────────

LATELY: Final = 100
Reads = Callable[[Store, str], list[Record]]
"""What is read of a run's log, in order and checked: its last event at least."""


def the_end(store: Store, run_id: str) -> list[Record]:
    """Only where the log ends: for what is decided upon the run's row alone."""
    return list(itertools.islice(newest_first(store, run_id, page=1), 1))


def lately(store: Store, run_id: str) -> list[Record]:
    """The last events. A cancellation that is not carried out yet is among them: whoever knows of one begins
    nothing new. (If very much came from outside since, it is asked for twice, which does no harm.)"""
    return list(itertools.islice(newest_first(store, run_id, page=LATELY), LATELY))[::-1]


def what_is_open(store: Store, run_id: str) -> list[Record]:
    """As far back as anything is open: requests, and calls that may have happened."""
    return still_open.tail(run_id, newest_first(store, run_id))


def open_until(found: still_open.Found) -> Reads:
    """The same, but no further than to what is asked about."""
    return lambda store, run_id: still_open.tail(run_id, newest_first(store, run_id), found)


def everything(store: Store, run_id: str) -> list[Record]:
    """The whole log: for what depends on all that the run did or knows."""
    return list(log.verify(run_id, log.origin(run_id), store.read(run_id)))


def act(store: Store, run_id: str, decide: Decide, reads: Reads = the_end) -> None:
    """Decide upon a run as it is now, and record the decision if it still is."""
    while True:
        records = reads(store, run_id)
        row = store.get(run_id)  # after the log: so it is not older than what was read there
        if row is None:
            raise NoSuchRun(run_id)
        if not records:
            raise LogDamaged(run_id, 0, "it is missing")
        new, change, blobs, key = decide(fold(RunState(id=run_id), records), row)
        if not new:
            return
        last = records[-1]
        head = log.head_at(last)
        _, sealed = log.seal(head, new, epoch=last.epoch, time=store.now())
        _refuse_unreadable(sealed)
        work = Append(run_id, head.seq, sealed, None, change, blobs, key, before=head.hash)
        try:
            store.append(work)
        except Conflict:
            continue  # something happened in between: decide again, upon what is true now
        return


def _refuse_unreadable(records: Sequence[log.Record]) -> None:
    """What came from outside, such as a name that is no text, must not make a log unreadable."""
    for record in records:
        try:
            e.from_json(record.kind, record.data)
        except e.Unreadable as error:
            raise InvalidInput(f"nothing was recorded: {error}") from None


def _refuse_ended(row: RunRow, what: str) -> None:
    if row.status in TERMINAL_STATUSES:
        raise NotNow(f"run {row.id!r} is {row.status}; {what} has no effect any more")


# ── people in the loop ───────────────────────────────────────────────────────────────────────


def signal(
    store: Store,
    run_id: str,
    name: str,
    value: Any = None,
    *,
    signal_id: str = "",
    by: str = "",
    why: str = "",
) -> None:
    """Send a signal. It is kept if nobody waits for it yet; the same `signal_id` counts once."""
    if not isinstance(name, str) or not name.strip():  # type: ignore[redundant-expr]
        raise InvalidInput("a signal needs a name that is not empty")
    key = _signal_key(run_id, str(signal_id)) if signal_id else ""
    wrapped, blob = log.wrap(values.encode(value))

    def decide(_: RunState, row: RunRow) -> Act:
        _refuse_ended(row, f"the signal {name!r}")
        event = e.SignalReceived(
            id=signal_id or uuid.uuid4().hex, name=name, value=wrapped, by=by, why=why
        )
        return Act([event], WAKE, [] if blob is None else [blob], key)

    with contextlib.suppress(KeyTaken):  # it has been received before
        act(store, run_id, decide)


def _signal_key(run_id: str, signal_id: str) -> str:
    """The key under which the store knows that a run has received this signal."""
    known_as = values.digest(signal_id.encode("utf-8", "surrogatepass"))
    return f"{RESERVED}signal {run_id} {known_as}"


def received(run_id: str, events: Iterable[tuple[int, Event]]) -> list[tuple[str, int]]:
    """For a log that is written at once: the keys of the signals in it, with their places."""
    found = {_signal_key(run_id, x.id): seq for seq, x in events if isinstance(x, e.SignalReceived)}
    return list(found.items())


def approve(
    store: Store, run_id: str, request: str = "", *, by: str = "", why: str = "", digest: str = ""
) -> None:
    """Say yes to what the run asks for. `digest`, if given, must be that of what was shown."""
    _decide_approval(store, run_id, request, True, by, why, digest)


def reject(
    store: Store, run_id: str, request: str = "", *, by: str = "", why: str = "", digest: str = ""
) -> None:
    """Say no to what the run asks for."""
    _decide_approval(store, run_id, request, False, by, why, digest)


def _decide_approval(
    store: Store, run_id: str, request: str, approved: bool, by: str, why: str, digest: str
) -> None:
    def decide(state: RunState, row: RunRow) -> Act:
        _refuse_ended(row, "a decision")
        wait = _pending(state, "approval", request)
        if digest and wait.digest and digest != wait.digest:
            raise NotNow(
                f"run {run_id!r} now asks for something else than what was shown; look again"
            )
        _refuse_expired(store, run_id, wait)
        event = e.ApprovalDecided(
            branch=wait.branch,
            index=wait.index,
            approved=approved,
            digest=wait.digest,
            by=by,
            why=why,
        )
        return Act([event], WAKE)

    act(store, run_id, decide, _requests(request))


def _requests(request: str) -> Reads:
    """What tells of the one request, or of all that are open."""
    return open_until(still_open.begins_request(request)) if request else what_is_open


def _refuse_expired(store: Store, run_id: str, wait: Waiting) -> None:
    if wait.until is not None and store.now() >= wait.until:
        raise NotNow(f"run {run_id!r}: the request has expired")


def answer(
    store: Store, run_id: str, value: Any, request: str = "", *, by: str = "", why: str = ""
) -> None:
    """Answer the question that the run asks."""
    wrapped, blob = log.wrap(values.encode(value))

    def decide(state: RunState, row: RunRow) -> Act:
        _refuse_ended(row, "an answer")
        wait = _pending(state, "answer", request)
        _refuse_expired(store, run_id, wait)
        if wait.options and value not in wait.options:
            raise InvalidInput(f"{value!r} is not one of the options: {', '.join(wait.options)}")
        event = e.AnswerGiven(branch=wait.branch, index=wait.index, value=wrapped, by=by, why=why)
        return Act([event], WAKE, [] if blob is None else [blob])

    act(store, run_id, decide, _requests(request))


def _pending(state: RunState, kind: str, request: str) -> Waiting:
    """The one request of this kind that is open (or the one that `request` names)."""
    asked = [w for w in state.waits if w.wait == kind and (not request or w.id == request)]
    open_ones = [w for w in asked if not w.decided]
    if asked and not open_ones:
        raise AlreadyDecided(f"run {state.id!r}: it is already decided" + _last_decision(state))
    if not open_ones:
        other = f"; it waits for {state.waiting_for}" if state.waiting_for else ""
        raise NotNow(
            f"run {state.id!r} does not wait for an {kind}"
            + (f" {request}" if request else "")
            + other
        )
    if len(open_ones) > 1:
        names = ", ".join(f"{w.id} ({w.name})" for w in open_ones)
        raise InvalidInput(f"run {state.id!r} waits for several: say which one: {names}")
    return open_ones[0]


def _last_decision(state: RunState) -> str:
    said = [line.text for line in state.lines if line.level in ("approval", "answer")]
    return f": {said[-1]}" if said else ""


# ── doubt ────────────────────────────────────────────────────────────────────────────────────


def resolve(
    store: Store, run_id: str, call: int | str | None = None, *, done: Any = ..., failed: str | None = None,
    retry: bool = False, by: str = "", why: str = "",
) -> None:  # fmt: skip
    """Settle a call in doubt: it happened (`done=result`), it did not (`failed=why`), or try again."""
    if (done is not ...) + (failed is not None) + bool(retry) != 1:
        raise InvalidInput("say exactly one of done=result, failed='why' and retry=True")
    if call is not None and not isinstance(call, int | str):
        raise InvalidInput(f"a call is named by its step number or its name, not by {call!r}")
    wrapped, blob = log.wrap(values.encode(None if done is ... else done))

    def decide(state: RunState, row: RunRow) -> Act:
        if row.is_live(store.now()):
            raise NotNow(
                f"run {run_id!r} is being executed by {row.owner}; its calls are not in doubt"
            )
        target = _doubtful(state, call) or _doubtful(_whole(store, run_id), call)
        if target is None:
            named = f" named {call!r}" if call else ""
            raise NotFound(f"run {run_id!r} has no call in doubt{named}")
        how = "done" if done is not ... else "retry" if retry else "failed"
        event = e.CallResolved(
            branch=target.branch, index=target.index, step=target.step, name=target.name, how=how,
            result=wrapped if how == "done" else None,
            error=ErrorInfo("NotDone", failed, effect="none") if failed is not None else None,
            by=by, why=why,
        )  # fmt: skip
        change = None if row.status in TERMINAL_STATUSES else WAKE
        return Act([event], change, [blob] if blob is not None and how == "done" else [])

    # A tool may have several calls in doubt, and then it is to be said which: so its name ends no search.
    is_place = isinstance(call, int) or (call is not None and "#" in call)
    reads = open_until(still_open.tells_of_call(call)) if call and is_place else what_is_open
    act(store, run_id, decide, reads)


def _whole(store: Store, run_id: str) -> RunState:
    """The fold of everything: also for what to say of a call that was over long ago."""
    return fold(RunState(), everything(store, run_id))


def _doubtful(state: RunState, call: int | str | None) -> Call | None:
    """The call that may or may not have happened (an intent without a receipt counts), if there is one."""
    unsure = [c for c in state.calls if c.status in still_open.UNSETTLED and c.index >= 0]
    if call is not None:
        unsure = [c for c in unsure if call in (c.step, c.name, c.id)]
    if not unsure:
        known = next((c for c in state.calls if call in (c.step, c.name, c.id)), None)
        if known is not None:
            raise NotNow(
                f"step {known.step}, {known.name}, is {known.status}; there is no doubt about it"
            )
        return None
    if len(unsure) > 1:
        names = ", ".join(f"{c.step} ({c.name})" for c in unsure)
        raise InvalidInput(f"run {state.id!r} has several calls in doubt: say which step: {names}")
    return unsure[0]


# ── the run's course ─────────────────────────────────────────────────────────────────────────


Patch = Mapping[str, Any] | StatePatch | Sequence[Mapping[str, Any]]
"""New values of `run.state` by key; a StatePatch; or an RFC 6902 JSON Patch of what `hf.get` shows."""


def patch(
    store: Store,
    run_id: str,
    changes: Patch,
    *,
    delete: Sequence[str] = (),
    knowledge: StatePatch | None = None,
    expected: int | None = None,
    key: str = "",
    by: str = "",
    why: str = "",
) -> bool:
    """Change what the run knows from outside. The agent sees it when its next call returns, a loop when
    its iteration ends. A JSON Patch is applied whole or not at all.

    `knowledge` goes with new values of `run.state`: both are recorded in one event. With `expected`, the seq of
    the last event that the caller has seen, the patch is refused with Conflict if the log has grown since. A
    `key` counts once per run: False if a patch with this key was recorded before.
    """
    event = _patch_event(changes, delete, knowledge, by=by, why=why)
    claimed = _patch_key(run_id, key) if key else ""
    # Looked for before the version is compared: the first attempt has changed the version.
    if claimed and _is_recorded(store, claimed, event):
        return False

    def decide(state: RunState, row: RunRow) -> Act:
        _refuse_ended(row, "a patch")
        if expected is not None and state.seq != expected:
            raise Conflict(run_id, expected, state.seq)
        if event.operations is not None:
            _try_out(state, changes)
        return Act([event], key=claimed)

    try:
        act(store, run_id, decide, the_end if event.operations is None else everything)
    except KeyTaken:
        return not _is_recorded(store, claimed, event)
    return True


def _is_recorded(store: Store, key: str, event: e.StatePatched) -> bool:
    """Whether this patch was recorded under its key; InvalidInput if another one was."""
    found = store.find_key(key)
    if found is None:
        return False
    run_id, seq = found
    records = store.read(run_id, after=seq - 1, limit=1)
    known = log.read_event(run_id, records[0]) if records else None
    if not isinstance(known, e.StatePatched) or _content(known) != _content(event):
        raise InvalidInput(
            f"run {run_id!r}: the idempotency key was used for another patch (event {seq}); use a new key"
        )
    return True


def _content(event: e.StatePatched) -> tuple[e.Value | None, ...]:
    return event.changes, event.patch, event.operations


def _patch_event(
    changes: Patch, delete: Sequence[str], knowledge: StatePatch | None, *, by: str, why: str
) -> e.StatePatched:
    is_values = not isinstance(changes, StatePatch | list | tuple)
    if delete and not is_values:
        raise InvalidInput("delete=… goes with new values of run.state, not with another patch")
    if knowledge is not None and not is_values:
        raise InvalidInput("knowledge=… goes with new values of run.state, not with another patch")
    event = e.StatePatched(changes=e.Value(json=Raw(b"[]")), by=by, why=why, id=uuid.uuid4().hex)
    if isinstance(changes, StatePatch):
        return replace(event, patch=_small(values.encode_struct(changes)))
    if isinstance(changes, Mapping):
        also = None if knowledge is None else _small(values.encode_struct(knowledge))
        return replace(event, changes=_operations(changes, delete), patch=also)
    jsonpatch.operations(changes)
    return replace(event, operations=_small(values.encode(changes)))


def _patch_key(run_id: str, key: str) -> str:
    """The key under which the store knows that a run has received this patch."""
    known_as = values.digest(key.encode("utf-8", "surrogatepass"))
    return f"{RESERVED}patch {run_id} {known_as}"


def _try_out(state: RunState, ops: Any) -> None:
    """InvalidInput, with nothing written, if a JSON Patch does not apply to what the run knows now."""
    if state.is_loop and state.loop is None:
        raise NotNow(f"run {state.id!r} has not begun: there is no state yet that could be patched")
    try:
        if state.is_loop:
            loop_state.try_out(state.loop, state.queued, ops)
        else:
            operated(state, ops)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"what the patch leaves cannot be read: {error}") from None


def _small(data: bytes) -> e.Value:
    """A patch is kept inside its event, so that a fold needs nothing else."""
    wrapped, blob = log.wrap(data)
    if blob is not None:
        raise InvalidInput(
            f"a patch may take up to {log.SPILL_BYTES:,} bytes; this one takes {len(blob.data):,}"
        )
    return wrapped


def _operations(changes: Mapping[str, Any], delete: Sequence[str] = ()) -> e.Value:
    """Changes of state as a patch keeps them."""
    if isinstance(delete, str) or not isinstance(delete, Sequence):
        raise InvalidInput(f"delete takes a list of keys, as delete=['draft'], not {delete!r}")
    for key, value in changes.items():
        try:
            values.encode(value)
        except NotStorable as error:
            raise error.of(f"state.{key}") from None
    ops = [{"op": "set", "key": key, "value": value} for key, value in changes.items()]
    ops += [{"op": "delete", "key": key} for key in delete]
    return _small(values.encode(ops))


def pause(store: Store, run_id: str, *, by: str = "", why: str = "") -> None:
    """Stop the run at its next call, until somebody resumes it."""

    def decide(_: RunState, row: RunRow) -> Act:
        _refuse_ended(row, "a pause")
        if row.status == "paused":
            raise NotNow(f"run {run_id!r} is paused already")
        live = row.is_live(store.now())
        change = None if live else RowChange("paused", None, "somebody to resume it")
        return Act([e.RunPaused(by=by, why=why)], change)

    act(store, run_id, decide)


def reopen(store: Store, run_id: str, *, by: str = "", why: str = "") -> None:
    """Let a failed, paused or quarantined run go on; one that waits is looked at again."""

    def decide(_: RunState, row: RunRow) -> Act:
        if row.status == "cancelled":
            anew = f"hf.rerun({run_id!r}) begins it anew with its state kept"
            raise NotResumable(run_id, "status", "it was cancelled", anew)
        if row.status == "failed" and _is_undone(_whole(store, run_id)):
            anew = f"hf.rerun({run_id!r}) begins it anew"
            raise NotResumable(run_id, "status", "what it did has been undone", anew)
        if row.status == "quarantined":
            _whole(store, run_id)  # it may have been set aside because of its log
        if row.status in ("failed", "paused", "quarantined"):
            now = store.now()
            return Act([e.RunReopened(by=by, why=why)], RowChange("pending", now))
        return Act()

    found = store.get(run_id)
    if found is not None and found.status in ("pending", "running", "waiting"):
        return  # it goes on by itself: its log, which may be long, need not be read for that
    for child in _failed_children(store, run_id):
        reopen(store, child, by=by, why=why)
    act(store, run_id, decide)


def _is_undone(state: RunState) -> bool:
    undoable = [c for c in state.calls if c.undoable and c.status == "done" and c.index >= 0]
    return bool(undoable) and all(c.undone for c in undoable)


def accept_new_steps(store: Store, run_id: str, *, by: str = "", why: str = "") -> None:
    """Let the code add calls among what the run has done: those are made, and what is recorded stays.

    What is recorded must still be asked for, in its order and with its arguments.
    """

    def decide(_: RunState, row: RunRow) -> Act:
        if row.is_live(store.now()):
            raise NotNow(f"run {run_id!r} is being executed by {row.owner}; pause it first")
        if row.status in ("completed", "cancelled"):
            raise NotNow(
                f"run {run_id!r} is {row.status}: it does not go on, so nothing can be added"
            )
        return Act([e.StepsAccepted(by=by, why=why)], WAKE if row.status == "waiting" else None)

    act(store, run_id, decide)


def _failed_children(store: Store, run_id: str) -> list[str]:
    """The child runs whose failure a failed run has failed by: they go on before it does."""
    row = store.get(run_id)
    if row is None or row.status != "failed":
        return []
    state = _whole(store, run_id)
    failed = {state.failure.step, *state.failure.also} if state.failure else set()
    children = [store.get(c.child) for c in state.calls if c.step in failed and c.child]
    return [child.id for child in children if child is not None and child.status == "failed"]


def rerun(store: Store, run_id: str, *, by: str = "", why: str = "") -> None:
    """Begin the run's code at its first line again, with its state kept: guards still hold."""

    def decide(state: RunState, row: RunRow) -> Act:
        if row.is_live(store.now()):
            raise NotNow(
                f"run {run_id!r} is being executed by {row.owner}; cancel or pause it first"
            )
        doubt = [c for c in state.calls if c.status in still_open.UNSETTLED and _acts(c)]
        if doubt:
            first = doubt[0]
            raise NotNow(
                f"run {run_id!r}: step {first.step}, {first.name}, may or may not have happened; settle "
                f"that first with hf.resolve({run_id!r}, {first.step}, …)"
            )
        return Act([e.RunRestarted(by=by, why=why)], RowChange("pending", store.now()))

    act(store, run_id, decide, what_is_open)


def _acts(call: Call) -> bool:
    return call.effect not in ("repeatable", "child", "transactional")


def cancel(store: Store, run_id: str, *, by: str = "", why: str = "") -> None:
    """End the run and its child runs, each at its next call. A call that is under way is not interrupted."""
    asked = e.CancelRequested(by=by, why=why)

    def decide(state: RunState, row: RunRow) -> Act:
        _refuse_ended(row, "a cancellation")
        if state.cancel_requested:
            return Act()
        if row.status in ("paused", "quarantined"):
            reopened = e.RunReopened(by=by, why="to cancel it")
            return Act([asked, reopened], RowChange("pending", store.now()))
        return Act([asked], WAKE)

    act(store, run_id, decide, lately)
    cancel_children(store, run_id, asked)  # after the run: a child that is created now looks at it


def undo(store: Store, run_id: str, *, by: str = "", why: str = "") -> None:
    """Take back what the run did, newest first. A worker with the agent's code does it."""

    def decide(state: RunState, row: RunRow) -> Act:
        if row.is_live(store.now()):
            raise NotNow(f"run {run_id!r} is being executed by {row.owner}; cancel it first")
        if not state.to_undo:
            end = "" if row.status in TERMINAL_STATUSES else f"; `holdfast cancel {run_id}` ends it"
            raise NotNow(
                f"run {run_id!r} has nothing to undo: no finished call of it says how (@tool(undo=…)), "
                f"or it is undone already{end}"
            )
        return Act([e.UndoRequested(by=by, why=why)], RowChange("pending", store.now()))

    act(store, run_id, decide, everything)


# ── forking ──────────────────────────────────────────────────────────────────────────────────


def fork(store: Store, run_id: str, step: int, new_id: str, state: Mapping[str, Any], *,
         by: str = "", why: str = "") -> None:  # fmt: skip
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
        raise NotNow(f"run {run_id!r}: step {step} is {last.status}; fork from a step that is over")
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
        if (c.branch, c.index) in finished and c.effect != "repeatable"
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
        new.insert(-1, e.StatePatched(changes=_operations(state), by=by, why=why or "forked"))
    _, sealed = log.seal(log.origin(new_id), new, epoch=0, time=store.now())
    _refuse_unreadable(sealed)
    needed = set().union(*map(e.artifacts, new))
    blobs = [Blob(name, read_artifact(store, run_id, name)) for name in sorted(needed)]
    run = NewRun(new_id, row.agent, row.input_digest, row.code_version)
    made, fresh = store.create(run, sealed, blobs=blobs, keys=received(new_id, enumerate(new)))
    if not fresh:
        raise InvalidInput(f"run {made.id!r} exists already; fork under another id")


def _resumed(kept: Sequence[Event]) -> list[Event]:
    """Failures after which the run was resumed, and the resumptions: they tell why a call that had
    failed was made again, and what the code had done in between."""
    found: list[Event] = []
    failed: e.RunFailed | None = None
    for event in kept:
        if isinstance(event, e.RunFailed):
            failed = event
        elif isinstance(event, e.RunReopened) and failed is not None:
            found += [failed, event]
            failed = None
    return found


def _renumbered(past: Sequence[tuple[int, Event]]) -> list[Event]:
    """Events as they follow the first one of a fork: what names another by its seq names it there."""
    now = {seq: number for number, (seq, _) in enumerate(past, start=1)}

    def renumber(event: Event) -> Event:
        if isinstance(event, e.WaitEnded) and event.source:
            return msgspec.structs.replace(event, source=now.get(event.source, 0))
        if isinstance(event, e.CallStarted) and event.approval is not None:
            return msgspec.structs.replace(event, approval=now.get(event.approval))
        return event

    return [renumber(event) for _, event in past]


def _waits_to_begin_again(kept: Sequence[Event], lineage: ForkAncestry) -> set[tuple[str, int]]:
    """Open waits that name the run: a fork begins them itself, under its own id. (Nobody would send it a
    signal whose name has the other run's id.) Those of one choice stay together."""
    ended = {(x.branch, x.index) for x in kept if isinstance(x, e.WaitEnded)}
    still_open = [
        x
        for x in kept
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
    calls that had not begun: a fork asks anew."""
    if isinstance(event, e.RunClaimed | e.RunSuspended | e.RunReopened | e.CancelRequested | e.RunPaused
                  | e.RunFailed | e.CallEvidence | e.RunCompleted | e.RunCancelled):  # fmt: skip
        return False
    if isinstance(
        event, e.CallStarted | e.CallSucceeded | e.CallFailed | e.CallDoubted | e.CallResolved
    ):
        return (event.branch, event.index) in finished
    if isinstance(event, e.WaitBegan | e.ApprovalDecided | e.AnswerGiven):
        place = (event.branch, event.index)
        return place in finished or (place not in gated and place not in asked_again)
    return True
