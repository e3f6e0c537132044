"""OpenAI's Chat Completions, and every server that speaks them, through the official client.

The key is OPENAI_API_KEY and the address OPENAI_BASE_URL, unless given. The client's own retries are
off: attempts and the waits between them are in the log.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from holdfast.agents.models.base import Price, Prompt, Reply, ToolRequest, usage_of
from holdfast.agents.models.client import AsyncClientModel, ClientModel
from holdfast.agents.models.failures import Malformed
from holdfast.core import dialogue

REFUSAL: Final = "refusal"
"""OpenAI reports a refusal in its own field, with the finish reason `stop`."""


class OpenAIModel(ClientModel):
    """A model behind OpenAI's Chat Completions API. `client` is an `openai.OpenAI`."""

    provider = "OpenAI"
    key_variable = "OPENAI_API_KEY"
    client_class: ClassVar[str] = "OpenAI"

    def _send(self, client: Any, prompt: Prompt) -> Any:
        request: dict[str, Any] = {
            **self.options,
            "model": self.model,
            "messages": dialogue.openai(prompt.messages),
        }
        if self.max_output_tokens is not None:
            request["max_completion_tokens"] = self.max_output_tokens
        if prompt.tools:
            request["tools"] = [
                {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        "description": tool.description,
                        "parameters": tool.parameters,
                    },
                }
                for tool in prompt.tools
            ]
        if prompt.on_text is not None:
            request |= {"stream": True, "stream_options": {"include_usage": True}}
        return client.chat.completions.create(**request)

    def _read_reply(self, answered: Any) -> Reply:
        return read_reply(answered, self.price)

    def _pieces(self) -> OpenAIStream:
        return OpenAIStream(self.price)


class AsyncOpenAIModel(AsyncClientModel, OpenAIModel):
    """The same on an event loop; `client` is an `openai.AsyncOpenAI`. Agents with it are async."""

    client_class = "AsyncOpenAI"


def read_reply(completion: Any, price: Price | None) -> Reply:
    """A reply that was not streamed."""
    try:
        choice = completion.choices[0]
        if not choice.finish_reason:
            raise Malformed("it has no finish_reason")
        said, used = choice.message, getattr(completion, "usage", None)
        refusal = getattr(said, "refusal", None)
        return Reply(
            text=said.content or refusal or "",
            tool_calls=tuple(
                ToolRequest(call.id or "", call.function.name, call.function.arguments or "")
                for call in said.tool_calls or ()
            ),
            usage=_usage(used, price),
            finish=REFUSAL if refusal else choice.finish_reason,
            model=completion.model or "",
        )
    except (AttributeError, IndexError, TypeError) as error:
        raise Malformed(f"{error}; it starts with {str(completion)[:80]!r}") from None


def _usage(usage: Any, price: Price | None) -> Any:
    return usage_of(
        getattr(usage, "prompt_tokens", None), getattr(usage, "completion_tokens", None), price
    )


class OpenAIStream:
    """A streamed reply. Without its end it is incomplete."""

    def __init__(self, price: Price | None) -> None:
        self._price = price
        self._text: list[str] = []
        self._calls: dict[int, list[str]] = {}
        self._usage: Any = None
        self._finish = self._model = ""
        self._refused = False

    def feed(self, piece: Any) -> str:
        """Add a chunk; returns the text in it."""
        try:
            return self._read(piece)
        except (AttributeError, TypeError, KeyError) as error:
            raise Malformed(str(error)) from None

    def _read(self, chunk: Any) -> str:
        self._model = chunk.model or self._model
        self._usage = getattr(chunk, "usage", None) or self._usage
        if not chunk.choices:
            return ""
        choice = chunk.choices[0]
        self._finish = choice.finish_reason or self._finish
        delta = choice.delta
        for part in delta.tool_calls or ():
            call = self._calls.setdefault(part.index, ["", "", ""])
            call[0] = part.id or call[0]
            if part.function is not None:
                call[1] += part.function.name or ""
                call[2] += part.function.arguments or ""
        refusal = getattr(delta, "refusal", None)
        self._refused = self._refused or bool(refusal)
        text = delta.content or refusal or ""
        self._text.append(text)
        return str(text)

    def reply(self) -> Reply:
        """The complete reply, or Malformed if it was interrupted."""
        if not self._finish:
            raise Malformed("the stream ended before the reply was complete")
        calls = (ToolRequest(*self._calls[index]) for index in sorted(self._calls))
        return Reply(
            text="".join(self._text),
            tool_calls=tuple(calls),
            usage=_usage(self._usage, self._price),
            finish=REFUSAL if self._refused else self._finish,
            model=self._model,
        )
