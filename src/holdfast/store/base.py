"""What Holdfast asks of the place where logs live.

A store keeps runs: for each a row (who owns it, when it is due) and a log (what happened). It promises

- **append** is atomic and durable when it returns, and happens only if the log still ends where the
  caller believes (`after`) and, for a worker, only under the run's current epoch (the fence);
- **claim** gives a run to one worker until its lease ends, under an epoch that only ever grows;
- time is the store's own, so workers whose clocks disagree still agree on leases and timers.

A store does not know what events mean. `holdfast.testing.check_store` says in tests what this
module says in words; a store is done when it passes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec

from holdfast.core.log import Blob, Record, check_run_id
from holdfast.errors import Conflict, InputConflict, InvalidInput, LeaseLost, NotFound

if TYPE_CHECKING:
    import asyncio

MICROSECONDS: Final = 1_000_000
PRIORITIES: Final = range(-10, 11)
PRIORITY_US: Final = 60 * MICROSECONDS
"""A point of priority counts like so much waiting: a run is served in the order of
`due_at - priority * PRIORITY_US`. So what is urgent comes first, and nothing waits for ever."""
_clock_ns: Final = time.clock_gettime_ns
"""Kept from before any user's code was loaded: there are tools that replace what `time` holds."""
NO_PROGRESS: Final = ("run_claimed", "call_started", "call_doubted", "call_resolved")
"""A log that grew only by events of these kinds since a run was claimed has not got on: they are written
by a worker that takes the run up, before it does anything that could kill it."""


def system_clock() -> int:
    """Microseconds since 1970 by the machine's clock, whatever this process was made to believe."""
    return _clock_ns(time.CLOCK_REALTIME) // 1000


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run to be created. The same id with the same agent and input is the same run."""

    id: str
    agent: str
    input_digest: str
    code_version: str = ""
    parent: str = ""
    priority: int = 0


class Creation(msgspec.Struct, eq=False):
    """A run to be created with its first records, and what came of it."""

    run: NewRun
    records: Sequence[Record]
    blobs: Sequence[Blob] = ()
    worker: str = ""
    lease_us: int = 0
    row: RunRow | None = None
    """The run as it is, when this has been carried out."""
    is_new: bool = False

    @property
    def made(self) -> tuple[RunRow, bool]:
        """The run, and whether it was created now."""
        assert self.row is not None
        return self.row, self.is_new

    def settle(self, row: RunRow, is_new: bool) -> InputConflict | None:
        """This came of it; if the run existed, it must have been meant."""
        self.row, self.is_new = row, is_new
        if not is_new and row.agent != self.run.agent:
            return InputConflict(row.id, f"agent ({row.agent})")
        if not is_new and row.input_digest != self.run.input_digest:
            return InputConflict(row.id, "input")
        return None


@dataclass(frozen=True, slots=True)
class RunRow:
    """What the store knows of a run without reading its log."""

    id: str
    agent: str
    status: str
    created_at: int
    updated_at: int
    epoch: int
    owner: str
    due_at: int | None
    waiting_for: str
    claims: int
    input_digest: str
    code_version: str
    parent: str
    priority: int
    cursor: int

    def is_live(self, now: int) -> bool:
        """Whether a worker holds an unexpired lease on it."""
        return self.status == "running" and self.due_at is not None and self.due_at > now


class RowChange(msgspec.Struct, frozen=True):
    """How a run's row changes together with an append.

    A worker *settles* a run with a new status, which ends its lease; anybody may *wake* a run that
    waits. `wakes` names other runs to wake in the same transaction (a parent, when its child ends).
    """

    status: str | None = None
    due_at: int | None = None
    waiting_for: str = ""
    wake: bool = False
    wakes: tuple[str, ...] = ()


class Append(msgspec.Struct, frozen=True, gc=False):
    """Records to add to one run's log, and what changes with them, all or nothing.

    (A Struct: one is made for every step, in a fifth of the time of a frozen dataclass.)
    """

    run_id: str
    after: int
    records: Sequence[Record]
    epoch: int | None = None
    """The worker's epoch; None for an event from outside, which needs no lease."""
    change: RowChange | None = None
    blobs: Sequence[Blob] = ()
    claims_key: str = ""
    """A caller's own idempotency key, to be unique over all runs."""
    urgent: bool = False
    """A receipt: its effect has happened, so it may use the space that is held in reserve."""
    before: bytes = b""
    """The hash that the first record is chained to: the log must not only be as long as the caller
    believes, but the same. Empty if the caller knows that nobody else could have written."""


