"""Holdfast keeps an agent's run in a log outside the process, so that a crash becomes a pause.

The names here are the public surface; everything else has a module of its own.
"""

from holdfast.app import AsyncHoldfast, Handle, Holdfast
from holdfast.core.policy import Budget, Retry
from holdfast.core.state import RunState
from holdfast.errors import (
    AlreadyDecided,
    BudgetExceeded,
    CallFailed,
    CallTimeout,
    DeadlineExceeded,
    Diverged,
    HoldfastError,
    InputConflict,
    InvalidInput,
    LeaseLost,
    LogDamaged,
    NotDurable,
    NotFound,
    NotNow,
    NotStorable,
    Rejected,
    RunBusy,
    RunCancelled,
    RunFailed,
    RunWaiting,
    StorageFull,
    StoreError,
    StoreUnavailable,
)
from holdfast.runtime.declare import Done
from holdfast.runtime.engine import Options
from holdfast.runtime.enter import agent, step, tool
from holdfast.runtime.run import AsyncRun, Run

__version__ = "0.1.0"

__all__ = [
    "AlreadyDecided",
    "AsyncHoldfast",
    "AsyncRun",
    "Budget",
    "BudgetExceeded",
    "CallFailed",
    "CallTimeout",
    "DeadlineExceeded",
    "Diverged",
    "Done",
    "Handle",
    "Holdfast",
    "HoldfastError",
    "InputConflict",
    "InvalidInput",
    "LeaseLost",
    "LogDamaged",
    "NotDurable",
    "NotFound",
    "NotNow",
    "NotStorable",
    "Options",
    "Rejected",
    "Retry",
    "Run",
    "RunBusy",
    "RunCancelled",
    "RunFailed",
    "RunState",
    "RunWaiting",
    "StorageFull",
    "StoreError",
    "StoreUnavailable",
    "agent",
    "step",
    "tool",
]
