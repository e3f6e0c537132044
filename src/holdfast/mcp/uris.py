"""The URIs of resources: made, read and checked here, and nowhere else.

Every part is percent-encoded as one segment, so that a name with a slash stays one name. What is not exactly a
URI of this shape is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlencode

from holdfast.core.log import check_run_id
from holdfast.errors import InvalidInput

ROOT: Final = "state://agents"
LENGTH_MAX: Final = 2000
_NUMBER: Final = re.compile(r"[0-9]{1,15}")
_QUERIES: Final = {
    "agents": (),
    "tasks": ("status", "cursor"),
    "task": ("after",),
    "steps": (),
    "events": ("after",),
    "messages": ("after",),
    "artifacts": ("offset",),
    "value": ("path", "offset"),
}
"""What may follow the ? of each kind of resource."""

TASK: Final = f"{ROOT}/{{agent_id}}/tasks/{{task_id}}"
TEMPLATES: Final = {
    "tasks": f"{ROOT}/{{agent_id}}/tasks{{?status,cursor}}",
    "task": TASK,
    "steps": f"{TASK}/steps/{{n}}",
    "events": f"{TASK}/events{{?after}}",
    "messages": f"{TASK}/messages{{?after}}",
    "artifacts": f"{TASK}/artifacts/{{name}}{{?offset}}",
    "value": f"{TASK}/value{{?path,offset}}",
}


@dataclass(frozen=True, slots=True)
class Address:
    """A resource: its kind, and the parts of its URI."""

    kind: str
    agent: str = ""
    task: str = ""
    name: str = ""
    status: str = ""
    cursor: str = ""
    path: str = ""
    after: int | None = None
    offset: int = 0


def parse(uri: str) -> Address:
    """The parts of a URI, or InvalidInput."""
    if len(uri) > LENGTH_MAX:
        raise InvalidInput(f"a resource URI may have up to {LENGTH_MAX} characters")
    if not uri.isascii() or not uri.isprintable() or "#" in uri:
        raise _not_ours(uri)
    location, _, query = uri.partition("?")
    if location == ROOT:
        return _with_query(uri, "agents", query)
    if not location.startswith(ROOT + "/"):
        raise _not_ours(uri)
    parts = [_decoded(uri, part) for part in location.removeprefix(ROOT + "/").split("/")]
    return _addressed(uri, parts, query)


def _addressed(uri: str, parts: list[str], query: str) -> Address:
    match parts:
        case [agent, "tasks"]:
            return _with_query(uri, "tasks", query, agent=agent)
        case [agent, "tasks", task]:
            return _with_query(uri, "task", query, agent=agent, task=check_run_id(task))
        case [agent, "tasks", task, ("events" | "messages" | "value") as kind]:
            return _with_query(uri, kind, query, agent=agent, task=check_run_id(task))
        case [agent, "tasks", task, ("steps" | "artifacts") as kind, name]:
            if kind == "steps":
                _number(uri, name)
            return _with_query(uri, kind, query, agent=agent, task=check_run_id(task), name=name)
        case _:
            raise _not_ours(uri)


def _decoded(uri: str, part: str) -> str:
    if re.search(r"%(?![0-9A-Fa-f]{2})", part):
        raise _not_ours(uri)
    try:
        found = unquote(part, errors="strict")
    except UnicodeDecodeError:
        raise _not_ours(uri) from None
    if not found or found in (".", "..") or "\0" in found:
        raise _not_ours(uri)
    return found


def _with_query(
    uri: str, kind: str, query: str, *, agent: str = "", task: str = "", name: str = ""
) -> Address:
    given: dict[str, str] = {}
    try:
        pairs = parse_qsl(
            query, keep_blank_values=True, strict_parsing=bool(query), max_num_fields=8
        )
    except ValueError:
        raise _not_ours(uri) from None
    for key, value in pairs:
        if key not in _QUERIES[kind] or key in given:
            takes = ", ".join(_QUERIES[kind]) or "no parameters"
            raise InvalidInput(f"{kind} takes {takes} after the ?, not {key!r}")
        given[key] = value
    after, offset = given.pop("after", None), given.pop("offset", "0")
    return Address(
        kind,
        agent,
        task,
        name,
        after=None if after is None else _number(uri, after),
        offset=_number(uri, offset),
        **given,
    )


def _number(uri: str, text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise InvalidInput(f"{text!r} in {uri} is not a whole number")
    return int(text)


def _not_ours(uri: str) -> InvalidInput:
    return InvalidInput(
        f"{uri[:200]!r} is not the URI of a resource; resources/templates/list lists the URIs"
    )


def tasks(agent: str, **query: str | int) -> str:
    """The list of an agent's tasks."""
    return _queried(f"{ROOT}/{quote(agent, safe='')}/tasks", query)


def task(agent: str, task_id: str, *segments: str | int, **query: str | int) -> str:
    """A task, or something below it: `task(agent, id, "steps", 3)`."""
    parts = [tasks(agent), task_id, *map(str, segments)]
    return _queried("/".join([parts[0], *(quote(part, safe="") for part in parts[1:])]), query)


def _queried(location: str, query: dict[str, str | int]) -> str:
    return f"{location}?{urlencode(query)}" if query else location
