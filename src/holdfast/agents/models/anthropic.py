"""Anthropic's Messages, through the official client.

The key is ANTHROPIC_API_KEY and the address ANTHROPIC_BASE_URL, unless given. The client's own retries
are off: attempts and the waits between them are in the log.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar, Final

from holdfast.agents.models.base import Price, Prompt, Reply, ToolRequest, usage_of
from holdfast.agents.models.client import AsyncClientModel, ClientModel
from holdfast.agents.models.failures import Malformed
from holdfast.core import dialogue, values
from holdfast.errors import NotStorable

OUTPUT_TOKENS: Final = 4096
"""How long an answer may be if nothing else is said; Anthropic wants to know."""


class AnthropicModel(ClientModel):
    """A model behind Anthropic's Messages API. `client` is an `anthropic.Anthropic`."""

    provider = "Anthropic"
    key_variable = "ANTHROPIC_API_KEY"
    client_class: ClassVar[str] = "Anthropic"

    def _send(self, client: Any, prompt: Prompt) -> Any:
        request: dict[str, Any] = {
            **self.options,
            "model": self.model,
            "max_tokens": self.max_output_tokens or OUTPUT_TOKENS,
            **dialogue.anthropic(prompt.messages),
        }
        if prompt.tools:
            request["tools"] = [
                {
                    "name": tool.name,
                    "description": tool.description,
                    "input_schema": tool.parameters,
                }
                for tool in prompt.tools
            ]
        if prompt.on_text is not None:
            request["stream"] = True
        return client.messages.create(**request)

    def _whole(self, answered: Any) -> Reply:
        return whole(answered, self.price)

    def _pieces(self) -> Pieces:
        return Pieces(self.price)


class AsyncAnthropicModel(AsyncClientModel, AnthropicModel):
    """The same on an event loop; `client` is an `anthropic.AsyncAnthropic`. Agents with it are async."""

    client_class = "AsyncAnthropic"


def whole(message: Any, price: Price | None) -> Reply:
    """An answer that came in one piece."""
    try:
        if not message.stop_reason:
            raise Malformed("it has no stop_reason")
        return Reply(
            text="".join(block.text for block in message.content if block.type == "text"),
            tool_calls=tuple(
                ToolRequest(block.id, block.name, _arguments(block.input))
                for block in message.content
                if block.type == "tool_use"
            ),
            usage=usage_of(_input_tokens(message.usage), message.usage.output_tokens, price),
            finish=message.stop_reason,
            model=message.model or "",
        )
    except (AttributeError, TypeError) as error:
        raise Malformed(f"{error}; it began with {str(message)[:80]!r}") from None


def _arguments(given: Any) -> str:
    """The arguments as JSON text. A lone surrogate among them is escaped, and replaced by the agent."""
    try:
        return values.encode(given).decode()
    except NotStorable:
        return json.dumps(given)


def _input_tokens(usage: Any) -> int:
    """All that went in, whether the provider had it cached or not."""
    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    return sum(getattr(usage, name, None) or 0 for name in names)


class Pieces:
    """An answer that comes as a stream of events. Without its last event it is no answer."""

    def __init__(self, price: Price | None) -> None:
        self._price = price
        self._text: list[str] = []
        self._calls: dict[int, list[str]] = {}
        self._input = self._output = 0
        self._finish = self._model = ""
        self._over = False

    def take(self, piece: Any) -> str:
        """One more piece; the text in it."""
        try:
            return self._read(piece)
        except (AttributeError, TypeError, KeyError) as error:
            raise Malformed(str(error)) from None

    def _read(self, event: Any) -> str:
        match event.type:
            case "message_start":
                self._model = event.message.model or ""
                self._input = _input_tokens(event.message.usage)
            case "content_block_start" if event.content_block.type == "tool_use":
                self._calls[event.index] = [event.content_block.id, event.content_block.name, ""]
            case "content_block_delta" if event.delta.type == "input_json_delta":
                self._calls[event.index][2] += event.delta.partial_json
            case "content_block_delta" if event.delta.type == "text_delta":
                self._text.append(event.delta.text)
                return str(event.delta.text)
            case "message_delta":
                self._finish = event.delta.stop_reason or self._finish
                self._output = event.usage.output_tokens
            case "message_stop":
                self._over = True
        return ""

    def reply(self) -> Reply:
        """The whole, or Malformed if it broke off."""
        if not self._over:
            raise Malformed("the stream ended before the answer did")
        calls = (ToolRequest(*self._calls[index]) for index in sorted(self._calls))
        return Reply(
            text="".join(self._text),
            tool_calls=tuple(calls),
            usage=usage_of(self._input, self._output, self._price),
            finish=self._finish,
            model=self._model,
        )
