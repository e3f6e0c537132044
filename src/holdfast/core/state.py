"""What is known about a run at one point of its log: `RunState`, and the parts that it is made of.

It contains the five layers that people ask for: position, tool outputs, decisions, retry context and
failure context. All of it is immutable.

Not here: how events add up to it (`fold.py`), the parts of what an agent knows (`parts.py`).
"""

from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.core import values
from holdfast.core.branch_path import UNDO
from holdfast.core.effect import Effect
from holdfast.core.events import Divergence, ErrorInfo, Usage, Value
from holdfast.core.parts import Artifact, Fact, Message, PlanStep
from holdfast.waiting import WaitingFor

if TYPE_CHECKING:
    from holdfast.core.agent_state import AgentState


class Attempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """One try of a call: when it started, and how it failed if it did."""

    number: int
    started_at: int
    ended_at: int | None = None
    error: ErrorInfo | None = None
    retry_at: int | None = None


class Resolution(msgspec.Struct, frozen=True, omit_defaults=True):
    """A doubt about a call was resolved. `how` is done, failed or retry; `by` is empty for a check or a policy."""

    how: str
    by: str
    why: str
    time: int


class Evidence(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a worker that had lost the run reports about a call. It decides nothing. `outcome` is done or failed."""

    worker: str
    epoch: int
    outcome: str
    time: int
    result: Value | None = None
    error: ErrorInfo | None = None


UNSETTLED: Final = ("running", "in_doubt")
"""A call with such a status may or may not have happened, once no worker executes it."""


class Call(msgspec.Struct, frozen=True, omit_defaults=True):
    """One use of a step or tool. `status` is running, retrying, done, failed or in_doubt.

    `running` means an intent without a receipt. If its owner has died it is in doubt; `views` says so,
    because only the lease can tell.
    """

    step: int
    name: str
    index: int
    status: str
    branch: str = ""
    effect: str = ""
    key: str = ""
    digest: str = ""
    risk: str = ""
    tool_version: str = ""
    args: Value | None = None
    result: Value | None = None
    error: ErrorInfo | None = None
    attempts: tuple[Attempt, ...] = ()
    started_at: int = 0
    ended_at: int | None = None
    duration_us: int = 0
    usage: Usage | None = None
    first_seq: int = 0
    last_seq: int = 0
    evidence: tuple[Evidence, ...] = ()
    """What workers that had lost the run reported about it."""
    resolution: Resolution | None = None
    """How a doubt about it was resolved, and by whom."""
    undoable: bool = False
    undoes: int = 0
    undone: bool = False
    child: str = ""
    unavailable: str = ""

    @property
    def id(self) -> str:
        """Where the call is in the run's code: its branch and position."""
        return f"{self.branch}#{self.index}"

    @property
    def may_be_in_doubt(self) -> bool:
        """Whether it may have happened although no receipt is recorded."""
        return bool(self.effect) and Effect.recorded(self.effect).may_be_in_doubt


class Waiting(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something the code is waiting for: a timer, a signal, an approval, an answer or a child run."""

    index: int
    wait: str
    name: str
    since: int
    branch: str = ""
    until: int | None = None
    show: Value | None = None
    options: tuple[str, ...] = ()
    digest: str = ""
    tool: str = ""
    tool_version: str = ""
    of: tuple[str, ...] = ()
    decided: bool = False

    @property
    def id(self) -> str:
        """How people name it when they decide: its branch and position."""
        return f"{self.branch}#{self.index}"


class Decision(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    choice: Any
    why: str
    options: tuple[str, ...]
    step: int
    time: int


class TimelineEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A log line, a patch, a decision by a person: something to show on the timeline."""

    time: int
    level: str
    text: str


def signed(what: str, by: str, why: str) -> str:
    """What was done, by whom and why: `cancelled by ann: a duplicate`."""
    return what + (f" by {by}" if by else "") + (f": {why}" if why else "")


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why and where a run failed, and what it knew then."""

    time: int
    error: ErrorInfo
    reason: str
    step: int
    tool: str
    input: Value | None
    state: dict[str, Any]
    also: tuple[int, ...] = ()


class ReceivedSignal(msgspec.Struct, frozen=True, omit_defaults=True):
    id: str
    name: str
    value: Value
    seq: int


class QueuedPatch(msgspec.Struct, frozen=True, omit_defaults=True):
    """A patch from outside that a loop will apply when its iteration ends."""

    id: str
    patch: Value | None = None
    operations: Value | None = None
    by: str = ""


class RunState(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything that a run's log contains, at one point of it."""

    id: str = ""
    agent: str = ""
    status: str = "pending"
    code_version: str = ""
    input: Value | None = None
    result: Value | None = None
    failure: Failure | None = None
    state: dict[str, Any] = {}
    stage: str = ""
    stages: tuple[str, ...] = ()
    stage_history: tuple[str, ...] = ()
    plan: tuple[PlanStep, ...] = ()
    steps: int = 0
    child_steps: int = 0
    """How many calls its child runs (and theirs) had made when they ended."""
    calls: tuple[Call, ...] = ()
    left_out: int = 0
    """How many calls that are over are not in `calls`; 0 unless this is a brief state."""
    waits: tuple[Waiting, ...] = ()
    decisions: tuple[Decision, ...] = ()
    facts: tuple[Fact, ...] = ()
    questions: tuple[str, ...] = ()
    notes: dict[str, Any] = {}
    messages: tuple[Message, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    context: Value | None = None
    """The slice of the run that a model was last shown."""
    flags: tuple[str, ...] = ()
    lines: tuple[TimelineEntry, ...] = ()
    signals: tuple[ReceivedSignal, ...] = ()
    usage: Usage = Usage()
    items: dict[str, int] = {}
    """How many items integrations keep in it, by collection."""
    is_recorded: bool = False
    """Another program executes it; Holdfast only records it."""
    budget: dict[str, float] = {}
    deadline_at: int | None = None
    waiting_for: str = ""
    """What it is waiting for, as it was recorded, for people."""
    waiting: tuple[WaitingFor, ...] = ()
    """The same as data; empty if the run is not suspended."""
    wake_at: int | None = None
    diverged: Divergence | None = None
    """Both sides, while the run is waiting because its code does not match its log."""
    cancel_requested: bool = False
    parent: str = ""
    forked_from: str = ""
    inherited_effects: tuple[str, ...] = ()
    is_loop: bool = False
    iteration: int = 0
    iteration_index: int = -1
    loop: Any = None
    queued: tuple[QueuedPatch, ...] = ()
    workers: tuple[str, ...] = ()
    restarts: int = 0
    created_at: int = 0
    updated_at: int = 0
    seq: int = -1

    @property
    def agent_state(self) -> "AgentState | None":
        """The state of a loop after its last committed iteration; None if the run is not a loop."""
        if self.loop is None:
            return None
        from holdfast.core.agent_state import AgentState  # here, as most runs are not loops

        return msgspec.convert(self.loop, AgentState)

    @property
    def committed(self) -> int:
        """How many calls have ended, successfully or not."""
        return self.left_out + sum(call.status in ("done", "failed") for call in self.calls)

    @property
    def in_doubt(self) -> tuple[Call, ...]:
        """Calls that may or may not have happened."""
        return tuple(call for call in self.calls if call.status == "in_doubt")

    @property
    def to_undo(self) -> tuple[Call, ...]:
        """What an undo would undo, newest first. For a call that has not ended, the undo first finds out
        whether it happened; a child run may have done a lot before it failed."""
        found = (c for c in self.calls if c.undoable and not c.undone and c.branch != UNDO)
        may_have = (c for c in found if c.status in ("done", "in_doubt", "running") or c.child)
        return tuple(sorted(may_have, key=lambda c: c.step, reverse=True))

    def call(self, step: int) -> Call | None:
        """The call with this step number."""
        return next((call for call in self.calls if call.step == step), None)


def to_plain(value: Any) -> Any:
    """Any part of a state as plain JSON values, for `--json` and for comparing."""
    if isinstance(value, Value):
        if value.blob:
            return {"artifact": value.blob, "bytes": value.bytes}
        return values.decode(value.json)
    if isinstance(value, msgspec.Struct):
        fields = {name: to_plain(getattr(value, name)) for name in value.__struct_fields__}
        return {"id": value.id, **fields} if isinstance(value, Waiting) else fields
    if isinstance(value, dict):
        return {k: to_plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(v) for v in value]
    record = values.dataclass_fields(value)
    return value if record is None else {k: to_plain(v) for k, v in record.items()}
