"""A model with scripted replies, for tests, examples and demos. No key, no network.

A reply depends only on the turn, so a run that is resumed in another process gets the same one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from msgspec.structs import replace

from holdfast.agents.models.base import Prompt, Reply, ToolRequest
from holdfast.core import values
from holdfast.core.events import Usage
from holdfast.errors import InvalidInput, ModelRefused

Line = str | Reply | ToolRequest | Callable[[Prompt], "str | Reply | ToolRequest"]


def call(name: str, /, **arguments: Any) -> ToolRequest:
    """A tool call for a script: `call("clean_logs", older_than_days=7)`."""
    return ToolRequest(id="", name=name, arguments=values.encode(arguments).decode())


def say(text: str, *calls: ToolRequest) -> Reply:
    """Text and tool calls in one reply: `say("I look first.", call("check_disk"))`."""
    return Reply(text=text, tool_calls=calls)


class ScriptedModel:
    """Replies turn by turn from a script.

        ScriptedModel(say("I look first.", call("check_disk")), "The disk is fine.")

    An item is a text (the answer), a `call`, a `say`, a complete `Reply`, or a function of the prompt that
    returns one of these.
    """

    is_offline: Final = True
    """It contacts nothing, so it needs no mock where only mocks may be called."""

    def __init__(self, *lines: Line, tokens_per_turn: int = 0) -> None:
        if not lines:
            raise InvalidInput("ScriptedModel needs at least one reply")
        self._lines = lines
        self._usage = Usage(tokens_per_turn, 0)

    def __repr__(self) -> str:
        return f"ScriptedModel({len(self._lines)} lines)"

    def answer(self, prompt: Prompt) -> Reply:
        """The line of this turn."""
        if prompt.turn > len(self._lines):
            raise ModelRefused(
                f"the script has {len(self._lines)} replies, and reply {prompt.turn} was requested; "
                "end it with a text, which is the agent's answer"
            )
        line = self._lines[prompt.turn - 1]
        made = line(prompt) if callable(line) else line
        reply = self._reply(made, prompt.turn)
        if prompt.on_text is not None and reply.text:
            for word in re.findall(r"\S+\s*|\s+", reply.text):
                prompt.on_text(word)
        return reply

    def _reply(self, reply: str | Reply | ToolRequest, turn: int) -> Reply:
        if isinstance(reply, Reply):
            text, asked = reply.text, reply.tool_calls
        else:
            text, asked = (reply, ()) if isinstance(reply, str) else ("", (reply,))
        calls = tuple(
            ToolRequest(c.id or f"call_{turn}_{i}", c.name, c.arguments)
            for i, c in enumerate(asked, 1)
        )
        said = reply if isinstance(reply, Reply) else Reply()
        return replace(
            said,
            text=text,
            tool_calls=calls,
            usage=said.usage or self._usage,
            finish=said.finish or "stop",
            model=said.model or "scripted",
        )
