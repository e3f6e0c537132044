"""Each method of a client as a request, and how its answer is read. No I/O: the sync and the async client share this.

A function here has the signature and the docstring of the method that is made from it (`described`).
"""

from __future__ import annotations

import functools
import inspect
import os
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, ParamSpec, TypeVar

import msgspec

from holdfast import bundle, views
from holdfast.api import documents as d
from holdfast.api.operations import Operation, operation
from holdfast.api.problems import MEDIA_TYPE, Problem, error_of, problem
from holdfast.bulk import BulkReport, BulkVerb
from holdfast.control.patches import Patch
from holdfast.core import snapshot, values
from holdfast.core.events import Event, Value
from holdfast.core.log import Record, check_run_id, read_event
from holdfast.core.patch import StatePatch
from holdfast.core.policy import Budget
from holdfast.core.state import RunState
from holdfast.doctor import Diagnosis
from holdfast.errors import (
    ArtifactDamaged,
    HoldfastError,
    InvalidInput,
    RunBusy,
    StoreUnavailable,
)
from holdfast.gc import GcResult
from holdfast.store.base import RunRow, Schedule
from holdfast.store.passwords import without_password
from holdfast.words.outcomes import cancelled_error, outcome_error

T = TypeVar("T")
U = TypeVar("U")
Q = ParamSpec("Q")

TOKEN_VARIABLE: Final = "HOLDFAST_TOKEN"  # noqa: S105  (the name of a variable)
PAGE: Final = 1000
WAIT_SECONDS: Final = 30.0
"""How long one request for a result waits on the server."""
TIMEOUT_SECONDS: Final = 60.0
ATTEMPTS: Final = 4
"""How often a request is made that the server refuses because of its rate."""


@dataclass(frozen=True, slots=True)
class ApiCall(Generic[T]):
    """One request, and how its answer is read."""

    op: Operation
    read: Callable[[bytes], T]
    parts: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, Any] = field(default_factory=dict)
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return self.op.url(**self.parts)

    @property
    def sent(self) -> dict[str, str]:
        """The headers of the request."""
        if self.op.takes_lines:
            return {"content-type": "application/x-ndjson", **self.headers}
        kind = {} if self.body is None else {"content-type": "application/json"}
        return {**kind, **self.headers}


def described(method: Callable[Q, U], ask: Callable[..., object]) -> Callable[Q, U]:
    """The method with the name, the docstring and the signature of the function that it is made from."""
    functools.update_wrapper(method, ask)
    del method.__wrapped__  # type: ignore[attr-defined]  # it takes no self
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    signature = inspect.signature(ask)
    method.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[own, *signature.parameters.values()]
    )
    return method


# ── where, and as whom ───────────────────────────────────────────────────────────────────────


def base_url(url: str | None) -> str:
    """The server's address."""
    found = url or os.environ.get("HOLDFAST_URL", "")
    if not found.startswith(("http://", "https://")):
        raise InvalidInput(
            f"a client needs the URL of a server, such as https://holdfast.example.com, not {without_password(found)!r}; "
            "pass it or set HOLDFAST_URL"
        )
    return found.rstrip("/")


def authorization(token: str | None) -> dict[str, str]:
    """The header with the token."""
    found = token or os.environ.get(TOKEN_VARIABLE, "")
    if not found:
        raise InvalidInput(
            f"a client needs a token: pass it or set {TOKEN_VARIABLE}; `holdfast token create NAME --role operator` "
            "on the server creates one"
        )
    return {"authorization": f"Bearer {found}", "user-agent": "holdfast-client"}


# ── answers ──────────────────────────────────────────────────────────────────────────────────


def refusal(status: int, kind: str, data: bytes) -> HoldfastError:
    """The error that an answer stands for."""
    if kind.partition(";")[0] == MEDIA_TYPE:
        try:
            return error_of(msgspec.json.decode(data, type=Problem))
        except msgspec.DecodeError:
            pass
    text = data[:200].decode("utf-8", "replace")
    return error_of(problem("http-error", status, f"the server answered {status}: {text}"))


def unreachable(url: str, error: Exception) -> StoreUnavailable:
    return StoreUnavailable(
        f"cannot reach the server at {without_password(url)}: {str(error) or type(error).__name__}"
    )


