"""The promises, asked of a batch that has come to rest: logs, the ledger of effects, acknowledgements, replays.

What one log and the ledger can show is in `support/invariants.py`; here is what concerns whole trees of runs,
people, and executing a run's code again. Numbers are those of docs/guarantees.md.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from fuzz.lives import LEASE_SECONDS, NEVER_QUARANTINE, Stage, written
from fuzz.people import root_of, rows_of
from fuzz.programs import Program, family, has_word
from holdfast import Holdfast, Options
from holdfast.core import events as e
from holdfast.core.fold import fold
from holdfast.core.state import UNSETTLED, RunState
from holdfast.core.values import decode
from holdfast.store.base import TERMINAL_STATUSES, RunRow, Store
from support import invariants
from support.invariants import Evidence

SLACK_US = 50_000
"""An intent that was built before a cancellation was acknowledged may carry a time a moment later."""
STALL_US = 300_000
"""A process may stand still for so long between a look at the clock and the intent that it allows."""

EXPECTED_FAILURES = {
    "ProgramError",
    "CallFailed",
    "Rejected",
    "ExceptionGroup",
    "deadline",
    "budget",
    "RunFailed",
    "DeadlineExceeded",
    "BudgetExceeded",
    "RunCancelled",
    "Refused",
}
"""Why a program may fail: on purpose, because a person said no, or by its limits."""


_OWN = (invariants.undo_is_complete_and_in_reverse, invariants.one_terminal_event)
_INVARIANTS = [x for x in invariants.ALL if x not in _OWN]


def one_terminal_event(x: Evidence) -> None:
    """21, but a person may settle a doubt of a run that has ended."""
    own = [event for event in x.events if not isinstance(event, e.CallEvidence | e.CallResolved)]
    kinds = (e.RunCompleted, e.RunFailure, e.RunCancellation)
    ends = [i for i, event in enumerate(own) if isinstance(event, kinds)]
    reopened = (e.RunReopened, e.RunRestarted, e.UndoRequested)
    if ends and not any(isinstance(event, reopened) for event in x.events):
        assert ends == [len(own) - 1], f"the run ended at events {ends} of {len(own)}"


def branches_are_in_order(x: Evidence) -> None:
    """3, 12: what a branch did and noted is in the log in the order of its code. So nothing is durable without
    what it rests on, wherever the log is cut."""
    begun: dict[str, tuple[int, int]] = {}
    for record, event in zip(x.records, x.events, strict=True):
        if isinstance(event, e.Noted):
            index, seq = begun.get(event.branch, (-1, 0))
            assert event.after > index, (
                f"event {record.seq} ({event.kind} before call {event.after} of branch {event.branch!r}) is "
                f"after event {seq}, which rests on it"
            )
        elif isinstance(event, e.CallStarted | e.CallSucceeded | e.CallFailure | e.WaitBegan):
            index, seq = begun.get(event.branch, (-1, 0))
            first = event.index > index
            if first:
                begun[event.branch] = event.index, record.seq
            elif event.index < index and not isinstance(event, e.WaitBegan):
                assert _is_known(x, event, record.seq), (
                    f"event {record.seq} ({event.kind}, call {event.index} of branch {event.branch!r}) is after "
                    f"event {seq}, which rests on it"
                )


def calls_have_ended(x: Evidence) -> None:
    """12: a branch begins nothing before the call that it made before is answered or given up, in the log."""
    under_way: dict[str, tuple[int, int]] = {}
    for record, event in zip(x.records, x.events, strict=True):
        if isinstance(event, e.CallStarted | e.WaitBegan):
            index, seq = under_way.get(event.branch, (event.index, 0))
            assert event.index <= index, (
                f"event {record.seq} ({event.kind}, call {event.index} of branch {event.branch!r}) begins although call "
                f"{index}, event {seq}, has not ended"
            )
        if isinstance(event, e.CallStarted):
            under_way[event.branch] = event.index, record.seq
        elif (
            isinstance(event, e.CallSucceeded | e.CallFailure | e.CallResolved)
            and under_way.get(event.branch, (-1, 0))[0] == event.index
        ):
            del under_way[event.branch]


def _is_known(x: Evidence, event: Any, seq: int) -> bool:
    """Whether this call is in the log before: a later attempt, or the receipt of one that the code stopped waiting for."""
    place = (event.branch, event.index)
    earlier = (y for y in x.events[:seq] if isinstance(y, e.CallStarted))
    return any((y.branch, y.index) == place for y in earlier)


def decisions_hold(x: Evidence) -> None:
    """1: a decision about a call in doubt holds: the call is tried again only if the decision says so, and only then the
    person is asked again. A person who resumes a failed run, or restarts it, has made a new decision."""
    decided: dict[tuple[str, int], tuple[int, str]] = {}
    for record, event in zip(x.records, x.events, strict=True):
        if isinstance(event, e.RunReopened | e.RunRestarted):
            decided.clear()
        if not isinstance(event, e.CallResolved | e.CallStarted | e.CallDoubted):
            continue
        place = (event.branch, event.index)
        if isinstance(event, e.CallResolved) and event.by not in ("check", "policy"):
            decided[place] = record.seq, event.how
            continue
        seq, how = decided.get(place, (0, ""))
        if isinstance(event, e.CallStarted) and how in ("", "retry"):
            decided.pop(place, None)
            continue
        assert not how, f"event {record.seq} ({event.kind}) ignores what event {seq} has settled"


def undone_in_reverse(x: Evidence) -> None:
    """19: if a run has ended and anything was undone, everything undoable was, newest first. (Of a child run that
    failed, too: it may have done much before.)"""
    undone = [
        i.undoes for i in x.events if isinstance(i, e.CallStarted) and i.undoes and i.attempt == 1
    ]
    if not undone or x.state.status not in TERMINAL_STATUSES:
        return
    wanted = {c.step for c in x.state.calls if c.undoable and c.status == "done"}
    children = {c.step for c in x.state.calls if c.undoable and c.child}
    assert undone == sorted(undone, reverse=True), f"undone in the order {undone}"
    failed = any(c.undoes and c.status == "failed" for c in x.state.calls)
    assert failed or wanted <= set(undone), f"{undone} were undone, not all of {wanted}"
    assert set(undone) <= wanted | children, f"{undone} were undone, not only {wanted | children}"


CLAIMED_MAX = 10
"""So often in a row a run may be claimed only to find that it is waiting for the same people."""


def suspended_runs_rest(x: Evidence) -> None:
    """20: a run that is waiting for people is not claimed again and again: they could not decide about it."""
    waits, claims = None, 0
    for record, event in zip(x.records, x.events, strict=True):
        if isinstance(event, e.RunClaimed):
            continue
        is_waiting = isinstance(event, e.RunSuspended) and event.wake_at is None
        if not is_waiting or event.waits != waits:
            claims = 0
        waits, claims = event.waits if is_waiting else None, claims + 1
        assert claims <= CLAIMED_MAX, f"claimed {claims} times for nothing, by event {record.seq}"


def all_has_ended(x: Evidence) -> None:
    """21: a run that completes has come to the end of everything that it began: all tasks of its code are part of it."""
    if x.state.status != "completed":
        return
    end = max(r.seq for r, event in zip(x.records, x.events, strict=True) if _completes(event))
    before = fold(RunState(), x.records[:end])
    waits = [wait for wait in before.waits if not wait.decided]
    calls = [call for call in before.calls if call.status in UNSETTLED]
    assert not waits, f"it completed while it was waiting for {waits[0].wait} {waits[0].name!r}"
    assert not calls, f"it completed while step {calls[0].step}, {calls[0].name}, had not ended"


def _completes(event: Any) -> bool:
    return isinstance(event, e.RunCompleted)


def somebody_cancelled_it(x: Evidence) -> None:
    """18, 19: only a person, or a run above, can cancel a run or have it undone; a failure stays a failure."""
    asked = any(isinstance(event, e.CancelRequested | e.UndoRequested) for event in x.events)
    ended = [event for event in x.events if isinstance(event, e.RunCancellation)]
    assert asked or not ended, f"nobody has cancelled it, and it ended with {ended[-1]}"


def waits_are_open(x: Evidence) -> None:
    """20: code that awaits is suspended only if nothing that it waits for has come: it would have been in memory. A run
    that is being undone waits for its child runs, whatever its code was waiting for."""
    is_undone = False
    began: set[tuple[str, int]] = set()
    decided: dict[tuple[str, int], int] = {}
    for record, event in zip(x.records, x.events, strict=True):
        if isinstance(event, e.WaitBegan):
            began.add((event.branch, event.index))
        elif isinstance(event, e.ApprovalDecided | e.AnswerGiven):
            decided[event.branch, event.index] = record.seq
        elif isinstance(event, e.WaitEnded | e.CallStarted | e.CallSucceeded | e.CallFailure):
            began.discard((event.branch, event.index))
            is_undone = is_undone or (isinstance(event, e.CallStarted) and bool(event.undoes))
        elif isinstance(event, e.RunReopened | e.RunRestarted):
            is_undone = False
        elif isinstance(event, e.RunSuspended) and _waits_for_people(event) and not is_undone:
            come = [decided[place] for place in began if place in decided]
            assert not come, f"event {record.seq} suspends it although event {come[0]} had come"


def _waits_for_people(event: e.RunSuspended) -> bool:
    """And not because it was paused, or must end, or cannot continue."""
    return {wait.kind for wait in event.waits} <= {"approval", "answer", "signal", "timer", "child"}


OWN = (
    all_has_ended,
    somebody_cancelled_it,
    undone_in_reverse,
    one_terminal_event,
    branches_are_in_order,
    calls_have_ended,
    decisions_hold,
    suspended_runs_rest,
)


class Violation(NamedTuple):
    kind: str
    run: str
    text: str


class Judge:
    """Everything that is known of a batch, and what is wrong with it."""

    def __init__(self, stage: Stage, hf: Holdfast) -> None:
        self.stage, self.hf, self.store = stage, hf, hf.store
        self.rows = {row.id: row for row in rows_of(self.store, stage.since, stage.prefix)}
        self.effects = _by_request(stage.world.effects())
        self.acks = stage.world.acks()
        self.evidence: dict[str, Evidence] = {}

    def look(self) -> Iterator[Violation]:
        """What can be found without executing anything."""
        for finding in self.stage.world.findings():
            yield Violation(finding["kind"], finding["run"], finding["text"])
        whose = self._whose_effects()
        for run_id in self.rows:
            self.evidence[run_id] = Evidence(self.store, run_id, whose[run_id])
        yield from self._stray_effects(whose)
        for run_id, x in self.evidence.items():
            yield from self._invariants(run_id, x)
            yield from self._end(self.rows[run_id], x)
        yield from self._transactions()
        yield from self._acknowledged()
        yield from self._families()

    # ── effects ──────────────────────────────────────────────────────────────────────────

    def _whose_effects(self) -> dict[str, list[dict[str, Any]]]:
        """Effects by run: a call has its place in the program among its arguments, so it is unique."""
        known: dict[tuple[str, str], str] = {}
        for run_id in self.rows:
            for _, event in self.hf.events(run_id):
                if isinstance(event, e.CallStarted):
                    known[event.name, _place(decode(event.args.json))] = run_id
        found: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for effect in self.effects:
            place = _place(effect["args"])
            whose = known.get((effect["tool"].removeprefix("undo "), place), "")
            found[whose].append({**effect, "run": whose})
        for run_id in self.rows:
            found[run_id] += self._undone_children(run_id)
        return found

    def _undone_children(self, run_id: str) -> list[dict[str, Any]]:
        """Undoing a child run is a call whose effects are the child's."""
        return [
            {"run": run_id, "tool": event.name, "key": "", "bodies": [], "requests": 0}
            for _, event in self.hf.events(run_id)
            if isinstance(event, e.CallStarted)
            and event.undoes
            and "child_id" in decode(event.args.json)
        ]

    def _stray_effects(self, whose: dict[str, list[dict[str, Any]]]) -> Iterator[Violation]:
        for effect in whose[""]:
            yield Violation("effect without intent", root_of(_place(effect["args"])), str(effect))

    def _transactions(self) -> Iterator[Violation]:
        """6: what a transactional tool has written is there if and only if its receipt is."""
        rows = Counter(
            place for place, _ in written(self.stage) if place.startswith(self.stage.prefix)
        )
        done: Counter[str] = Counter()
        for x in self.evidence.values():
            for call in x.state.calls:
                if (
                    call.effect == "transactional"
                    and call.status == "done"
                    and call.args is not None
                ):
                    done[_place(decode(call.args.json))] += 1
        for place in {*rows, *done}:
            if rows[place] != done[place]:
                text = f"{place}: {rows[place]} rows and {done[place]} receipts"
                yield Violation("transaction", root_of(place).partition("@")[0], text)

    # ── logs ─────────────────────────────────────────────────────────────────────────────

    def _invariants(self, run_id: str, x: Evidence) -> Iterator[Violation]:
        awaits = self._program(self.rows[run_id].agent)["kind"] in ("async", "async_loop")
        for invariant in (*_INVARIANTS, *OWN, *([waits_are_open] if awaits else ())):
            try:
                invariant(x)
            except AssertionError as broken:
                yield Violation(invariant.__name__, run_id, str(broken))
        if self.hf.get(run_id, brief=True).seq != x.state.seq:
            yield Violation(
                "snapshot", run_id, "the state from the snapshot is not that of the log"
            )

    def _end(self, row: RunRow, x: Evidence) -> Iterator[Violation]:
        if row.status not in TERMINAL_STATUSES:
            return  # reported as stuck, diverged or quarantined
        if row.owner:
            yield Violation("lease after the end", row.id, f"{row.owner} still owns it")
        last = next(
            (event for event in reversed(x.events) if isinstance(event, e.RunFailure)), None
        )
        if row.status == "failed" and last is not None and last.error.type not in EXPECTED_FAILURES:
            yield Violation(
                "unexpected failure", row.id, f"{last.error.type}: {last.error.message}"
            )
        if x.state.in_doubt and row.status == "completed":
            yield Violation("in doubt at the end", row.id, str(x.state.in_doubt[0].name))

    # ── people ───────────────────────────────────────────────────────────────────────────

    def _acknowledged(self) -> Iterator[Violation]:
        """1: what a person was told is in the log, once; 16: a signal is used at most once (an invariant)."""
        tokens = {
            run_id: Counter(
                getattr(event, "by", "") for event in x.events if getattr(event, "by", "")
            )
            for run_id, x in self.evidence.items()
        }
        for ack in self.acks:
            if ack["act"] in ("resume", "cancel"):  # these say nothing new if it is so already
                continue
            found = tokens.get(ack["run"], Counter())[ack["token"]]
            if found != 1:
                yield Violation("acknowledged", ack["run"], f"{ack}: {found} events in the log")

    # ── trees ────────────────────────────────────────────────────────────────────────────

    def _families(self) -> Iterator[Violation]:
        for run_id, x in self.evidence.items():
            ancestors = list(self._ancestors(run_id))
            yield from self._after_cancel(run_id, x, ancestors)
            yield from self._after_deadline(run_id, x, ancestors)
            yield from self._gated(run_id, x, ancestors)
        for run_id, x in self.evidence.items():
            yield from self._over_budget(run_id, x)

    def _ancestors(self, run_id: str) -> Iterator[str]:
        while parent := self.rows[run_id].parent:
            yield parent
            run_id = parent

    def _after_cancel(
        self, run_id: str, x: Evidence, ancestors: Sequence[str]
    ) -> Iterator[Violation]:
        """18, of a whole tree: no call begins after the cancellation of any ancestor was acknowledged."""
        acks = [
            ack
            for ack in self.acks
            if ack["act"] == "cancel" and ack["run"] in (run_id, *ancestors)
        ]
        if not acks:
            return
        cancelled_at = min(ack["at"] for ack in acks)
        for record, event in zip(x.records, x.events, strict=True):
            late = record.time > cancelled_at + SLACK_US
            if isinstance(event, e.CallStarted) and late and not event.undoes:
                ms = (record.time - cancelled_at) / 1000
                text = f"{event.name} (event {record.seq}) began {ms:.0f} ms after a cancellation was acknowledged"
                yield Violation("call after cancel", run_id, text)
                return

    def _after_deadline(
        self, run_id: str, x: Evidence, ancestors: Sequence[str]
    ) -> Iterator[Violation]:
        """18: no call begins after the deadline of any ancestor."""
        ends = [
            created.deadline_at
            for one in (run_id, *ancestors)
            if isinstance(created := self.evidence[one].events[0], e.RunCreated)
        ]
        deadline = min((end for end in ends if end is not None), default=None)
        for record, event in zip(x.records, x.events, strict=True):
            late = deadline is not None and record.time > deadline + STALL_US
            if isinstance(event, e.CallStarted) and late and not event.undoes:
                text = f"{event.name} (event {record.seq}) began after the deadline of {[run_id, *ancestors]}"
                yield Violation("call after deadline", run_id, text)
                return

    def _gated(self, run_id: str, x: Evidence, ancestors: Sequence[str]) -> Iterator[Violation]:
        """15, of a whole tree: a risk that needs approval in a run needs it in its children."""
        names = [self.rows[one].agent for one in (run_id, *ancestors)]
        risks = {risk for name in names for risk in self._options(name).get("approve", ())}
        for record, event in zip(x.records, x.events, strict=True):
            if not isinstance(event, e.CallStarted) or event.attempt > 1 or event.undoes:
                continue
            if event.risk in risks and event.approval is None:
                yield Violation(
                    "approval skipped", run_id, f"{event.name} (event {record.seq}) had none"
                )
                return

    def _options(self, agent: str) -> dict[str, Any]:
        return self._program(agent)["options"]

    def _program(self, agent: str) -> Program:
        all_of_them = (one for program in self.stage.programs.values() for one in family(program))
        return next(one for one in all_of_them if one["name"] == agent)

    def _over_budget(self, run_id: str, x: Evidence) -> Iterator[Violation]:
        """The steps of a run and its descendants are within its budget. (Branches that begin at the same time
        may each begin one call; a child call may count or not.)"""
        most = self._options(self.rows[run_id].agent).get("max_steps")
        if most is None:
            return
        below = [one for one in self.evidence if one.startswith(f"{run_id}~")]
        calls = [
            c
            for one in (run_id, *below)
            for c in self.evidence[one].state.calls
            if c.branch != "undo"
        ]
        branches = {(c.branch) for c in calls}
        steps = sum(c.effect != "child" for c in calls)
        if steps > most + len(branches) - 1:
            yield Violation("over budget", run_id, f"{steps} steps in its tree, {most} are allowed")

    # ── executing again ──────────────────────────────────────────────────────────────────

    def replay(self, row: RunRow) -> Violation | None:
        """14: the code agrees with the whole log, and comes to the same result."""
        found = self.hf.replay(row.id)
        if found.diverged is not None:
            return Violation("replay diverged", row.id, str(found.diverged))
        if row.status != "completed":
            return None
        if not found.reached_end:
            if has_word(self._program(row.agent)["body"], ("timeout",)):
                return None  # a limit of time in the code is not waited for again by a mere replay
            return Violation("replay stopped", row.id, f"after {found.steps} steps")
        recorded = self.hf.result(row.id)
        if _comparable(found.result) != _comparable(recorded):
            return Violation("replay differs", row.id, f"{found.result!r} instead of {recorded!r}")
        return None


