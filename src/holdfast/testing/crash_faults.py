"""What is wrong with an agent whose run was crashed: an effect that happens again, a call that stays in doubt, code that
diverges. Each fault has the line, and the declaration that would help.

Not here: how a run is crashed (`crash.py`).
"""

from __future__ import annotations

import dis
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from holdfast.core.effect import Effect
from holdfast.core.state import RunState
from holdfast.runtime.declare.call_spec import CallSpec
from holdfast.runtime.declare.specs import spec_of
from holdfast.testing.sandbox import place_of
from holdfast.testing.scenario import ExecutionResult, ScenarioSetup
from holdfast.testing.step_matcher import Outcome, RecordedCall, shown

Check = Callable[[Outcome], str]
"""What is wrong with a run at rest, in words; empty if nothing is."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One problem that a crash would cause, described for people."""

    kind: str
    """repeats, in doubt, diverges, ends differently, differs, breaks, or (not a fault) look."""
    says: str
    where: str = ""
    declared: str = ""
    fix: str = ""
    killed: str = ""
    crashes: int = 1
    """How many of the crashes showed it."""

    @property
    def sort(self) -> tuple[str, str, str, str]:
        """What makes two observations the same fault."""
        says = "" if self.kind == "diverges" else self.says
        return (self.kind, says, self.where, self.declared)


def counted(number: int, what: str) -> str:
    """A number and a noun in the right form."""
    return f"{number} {what}" + ("" if number == 1 else "s")


def fault_lines(fault: Fault) -> list[str]:
    """A fault for people."""
    found = [f"{fault.kind.upper()}: {fault.says}"]
    labels = {
        "at": fault.where,
        "declared": fault.declared,
        "seen when killed": fault.killed,
        "remedy": fault.fix,
    }
    return [*found, *(f"  {label}: {text}" for label, text in labels.items() if text)]


@dataclass(slots=True)
class Inspection:
    """One performance, looked at afterwards."""

    outcome: Outcome
    did: list[dict[str, Any]]
    saw: list[dict[str, Any]]
    points: list[str]
    ends: list[ExecutionResult]
    doubts: list[dict[str, Any]]
    runs: list[RunState]
    killed: str = ""


def story(inspection: Inspection) -> Any:
    """What must come out the same however often the process dies."""
    outcome = inspection.outcome
    calls = sorted((c.name, shown(c.args), c.status) for c in outcome.calls)
    return (outcome.status, shown(outcome.result), shown(outcome.state), outcome.run.stage, calls)


def judged(
    setup: ScenarioSetup,
    inspection: Inspection,
    first: Inspection,
    check: Check,
    *,
    is_steady: bool,
) -> list[Fault]:
    """What one crash did, compared with the run's own log and with the undisturbed run."""
    found = [
        *diverged(inspection),
        *_doubted(setup, inspection, first),
        *_repeated_calls(inspection),
    ]
    found += _repeated_plainly(inspection, first) if is_steady else []
    if any(fault.kind in ("diverges", "repeats") for fault in found):
        return found  # what else is wrong may come of that
    then, now = first.outcome, inspection.outcome
    if now.status != then.status:
        why = now.error or now.waiting_for or inspection.ends[-1].message
        fix = "the code depends on something that is not recorded: store it in run.state, or read it in a @step"
        failed = now.run.call(now.run.failure.step) if now.run.failure else None
        if failed and len(failed.attempts) > sum(a.error is not None for a in failed.attempts):
            fix = "a crash uses up an attempt of the interrupted call: allow one more, Retry(attempts=…)"
        found.append(
            Fault(
                "ends differently",
                f"the run is {now.status} after a crash, and {then.status} without one: {why}",
                killed=inspection.killed,
                fix=fix,
            )
        )
        return found
    wrong = check(now)
    if wrong:
        found.append(Fault("breaks", f"after a crash, {wrong}", killed=inspection.killed))
    elif is_steady and story(inspection) != story(first):
        says = f"after a crash {_difference(inspection, first)}"
        fix = "something outside any step changed in between: read it in a @step, or keep it in run.state"
        is_race = _is_race(inspection, first)
        if is_race:
            fix = "fine if it may be cancelled or not; otherwise await it before anything that cancels it"
        kind = "look" if is_race else "differs"
        found.append(Fault(kind, says, killed=inspection.killed, fix=fix))
    return found


