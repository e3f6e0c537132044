"""Decisions about runs, for the verbs: on a store by `control`, on a server by its HTTP API.

A server records whose token it is, so `by` goes only to a store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast import bulk as many
from holdfast import control, views
from holdfast.bulk import BulkReport, BulkVerb
from holdfast.core.policy import Limits
from holdfast.errors import NotFound
from holdfast.store.base import RunRow, Store

if TYPE_CHECKING:  # it imports an HTTP library, which a store does not need
    from holdfast.client import Client


def client_of(store: Store) -> Client | None:
    """The client, if this is the store of a server."""
    found: Client | None = getattr(store, "client_of_server", None)
    return found


def approve(
    store: Store,
    run_id: str,
    request: str,
    *,
    args: Mapping[str, Any] | None = None,
    by: str,
    why: str,
    digest: str,
) -> None:
    if client := client_of(store):
        client.approve(run_id, request, args=args, why=why, digest=digest)
    else:
        control.approve(store, run_id, request, args=args, by=by, why=why, digest=digest)


def reject(store: Store, run_id: str, request: str, *, by: str, why: str, digest: str) -> None:
    if client := client_of(store):
        client.reject(run_id, request, why=why, digest=digest)
    else:
        control.reject(store, run_id, request, by=by, why=why, digest=digest)


def answer(store: Store, run_id: str, value: Any, request: str, *, by: str, why: str) -> None:
    if client := client_of(store):
        client.answer(run_id, value, request, why=why)
    else:
        control.answer(store, run_id, value, request, by=by, why=why)


def signal(
    store: Store, run_id: str, name: str, value: Any, *, signal_id: str, by: str, why: str
) -> None:
    if client := client_of(store):
        client.signal(run_id, name, value, signal_id=signal_id, why=why)
    else:
        control.signal(store, run_id, name, value, signal_id=signal_id, by=by, why=why)


def resolve(
    store: Store,
    run_id: str,
    call: int | str | None,
    *,
    by: str,
    why: str,
    done: Any = ...,
    failed: str | None = None,
    retry: bool = False,
) -> None:
    if client := client_of(store):
        client.resolve(run_id, call, done=done, failed=failed, retry=retry, why=why)
    else:
        control.resolve(store, run_id, call, done=done, failed=failed, retry=retry, by=by, why=why)


def patch(
    store: Store,
    run_id: str,
    changes: control.Patch,
    *,
    delete: Sequence[str],
    expected: int | None,
    key: str,
    by: str,
    why: str,
) -> bool:
    if client := client_of(store):
        return client.patch(run_id, changes, delete=delete, expected=expected, key=key, why=why)
    return control.patch(
        store, run_id, changes, delete=delete, expected=expected, key=key, by=by, why=why
    )


def bulk(
    store: Store,
    verb: BulkVerb,
    query: str,
    *,
    newest: int | None,
    dry_run: bool,
    by: str,
    why: str,
) -> BulkReport:
    if client := client_of(store):
        return client.bulk(verb, query, newest=newest, dry_run=dry_run, why=why)
    return many.bulk(store, verb, query, newest=newest, dry_run=dry_run, by=by, why=why)


def search(store: Store, query: str, *, limit: int, cursor: int | None) -> views.SearchResult:
    if client := client_of(store):
        return client.search(query, limit=min(limit, 1000), cursor=cursor)
    return views.search(store, query, limit=limit, cursor=cursor)


def pause(store: Store, run_id: str, *, by: str, why: str) -> None:
    if client := client_of(store):
        client.pause(run_id, why=why)
    else:
        control.pause(store, run_id, by=by, why=why)


def cancel(store: Store, run_id: str, *, by: str, why: str) -> None:
    if client := client_of(store):
        client.cancel(run_id, why=why)
    else:
        control.cancel(store, run_id, by=by, why=why)


def undo(store: Store, run_id: str, *, by: str, why: str) -> None:
    if client := client_of(store):
        client.undo(run_id, why=why)
    else:
        control.undo(store, run_id, by=by, why=why)


def fork(
    store: Store,
    run_id: str,
    step: int,
    new_id: str,
    state: Mapping[str, Any],
    *,
    by: str,
    why: str,
) -> None:
    if client := client_of(store):
        client.fork(run_id, step, id=new_id, state=state, why=why)
    else:
        control.fork(store, run_id, step, new_id, state, by=by, why=why)


def resume(store: Store, run_id: str, *, accept_new_steps: bool, limits: Limits) -> None:
    """Only for a server: workers execute the run. On a store, `resume` executes it here."""
    client = client_of(store)
    assert client is not None
    client.resume(
        run_id, accept_new_steps=accept_new_steps, deadline=limits.deadline, budget=limits.budget
    )


def start(
    store: Store,
    agent: str,
    input: Mapping[str, Any],
    *,
    id: str | None,
    version: str | None,
    priority: int,
    by: str,
    why: str,
) -> RunRow:
    if client := client_of(store):
        return client.start_row(agent, input, id=id, version=version, priority=priority, why=why)
    return control.start(
        store, agent, input, id=id, version=version, priority=priority, by=by, why=why
    )


def agents(store: Store) -> list[views.AgentInfo]:
    client = client_of(store)
    return views.agents(store) if client is None else client.agents()


def parameters_of(store: Store, agent: str, version: str | None) -> dict[str, Any]:
    """The JSON Schema of the input of a registered agent."""
    client = client_of(store)
    if client is None:
        return control.registered(store, agent, version).parameters
    known = [one for one in client.agents() if one.is_registered]
    for found in known:
        if found.name == agent:
            return found.parameters
    names = ", ".join(one.name for one in known) or "none"
    raise NotFound(f"agent {agent!r} is not registered on the server; registered: {names}")
