"""An agent's memory and dialogue: `run.state` and `run.messages`; and how everything that a run offers notes facts (`Recorder`).

All of it only notes facts, which are committed with the next commit, and reads what the facts add up to.

Not here: what else a run offers its agent (`run.py`), how facts add up (`core/fold.py`), how they are committed
(`log/session.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, overload

import msgspec
from msgspec.structs import replace

from holdfast.core import events as e
from holdfast.core import log, values
from holdfast.core.events import Noted, Value
from holdfast.core.knowledge import change_state
from holdfast.core.log import Blob
from holdfast.core.parts import Message, ToolCall
from holdfast.core.tokens import ESTIMATE, TokenCounter
from holdfast.core.values import FrozenDict
from holdfast.errors import InvalidInput, NotStorable
from holdfast.runtime.declare.state_schema import StateField
from holdfast.runtime.log.branches import Branch, current_branch
from holdfast.runtime.log.session import Session

if TYPE_CHECKING:
    from holdfast.core.dialogue import AnthropicPrompt, Shape

N = TypeVar("N", bound=Noted)


class Recorder:
    """Notes facts in a run, each at the position of the code that is executing."""

    def __init__(self, session: Session, root: Branch) -> None:
        self._session = session
        self._root = root

    @property
    def _here(self) -> Branch:
        branch = current_branch()
        if branch is None or branch.session is not self._session:
            branch = self._root
        if branch.waiting is not None:
            raise branch.waiting  # the code caught the wait and continued; its notes are not the run's
        return branch

    def _note(self, fact: N, blobs: Sequence[Blob] = ()) -> N:
        """Note a fact here; returns the recorded one on a replay."""
        here = self._here
        return self._session.note(replace(fact, branch=here.path, after=here.index), blobs)

    def _encode(self, data: Any) -> tuple[Value, Sequence[Blob]]:
        return log.wrap(values.encode(data))

    def _load(self, value: Any) -> Any:
        """The value itself, read from the store if it was too big for its event."""
        if not isinstance(value, Value):
            return value
        return values.freeze(values.decode(self._session.unwrap(value)))


# ── memory and dialogue ──────────────────────────────────────────────────────────────────────


class State:
    """The agent's explicit memory. `run.state.x` is None if it was never set."""

    __slots__ = ("_fields", "_run")

    def __init__(self, run: Recorder, fields: Mapping[str, StateField]) -> None:
        """`fields` are those of the model that its agent declares, if it does."""
        object.__setattr__(self, "_run", run)
        object.__setattr__(self, "_fields", fields)

    def __getattr__(self, key: str) -> Any:
        if key.startswith("__"):
            raise AttributeError(key)
        return self.get(key)

    def __setattr__(self, key: str, value: Any) -> None:
        self._change("set", key, value)

    def __delattr__(self, key: str) -> None:
        self._change("delete", key, None)

    __getitem__ = __getattr__
    __setitem__ = __setattr__
    __delitem__ = __delattr__

    def __contains__(self, key: str) -> bool:
        self._check_declared(key)
        return key in self._session.view.state()

    def __repr__(self) -> str:
        return f"State({self.all()!r})"

    @property
    def _session(self) -> Session:
        session: Session = self._run._session
        return session

    def get(self, key: str, default: Any = None) -> Any:
        """The value under this key, or `default`."""
        self._check_declared(key)
        state = self._session.view.state()
        fields = self._fields
        if key not in state:
            return fields[key].default if key in fields and default is None else default
        value = self._load_items(state[key])
        if key not in fields:
            return value
        try:
            return fields[key].read(value)
        except NotStorable as error:  # a patch from outside, or another model when it was set
            raise error.of(f"state.{key}") from None

    def _check_declared(self, key: str) -> None:
        if self._fields and key not in self._fields:
            raise InvalidInput(
                f"state.{key} is not declared; declared are {', '.join(self._fields)}"
            )

    def _for_template(self) -> dict[str, Any]:
        """What was set, and the defaults of declared fields, as plain values."""
        defaults = {name: values.lower(f.default, typed=True) for name, f in self._fields.items()}
        return {**defaults, **self.all()}

    def _load_items(self, value: Any) -> Any:
        if isinstance(value, list) and any(isinstance(item, Value) for item in value):
            return values.FrozenList(self._load_items(item) for item in value)
        return self._run._load(value)

    def all(self) -> dict[str, Any]:
        """Everything, as a read-only dict."""
        state = self._session.view.state()
        return FrozenDict({key: self._load_items(value) for key, value in state.items()})

    def increment(self, key: str, by: float = 1) -> Any:
        """Add to a number (a missing one counts as 0); the new value."""
        before = self._session.view.state().get(key, 0)
        for number in (before, by):
            if isinstance(number, bool) or not isinstance(number, int | float | None):
                raise InvalidInput(f"state.{key} cannot be incremented: {number!r} is not a number")
        self._change("increment", key, by)
        return self.get(key)

    def append(self, key: str, value: Any) -> None:
        """Add to the end of a list (a missing one counts as empty). Only the new item is recorded."""
        before = self._session.view.state().get(key)
        if before is not None and not isinstance(before, list):
            raise InvalidInput(f"state.{key} is not a list; it cannot be appended to")
        self._change("append", key, value)

    def _change(self, op: str, key: Any, value: Any) -> None:
        if not isinstance(key, str) or not key or key in _STATE_METHODS:
            raise InvalidInput(f"{key!r} cannot be a name in run.state; choose another")
        fields = self._fields
        try:
            self._check_declared(key)
            data = values.encode(value, typed=bool(fields))
            if fields and op != "delete":
                fields[key].read(self._after(op, key, values.decode(data)))
        except NotStorable as error:
            raise error.of(f"state.{key}") from None
        wrapped, blobs = log.wrap(data)
        self._run._note(e.StateChanged(op=op, key=key, value=wrapped), blobs)

    def _after(self, op: str, key: str, value: Any) -> Any:
        """What the state will contain under this key, for its model to validate."""
        seen = {key: self._load_items(self._session.view.state().get(key))}
        change_state(seen, op, key, value)
        return seen[key]


