"""The typed state of an agent: its task, its progress, its knowledge and its dialogue.

An `AgentState` is a deeply immutable value. A transition or a change returns a new one and leaves the
old one unchanged, so a state never changes after it was returned. It is stored as JSON and
decodes to an equal value.

The dialogue (`messages`) is what a user sees; `memory` is what the agent works with. Nothing here knows the
time: missing times (0) are set by the loop that commits it.
"""

from __future__ import annotations

import copy
import enum
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeVar, overload

import msgspec
from msgspec.structs import force_setattr, replace

from holdfast.core import canonical_state, dialogue, values
from holdfast.core import patch as patches
from holdfast.core.parts import (
    Artifact,
    Fact,
    Message,
    Part,
    PlanStep,
    Role,
    ToolCall,
    each,
    kept,
    plan_of,
)
from holdfast.core.patch import StatePatch
from holdfast.core.policy import MICROSECONDS, RISKS, Budget
from holdfast.core.tokens import ESTIMATE, TokenCounter
from holdfast.core.values import FrozenDict
from holdfast.errors import InvalidInput, InvalidTransition


class Phase(enum.StrEnum):
    """Where an agent is in its loop."""

    IDLE = "idle"
    PLANNING = "planning"
    EXECUTING = "executing"
    REFLECTING = "reflecting"
    DONE = "done"
    ERROR = "error"


ALLOWED: Final[Mapping[Phase, tuple[Phase, ...]]] = {
    Phase.IDLE: (Phase.PLANNING, Phase.ERROR),
    Phase.PLANNING: (Phase.EXECUTING, Phase.DONE, Phase.ERROR),
    Phase.EXECUTING: (Phase.REFLECTING, Phase.DONE, Phase.ERROR),
    Phase.REFLECTING: (Phase.PLANNING, Phase.EXECUTING, Phase.DONE, Phase.ERROR),
    Phase.DONE: (),
    Phase.ERROR: (Phase.PLANNING,),
}
"""Which phases may follow which. After an error, planning is allowed; done is final."""


