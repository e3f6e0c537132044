"""Execute one step of a run again in isolation, with mocks: `hf.fork(id, step=6, mocks=…)`.

The log up to the step is copied into a store in memory, and the agent's code runs on it with the real runtime.
Recorded calls return their recorded results; the step itself is executed, by its mock if it has one; the code then
runs on to its next call, which is not made. Nothing is written to the run's own store, and no tool executes.

Not here: what a mock is (`runtime/declare/mocks.py`), and forks that are runs of their own (`control.fork`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec.structs import replace

from holdfast import views
from holdfast.control.forks import state_patch
from holdfast.core import events as e
from holdfast.core import log
from holdfast.core.entry import Place
from holdfast.core.events import ErrorInfo, Event
from holdfast.core.fold import fold
from holdfast.core.log import Blob, Record
from holdfast.core.state import Call, RunState
from holdfast.errors import (
    Abandon,
    HoldfastError,
    InvalidInput,
    NotFound,
    NotMocked,
    NotNow,
    RunFailed,
    RunWaiting,
)
from holdfast.runtime.call.commit import commit
from holdfast.runtime.call.driver import drive
from holdfast.runtime.call.operations import Draw, Invoke
from holdfast.runtime.declare.agent_spec import AgentSpec
from holdfast.runtime.declare.call_spec import CallSpec
from holdfast.runtime.declare.mocks import Mocks, mocked_body, mocks_of
from holdfast.runtime.exec.engine import Engine, Options
from holdfast.runtime.log.branches import CURRENT, Branch, Inside
from holdfast.runtime.log.session import Session
from holdfast.store.artifacts import read_artifact
from holdfast.store.base import Creation, NewRun, RunRow, Store
from holdfast.store.pages import everything
from holdfast.store.sqlite import SQLiteStore

FOREVER: Final = 1e9
"""Waits between attempts are skipped here, however long they are, and leases do not end."""


@dataclass(frozen=True, slots=True)
class DryStep:
    """What a step did when it was executed again in isolation."""

    run_id: str
    step: int
    call: Call
    """The call as it was made now."""
    recorded: Call
    """The call as it is in the run's own log."""
    args: Any
    result: Any
    before: RunState
    after: RunState
    """With what the agent's code made of it, until its next call."""
    changes: list[views.Change]
    """The difference between `before` and `after`."""

    @property
    def name(self) -> str:
        return self.call.name

    @property
    def status(self) -> str:
        """done or failed."""
        return self.call.status

    @property
    def error(self) -> ErrorInfo | None:
        return self.call.error if self.status == "failed" else None


class _StepOver(HoldfastError):
    """The step was executed, and the code has come to its next call."""


def dry_fork(
    store: Store,
    row: RunRow,
    agents: Mapping[str, AgentSpec],
    step: int,
    mocks: Mapping[str, Any],
    state: Mapping[str, Any],
) -> DryStep:
    """Execute this step of a run again, away from its store."""
    ready = mocks_of(mocks, "mocks")
    records = everything(store, row.id)
    whole = fold(RunState(), records)
    target = whole.call(step)
    if target is None:
        raise NotFound(f"run {row.id!r} has no step {step}; it has {whole.steps}")
    if target.index < 0:
        raise NotNow(f"run {row.id!r}: step {step} was made before the run was started over")
    clock = _Clock(records[target.first_seq].time)
    copy = SQLiteStore(":memory:", clock=clock.now)
    try:
        _copy_past(store, copy, row, records, target, state)
        rehearsal = _Rehearsal(store, whole, target, ready)
        _execute(copy, agents[row.agent], agents, rehearsal.stand_in, clock)
        if rehearsal.refused is not None:
            raise rehearsal.refused
        return _seen(copy, target)
    finally:
        copy.close()


class _Clock:
    """Time as it was when the step began, and what was skipped since."""

    def __init__(self, start: int) -> None:
        self._now = start

    def now(self) -> int:
        self._now += 1
        return self._now

    def skip(self, seconds: float) -> None:
        self._now += round(seconds * 1_000_000)


