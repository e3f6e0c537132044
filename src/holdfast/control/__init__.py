"""What people may do to a run. Works without the agent's code, on any machine that reaches the store.

Every change is one event (or two) appended to the run's log, on condition that the log is still what the decision was
based on. So of approve, reject, time-out and cancel racing, one wins, and the others get an error that names it.
A worker that is executing the run sees the event at its next commit.
"""

from typing import TYPE_CHECKING, Final

from holdfast.lazy import on_first_use

if TYPE_CHECKING:
    from holdfast.control.forks import fork
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
    from holdfast.control.new_run import new_run_id, registered, start
    from holdfast.control.patches import Patch, patch
    from holdfast.control.requests import answer, approve, received, reject, resolve, signal
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
    "new_run_id",
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

_HOMES: Final = {
    "holdfast.control.forks": ("fork",),
    "holdfast.control.items": ("delete", "delete_item", "finish", "put_item", "record"),
    "holdfast.control.lifecycle": (
        "accept_new_steps",
        "cancel",
        "pause",
        "reopen",
        "rerun",
        "set_limits",
        "undo",
    ),
    "holdfast.control.new_run": ("new_run_id", "registered", "start"),
    "holdfast.control.patches": ("Patch", "patch"),
    "holdfast.control.requests": ("answer", "approve", "received", "reject", "resolve", "signal"),
    "holdfast.store.outside": ("RunUpdate", "update_run"),
}

if not TYPE_CHECKING:  # a type checker should see the imports above, and complain of any other name
    __getattr__ = on_first_use(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
