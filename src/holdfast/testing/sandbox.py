"""One isolated place where a scenario plays: a store, a clock, and a journal of what was executed.

Everything is in files of one folder, so that it outlives a process that is killed. The journal says
what really happened: each body that was executed (or mocked), with the place in the user's code that
asked for it, and each boundary that was passed. It is the witness against which the run's own log is
held; the log itself is the real one, written by the real runtime.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import json
import mmap
import os
import re
import site
import struct
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final
from weakref import WeakKeyDictionary

from msgspec.structs import replace

import holdfast
from holdfast.app import Holdfast
from holdfast.core import values
from holdfast.core.effect import Effect
from holdfast.errors import NotStorable
from holdfast.runtime.call.operations import Draw, Invoke
from holdfast.runtime.declare.call_spec import CallSpec
from holdfast.runtime.declare.mocks import Mock, MockMissing, Mocks, typed_answer
from holdfast.runtime.declare.specs import spec_of
from holdfast.runtime.exec.engine import Options
from holdfast.runtime.log.branches import Inside
from holdfast.runtime.log.lineage import LiveRun
from holdfast.runtime.log.session import Session
from holdfast.store.base import Store
from holdfast.store.sqlite import SQLiteStore
from holdfast.testing.no_contact import refuse_contacts

LEASE_SECONDS: Final = 3600.0  # dead processes are known to be dead here: no lease has to expire

_OURS: Final = str(Path(holdfast.__file__).parent)
_STDLIB: Final = Path(os.__file__).parent
_LIBRARIES: Final = (str(_STDLIB), str(_STDLIB.resolve()), *site.getsitepackages())


# ── time ─────────────────────────────────────────────────────────────────────────────────────


class SkippingClock:
    """Real time plus what was skipped; all processes of a sandbox skip together.

    One that is made `stopped` moves only by what is skipped, so that time is the same each time.
    """

    def __init__(self, file: Path, *, stopped: bool = False) -> None:
        if not file.exists():
            file.write_bytes(_TIMES.pack(_real_time() if stopped else 0, 0))
        with file.open("r+b") as opened:
            self._times = mmap.mmap(opened.fileno(), _TIMES.size)

    @property
    def is_stopped(self) -> bool:
        return self._read()[0] != 0

    def now(self) -> int:
        """Microseconds since 1970."""
        stopped_at, skipped = self._read()
        return (stopped_at or _real_time()) + skipped

    def skip(self, seconds: float) -> None:
        """Let time pass at once, where others would sleep."""
        stopped_at, skipped = self._read()
        self._times[:] = _TIMES.pack(stopped_at, skipped + round(seconds * 1_000_000))

    def close(self) -> None:
        self._times.close()

    def _read(self) -> tuple[int, int]:
        """When it was stopped (0: it was not), and what was skipped."""
        stopped_at, skipped = _TIMES.unpack(self._times[:])
        return int(stopped_at), int(skipped)


_TIMES: Final = struct.Struct("qq")


def _real_time() -> int:
    return time.time_ns() // 1000


# ── randomness ───────────────────────────────────────────────────────────────────────────────────


class FixedDraws:
    """What `run.now`, `run.random` and `run.uuid` give in an exploration: the same at the same place of the
    code in every performance, whatever order branches come in and however often the process dies."""

    def __init__(self, clock: SkippingClock) -> None:
        self._clock = clock
        self._counts: WeakKeyDictionary[Session, Counter[tuple[str, int, str]]] = (
            WeakKeyDictionary()
        )

    def __call__(self, draw: Draw) -> Draw:
        """The same with a fixed source."""
        return replace(draw, make=partial(self._value, draw, self._count(draw)))

    def _count(self, draw: Draw) -> int:
        """How often the code has drawn this here: it may several times between two calls."""
        counts = self._counts.setdefault(draw.session, Counter())
        place = (draw.branch, draw.index, draw.name)
        counts[place] += 1
        return counts[place]

    def _value(self, draw: Draw, count: int) -> Any:
        if draw.name == "now":
            # It moves with the code, by a millisecond a call, so that no code waits forever.
            position = draw.index + sum(map(int, re.findall(r"\d+", draw.branch)))
            return self._clock.now() + 1000 * position + count
        import random  # here, as only an exploration draws from it

        where = f"{_name(draw.session)} {draw.branch} {draw.index} {draw.name} {count}"
        source = random.Random(where)  # noqa: S311 - not a secret, and meant to be foreseen
        if draw.name == "random":
            return source.random()
        return str(uuid.UUID(int=source.getrandbits(128), version=4))


def _name(run: LiveRun) -> str:
    """A run, named by what no crash changes. The id of a child run has the number of its step: of two branches that make
    calls at once, the one that dies before its receipt is written gets another number the next time."""
    above = run.lineage.parent
    if above is None:
        return run.run_id
    for (branch, index), entry in above.journal.entries.items():
        if entry.intent is not None and entry.intent.child == run.run_id:
            return f"{_name(above)}~{branch}#{index}"
    return run.run_id


# ── what happened ────────────────────────────────────────────────────────────────────────────


class FactLog:
    """Facts, one JSON line each. A line is there when `add` returns, whatever becomes of the process."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._turn = threading.Lock()

    def add(self, kind: str, **facts: Any) -> None:
        line = json.dumps({"kind": kind, **facts}, default=repr).encode() + b"\n"
        with self._turn:
            fd = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(fd, line)
            finally:
                os.close(fd)

    def read(self, kind: str = "") -> list[dict[str, Any]]:
        """What happened so far, in order."""
        if not self._file.exists():
            return []
        facts = [json.loads(line) for line in self._file.read_bytes().splitlines()]
        return [fact for fact in facts if not kind or fact["kind"] == kind]


