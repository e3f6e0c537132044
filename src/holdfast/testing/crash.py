"""Crash a run everywhere: kill it with SIGKILL at every boundary, resume it in a new process, and compare.

A boundary is the moment before or after a commit or a body. The run is executed without kills first, and
passes N of them; then the same scenario is executed N times more, the process killed at the first, the
second … the N-th, and each time resumed in a new process until the run is at rest. What is reported
is about the user's agent: where an effect happens again, where a call stays in doubt, where the code
diverges; each with the line, and the declaration that would help.

All of them see the same recorded time, randomness and ids (`run.now`, `run.random`, `run.uuid`), so that an
agent may branch on those. What it reads elsewhere differs, as it does in production.

What is seen: every body of a step or tool and every mocked function (by the sandbox's journal), and
what step bodies and plain code do to the world (by `watch`). What is not: effects through connections
that were open before, and below Python.
"""

from __future__ import annotations

import dis
import gc
import os
import random
import shutil
import signal
import sys
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from holdfast.core.effect import Effect
from holdfast.core.state import RunState
from holdfast.errors import HoldfastError
from holdfast.runtime.declare.call_spec import CallSpec
from holdfast.runtime.declare.specs import spec_of
from holdfast.testing.audit_hook import watch
from holdfast.testing.sandbox import Sandbox, place_of
from holdfast.testing.scenario import (
    ExecutionResult,
    Executor,
    How,
    ScenarioRun,
    ScenarioSetup,
    execute_here,
)
from holdfast.testing.spec import fresh_folder, outcome_of
from holdfast.testing.step_matcher import Outcome, shown

Lives = Callable[[int | None], Executor]
"""Given the boundary at which to kill (None: nowhere), how the lives of one performance are lived."""
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


@dataclass(frozen=True, slots=True)
class CrashReport:
    """What the explorer found."""

    boundaries: int
    faults: tuple[Fault, ...] = ()
    looks: tuple[Fault, ...] = ()
    """What runs again after a crash and may be harmless: the author must decide."""
    problem: str = ""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return not self.faults and not self.problem

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        if self.problem:
            return [f"not explored: {self.problem}"]
        found = [line for fault in self.faults for line in fault_lines(fault)]
        found += [line for look in self.looks for line in fault_lines(look)]
        end = f"killed at each of {self.boundaries} boundaries and resumed: "
        return [*found, end + (_count(len(self.faults), "fault") if self.faults else "no fault")]


def _count(number: int, what: str) -> str:
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


# ── one life that may end by a kill ──────────────────────────────────────────────────────────


class ForkedExecution:
    """Each life in its own process, killed at the n-th boundary of the whole performance."""

    def __init__(self, kill_at: int | None) -> None:
        self._kill_at = kill_at

    def __call__(self, stage: ScenarioRun, agent: Callable[..., Any], how: How) -> ExecutionResult:
        return how_it_ended(stage, life_and_death(stage, agent, how, self._kill_at))


def life_and_death(
    stage: ScenarioRun, agent: Callable[..., Any], how: How, kill_at: int | None
) -> int:
    """Let the run execute in a forked process; that process's exit status."""
    passed = len(stage.sandbox.journal.read("point"))
    return _in_child(lambda: _child(stage, agent, how, passed, kill_at))