def _difference(inspection: Inspection, first: Inspection) -> str:
    now, then = inspection.outcome, first.outcome
    for what, a, b in (
        ("the output", now.result, then.result),
        ("the state", now.state, then.state),
        ("the stage", now.run.stage, then.run.stage),
    ):
        if shown(a) != shown(b):
            return f"{what} is {shown(a)} instead of {shown(b)}"
    return _different_calls(now, then)


def _different_calls(now: Outcome, then: Outcome) -> str:
    """The first call that is not the same, or all of them if that would not say it."""
    here, before = (Counter(map(_described, outcome.calls)) for outcome in (now, then))
    added, missing = sorted((here - before).elements()), sorted((before - here).elements())
    if len(added) != len(missing):
        return f"the calls are {now.named_calls()} instead of {then.named_calls()}"
    (call, status), (other, former) = added[0], missing[0]
    if call == other:
        return f"{call} is {status} instead of {former}"
    return f"{call} is called instead of {other}"


def _described(call: RecordedCall) -> tuple[str, str]:
    is_cancelled = call.status == "failed" and call.error_type == "Cancelled"
    return f"{call.name}({shown(call.args)})", "cancelled" if is_cancelled else call.status


def _is_race(inspection: Inspection, first: Inspection) -> bool:
    """Whether all that differs is which calls the agent's own code cancelled: it did not wait for them, so that any
    delay may decide whether they are done before that."""
    now, then = (Counter(map(_described, x.outcome.calls)) for x in (inspection, first))
    changed = [sorted((a - b).elements()) for a, b in ((now, then), (then, now))]
    same_calls = [call for call, _ in changed[0]] == [call for call, _ in changed[1]]
    races = all(
        "cancelled" in (a, b) for (_, a), (_, b) in zip(changed[0], changed[1], strict=False)
    )
    return same_calls and races and story(inspection)[:-1] == story(first)[:-1]


def diverged(inspection: Inspection) -> list[Fault]:
    return [
        Fault(
            "diverges",
            f"the code diverges: at {end.details['where']} the log has "
            f"{end.details['recorded']}, the code makes {end.details['attempted']}",
            where=end.details["at"],
            killed=inspection.killed,
            fix="time, randomness, the order of a set or something read outside a step decides here: use "
            "run.now(), run.random(), run.uuid() or sorted(…), or move it into a @step",
        )
        for end in inspection.ends
        if end.says == "Diverged"
    ]


def _doubted(setup: ScenarioSetup, inspection: Inspection, first: Inspection) -> list[Fault]:
    found = []
    for doubt in inspection.doubts:
        name = doubt["name"]
        if name in setup.may_doubt:
            continue
        bodies = [did for did in first.did if did["name"] == name and "error" not in did]
        body = bodies[min(doubt["nth"], len(bodies) - 1)] if bodies else {}
        found.append(
            Fault(
                "in doubt",
                f"{name} may or may not have happened: the run is suspended until a person decides",
                where=body.get("at", ""),
                declared=body.get("declared", ""),
                killed=inspection.killed,
                fix=f"give {name} a parameter `idempotency_key` and pass it to the receiver; or declare how to look it up, "
                "@tool(check=…); or use `tx` and write to the store's own database; or accept it: "
                f"`Given a person resolves doubts about {name}`",
            )
        )
    return found


_NOT_COUNTED: Final = (Effect.REPEATABLE, Effect.TRANSACTIONAL, "check", "plain", "outside")


def _repeated_calls(inspection: Inspection) -> list[Fault]:
    """Bodies of tools that were executed more often than the log has calls and recorded failures."""
    found = []
    for run in inspection.runs:
        mine = [d for d in inspection.did if d["run"] == run.id and d["effect"] not in _NOT_COUNTED]
        for name, last in {did["name"]: did for did in mine}.items():
            calls = [call for call in run.calls if call.name == name]
            bodies = [did for did in mine if did["name"] == name]
            failures = sum(a.error is not None for call in calls for a in call.attempts)
            if last["effect"] == Effect.KEYED:
                happened = len({did["key"] for did in bodies if "error" not in did})
                allowed = len(calls)
            else:
                happened, allowed = len(bodies), len(calls) + failures
            if happened > allowed and calls:
                found.append(_repeated(name, last, happened, allowed, inspection))
    return found