_STATE_METHODS: Final = frozenset({"get", "all", "increment", "append"})


class Messages:
    """The user-visible dialogue, kept apart from working memory."""

    def __init__(self, run: Recorder) -> None:
        self._run = run

    def add(
        self,
        role: str | Message,
        content: Any = "",
        *,
        metadata: Any = None,
        tool_calls: Iterable[ToolCall] = (),
        tool_call_id: str = "",
    ) -> None:
        """Add a message at the end: a role and its content, or a `Message`."""
        message = (
            role
            if isinstance(role, Message)
            else Message(role, content, 0, metadata, tuple(tool_calls), tool_call_id)
        )
        value, blobs = self._run._encode(message.content)
        extra, more = (
            (None, []) if message.metadata is None else self._run._encode(message.metadata)
        )
        calls = [self._encode_call(call) for call in message.tool_calls]
        self._run._note(
            e.MessageAdded(
                role=message.role,
                content=value,
                metadata=extra,
                tool_calls=tuple(call for call, _ in calls),
                tool_call_id=message.tool_call_id,
            ),
            [*blobs, *more, *(blob for _, found in calls for blob in found)],
        )

    def _encode_call(self, call: ToolCall) -> tuple[e.RecordedToolCall, list[log.Blob]]:
        arguments, blobs = self._run._encode(call.arguments)
        result, more = (None, []) if call.result is None else self._run._encode(call.result)
        event = e.RecordedToolCall(call.id, call.name, arguments, result, call.error, call.duration)
        return event, [*blobs, *more]

    def all(self) -> list[Message]:
        """Every message so far."""
        found = self._run._session.view.messages()
        return [x if _is_loaded(x) else self._load(x) for x in found]

    def _load(self, message: Message) -> Message:
        load, calls = self._run._load, message.tool_calls
        return msgspec.structs.replace(
            message,
            content=load(message.content),
            metadata=load(message.metadata),
            tool_calls=tuple(
                msgspec.structs.replace(c, arguments=load(c.arguments), result=load(c.result))
                for c in calls
            ),
        )

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
    ) -> AnthropicPrompt: ...
    def for_model(
        self,
        *,
        max_tokens: int | None = None,
        keep_last: int = 6,
        shape: Shape = "openai",
        counter: TokenCounter = ESTIMATE,
    ) -> list[dict[str, Any]] | AnthropicPrompt:
        """The dialogue as a provider's client takes it, without its oldest turns if it is too long.

        Kept are system messages, the first user message and the last `keep_last` turns (at least four);
        no tool call loses its answer. ContextTooLong if even these do not fit.
        """
        from holdfast.core import dialogue  # here, as most agents show their dialogue to no model

        return dialogue.for_model(
            self.all(), max_tokens=max_tokens, keep_last=keep_last, shape=shape, counter=counter
        )

    def __len__(self) -> int:
        return len(self.all())

    def __iter__(self) -> Iterator[Message]:
        return iter(self.all())


def _is_loaded(message: Message) -> bool:
    """Whether nothing of it is stored next to the log. That is so for nearly all of a long dialogue, which is read at each step."""
    calls = message.tool_calls
    return not (
        isinstance(message.content, Value)
        or isinstance(message.metadata, Value)
        or (
            calls
            and any(isinstance(part, Value) for c in calls for part in (c.arguments, c.result))
        )
    )
