"""The operations of the HTTP API, in one table. Routes, role checks, decoding, the client and the OpenAPI document are made
from it.

The verb of an operation is the name of its method of `Holdfast` and of the client. Paths are below `PREFIX`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import quote

from msgspec import Struct

from holdfast.api import documents as d
from holdfast.bulk import BulkReport
from holdfast.bundle import ImportResult
from holdfast.core.state import RunState
from holdfast.gc import GcResult
from holdfast.store.base import RunRow
from holdfast.views import Outcome, Verification

PREFIX: Final = "/api/v1"

Media = Literal["json", "events", "bytes", "lines"]
"""What an operation returns: JSON, server-sent events, the bytes of an artifact, or lines of JSON."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation. `permission` is the verb whose role is needed, if it is not the operation's own."""

    verb: str
    method: str
    path: str
    summary: str
    result: Any
    query: type[Struct] = d.NoQuery
    body: type[Struct] | None = None
    status: int = 200
    media: Media = "json"
    problems: tuple[str, ...] = ()
    """Problems beyond those that every operation may answer with."""
    permission: str = ""
    takes_lines: bool = False
    """The body is lines of JSON instead of one document."""

    @property
    def needs(self) -> str:
        return self.permission or self.verb

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names in its path."""
        return tuple(re.findall(r"{(\w+)}", self.path))

    @property
    def changes(self) -> bool:
        return self.method != "GET"

    def url(self, **parts: str) -> str:
        """Its path with these parts, quoted: a part never becomes two."""
        quoted = {name: quote(part, safe="") for name, part in parts.items()}
        return PREFIX + self.path.format(**quoted)


_RUN: Final = "/runs/{run_id}"
_DECIDED: Final = ("no-such-run", "not-now", "already-decided")


OPERATIONS: Final = (
    # ── looking
    Operation("whoami", "GET", "/whoami", "Who you are, and what you may do.", d.Whoami),
    Operation(
        "runs",
        "GET",
        "/runs",
        "Runs, newest first; with `q`, those that a search finds.",
        d.RunList,
        d.RunsQuery,
    ),
    Operation(
        "get",
        "GET",
        _RUN,
        "The state of a run now.",
        RunState,
        d.StateQuery,
        problems=("no-such-run",),
    ),
    Operation(
        "row",
        "GET",
        _RUN + "/row",
        "What is known of a run without its log.",
        RunRow,
        problems=("no-such-run",),
        permission="get",
    ),
    Operation(
        "head",
        "GET",
        _RUN + "/head",
        "Where the log of a run ends.",
        d.LogEnd,
        problems=("no-such-run",),
        permission="events",
    ),
    Operation(
        "at",
        "GET",
        _RUN + "/state",
        "The state before or after a step; step 0 is the beginning.",
        RunState,
        d.StepQuery,
        problems=("no-such-run", "not-found"),
    ),
    Operation(
        "diff",
        "GET",
        _RUN + "/diff",
        "What changed between the ends of two steps.",
        d.ChangeList,
        d.DiffQuery,
        problems=("no-such-run", "not-found"),
    ),
    Operation(
        "calls",
        "GET",
        _RUN + "/calls",
        "The calls of a run, by step.",
        d.CallList,
        d.CallsQuery,
        problems=("no-such-run",),
        permission="get",
    ),
    Operation(
        "events",
        "GET",
        _RUN + "/events",
        "The log of a run.",
        d.EventList,
        d.EventsQuery,
        problems=("no-such-run",),
    ),
    Operation(
        "timeline",
        "GET",
        _RUN + "/timeline",
        "The events of a run as sentences.",
        d.TimelineList,
        d.TimelineQuery,
        problems=("no-such-run",),
    ),
    Operation(
        "stream",
        "GET",
        _RUN + "/stream",
        "The events of a run, old and new, until it has ended.",
        d.RecordedEvent,
        d.StreamQuery,
        media="events",
        problems=("no-such-run",),
    ),
    Operation(
        "result",
        "GET",
        _RUN + "/result",
        "How a run ended; with `wait`, answered when it has.",
        Outcome,
        d.WaitQuery,
        problems=("no-such-run",),
    ),
    Operation(
        "verify",
        "GET",
        _RUN + "/verify",
        "Check a run's log against its hash chain.",
        Verification,
        problems=("no-such-run",),
    ),
    Operation(
        "export",
        "GET",
        _RUN + "/export",
        "A run as lines of JSON.",
        str,
        media="lines",
        problems=("no-such-run", "log-damaged"),
    ),
    Operation(
        "artifact",
        "GET",
        _RUN + "/artifacts/{name}",
        "The bytes of an artifact, by its name or id.",
        bytes,
        media="bytes",
        problems=("no-such-run", "not-found"),
    ),
    Operation(
        "blob",
        "GET",
        _RUN + "/blobs/{hash}",
        "A value that is stored outside the log, by its hash.",
        bytes,
        media="bytes",
        problems=("no-such-run", "artifact-damaged"),
    ),
    Operation(
        "inbox", "GET", "/inbox", "Runs that are waiting for people.", d.InboxList, d.InboxQuery
    ),
    Operation("agents", "GET", "/agents", "The registered agents.", d.AgentList),
    Operation("schedules", "GET", "/schedules", "All schedules.", d.ScheduleList),
    Operation("doctor", "GET", "/doctor", "Examine the store and every run in it.", d.DoctorReport),
    # ── deciding
    Operation(
        "approve",
        "POST",
        _RUN + "/approve",
        "Approve a request; with `args`, as edited.",
        RunRow,
        body=d.Approve,
        problems=_DECIDED,
    ),
    Operation(
        "reject",
        "POST",
        _RUN + "/reject",
        "Reject a request.",
        RunRow,
        body=d.Decide,
        problems=_DECIDED,
    ),
    Operation(
        "answer",
        "POST",
        _RUN + "/answer",
        "Answer a question.",
        RunRow,
        body=d.Answer,
        problems=_DECIDED,
    ),
    Operation(
        "resolve",
        "POST",
        _RUN + "/resolve",
        "Resolve a call in doubt.",
        RunRow,
        body=d.Resolve,
        problems=(*_DECIDED, "not-found"),
    ),
    # ── operating
    Operation(
        "start",
        "POST",
        "/runs",
        "Start a run of a registered agent, for workers.",
        d.StartResult,
        d.WaitQuery,
        d.Start,
        201,
        problems=("not-found", "input-conflict"),
    ),
    Operation(
        "signal",
        "POST",
        _RUN + "/signal",
        "Send a signal.",
        RunRow,
        body=d.SendSignal,
        problems=_DECIDED,
    ),
    Operation(
        "patch",
        "PATCH",
        _RUN + "/state",
        "Change a run's state; needs If-Match.",
        d.PatchResult,
        body=d.PatchRequest,
        problems=("no-such-run", "not-now", "conflict", "precondition-required"),
    ),
    Operation(
        "pause",
        "POST",
        _RUN + "/pause",
        "Pause a run at its next call.",
        RunRow,
        body=d.Reason,
        problems=_DECIDED,
    ),
    Operation(
        "cancel",
        "POST",
        _RUN + "/cancel",
        "Cancel a run and its child runs.",
        RunRow,
        body=d.Reason,
        problems=_DECIDED,
    ),
    Operation(
        "undo",
        "POST",
        _RUN + "/undo",
        "Undo what a run did, newest first.",
        RunRow,
        body=d.Reason,
        problems=_DECIDED,
    ),
    Operation(
        "resume",
        "POST",
        _RUN + "/resume",
        "Resume a failed or paused run; a worker executes it.",
        RunRow,
        body=d.Resume,
        problems=(*_DECIDED, "not-resumable"),
    ),
    Operation(
        "rerun",
        "POST",
        _RUN + "/rerun",
        "Start a run over from its first line, with its state kept.",
        RunRow,
        body=d.Reason,
        problems=_DECIDED,
    ),
    Operation(
        "fork",
        "POST",
        _RUN + "/fork",
        "A new run that starts with the first steps of this one.",
        RunRow,
        body=d.Fork,
        status=201,
        problems=("no-such-run", "not-found", "not-now"),
    ),
    Operation(
        "bulk",
        "POST",
        "/bulk",
        "Cancel or resume many runs; with `dry_run`, what that would do to each.",
        BulkReport,
        body=d.Bulk,
        problems=("not-found",),
    ),
    # ── what integrations keep
    Operation(
        "record",
        "POST",
        "/recorded",
        "Create a run that another program executes.",
        RunRow,
        body=d.RecordRun,
        status=201,
        problems=("input-conflict",),
    ),
    Operation(
        "finish",
        "POST",
        _RUN + "/finish",
        "End a run that another program executes.",
        RunRow,
        body=d.Finish,
        problems=("no-such-run", "not-now"),
    ),
    Operation(
        "items",
        "GET",
        _RUN + "/items",
        "The items that integrations have stored in a run, newest first.",
        d.ItemList,
        d.ItemsQuery,
        problems=("no-such-run",),
    ),
    Operation(
        "item",
        "GET",
        _RUN + "/item",
        "The item that is stored under a key.",
        d.ItemFound,
        d.ItemQuery,
        problems=("no-such-run",),
    ),
    Operation(
        "put_item",
        "PUT",
        _RUN + "/item",
        "Store a value under a key.",
        d.ItemChanged,
        body=d.PutItem,
        problems=("no-such-run", "not-now"),
    ),
    Operation(
        "delete_item",
        "DELETE",
        _RUN + "/item",
        "Delete the item that is stored under a key.",
        d.ItemChanged,
        d.ItemQuery,
        problems=("no-such-run", "not-now"),
    ),
    # ── administering
    Operation(
        "delete",
        "DELETE",
        _RUN,
        "Delete a run that has ended.",
        d.DeleteResult,
        problems=("no-such-run", "not-now"),
    ),
    Operation(
        "import",
        "POST",
        "/imports",
        "Import a run that `export` wrote. It is checked, and paused.",
        ImportResult,
        status=201,
        takes_lines=True,
        problems=("not-abundle", "log-damaged"),
    ),
    Operation(
        "gc", "POST", "/gc", "Delete runs that ended long ago.", GcResult, body=d.CollectGarbage
    ),
    Operation(
        "unschedule",
        "DELETE",
        "/schedules/{schedule_id}",
        "Delete a schedule.",
        d.DeleteResult,
        problems=("not-found",),
    ),
)


def operation(verb: str) -> Operation:
    """The operation of this verb."""
    return next(found for found in OPERATIONS if found.verb == verb)
