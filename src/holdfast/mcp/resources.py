"""Resources: lists, templates, reading and completion. Each function works on the store and may block.

A resource is about 64 KiB at most. What is longer is cut, and says under `rest` or `next` which URI has the rest.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable
from typing import Any, Final

import mcp_types as types

from holdfast import views
from holdfast.core.state import RunState
from holdfast.errors import InvalidInput, NotFound
from holdfast.mcp import cut, documents, operations, uris
from holdfast.mcp.reach import Identity
from holdfast.mcp.uris import Address
from holdfast.store.base import STATUSES, Store

PAGE: Final = 50
EVENTS_PAGE: Final = 100
PART_BYTES_MAX: Final = cut.DOCUMENT_BYTES_MAX // 4
"""One event or message takes at most about this much."""
COMPLETIONS_MAX: Final = 100
JSON: Final = "application/json"
UNTRUSTED: Final = "holdfast/untrusted"
"""The `_meta` key that marks contents written by agents, tools and people."""

_TITLES: Final = {
    "tasks": ("Tasks of an agent", "Tasks, newest first, with paging."),
    "task": (
        "Task state",
        "The canonical state of a task: goal, position, plan, facts, questions, version.",
    ),
    "steps": ("Step", "One call of a task, and what was known before and after it."),
    "events": (
        "Events",
        "The task's log after a version: what a subscriber that reconnects has missed.",
    ),
    "messages": ("Messages", "The task's dialogue."),
    "artifacts": ("Artifact", "The contents of an artifact, in pieces if it is large."),
    "value": ("Value", "One value of the task state, whole, by JSON Pointer."),
}


def templates() -> list[types.ResourceTemplate]:
    return [
        types.ResourceTemplate(
            name=kind,
            title=title,
            uri_template=uris.TEMPLATES[kind],
            description=said,
            mime_type=None if kind in ("artifacts", "value") else JSON,
        )
        for kind, (title, said) in _TITLES.items()
    ]


def listed(store: Store, who: Identity, cursor: str) -> tuple[list[types.Resource], str]:
    """One page of `resources/list`: the lists first, then the tasks that can be reached."""
    page = operations.rows(store, who, limit=PAGE, cursor=cursor)
    found: list[types.Resource] = []
    if not cursor:
        found.append(_resource("agents", "Agents", uris.ROOT))
        found += [_resource(f"{a} tasks", f"Tasks of {a}", uris.tasks(a)) for a in who.agents]
    for row in page.rows:
        annotations = types.Annotations(last_modified=documents.time(row.updated_at))
        uri = uris.task(row.agent, row.id)
        found.append(_resource(row.id, f"{row.id} ({row.status})", uri, annotations))
    return found, page.next


def _resource(
    name: str, title: str, uri: str, annotations: types.Annotations | None = None
) -> types.Resource:
    return types.Resource(name=name, title=title, uri=uri, mime_type=JSON, annotations=annotations)


# ── reading ──────────────────────────────────────────────────────────────────────────────────

Contents = types.TextResourceContents | types.BlobResourceContents


def read(store: Store, who: Identity, uri: str) -> Contents:
    """The contents of a resource; NotFound or InvalidInput if it is not one, or cannot be reached."""
    address = uris.parse(uri)
    if not address.task:
        return _json(uri, _list(store, who, address))
    state = operations.get(store, who, address.task, address.agent)
    return _READERS[address.kind](store, state, address, uri)


def _list(store: Store, who: Identity, address: Address) -> dict[str, Any]:
    """The agents, or one page of an agent's tasks."""
    if address.kind == "agents":
        return {"notice": documents.NOTICE, "agents": [_agent(x) for x in known_agents(store, who)]}
    if not who.reaches(address.agent):
        raise NotFound(f"unknown agent {address.agent!r}")
    check_status(address.status)
    page = operations.rows(
        store, who, agent=address.agent, status=address.status, limit=PAGE, cursor=address.cursor
    )
    now = store.now()
    more = {"status": address.status} if address.status else {}
    following = uris.tasks(address.agent, **more, cursor=page.next) if page.next else None
    return {"tasks": [documents.listed(row, now) for row in page.rows], "next": following}


