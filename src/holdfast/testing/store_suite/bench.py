"""The bench on which a store is checked, and words for what must hold.

Not here: the checks. Nothing here knows a database or a test framework.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from holdfast.core.events import NULL, NoteTaken
from holdfast.core.log import Head, Record, origin, seal, verify
from holdfast.store.base import (
    MICROSECONDS,
    Append,
    ClaimFilter,
    Creation,
    NewRun,
    RowChange,
    RunRow,
    Store,
)
from holdfast.testing.clock import ManualClock

LEASE_SECONDS: Final = 10
LEASE_US: Final = LEASE_SECONDS * MICROSECONDS
PATIENCE_SECONDS: Final = 60
"""How long a check is waiting for another thread. Only a store that hangs ever takes so long."""

MakeStore = Callable[[Callable[[], int]], Store]
Reopen = Callable[[Store], Store]
Error = TypeVar("Error", bound=BaseException)


class Bench:
    """One fresh store with its clock, and short words for what checks do with them.

    `reopen(store)` opens the same place once more, as another process would; the given store stays
    open. Checks that need it are satisfied when it is not given.
    """

    def __init__(self, make_store: MakeStore, reopen: Reopen | None = None) -> None:
        self.clock = ManualClock()
        self.store = make_store(self.clock.now)
        self._reopen = reopen
        self._opened = [self.store]

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        for store in self._opened:
            store.close()

    def reopened(self) -> Store | None:
        """The same place, opened once more; None if this store cannot be."""
        if self._reopen is None:
            return None
        self._opened.append(self._reopen(self.store))
        return self._opened[-1]

    def make(self, run: NewRun, records: Sequence[Record], **rest: Any) -> tuple[RunRow, bool]:
        """Create a run; its row, and whether it is new."""
        return self.store.create(Creation(run, records, **rest)).wait().made

    def create(
        self, run_id: str = "run", *, worker: str = "", agent: str = "agent", **rest: Any
    ) -> RunRow:
        """A new run with one record; claimed if a worker is given."""
        run = NewRun(run_id, agent, "digest", **rest)
        records = sealed(origin(run_id), 1, epoch=1 if worker else 0, time=self.clock.now())
        row, created = self.make(run, records, worker=worker, lease_us=LEASE_US)
        expect(created, f"run {run_id!r} is new")
        return row

    def work(
        self, run_id: str = "run", *, count: int = 1, epoch: int | None = None, **rest: Any
    ) -> Append:
        """An append of `count` records that fits the log as it is now."""
        log = self.store.read(run_id)
        head = Head(log[-1].seq, log[-1].hash, log[-1].time) if log else origin(run_id)
        records = sealed(head, count, epoch=epoch or 0, time=self.clock.now())
        return Append(run_id, head.seq, records, epoch, **rest)

    def append(self, run_id: str = "run", **work: Any) -> None:
        """Append records that fit the log as it is now."""
        self.store.append(self.work(run_id, **work))

    def write_together(self, batch: Iterable[Append]) -> list[BaseException | None]:
        """Append these in one turn of an event loop; for each why it was refused, or None."""

        async def send() -> list[BaseException | None]:
            tickets = [self.store.submit(work) for work in batch]
            await asyncio.gather(*tickets, return_exceptions=True)
            return [ticket.error for ticket in tickets]

        return asyncio.run(send())

    def settle(self, run_id: str = "run", status: str = "completed", **change: Any) -> None:
        """Give the run a new status, which ends its lease."""
        self.append(run_id, change=RowChange(status=status, **change))

    def claim(self, run_id: str = "run", worker: str = "w") -> RunRow | None:
        """Try to take the run."""
        return self.store.claim(run_id, worker=worker, lease_us=LEASE_US)

    def claimed(self, run_id: str = "run", worker: str = "w") -> RunRow:
        """Take the run, which must be possible."""
        row = self.claim(run_id, worker)
        if row is None:
            raise AssertionError(f"run {run_id!r} could not be claimed")
        return row

    def due(
        self,
        *filters: ClaimFilter | str,
        limit: int = 100,
        exclude: Sequence[str] = (),
    ) -> list[str]:
        """Take what is due, of these or of any; the ids in the order in which they were given."""
        asked = [ClaimFilter(one) if isinstance(one, str) else one for one in filters]
        rows = self.store.claim_due(
            worker="w",
            lease_us=LEASE_US,
            limit=limit,
            filters=asked or self.kinds(),
            exclude=exclude,
        )
        return [row.id for row in rows]

    def kinds(self) -> list[ClaimFilter]:
        """Of each agent and version that has runs to be done."""
        return [ClaimFilter(kind.agent, kind.code_version) for kind in self.store.kinds()]

    def row(self, run_id: str = "run") -> RunRow:
        """The run's row, which must be there."""
        row = self.store.get(run_id)
        if row is None:
            raise AssertionError(f"run {run_id!r} is gone")
        return row

    def log(self, run_id: str = "run") -> list[Record]:
        """The run's records, checked as a chain."""
        return list(verify(run_id, origin(run_id), self.store.read(run_id)))

    def length(self, run_id: str = "run") -> int:
        """How many records the run's log has."""
        return len(self.log(run_id))


def sealed(head: Head, count: int, *, epoch: int = 0, time: int = 0) -> list[Record]:
    """Some records that continue a log."""
    notes = [NoteTaken(key=f"note {head.seq + 1 + i}", value=NULL) for i in range(count)]
    return seal(head, notes, epoch=epoch, time=time)[1]


# ── saying what is wrong ─────────────────────────────────────────────────────────────────────
# Not `assert`: the suite must also say so under `python -O`.


def expect(condition: object, what: str) -> None:
    if not condition:
        raise AssertionError(f"not so: {what}")


def same(expected: object, actual: object, what: str = "") -> None:
    if expected != actual:
        raise AssertionError(f"{what or 'the answer'}: expected {expected!r}, got {actual!r}")


def refused(
    kind: type[Error], action: Callable[..., object], *args: object, **keywords: object
) -> Error:
    """The error that the action raised, which must be of this kind."""
    try:
        answer = action(*args, **keywords)
    except kind as error:
        return error
    raise AssertionError(f"expected {kind.__name__}, got {answer!r}")


def together(*actions: Callable[[], object]) -> list[Any]:
    """Run actions at the same moment, in threads; what each returned or raised, in their order."""
    answers: list[Any] = [None] * len(actions)
    start = threading.Barrier(len(actions))

    def act(i: int) -> None:
        try:
            start.wait(PATIENCE_SECONDS)
            answers[i] = actions[i]()
        except Exception as error:  # noqa: BLE001 - handed to the check, which looks at it
            answers[i] = error

    threads = [threading.Thread(target=act, args=(i,), daemon=True) for i in range(len(actions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
        expect(not thread.is_alive(), "every thread comes back")
    return answers


def counted(answers: Iterable[object]) -> dict[str, int]:
    """How many answers there are of each type."""
    names = sorted(type(answer).__name__ for answer in answers)
    return {name: len(list(group)) for name, group in itertools.groupby(names)}
