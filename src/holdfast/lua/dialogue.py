"""The messages of a procedure: `MessageHistory`, and what each of its agents is shown.

All messages are in the run's log. A message from or to an agent is marked with the agent's name; the others are
shown to all agents. `clear`, `rewind` and `keep_tail_tokens` hide messages from agents; they do not delete them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from holdfast import InvalidInput
from holdfast.core.parts import Message, Role
from holdfast.core.tokens import ESTIMATE

if TYPE_CHECKING:
    from holdfast import Run
    from holdfast.core.parts import ToolCall


def _agent_of(message: Message) -> str:
    metadata = message.metadata
    return str(metadata.get("agent", "")) if isinstance(metadata, dict) else ""


def _text_of(message: Message) -> str:
    from holdfast.core.dialogue import text_of  # here, as most files ask no model

    return text_of(message.content)


class Dialogue:
    """The messages of a run, and which of them are hidden. Built again by every replay."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._hidden: set[int] = set()

    def visible(self) -> list[tuple[int, Message]]:
        """The messages that are not hidden, with their places."""
        return [(n, m) for n, m in enumerate(self.run.messages.all()) if n not in self._hidden]

    def of_agent(self, agent: str) -> list[Message]:
        """What an agent is shown: its own messages and those that belong to no agent; of its instructions, the newest."""
        shown = [(n, m) for n, m in self.visible() if _agent_of(m) in ("", agent)]
        own = [n for n, m in shown if m.role == Role.SYSTEM and _agent_of(m) == agent]
        return [m for n, m in shown if n not in own[:-1]]

    # ── MessageHistory ───────────────────────────────────────────────────────────────────

    def _plain(self, messages: Iterable[tuple[int, Message]]) -> list[dict[str, Any]]:
        return [{"role": m.role, "content": _text_of(m)} for _, m in messages]

    def do_append(self, message: Any, content: Any = None) -> None:
        if isinstance(message, str):
            message = {"role": message, "content": content}
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            raise InvalidInput('MessageHistory.append takes {role = "user", content = "…"}')
        role = str(message.get("role", "user"))
        if role not in ("system", "user", "assistant"):
            raise InvalidInput(
                f"MessageHistory.append: role {role!r} is not system, user or assistant"
            )
        self.run.messages.add(role, message["content"])

    def do_inject_system(self, content: Any) -> None:
        self.do_append("system", content)

    def do_clear(self) -> None:
        self._hidden |= {n for n, _ in self.visible()}

    def do_get(self) -> list[dict[str, Any]]:
        return self._plain(self.visible())

    do_history = do_get

    def do_head(self, count: int = 1) -> list[dict[str, Any]]:
        return self._plain(self.visible()[: max(0, count)])

    def do_tail(self, count: int = 1) -> list[dict[str, Any]]:
        return self._plain(self.visible()[-count:] if count > 0 else [])

    def do_slice(self, first: int = 1, last: int | None = None) -> list[dict[str, Any]]:
        """From one place to another, both included, counted from 1."""
        return self._plain(self.visible()[max(0, first - 1) : last])

    def do_rewind(self, count: int = 1) -> None:
        shown = self.visible()
        self._hidden |= {n for n, _ in (shown[-count:] if count > 0 else [])}

    def do_keep_tail_tokens(self, limit: int) -> None:
        left = limit
        for n, message in reversed(self.visible()):
            left -= ESTIMATE.count(_text_of(message))
            if left < 0:
                self._hidden.add(n)

    def do_checkpoint(self) -> int:
        """How many messages there are: everything up to here is in the log already."""
        return len(self.visible())


class AgentMessages:
    """The dialogue as one agent sees and writes it; what `LLMAgent` needs of `run.messages`."""

    def __init__(self, dialogue: Dialogue, agent: str) -> None:
        self._dialogue, self._agent = dialogue, agent
        self.added: list[Message] = []

    def add(
        self,
        role: str | Message,
        content: Any = "",
        *,
        metadata: Any = None,
        tool_calls: Iterable[ToolCall] = (),
        tool_call_id: str = "",
    ) -> None:
        """Add a message, marked with the agent's name."""
        message = (
            role
            if isinstance(role, Message)
            else Message(
                str(role),
                content,
                metadata=metadata,
                tool_calls=tuple(tool_calls),
                tool_call_id=tool_call_id,
            )
        )
        marked = replace(message, metadata={**(message.metadata or {}), "agent": self._agent})
        self.added.append(marked)
        self._dialogue.run.messages.add(marked)

    def all(self) -> list[Message]:
        return self._dialogue.of_agent(self._agent)

    def instructions(self) -> str:
        """The agent's instructions, as it was last given them."""
        own = [m for m in self.all() if m.role == Role.SYSTEM and _agent_of(m) == self._agent]
        return str(own[-1].content) if own else ""