def known_agents(store: Store, who: Identity) -> list[views.AgentInfo]:
    """The agents that an identity can reach: those named for it, and with `*` all that the store knows."""
    found = {agent.name: agent for agent in views.agents(store) if who.reaches(agent.name)}
    named = {name: found.pop(name, views.AgentInfo(name)) for name in who.agents}
    return [*named.values(), *found.values()]


def _agent(info: views.AgentInfo) -> dict[str, Any]:
    return {
        "agent_id": info.name,
        "uri": uris.tasks(info.name),
        "can_be_started": info.is_registered,
        "description": info.description,
        "input_schema": info.parameters,
    }


def check_status(status: str) -> None:
    """InvalidInput for an unknown status."""
    if status and status not in STATUSES:
        raise InvalidInput(f"unknown status {status!r}; use one of {', '.join(STATUSES)}")


def _task(_: Store, state: RunState, __: Address, uri: str) -> Contents:
    return _json(uri, task_document(state))


def task_document(state: RunState) -> dict[str, Any]:
    """The canonical state, cut to fit."""
    made: dict[str, Any] = cut.fit(documents.task(state), _value_uri(state))
    return made


def _value_uri(state: RunState, at: str = "") -> cut.UriOf:
    return lambda pointer: uris.task(state.agent, state.id, "value", path=at + pointer)


def _step(store: Store, state: RunState, address: Address, uri: str) -> Contents:
    made = documents.step(store, state, int(address.name))
    return _json(uri, cut.fit(made, _value_uri(state, f"/steps/{int(address.name)}")))


def _events(store: Store, state: RunState, address: Address, uri: str) -> Contents:
    """Events after a version, as many as fit; one that is large alone is cut."""
    after = -1 if address.after is None else address.after
    shown: list[dict[str, Any]] = []
    left, last = cut.DOCUMENT_BYTES_MAX, state.seq
    for record, event in views.events(store, state.id, after=after):
        whole = documents.event(record, event)
        one = cut.fit(whole, _value_uri(state, f"/events/{record.seq}"), PART_BYTES_MAX)
        left -= cut.size(one)
        if len(shown) == EVENTS_PAGE or (shown and left < 0):
            break
        shown.append(one)
        last = max(record.seq, last)
    end = shown[-1]["version"] if shown else after
    more = uris.task(state.agent, state.id, "events", after=end) if end < last else None
    made = {"notice": documents.NOTICE, "version": last, "events": shown, "next": more}
    return _json(uri, made)


def _messages(_: Store, state: RunState, address: Address, uri: str) -> Contents:
    """Messages from a number on, as many as fit."""
    everything = documents.messages(state)
    begin = 0 if address.after is None else address.after + 1
    shown: list[Any] = []
    left = cut.DOCUMENT_BYTES_MAX
    for number in range(begin, len(everything)):
        below = _value_uri(state, f"/messages/{number}")
        one = cut.fit(everything[number], below, PART_BYTES_MAX)
        left -= cut.size(one)
        if len(shown) == EVENTS_PAGE or (shown and left < 0):
            break
        shown.append({"number": number, **one})
    end = begin + len(shown)
    more = end < len(everything)
    following = uris.task(state.agent, state.id, "messages", after=end - 1) if more else None
    head = {"notice": documents.NOTICE, "version": state.seq, "of": len(everything)}
    return _json(uri, {**head, "messages": shown, "next": following})


