"""The promise, as functions over a run's log, the ledger of effects, and what callers were told.

Numbers are those of the list of guarantees. Each function takes an `Evidence` and asserts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from holdfast import views
from holdfast.core import events as e
from holdfast.core import log, values
from holdfast.core.events import Value
from holdfast.core.fold import fold
from holdfast.core.state import UNSETTLED, RunState
from holdfast.core.values import decode
from holdfast.store.base import Store
from holdfast.store.pages import open_tail


@dataclass
class Evidence:
    """Everything there is to know of one run after everyone has done their worst."""

    store: Store
    run_id: str
    effects: list[dict[str, Any]]
    acks: list[tuple[int, str]] = field(default_factory=list)
    earlier_logs: list[list[bytes]] = field(default_factory=list)
    kinds: dict[str, str] = field(default_factory=dict)
    """Effect class by tool name."""

    def __post_init__(self) -> None:
        self.records = self.store.read(self.run_id)
        self.events = [log.read_event(self.run_id, r) for r in self.records]
        self.state = fold(RunState(), self.records)
        self.own_effects = [x for x in self.effects if x["run"] == self.run_id]


def log_is_gap_free_and_chained(x: Evidence) -> None:
    """2: seq is 0..n, hash-chained; any log read earlier is a prefix of this one."""
    assert [r.seq for r in x.records] == list(range(len(x.records)))
    assert views.verify(x.store, x.run_id).ok
    now = [r.hash for r in x.records]
    for earlier in x.earlier_logs:
        assert now[: len(earlier)] == earlier


def acknowledged_is_durable(x: Evidence) -> None:
    """1: whatever a caller was told is in the log."""
    for seq, digest in x.acks:
        assert x.records[seq].hash.hex() == digest, f"acknowledged event {seq} is missing"


def intent_comes_first(x: Evidence) -> None:
    """3: every effect has an intent with equal key, tool and arguments."""
    intents = [i for i in x.events if isinstance(i, e.CallStarted)]
    for effect in x.own_effects:
        if x.kinds.get(effect["tool"]) == "repeatable":
            continue
        assert any(is_of(effect, i.name, i.key, i.args) for i in intents), (
            f"no such intent: {effect}"
        )


def is_of(effect: dict[str, Any], tool: str, key: str, args: Value | None) -> bool:
    """Whether the ledger's effect is that of this call. A tool without a key is known by its bytes."""
    assert args is not None
    same = all(
        decode(args.json) == body or effect["tool"].startswith("undo") for body in effect["bodies"]
    )
    return effect["tool"] == tool and effect["key"] in ("", key) and same


def once_happens_once(x: Evidence) -> None:
    """4: executions of an at-most-once call ≤ 1 + explicit decisions to retry."""
    for step, calls in _by_step(x, "once").items():
        decisions = sum(
            isinstance(r, e.CallResolved) and r.step == step and r.how == "retry" for r in x.events
        )
        failures = sum(isinstance(f, e.CallFailure) and f.step == step for f in x.events)
        first = calls[0]
        happened = sum(
            f["requests"] for f in x.own_effects if is_of(f, first.name, first.key, first.args)
        )
        assert happened <= 1 + decisions + failures, f"step {step} happened {happened} times"


def keyed_has_one_effect(x: Evidence) -> None:
    """5: one key, identical bytes, at most one effect; another call has another key."""
    keys = [calls[0].key for calls in _by_step(x, "keyed").values()]
    assert len(keys) == len(set(keys)), f"two calls share a key: {keys}"
    for calls in _by_step(x, "keyed").values():
        assert len({c.key for c in calls}) == 1
        assert len({bytes(c.args.json) for c in calls}) == 1
        happened = [f for f in x.own_effects if f["key"] == calls[0].key]
        assert len(happened) <= 1, f"{calls[0].name} happened {len(happened)} times"


