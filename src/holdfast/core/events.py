"""Every kind of fact that a log can contain, as frozen values with a versioned JSON form.

A run's log is a sequence of these. Three families:

- the run's own life: created, claimed, waiting, completed, failed …;
- what its code asked for, in the order of its branch: calls (intent, receipt) and waits;
- what its code and the people around it noted: state, stage, decisions, facts, messages, signals ….

This module defines the facts. `fold.py` folds them into a state, `log.py` chains and checks them,
and `journal.py` matches replayed code with them.

The position of a fact: `branch` names the branch of execution within the run ("" is the main one),
`index` is the position of a call or wait within its branch, and `after` is, for other facts, how many
calls and waits its branch had made before. So the same fact has the same position on every replay.
"""

# Without `from __future__ import annotations`: msgspec would have to evaluate the annotations of every class as texts,
# which doubles the time that this module takes to import. So in `state`, `parts` and `agent_state`.
import math
import re
from typing import Any, ClassVar, Final

import msgspec
from msgspec import Raw

from holdfast.core import values
from holdfast.errors import InvalidInput
from holdfast.waiting import WaitingFor


class Value(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """A user's value: its JSON bytes, or the hash of an artifact that contains them when they are big.

    (`gc=False`, here and below: facts contain no reference cycles, so the garbage collector need not visit them.)
    """

    json: Raw = Raw(b"")
    blob: str = ""
    bytes: int = 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Value):
            return NotImplemented
        return self.blob == other.blob and bytes_of(self.json) == bytes_of(other.json)

    def __hash__(self) -> int:
        return hash((self.blob, bytes_of(self.json)))

    def __repr__(self) -> str:
        return (
            f"Value(blob={self.blob!r})" if self.blob else f"Value({bytes_of(self.json).decode()})"
        )


def bytes_of(raw: Raw) -> bytes:
    """The bytes of a Raw."""
    return bytes(memoryview(raw))


NULL: Final = Value(json=Raw(b"null"))


def plain(value: Value) -> Any:
    """A value's content, read-only; a big one stays a `Value` that names its artifact."""
    return value if value.blob else values.freeze(values.decode(value.json))


