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
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from holdfast.errors import HoldfastError
from holdfast.testing.audit_hook import watch
from holdfast.testing.crash_faults import (
    Check,
    Fault,
    Inspection,
    counted,
    diverged,
    fault_lines,
    judged,
    static_faults,
    story,
)
from holdfast.testing.sandbox import Sandbox
from holdfast.testing.scenario import (
    ExecutionResult,
    Executor,
    How,
    ScenarioRun,
    ScenarioSetup,
    execute_here,
)
from holdfast.testing.spec import fresh_folder, outcome_of

Lives = Callable[[int | None], Executor]
"""Given the boundary at which to kill (None: nowhere), how the lives of one performance are lived."""


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
        return [*found, end + (counted(len(self.faults), "fault") if self.faults else "no fault")]


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
        undisturbed = [*diverged(first), *diverged(second)]
        if undisturbed:
            return CrashReport(total, _merged(undisturbed))
        is_steady = story(first) == story(second)
        found = static_faults(self.setup, first)
        for kill_at in range(1, total + 1):
            progress(kill_at, total)
            seen = self._performed(str(kill_at), kill_at)
            seen.killed = _in_words(first.points, kill_at - 1)
            found += judged(self.setup, seen, first, check, is_steady=is_steady)
        faults = _merged(fault for fault in found if fault.kind != "look")
        looks = _merged(fault for fault in found if fault.kind == "look")
        return CrashReport(total, faults, looks)

    @property
    def _empty(self) -> Path:
        """A sandbox in which nothing has happened, to be copied: cheaper than making each again."""
        return self.folder / "empty"

    def _performed(self, name: str, kill_at: int | None) -> Inspection:
        folder = self.folder / name
        shutil.copytree(self._empty, folder)
        stage = ScenarioRun(folder, self.setup, self.lives(kill_at), settles_doubt=True)
        try:
            ended = stage.perform()
            if ended.says == "stuck":
                raise HoldfastError(ended.message)
            journal = stage.sandbox.journal
            points = [fact["name"] for fact in journal.read("point")]
            return Inspection(
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


__all__: Final = ["CrashReport", "ForkedExecution", "explore"]