def _by_step(x: Evidence, effect: str) -> dict[int, list[e.CallStarted]]:
    found: dict[int, list[e.CallStarted]] = {}
    for event in x.events:
        if isinstance(event, e.CallStarted) and event.effect == effect:
            found.setdefault(event.step, []).append(event)
    return found


def no_false_certainty(x: Evidence) -> None:
    """7: done ⇒ it happened; failed without effect ⇒ it did not."""
    for call in x.state.calls:
        if call.effect in ("once", "keyed", "checked"):
            happened = any(is_of(f, call.name, call.key, call.args) for f in x.own_effects)
            if call.status == "done":
                assert happened, f"{call.name} is recorded as done and never happened"
            if call.status == "failed" and call.error is not None and call.error.effect == "none":
                assert not happened, f"{call.name} is recorded as not done and happened"


def doubt_blocks(x: Evidence) -> None:
    """8: nothing of a branch follows a call in doubt before its resolution."""
    open_doubts: dict[tuple[str, int], int] = {}
    for record, event in zip(x.records, x.events, strict=True):
        place = (getattr(event, "branch", None), getattr(event, "index", None))
        if isinstance(event, e.CallDoubted):
            open_doubts[event.branch, event.index] = record.seq
        elif isinstance(event, e.CallResolved):
            open_doubts.pop((event.branch, event.index), None)
        elif isinstance(event, e.CallStarted | e.CallSucceeded | e.CallFailure):
            assert place not in open_doubts, "a call in doubt continued without a resolution"
            assert not any(b == event.branch and event.index > i for b, i in open_doubts), (
                "a later call ran"
            )


def one_receipt_each(x: Evidence) -> None:
    """9: one receipt per call and attempt."""
    seen = set()
    for event in x.events:
        if isinstance(event, e.CallSucceeded | e.CallFailure):
            name = (event.branch, event.index, event.attempt, x.state.restarts)
            assert name not in seen, f"two receipts for {name}"
            seen.add(name)


def epochs_never_fall(x: Evidence) -> None:
    """10: epochs along the log never fall."""
    epochs = [r.epoch for r in x.records]
    assert epochs == sorted(epochs), epochs


