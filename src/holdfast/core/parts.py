"""The parts that a run's state and an agent's state share: messages, facts, plan steps, artifacts.

One `Message` is the same value in `run.messages`, in an `AgentState` and in front of a model. All of them
are frozen to the bottom: the lists and dicts inside are made read-only when a part is made, so nothing
that was returned can be changed later.

Times are microseconds since 1970; 0 means that the time is not set yet. Pure values: what they
add up to is `state.py`.
"""

import enum
import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import force_setattr

from holdfast.core import values
from holdfast.core.events import Value
from holdfast.core.values import FrozenDict, FrozenList
from holdfast.errors import InvalidInput, NotStorable

P = TypeVar("P")
S = TypeVar("S", bound="Part")

_AS_THEY_ARE = (FrozenDict, FrozenList, Value, type(None), bool, str)


def kept(value: Any, what: str = "value") -> Any:
    """A user's value as plain JSON that cannot be changed, or NotStorable with the path to the trouble."""
    if type(value) in _AS_THEY_ARE:
        return value
    try:
        return values.freeze(values.lower(value))
    except NotStorable as error:
        raise error.of(what) from None


def text(value: Any, what: str) -> str:
    """A text as it is kept, or InvalidInput: what is not a text would be written, and then not be read."""
    if type(value) is str:
        return value
    if isinstance(value, str):
        return str.__str__(value)  # of an enum's member, its text
    raise InvalidInput(f"{what} must be text, not {value!r}")


def texts(items: Iterable[Any], what: str) -> tuple[str, ...]:
    """The same for a list of them."""
    return tuple(text(item, f"{what}[{i}]") for i, item in enumerate(each(items, object, what)))


def each(items: Iterable[Any], kind: type[P], what: str) -> tuple[P, ...]:
    """The items as a tuple, or InvalidInput that names the first one of another type."""
    if isinstance(items, str | bytes | dict) or not isinstance(items, Iterable):
        of = "texts" if kind is object else kind.__name__
        raise InvalidInput(f"{what} must be a list of {of}, not {items!r}")
    found = tuple(items)
    for i, item in enumerate(found):
        if not isinstance(item, kind):
            raise InvalidInput(f"{what}[{i}] must be a {kind.__name__}, not {item!r}")
    return found


class Part(msgspec.Struct, frozen=True, omit_defaults=True):
    """Base of the parts. `_user_values` names the fields that hold whatever the user likes.

    Creating one raises an error for values that could be written but not be read again.
    """

    @classmethod
    def _user_values(cls) -> tuple[str, ...]:
        return ()

    def __post_init__(self) -> None:
        for name in self._user_values():
            value = getattr(self, name)
            if type(value) not in _AS_THEY_ARE:
                force_setattr(self, name, kept(value, f"{type(self).__name__}.{name}"))
        plain = _plain(type(self))
        found = plain.values(self)
        if tuple(map(type, found)) not in plain.right or not all(
            map(math.isfinite, found[: plain.floats])
        ):
            for name, kind in plain.fields:
                right = _as(kind, getattr(self, name), f"{type(self).__name__}.{name}")
                force_setattr(self, name, right)

    def replace(self: S, **changes: Any) -> S:
        """The same part with these fields changed; it is checked like a new one."""
        unknown = [name for name in changes if name not in self.__struct_fields__]
        if unknown:
            known = ", ".join(self.__struct_fields__)
            raise InvalidInput(f"{type(self).__name__} has no field {unknown[0]}; it has {known}")
        return msgspec.structs.replace(self, **changes)


class _Plain(msgspec.Struct, frozen=True):
    """The fields of a part that hold one text or number, floats first."""

    fields: tuple[tuple[str, Any], ...]
    floats: int
    values: Callable[[Any], tuple[Any, ...]]
    right: frozenset[tuple[type, ...]]
    """The types that they may have, all together: one look is enough for a part that is right."""


_PLAIN: Final[dict[Any, tuple[str, tuple[type, ...]]]] = {
    float: ("a finite number", (float,)),
    str: ("text", (str,)),
    int: ("a whole number", (int,)),
    str | None: ("text or None", (str, type(None))),
}


@functools.lru_cache(maxsize=64)
def _plain(part: type[Part]) -> _Plain:
    free = part._user_values()
    fields = [(f.name, f.type) for f in msgspec.structs.fields(part) if f.name not in free]
    plain = sorted((x for x in fields if x[1] in _PLAIN), key=lambda x: x[1] is not float)
    names = [name for name, _ in plain]
    right = frozenset(itertools.product(*(_PLAIN[kind][1] for _, kind in plain)))
    floats = sum(kind is float for _, kind in plain)
    return _Plain(tuple(plain), floats, _getter(names), right)


