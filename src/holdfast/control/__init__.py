"""What people may do to a run. Works without the agent's code, on any machine that reaches the store.

Every change is one event (or two) appended to the run's log, on condition that the log is still what the decision was
based on. So of approve, reject, time-out and cancel racing, one wins, and the others get an error that names it.
A worker that is executing the run sees the event at its next commit.
"""

from holdfast.control.doubt import resolve
from holdfast.control.fork import fork
from holdfast.control.items import delete, delete_item, finish, put_item, record
from holdfast.control.lifecycle import (
    accept_new_steps,
    cancel,
    pause,
    reopen,
    rerun,
    set_limits,
    undo,
)
from holdfast.control.patch import Patch, patch
from holdfast.control.requests import answer, approve, received, reject, signal
from holdfast.control.start import registered, start
from holdfast.store.outside import RunUpdate, update_run

__all__ = [
    "Patch",
    "RunUpdate",
    "accept_new_steps",
    "answer",
    "approve",
    "cancel",
    "delete",
    "delete_item",
    "finish",
    "fork",
    "patch",
    "pause",
    "put_item",
    "received",
    "record",
    "registered",
    "reject",
    "reopen",
    "rerun",
    "resolve",
    "set_limits",
    "signal",
    "start",
    "undo",
    "update_run",
]
