"""What each operation does: a function of the store, who asks, the decoded request. All of them may block.

Roles were checked before. `by` is always the name of who is signed in.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from holdfast import __version__, bundle, control, views
from holdfast import gc as garbage
from holdfast.api import documents as d
from holdfast.bulk import BulkReport, bulk
from holdfast.control.roles import ALLOWED, READS, check_allowed
from holdfast.core import log
from holdfast.core.fold import fold
from holdfast.core.patch import StatePatch
from holdfast.core.policy import Budget, Limits, microseconds
from holdfast.core.state import RunState
from holdfast.doctor import examine
from holdfast.errors import (
    ArtifactDamaged,
    Conflict,
    InputConflict,
    InvalidInput,
    NoSuchRun,
    NotFound,
    NotNow,
)
from holdfast.store.artifacts import read_artifact
from holdfast.store.base import TERMINAL_STATUSES, RunRow, Store
from holdfast.web.auth import Principal
from holdfast.web.reader import RunReader


@dataclass(frozen=True)
class Ask:
    """One decoded request."""

    who: Principal
    path: dict[str, str]
    query: Any = None
    body: Any = None
    lines: list[str] = field(default_factory=list)
    key: str = ""
    """The header Idempotency-Key."""
    if_match: str = ""
    is_read_only: bool = False
    reader: RunReader = field(default_factory=RunReader)

    @property
    def run_id(self) -> str:
        return self.path["run_id"]

    @property
    def signed(self) -> dict[str, str]:
        """Who decides and why, for the log."""
        return {"by": self.who.name, "why": self.body.why}


@dataclass(frozen=True)
class HandlerResult:
    """What a handler returns if its result needs more: a status of its own, and headers."""

    value: Any
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Bytes:
    """Bytes to send. `etag` changes if they do; those that are named by their hash never do."""

    data: bytes
    etag: str
    filename: str
    is_immutable: bool


class VersionConflict(Conflict):
    """The run has changed since the version of If-Match; nothing was written."""

    def __init__(
        self, run_id: str, expected: int, current: int, since: Sequence[views.Change]
    ) -> None:
        super().__init__(run_id, expected, current)
        self.current = current
        self.since = [{"path": x.path, "before": x.before, "after": x.after} for x in since]


class KeyReused(InvalidInput):
    """An Idempotency-Key was used before, with another request."""


CHANGES_MAX: Final = 100

Handler = Callable[[Store, Ask], Any]


# ── looking ──────────────────────────────────────────────────────────────────────────────────


def whoami(_: Store, ask: Ask) -> d.Whoami:
    may = ALLOWED[ask.who.role] & (READS if ask.is_read_only else ALLOWED["admin"])
    return d.Whoami(ask.who.name, ask.who.role, tuple(sorted(may)), ask.is_read_only, __version__)


def runs(store: Store, ask: Ask) -> d.RunList:
    q = ask.query
    if q.q:
        if q.status or q.agent or q.parent:
            raise InvalidInput("put status:, agent: and parent: into q, or leave q out")
        hits = views.search(store, q.q, limit=q.limit, cursor=_cursor(q.after))
        return d.RunList(hits.runs, _next(hits.next), hits.stopped, hits.looked)
    found = views.runs(
        store,
        status=q.status,
        agent=q.agent,
        parent=q.parent,
        limit=q.limit,
        cursor=_cursor(q.after),
    )
    return d.RunList(found.runs, _next(found.next))


def inbox(store: Store, ask: Ask) -> d.InboxList:
    q = ask.query
    found = views.inbox(store, agent=q.agent, limit=q.limit, cursor=_cursor(q.after))
    return d.InboxList(found.items, _next(found.next))


def _cursor(after: str) -> int | None:
    if not after:
        return None
    if len(after) > 18:  # beyond what a store counts to
        raise InvalidInput(f"after={after} is not a cursor; pass `next` of the previous page")
    return int(after)


def _next(cursor: int | None) -> str | None:
    return None if cursor is None else str(cursor)


def get(store: Store, ask: Ask) -> RunState:
    return (views.brief if ask.query.brief else views.get)(store, ask.run_id)


def row(store: Store, ask: Ask) -> RunRow:
    return _shown(store, ask.run_id)


def _shown(store: Store, run_id: str) -> RunRow:
    """The row with the status that people see."""
    found = views.row_of(store, run_id)
    return views.shown(found, store.now())


def head(store: Store, ask: Ask) -> d.LogEnd:
    found = store.heads([ask.run_id])
    if ask.run_id not in found:
        raise NoSuchRun(ask.run_id)
    return d.LogEnd(found[ask.run_id])


def at(store: Store, ask: Ask) -> RunState:
    return views.at(store, ask.run_id, ask.query.step, ask.query.when)


def diff(store: Store, ask: Ask) -> d.ChangeList:
    found = views.diff(store, ask.run_id, ask.query.a, ask.query.b)
    return d.ChangeList([d.PathChange(x.path, x.before, x.after) for x in found])


def calls(store: Store, ask: Ask) -> d.CallList:
    q = ask.query
    view = ask.reader.read(store, ask.run_id)
    found = view.calls(after=q.after, limit=q.limit + 1)
    page = list(found[: q.limit])
    return d.CallList(page, page[-1].step if len(found) > q.limit else None, view.state.seq)


def events(store: Store, ask: Ask) -> d.EventList:
    q = ask.query
    status = views.row_of(store, ask.run_id).status  # before the log: what ended by then is in it
    found = [recorded(r) for r, _ in views.events(store, ask.run_id, after=q.after, limit=q.limit)]
    ended = len(found) < q.limit and status in TERMINAL_STATUSES
    return d.EventList(found, found[-1].seq if found else q.after, ended)


def recorded(record: log.Record) -> d.RecordedEvent:
    """One event as it is sent."""
    data = msgspec.Raw(record.data)
    return d.RecordedEvent(
        record.seq, record.time, record.epoch, record.kind, record.hash.hex(), data
    )


def timeline(store: Store, ask: Ask) -> d.TimelineList:
    q = ask.query
    moments = views.timeline(store, ask.run_id, after=q.after, limit=q.limit)
    found = [d.TimelineItem.of(moment) for moment in moments]
    return d.TimelineList(found, found[-1].seq if found else q.after)


def result(store: Store, ask: Ask) -> views.Outcome:
    return views.outcome(store, ask.run_id)


def verify(store: Store, ask: Ask) -> views.Verification:
    return views.verify(store, ask.run_id)


def export(store: Store, ask: Ask) -> Iterator[str]:
    return bundle.export(store, ask.run_id)


def artifact(store: Store, ask: Ask) -> Bytes:
    name = ask.path["name"]
    for kept in reversed(views.get(store, ask.run_id).artifacts):
        if name in (kept.name, kept.id):
            data = read_artifact(store, ask.run_id, kept.id)
            return Bytes(data, kept.id, kept.name, is_immutable=name == kept.id)
    raise NotFound(f"run {ask.run_id!r} has no artifact {name[:200]!r}")


def blob(store: Store, ask: Ask) -> Bytes:
    hash_ = ask.path["hash"]
    views.row_of(store, ask.run_id)
    try:
        # With a seq, the log is not searched for who refers to it.
        data = read_artifact(store, ask.run_id, hash_, seq=-1)
    except ArtifactDamaged as error:
        if not error.missing:
            raise
        raise NotFound(f"run {ask.run_id!r} has no value {hash_[:200]!r}") from None
    return Bytes(data, hash_, hash_, is_immutable=True)


def agents(store: Store, _: Ask) -> d.AgentList:
    return d.AgentList(views.agents(store))


def schedules(store: Store, _: Ask) -> d.ScheduleList:
    return d.ScheduleList([d.ScheduleInfo.of(found) for found in store.schedules.all()])


def doctor(store: Store, _: Ask) -> d.DoctorReport:
    return d.DoctorReport.of(examine(store))


# ── deciding ─────────────────────────────────────────────────────────────────────────────────


def approve(store: Store, ask: Ask) -> RunRow:
    b = ask.body
    control.approve(store, ask.run_id, b.request, args=b.args, digest=b.digest, **ask.signed)
    return _shown(store, ask.run_id)


def reject(store: Store, ask: Ask) -> RunRow:
    b = ask.body
    control.reject(store, ask.run_id, b.request, digest=b.digest, **ask.signed)
    return _shown(store, ask.run_id)


def answer(store: Store, ask: Ask) -> RunRow:
    control.answer(store, ask.run_id, ask.body.value, ask.body.request, **ask.signed)
    return _shown(store, ask.run_id)


def resolve(store: Store, ask: Ask) -> RunRow:
    b = ask.body
    way: dict[str, Any] = {
        "done": {"done": b.result},
        "failed": {"failed": b.reason},
        "retry": {"retry": True},
    }[b.how]
    control.resolve(store, ask.run_id, b.call, by=ask.who.name, why=b.why, **way)
    return _shown(store, ask.run_id)


# ── operating ────────────────────────────────────────────────────────────────────────────────


def start(store: Store, ask: Ask) -> HandlerResult:
    b = ask.body
    if ask.key and b.id is not None:
        raise InvalidInput("give an id or the header Idempotency-Key, not both")
    run_id = _id_for(ask.who.name, b.agent, ask.key) if ask.key else b.id
    before = store.get(run_id) if run_id is not None else None
    try:
        made = control.start(
            store,
            b.agent,
            b.input,
            id=run_id,
            version=b.version,
            priority=b.priority,
            limits=_limits(b.deadline, b.budget),
            **ask.signed,
        )
    except InputConflict:
        if not ask.key:
            raise
        raise KeyReused(
            "this Idempotency-Key was used before with another request; nothing was started. Use a new key"
        ) from None
    headers = {"location": f"runs/{made.id}"}
    if ask.key and before is not None:
        headers["idempotency-replayed"] = "true"
    shown = views.shown(made, store.now())
    return HandlerResult(
        d.StartResult(shown, before is None), 201 if before is None else 200, headers
    )


def _id_for(name: str, agent: str, key: str) -> str:
    """The run that an idempotency key stands for. A key belongs to the credential that uses it."""
    if len(key) > 255:
        raise InvalidInput("an Idempotency-Key may have up to 255 characters")
    digest = hashlib.sha256(f"{name}\0{agent}\0{key}".encode("utf-8", "surrogatepass"))
    return f"{agent[:100]}-{digest.hexdigest()[:24]}"


def _limits(deadline: float | None, budget: d.BudgetLimits | None) -> Limits:
    given = {} if budget is None else msgspec.structs.asdict(budget)
    return Limits(deadline, Budget(**given) if given else None)


def signal(store: Store, ask: Ask) -> RunRow:
    b = ask.body
    control.signal(store, ask.run_id, b.name, b.value, signal_id=b.signal_id, **ask.signed)
    return _shown(store, ask.run_id)


def patch(store: Store, ask: Ask) -> d.PatchResult:
    b = ask.body
    changes, knowledge = _changes(b)
    expected = None if ask.if_match == "*" else _seq_of(ask.if_match)
    try:
        is_new = control.patch(
            store,
            ask.run_id,
            changes,
            delete=b.delete,
            knowledge=knowledge,
            expected=expected,
            key=b.key,
            by=ask.signed["by"],
            why=ask.signed["why"],
        )
    except Conflict:
        assert expected is not None
        raise _both_sides(store, ask.run_id, expected) from None
    return d.PatchResult(is_new, store.head(ask.run_id))


def _both_sides(store: Store, run_id: str, expected: int) -> VersionConflict:
    """What has changed since the version that the caller has seen."""
    records = views.records(store, run_id)
    before = fold(RunState(), records[: expected + 1])
    changed = views.changes(before, fold(RunState(), records))
    return VersionConflict(run_id, expected, records[-1].seq, changed[:CHANGES_MAX])


def _changes(b: d.PatchRequest) -> tuple[control.Patch, StatePatch | None]:
    """What is to be changed, as `control.patch` takes it."""
    try:
        knowledge = None if b.knowledge is None else msgspec.convert(b.knowledge, StatePatch)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"knowledge: {error}") from None
    if b.operations is not None:
        if b.set or b.delete or knowledge is not None:
            raise InvalidInput("operations cannot be combined with set, delete or knowledge")
        return b.operations, None
    if knowledge is not None and not b.set and not b.delete:
        return knowledge, None
    return b.set, knowledge


def _seq_of(etag: str) -> int:
    number = etag.strip().removeprefix("W/").strip('"').partition(".")[0]
    if not number.isascii() or not number.isdecimal() or len(number) > 18:
        raise InvalidInput(f"If-Match: {etag[:100]!r} is not the ETag of a run")
    return int(number)


def pause(store: Store, ask: Ask) -> RunRow:
    control.pause(store, ask.run_id, **ask.signed)
    return _shown(store, ask.run_id)


def cancel(store: Store, ask: Ask) -> RunRow:
    control.cancel(store, ask.run_id, **ask.signed)
    return _shown(store, ask.run_id)


def undo(store: Store, ask: Ask) -> RunRow:
    control.undo(store, ask.run_id, **ask.signed)
    return _shown(store, ask.run_id)


def resume(store: Store, ask: Ask) -> RunRow:
    """The run is made resumable; a worker executes it."""
    b, limits = ask.body, _limits(ask.body.deadline, ask.body.budget)
    found = views.row_of(store, ask.run_id)
    if found.status == "completed":
        raise NotNow(f"run {ask.run_id!r} is already completed")
    if limits:
        control.set_limits(store, ask.run_id, limits, **ask.signed)
    if b.accept_new_steps:
        control.accept_new_steps(store, ask.run_id, **ask.signed)
    control.reopen(store, ask.run_id, **ask.signed)
    return _shown(store, ask.run_id)


def rerun(store: Store, ask: Ask) -> RunRow:
    control.rerun(store, ask.run_id, **ask.signed)
    return _shown(store, ask.run_id)


def fork(store: Store, ask: Ask) -> RunRow:
    b = ask.body
    new_id = b.id if b.id is not None else f"{ask.run_id}~fork-{uuid.uuid4().hex[:8]}"
    control.fork(store, ask.run_id, b.step, new_id, b.state, **ask.signed)
    return _shown(store, new_id)


def bulk_(store: Store, ask: Ask) -> BulkReport:
    b = ask.body
    check_allowed(ask.who.name, ask.who.role, b.verb)
    return bulk(store, b.verb, b.q, runs=b.runs, newest=b.newest, dry_run=b.dry_run, **ask.signed)


# ── what integrations keep ───────────────────────────────────────────────────────────────────


def record(store: Store, ask: Ask) -> RunRow:
    b = ask.body
    return views.shown(control.record(store, b.agent, b.input, id=b.id, **ask.signed), store.now())


def finish(store: Store, ask: Ask) -> RunRow:
    control.finish(store, ask.run_id, ask.body.result)
    return _shown(store, ask.run_id)


def items(store: Store, ask: Ask) -> d.ItemList:
    q = ask.query
    found = list(
        views.item_events(
            store,
            ask.run_id,
            q.collection,
            prefix=q.prefix,
            after=q.after,
            before=q.before,
            limit=q.limit + 1,
        )
    )
    page = [d.KeptItem.of(*one) for one in found[: q.limit]]
    return d.ItemList(page, page[-1].seq if len(found) > q.limit else None)


def item(store: Store, ask: Ask) -> d.ItemFound:
    found = views.item_event(store, ask.run_id, ask.query.collection, ask.query.key)
    return d.ItemFound(None if found is None else d.KeptItem.of(*found))


def put_item(store: Store, ask: Ask) -> d.ItemChanged:
    b = ask.body
    if b.data is not None and b.value is not None:
        raise InvalidInput("give a value or data, not both")
    given = b.value if b.data is None else b.data
    changed = control.put_item(store, ask.run_id, b.collection, b.key, given, by=ask.who.name)
    return d.ItemChanged(changed)


def delete_item(store: Store, ask: Ask) -> d.ItemChanged:
    q = ask.query
    changed = control.delete_item(store, ask.run_id, q.collection, q.key, by=ask.who.name)
    return d.ItemChanged(changed)


# ── administering ────────────────────────────────────────────────────────────────────────────


def import_run(store: Store, ask: Ask) -> bundle.ImportResult:
    return bundle.import_run(store, bundle.read(ask.lines))


def gc(store: Store, ask: Ask) -> garbage.GcResult:
    b = ask.body
    age, snapshot_age = b.older_than, b.snapshot_age
    return garbage.gc(
        store,
        older_than_us=None if age is None else microseconds(age, "older_than"),
        keep=b.keep,
        snapshots=b.snapshots,
        snapshot_age_us=None
        if snapshot_age is None
        else microseconds(snapshot_age, "snapshot_age"),
        dry_run=b.dry_run,
    )


def delete(store: Store, ask: Ask) -> d.DeleteResult:
    control.delete(store, ask.run_id)
    return d.DeleteResult(ask.run_id)


def unschedule(store: Store, ask: Ask) -> d.DeleteResult:
    name = ask.path["schedule_id"]
    if not store.schedules.delete(name):
        raise NotFound(f"unknown schedule {name[:200]!r}; `holdfast schedules` lists them")
    return d.DeleteResult(name)


HANDLERS: Final[dict[str, Handler]] = {
    "import": import_run,
    "bulk": bulk_,
    **{
        handler.__name__: handler
        for handler in (
            whoami,
            runs,
            get,
            row,
            head,
            at,
            diff,
            calls,
            events,
            timeline,
            result,
            verify,
            export,
            artifact,
            blob,
            inbox,
            agents,
            schedules,
            doctor,
            approve,
            reject,
            answer,
            resolve,
            start,
            signal,
            patch,
            pause,
            cancel,
            undo,
            resume,
            rerun,
            fork,
            delete,
            gc,
            unschedule,
            record,
            finish,
            items,
            item,
            put_item,
            delete_item,
        )
    },
}
"""By verb. A stream is sent by `events.py`."""