def user_place(frame: FrameType | None) -> str:
    """`file:line` of the innermost code that is neither ours nor a library's; empty if there is none."""
    while frame is not None:
        if not is_library(frame):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def is_library(frame: FrameType) -> bool:
    """Whether this is Holdfast's own code, Python's, or an installed package's."""
    return frame.f_code.co_filename.startswith(("<", _OURS, *_LIBRARIES))


def is_ours(frame: FrameType | None) -> bool:
    """Whether the innermost code that is not a library's is Holdfast's own."""
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(("<", *_LIBRARIES)) or name.startswith(_OURS):
            return name.startswith(_OURS)
        frame = frame.f_back
    return False


def place_of(fn: Callable[..., Any]) -> str:
    """`file:line` where a function is declared, its decorators included."""
    code = getattr(inspect.unwrap(fn), "__code__", None)
    return "" if code is None else f"{code.co_filename}:{code.co_firstlineno}"


# ── the sandbox ──────────────────────────────────────────────────────────────────────────────


class Sandbox:
    """A folder in which runs are executed with mocks."""

    def __init__(self, folder: Path, mocks: Mocks, *, strict: bool, is_fixed: bool = False) -> None:
        """`is_fixed` is about a new folder: all runs in it, and in copies of it, see the same time and
        randomness."""
        self.folder = folder
        self.mocks = mocks
        self.strict = strict
        """With this, nothing outside is contacted: a tool or model without a mock ends the test instead."""
        self.clock = SkippingClock(folder / "clock", stopped=is_fixed)
        self._fixed_draws = FixedDraws(self.clock) if self.clock.is_stopped else None
        self.journal = FactLog(folder / "journal")
        self.missing: MockMissing | None = None
        self._store: Store | None = None
        self._turns: dict[tuple[int, str], Iterator[int]] = {}

    def close(self) -> None:
        self.clock.close()

    def store(self) -> SQLiteStore:
        # A killed process loses nothing that was written; only a power cut would, which no test makes.
        file = self.folder / "runs.db"
        return SQLiteStore(file, synchronous="NORMAL", clock=self.clock.now, has_reserve=False)

    @contextmanager
    def holdfast(
        self, *agents: Callable[..., Any], boundary: Callable[[str], None] | None = None
    ) -> Iterator[Holdfast]:
        """A Holdfast in here: mocked, on the skipping clock."""
        options = Options(
            lease_seconds=LEASE_SECONDS,
            sleep=self.clock.skip,
            boundary=boundary,
            stand_in=self.stand_in,
        )
        if self.strict:
            refuse_contacts()
        with Holdfast(self.store(), agents=agents, options=options) as hf:
            yield hf

    # ── standing in ──────────────────────────────────────────────────────────────────────

    def stand_in(self, effect: Invoke | Draw) -> Invoke | Draw:
        """What is executed instead of a step, tool or check: its mock if it has one, journaled."""
        if isinstance(effect, Draw):
            return effect if self._fixed_draws is None else self._fixed_draws(effect)
        where = effect.where
        if not isinstance(where, Inside) or where.effect.is_in_child:
            return effect
        is_check = bool(effect.args)
        name = effect.fn.__name__ if is_check else where.name
        mock = self.mocks.get(name)
        if mock is None and is_check and where.name in self.mocks:
            mock = self._found_by_key(where.name)
        if mock is None and self.strict and (is_check or _is_outside(effect.session, where)):
            self.missing = MockMissing(name)
            raise self.missing
        self._store = effect.session.store
        place = user_place(sys._getframe())
        fn = self._witnessed(effect, name, mock, place, is_check=is_check)
        return replace(effect, fn=fn, where=replace(where, instead=self._instead))

    def _witnessed(
        self, effect: Invoke, name: str, mock: Mock | None, place: str, *, is_check: bool
    ) -> Callable[..., Any]:
        assert isinstance(effect.where, Inside)
        facts = {
            "name": name,
            "effect": "check" if is_check else effect.where.effect,
            "at": place,
            "declared": place_of(effect.fn),
            "mocked": mock is not None,
            "run": effect.where.run_id,
        }
        real = effect.fn

        def once(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            assert mock is not None
            return self._mocked(facts, real, mock, args, kwargs)

        if effect.is_async:
            import asyncio

            @functools.wraps(real)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                if mock is not None:
                    await asyncio.sleep(0)
                    return once(args, kwargs)
                with self._executing(facts, kwargs) as answer:
                    answer["result"] = await real(*args, **kwargs)
                return answer["result"]

            return awaited

        @functools.wraps(real)
        def called(*args: Any, **kwargs: Any) -> Any:
            if mock is not None:
                return once(args, kwargs)
            with self._executing(facts, kwargs) as answer:
                answer["result"] = real(*args, **kwargs)
            return answer["result"]

        return called

    def _mocked(
        self,
        facts: dict[str, Any],
        real: Callable[..., Any],
        mock: Mock,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """The mock's answer. A receiver that is given a key answers the same key alike."""
        key = kwargs.get("idempotency_key") or ""
        earlier = [did for did in self.journal.read("did") if did["name"] == facts["name"]]
        if key and facts["effect"] == Effect.KEYED:
            for did in earlier:
                if did["key"] == key and "error" not in did:
                    self.journal.add(
                        "did", **facts, **_arguments(kwargs), result=did["result"], again=True
                    )
                    return typed_answer(facts["name"], real, did["result"])
        shown = {k: v for k, v in kwargs.items() if k not in ("idempotency_key", "tx")}
        if args:
            shown |= dict(zip(inspect.signature(real).parameters, args, strict=False))
        with self._executing(facts, kwargs) as answer:
            if facts["effect"] == Effect.REPEATABLE:
                count = next(self._turns_of(facts["name"]))
            else:
                count = sum(not did.get("again") for did in earlier)
            answer["result"] = mock(count, shown)
        return typed_answer(facts["name"], real, answer["result"])

    def _turns_of(self, name: str) -> Iterator[int]:
        """The numbers of the calls of something repeatable: as many as the log contains when a process first
        asks, then one more each time. So one that a crash kept from being recorded is asked again."""
        here = (os.getpid(), name)
        if here not in self._turns:
            assert self._store is not None
            logs = (self._store.read(row.id) for row in self._store.runs(limit=1000))
            ended = (
                r.event for log in logs for r in log if r.kind in ("call_succeeded", "call_failed")
            )
            known = sum(getattr(event, "name", "") == name for event in ended)
            self._turns.setdefault(here, itertools.count(known))
        return self._turns[here]

    @contextmanager
    def _executing(self, facts: dict[str, Any], kwargs: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """FactLog how a body ends: it has happened when it is written here."""
        answer: dict[str, Any] = {"result": None}
        try:
            yield answer
        except Exception as error:
            self.journal.add(
                "did", **facts, **_arguments(kwargs), error=f"{type(error).__name__}: {error}"
            )
            raise
        self.journal.add("did", **facts, **_arguments(kwargs), result=_plain(answer["result"]))

    def _found_by_key(self, tool: str) -> Mock:
        """The check of a mocked tool: what a right look-up would find in the world of the mocks."""

        def look_up(count: int, args: Mapping[str, Any]) -> Any:  # noqa: ARG001 - a look-up does not count
            key = next(iter(args.values()), "")
            done = [d for d in self.journal.read("did") if d["name"] == tool and "error" not in d]
            found = [did["result"] for did in done if did["key"] == key or not did["key"]]
            return holdfast.Done(found[-1]) if found else None

        return look_up

    def _instead(self, spec: CallSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A step called inside another's body: not a call of the run, but mocked anyway."""
        mock = self.mocks.get(spec.name)
        if mock is None:
            if self.strict and spec.outside:
                self.missing = MockMissing(spec.name)
                raise self.missing
            return spec.fn(*args, **kwargs)
        bound = {
            k: v for k, v in spec.params.bind(args, kwargs).items() if k not in spec.params.hidden
        }
        answer = typed_answer(spec.name, spec.fn, mock(0, bound))
        return _later(answer) if spec.is_async else answer

    # ── sync functions ──────────────────────────────────────────────────────────────────

    @contextmanager
    def patched(self, names: dict[str, Any]) -> Iterator[None]:
        """Mock also functions that declare nothing, in the module whose names these are."""
        before = {}
        for name, mock in self.mocks.items():
            real = names.get(name)
            if callable(real) and spec_of(real) is None:
                before[name] = real
                names[name] = self._plain(name, real, mock)
        try:
            yield
        finally:
            names.update(before)

    def _plain(self, name: str, real: Callable[..., Any], mock: Mock) -> Callable[..., Any]:
        from holdfast.runtime.log.branches import CURRENT, Branch

        @functools.wraps(real)
        def called(*args: Any, **kwargs: Any) -> Any:
            here = CURRENT.get()
            inside = here.name if isinstance(here, Inside) else ""
            effect = "plain" if isinstance(here, Branch | Inside) else "outside"
            facts = {
                "name": name,
                "effect": effect,
                "at": user_place(sys._getframe(1)),
                "declared": place_of(real),
                "mocked": True,
                "inside": inside,
                "run": "",
            }
            try:
                bound = dict(inspect.signature(real).bind(*args, **kwargs).arguments)
            except ValueError:  # a builtin without a signature
                bound = kwargs
            with self._executing(facts, bound) as answer:
                done = [did for did in self.journal.read("did") if did["name"] == name]
                answer["result"] = mock(len(done), bound)
            return answer["result"]

        if not inspect.iscoroutinefunction(real):
            return called

        @functools.wraps(real)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            return called(*args, **kwargs)

        return awaited


def _is_outside(session: Session, where: Inside) -> bool:
    """Whether a body contacts something: a tool, a model, or a step that is declared so."""
    spec = session.specs.get(where.name)
    return where.effect.acts or (spec is not None and spec.outside)


async def _later(answer: Any) -> Any:
    return answer


def _arguments(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    shown = {k: _plain(v) for k, v in kwargs.items() if k not in ("idempotency_key", "tx")}
    return {"key": kwargs.get("idempotency_key") or "", "args": shown}


def _plain(value: Any) -> Any:
    """A value as the journal keeps it."""
    try:
        return values.decode(values.encode(value, typed=True))
    except NotStorable:
        return repr(value)