def _copy_past(
    store: Store,
    copy: Store,
    row: RunRow,
    records: Sequence[Record],
    target: Call,
    state: Mapping[str, Any],
) -> None:
    """The log up to the step. Calls that were under way at the same time get their recorded outcomes: only the step is to be made."""
    past = list(records[: target.first_seq])
    under_way = {
        (c.branch, c.index)
        for c in fold(RunState(), past).calls
        if c.status in ("running", "retrying")
    }
    ends: list[Event] = []
    for record in records[target.first_seq :]:
        event = log.read_event(row.id, record)
        if isinstance(event, _ENDS) and (event.branch, event.index) in under_way:
            ends.append(event)
    if state:
        cut = _last_end(row.id, past)
        after = [_moved(log.read_event(row.id, record), cut) for record in past[cut:]]
        past, ends = past[:cut], [state_patch(state), *after, *ends]
    time = past[-1].time
    _, sealed = log.seal(log.head_at(past[-1]), ends, epoch=past[-1].epoch, time=time)
    kept = [*past, *sealed]
    needed = set().union(*(e.artifacts(log.read_event(row.id, record)) for record in kept))
    blobs = [Blob(name, read_artifact(store, row.id, name)) for name in sorted(needed)]
    run = NewRun(row.id, row.agent, row.input_digest, row.code_version)
    copy.create(Creation(run, kept, blobs)).wait()


_ENDS: Final = (e.CallSucceeded, e.CallFailure, e.CallDoubted, e.CallResolved)


def _last_end(run_id: str, records: Sequence[Record]) -> int:
    """The place of the last call's end: what is changed there is seen by the code when that call returns."""
    for at in range(len(records) - 1, 0, -1):
        if isinstance(log.read_event(run_id, records[at]), e.CallSucceeded | e.CallFailure):
            return at
    raise InvalidInput(
        f"run {run_id!r}: its state cannot be changed before its first step, because it has none yet"
    )


def _moved(event: Event, cut: int) -> Event:
    """An event that is now one place further on, as is what it refers to if that came after the cut."""
    if isinstance(event, e.WaitEnded) and event.source >= cut:
        return replace(event, source=event.source + 1)
    if isinstance(event, e.CallStarted) and event.approval is not None and event.approval >= cut:
        return replace(event, approval=event.approval + 1)
    return event


def _execute(
    copy: Store,
    spec: AgentSpec,
    agents: Mapping[str, AgentSpec],
    stand_in: Callable[[Invoke | Draw], Invoke | Draw],
    clock: _Clock,
) -> None:
    """Run the agent's code on the copy until the step is over. How the run then ends is of no interest."""
    engine = Engine(
        copy,
        Options(
            lease_seconds=FOREVER / 100,
            patience_seconds=FOREVER,
            sleep=clock.skip,
            stand_in=stand_in,
        ),
    )
    try:
        for known in agents.values():
            engine.claims.register(known)
        (row,) = copy.runs(limit=1)
        with suppress(_StepOver, RunFailed, RunWaiting):
            engine.execute(engine.claims.claim(row, spec))
    finally:
        engine.close()