class Filter(NamedTuple):
    """Which runs to list."""

    status: str = ""
    agent: str = ""
    created_after: int | None = None
    created_before: int | None = None
    parent: str = ""


class Wanted(NamedTuple):
    """Runs that a worker may take: of one agent, recorded under one version of its code.

    `max_running` is how many runs of the agent may be under way at once, over all workers and versions.
    """

    agent: str
    code_version: str = ""
    max_running: int | None = None


class Kind(NamedTuple):
    """An agent and version with runs that are to be done, and when the next of them is due."""

    agent: str
    code_version: str
    due_at: int


class Schedule(NamedTuple):
    """Runs to be created again and again; `next_at` is the next time for which none was created."""

    id: str
    agent: str
    cron: str
    zone: str
    input: bytes
    priority: int
    catch_up: str
    created_at: int
    next_at: int
    last_at: int | None = None


LIVE: Final = "live:"
"""The snapshots whose `code_version` begins so are a family of their own: what a loop goes on from."""


def rotation_of(live: bool, keep: int, max_age_us: int | None, now: int) -> dict[str, int | bool]:
    """The parameters of a rotation: the family, how many to keep, and the oldest time to keep."""
    oldest = -1 if max_age_us is None else now - max_age_us
    return {"live": live, "keep": max(1, keep), "oldest": oldest}


class Snapshot(NamedTuple):
    """A cached fold of a log's first events. It is never the truth: `hash` ties it to the log."""

    seq: int
    hash: bytes
    code_version: str
    created_at: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a store's self-examination."""

    name: str
    value: str
    ok: bool
    advice: str = ""


