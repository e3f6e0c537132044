"""A dialogue in front of a model: complete, cut to fit, in the shape that a provider accepts.

Providers refuse a tool result without its call, and a call without its result. So a dialogue is read in
groups: a message, or a tool call together with all its results. A group is kept or dropped as a whole.

Pure: messages in, plain JSON out. Talking to a provider is `holdfast.agents.models`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, NotRequired, TypedDict

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core import values
from holdfast.core.events import Value
from holdfast.core.parts import Message, Role, ToolCall
from holdfast.core.tokens import ESTIMATE, TokenCounter
from holdfast.errors import ContextTooLong, InvalidInput

Shape = Literal["openai", "anthropic"]

KEEP_LAST: Final = 6
KEEP_LEAST: Final = 4
MESSAGE_TOKENS: Final = 8
"""What a message, and each tool call in it, costs next to its text."""
UNANSWERED: Final = "no result of this call was recorded"
BEGIN: Final = "(the dialogue begins)"
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class AnthropicPrompt(TypedDict):
    """The arguments `system` and `messages` of Anthropic's Messages API."""

    system: NotRequired[str]
    messages: list[dict[str, Any]]


# ── turns ────────────────────────────────────────────────────────────────────────────────────


class MessageGroup(Struct, frozen=True):
    """Messages that belong together: one, or an assistant's tool calls and their answers."""

    messages: tuple[Message, ...]

    @property
    def role(self) -> str:
        return self.messages[0].role


def turns(messages: Iterable[Message]) -> list[MessageGroup]:
    """The dialogue as whole turns: every call answered, every answer called for, every id its own.

    A call without an answer gets one that says so; an answer without a call is left out, as is a message
    that says nothing.
    """
    given = [_checked(message) for message in messages]
    ids = _Ids()
    found = []
    for i, message in enumerate(given):
        if message.tool_calls:
            found.append(_exchange(message, _answers(given[i + 1 :]), ids))
        elif message.role != Role.TOOL and (_says(message) or kept_blocks(message)):
            found.append(MessageGroup((message,)))
    return found


def keep(format: str, blocks: list[dict[str, Any]]) -> dict[str, Any]:
    """The metadata of an assistant's message whose blocks the provider wants back unchanged."""
    return {"kept": {"format": format, "blocks": blocks}}


def kept_blocks(message: Message) -> list[dict[str, Any]]:
    """The blocks that were kept of this message for Anthropic; none if they are for another provider."""
    metadata = message.metadata if message.role == Role.ASSISTANT else None
    kept = metadata.get("kept") if isinstance(metadata, dict) else None
    if not isinstance(kept, dict) or kept.get("format") != "anthropic":
        return []
    blocks = values.thaw(kept.get("blocks"))
    return [b for b in blocks if isinstance(b, dict)] if isinstance(blocks, list) else []


def _checked(message: Message) -> Message:
    role = Role.SYSTEM if message.role == "developer" else message.role
    if role not in tuple(Role):
        known = ", ".join(Role)
        raise InvalidInput(
            f"a message of role {message.role!r} cannot be shown to a model; roles are {known}"
        )
    if message.tool_calls and role != Role.ASSISTANT:
        raise InvalidInput(f"only an assistant's message has tool calls, not one of role {role!r}")
    return message if role == message.role else replace(message, role=str(role))


def _answers(following: Sequence[Message]) -> list[Message]:
    """The tool answers up to the next thing that the assistant says."""
    found = []
    for message in following:
        if message.role == Role.ASSISTANT:
            break
        if message.role == Role.TOOL:
            found.append(message)
    return found


def _exchange(asking: Message, answers: list[Message], ids: _Ids) -> MessageGroup:
    left = list(answers)
    calls, said = [], []
    for call in asking.tool_calls:
        answer = next((x for x in left if x.tool_call_id == call.id), None)
        if answer is not None:
            left.remove(answer)
        else:
            known = call.result is not None or call.error is not None
            answer = Message(Role.TOOL, call.to_observation() if known else UNANSWERED)
        name = ids.new(call.id)
        calls.append(replace(call, id=name))
        said.append(replace(answer, tool_call_id=name))
    return MessageGroup((replace(asking, tool_calls=tuple(calls)), *said))


