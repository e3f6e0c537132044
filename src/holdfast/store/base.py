"""The store protocol: what Holdfast needs from the place where logs are stored.

A store contains runs: for each a row (who owns it, when it is due) and a log (what happened). It guarantees:

- **append** is atomic and durable when it returns, and happens only if the log still ends where the
  caller expects (`after`) and, for a worker, only under the run's current epoch (the fence);
- **claim** gives a run to one worker until its lease expires, under an epoch that only increases;
- time is the store's own, so workers whose clocks disagree still agree on leases and timers.

A store does not know what events mean. `holdfast.testing.check_store` tests what this module
describes; a store is complete when it passes.

Not here: what all stores have in common and a new one can reuse: validation of arguments
(`checks.py`), the fencing rule (`fence.py`), group commit of concurrent appends (`group.py`).
"""

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import Struct

from holdfast.core.log import Blob, Record
from holdfast.errors import InputConflict

W_co = TypeVar("W_co", covariant=True)
MICROSECONDS: Final = 1_000_000
TERMINAL_STATUSES: Final = ("completed", "failed", "cancelled")
STATUSES: Final = ("pending", "running", "waiting", "paused", "quarantined", *TERMINAL_STATUSES)
UNCLAIMABLE_STATUSES: Final = (*TERMINAL_STATUSES, "paused", "quarantined")
PRIORITIES: Final = range(-10, 11)
PRIORITY_US: Final = 60 * MICROSECONDS
"""A point of priority counts like this much waiting: runs are claimed in the order of
`due_at - priority * PRIORITY_US`. So urgent runs come first, and no run waits forever."""
_clock_ns: Final = time.clock_gettime_ns
"""Saved before any user code is loaded: some tools replace the functions of `time`."""
_REALTIME: Final = time.CLOCK_REALTIME
RESERVED: Final = "\x1f"
"""Keys that start so are Holdfast's own; a caller's idempotency key may not."""
NO_PROGRESS: Final = ("run_claimed", "call_started", "call_doubted", "call_resolved")
"""A log that grew only by events of these kinds since a run was claimed has not made progress: they are written
by a worker that claims the run, before it does anything that could kill it."""


def system_clock() -> int:
    """Microseconds since 1970 by the machine's clock, even if the process's clock is faked."""
    return _clock_ns(_REALTIME) // 1000


class NewRun(Struct, frozen=True, gc=False):
    """A run to be created. The same id with the same agent and input is the same run."""

    id: str
    agent: str
    input_digest: str
    code_version: str = ""
    parent: str = ""
    priority: int = 0


class Creation(msgspec.Struct, eq=False, gc=False):
    """A run to be created with its first records, and its outcome."""

    run: NewRun
    records: Sequence[Record]
    blobs: Sequence[Blob] = ()
    worker: str = ""
    lease_us: int = 0
    keys: Sequence[tuple[str, int]] = ()
    """Keys that events of its log hold, each with the seq of its event; one that is taken stays so."""
    row: "RunRow | None" = None
    """The run as it is, when this has been carried out."""
    is_new: bool = False

    @property
    def made(self) -> "tuple[RunRow, bool]":
        """The run, and whether it was created now."""
        assert self.row is not None
        return self.row, self.is_new

    def settle(self, row: "RunRow", is_new: bool) -> InputConflict | None:
        """Set the outcome; if the run existed, it must match."""
        self.row, self.is_new = row, is_new
        if not is_new and row.agent != self.run.agent:
            return InputConflict(row.id, f"agent ({row.agent})")
        if not is_new and row.input_digest != self.run.input_digest:
            return InputConflict(row.id, "input")
        return None


class RunRow(Struct, frozen=True, gc=False):
    """A run's row: what is known without reading its log."""

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
    woken: int = 0
    """How often it was woken: by events from outside, and by the ends of child runs."""
    waiting_kinds: str = ""
    """What it is waiting for as data: kinds of `holdfast.waiting`, separated by spaces. `waiting_for` is the sentence."""

    def is_live(self, now: int) -> bool:
        """Whether a worker holds an unexpired lease on it."""
        return self.status == "running" and self.due_at is not None and self.due_at > now


