"""What operations take and return, beyond what `views` returns: query parameters, bodies and pages, as Structs.

Unknown fields are refused: a misspelt option must not be ignored. Values of users are plain JSON. Times are microseconds
since 1970.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Raw, Struct
from msgspec.structs import astuple

from holdfast.core.events import ItemPut, Value
from holdfast.core.log import Record
from holdfast.core.state import Call
from holdfast.doctor import DamagedRun, Diagnosis
from holdfast.store.base import Finding, Kind, RunRow, Schedule
from holdfast.views import AgentInfo, InboxItem, Moment

Limit = Annotated[int, Meta(ge=1, le=1000)]
Seconds = Annotated[float, Meta(ge=0, le=60)]
"""How long the server may wait before it answers."""
Text = Annotated[str, Meta(max_length=10_000)]
Name = Annotated[str, Meta(min_length=1, max_length=1000)]
Cursor = Annotated[str, Meta(max_length=30, pattern=r"^[0-9]*$")]
"""Where a page starts: `next` of the previous page. Its form may change."""


class _Query(Struct, frozen=True, forbid_unknown_fields=True):
    pass


class _Body(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    pass


# ── queries ──────────────────────────────────────────────────────────────────────────────────


class NoQuery(_Query, frozen=True):
    """No parameters."""


class RunsQuery(_Query, frozen=True):
    """`q` is a search, such as `status:failed agent:recap error:timeout since:24h`. It may be given instead of `status`,
    `agent` and `parent`."""

    q: Annotated[str, Meta(max_length=1000)] = ""
    status: str = ""
    agent: str = ""
    parent: str = ""
    limit: Limit = 50
    after: Cursor = ""


class InboxQuery(_Query, frozen=True):
    agent: str = ""
    limit: Limit = 50
    after: Cursor = ""


class StateQuery(_Query, frozen=True):
    """With `brief`, most calls that are over are left out; `left_out` counts them. A long run is read quickly then."""

    brief: bool = False


class StepQuery(_Query, frozen=True):
    step: Annotated[int, Meta(ge=0)]
    when: Literal["before", "after"] = "after"


class DiffQuery(_Query, frozen=True):
    a: Annotated[int, Meta(ge=0)]
    b: Annotated[int, Meta(ge=0)]


class EventsQuery(_Query, frozen=True):
    """Events after a seq. With `wait`, the server waits that long for the first of them."""

    after: Annotated[int, Meta(ge=-1)] = -1
    limit: Limit = 200
    wait: Seconds = 0.0


class TimelineQuery(_Query, frozen=True):
    after: Annotated[int, Meta(ge=-1)] = -1
    limit: Limit = 200


class StreamQuery(_Query, frozen=True):
    """Where the stream starts; the header Last-Event-ID wins."""

    after: Annotated[int, Meta(ge=-1)] = -1


class CallsQuery(_Query, frozen=True):
    after: Annotated[int, Meta(ge=0)] = 0
    limit: Limit = 200


class ItemQuery(_Query, frozen=True):
    collection: str
    key: str


class ItemsQuery(_Query, frozen=True):
    """Items whose keys start with `prefix`, put after the event `after`, newest first; `before` is `next` of the page
    before."""

    collection: str = ""
    prefix: str = ""
    after: Annotated[int, Meta(ge=-1)] = -1
    before: Annotated[int, Meta(ge=0)] | None = None
    limit: Limit = 50


class WaitQuery(_Query, frozen=True):
    wait: Seconds = 0.0


# ── bodies ───────────────────────────────────────────────────────────────────────────────────


class BudgetLimits(_Body, frozen=True):
    max_steps: Annotated[int, Meta(ge=0)] | None = None
    max_wall_time: Annotated[float, Meta(ge=0)] | None = None
    max_llm_tokens: Annotated[int, Meta(ge=0)] | None = None
    max_cost_usd: Annotated[float, Meta(ge=0)] | None = None
    max_artifact_bytes_in_context: Annotated[int, Meta(ge=0)] | None = None


class Start(_Body, frozen=True):
    """A run of a registered agent. The same id with the same input is the same run."""

    agent: Name
    input: dict[str, Any] = {}
    id: str | None = None
    version: str | None = None
    priority: Annotated[int, Meta(ge=-10, le=10)] = 0
    deadline: Annotated[float, Meta(ge=0)] | None = None
    budget: BudgetLimits | None = None
    why: Text = ""


class Reason(_Body, frozen=True):
    why: Text = ""


class Decide(_Body, frozen=True):
    """`request` names one of several open requests. `digest` is that of what was shown to the person who decides."""

    request: str = ""
    digest: str = ""
    why: Text = ""


class RecordRun(_Body, frozen=True):
    """A run that another program executes; `agent` is the program's name. The same id with the same input is the
    same run."""

    agent: Name
    id: str
    input: dict[str, Any] = {}
    why: Text = ""


class Finish(_Body, frozen=True):
    result: Any = None


class PutItem(_Body, frozen=True):
    """A JSON `value`, or bytes (`data`, in base64)."""

    collection: str
    key: str
    value: Any = None
    data: bytes | None = None


class Approve(Decide, frozen=True):
    """`args` are the arguments to call the tool with instead of those that were shown: all of them, by name."""

    args: dict[str, Any] | None = None


class Answer(_Body, frozen=True):
    value: Any
    request: str = ""
    why: Text = ""


class SendSignal(_Body, frozen=True):
    """The same `signal_id` counts once."""

    name: Name
    value: Any = None
    signal_id: str = ""
    why: Text = ""


class Resolve(_Body, frozen=True):
    """A call in doubt: it was done with this result, it failed for this reason, or it is to be tried again."""

    how: Literal["done", "failed", "retry"]
    call: int | str | None = None
    result: Any = None
    reason: Text = ""
    why: Text = ""


class Resume(_Body, frozen=True):
    """`deadline` (seconds from now) and `budget` raise the run's limits."""

    deadline: Annotated[float, Meta(ge=0)] | None = None
    budget: BudgetLimits | None = None
    accept_new_steps: bool = False
    why: Text = ""