class Transaction(Protocol):
    """An open transaction of the store's database, given to tools that take `tx`."""

    def execute(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement with parameters; its rows."""
        ...


class OpenAppend(Protocol):
    """A transaction that ends with an append: the tool's writes and its receipt commit together."""

    @property
    def tx(self) -> Transaction: ...

    def commit(self, work: Append) -> None:
        """Append and commit everything, or raise and leave nothing."""
        ...


class Schedules(Protocol):
    """The schedules of a store. What is due when is not its matter, but that nothing is due twice is."""

    def put(self, schedule: Schedule) -> None:
        """Keep it, in the place of an older one of the same id (whose creation and last time stay)."""
        ...

    def all(self) -> list[Schedule]: ...

    def due(self, agents: Sequence[str], *, limit: int = 100) -> list[Schedule]:
        """Those of these agents whose next time has come, the longest overdue first."""
        ...

    def advance(self, schedule: Schedule, *, next_at: int, last_at: int) -> bool:
        """Set the next time, if nobody has done so since this schedule was read."""
        ...

    def delete(self, schedule_id: str) -> bool: ...


class Limits(Protocol):
    """Limits that all workers of a store keep together, by the store's clock."""

    def take_turn(
        self, name: str, holder: str, *, count: int, per_us: int, slack_us: int
    ) -> int | None:
        """None: the holder may begin now, and its turn is used. Else when its turn is: it is kept until
        then, and for `slack_us` more. At most `count` holders begin within any `per_us`."""
        ...

    def take_seat(self, name: str, holder: str, *, run_id: str, epoch: int, most: int) -> bool:
        """Whether the holder is now one of at most `most`. It has its seat until it leaves, or until its
        run's lease under this epoch ends."""
        ...

    def leave_seat(self, name: str, holder: str) -> None: ...


class Store(Protocol):
    """A place where logs live. All methods may be called from any thread."""

    url: str

    @property
    def schedules(self) -> Schedules: ...

    @property
    def limits(self) -> Limits: ...

    def now(self) -> int:
        """The store's clock, in microseconds since 1970."""
        ...

    def create(
        self,
        run: NewRun,
        records: Sequence[Record],
        *,
        blobs: Sequence[Blob] = (),
        worker: str = "",
        lease_us: int = 0,
    ) -> tuple[RunRow, bool]:
        """Create the run and its first records, claimed for `worker` if given; else due at once.

        Returns the row, and whether it was created now. If the id exists with the same agent and
        input, its row is returned and nothing is written; with another, InputConflict.
        """
        ...

    async def create_async(self, creation: Creation) -> tuple[RunRow, bool]:
        """The same for a caller on an event loop: those of many runs are committed together."""
        ...

    def get(self, run_id: str) -> RunRow | None: ...

    def read(self, run_id: str, *, after: int = -1, limit: int | None = None) -> list[Record]:
        """Records with seq > after, in order. Checking the chain is the reader's part."""
        ...

    def heads(self, run_ids: Sequence[str]) -> dict[str, int]:
        """The seq at which each of these runs' logs ends, in one question; runs that are not there
        are left out."""
        ...

    def last(self, run_id: str, kind: str) -> int:
        """The seq of the run's last record of this kind; -1 if it has none."""
        ...

    def append(self, work: Append) -> None:
        """Durable when it returns. Conflict, LeaseLost, KeyTaken: nothing was written."""
        ...

    def submit(self, work: Append) -> Callable[[], None]:
        """Take a place in the queue now; call what is returned to wait until it is durable.

        Appends are committed in the order in which they took their places.
        """
        ...

    def append_async(self, work: Append) -> asyncio.Future[None]:
        """The same for a caller on an event loop.

        The future cannot be cancelled: a task that is cancelled while it awaits one hears of that when
        the append has come to its end.
        """
        ...

    def open_append(self, run_id: str, epoch: int) -> AbstractContextManager[OpenAppend]:
        """A transaction for a tool that writes into the store's own database."""
        ...

    def claim(self, run_id: str, *, worker: str, lease_us: int) -> RunRow | None:
        """Take a run that has no live owner and is not at an end, due or not; None if impossible."""
        ...

    def claim_due(
        self,
        *,
        worker: str,
        lease_us: int,
        limit: int,
        wanted: Sequence[Wanted] | None = None,
        but: Sequence[str] = (),
    ) -> list[RunRow]:
        """Take runs whose time has come: new, woken, or left by a worker whose lease ended.

        Up to `limit` at once, in the order in which they are served; None wants any run. `but` names
        runs that are left alone: those that the worker is still executing, whatever became of its lease.
        """
        ...

    def renew(self, held: Sequence[tuple[str, int]], *, lease_us: int) -> set[str]:
        """Extend leases given as (run id, epoch); the ids that are lost (expired or taken over)."""
        ...

    def release(self, run_id: str, epoch: int, *, died: bool = False) -> bool:
        """Give a run back unfinished: due at once, for any worker.

        A worker that can still say so did not die of the run, so the claim is not counted against it;
        unless it says with `died` that it should be.
        """
        ...

    def runs(
        self, which: Filter = Filter(), *, limit: int = 50, cursor: int | None = None
    ) -> list[RunRow]:
        """Newest first. The last row's `cursor` is where the next page begins."""
        ...

    def next_due(self, wanted: Sequence[Wanted] | None = None) -> int | None:
        """When the next run is due, if any; of those wanted, or of all."""
        ...

    def kinds(self) -> list[Kind]:
        """Which agents and versions have runs to be done."""
        ...

    def find_key(self, key: str) -> tuple[str, int] | None:
        """The run and event that hold a caller's own idempotency key."""
        ...

    def blob(self, run_id: str, hash: str) -> bytes | None: ...

    def save_snapshot(
        self, run_id: str, snapshot: Snapshot, *, keep: int = 3, max_age_us: int | None = None
    ) -> None:
        """Keep it, and of its family only the newest `keep` in all, and of those none that is older than
        `max_age_us` but the newest."""
        ...

    def snapshot(
        self, run_id: str, *, at_most: int | None = None, live: bool = False
    ) -> Snapshot | None:
        """The newest snapshot (of a fold up to `at_most`), of the family that is asked for."""
        ...

    def rotate_snapshots(self, run_id: str, *, keep: int = 3, max_age_us: int | None = None) -> int:
        """Delete what `save_snapshot` would, in both families; how many were deleted."""
        ...

    def delete(self, run_id: str) -> bool:
        """Delete a run that has ended, all of it. False if it has not ended or does not exist."""
        ...

    def wait(self, run_id: str, *, after: int, timeout: float) -> bool:
        """Wait until the run's log has an event beyond `after`; False when the time is over."""
        ...

    def wait_due(
        self,
        wanted: Sequence[Wanted] | None = None,
        *,
        timeout: float,
        or_when: Callable[[], bool] | None = None,
    ) -> bool:
        """Wait until a wanted run, or a schedule of a wanted agent, may have become due; a hint, to be
        followed by `schedules.due` and `claim_due`.

        Ends early when `or_when` is true, which is asked at the beginning and at each `nudge`.
        """
        ...

    def nudge(self) -> None:
        """Have those who wait in this process look again."""
        ...

    def examine(self) -> list[Finding]:
        """Settings that matter for safety, for `holdfast doctor`."""
        ...

    def close(self) -> None: ...


TERMINAL_STATUSES: Final = ("completed", "failed", "cancelled")
UNCLAIMABLE_STATUSES: Final = (*TERMINAL_STATUSES, "paused", "quarantined")


# ── what a store is given ────────────────────────────────────────────────────────────────────
#
# Databases differ in what they take, and a value that one of them chokes on would fail every other
# append in its batch. So all stores refuse the same things, before anything happens.


def check_text(what: str, text: str) -> str:
    """The text itself, or InvalidInput: NUL and lone surrogates are not kept alike everywhere."""
    if "\0" in text:
        raise InvalidInput(f"{what} {text!r} holds a NUL character; leave it out")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidInput(
                f"{what} {text!r} holds a lone surrogate, which is not valid Unicode; "
                "decode the bytes it came from with errors='replace'"
            ) from None
    return text


def check_new_run(creation: Creation) -> None:
    """InvalidInput if a store must not create this."""
    run, records = creation.run, creation.records
    check_run_id(run.id)
    check_text("agent", run.agent)
    check_text("input digest", run.input_digest)
    check_text("code version", run.code_version)
    check_text("parent", run.parent)
    check_text("worker", creation.worker)
    check_priority(run.priority)
    if not run.agent:
        raise InvalidInput(f"run {run.id!r} names no agent")
    if not records:
        raise InvalidInput(f"run {run.id!r} has no first record; a log begins with its creation")
    _check_order(run.id, -1, records)


def check_priority(priority: object) -> int:
    """The priority itself, or InvalidInput."""
    if (
        isinstance(priority, int)
        and not isinstance(priority, bool)
        and PRIORITIES.start <= priority < PRIORITIES.stop
    ):
        return priority
    raise InvalidInput(
        f"priority must be a whole number from {PRIORITIES.start} to {PRIORITIES.stop - 1}, not "
        f"{priority!r}; each point counts like a minute of waiting"
    )


def check_wanted(wanted: Sequence[Wanted]) -> Sequence[Wanted]:
    """What a worker asks for, or InvalidInput for text that no run can have."""
    for one in wanted:
        check_text("agent", one.agent)
        check_text("code version", one.code_version)
    return wanted


def check_append(work: Append) -> None:
    """InvalidInput if a store must not write this, whatever the state of the run."""
    records, run_id = work.records, work.run_id
    if (  # the usual case, one record in its place and nothing else, seen at a glance
        len(records) == 1
        and records[0][0] == work.after + 1
        and work.change is None
        and not work.claims_key
        and (work.epoch is None or work.epoch >= 0)
        and run_id.isascii()
        and "\0" not in run_id
    ):
        return
    check_text("run id", run_id)
    check_text("idempotency key", work.claims_key)
    if work.epoch is not None and work.epoch < 0:
        raise InvalidInput(f"{work.epoch} is not an epoch; None is for an event from outside")
    if work.claims_key and not work.records:
        raise InvalidInput(f"key {work.claims_key!r} is claimed without a record to hold it")
    _check_order(work.run_id, work.after, work.records)
    if work.change is not None:
        _check_change(work.change)


def _check_order(run_id: str, after: int, records: Sequence[Record]) -> None:
    for seq, record in enumerate(records, after + 1):
        if record.seq != seq:
            raise InvalidInput(f"run {run_id!r}: record {record.seq} where {seq} is next")


def _check_change(change: RowChange) -> None:
    check_text("waiting_for", change.waiting_for)
    for run_id in change.wakes:
        check_text("run id", run_id)
    status, due_at = change.status, change.due_at
    if due_at is not None and not 0 <= due_at < 2**63:
        raise InvalidInput(f"due_at {due_at} is not a time in microseconds")
    if status in (None, "waiting"):
        return
    if status == "pending":
        if due_at is None and not change.wake:
            raise InvalidInput("a pending run needs a time to be due, or nobody would take it up")
    elif status not in UNCLAIMABLE_STATUSES:
        raise InvalidInput(f"a run cannot be settled as {status!r}")
    elif due_at is not None:
        raise InvalidInput(f"a run that is {status} is never due")


def check_filter(which: Filter) -> None:
    """InvalidInput for text that no run can have."""
    check_text("status", which.status)
    check_text("agent", which.agent)
    check_text("parent", which.parent)


# ── the fence ────────────────────────────────────────────────────────────────────────────────


class Standing(NamedTuple):
    """Where a run's log stands inside the transaction that is about to append to it."""

    epoch: int
    head: int
    hash: bytes = b""
    key: int = 0
    """The store's own name for the run, where it has one."""


def refusals(
    batch: Sequence[Append],
    standing: dict[str, Standing],
    claim_key: Callable[[Append], Exception | None] | None = None,
) -> list[Exception | None]:
    """Which appends of a batch must not be written, and why; None for the others.

    The rule of the fence, in one place for all stores: the epoch must be the run's current one, and
    the log must end where the caller believes. One refusal fails only its own append (and later ones
    of the same run, which were built upon it). `claim_key` is asked to take the key of an append that
    passes so far and has one; its refusal counts like the others.
    """
    ends: dict[str, tuple[int, bytes]] = {}  # of the logs that this batch makes longer
    refused: list[Exception | None] = []
    for work in batch:
        run_id = work.run_id
        at = standing.get(run_id)
        if at is None:
            refused.append(NotFound(f"there is no run {run_id!r}"))
            continue
        head, end = ends.get(run_id) or (at.head, at.hash)
        if work.epoch is not None and work.epoch != at.epoch:
            refused.append(LeaseLost(run_id, work.epoch, at.epoch))
        elif work.after != head or (work.before and end and work.before != end):
            refused.append(Conflict(run_id, work.after, head))  # not chained to what stands there
        elif work.claims_key and claim_key and (error := claim_key(work)):
            refused.append(error)
        else:
            if work.records:
                ends[run_id] = (work.records[-1].seq, work.records[-1].hash)
            refused.append(None)
    return refused