class RowChange(msgspec.Struct, frozen=True, gc=False):
    """How a run's row changes together with an append.

    A worker *settles* a run with a new status, which ends its lease; any process may *wake* a run that
    is waiting. `wakes` names other runs to wake in the same transaction (a parent, when its child ends).
    """

    status: str | None = None
    due_at: int | None = None
    waiting_for: str = ""
    wake: bool = False
    wakes: tuple[str, ...] = ()
    woken: int | None = None
    """For a run that is suspended: how often it had been woken (`RunRow.woken`) when the worker looked at
    what it is waiting for. If it was woken since, the append is refused with Woken."""
    waiting_kinds: str = ""
    """See `RunRow.waiting_kinds`."""


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
    expects, but the same. Empty if the caller knows that no other process could have written."""


class Filter(NamedTuple):
    """Which runs to list."""

    status: str = ""
    agent: str = ""
    created_after: int | None = None
    created_before: int | None = None
    parent: str = ""


class ClaimFilter(NamedTuple):
    """Runs that a worker may claim: of one agent, started with one version of its code.

    `max_running` is how many runs of the agent may be in progress at once, over all workers and versions.
    """

    agent: str
    code_version: str = ""
    max_running: int | None = None


class Kind(NamedTuple):
    """An agent and version with unfinished runs, and when the next of them is due."""

    agent: str
    code_version: str
    due_at: int


class Schedule(NamedTuple):
    """A recurring run; `next_at` is the next time for which no run was created yet."""

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


class RegisteredAgent(NamedTuple):
    """An agent that a worker has registered. `data` is an encoded `core.registration.Registration`."""

    name: str
    code_version: str
    data: bytes
    registered_at: int


LIVE: Final = "live:"
"""The snapshots whose `code_version` starts so are their own family: what a loop continues from."""


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


class Finding(Struct, frozen=True):
    """One finding of `holdfast doctor`."""

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
    """The schedules of a store. It ensures that no time is used twice; computing times is not its task."""

    def put(self, schedule: Schedule) -> None:
        """Keep it, in the place of an older one of the same id (whose creation and last time stay)."""
        ...

    def all(self) -> list[Schedule]: ...

    def due(self, agents: Sequence[str], *, limit: int = 100) -> list[Schedule]:
        """Those of these agents whose next time has come, the longest overdue first."""
        ...

    def advance(self, schedule: Schedule, *, next_at: int, last_at: int) -> bool:
        """Set the next time, unless another process has done so since this schedule was read."""
        ...

    def delete(self, schedule_id: str) -> bool: ...


class Agents(Protocol):
    """The agents of a store: those that workers have registered, and the names of those with runs."""

    def register(self, agents: Sequence[RegisteredAgent]) -> None:
        """Keep each, in the place of an older one of the same name and version."""
        ...

    def all(self) -> list[RegisteredAgent]:
        """By name; of one name the last registered version first."""
        ...

    def with_runs(self) -> list[str]:
        """The names of the agents that have runs, registered or not, in order."""
        ...


class SharedLimits(Protocol):
    """Limits across all workers of a store, by the store's clock."""

    def take_turn(
        self, name: str, holder: str, *, count: int, per_us: int, slack_us: int
    ) -> int | None:
        """None: the holder may start now, and its permit is used. Otherwise the time of its permit, which is kept until
        then, and for `slack_us` more. At most `count` holders start within any `per_us`."""
        ...

    def take_seat(self, name: str, holder: str, *, run_id: str, epoch: int, limit: int) -> bool:
        """Whether the holder has one of at most `limit` slots. It keeps the slot until it leaves, or until its
        run's lease under this epoch expires."""
        ...

    def leave_seat(self, name: str, holder: str) -> None: ...


class Snapshots(Protocol):
    """The snapshots of a store's runs, in two families (`LIVE`)."""

    def save(
        self, run_id: str, snapshot: Snapshot, *, keep: int = 3, max_age_us: int | None = None
    ) -> None:
        """Keep it, and of its family only the newest `keep` in all, and of those none that is older than
        `max_age_us` but the newest."""
        ...

    def newest(
        self, run_id: str, *, at_most: int | None = None, live: bool = False
    ) -> Snapshot | None:
        """The newest snapshot (of a fold up to `at_most`), of the family that is asked for."""
        ...

    def rotate(self, run_id: str, *, keep: int = 3, max_age_us: int | None = None) -> int:
        """Delete what `save` would, in both families; how many were deleted."""
        ...


class Ticket(Protocol[W_co]):
    """A write that was submitted to the store. One caller waits for it or awaits it; then it is durable, or was refused.

    A task that is cancelled while it awaits one gets the cancellation when the ticket is settled.
    """

    settled: bool
    error: BaseException | None
    """Why it was refused, when it is settled."""

    def wait(self) -> W_co:
        """Return the work when it is durable, or raise why it was refused. It may be committed on this thread."""
        ...

    def __await__(self) -> Generator[Any, None, W_co]: ...

    def push(self) -> None:
        """Have it committed now, though neither the caller waits nor its event loop turns."""
        ...