class Fork(_Body, frozen=True):
    step: Annotated[int, Meta(ge=1)]
    id: str | None = None
    state: dict[str, Any] = {}
    why: Text = ""


class PatchRequest(_Body, frozen=True):
    """Changes of what the run knows: new values of its state and keys to delete, a StatePatch (`knowledge`), or a JSON
    Patch (`operations`, RFC 6902). The first two may come together."""

    set: dict[str, Any] = {}
    delete: tuple[str, ...] = ()
    knowledge: dict[str, Any] | None = None
    operations: list[dict[str, Any]] | None = None
    key: Annotated[str, Meta(max_length=255)] = ""
    """The same key counts once per run."""
    why: Text = ""


class Bulk(_Body, frozen=True):
    """Many runs: those that match `q`, or `runs`. `newest` of a `dry_run` keeps runs out that were created since."""

    verb: Literal["cancel", "resume"]
    q: Annotated[str, Meta(max_length=1000)] = ""
    runs: Annotated[list[str], Meta(max_length=1000)] = []
    newest: Annotated[int, Meta(ge=0, le=2**62)] | None = None
    dry_run: bool = False
    why: Text = ""


class CollectGarbage(_Body, frozen=True):
    older_than: Annotated[float, Meta(ge=0)] | None = None
    keep: Annotated[int, Meta(ge=0)] | None = None
    snapshots: Annotated[int, Meta(ge=1)] | None = None
    snapshot_age: Annotated[float, Meta(ge=0)] | None = None
    dry_run: bool = False


# ── results ──────────────────────────────────────────────────────────────────────────────────


class RunList(Struct, frozen=True, omit_defaults=True):
    """`stopped`: a search has looked at as many runs (`looked`) as it may and has not filled the page; continue with
    `next`."""

    items: list[RunRow]
    next: Cursor | None
    stopped: bool = False
    looked: int = 0


class InboxList(Struct, frozen=True):
    items: list[InboxItem]
    next: Cursor | None


class StartResult(Struct, frozen=True, omit_defaults=True):
    run: RunRow
    is_new: bool
    has_ended: bool = False
    """Whether it ended while the server waited."""