@dataclass(slots=True)
class _Rehearsal:
    """Decides for every body that would be executed: the step, its mock, or what the log has."""

    store: Store
    whole: RunState
    target: Call
    mocks: Mocks
    refused: NotMocked | None = None
    _calls: dict[Place, Call] = field(init=False)
    _begun: bool = False
    _executing: int = 0
    _counts: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._calls = {(c.branch, c.index): c for c in self.whole.calls if c.index >= 0}

    def stand_in(self, effect: Invoke | Draw) -> Invoke | Draw:
        if isinstance(effect, Draw) or not isinstance(effect.where, Inside):
            return effect
        here = CURRENT.get()
        if effect.session.run_id == self.whole.id and isinstance(here, Branch):
            place = (here.path, here.index - 1)
            if place == (self.target.branch, self.target.index):
                return self._watched(self._mocked(effect))
            recorded = self._calls.get(place)
            if (
                recorded is not None
                and recorded.name == effect.where.name
                and self._beside(recorded)
            ):
                return replace(
                    effect, fn=self._answer(recorded), is_async=False, args=(), kwargs={}
                )
            if self._begun and not self._executing:
                self._stop(effect.session)
        return self._mocked(effect)

    def _beside(self, call: Call) -> bool:
        """Whether a call is over in the log and had begun when the step ended: it is not made again."""
        return call.status in ("done", "failed") and (
            not self._begun or call.first_seq < self.target.last_seq
        )

    def _answer(self, recorded: Call) -> Callable[..., Any]:
        def answer() -> Any:
            if recorded.error is not None and recorded.status == "failed":
                raise type(recorded.error.type, (Exception,), {})(recorded.error.message)
            return views.value(self.store, self.whole.id, recorded.result)

        return answer

    def _mocked(self, effect: Invoke) -> Invoke:
        """What is executed instead; NotMocked for a tool or a model that has no mock."""
        assert isinstance(effect.where, Inside)
        if effect.where.effect.is_in_child:
            return effect  # the agent's own code; its calls come here one by one
        is_check = bool(effect.args)
        name = effect.fn.__name__ if is_check else effect.where.name
        mock = self.mocks.get(name)
        if mock is None:
            if is_check or _reaches_outside(effect):
                raise self._refuse(effect.session, name)
            return replace(
                effect, where=replace(effect.where, instead=self._instead(effect.session))
            )
        count = self._counts.get(name, 0)
        self._counts[name] = count + 1
        fn = mocked_body(name, effect.fn, mock, count, is_async=effect.is_async)
        return replace(effect, fn=fn)

    def _refuse(self, session: Session, name: str) -> BaseException:
        """It has no mock. A child run that stops because of it is not a failure of the step."""
        self.refused = NotMocked(name, "mocks")
        return session.stop(Abandon(self.refused))

    def _instead(self, session: Session) -> Callable[..., Any]:
        """For steps and tools that are called inside a step's body."""

        def instead(spec: CallSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            mock = self.mocks.get(spec.name)
            if mock is not None:
                bound = spec.params.bind(args, kwargs)
                return mocked_body(spec.name, spec.fn, mock, 0, is_async=spec.is_async)(**bound)
            if spec.outside:
                raise self._refuse(session, spec.name)
            return spec.fn(*args, **kwargs)

        return instead

    def _watched(self, effect: Invoke) -> Invoke:
        """The step itself: it is known when it begins and when it is over."""
        self._begun, real = True, effect.fn

        def called(*args: Any, **kwargs: Any) -> Any:
            self._executing += 1
            try:
                return real(*args, **kwargs)
            finally:
                self._executing -= 1

        async def awaited(*args: Any, **kwargs: Any) -> Any:
            self._executing += 1
            try:
                return await real(*args, **kwargs)
            finally:
                self._executing -= 1

        return replace(effect, fn=awaited if effect.is_async else called)

    @staticmethod
    def _stop(session: Session) -> None:
        """The next call is not made. What the code noted since is kept."""
        drive(commit(session, []))
        raise session.stop(Abandon(_StepOver("the step is over")))


def _reaches_outside(effect: Invoke) -> bool:
    assert isinstance(effect.where, Inside)
    spec = effect.session.specs.get(effect.where.name)
    return spec is None or spec.outside


def _seen(copy: Store, target: Call) -> DryStep:
    """The step as it is in the copy's log now."""
    (row,) = (row for row in copy.runs() if not row.parent)
    now = views.get(copy, row.id)
    made = next(
        (c for c in now.calls if (c.branch, c.index) == (target.branch, target.index)), None
    )
    if made is None or made.status not in ("done", "failed"):
        waiting = f"; it is waiting for {now.waiting_for}" if now.waiting_for else ""
        raise NotNow(f"run {row.id!r}: its code did not reach step {target.step} again{waiting}")
    before = views.at(copy, row.id, made.step, "before")
    after = views.at(copy, row.id, made.step)
    return DryStep(
        row.id,
        target.step,
        made,
        target,
        views.to_plain(views.value(copy, row.id, made.args)),
        views.to_plain(views.value(copy, row.id, made.result)),
        before,
        after,
        views.changes(before, after),
    )


__all__ = ["DryStep", "dry_fork"]
