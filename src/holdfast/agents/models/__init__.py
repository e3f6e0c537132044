"""Models that an agent can talk to. Importing this imports no provider's client.

`Model` is a protocol of one method: anything with `answer(prompt) -> Reply` (or `async def answer`) is one.
"""

from holdfast.agents.models.anthropic import AnthropicModel, AsyncAnthropicModel
from holdfast.agents.models.base import (
    AsyncModel,
    Model,
    Price,
    Prompt,
    ProviderBlocks,
    Reply,
    ToolRequest,
)
from holdfast.agents.models.finish import Finish, finish_of
from holdfast.agents.models.openai import AsyncOpenAIModel, OpenAIModel
from holdfast.agents.models.scripted import ScriptedModel, call, say

__all__ = [
    "AnthropicModel",
    "AsyncAnthropicModel",
    "AsyncModel",
    "AsyncOpenAIModel",
    "Finish",
    "Model",
    "OpenAIModel",
    "Price",
    "Prompt",
    "ProviderBlocks",
    "Reply",
    "ScriptedModel",
    "ToolRequest",
    "call",
    "finish_of",
    "say",
]