def _place(args: Any) -> str:
    return str(args.get("at", "")) if isinstance(args, dict) else ""


def _comparable(result: Any) -> Any:
    """A loop's last state is stamped with times when it is recorded."""
    return result.answer if hasattr(result, "answer") else result


def _by_request(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The ledger as `support.invariants` reads it: one effect for each key, or for each request without one."""
    found: dict[str, dict[str, Any]] = {}
    for line in lines:
        name = json.dumps([line["tool"], line["key"], line["args"] if not line["key"] else ""])
        known = found.get(name)
        if known is None:
            found[name] = {**line, "requests": 1, "bodies": [line["args"]]}
        else:
            known["requests"] += 1
            known["bodies"].append(line["args"])
    return list(found.values())


def judge(stage: Stage, skip: Sequence[str], write: int) -> None:
    """The life of a checking process: a line of JSON for each violation, and before each replay, whose it is."""
    options = Options(lease_seconds=LEASE_SECONDS, quarantine_after=NEVER_QUARANTINE)

    def say(**what: Any) -> None:
        os.write(write, json.dumps(what).encode() + b"\n")

    with Holdfast(stage.url, agents=stage.cast.all, options=options) as hf:
        court = Judge(stage, hf)
        if not skip:
            for found in court.look():
                say(violation=found)
            say(events=sum(len(x.events) for x in court.evidence.values()), runs=len(court.rows))
        for row in court.rows.values():
            if row.status in TERMINAL_STATUSES and row.id not in skip:
                say(replaying=row.id)
                violation = court.replay(row)
                if violation is not None:
                    say(violation=violation)
        say(over=True)


def log_of(store: Store, run_id: str) -> str:
    """A run's log, for people."""
    lines = [
        f"{r.seq:4} e{r.epoch} {r.time % 10**9 / 1000:10.1f}ms {r.kind} {r.data.decode()}"
        for r in store.read(run_id)
    ]
    return "\n".join([str(store.get(run_id)), *lines])


__all__ = ["Judge", "Violation", "judge", "log_of"]