class _Ids:
    """Gives every call an id that no other has, its own where that is possible."""

    def __init__(self) -> None:
        self._used_ids: set[str] = set()

    def new(self, preferred: str) -> str:
        number = len(self._used_ids) + 1
        name = (
            preferred
            if _ID.fullmatch(preferred) and preferred not in self._used_ids
            else f"call_{number}"
        )
        while name in self._used_ids:
            number += 1
            name = f"call_{number}"
        self._used_ids.add(name)
        return name


# ── cutting to fit ───────────────────────────────────────────────────────────────────────────


class TruncatedDialogue(Struct, frozen=True):
    """What is shown of a dialogue, how long it is, and how many of its messages are not shown."""

    messages: tuple[Message, ...]
    tokens: int
    left_out: int


def fit(
    messages: Sequence[Message],
    max_tokens: int | None = None,
    *,
    keep_last: int = KEEP_LAST,
    counter: TokenCounter = ESTIMATE,
) -> TruncatedDialogue:
    """The dialogue, without its oldest turns if it is too long.

    Always kept: system messages, the first thing that the user said, and the last `keep_last` turns (or,
    if those are too long, as few as four of them). ContextTooLong if even these do not fit.
    """
    if keep_last < 1 or (max_tokens is not None and max_tokens < 1):
        raise InvalidInput(
            f"max_tokens and keep_last must be 1 or more, not {max_tokens}, {keep_last}"
        )
    all_turns = turns(messages)
    if not all_turns:
        raise InvalidInput("the dialogue is empty; add a message to run.messages first")
    costs = [_cost(turn, counter) for turn in all_turns]
    kept = _kept(all_turns, costs, max_tokens, keep_last)
    shown = tuple(m for i, turn in enumerate(all_turns) if i in kept for m in turn.messages)
    in_all = sum(len(turn.messages) for turn in all_turns)
    return TruncatedDialogue(shown, sum(costs[i] for i in kept), in_all - len(shown))


def _kept(
    all_turns: list[MessageGroup], costs: list[int], max_tokens: int | None, keep_last: int
) -> set[int]:
    """Which turns are shown, by their numbers."""
    if max_tokens is None or sum(costs) <= max_tokens:
        return set(range(len(all_turns)))
    always = {i for i, turn in enumerate(all_turns) if turn.role == Role.SYSTEM}
    always |= {next((i for i, turn in enumerate(all_turns) if turn.role == Role.USER), 0)}
    spoken = [i for i, turn in enumerate(all_turns) if turn.role != Role.SYSTEM]
    kept: set[int] = set()
    for number in range(keep_last, min(keep_last, KEEP_LEAST) - 1, -1):
        kept = always | set(spoken[-number:])
        if sum(costs[i] for i in kept) <= max_tokens:
            break
    else:
        raise _too_long(all_turns, costs, kept, max_tokens)
    left = max_tokens - sum(costs[i] for i in kept)
    for i in reversed(spoken):
        if i in kept:
            continue
        if costs[i] > left:
            break  # a dialogue with holes in it would mislead
        kept.add(i)
        left -= costs[i]
    return kept


def _too_long(
    all_turns: list[MessageGroup], costs: list[int], kept_turns: set[int], max_tokens: int
) -> ContextTooLong:
    longest = max(kept_turns, key=lambda i: costs[i])
    turn = all_turns[longest]
    names = ", ".join(call.name for call in turn.messages[0].tool_calls)
    what = f"the calls of {names} and their results" if names else f"a message of {turn.role}"
    return ContextTooLong(max_tokens, sum(costs[i] for i in kept_turns), what, costs[longest])


def _cost(turn: MessageGroup, counter: TokenCounter) -> int:
    return sum(_message_cost(message, counter) for message in turn.messages)


def _message_cost(message: Message, counter: TokenCounter) -> int:
    calls = sum(
        counter.count(_name(call)) + counter.count(_json(call)) + MESSAGE_TOKENS
        for call in message.tool_calls
    )
    kept = [b for b in kept_blocks(message) if b.get("type") not in ("text", "tool_use")]
    thoughts = counter.count(values.encode(kept).decode()) if kept else 0
    return counter.count(text_of(message.content)) + MESSAGE_TOKENS + calls + thoughts


# ── shapes ───────────────────────────────────────────────────────────────────────────────────