class ErrorInfo(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """An exception as data: it is shown and matched, and never rebuilt by its name."""

    type: str
    message: str
    traceback: str = ""
    effect: str = ""
    """"none": it did not happen; "unknown": it may have happened; "": the tool raised an error of its own."""


def _check_finite(name: str, number: float, advice: str) -> None:
    """NaN and infinity would be stored as null, and such an event could never be read again."""
    if not math.isfinite(number):
        raise InvalidInput(f"{name} is {number}, which cannot be stored as JSON; {advice}")


class Usage(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """What a call used up, as its provider reported it."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0

    def __post_init__(self) -> None:
        _check_finite("cost_usd", self.cost_usd, "use 0 for an unknown cost")


def add_usage(a: Usage, b: Usage) -> Usage:
    """The sum of two usages."""
    return Usage(
        a.input_tokens + b.input_tokens,
        a.output_tokens + b.output_tokens,
        a.cost_usd + b.cost_usd,
    )


class ChildUsage(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a child run used up, its own children included: it counts against the parent's budget."""

    steps: int = 0
    usage: Usage = Usage()


class InheritedPolicy(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What the parents of a child run require of it, whatever its own agent declares.

    (Its deadline and budget are in `RunCreated` itself, narrowed by what its parent had left.)
    """

    approve: tuple[str, ...] = ()
    approval_ttl: float | None = None
    redact: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.approval_ttl is not None:
            _check_finite("approval_ttl", self.approval_ttl, "leave it out for no limit")


class Event(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """Base of all facts. `kind` and `version` name the JSON form; both are stored next to it.

    The kind is the name of the class in lower case. Three kinds are also names of public errors (`RunFailed`,
    `RunCancelled`, `CallFailed`): their classes have another name here, and state their kind.
    """

    kind: ClassVar[str] = ""
    version: ClassVar[int] = 1
    stored_as: ClassVar[str] = ""
    """The name under which it is stored: its kind, and its version when it is not the first."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "kind" not in vars(cls):
            cls.kind = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
        cls.stored_as = cls.kind if cls.version == 1 else f"{cls.kind}.{cls.version}"


# ── the run's own life ───────────────────────────────────────────────────────────────────────


class RunCreated(Event, frozen=True, omit_defaults=True):
    run_id: str
    agent: str
    input: Value
    code_version: str = ""
    deadline_at: int | None = None
    budget: dict[str, float] = {}
    stages: tuple[str, ...] = ()
    parent: str = ""
    forked_from: str = ""
    forked_step: int = 0
    inherited_effects: tuple[str, ...] = ()
    loop: bool = False  # its agent is a function from state to state
    by: str = ""  # who forked it
    why: str = ""
    policy: InheritedPolicy | None = None  # what its parents require, if anything
    ancestors: tuple[str, ...] = ()  # of a fork of a fork: those before `forked_from`, oldest first
    inherited_events: int = 0  # how many of the events that follow are those of `forked_from`
    recorded: bool = False  # another program executes it: no worker claims it

    def __post_init__(self) -> None:
        for name, limit in self.budget.items():
            _check_finite(name, limit, "leave it out for no limit")


class RunClaimed(Event, frozen=True, omit_defaults=True):
    """A worker claimed the run (again)."""

    worker: str
    code_version: str = ""


class Divergence(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where code made a call that differs from the recorded one, and both sides.

    `adds` is true if the code may only have added calls: then the new ones can be accepted.
    """

    where: str
    recorded: str
    attempted: str
    adds: bool = False


class RunSuspended(Event, frozen=True, omit_defaults=True):
    """The run was suspended until what it is waiting for happens, or until `wake_at`.

    `open_since` says when the oldest of all that is still open began: requests, and calls without a receipt.
    So a reader that needs to know what is open need not read what is before. None: unknown.
    `diverged` is set if the run stopped because its code does not match its log.
    """

    waiting_for: str
    how: str = ""
    wake_at: int | None = None
    open_since: int | None = None
    diverged: Divergence | None = None
    waits: tuple[WaitingFor, ...] = ()
    """The same as data; logs of older versions have only the text."""


class RunCompleted(Event, frozen=True, omit_defaults=True):
    result: Value


class RunFailure(Event, frozen=True, omit_defaults=True):
    """Terminal. `reason` is error, deadline, budget or diverged."""

    kind: ClassVar[str] = "run_failed"
    error: ErrorInfo
    reason: str = "error"
    step: int = 0
    also: tuple[int, ...] = ()  # other steps that failed next to it, in other branches


class RunCancellation(Event, frozen=True, omit_defaults=True):
    """Terminal: the requested cancellation has taken effect."""

    kind: ClassVar[str] = "run_cancelled"
    by: str = ""
    why: str = ""


class RunReopened(Event, frozen=True, omit_defaults=True):
    """A failed, paused or quarantined run may continue from where it stopped."""

    by: str = ""
    why: str = ""


class RunRestarted(Event, frozen=True, omit_defaults=True):
    """The code starts at its first line again, with the state kept: guards still hold."""

    by: str = ""
    why: str = ""


class StepsAccepted(Event, frozen=True, omit_defaults=True):
    """Calls that the code has added before the recorded ones are made instead of being refused."""

    by: str = ""
    why: str = ""


class LimitsChanged(Event, frozen=True, omit_defaults=True):
    """The run's limits were raised, or lowered: its deadline if given, and these limits of its budget."""

    deadline_at: int | None = None
    budget: dict[str, float] = {}
    by: str = ""
    why: str = ""

    def __post_init__(self) -> None:
        for name, limit in self.budget.items():
            _check_finite(name, limit, "leave it out for no change")


class RunPaused(Event, frozen=True, omit_defaults=True):
    by: str = ""
    why: str = ""


class RunQuarantined(Event, frozen=True, omit_defaults=True):
    """The run is quarantined: it killed its workers, or its log does not verify."""

    reason: str
    waits: tuple[WaitingFor, ...] = ()


class CancelRequested(Event, frozen=True, omit_defaults=True):
    """The run is to end at its next call. `reason` is why its parent failed (deadline, budget), if that is
    why: then the run fails for the same reason, and is not cancelled."""

    by: str = ""
    why: str = ""
    reason: str = ""


class UndoRequested(Event, frozen=True, omit_defaults=True):
    by: str = ""
    why: str = ""


class UndoStarted(Event, frozen=True, omit_defaults=True):
    """A limit has ended the run, and what it did is being undone. After a crash it ends for the same reason."""

    reason: str
    message: str = ""


# ── calls: what the code asked for ───────────────────────────────────────────────────────────


class CallStarted(Event, frozen=True, omit_defaults=True):
    """Intent: this call is about to start. Durable before its effect."""

    index: int
    step: int
    name: str
    effect: str
    key: str
    digest: str
    args: Value
    branch: str = ""
    attempt: int = 1
    tool_version: str = ""
    risk: str = ""
    key_until: int | None = None
    approval: int | None = None
    undoable: bool = False
    undoes: int = 0
    child: str = ""
    forks: int = 0  # branches that the code started between its last call or wait and this one


class CallSucceeded(Event, frozen=True, omit_defaults=True):
    """Receipt: done, with this result. Where there was no intent, `args` are here, or, if they are
    long, their `digest`."""

    index: int
    step: int
    name: str
    result: Value
    digest: str = ""
    args: Value | None = None
    branch: str = ""
    attempt: int = 1
    duration_us: int = 0
    usage: Usage | None = None
    unavailable: str = ""  # why the result could not be kept, although the effect happened
    buffered: bool = False  # written with a later commit: what came from outside was not seen here
    forks: int = 0
    spent: ChildUsage | None = None  # of a child run


class CallFailure(Event, frozen=True, omit_defaults=True):
    """Receipt of a failed attempt; with `retry_at` another one is due, without it this is final."""

    kind: ClassVar[str] = "call_failed"
    index: int
    step: int
    name: str
    error: ErrorInfo
    digest: str = ""
    args: Value | None = None
    branch: str = ""
    attempt: int = 1
    retry_at: int | None = None
    duration_us: int = 0
    forks: int = 0
    cut: bool = False  # the agent's code stopped waiting for it, and does so again on replay
    spent: ChildUsage | None = None  # of a child run
    usage: Usage | None = None  # of an answer that was charged for and could not be used
    forks_above: tuple[int, ...] = ()
    """If it was cut: how many branches each of the branches above had started by then since its last call; the
    nearest first. Those that they start later show that the code continued."""


def args_digest(receipt: CallSucceeded | CallFailure) -> str:
    """The name of a call's arguments, by its receipt; empty if they are in its intent."""
    if receipt.args is None:
        return receipt.digest
    return receipt.digest or values.digest(bytes_of(receipt.args.json))


class CallDoubted(Event, frozen=True, omit_defaults=True):
    """The call has an intent, no receipt, and no living owner: it may or may not have happened."""

    index: int
    step: int
    name: str
    branch: str = ""
    attempt: int = 1
    because: str = ""
    error: ErrorInfo | None = None
    """What the tool raised, if it did."""


class CallResolved(Event, frozen=True, omit_defaults=True):
    """A doubt is resolved by a person, a check or a policy: `how` is done, failed or retry."""

    index: int
    step: int
    name: str
    how: str
    branch: str = ""
    result: Value | None = None
    error: ErrorInfo | None = None
    by: str = ""
    why: str = ""


class CallEvidence(Event, frozen=True, omit_defaults=True):
    """What a worker that had lost its lease reports about a call. It decides nothing; people see it."""

    step: int
    name: str
    key: str
    digest: str
    worker: str
    epoch: int
    outcome: str
    result: Value | None = None
    error: ErrorInfo | None = None


# ── iterations ───────────────────────────────────────────────────────────────────────────────


class IterationEnded(Event, frozen=True, omit_defaults=True):
    """The code has ended an iteration: what is before this need not be replayed when a loop continues.

    A loop's state is here in full (`state`, the first time) or as what changed since the last iteration
    (`delta`, a JSON Patch). `taken` names the patches from outside that it includes, `refused` says why
    others could not be applied.
    """

    index: int
    iteration: int
    phase: str = ""
    state: Value | None = None
    delta: Value | None = None
    taken: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    buffered: bool = False  # as for a receipt
    forks: int = 0


# ── waits: people, signals, timers ───────────────────────────────────────────────────────────


class WaitBegan(Event, frozen=True, omit_defaults=True):
    """The code waits here. `wait` is timer, signal, approval, answer or child."""

    index: int
    wait: str
    name: str
    branch: str = ""
    digest: str = ""
    until: int | None = None
    show: Value | None = None
    options: tuple[str, ...] = ()
    tool: str = ""
    tool_version: str = ""
    of: tuple[str, ...] = ()
    forks: int = 0


class WaitEnded(Event, frozen=True, omit_defaults=True):
    """A wait has ended. `source` is the seq of the event that ended the wait.

    It is 0 if none did, and `outcome` then says what else: `time`; `lost`, as another wait next to it ended
    first; `cut`, as the code stopped waiting. (A signal's outcome is its name, which may be any word.)
    """

    index: int
    wait: str
    outcome: str
    branch: str = ""
    value: Value | None = None
    source: int = 0
    forks_above: tuple[int, ...] = ()
    """If it was cut: see `CallFailure`."""

    def is_over(self, how: str) -> bool:
        """Whether no event ended it, and it ended this way."""
        return not self.source and self.outcome == how


class TimeoutFired(Event, frozen=True, omit_defaults=True):
    """A timeout of the agent's code has taken effect: `asyncio.timeout` has cancelled a task, or `asyncio.wait` returned."""

    index: int
    """How many calls and waits the task had made."""
    branch: str = ""
    within_us: int = 0
    """How long the run had been executing in its process: the timeout was no longer than that."""
    entered_at: int = -1
    """Which timeout of the task: how many calls and waits the task had made when it entered it (-1: not known) …"""
    number: int = 0
    """… and how many timeouts it had entered since the last of them."""


class SignalReceived(Event, frozen=True, omit_defaults=True):
    id: str
    name: str
    value: Value
    by: str = ""
    why: str = ""


class ApprovalDecided(Event, frozen=True, omit_defaults=True):
    """One person's decision about one request, bound to the digest that was shown."""

    branch: str
    index: int
    approved: bool
    digest: str = ""
    by: str = ""
    why: str = ""
    args: Value | None = None
    """The arguments that the tool is called with, if the person edited those that were shown."""


class AnswerGiven(Event, frozen=True, omit_defaults=True):
    branch: str
    index: int
    value: Value
    by: str = ""
    why: str = ""


# ── what was noted along the way ─────────────────────────────────────────────────────────────


class Noted(Event, frozen=True, omit_defaults=True, kw_only=True):
    """Base of facts that the agent's code notes between its calls."""

    branch: str = ""
    after: int = 0

    @property
    def subject(self) -> str:
        """What the fact is about: with kind, branch and `after` it is the fact's identity."""
        return ""


class StateChanged(Noted, frozen=True, omit_defaults=True, kw_only=True):
    """`op` is set, increment, append or delete."""

    op: str
    key: str
    value: Value = NULL

    @property
    def subject(self) -> str:
        return f"{self.op} {self.key}"


class ValueRecorded(Noted, frozen=True, omit_defaults=True, kw_only=True):
    """Time, randomness or a marker, read once and the same on every replay."""

    name: str
    value: Value

    @property
    def subject(self) -> str:
        return self.name


class StageEntered(Noted, frozen=True, omit_defaults=True, kw_only=True):
    stage: str

    @property
    def subject(self) -> str:
        return self.stage


class PlanMade(Noted, frozen=True, omit_defaults=True, kw_only=True):
    steps: tuple[str, ...]


class PlanStepBegan(Noted, frozen=True, omit_defaults=True, kw_only=True):
    step: str

    @property
    def subject(self) -> str:
        return self.step


class PlanStepEnded(Noted, frozen=True, omit_defaults=True, kw_only=True):
    step: str

    @property
    def subject(self) -> str:
        return self.step


class DecisionMade(Noted, frozen=True, omit_defaults=True, kw_only=True):
    name: str
    choice: Value
    why: str = ""
    options: tuple[str, ...] = ()

    @property
    def subject(self) -> str:
        return self.name


class FactLearned(Noted, frozen=True, omit_defaults=True, kw_only=True):
    key: str
    value: Value
    source: str = ""

    @property
    def subject(self) -> str:
        return self.key


class QuestionRaised(Noted, frozen=True, omit_defaults=True, kw_only=True):
    question: str

    @property
    def subject(self) -> str:
        return self.question


class QuestionClosed(Noted, frozen=True, omit_defaults=True, kw_only=True):
    question: str

    @property
    def subject(self) -> str:
        return self.question


class NoteTaken(Noted, frozen=True, omit_defaults=True, kw_only=True):
    key: str
    value: Value

    @property
    def subject(self) -> str:
        return self.key


class RecordedToolCall(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A tool call inside a message: what a model asked for, and its outcome."""

    id: str
    name: str
    arguments: Value
    result: Value | None = None
    error: str | None = None
    duration: float = 0.0

    def __post_init__(self) -> None:
        _check_finite("duration", self.duration, "use 0 for an unknown value")


class MessageAdded(Noted, frozen=True, omit_defaults=True, kw_only=True):
    role: str
    content: Value
    metadata: Value | None = None
    tool_calls: tuple[RecordedToolCall, ...] = ()
    tool_call_id: str = ""

    @property
    def subject(self) -> str:
        return self.role


class ArtifactSaved(Noted, frozen=True, omit_defaults=True, kw_only=True):
    name: str
    type: str
    blob: str
    bytes: int
    summary: str = ""

    @property
    def subject(self) -> str:
        return self.name


class ContextShown(Noted, frozen=True, omit_defaults=True, kw_only=True):
    """What a model was shown of the run: the slice, as the code got it."""

    slice: Value


class LogWritten(Noted, frozen=True, omit_defaults=True, kw_only=True):
    level: str
    text: str

    @property
    def subject(self) -> str:
        return self.level


class KnowledgePatched(Noted, frozen=True, omit_defaults=True, kw_only=True):
    """The agent's own patch of what it knows: a `StatePatch`."""

    patch: Value


class StatePatched(Event, frozen=True, omit_defaults=True):
    """A change from outside: the agent sees it when its next call returns, a loop in its next iteration.

    `changes` are of the state, `patch` is a `StatePatch`, `operations` are a JSON Patch.
    """

    changes: Value
    by: str = ""
    why: str = ""
    id: str = ""
    patch: Value | None = None
    operations: Value | None = None


class ItemPut(Event, frozen=True, omit_defaults=True):
    """An integration has stored a value under a key of its own, or (without a value) deleted it.

    The versions of a key are numbered from 1, so that each is recorded once.
    """

    collection: str
    key: str
    number: int
    value: Value | None = None
    is_bytes: bool = False
    """The value is bytes, stored outside the log, and not JSON."""
    adds: bool = False
    """The key had no value before."""
    by: str = ""


def _concrete(base: type[Event]) -> list[type[Event]]:
    found: list[type[Event]] = []
    for cls in base.__subclasses__():
        found += [] if cls is Noted else [cls]
        found += _concrete(cls)
    return found


ALL: Final[dict[str, type[Event]]] = {cls.kind: cls for cls in _concrete(Event)}


def artifacts(event: Event) -> set[str]:
    """The digests of the values outside the log that an event refers to."""
    found = [getattr(event, name) for name in event.__struct_fields__]
    if isinstance(event, MessageAdded):
        found += [value for call in event.tool_calls for value in (call.arguments, call.result)]
    hashes = {value.blob for value in found if isinstance(value, Value) and value.blob}
    return hashes | {event.blob} if isinstance(event, ArtifactSaved) else hashes


class Unreadable(ValueError):
    """An event's kind, version or fields are not what this Holdfast knows."""


# Made here and not when the first event of a kind is read: msgspec crashes the interpreter if two threads prepare the
# same types at once.
_DECODERS: Final = {cls.stored_as: msgspec.json.Decoder(cls).decode for cls in ALL.values()}


def to_json(event: Event) -> bytes:
    """The event's stored form."""
    return values.encode_struct(event)


def from_json(name: str, data: bytes) -> Event:
    """The event that was stored under this name; Unreadable if unknown, newer or malformed."""
    decoder = _DECODERS.get(name)
    if decoder is None:
        kind, _, version = name.partition(".")
        if kind not in ALL:
            raise Unreadable(f"unknown event kind {kind!r}")
        raise Unreadable(
            f"{kind!r} has version {version or 1}, this Holdfast reads {ALL[kind].version}"
        )
    try:
        return decoder(data)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{name!r} cannot be decoded: {error}") from None
