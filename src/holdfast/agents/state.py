"""The typed state of an agent and its parts, under one name for those who write agents.

They are pure values and are in `holdfast.core`, because the fold of a log shows them.
"""

from holdfast.core.agent_state import AgentState, Phase, WorkingMemory
from holdfast.core.parts import Artifact, Fact, Message, PlanStep, Role, ToolCall
from holdfast.core.patch import StatePatch

__all__ = [
    "AgentState",
    "Artifact",
    "Fact",
    "Message",
    "Phase",
    "PlanStep",
    "Role",
    "StatePatch",
    "ToolCall",
    "WorkingMemory",
]