def text_of(content: Any) -> str:
    """What a message says, as text: itself, or its JSON."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if isinstance(content, Value):
        return f"[{content.bytes} bytes, stored as artifact {content.blob}]"
    return values.encode(content).decode()


def for_model(
    messages: Sequence[Message],
    *,
    max_tokens: int | None,
    keep_last: int,
    shape: Shape,
    counter: TokenCounter,
) -> list[dict[str, Any]] | AnthropicPrompt:
    """The dialogue as a provider's client takes it, without its oldest turns if it is too long."""
    if shape not in ("openai", "anthropic"):
        raise InvalidInput(f"shape must be 'openai' or 'anthropic', not {shape!r}")
    shown = fit(messages, max_tokens, keep_last=keep_last, counter=counter).messages
    return openai(shown) if shape == "openai" else anthropic(shown)


def openai(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """The dialogue as OpenAI's Chat Completions take it."""
    said = (message for turn in turns(messages) for message in turn.messages)
    return [_openai_message(m) for m in said if m.tool_calls or m.role == Role.TOOL or _says(m)]


def _says(message: Message) -> bool:
    """Whether there is text in it: a paused turn of another provider may have only blocks."""
    return bool(text_of(message.content).strip())


def _openai_message(message: Message) -> dict[str, Any]:
    text = text_of(message.content)
    if message.role == Role.TOOL:
        return {"role": "tool", "tool_call_id": message.tool_call_id, "content": text}
    if not message.tool_calls:
        return {"role": message.role, "content": text}
    calls = [
        {"id": c.id, "type": "function", "function": {"name": _name(c), "arguments": _json(c)}}
        for c in message.tool_calls
    ]
    return {"role": "assistant", "content": text or None, "tool_calls": calls}


def _name(call: ToolCall) -> str:
    """A tool's name as providers accept it: a model may have invented one that they would refuse."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", call.name)[:64] or "unknown"


def _object(call: ToolCall) -> dict[str, Any]:
    """The arguments, if they were a JSON object; what else they were, the answer says."""
    return dict(call.arguments) if isinstance(call.arguments, dict) else {}


def _json(call: ToolCall) -> str:
    return values.encode(_object(call)).decode()


def anthropic(messages: Iterable[Message]) -> AnthropicPrompt:
    """The dialogue as Anthropic's Messages take it: the system apart, user and assistant in turn."""
    system: list[str] = []
    conversation: list[dict[str, Any]] = []
    shown = [message for turn in turns(messages) for message in turn.messages]
    for message in shown:
        if message.role == Role.SYSTEM:
            system.append(text_of(message.content))
        else:
            _say(conversation, message)
    if not conversation or conversation[0]["role"] != "user":
        conversation.insert(0, {"role": "user", "content": [{"type": "text", "text": BEGIN}]})
    if conversation[-1]["role"] == "assistant" and not kept_blocks(shown[-1]):
        last = conversation[-1]["content"][-1]  # refused if it ends with a space
        last["text"] = last["text"].rstrip()
    made: AnthropicPrompt = {"messages": conversation}
    return {"system": "\n\n".join(system), **made} if system else made


def _say(conversation: list[dict[str, Any]], message: Message) -> None:
    """Add a message; one after another of the same side is one message of several blocks."""
    role = "assistant" if message.role == Role.ASSISTANT else "user"
    if not conversation or conversation[-1]["role"] != role:
        conversation.append({"role": role, "content": []})
    conversation[-1]["content"] += _blocks(message)


def _blocks(message: Message) -> list[dict[str, Any]]:
    text = text_of(message.content)
    if message.role == Role.TOOL:
        result: dict[str, Any] = {"type": "tool_result", "tool_use_id": message.tool_call_id}
        result |= {"content": text} if text.strip() else {}
        failed = isinstance(message.metadata, dict) and message.metadata.get("error")
        return [{**result, "is_error": True} if failed else result]
    uses = [
        {"type": "tool_use", "id": c.id, "name": _name(c), "input": _object(c)}
        for c in message.tool_calls
    ]
    kept = kept_blocks(message)
    if kept:
        return _in_their_places(kept, uses)
    blocks: list[dict[str, Any]] = [{"type": "text", "text": text}] if text.strip() else []
    return blocks + uses


def _in_their_places(
    blocks: list[dict[str, Any]], uses: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Kept blocks unchanged, with the tool calls where they were: only their ids may differ."""
    calls = iter(uses)
    filled = [next(calls, None) if b.get("type") == "tool_use" else b for b in blocks]
    return [
        block
        for block in (*filled, *calls)
        if block is not None and (block.get("type") != "text" or block.get("text", "").strip())
    ]
