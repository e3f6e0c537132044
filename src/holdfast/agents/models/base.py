"""Prompts and replies: the values between an agent and a model, and a protocol of one method.

A reply is stored in the log unchanged, so everything here can be stored as JSON. Sending prompts is the
task of the modules next to this one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.agents.schemas import ToolSchema
from holdfast.core.events import Usage
from holdfast.core.parts import Message
from holdfast.errors import InvalidInput

OnText = Callable[[str], object]
_ESCAPED_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")


class Prompt(Struct, frozen=True):
    """One call of a model: a dialogue that fits, the tools it may call, and the turn."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSchema, ...] = ()
    turn: int = 1
    on_text: OnText | None = None
    """Receives the text while it streams; a model that cannot stream ignores it."""


class ToolRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool call that a model requests: its id, and the arguments as the text that the model wrote."""

    id: str
    name: str
    arguments: str = "{}"


class ProviderBlocks(msgspec.Struct, frozen=True):
    """Blocks of a reply that the provider wants back unchanged (signed thinking).

    Sent only to models of the same `format`.
    """

    format: str
    blocks: list[dict[str, Any]]


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """A model's reply: text, tool calls, or both. `usage` is what the provider reported.

    `finish` is the provider's finish reason; only a complete reply is used (`finish.py`).
    """

    text: str = ""
    tool_calls: tuple[ToolRequest, ...] = ()
    usage: Usage | None = None
    finish: str = ""
    model: str = ""
    left_out: int = 0
    """How many earlier messages it was not shown, because they did not fit."""
    estimated: bool = False
    """The provider reported no usage, so it was estimated."""
    kept: ProviderBlocks | None = None


def cleaned(reply: Reply) -> Reply:
    """The reply with U+FFFD in place of lone surrogates. A model whose reply is truncated in the middle of a
    character, or streams its halves apart, sends them; no store can keep them."""
    calls = tuple(
        ToolRequest(clean(c.id), clean(c.name), _clean_json(c.arguments)) for c in reply.tool_calls
    )
    kept = reply.kept and replace(reply.kept, blocks=_clean_all(reply.kept.blocks))
    return replace(
        reply,
        text=clean(reply.text),
        tool_calls=calls,
        finish=clean(reply.finish),
        model=clean(reply.model),
        kept=kept,
    )


def clean(text: str) -> str:
    """Halves of a character joined if they belong together, else each replaced."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _clean_json(text: str) -> str:
    """The same for JSON that a model wrote, where a surrogate may be escaped."""
    text = clean(text)
    if not _ESCAPED_SURROGATE.search(text):
        return text
    try:
        return json.dumps(_clean_all(json.loads(text)), ensure_ascii=False)
    except (ValueError, RecursionError):
        return text  # not JSON: the model gets an error


def _clean_all(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(key): _clean_all(item) for key, item in value.items()}
    return [_clean_all(item) for item in value] if isinstance(value, list) else value


class Model(Protocol):
    """Any object that answers a prompt. Raise ModelUnavailable if a retry may help."""

    def answer(self, prompt: Prompt) -> Reply: ...


class AsyncModel(Protocol):
    """The same on an event loop: agents with such a model are async."""

    async def answer(self, prompt: Prompt) -> Reply: ...


class Price(Struct, frozen=True):
    """US dollars per million input tokens and per million output tokens."""

    input: float
    output: float

    def __post_init__(self) -> None:
        for name, value in (("input", self.input), ("output", self.output)):
            if not isinstance(value, int | float) or not 0 <= value < 1e9:  # type: ignore[redundant-expr]
                raise InvalidInput(
                    f"Price.{name} must be US dollars per million tokens, not {value!r}"
                )

    def cost(self, input_tokens: int, output_tokens: int) -> float:
        return (input_tokens * self.input + output_tokens * self.output) / 1_000_000


def usage_of(input_tokens: Any, output_tokens: Any, price: Price | None) -> Usage | None:
    """What a provider reported, with its cost; None if it reported nothing that makes sense."""
    counts = (input_tokens, output_tokens)
    if not all(isinstance(n, int) and n >= 0 for n in counts):
        return None
    cost = price.cost(*counts) if price is not None else 0.0
    return Usage(input_tokens, output_tokens, cost)
