"""Anthropic's Messages, through the official client.

The key is ANTHROPIC_API_KEY and the address ANTHROPIC_BASE_URL, unless passed. The client's own retries
are off: attempts and retry delays are recorded by Holdfast.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar, Final

from holdfast.agents.models.base import Price, Prompt, ProviderBlocks, Reply, ToolRequest, usage_of
from holdfast.agents.models.client import AsyncClientModel, ClientModel
from holdfast.agents.models.failures import Malformed
from holdfast.core import dialogue, values
from holdfast.errors import NotStorable

OUTPUT_TOKENS: Final = 4096
"""The default limit of a reply; Anthropic requires one."""


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

    def _read_reply(self, answered: Any) -> Reply:
        return read_reply(answered, self.price)

    def _pieces(self) -> AnthropicStream:
        return AnthropicStream(self.price)


class AsyncAnthropicModel(AsyncClientModel, AnthropicModel):
    """The same on an event loop; `client` is an `anthropic.AsyncAnthropic`. Agents with it are async."""

    client_class = "AsyncAnthropic"


def read_reply(message: Any, price: Price | None) -> Reply:
    """A reply that was not streamed."""
    try:
        if not message.stop_reason:
            raise Malformed("it has no stop_reason")
        blocks = [block.to_dict() for block in message.content]
        return Reply(
            text=_text(blocks),
            tool_calls=tuple(
                ToolRequest(block["id"], block["name"], _arguments(block["input"]))
                for block in blocks
                if block["type"] == "tool_use"
            ),
            usage=usage_of(_input_tokens(message.usage), message.usage.output_tokens, price),
            finish=message.stop_reason,
            model=message.model or "",
            kept=_kept(blocks),
        )
    except (AttributeError, TypeError, KeyError) as error:
        raise Malformed(f"{error}; it starts with {str(message)[:80]!r}") from None


def _arguments(arguments: Any) -> str:
    """The arguments as JSON text. A lone surrogate among them is escaped, and replaced by the agent."""
    try:
        return values.encode(arguments).decode()
    except NotStorable:
        return json.dumps(arguments)


def _text(blocks: list[dict[str, Any]]) -> str:
    return "".join(block["text"] for block in blocks if block["type"] == "text")


def _kept(blocks: list[dict[str, Any]]) -> ProviderBlocks | None:
    """All blocks, if some of them cannot be made again from text and tool calls."""
    plain = all(block["type"] in ("text", "tool_use") for block in blocks)
    return None if plain else ProviderBlocks("anthropic", blocks)


def _input_tokens(usage: Any) -> int:
    """All that went in, whether the provider had it cached or not."""
    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    return sum(getattr(usage, name, None) or 0 for name in names)


_GROWS: Final = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
}
"""Which field of a block each kind of delta makes longer."""


class AnthropicStream:
    """A reply that is streamed as events. Without its last event it is incomplete."""

    def __init__(self, price: Price | None) -> None:
        self._price = price
        self._blocks: dict[int, dict[str, Any]] = {}
        self._inputs: dict[int, str] = {}
        self._input = self._output = 0
        self._finish = self._model = ""
        self._over = False

    def feed(self, piece: Any) -> str:
        """Add a chunk; returns the text in it."""
        try:
            return self._read(piece)
        except (AttributeError, TypeError, KeyError) as error:
            raise Malformed(str(error)) from None

    def _read(self, event: Any) -> str:
        match event.type:
            case "message_start":
                self._model = event.message.model or ""
                self._input = _input_tokens(event.message.usage)
            case "content_block_start":
                self._blocks[event.index] = event.content_block.to_dict()
            case "content_block_delta":
                return self._grow(event.index, event.delta)
            case "message_delta":
                self._finish = event.delta.stop_reason or self._finish
                self._output = event.usage.output_tokens
            case "message_stop":
                self._over = True
        return ""

    def _grow(self, index: int, delta: Any) -> str:
        block = self._blocks[index]
        if delta.type == "input_json_delta":
            self._inputs[index] = self._inputs.get(index, "") + delta.partial_json
        elif delta.type == "citations_delta":
            block["citations"] = [*(block.get("citations") or ()), delta.citation.to_dict()]
        elif delta.type in _GROWS:
            field = _GROWS[delta.type]
            block[field] = (block.get(field) or "") + getattr(delta, field)
        return str(delta.text) if delta.type == "text_delta" else ""

    def reply(self) -> Reply:
        """The complete reply, or Malformed if it was interrupted."""
        if not self._over or not self._finish:
            raise Malformed("the stream ended before the reply was complete")
        blocks = [self._whole_block(index) for index in sorted(self._blocks)]
        calls = (
            ToolRequest(block["id"], block["name"], self._inputs.get(index, ""))
            for index, block in sorted(self._blocks.items())
            if block["type"] == "tool_use"
        )
        return Reply(
            text=_text(blocks),
            tool_calls=tuple(calls),
            usage=usage_of(self._input, self._output, self._price),
            finish=self._finish,
            model=self._model,
            kept=_kept(blocks),
        )

    def _whole_block(self, index: int) -> dict[str, Any]:
        """A block with the input that came in pieces; a client's tool has it in its `ToolRequest`."""
        block = self._blocks[index]
        if index not in self._inputs or block["type"] == "tool_use":
            return block
        try:
            return {**block, "input": values.decode(self._inputs[index].encode())}
        except NotStorable as error:
            raise Malformed(f"the input of a {block['type']} block: {error.reason}") from None
