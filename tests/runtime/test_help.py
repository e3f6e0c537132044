"""`help()` shows real parameters: of what users declare, and of the decorators."""

from __future__ import annotations

import pydoc
from typing import Any

import pytest

from holdfast import AsyncRun, Run, agent, loop, step, tool
from holdfast.core.agent_state import AgentState
from holdfast.runtime.declare.options import AGENT, STEP, TOOL


@step
def draft(notes: str, *, length: int = 3) -> list[str]:
    """Write a draft."""
    return [notes] * length


@tool(risk="external_action")
async def send_email(to: str, body: str, idempotency_key: str = "") -> dict[str, str]:
    """Send an email."""
    return {to: body}


@agent(stages=("drafting",))
def recap(run: Run, recipient: str, notes: str = "") -> str:
    """Send a recap."""
    return recipient + notes


@agent
async def research(run: AsyncRun, question: str) -> int:
    """Find out."""
    return len(question)


@loop(max_iterations=3)
def improve(run: Run, state: AgentState, by: int = 1) -> AgentState:
    """Make it better."""
    return state


class Mailer:
    @tool
    def send(self, to: str) -> None:
        """Send it."""


def shown(thing: Any) -> str:
    return pydoc.plain(pydoc.render_doc(thing))


@pytest.mark.parametrize(
    ("declared", "signature", "text"),
    [
        (draft, "draft(notes: 'str', *, length: 'int' = 3) -> 'list[str]'", "Write a draft."),
        (
            send_email,
            "send_email(to: 'str', body: 'str', idempotency_key: 'str' = '') -> 'dict[str, str]'",
            "Send an email.",
        ),
        (recap, "recap(recipient: 'str', notes: 'str' = '') -> 'str'", "Send a recap."),
        (research, "research(question: 'str') -> 'int'", "Find out."),
        (improve, "improve(goal, by: 'int' = 1)", "Make it better."),
        (Mailer.send, "send(self, to: 'str') -> 'None'", "Send it."),
    ],
)
def test_help_shows_the_parameters_and_the_docstring_of_what_was_declared(
    declared: Any, signature: str, text: str
) -> None:
    """Those that a caller gives: not the run."""
    assert signature in shown(declared)
    assert text in shown(declared)


@pytest.mark.parametrize(
    ("decorator", "options"),
    [(step, STEP), (tool, TOOL), (agent, AGENT)],
    ids=lambda x: str(x)[:20],
)
def test_help_shows_the_options_of_a_decorator(decorator: Any, options: tuple[str, ...]) -> None:
    assert [] == [option for option in options if f"{option}: " not in shown(decorator)]
    assert "**options" not in shown(decorator)
