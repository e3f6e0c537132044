"""Holdfast makes AI agents durable: a run is a log outside the process, so a crash becomes a pause.

The names here are the public surface; everything else has its own module. Each name is loaded
when it is first used, so that `import holdfast` costs nothing and the command line starts at once.
"""

from typing import TYPE_CHECKING, Final

from holdfast.lazy import on_first_use

if TYPE_CHECKING:
    from holdfast.agents.llm import LLMAgent
    from holdfast.agents.loop import loop
    from holdfast.agents.models import AnthropicModel, OpenAIModel
    from holdfast.aio import AsyncHandle, AsyncHoldfast, AsyncWorker
    from holdfast.app import Handle, Holdfast
    from holdfast.core.agent_state import AgentState, Phase
    from holdfast.core.params import Parameter, ParamSchema
    from holdfast.core.parts import Message
    from holdfast.core.patch import StatePatch
    from holdfast.core.policy import Budget, Checkpoint, Rate, Retry
    from holdfast.core.state import RunState
    from holdfast.errors import (
        AlreadyDecided,
        BudgetExceeded,
        CallFailed,
        CallTimeout,
        Conflict,
        ContextTooLong,
        DeadlineExceeded,
        Diverged,
        HoldfastError,
        InDoubt,
        InputConflict,
        InvalidInput,
        InvalidTransition,
        IterationsExceeded,
        LeaseLost,
        LogDamaged,
        ModelContextFull,
        ModelCutOff,
        ModelDeclined,
        ModelEmpty,
        ModelError,
        ModelIncomplete,
        ModelRefused,
        ModelUnavailable,
        NotDurable,
        NotFound,
        NotMocked,
        NotNow,
        NotResumable,
        NotStorable,
        OutOfTurns,
        Rejected,
        RunBusy,
        RunCancelled,
        RunFailed,
        RunWaiting,
        StorageFull,
        StoreError,
        StoreUnavailable,
    )
    from holdfast.runtime.api.decorators import agent, step, tool
    from holdfast.runtime.api.run import AsyncRun, Run
    from holdfast.runtime.call.waits import Approval, Question, Timer
    from holdfast.runtime.declare.agent_spec import Agent, AsyncAgent, BoundAgent
    from holdfast.runtime.declare.call_spec import Done
    from holdfast.runtime.exec.engine import Options
    from holdfast.store.items import Item

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "AgentState",
    "AlreadyDecided",
    "AnthropicModel",
    "Approval",
    "AsyncAgent",
    "AsyncHandle",
    "AsyncHoldfast",
    "AsyncRun",
    "AsyncWorker",
    "BoundAgent",
    "Budget",
    "BudgetExceeded",
    "CallFailed",
    "CallTimeout",
    "Checkpoint",
    "Conflict",
    "ContextTooLong",
    "DeadlineExceeded",
    "Diverged",
    "Done",
    "Handle",
    "Holdfast",
    "HoldfastError",
    "InDoubt",
    "InputConflict",
    "InvalidInput",
    "InvalidTransition",
    "Item",
    "IterationsExceeded",
    "LLMAgent",
    "LeaseLost",
    "LogDamaged",
    "Message",
    "ModelContextFull",
    "ModelCutOff",
    "ModelDeclined",
    "ModelEmpty",
    "ModelError",
    "ModelIncomplete",
    "ModelRefused",
    "ModelUnavailable",
    "NotDurable",
    "NotFound",
    "NotMocked",
    "NotNow",
    "NotResumable",
    "NotStorable",
    "OpenAIModel",
    "Options",
    "OutOfTurns",
    "ParamSchema",
    "Parameter",
    "Phase",
    "Question",
    "Rate",
    "Rejected",
    "Retry",
    "Run",
    "RunBusy",
    "RunCancelled",
    "RunFailed",
    "RunState",
    "RunWaiting",
    "StatePatch",
    "StorageFull",
    "StoreError",
    "StoreUnavailable",
    "Timer",
    "agent",
    "loop",
    "step",
    "tool",
]

_HOMES: Final = {
    "holdfast.agents.loop": ("loop",),
    "holdfast.agents.llm": ("LLMAgent",),
    "holdfast.agents.models": ("AnthropicModel", "OpenAIModel"),
    "holdfast.aio": ("AsyncHandle", "AsyncHoldfast", "AsyncWorker"),
    "holdfast.app": ("Handle", "Holdfast"),
    "holdfast.core.agent_state": ("AgentState", "Phase"),
    "holdfast.store.items": ("Item",),
    "holdfast.core.parts": ("Message",),
    "holdfast.core.params": ("ParamSchema", "Parameter"),
    "holdfast.core.patch": ("StatePatch",),
    "holdfast.core.policy": ("Budget", "Checkpoint", "Rate", "Retry"),
    "holdfast.core.state": ("RunState",),
    "holdfast.runtime.declare.agent_spec": ("Agent", "AsyncAgent", "BoundAgent"),
    "holdfast.runtime.declare.call_spec": ("Done",),
    "holdfast.runtime.exec.engine": ("Options",),
    "holdfast.runtime.api.decorators": ("agent", "step", "tool"),
    "holdfast.runtime.call.waits": ("Approval", "Question", "Timer"),
    "holdfast.runtime.api.run": ("AsyncRun", "Run"),
}

if not TYPE_CHECKING:  # a type checker should see the imports above, and complain of any other name
    # All others are errors.
    __getattr__ = on_first_use(__name__, {"holdfast.errors": __all__, **_HOMES})


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