def pause_before(status: int, retry_after: str, attempt: int) -> float | None:
    """How long to wait before the request is made again; None if it is not."""
    if status != 429 or attempt >= ATTEMPTS:
        return None
    return min(float(retry_after), 30.0) if retry_after.isdecimal() else 1.0


def _reads(kind: type[T]) -> Callable[[bytes], T]:
    decoder = msgspec.json.Decoder(kind)
    return decoder.decode


def _nothing(_: bytes) -> None:
    return None


def _record(event: d.RecordedEvent) -> Record:
    data = bytes(memoryview(event.data))
    return Record(event.seq, event.time, event.epoch, event.kind, data, bytes.fromhex(event.hash))


def read_recorded(run_id: str, data: bytes) -> tuple[Record, Event]:
    """One event of a stream."""
    record = _record(_EVENT(data))
    return record, read_event(run_id, record)


_EVENT: Final = _reads(d.RecordedEvent)


@dataclass(frozen=True, slots=True)
class EventPage:
    """Some events, and where the next page starts."""

    events: list[tuple[Record, Event]]
    next: int


def result_of(outcome: views.Outcome) -> Value:
    """The result of a run that has ended, or the error that it ended with."""
    if outcome.result is not None:
        return outcome.result
    if outcome.error is None:
        raise cancelled_error(outcome.run_id, outcome.by, outcome.why, outcome.root)
    error = outcome.error
    raise outcome_error(outcome.run_id, outcome.reason, error.type, error.message, outcome.root)


def not_yet(outcome: views.Outcome) -> RunBusy:
    return RunBusy(
        outcome.run_id,
        outcome.waiting_for or "a worker",
        f"call hf.result({outcome.run_id!r}) again later",
    )


def large_values(value: Any) -> list[str]:
    """The hashes of what is stored outside the log, in something found in a state."""
    if isinstance(value, Value):
        return [value.blob] if value.blob else []
    parts = (
        value.values()
        if isinstance(value, dict)
        else value
        if isinstance(value, list | tuple)
        else ()
    )
    return [hash_ for part in parts for hash_ in large_values(part)]


