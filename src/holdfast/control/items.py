"""What an integration writes to a run: items under its own keys, and runs that it executes itself.

A recorded run is one that another program executes, for example a LangGraph thread: no worker claims it, and no agent
of that name has to exist. An item can be put into any run that has not ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.core import events as e
from holdfast.core import log, values
from holdfast.core.log import Blob
from holdfast.core.state import RunState
from holdfast.errors import InvalidInput, KeyTaken, NoSuchRun, NotNow, Remedy
from holdfast.store.base import (
    RESERVED,
    TERMINAL_STATUSES,
    NewRun,
    RowChange,
    RunRow,
    Store,
)
from holdfast.store.checks import check_text
from holdfast.store.items import check_collection, check_key, find, is_recorded, version_key
from holdfast.store.outside import RunUpdate, create, refuse_ended, update_run
from holdfast.waiting import WaitingFor
from holdfast.words.waiting import phrase

# ── runs that another program executes ───────────────────────────────────────────────────────


def record(
    store: Store,
    agent: str,
    input: Mapping[str, Any] | None = None,
    *,
    id: str,
    by: str = "",
    why: str = "",
) -> RunRow:
    """Create a run that another program executes; the row of the run, also if it exists.

    Run ids are idempotent: the same id with another agent or input is an InputConflict.
    """
    run_id = log.check_run_id(id)
    check_text("agent", agent)
    if not agent:
        raise InvalidInput("a recorded run needs the name of what executes it, such as 'langgraph'")
    data = values.encode(dict(input or {}))
    value, blobs = log.wrap(data)
    created = e.RunCreated(run_id=run_id, agent=agent, input=value, recorded=True, by=by, why=why)
    digest = values.digest(values.canonical(values.decode(data)))
    row, _ = create(store, NewRun(run_id, agent, digest), [created], blobs, now=store.now())
    if row.status == "pending":  # new, or its creator died before the next line
        _suspend(store, row)
    found = store.get(run_id)
    return row if found is None else found


def _suspend(store: Store, row: RunRow) -> None:
    """No worker is to claim it: it is waiting for the program that executes it."""
    waiting = WaitingFor("owner", row.agent)

    def decide(_: RunState, now: RunRow) -> RunUpdate:
        if now.status != "pending" or not is_recorded(store, now):
            return RunUpdate()
        text = phrase(waiting)
        return RunUpdate(
            [e.RunSuspended(waiting_for=text, waits=(waiting,))],
            RowChange("waiting", None, text, waiting_kinds=waiting.kind),
        )

    update_run(store, row.id, decide)


def finish(store: Store, run_id: str, result: Any = None) -> None:
    """End a recorded run. One that has ended stays as it is."""
    value, blobs = log.wrap(values.encode(result))

    def decide(_: RunState, row: RunRow) -> RunUpdate:
        if row.status in TERMINAL_STATUSES:
            return RunUpdate()
        if not is_recorded(store, row):
            raise NotNow(
                f"run {run_id!r} is executed by Holdfast, so its agent ends it",
                Remedy("to end it early", f"hf.cancel({run_id!r})", ("cancel", run_id)),
            )
        return RunUpdate([e.RunCompleted(result=value)], RowChange("completed"), blobs)

    update_run(store, run_id, decide)


def delete(store: Store, run_id: str) -> None:
    """Delete a run that has ended: its log, its items and its values."""
    if store.delete(run_id):
        return
    row = store.get(run_id)
    if row is None:
        raise NoSuchRun(run_id)
    raise NotNow(f"run {run_id!r} is {row.status}; only a run that has ended can be deleted")


# ── items ────────────────────────────────────────────────────────────────────────────────────


def put_item(
    store: Store, run_id: str, collection: str, key: str, value: Any, *, by: str = ""
) -> bool:
    """Store a value (JSON or bytes) under a key. Returns whether anything was recorded: the same value again is not."""
    is_bytes = isinstance(value, bytes | bytearray | memoryview)
    found = log.wrap_blob(bytes(value)) if is_bytes else log.wrap(values.encode(value))
    return _put(store, run_id, collection, key, *found, is_bytes=is_bytes, by=by)


def delete_item(store: Store, run_id: str, collection: str, key: str, *, by: str = "") -> bool:
    """Delete the value of a key; whether it had one. Earlier values stay in the log."""
    return _put(store, run_id, collection, key, None, (), is_bytes=False, by=by)


def _put(
    store: Store,
    run_id: str,
    collection: str,
    key: str,
    value: e.Value | None,
    blobs: Sequence[Blob],
    *,
    is_bytes: bool,
    by: str,
) -> bool:
    check_collection(collection)
    check_key(key)
    log.check_run_id(run_id)
    while True:
        found = find(store, run_id, collection, key)
        before = None if found is None else found[1]
        old = None if before is None else before.value
        if _same(old, value) and (value is None or before is None or before.is_bytes == is_bytes):
            if store.get(run_id) is None:
                raise NoSuchRun(run_id)
            return False
        version = 1 if before is None else before.number + 1
        new = e.ItemPut(
            collection=collection,
            key=key,
            number=version,
            value=value,
            is_bytes=is_bytes,
            adds=old is None,
            by=by,
        )
        held = RESERVED + version_key(run_id, collection, key, version)
        try:
            _append(store, run_id, new, blobs, held)
        except KeyTaken:
            continue  # another process has put this version: look at what it put
        return True


def _same(a: e.Value | None, b: e.Value | None) -> bool:
    if a is None or b is None or a.blob or b.blob:
        return a == b
    return _canonical(a) == _canonical(b)


def _canonical(value: e.Value) -> bytes:
    return values.canonical(values.decode(value.json))


def _append(store: Store, run_id: str, new: e.ItemPut, blobs: Sequence[Blob], digest: str) -> None:
    def decide(_: RunState, row: RunRow) -> RunUpdate:
        refuse_ended(row)
        return RunUpdate([new], None, blobs, digest)

    update_run(store, run_id, decide)