def _getter(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return operator.attrgetter(*names)
    return lambda part: tuple(getattr(part, name) for name in names)


def _as(kind: Any, value: Any, what: str) -> Any:
    said, types = _PLAIN[kind]
    if isinstance(value, str) and str in types:
        return str.__str__(value)  # of an enum's member, its text
    if isinstance(value, int) and not isinstance(value, bool) and kind in (int, float):
        return kind(value)
    if type(value) in types and (kind is not float or math.isfinite(value)):
        return value
    raise InvalidInput(f"{what} must be {said}, not {value!r}")


class Role(enum.StrEnum):
    """Who says a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class ToolCall(Part, frozen=True, omit_defaults=True):
    """A tool call that a model asked for, and its outcome. `duration` is in seconds, `time` when it was
    recorded.

    `arguments` are what the model sent: a dict, or its text when that was no JSON object.
    """

    id: str
    name: str
    arguments: Any = FrozenDict()
    result: Any = None
    error: str | None = None
    duration: float = 0.0
    time: int = 0

    @classmethod
    def _user_values(cls) -> tuple[str, ...]:
        return ("arguments", "result")

    @property
    def ok(self) -> bool:
        """Whether it did not fail."""
        return self.error is None

    def to_observation(self) -> str:
        """What the model sees of it: the result as text, or the error."""
        if self.error is not None:
            return f"error: {self.error}"
        if isinstance(self.result, str):
            return self.result
        if isinstance(self.result, Value):
            return f"[{self.result.bytes} bytes, stored as artifact {self.result.blob}]"
        return values.encode(self.result).decode()


class Message(Part, frozen=True, omit_defaults=True):
    """One message of a dialogue.

    `tool_calls` are what an assistant's message asks for; `tool_call_id` says which of them a message of
    role `tool` answers.
    """

    role: str
    content: Any = ""
    time: int = 0
    metadata: Any = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""

    @classmethod
    def _user_values(cls) -> tuple[str, ...]:
        return ("content", "metadata")

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.role) is not str:
            force_setattr(self, "role", str(self.role))
        if self.tool_calls:
            force_setattr(self, "tool_calls", each(self.tool_calls, ToolCall, "Message.tool_calls"))
        elif type(self.tool_calls) is not tuple:
            force_setattr(self, "tool_calls", ())


class Fact(Part, frozen=True, omit_defaults=True):
    """Something that was found out, where from, and when."""

    key: str
    value: Any
    source: str = ""
    time: int = 0

    @classmethod
    def _user_values(cls) -> tuple[str, ...]:
        return ("value",)


class Artifact(Part, frozen=True, omit_defaults=True):
    """A big output: what it is, not its bytes. `id` is the hash under which the store keeps them."""

    name: str
    type: str = ""
    id: str = ""
    bytes: int = 0
    summary: str = ""
    step: int = 0
    time: int = 0


class PlanStep(Part, frozen=True, omit_defaults=True):
    """One step of a plan. `status` is pending, doing or done (or a word of the agent's own)."""

    name: str
    status: str = "pending"


# Here, for the reason that is given in `events`: several types that are read contain these.
msgspec.json.Decoder(tuple[Message, Fact, Artifact, PlanStep])


def plan_of(steps: Iterable[str | PlanStep], what: str = "plan") -> tuple[PlanStep, ...]:
    """A plan given as names, as steps, or mixed."""
    if isinstance(steps, str):
        raise InvalidInput(f"{what} must be a list of steps, not one text: {steps!r}")
    found = [PlanStep(step) if isinstance(step, str) else step for step in steps]
    return each(found, PlanStep, what)


# ── values that live next to the log ──────────────────────────────────────────────────────────

_REFERENCE, _ESCAPED = "$blob", "$dict"


def pack(value: Any) -> Any:
    """Plain JSON in which a reference to an artifact is a dict, and a dict that looks alike is escaped."""
    if isinstance(value, Value):
        return {_REFERENCE: [value.blob, value.bytes]}
    if isinstance(value, dict):
        packed = {key: pack(item) for key, item in value.items()}
        return {_ESCAPED: packed} if _REFERENCE in packed or _ESCAPED in packed else packed
    if isinstance(value, list):
        return [pack(item) for item in value]
    return value


def unpack(value: Any) -> Any:
    """What was packed."""
    if isinstance(value, list):
        return [unpack(item) for item in value]
    if not isinstance(value, dict):
        return value
    if _REFERENCE in value:
        blob, size = value[_REFERENCE]
        return Value(blob=blob, bytes=size)
    inner = value.get(_ESCAPED, value)
    return {key: unpack(item) for key, item in inner.items()}