def _repeated(
    name: str, body: dict[str, Any], happened: int, allowed: int, inspection: Inspection
) -> Fault:
    effect = body["effect"]
    if effect == Effect.KEYED:
        says = f"{name} happens {happened} times for {counted(allowed, 'call')}, each with a different key"
        fix = "the key that the code passes changes between processes: leave it to Holdfast, or derive it from the input"
    elif effect == Effect.CHECKED:
        says = f"{name} happens again, because its check reports that it did not happen although it did"
        fix = "let the check look up the real effect, by its key"
    else:
        says = (
            f"{name} happens again after a crash ({happened} times for {counted(allowed, 'call')})"
        )
        fix = (
            f"on_doubt repeats it blindly: give {name} a parameter `idempotency_key`, or a check=…"
        )
    return Fault(
        "repeats",
        says,
        where=body["at"],
        declared=body["declared"],
        killed=inspection.killed,
        fix=fix,
    )


def _repeated_plainly(inspection: Inspection, first: Inspection) -> list[Fault]:
    """Mocked sync functions, and what step bodies and plain code were seen doing, more often than
    without a crash."""
    found = []
    now = Counter(
        (d["name"], d["at"], d["inside"], d["declared"])
        for d in inspection.did
        if d["effect"] == "plain"
    )
    then = Counter(
        (d["name"], d["at"], d["inside"], d["declared"])
        for d in first.did
        if d["effect"] == "plain"
    )
    for (name, place, inside, declared), count in (now - then).items():
        found.append(
            _undeclared(
                f"{name} is called",
                then[name, place, inside, declared] + count,
                inside,
                place,
                declared,
                inspection,
                sure=True,
            )
        )
    kinds = [(s["what"], s["detail"], s["at"], s["inside"], s["sure"]) for s in inspection.saw]
    before = Counter((s["what"], s["detail"], s["at"], s["inside"], s["sure"]) for s in first.saw)
    for (what, detail, place, inside, sure), count in (Counter(kinds) - before).items():
        times = before[what, detail, place, inside, sure] + count
        found.append(
            _undeclared(
                f"it {what} {detail}".rstrip(), times, inside, place, "", inspection, sure=sure
            )
        )
    return found


def _undeclared(
    does: str,
    times: int,
    inside: str,
    place: str,
    declared: str,
    inspection: Inspection,
    *,
    sure: bool,
) -> Fault:
    where = (
        f"in the body of {inside}, which is declared safe to repeat"
        if inside
        else "in the agent's code between calls, which runs again from its first line on every resume"
    )
    fix = (
        "make it a separate @tool, called from the agent: then it is recorded before it starts"
        if sure
        else "fine if repeating it changes nothing; otherwise make it a @tool, called from the agent"
    )
    return Fault(
        "repeats" if sure else "look",
        f"{does} {times} times, {where}",
        where=place,
        declared=declared,
        killed=inspection.killed,
        fix=fix,
    )


def static_faults(setup: ScenarioSetup, first: Inspection) -> list[Fault]:
    """Tools that take a key and do nothing with it: no receiver can honour a key that it is not given."""
    found = []
    specs = [spec_of(value) for value in setup.names.values()]
    used = {did["name"]: did for did in first.did}
    for spec in {id(s): s for s in specs if isinstance(s, CallSpec)}.values():
        if spec.name not in used or spec.effect != Effect.KEYED or not _ignores_key(spec.fn):
            continue
        found.append(
            Fault(
                "repeats",
                f"{spec.name} takes `idempotency_key` and does nothing with it, so that a call that is "
                "repeated after a crash is a second effect",
                where=used[spec.name]["at"],
                declared=place_of(spec.fn),
                fix="pass the key to the receiver (a header, a column that is unique), or leave the parameter out",
            )
        )
    return found


def _ignores_key(fn: Callable[..., Any]) -> bool:
    code = getattr(fn, "__code__", None)
    if code is None or "locals" in code.co_names:
        return False
    body = list(dis.get_instructions(code))
    ops = {instruction.opname for instruction in body} - _OF_A_COROUTINE
    is_sketch = not any(op.startswith("RETURN") for op in ops) or ops <= _NOTHING_DONE
    names = {i.argval for i in body if i.opname.startswith(("LOAD_", "MAKE_CELL"))}
    used = {n for name in names for n in (name if isinstance(name, tuple) else (name,))}
    return not is_sketch and "idempotency_key" not in used


_NOTHING_DONE: Final = frozenset(
    {"RESUME", "LOAD_CONST", "LOAD_SMALL_INT", "RETURN_VALUE", "RETURN_CONST", "NOP", "POP_TOP"}
)
_OF_A_COROUTINE: Final = frozenset({"RETURN_GENERATOR", "CALL_INTRINSIC_1", "RERAISE"})
"""What Python adds to every `async def`, whatever its body does."""