def filled(value: Any, blobs: Mapping[str, bytes]) -> Any:
    """The same as `views.value`, with what was fetched."""
    if isinstance(value, Value):
        return values.decode(blobs[value.blob] if value.blob else value.json)
    if isinstance(value, dict):
        return {key: filled(part, blobs) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [filled(part, blobs) for part in value]
    return value


# ── looking ──────────────────────────────────────────────────────────────────────────────────
# Those without a docstring are parts of methods; the others are methods of the clients as they are.


def _of_run(verb: str, run_id: str, read: Callable[[bytes], T], **query: Any) -> ApiCall[T]:
    return ApiCall(operation(verb), read, {"run_id": check_run_id(run_id)}, query)


def whoami() -> ApiCall[d.Whoami]:
    """Who this token is, and what it may do."""
    return ApiCall(operation("whoami"), _reads(d.Whoami))


def get(run_id: str, *, brief: bool = False) -> ApiCall[RunState]:
    """The state now; with `brief`, without most calls that are over."""
    query = {"brief": "true"} if brief else {}
    return _of_run("get", run_id, snapshot.from_json, **query)


def row(run_id: str) -> ApiCall[RunRow]:
    """What is known of a run without its log."""
    return _of_run("row", run_id, _reads(RunRow))


def at(run_id: str, step: int, when: Literal["before", "after"] = "after") -> ApiCall[RunState]:
    """The state before or after a step. Step 0 is the beginning."""
    return _of_run("at", run_id, snapshot.from_json, step=step, when=when)


def diff(run_id: str, step_a: int, step_b: int) -> ApiCall[list[views.Change]]:
    """What changed in the state between the ends of two steps."""

    def read(data: bytes) -> list[views.Change]:
        items = msgspec.json.decode(data, type=d.ChangeList).items
        return [views.Change(x.path, x.before, x.after) for x in items]

    return _of_run("diff", run_id, read, a=step_a, b=step_b)


def event_page(run_id: str, after: int, limit: int | None) -> ApiCall[EventPage]:
    def read(data: bytes) -> EventPage:
        page = msgspec.json.decode(data, type=d.EventList)
        records = [_record(item) for item in page.items]
        return EventPage([(record, read_event(run_id, record)) for record in records], page.next)

    return _of_run("events", run_id, read, after=after, limit=_at_most_a_page(limit))


def records(run_id: str, after: int, limit: int) -> ApiCall[list[Record]]:
    def read(data: bytes) -> list[Record]:
        return [_record(item) for item in msgspec.json.decode(data, type=d.EventList).items]

    return _of_run("events", run_id, read, after=after, limit=min(limit, PAGE))


def head(run_id: str) -> ApiCall[int]:
    read = _reads(d.LogEnd)
    return _of_run("head", run_id, lambda data: read(data).seq)


def timeline_page(
    run_id: str, after: int, limit: int | None
) -> ApiCall[tuple[list[views.Moment], int]]:
    def read(data: bytes) -> tuple[list[views.Moment], int]:
        page = msgspec.json.decode(data, type=d.TimelineList)
        return [item.moment() for item in page.items], page.next

    return _of_run("timeline", run_id, read, after=after, limit=_at_most_a_page(limit))


def _at_most_a_page(limit: int | None) -> int:
    return PAGE if limit is None else max(1, min(limit, PAGE))


def stream(run_id: str) -> ApiCall[None]:
    return _of_run("stream", run_id, _nothing)


def outcome(run_id: str, wait: float) -> ApiCall[views.Outcome]:
    return _of_run("result", run_id, _reads(views.Outcome), wait=max(0.0, wait))


def verify(run_id: str) -> ApiCall[views.Verification]:
    """Check the run's whole log against its hash chain."""
    return _of_run("verify", run_id, _reads(views.Verification))


def export(run_id: str) -> ApiCall[list[str]]:
    """A run as lines of JSON: its log and its artifacts."""
    return _of_run("export", run_id, lambda data: data.decode().splitlines())


def artifact(run_id: str, name: str) -> ApiCall[bytes]:
    """The bytes of an artifact, by its name (the newest of that name) or its id."""
    return ApiCall(operation("artifact"), bytes, {"run_id": check_run_id(run_id), "name": name})


def large_value(run_id: str, hash_: str) -> ApiCall[bytes]:
    # Compared with their digest here too.
    def read(data: bytes) -> bytes:
        if values.digest(data) != hash_:
            raise ArtifactDamaged(run_id, -1, hash_, missing=False)
        return data

    return ApiCall(operation("blob"), read, {"run_id": check_run_id(run_id), "hash": hash_})


def runs(
    *,
    status: str = "",
    agent: str = "",
    parent: str = "",
    limit: int = 50,
    cursor: int | None = None,
) -> ApiCall[list[RunRow]]:
    """Runs, newest first. The last row's `cursor` is where the next page begins."""
    given = {"status": status, "agent": agent, "parent": parent, "limit": limit, "after": cursor}
    query = {name: value for name, value in given.items() if value not in ("", None)}
    return ApiCall(operation("runs"), lambda data: _RUNS(data).items, query=query)


_RUNS: Final = _reads(d.RunList)


def search(
    query: str, *, limit: int = 50, cursor: int | None = None
) -> ApiCall[views.SearchResult]:
    """Runs that match a search such as `status:failed agent:recap error:timeout since:24h`, newest first. If a search
    stopped early (`stopped`), continue it with `cursor=found.next`."""

    def read(data: bytes) -> views.SearchResult:
        page = _RUNS(data)
        following = None if page.next is None else int(page.next)
        return views.SearchResult(page.items, following, page.stopped, page.looked)

    given = {"q": query, "limit": limit, **({} if cursor is None else {"after": cursor})}
    return ApiCall(operation("runs"), read, query=given)


def inbox(*, agent: str = "", limit: int = 50) -> ApiCall[list[views.InboxItem]]:
    """Runs that are waiting for people, with their requests and calls in doubt."""
    query = {"limit": limit, **({"agent": agent} if agent else {})}
    return ApiCall(operation("inbox"), lambda data: _INBOX(data).items, query=query)


_INBOX: Final = _reads(d.InboxList)


def agents() -> ApiCall[list[views.AgentInfo]]:
    """The registered agents."""

    def read(data: bytes) -> list[views.AgentInfo]:
        return msgspec.json.decode(data, type=d.AgentList).items

    return ApiCall(operation("agents"), read)


def schedules() -> ApiCall[list[Schedule]]:
    """All schedules, by id."""

    def read(data: bytes) -> list[Schedule]:
        return [x.schedule() for x in msgspec.json.decode(data, type=d.ScheduleList).items]

    return ApiCall(operation("schedules"), read)


def doctor() -> ApiCall[Diagnosis]:
    """Examine the store: weak settings, damaged runs, and runs that no worker claims."""
    read = _reads(d.DoctorReport)
    return ApiCall(operation("doctor"), lambda data: read(data).diagnosis())


# ── changing ─────────────────────────────────────────────────────────────────────────────────


def _body(document: msgspec.Struct) -> bytes:
    return values.encode_struct(document)


def _plain(value: Any) -> Any:
    """A value of the user's as plain JSON, or NotStorable with the path to what cannot be kept."""
    return values.lower(value)


def _budget(budget: Budget | None) -> d.BudgetLimits | None:
    return None if budget is None else d.BudgetLimits(**msgspec.structs.asdict(budget))


def _acts(verb: str, run_id: str, body: msgspec.Struct) -> ApiCall[None]:
    return ApiCall(operation(verb), _nothing, {"run_id": check_run_id(run_id)}, body=_body(body))


def start(
    agent: str,
    input: Mapping[str, Any],
    *,
    id: str | None,
    priority: int,
    deadline: float | None,
    budget: Budget | None,
    why: str,
    version: str | None = None,
) -> ApiCall[d.StartResult]:
    # The id is made here if none is given, so that a request whose answer was lost can be made again.
    if not isinstance(agent, str):
        raise InvalidInput(
            f"a client starts agents by name, for example hf.start('recap', …), not {agent!r}"
        )
    run_id = f"{agent[:150]}-{uuid.uuid4().hex[:12]}" if id is None else check_run_id(id)
    lowered = values.lower(dict(input), typed=True)
    body = d.Start(
        agent=agent,
        input=lowered,
        id=run_id,
        priority=priority,
        deadline=deadline,
        budget=_budget(budget),
        version=version,
        why=why,
    )
    return ApiCall(operation("start"), _reads(d.StartResult), body=_body(body))


def approve(
    run_id: str,
    request: str = "",
    *,
    args: Mapping[str, Any] | None = None,
    why: str = "",
    digest: str = "",
) -> ApiCall[None]:
    """Approve what the run asks for. With `args`, the tool is called with these instead of those shown."""
    edited = None if args is None else values.lower(dict(args), typed=True)
    return _acts("approve", run_id, d.Approve(request=request, args=edited, why=why, digest=digest))


def reject(run_id: str, request: str = "", *, why: str = "", digest: str = "") -> ApiCall[None]:
    """Reject what the run asks for."""
    return _acts("reject", run_id, d.Decide(request=request, why=why, digest=digest))


def answer(run_id: str, value: Any, request: str = "", *, why: str = "") -> ApiCall[None]:
    """Answer a question of the run."""
    return _acts("answer", run_id, d.Answer(value=_plain(value), request=request, why=why))


def signal(
    run_id: str, name: str, value: Any = None, *, signal_id: str = "", why: str = ""
) -> ApiCall[None]:
    """Send a signal. It is kept until the run is waiting for it; the same `signal_id` counts once."""
    if not isinstance(name, str) or not name.strip():  # type: ignore[redundant-expr]
        raise InvalidInput("a signal needs a non-empty name")
    sent = d.SendSignal(
        name=name, value=_plain(value), signal_id=signal_id or uuid.uuid4().hex, why=why
    )
    return _acts("signal", run_id, sent)


def resolve(
    run_id: str,
    call: int | str | None = None,
    *,
    done: Any = ...,
    failed: str | None = None,
    retry: bool = False,
    why: str = "",
) -> ApiCall[None]:
    """Settle a call in doubt: it happened (`done=result`), it did not (`failed=why`), or try again."""
    if (done is not ...) + (failed is not None) + bool(retry) != 1:
        raise InvalidInput("pass exactly one of done=result, failed='why' and retry=True")
    if done is not ...:
        body = d.Resolve(how="done", call=call, result=_plain(done), why=why)
    elif failed is not None:
        body = d.Resolve(how="failed", call=call, reason=failed, why=why)
    else:
        body = d.Resolve(how="retry", call=call, why=why)
    return _acts("resolve", run_id, body)


def patch(
    run_id: str,
    changes: Patch,
    *,
    delete: Sequence[str] = (),
    expected: int | None = None,
    key: str = "",
    why: str = "",
) -> ApiCall[bool]:
    """Change what the run knows from outside. With `expected`, the `seq` of the state that you have read, it is
    refused with Conflict if the run has changed since. The same `key` counts once."""
    gone = tuple(delete)
    if isinstance(changes, StatePatch):
        if gone:
            raise InvalidInput(
                "delete=… needs new values of run.state; it cannot be combined with another kind of patch"
            )
        body = d.PatchRequest(knowledge=msgspec.to_builtins(changes), key=key, why=why)
    elif isinstance(changes, Mapping):
        lowered = {name: _plain(value) for name, value in changes.items()}
        body = d.PatchRequest(set=lowered, delete=gone, key=key, why=why)
    else:
        body = d.PatchRequest(operations=_plain(list(changes)), delete=gone, key=key, why=why)
    read = _reads(d.PatchResult)
    version = "*" if expected is None else f'"{expected}"'
    return ApiCall(
        operation("patch"),
        lambda data: read(data).is_new,
        {"run_id": check_run_id(run_id)},
        body=_body(body),
        headers={"if-match": version},
    )


def pause(run_id: str, *, why: str = "") -> ApiCall[None]:
    """Stop the run at its next call, until it is resumed."""
    return _acts("pause", run_id, d.Reason(why=why))


def cancel(run_id: str, *, why: str = "") -> ApiCall[None]:
    """End the run and its child runs, each at its next call."""
    return _acts("cancel", run_id, d.Reason(why=why))


def undo(run_id: str, *, why: str = "") -> ApiCall[None]:
    """Undo what the run did, newest first; a worker executes it."""
    return _acts("undo", run_id, d.Reason(why=why))


def rerun(run_id: str, why: str) -> ApiCall[None]:
    return _acts("rerun", run_id, d.Reason(why=why))


def resume(
    run_id: str, deadline: float | None, budget: Budget | None, accept_new_steps: bool, why: str
) -> ApiCall[None]:
    body = d.Resume(
        deadline=deadline, budget=_budget(budget), accept_new_steps=accept_new_steps, why=why
    )
    return _acts("resume", run_id, body)


def fork(
    run_id: str, step: int, new_id: str | None, state: Mapping[str, Any] | None, why: str
) -> ApiCall[str]:
    made = new_id if new_id is not None else f"{run_id}~fork-{uuid.uuid4().hex[:8]}"
    body = d.Fork(step=step, id=made, state=_plain(dict(state or {})), why=why)
    read = _reads(RunRow)
    return ApiCall(
        operation("fork"),
        lambda data: read(data).id,
        {"run_id": check_run_id(run_id)},
        body=_body(body),
    )


def import_run(lines: Iterable[str]) -> ApiCall[bundle.ImportResult]:
    """Import a run that `export` wrote. It is validated first. A run that had not ended is paused."""
    content = "\n".join(line.rstrip("\n") for line in lines).encode()
    return ApiCall(operation("import"), _reads(bundle.ImportResult), body=content)


def bulk(
    verb: BulkVerb,
    query: str = "",
    *,
    runs: Sequence[str] = (),
    newest: int | None = None,
    dry_run: bool = False,
    why: str = "",
) -> ApiCall[BulkReport]:
    """Cancel or resume the runs that match a search, or these runs. With `dry_run`, only report what would be done;
    pass `newest` of that report to exclude runs that were created since. At most 1,000 runs at once."""
    body = d.Bulk(verb=verb, q=query, runs=list(runs), newest=newest, dry_run=dry_run, why=why)
    return ApiCall(operation("bulk"), _reads(BulkReport), body=_body(body))


def gc(
    *,
    older_than: float | None = None,
    keep: int | None = None,
    snapshots: int | None = None,
    snapshot_age: float | None = None,
    dry_run: bool = False,
) -> ApiCall[GcResult]:
    """Delete runs that ended more than `older_than` seconds ago, but the newest `keep`; and old snapshots."""
    body = d.CollectGarbage(
        older_than=older_than,
        keep=keep,
        snapshots=snapshots,
        snapshot_age=snapshot_age,
        dry_run=dry_run,
    )
    return ApiCall(operation("gc"), _reads(GcResult), body=_body(body))


def delete(run_id: str) -> ApiCall[None]:
    """Delete a run that has ended: its log, its items and its values. Its id is free again."""
    return _of_run("delete", run_id, _nothing)


def unschedule(schedule_id: str) -> ApiCall[None]:
    """Delete a schedule. Runs that it has started are not touched."""
    return ApiCall(operation("unschedule"), _nothing, {"schedule_id": schedule_id})


# ── what integrations keep ───────────────────────────────────────────────────────────────────


def record(agent: str, input: Mapping[str, Any], *, id: str, why: str) -> ApiCall[str]:
    body = d.RecordRun(agent=agent, id=check_run_id(id), input=_plain(dict(input)), why=why)
    read = _reads(RunRow)
    return ApiCall(operation("record"), lambda data: read(data).id, body=_body(body))


def finish(run_id: str, result: Any = None) -> ApiCall[None]:
    """End a run that another program executes. A run that has already ended is not changed."""
    return _acts("finish", run_id, d.Finish(result=_plain(result)))


def put_item(run_id: str, collection: str, key: str, value: Any) -> ApiCall[bool]:
    """Store a value (JSON or bytes) in a run, under a key. Returns whether anything was recorded. The same value under
    the same key is not recorded again; another value is the key's next version."""
    if isinstance(value, bytes | bytearray | memoryview):
        body = d.PutItem(collection=collection, key=key, data=bytes(value))
    else:
        body = d.PutItem(collection=collection, key=key, value=_plain(value))
    return ApiCall(
        operation("put_item"), _changed, {"run_id": check_run_id(run_id)}, body=_body(body)
    )


def delete_item(run_id: str, collection: str, key: str) -> ApiCall[bool]:
    """Delete the item that is stored under a key. Returns whether there was one. Earlier values stay in the run's log."""
    return _of_run("delete_item", run_id, _changed, collection=collection, key=key)


def _changed(data: bytes) -> bool:
    return msgspec.json.decode(data, type=d.ItemChanged).changed


def kept_item(run_id: str, collection: str, key: str) -> ApiCall[d.KeptItem | None]:
    read = _reads(d.ItemFound)
    return _of_run("item", run_id, lambda data: read(data).item, collection=collection, key=key)


def kept_items(
    run_id: str, collection: str, prefix: str, after: int, before: int | None, limit: int | None
) -> ApiCall[d.ItemList]:
    given = {"collection": collection, "prefix": prefix, "after": after, "before": before}
    query = {name: value for name, value in given.items() if value not in ("", None)}
    return _of_run("items", run_id, _reads(d.ItemList), limit=_at_most_a_page(limit), **query)


# ── streams ──────────────────────────────────────────────────────────────────────────────────


class MessageReader:
    """Server-sent events, line by line: each message as (kind, data)."""

    def __init__(self) -> None:
        self._kind, self._data = "", list[str]()

    def feed(self, line: str) -> tuple[str, bytes] | None:
        """A whole message, when this line ends one."""
        if not line:
            found = (self._kind, "\n".join(self._data).encode()) if self._kind else None
            self._kind, self._data = "", []
            return found
        name, _, value = line.partition(":")
        if name == "event":
            self._kind = value.removeprefix(" ")
        elif name == "data":
            self._data.append(value.removeprefix(" "))
        return None


ENDS: Final = ("end", "signed-out", "error")
"""The kinds of messages after which a stream is over."""


def stream_ended(kind: str, data: bytes) -> None:
    """What a stream ended with: nothing, or an error."""
    if kind == "end":
        return
    if kind == "signed-out":
        raise error_of(problem("not-signed-in", 401, "the token was revoked"))
    raise StoreUnavailable(f"the stream failed: {data[:500].decode('utf-8', 'replace')}")