def how_it_ended(stage: ScenarioRun, status: int) -> ExecutionResult:
    """What a process that is over has said, or died of."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGKILL:
            return ExecutionResult("killed")
        raise HoldfastError(f"the agent's process was killed by {signal.Signals(number).name}")
    ends = stage.sandbox.journal.read("end")
    if os.WEXITSTATUS(status) or not ends:
        code = os.WEXITSTATUS(status)
        raise HoldfastError(f"the agent's process ended by itself (exit code {code})")
    last = ends[-1]
    if last["says"] == "broke":
        raise HoldfastError(f"the agent's process failed:\n{last['message']}")
    return ExecutionResult(last["says"], last["message"], last["details"])


def _child(
    stage: ScenarioRun, agent: Callable[..., Any], how: How, passed: int, kill_at: int | None
) -> None:
    journal, count, turn = stage.sandbox.journal, passed, threading.Lock()

    def boundary(name: str) -> None:
        nonlocal count
        with turn:  # threads of run.map pass boundaries too
            count += 1
            journal.add("point", name=name)
            if count == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    random.seed()  # a fork inherits its parent's randomness, which a new process would not
    watch(journal)
    try:
        ended = execute_here(stage, agent, how, boundary)
    except BaseException:  # noqa: BLE001 - sent to the parent, which ends the exploration
        ended = ExecutionResult("broke", traceback.format_exc())
    journal.add("end", says=ended.says, message=ended.message, details=dict(ended.details))


def _in_child(work: Callable[[], None]) -> int:
    """Do it in a forked process that prints nothing; its exit status."""
    sys.stdout.flush()
    sys.stderr.flush()
    gc.freeze()  # what the parent has is not collected, and so not copied, in each child
    with warnings.catch_warnings():
        # Other threads of this process hold nothing that the child uses: it opens all it needs again.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid != 0:
        gc.unfreeze()
    else:
        code = 1
        try:
            nowhere = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(nowhere, fd)
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]


# ── exploring ────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class _Inspection:
    """One performance, looked at afterwards."""

    outcome: Outcome
    did: list[dict[str, Any]]
    saw: list[dict[str, Any]]
    points: list[str]
    ends: list[ExecutionResult]
    doubts: list[dict[str, Any]]
    runs: list[RunState]
    killed: str = ""


def explore(
    setup: ScenarioSetup,
    *,
    check: Check = lambda _: "",
    tools: frozenset[str] = frozenset(),
    progress: Callable[[int, int], None] = lambda *_: None,
    lives: Lives = ForkedExecution,
) -> CrashReport:
    """Kill the scenario at every boundary, and report what a crash would do."""
    began = time.monotonic()
    with fresh_folder() as folder:
        try:
            report = _Exploration(setup, tools, lives, folder).report(check, progress)
        except HoldfastError as error:
            report = CrashReport(0, problem=str(error))
    return replace(report, seconds=time.monotonic() - began)


@dataclass(frozen=True, slots=True)
class _Exploration:
    setup: ScenarioSetup
    tools: frozenset[str]
    lives: Lives
    folder: Path

    def report(self, check: Check, progress: Callable[[int, int], None]) -> CrashReport:
        self._empty.mkdir()
        with closing(
            Sandbox(self._empty, self.setup.mocks, strict=False, is_fixed=True)
        ) as sandbox:
            sandbox.store().close()
        first, second = self._performed("a", None), self._performed("b", None)
        total = len(first.points)
        if first.ends[-1].says == "MockMissing":
            return CrashReport(total, problem=first.ends[-1].message)
        undisturbed = [*_diverged(first), *_diverged(second)]
        if undisturbed:
            return CrashReport(total, _merged(undisturbed))
        is_steady = _story(first) == _story(second)
        found = _static_faults(self.setup, first)
        for kill_at in range(1, total + 1):
            progress(kill_at, total)
            seen = self._performed(str(kill_at), kill_at)
            seen.killed = _in_words(first.points, kill_at - 1)
            found += _judged(self.setup, seen, first, check, is_steady=is_steady)
        faults = _merged(fault for fault in found if fault.kind != "look")
        looks = _merged(fault for fault in found if fault.kind == "look")
        return CrashReport(total, faults, looks)

    @property
    def _empty(self) -> Path:
        """A sandbox in which nothing has happened, to be copied: cheaper than making each again."""
        return self.folder / "empty"

    def _performed(self, name: str, kill_at: int | None) -> _Inspection:
        folder = self.folder / name
        shutil.copytree(self._empty, folder)
        stage = ScenarioRun(folder, self.setup, self.lives(kill_at), settles_doubt=True)
        try:
            ended = stage.perform()
            if ended.says == "stuck":
                raise HoldfastError(ended.message)
            journal = stage.sandbox.journal
            points = [fact["name"] for fact in journal.read("point")]
            return _Inspection(
                outcome_of(stage, self.tools),
                journal.read("did"),
                journal.read("saw"),
                points,
                stage.ends,
                stage.doubts,
                stage.runs(),
            )
        finally:
            stage.close()
            shutil.rmtree(folder, ignore_errors=True)


def _story(inspection: _Inspection) -> Any:
    """What must come out the same however often the process dies."""
    outcome = inspection.outcome
    calls = sorted((c.name, shown(c.args), c.status) for c in outcome.calls)
    return (outcome.status, shown(outcome.result), shown(outcome.state), outcome.run.stage, calls)


_RECORDED: Final = {
    "call_started": "the intent of {}",
    "call_succeeded": "the result of {}",
    "call_failed": "the failure of {}",
    "call_resolved": "the settlement of {}",
    "run_completed": "the run's end",
    "run_failed": "the run's failure",
    "wait_began": "the wait",
    "wait_ended": "the end of the wait",
    "run_suspended": "the wait",
}


def _in_words(points: list[str], index: int) -> str:
    """A boundary, by its place in all the boundaries of the undisturbed run, as a person would say it."""
    when, _, what = points[index].partition(" ")
    if when == "inside":
        return f"inside {what}, before its transaction commits"
    kind = what.removeprefix("commit ")
    if kind == what:
        return f"{when} {what} is executed" if when == "before" else f"after {what} was executed"
    ahead = kind == "call_started"
    near = points[index:] if ahead else points[index::-1]
    body = next((p.partition(" ")[2] for p in near if " commit " not in p), "?")
    recorded = _RECORDED.get(kind, f"“{kind}”").format(body)
    return f"{when} {recorded} is recorded"


def _merged(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    """The same fault, seen in several crashes, once."""
    found: dict[tuple[str, ...], Fault] = {}
    for fault in faults:
        before = found.get(fault.sort)
        found[fault.sort] = fault if before is None else replace(before, crashes=before.crashes + 1)
    return tuple(found.values())


# ── judging ──────────────────────────────────────────────────────────────────────────────────


def _judged(
    setup: ScenarioSetup,
    inspection: _Inspection,
    first: _Inspection,
    check: Check,
    *,
    is_steady: bool,
) -> list[Fault]:
    """What one crash did, compared with the run's own log and with the undisturbed run."""
    found = [
        *_diverged(inspection),
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
    elif is_steady and _story(inspection) != _story(first):
        found.append(
            Fault(
                "differs",
                f"after a crash {_difference(inspection, first)}",
                killed=inspection.killed,
                fix="something outside any step changed in between: read it in a @step, or keep it in run.state",
            )
        )
    return found


def _difference(inspection: _Inspection, first: _Inspection) -> str:
    now, then = inspection.outcome, first.outcome
    for what, a, b in (
        ("the output", now.result, then.result),
        ("the state", now.state, then.state),
        ("the stage", now.run.stage, then.run.stage),
    ):
        if shown(a) != shown(b):
            return f"{what} is {shown(a)} instead of {shown(b)}"
    return f"the calls are {now.named_calls()} instead of {then.named_calls()}"


def _diverged(inspection: _Inspection) -> list[Fault]:
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


def _doubted(setup: ScenarioSetup, inspection: _Inspection, first: _Inspection) -> list[Fault]:
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


def _repeated_calls(inspection: _Inspection) -> list[Fault]:
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
    name: str, body: dict[str, Any], happened: int, allowed: int, inspection: _Inspection
) -> Fault:
    effect = body["effect"]
    if effect == Effect.KEYED:
        says = f"{name} happens {happened} times for {_count(allowed, 'call')}, each with a different key"
        fix = "the key that the code passes changes between processes: leave it to Holdfast, or derive it from the input"
    elif effect == Effect.CHECKED:
        says = f"{name} happens again, because its check reports that it did not happen although it did"
        fix = "let the check look up the real effect, by its key"
    else:
        says = (
            f"{name} happens again after a crash ({happened} times for {_count(allowed, 'call')})"
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


def _repeated_plainly(inspection: _Inspection, first: _Inspection) -> list[Fault]:
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
    inspection: _Inspection,
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


def _static_faults(setup: ScenarioSetup, first: _Inspection) -> list[Fault]:
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


__all__: Final = ["CrashReport", "Fault", "ForkedExecution", "explore", "fault_lines"]
