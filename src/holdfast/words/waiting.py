"""What a run is waiting for in words, and the calls with which it continues; errors that say both.

Advice is Python that works as printed. What the reader must fill in is written in capitals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, Protocol

from holdfast.core.entry import request_id
from holdfast.errors import Diverged, NotResumable, RunBusy, RunWaiting, Suspend
from holdfast.waiting import WaitingFor

BY_ITSELF = "a worker resumes it when it is due"
DECIDED_BY_PEOPLE: Final = ("approval", "answer")


class OpenRequest(Protocol):
    """What is known of a request to people: an event `WaitBegan`, or a `Waiting` of a state."""

    @property
    def wait(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def branch(self) -> str: ...
    @property
    def index(self) -> int: ...


def phrase(x: WaitingFor) -> str:
    """What it is, after "waiting for"."""
    match x.kind:
        case "approval":
            return f"approval of {x.tool}" if x.tool else f"approval: {x.name}"
        case "answer":
            return f"an answer: {x.name}"
        case "signal":
            return "the signal " + " or ".join(map(repr, x.names or (x.name,)))
        case "timer":
            return "a timer"
        case "retry":
            return f"the next attempt of {x.name}"
        case "rate":
            return f"a permit to call {x.name} ({x.reason})"
        case "room":
            return f"a free slot of {x.name} ({x.limit} may run at once)"
        case "child":
            below = f", which is waiting for {phrases(x.child)}" if x.child else ""
            return f"child run {x.run_id}{below}"
        case "decision":
            because = f" ({x.reason})" if x.reason else ""
            return f"a decision about step {x.step}, {x.name}, which may or may not have happened{because}"
        case "key":
            return f"run {x.run_id} to finish {x.name} under the key {x.reason!r}"
        case "resume":
            return "a person to resume it"
        case "quarantine" | "override" | "person":
            return f"a person: {x.reason}"
        case "code":
            return f"its code: it diverged at {x.reason}"
        case "owner":
            return f"{x.name}, which is executing it"
        case "worker":
            known = f" that knows agent {x.name}" if x.name else ""
            return f"a worker{known}" + (f": {x.reason}" if x.reason else "")
        case _:
            return x.name


def phrases(waits: Sequence[WaitingFor]) -> str:
    """Several things of which the first to come counts."""
    return " or ".join(phrase(x) for x in waits)


def calls(run_id: str, x: WaitingFor, *, several: bool = False) -> list[str]:
    """The Python calls with which the run continues; `several` requests of a kind are distinguished by their ids."""
    run = repr(run_id)
    which = f", {x.request_id!r}" if several and x.request_id else ""
    if x.how:
        return [x.how]
    match x.kind:
        case "approval":
            return [f"hf.approve({run}{which})", f"hf.reject({run}{which})"]
        case "answer":
            return [f"hf.answer({run}, {repr(x.options[0]) if x.options else 'VALUE'}{which})"]
        case "signal":
            return [f"hf.signal({run}, {(x.names or (x.name,))[0]!r})"]
        case "decision":
            start = f"hf.resolve({run}, {x.step}"
            return [f"{start}, {how})" for how in ("done=RESULT", "failed='WHY'", "retry=True")]
        case "child":
            return [call for below in x.child for call in calls(x.run_id, below, several=several)]
        case "key":
            return [f"hf.get({x.run_id!r})", f"hf.resume({run})"]
        case "resume" | "quarantine" | "person":
            return [f"hf.resume({run})"]
        case "code":
            return [f"hf.resume({run})", f"hf.rerun({run})"]
        case _:
            return []


def ambiguous(requests: Sequence[OpenRequest]) -> set[str]:
    """The kinds of which several requests are open: a decision about one of those must name it."""
    counts = Counter(request.wait for request in requests)
    return {kind for kind in DECIDED_BY_PEOPLE if counts[kind] > 1}


def decision_calls(run_id: str, requests: Sequence[OpenRequest]) -> list[str]:
    """For each request the calls that decide it, with its id where several of its kind are open."""
    named = ambiguous(requests)
    found = []
    for request in requests:
        if request.wait in DECIDED_BY_PEOPLE:
            place = request_id((request.branch, request.index))
            wanted = WaitingFor(request.wait, request.name, request_id=place)
            decide = calls(run_id, wanted, several=request.wait in named)
            found.append(f"{' or '.join(decide)}   # {request.name}")
    return found


def how_to_continue(run_id: str, waits: Sequence[WaitingFor], *, several: bool = False) -> str:
    """All ways on, in one line."""
    found = [call for x in waits for call in calls(run_id, x, several=several)]
    said = ", or ".join(dict.fromkeys(found))
    if any(x.kind == "decision" for x in waits):
        return f"find out, then {said}"
    return said or BY_ITSELF


def suspended(run_id: str, *waits: WaitingFor, wake_at: int | None = None) -> Suspend:
    """The signal that suspends a run until one of these comes."""
    how = how_to_continue(run_id, waits, several=len(waits) > 1)
    return Suspend(phrases(waits), how, wake_at=wake_at, waits=waits)


def run_waiting(run_id: str, *waits: WaitingFor, several: bool = False) -> RunWaiting:
    """The error for a run that cannot continue here and now."""
    how = how_to_continue(run_id, waits, several=several)
    return RunWaiting(run_id, phrases(waits), how, waits=waits)


def waiting_for_code(diverged: Diverged) -> WaitingFor:
    """What a run is waiting for whose code has diverged."""
    place = "" if diverged.place is None else request_id(diverged.place)
    return WaitingFor("code", request_id=place, reason=diverged.where)


def waiting_for_override(refused: NotResumable) -> WaitingFor:
    """What a run is waiting for that a check refuses."""
    how = ", or ".join(remedy.call for remedy in refused.remedies)
    return WaitingFor("override", refused.check, reason=refused.reason, how=how)


def run_busy(run_id: str, owner: str, how: str) -> RunBusy:
    """The error for a run that another worker is executing."""
    waits = (WaitingFor("owner", owner),)
    return RunBusy(run_id, phrases(waits), how, waits=waits)