class RecordedEvent(Struct, frozen=True):
    """One event of a log: `data` is the event as it is stored, `hash` covers it and the event before."""

    seq: int
    time: int
    epoch: int
    kind: str
    hash: str
    data: Raw


class EventList(Struct, frozen=True):
    items: list[RecordedEvent]
    next: int
    """`after` of the next page."""
    has_ended: bool
    """Whether the run has ended and this is the end of its log."""


class LogEnd(Struct, frozen=True):
    """Where a log ends now."""

    seq: int


class TimelineItem(Struct, frozen=True):
    """One event in words. `tone` is a colour, or null."""

    seq: int
    time: int
    epoch: int
    kind: str
    about: str
    text: str
    tone: str | None

    @classmethod
    def of(cls, value: Moment) -> TimelineItem:
        return cls(*value)

    def moment(self) -> Moment:
        return Moment(*astuple(self))


class TimelineList(Struct, frozen=True):
    items: list[TimelineItem]
    next: int


class CallList(Struct, frozen=True):
    items: list[Call]
    next: int | None
    seq: int
    """The event up to which this is true."""


class PathChange(Struct, frozen=True):
    """One difference. A part that is not there is left out."""

    path: str
    before: Any = None
    after: Any = None


class ChangeList(Struct, frozen=True):
    items: list[PathChange]


class AgentList(Struct, frozen=True):
    items: list[AgentInfo]


class ScheduleInfo(Struct, frozen=True):
    id: str
    agent: str
    cron: str
    zone: str
    input: Raw
    priority: int
    catch_up: str
    created_at: int
    next_at: int
    last_at: int | None = None

    @classmethod
    def of(cls, value: Schedule) -> ScheduleInfo:
        return cls(**{**value._asdict(), "input": Raw(value.input)})

    def schedule(self) -> Schedule:
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return Schedule(**{**fields, "input": bytes(memoryview(self.input))})


class ScheduleList(Struct, frozen=True):
    items: list[ScheduleInfo]


class OverdueKind(Struct, frozen=True):
    """An agent and version with runs that are due, and that no worker claims."""

    agent: str
    code_version: str
    due_at: int


class DoctorReport(Struct, frozen=True):
    """What was found in the store. `ok` is false if a run is damaged or a setting is unsafe."""

    ok: bool
    findings: tuple[Finding, ...]
    runs: int
    damaged: tuple[DamagedRun, ...]
    overdue: tuple[OverdueKind, ...]
    now: int

    @classmethod
    def of(cls, value: Diagnosis) -> DoctorReport:
        overdue = tuple(OverdueKind(*kind) for kind in value.overdue)
        return cls(value.ok, value.findings, value.runs, value.damaged, overdue, value.now)

    def diagnosis(self) -> Diagnosis:
        overdue = tuple(Kind(*astuple(kind)) for kind in self.overdue)
        return Diagnosis(self.findings, self.runs, self.damaged, overdue, self.now)


class Whoami(Struct, frozen=True):
    name: str
    role: str
    may: tuple[str, ...]
    """The verbs that this credential may use."""
    read_only: bool
    version: str


class DeleteResult(Struct, frozen=True):
    id: str


class KeptItem(Struct, frozen=True):
    """What an integration has kept under a key. If `value` names a blob, its bytes are at /blobs/{hash}: JSON, or, if
    `is_bytes`, the value itself."""

    collection: str
    key: str
    version: int
    seq: int
    time: int
    value: Value
    is_bytes: bool = False

    @classmethod
    def of(cls, record: Record, put: ItemPut) -> KeptItem:
        assert put.value is not None
        return cls(
            put.collection, put.key, put.number, record.seq, record.time, put.value, put.is_bytes
        )


class ItemFound(Struct, frozen=True):
    item: KeptItem | None


class ItemList(Struct, frozen=True):
    items: list[KeptItem]
    next: int | None = None


class ItemChanged(Struct, frozen=True):
    """Whether anything was recorded."""

    changed: bool


class PatchResult(Struct, frozen=True):
    """`is_new` is false if the same key was used before; `seq` is where the log ends now."""

    is_new: bool
    seq: int