def fold_of_any_split_agrees(x: Evidence) -> None:
    """11: state(all) = state(prefix, then tail), for every prefix."""
    for i in range(0, len(x.records), max(1, len(x.records) // 7)):
        assert fold(fold(RunState(), x.records[:i]), x.records[i:]) == x.state


def what_is_open_is_found_from_the_end(x: Evidence) -> None:
    """11: the end of the log gives the same requests and doubts as all of it, when a run is suspended
    and now and then."""
    count = len(x.records)
    moments = {count, *range(1, count, max(1, count // 7))}
    moments |= {r.seq + 1 for r in x.records if r.kind == e.RunSuspended.kind}
    for length in moments:
        whole = x.records[:length]
        end = open_tail(x.run_id, reversed(whole))
        assert _open(fold(RunState(id=x.run_id), end)) == _open(fold(RunState(), whole))


def _open(state: RunState) -> tuple[list[Any], list[Any]]:
    waits = [wait for wait in state.waits if not wait.decided]
    calls = [c for c in state.calls if c.status in UNSETTLED and c.index >= 0]
    return waits, [(c.id, c.step, c.name, c.effect, c.status) for c in calls]


def approvals_are_bound(x: Evidence) -> None:
    """15: a gated call has one approval of these very bytes, used once."""
    used: set[int] = set()
    gated = {(w.branch, w.index) for w in x.events if isinstance(w, e.WaitBegan) and w.tool}
    for record, event in zip(x.records, x.events, strict=True):
        if (
            isinstance(event, e.CallStarted)
            and (event.branch, event.index) in gated
            and event.attempt == 1
        ):
            assert event.approval is not None, "a gated call began without using its approval"
        if isinstance(event, e.CallStarted) and event.approval is not None:
            decision = x.events[event.approval]
            assert isinstance(decision, e.ApprovalDecided) and decision.approved
            if decision.args is None:
                assert decision.digest == event.digest
            else:  # these very bytes are those that the person gave
                given = values.canonical(views.value(x.store, x.run_id, decision.args))
                assert values.digest(given) == event.digest != decision.digest
            assert event.approval not in used and event.approval < record.seq
            used.add(event.approval)


def signals_arrive_once(x: Evidence) -> None:
    """16: each signal is taken at most once."""
    taken = [w.source for w in x.events if isinstance(w, e.WaitEnded) and w.source]
    assert len(taken) == len(set(taken))


def timers_are_not_early(x: Evidence) -> None:
    """17: no timer fires, and no attempt begins, before its time by the store's clock."""
    until: dict[tuple[str, int], int] = {}
    for record, event in zip(x.records, x.events, strict=True):
        if isinstance(event, e.WaitBegan) and event.wait == "timer" and event.until is not None:
            until[event.branch, event.index] = event.until
        elif isinstance(event, e.WaitEnded) and event.wait == "timer" and event.outcome == "time":
            assert record.time >= until[event.branch, event.index]
        elif isinstance(event, e.CallFailure) and event.retry_at is not None:
            until[event.branch, event.index] = event.retry_at
        elif isinstance(event, e.CallStarted) and (event.branch, event.index) in until:
            assert record.time >= until[event.branch, event.index]


def nothing_begins_after_cancel(x: Evidence) -> None:
    """18: no intent after a cancellation, undo excepted."""
    cancelled = False
    for event in x.events:
        cancelled = cancelled or isinstance(event, e.CancelRequested)
        if cancelled and isinstance(event, e.CallStarted):
            assert event.undoes, "a call began after the cancellation"


def undo_is_complete_and_in_reverse(x: Evidence) -> None:
    """19: if anything was undone, everything undoable was, newest first."""
    undone = [
        i.undoes for i in x.events if isinstance(i, e.CallStarted) and i.undoes and i.attempt == 1
    ]
    if undone:
        wanted = [c.step for c in x.state.calls if c.undoable and c.status == "done"]
        assert undone == sorted(undone, reverse=True)
        assert sorted(undone) == sorted(wanted)


def nothing_is_stranded(x: Evidence) -> None:
    """20: at rest the run has ended, waits for something recorded, or can be claimed."""
    row = x.store.get(x.run_id)
    assert row is not None
    ended = row.status in ("completed", "failed", "cancelled")
    assert ended or row.waiting_for or row.due_at is not None


def one_terminal_event(x: Evidence) -> None:
    """21: one terminal event, the last of the run's own. What a zombie knows may come later still."""
    own = [event for event in x.events if not isinstance(event, e.CallEvidence)]
    ends = [
        i
        for i, event in enumerate(own)
        if isinstance(event, e.RunCompleted | e.RunFailure | e.RunCancellation)
    ]
    reopened = any(
        isinstance(y, e.RunReopened | e.RunRestarted | e.UndoRequested) for y in x.events
    )
    if ends and not reopened:
        assert ends == [len(own) - 1]


ALL = (
    log_is_gap_free_and_chained,
    acknowledged_is_durable,
    intent_comes_first,
    once_happens_once,
    keyed_has_one_effect,
    no_false_certainty,
    doubt_blocks,
    one_receipt_each,
    epochs_never_fall,
    fold_of_any_split_agrees,
    what_is_open_is_found_from_the_end,
    approvals_are_bound,
    signals_arrive_once,
    timers_are_not_early,
    nothing_begins_after_cancel,
    undo_is_complete_and_in_reverse,
    nothing_is_stranded,
    one_terminal_event,
)


def check_all(evidence: Evidence) -> int:
    """Ask every invariant; how many were asked."""
    for invariant in ALL:
        try:
            invariant(evidence)
        except AssertionError as broken:
            story = "\n".join(
                f"  {r.seq:3} e{r.epoch} {r.kind} {r.data[:150]!r}" for r in evidence.records
            )
            raise AssertionError(
                f"{invariant.__name__}: {broken}\n{story}\neffects: {evidence.effects}"
            ) from None
    return len(ALL)