class Store(Protocol):
    """The place where logs are stored. All methods may be called from any thread."""

    url: str

    @property
    def agents(self) -> Agents: ...

    @property
    def schedules(self) -> Schedules: ...

    @property
    def limits(self) -> SharedLimits: ...

    @property
    def snapshots(self) -> Snapshots: ...

    def now(self) -> int:
        """The store's clock, in microseconds since 1970."""
        ...

    def create(self, creation: Creation) -> Ticket[Creation]:
        """Create a run and its first records, claimed for its `worker` if given; else due at once.

        `Creation.made` is then the row, and whether it was created now. If the id exists with the same agent and
        input, its row is returned and nothing is written; with another, InputConflict.
        """
        ...

    def append(self, work: Append) -> None:
        """Durable when it returns. Conflict, LeaseLost, KeyTaken, Woken: nothing was written. If it is interrupted,
        nothing is written any more."""
        ...

    def submit(self, work: Append) -> Ticket[Append]:
        """Enqueue an append, to wait for or to await. Appends are committed in the order in which they were
        enqueued, those of concurrent callers together."""
        ...

    def get(self, run_id: str) -> RunRow | None: ...

    def read(self, run_id: str, *, after: int = -1, limit: int | None = None) -> list[Record]:
        """Records with seq > after, in order. Checking the chain is the reader's part."""
        ...

    def head(self, run_id: str) -> int:
        """The seq at which the run's log ends; -1 if there is no such run."""
        ...

    def heads(self, run_ids: Sequence[str]) -> dict[str, int]:
        """The seq at which each of these runs' logs ends, in one question; runs that are not there
        are left out."""
        ...

    def last_restart(self, run_id: str) -> int:
        """The seq of the run's last `run_restarted`; -1 if it has none. Quick, however long the log is."""
        ...

    def open_append(self, run_id: str, epoch: int) -> AbstractContextManager[OpenAppend]:
        """A transaction for a tool that writes into the store's own database."""
        ...

    def claim(
        self, run_id: str, *, worker: str, lease_us: int, quota: ClaimFilter | None = None
    ) -> RunRow | None:
        """Claim a run that has no live owner and has not ended, due or not; None if impossible.

        With `quota`, which names the run's agent, only if fewer than its `max_running` are in progress.
        """
        ...

    def claim_due(
        self,
        *,
        worker: str,
        lease_us: int,
        limit: int,
        filters: Sequence[ClaimFilter],
        exclude: Sequence[str] = (),
    ) -> list[RunRow]:
        """Claim runs that are due: new, woken, or left by a worker whose lease expired.

        Up to `limit` at once, in queue order. `exclude` names runs not to claim: those that the worker is still
        executing, whatever happened to its lease.
        """
        ...

    def renew(self, leases: Sequence[tuple[str, int]], *, lease_us: int) -> set[str]:
        """Extend leases given as (run id, epoch); the ids that are lost (expired or claimed by others)."""
        ...

    def release(self, run_id: str, epoch: int, *, died: bool = False) -> bool:
        """Release an unfinished run: due at once, for any worker.

        A worker that releases a run was not killed by it, so the claim is not counted against the run;
        unless `died` is set.
        """
        ...

    def runs(
        self, filter: Filter = Filter(), *, limit: int = 50, cursor: int | None = None
    ) -> list[RunRow]:
        """Newest first. The last row's `cursor` is where the next page starts."""
        ...

    def kinds(self) -> list[Kind]:
        """Which agents and versions have runs to be done."""
        ...

    def find_key(self, key: str) -> tuple[str, int] | None:
        """The run and event that hold a caller's own idempotency key."""
        ...

    def blob(self, run_id: str, hash: str) -> bytes | None: ...

    def delete(self, run_id: str) -> bool:
        """Delete a run that has ended, all of it; its id and the keys that it claims are free again. False
        if it has not ended or does not exist."""
        ...

    def wait(self, run_id: str, *, after: int, timeout: float) -> bool:
        """Wait until the run's log has an event beyond `after`; False when the time is over."""
        ...

    def wait_due(
        self,
        filters: Sequence[ClaimFilter],
        *,
        timeout: float,
        stop_when: Callable[[], bool] | None = None,
    ) -> bool:
        """Wait until a wanted run, or a schedule of a wanted agent, may have become due; a hint, to be
        followed by `schedules.due` and `claim_due`.

        Ends early when `stop_when` is true, which is checked at the start and at each `nudge`.
        """
        ...

    def nudge(self) -> None:
        """Make waiting calls of this process check again."""
        ...

    def examine(self) -> list[Finding]:
        """Settings that matter for safety, for `holdfast doctor`."""
        ...

    def close(self) -> None: ...