class WorkingMemory(Part, frozen=True, omit_defaults=True):
    """An agent's working memory, separate from the dialogue."""

    plan: tuple[PlanStep, ...] = ()
    facts: tuple[Fact, ...] = ()
    questions: tuple[str, ...] = ()
    notes: dict[str, Any] = FrozenDict()
    artifacts: tuple[Artifact, ...] = ()
    flags: tuple[str, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()

    @classmethod
    def _user_values(cls) -> tuple[str, ...]:
        return ("notes",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.notes, dict):
            raise InvalidInput(f"WorkingMemory.notes must be a dict, not {self.notes!r}")
        force_setattr(self, "plan", plan_of(self.plan, "WorkingMemory.plan"))
        for name, kind in _MEMORY_ITEMS:
            items: Any = each(getattr(self, name), kind, f"WorkingMemory.{name}")
            force_setattr(self, name, items)

    @property
    def completed(self) -> tuple[str, ...]:
        """The names of the plan's steps that are done."""
        return tuple(step.name for step in self.plan if step.status == "done")

    @property
    def pending(self) -> tuple[str, ...]:
        """The names of the plan's steps that are not done."""
        return tuple(step.name for step in self.plan if step.status != "done")


_MEMORY_ITEMS: Final[tuple[tuple[str, type], ...]] = (
    ("facts", Fact),
    ("questions", str),
    ("artifacts", Artifact),
    ("flags", str),
    ("tool_calls", ToolCall),
)

A = TypeVar("A", bound="AgentState")
M = TypeVar("M", bound=msgspec.Struct)


class AgentState(Part, frozen=True, omit_defaults=True):
    """Everything an agent needs to continue. Immutable: each method returns a new state."""

    goal: str = ""
    phase: Phase = Phase.IDLE
    iteration: int = 0
    messages: tuple[Message, ...] = ()
    memory: WorkingMemory = WorkingMemory()
    constraints: dict[str, Any] = FrozenDict()
    budget: Budget = Budget()
    answer: Any = None
    error: str | None = None
    session: str = ""
    created_at: int = 0
    updated_at: int = 0

    @classmethod
    def _user_values(cls) -> tuple[str, ...]:
        return ("constraints", "answer")

    def __post_init__(self) -> None:
        super().__post_init__()
        what = type(self).__name__
        for name, kind in _FIELDS:
            value = getattr(self, name)
            if not isinstance(value, kind):
                raise InvalidInput(f"{what}.{name} must be {kind.__name__}, not {value!r}")
        _risk_levels(self.constraints)
        force_setattr(self, "phase", _phase(self.phase))
        force_setattr(self, "messages", each(self.messages, Message, f"{what}.messages"))
        for name, type_ in _added_fields(type(self)):  # by a subclass: validated and frozen too
            if type(getattr(self, name)) in (list, dict):
                force_setattr(self, name, kept(getattr(self, name), f"{what}.{name}"))
            try:
                msgspec.convert(getattr(self, name), type_)
            except msgspec.ValidationError as error:
                raise InvalidInput(f"{what}.{name}: {error}") from None

    def _with(self: A, **changes: Any) -> A:
        """The same state with these fields changed; their values must be valid.

        Not `replace`, which would validate every message again: the cost must not grow with the history.
        """
        return _changed(self, changes)

    def _remembering(self: A, **changes: Any) -> A:
        return self._with(memory=_changed(self.memory, changes))

    @classmethod
    def begin(cls: type[A], goal: str, *, session: str = "", **fields: Any) -> A:
        """The first state for a goal: planning, with the goal as the user's first message."""
        if not isinstance(goal, str) or not goal.strip():  # type: ignore[redundant-expr]
            raise InvalidInput(f"a goal must be non-empty text, not {goal!r}")
        first = (Message(Role.USER, goal),)
        return cls(goal=goal, phase=Phase.PLANNING, messages=first, session=session, **fields)

    # ── phases ───────────────────────────────────────────────────────────────────────────

    def _to(self: A, phase: Phase, **changes: Any) -> A:
        allowed = ALLOWED[self.phase]
        if phase not in allowed:
            raise InvalidTransition(self.phase.name, phase.name, [p.name for p in allowed])
        return self._with(phase=phase, **changes)

    def to_planning(self: A) -> A:
        """Start planning, also again; after an error this clears the error."""
        return self._to(Phase.PLANNING, error=None)

    def to_executing(self: A) -> A:
        """Start executing the plan."""
        return self._to(Phase.EXECUTING)

    def to_reflecting(self: A) -> A:
        """Start reflecting on the results."""
        return self._to(Phase.REFLECTING)

    def to_done(self: A, answer: Any = None) -> A:
        """The goal is reached; a loop ends here. The answer becomes the assistant's last message."""
        given = kept(answer, "the answer")
        done = self._to(Phase.DONE, answer=given)
        last = self.messages[-1] if self.messages else None
        is_last = last is not None and (last.role, last.content) == (Role.ASSISTANT, given)
        return done if given is None or is_last else done.with_message(Role.ASSISTANT, given)

    def to_error(self: A, error: str | BaseException) -> A:
        """The goal cannot be reached, and why; a loop fails here."""
        text = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else error
        return self._to(Phase.ERROR, error=str(text))

    @property
    def required_approvals(self) -> tuple[str, ...]:
        """The risk levels whose tools a person must approve, by its constraints. A loop enforces them."""
        return _risk_levels(self.constraints)

    @property
    def is_over(self) -> bool:
        """Whether it is done or has failed."""
        return self.phase in (Phase.DONE, Phase.ERROR)

    # ── what the agent knows ─────────────────────────────────────────────────────────────

    def with_plan(self: A, steps: Iterable[str | PlanStep]) -> A:
        """Replace the plan."""
        return self._remembering(plan=plan_of(steps))

    def with_step(self: A, name: str, status: str) -> A:
        """Set the status of a step of the plan: pending, doing, done, or your own."""
        steps = list(self.memory.plan)
        for i, step in enumerate(steps):
            if step.name == name:
                steps[i] = PlanStep(name, status)
                return self._remembering(plan=tuple(steps))
        known = ", ".join(repr(step.name) for step in steps) or "nothing"
        raise InvalidInput(f"{name!r} is not in the plan, which has {known}")

    def record(self: A, what: ToolCall | Any, *, name: str = "", arguments: Any = None) -> A:
        """Record a tool call, or any result as one: the name, the arguments and the result.

        The dialogue gets the call and its result; only the result, if the assistant's last message has the call. A loop
        fills in the time, and how long the step or tool of this name took.
        """
        calls = self.memory.tool_calls
        if not isinstance(what, ToolCall):
            given = FrozenDict() if arguments is None else arguments
            what = ToolCall(f"{self.iteration}.{len(calls) + 1}", name or "result", given, what)
        observed = Message(
            Role.TOOL,
            what.to_observation(),
            metadata=None if what.ok else {"error": True},
            tool_call_id=what.id,
        )
        request = () if self._has_requested(what.id) else (_request(what),)
        return self._remembering(tool_calls=(*calls, what))._with(
            messages=(*self.messages, *request, observed)
        )

    def _has_requested(self, call_id: str) -> bool:
        """Whether the assistant's last message requests this call."""
        replies = (m for m in reversed(self.messages) if m.role == Role.ASSISTANT)
        return any(call.id == call_id for call in next(replies, Message(Role.ASSISTANT)).tool_calls)

    @overload
    def for_model(
        self,
        *,
        max_tokens: int | None = None,
        keep_last: int = 6,
        shape: Literal["openai"] = "openai",
        counter: TokenCounter = ESTIMATE,
    ) -> list[dict[str, Any]]: ...
    @overload
    def for_model(
        self,
        *,
        max_tokens: int | None = None,
        keep_last: int = 6,
        shape: Literal["anthropic"],
        counter: TokenCounter = ESTIMATE,
    ) -> dialogue.AnthropicPrompt: ...
    def for_model(
        self,
        *,
        max_tokens: int | None = None,
        keep_last: int = 6,
        shape: dialogue.Shape = "openai",
        counter: TokenCounter = ESTIMATE,
    ) -> list[dict[str, Any]] | dialogue.AnthropicPrompt:
        """The dialogue in a provider's format, truncated as by `run.messages.for_model`."""
        return dialogue.for_model(
            self.messages, max_tokens=max_tokens, keep_last=keep_last, shape=shape, counter=counter
        )

    def with_message(self: A, role: str | Message, content: Any = "", **fields: Any) -> A:
        """Add a message to the dialogue: a role and content, or a `Message`."""
        message = role if isinstance(role, Message) else Message(_role(role), content, **fields)
        return self._with(messages=(*self.messages, message))

    def with_fact(self: A, key: str, value: Any, *, source: str = "") -> A:
        """Add a fact and its source."""
        return self._remembering(facts=(*self.memory.facts, Fact(key, value, source)))

    def with_note(self: A, key: str, value: Any) -> A:
        """Add a note to the private scratchpad."""
        return self._remembering(notes=kept({**self.memory.notes, key: value}, f"notes[{key!r}]"))

    def with_artifact(self: A, artifact: Artifact) -> A:
        """Add a reference to an artifact, as `run.artifact` returns it."""
        return self._remembering(
            artifacts=(*self.memory.artifacts, *each([artifact], Artifact, "artifact"))
        )

    def with_question(self: A, question: str) -> A:
        """Add an open question."""
        return self.patched(StatePatch(questions=(question,)))

    def without_question(self: A, question: str) -> A:
        """Close a question."""
        return self.patched(StatePatch(closed=(question,)))

    def with_flag(self: A, flag: str) -> A:
        """Set a risk flag, for example `budget_pressure`."""
        return self.patched(StatePatch(flags=(flag,)))

    def without_flag(self: A, flag: str) -> A:
        """Clear a risk flag."""
        return self.patched(StatePatch(cleared=(flag,)))

    def patched(self: A, patch: StatePatch, *, time: int = 0) -> A:
        """The state with a patch applied."""
        return self._remembering(**patches.changed(patch, self.memory, time=time))

    def at_iteration(self: A, iteration: int) -> A:
        """The state in this iteration; its loop counts."""
        return self._with(iteration=iteration)

    def timed(self: A, durations: Sequence[tuple[str, int]]) -> A:
        """The state with how long the calls took (names and microseconds) that were recorded last.

        A recorded call has the name of the step or tool, or is the only one, as the step or tool is.
        """
        calls, remaining = self.memory.tool_calls, list(durations)
        first = _first_new(calls)
        new = list(calls[first:])
        for i, call in enumerate(new):
            named = (x for x in remaining if x[0] == call.name)
            found = remaining[0] if len(new) == len(remaining) == 1 else next(named, None)
            if found is not None and not call.duration:
                remaining.remove(found)
                new[i] = replace(call, duration=found[1] / MICROSECONDS)
        return self._remembering(tool_calls=(*calls[:first], *new)) if new else self

    def stamped(self: A, time: int) -> A:
        """The state as of this time, or as of its last change if a clock runs backwards: what has no time yet
        gets it. A replay knows only `updated_at`, and must find the same."""
        time = max(time, self.updated_at)
        memory = _changed(
            self.memory,
            {
                "facts": _stamped(self.memory.facts, time),
                "artifacts": _stamped(self.memory.artifacts, time),
                "tool_calls": _stamped(self.memory.tool_calls, time),
            },
        )
        return self._with(
            messages=_stamped(self.messages, time),
            memory=memory if memory != self.memory else self.memory,
            created_at=self.created_at or time,
            updated_at=time,
        )

    # ── as JSON ──────────────────────────────────────────────────────────────────────────

    def to_json(self) -> bytes:
        """The state as canonical JSON, together with its own fields; `from_json` decodes it."""
        stored = values.decode(self.stored())
        return values.encode(canonical_state.outside(stored, _added_names(type(self))))

    @classmethod
    def from_json(cls: type[A], data: bytes | str) -> A:
        """The state that this canonical JSON describes (the stored form is read too).

        InvalidInput, with the path, for unknown or invalid fields.
        """
        given = values.decode(data.encode() if isinstance(data, str) else data)
        if not isinstance(given, dict):
            raise InvalidInput(f"an {cls.__name__} must be a JSON object, not {given!r}")
        stored = canonical_state.inside(given, _added_names(cls))
        canonical_state.check_known(stored, cls, given)
        try:
            return msgspec.convert(stored, cls)
        except msgspec.ValidationError as error:
            reason = canonical_state.path_given(str(error), given)
            raise InvalidInput(f"this is not an {cls.__name__}: {reason}") from None

    def stored(self) -> bytes:
        """The state as it is stored in a log: its fields, and those of its parts."""
        return values.encode_struct(self)


class HeldState(AgentState, frozen=True, omit_defaults=True):
    """The state of a loop whose own state is of another kind, which it contains as a plain value."""

    value: Any = None


_FIELDS: Final[tuple[tuple[str, type], ...]] = (
    ("memory", WorkingMemory),
    ("constraints", dict),
    ("budget", Budget),
)


@functools.lru_cache(maxsize=64)
def _added_fields(kind: type[AgentState]) -> tuple[tuple[str, Any], ...]:
    """What a subclass has next to the fields of every AgentState."""
    own = AgentState.__struct_fields__
    return tuple((f.name, f.type) for f in msgspec.structs.fields(kind) if f.name not in own)


def _added_names(kind: type[AgentState]) -> frozenset[str]:
    return frozenset(name for name, _ in _added_fields(kind))


_LEVELS: Final = "constraints.human_in_the_loop.required_for_risk_levels"


def _risk_levels(constraints: Mapping[str, Any]) -> tuple[str, ...]:
    """The risk levels that need a person, or InvalidInput: a typo must not pass for none."""
    people = constraints.get("human_in_the_loop")
    if people is None:
        return ()
    if not isinstance(people, dict) or set(people) - {"required_for_risk_levels"}:
        raise InvalidInput(
            f"constraints.human_in_the_loop must contain only required_for_risk_levels, not {people!r}"
        )
    levels = people.get("required_for_risk_levels", ())
    if not isinstance(levels, list | tuple):
        raise InvalidInput(f"{_LEVELS} must be a list of risk levels, not {levels!r}")
    for i, level in enumerate(levels):
        if level not in RISKS:
            raise InvalidInput(f"{_LEVELS}[{i}] must be one of {', '.join(RISKS)}, not {level!r}")
    return tuple(levels)


def _changed(part: M, changes: Mapping[str, Any]) -> M:
    new = copy.copy(part)
    for name, value in changes.items():
        force_setattr(new, name, value)
    return new


T = TypeVar("T", bound=Message | Fact | Artifact | ToolCall)


def _first_new(parts: Sequence[Message | Fact | Artifact | ToolCall]) -> int:
    """What was added last has no time yet; everything before it has."""
    first = len(parts)
    while first and not parts[first - 1].time:
        first -= 1
    return first


def _stamped(parts: tuple[T, ...], time: int) -> tuple[T, ...]:
    first = _first_new(parts)
    if first == len(parts):
        return parts
    return (*parts[:first], *(replace(part, time=time) for part in parts[first:]))


def _request(call: ToolCall) -> Message:
    """An assistant's message that requests this call."""
    return Message(Role.ASSISTANT, tool_calls=(ToolCall(call.id, call.name, call.arguments),))


def _phase(phase: Any) -> Phase:
    try:
        return Phase(phase)
    except ValueError:
        raise InvalidInput(f"{phase!r} is not a phase; phases are {', '.join(Phase)}") from None


def _role(role: Any) -> str:
    try:
        return Role(role).value
    except ValueError:
        raise InvalidInput(f"{role!r} is not a role; roles are {', '.join(Role)}") from None
