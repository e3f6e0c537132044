"""Why a model stopped, and whether its reply may be used.

Providers use different names for the same reasons. Only a reply that ended normally is complete; of any other one
nothing is used, and none of its tool calls is executed. A reason that is not listed here counts as incomplete.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final

from holdfast.agents.models.base import Reply
from holdfast.errors import (
    ModelContextFull,
    ModelCutOff,
    ModelDeclined,
    ModelEmpty,
    ModelError,
    ModelIncomplete,
    ModelUnavailable,
)

SHOWN_CHARS: Final = 200


class Finish(enum.StrEnum):
    """Why an answer ended."""

    STOP = "stop"
    TOOLS = "tools"
    LENGTH = "length"
    REFUSED = "refused"
    FILTERED = "filtered"
    PAUSED = "paused"
    CONTEXT_FULL = "context_full"
    INTERRUPTED = "interrupted"


_REPORTED: Final[Mapping[str, Finish]] = {
    "": Finish.STOP,  # a model of the user's own need not report a reason
    "stop": Finish.STOP,
    "end_turn": Finish.STOP,
    "stop_sequence": Finish.STOP,
    "eos": Finish.STOP,
    "eos_token": Finish.STOP,
    "tool_calls": Finish.TOOLS,
    "tool_use": Finish.TOOLS,
    "function_call": Finish.TOOLS,
    "length": Finish.LENGTH,
    "max_tokens": Finish.LENGTH,
    "model_length": Finish.LENGTH,
    "refusal": Finish.REFUSED,
    "content_filter": Finish.FILTERED,
    "pause_turn": Finish.PAUSED,
    "model_context_window_exceeded": Finish.CONTEXT_FULL,
    "insufficient_system_resource": Finish.INTERRUPTED,
    "abort": Finish.INTERRUPTED,
    "error": Finish.INTERRUPTED,
}


def finish_of(reply: Reply) -> Finish | None:
    """Why this answer ended; None if the provider gave a reason that is not known here."""
    return _REPORTED.get(reply.finish)


def check_complete(reply: Reply) -> None:
    """Raise a ModelError if this answer must not be used."""
    error = _error(reply)
    if error is not None:
        raise error


def _error(reply: Reply) -> ModelError | None:
    details: dict[str, Any] = {"finish": reply.finish, "text": reply.text, "usage": reply.usage}
    asked = bool(reply.tool_calls)
    match finish_of(reply):
        case Finish.STOP | Finish.TOOLS:
            if asked or reply.text.strip():
                return None
            return ModelEmpty(
                "the model's answer was empty: no text and no tool call. Resume the run with hf.resume(id) "
                "to ask again; if it stays empty, change the instructions or the model",
                **details,
            )
        case Finish.PAUSED if not asked:
            return None
        case Finish.LENGTH:
            return ModelCutOff(
                f"the model's reply was truncated by its length limit ({reply.finish!r}){_not_used(reply)}. Raise "
                "max_output_tokens of the model, then resume the run with hf.resume(id) to ask again",
                **details,
            )
        case Finish.CONTEXT_FULL:
            return ModelContextFull(
                f"the dialogue fills the model's context window{_not_used(reply)}. Lower max_context_tokens or "
                "max_observation_chars of the agent, then resume the run with hf.resume(id)",
                **details,
            )
        case Finish.REFUSED | Finish.FILTERED as finish:
            who = (
                "the model refused"
                if finish is Finish.REFUSED
                else "a content filter blocked the answer"
            )
            return ModelDeclined(
                f"{who} ({reply.finish!r}){_not_used(reply)}. Change the request, the instructions or the model, "
                "then resume the run with hf.resume(id) to ask again",
                category=finish.value,
                **details,
            )
        case Finish.INTERRUPTED:
            return ModelUnavailable(
                f"the provider interrupted the answer ({reply.finish!r}){_not_used(reply)}"
            )
        case _:
            return ModelIncomplete(
                f"the model's answer ended with {reply.finish!r}, which is not known to be a complete "
                f"answer{_not_used(reply)}. Resume the run with hf.resume(id) to ask again",
                **details,
            )


def _not_used(reply: Reply) -> str:
    shown = reply.text[:SHOWN_CHARS]
    text = f"; it starts with {shown!r}" if shown else ""
    calls = ", ".join(call.name for call in reply.tool_calls)
    not_called = f"; not called: {calls}" if calls else ""
    return f", and nothing of it was used{text}{not_called}"