def _artifact(store: Store, state: RunState, address: Address, uri: str) -> Contents:
    """The bytes of an artifact, from an offset on."""
    data = views.artifact(store, state.id, address.name)
    kind = next((a.type for a in state.artifacts if address.name in (a.name, a.id)), "")
    piece = data[address.offset : address.offset + cut.DOCUMENT_BYTES_MAX]
    text = _as_text(piece, is_last=address.offset + len(piece) == len(data))
    end = address.offset + len(piece if text is None else text.encode())
    following = ""
    if end < len(data):
        following = uris.task(state.agent, state.id, "artifacts", address.name, offset=end)
    meta = _meta({"type": kind, "bytes": len(data), "offset": address.offset, "next": following})
    if text is not None:
        return types.TextResourceContents(uri=uri, mime_type="text/plain", text=text, _meta=meta)
    blob = base64.b64encode(piece).decode()
    kind = "application/octet-stream"
    return types.BlobResourceContents(uri=uri, mime_type=kind, blob=blob, _meta=meta)


def _as_text(piece: bytes, *, is_last: bool) -> str | None:
    """A piece as text, up to its last whole character; None if it is not text."""
    try:
        return piece.decode()
    except UnicodeDecodeError as error:
        ends_within = not is_last and error.start >= len(piece) - 3 and error.start > 0
        return piece[: error.start].decode() if ends_within else None


def _value(store: Store, state: RunState, address: Address, uri: str) -> Contents:
    """One value, whole, in pieces: a text as it is, anything else as JSON."""
    found = documents.part(store, state, address.path)
    whole = found if isinstance(found, str) else _dumped(views.to_plain(found))
    piece = whole[address.offset : address.offset + cut.DOCUMENT_BYTES_MAX // 2]
    end = address.offset + len(piece)
    following = ""
    if end < len(whole):
        following = uris.task(state.agent, state.id, "value", path=address.path, offset=end)
    kind = "text/plain" if isinstance(found, str) or following or address.offset else JSON
    meta = _meta({"characters": len(whole), "offset": address.offset, "next": following})
    return types.TextResourceContents(uri=uri, mime_type=kind, text=piece, _meta=meta)


_READERS: Final[dict[str, Callable[[Store, RunState, Address, str], Contents]]] = {
    "task": _task,
    "steps": _step,
    "events": _events,
    "messages": _messages,
    "artifacts": _artifact,
    "value": _value,
}


def _json(uri: str, data: Any) -> types.TextResourceContents:
    text = _dumped(data)
    return types.TextResourceContents(uri=uri, mime_type=JSON, text=text, _meta=_meta({}))


def _dumped(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, indent=1, default=str)


def _meta(fields: dict[str, Any]) -> dict[str, Any]:
    return {UNTRUSTED: True, **{f"holdfast/{k}": v for k, v in fields.items() if v != ""}}


# ── completion ───────────────────────────────────────────────────────────────────────────────


def complete(
    store: Store,
    who: Identity,
    template: str,
    argument: str,
    prefix: str,
    arguments: dict[str, str],
) -> types.Completion:
    """Values for one argument of a template that begin with what was typed."""
    if template not in uris.TEMPLATES.values():
        raise InvalidInput(f"{template[:200]!r} is not a resource template of this server")
    found = [x for x in _candidates(store, who, argument, arguments) if x.startswith(prefix)]
    shown = found[:COMPLETIONS_MAX]
    return types.Completion(values=shown, total=len(found), has_more=len(found) > len(shown))


def _candidates(
    store: Store, who: Identity, argument: str, arguments: dict[str, str]
) -> Iterable[str]:
    agent, task = arguments.get("agent_id", ""), arguments.get("task_id", "")
    if argument == "agent_id":
        return [agent.name for agent in known_agents(store, who)]
    if argument == "status":
        return STATUSES
    if argument == "task_id":
        page = operations.rows(store, who, agent=agent, limit=1000)
        return [row.id for row in page.rows]
    if argument in ("n", "name") and task:
        state = operations.get(store, who, task, agent or None)
        if argument == "n":
            return [str(call.step) for call in state.calls]
        return list(dict.fromkeys(a.name for a in state.artifacts))
    return ()
