"""The OpenAPI 3.1 document and a page that shows it, made of the table of operations.

Schemas come from the Structs; only `paths` are put together here.
"""

from __future__ import annotations

import functools
from html import escape
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from holdfast import __version__
from holdfast.api.operations import OPERATIONS, PREFIX, Operation
from holdfast.api.problems import MEDIA_TYPE, Problem
from holdfast.control.roles import ALLOWED, ROLES
from holdfast.core.log import RUN_ID
from holdfast.web.api.schemas import REF, Components, query_fields
from holdfast.web.auth import require

_STATUS_TEXT: Final = {
    200: "Done.",
    201: "Created.",
    206: "A part of the bytes.",
    304: "Not changed.",
    400: "Not JSON.",
    401: "No valid credential.",
    403: "Not allowed.",
    404: "Not found.",
    408: "The body was too slow.",
    409: "Not possible now.",
    412: "Changed since.",
    413: "The body is too large.",
    415: "Not application/json.",
    416: "No such range.",
    422: "Invalid.",
    428: "If-Match is missing.",
    429: "Too many requests.",
    503: "The store does not answer.",
}
_ALWAYS: Final = (401, 403, 422, 429, 503)


@functools.cache
def openapi() -> dict[str, Any]:
    """The document."""
    components = Components()
    for op in OPERATIONS:
        if op.media in ("json", "events"):
            components.add(op.result)
        if op.body is not None:
            components.add(op.body)
    components.add(Problem)
    paths: dict[str, Any] = {}
    for op in OPERATIONS:
        paths.setdefault(PREFIX + op.path, {})[op.method.lower()] = _described(op)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast",
            "version": __version__,
            "description": "Durable runs of agents. Times are microseconds since 1970.",
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components.schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _described(op: Operation) -> dict[str, Any]:
    may = [role for role in ROLES if op.needs in ALLOWED[role]]
    said: dict[str, Any] = {
        "operationId": op.verb,
        "summary": op.summary,
        "description": f"Roles: {', '.join(may)}.",
        "parameters": [*_path_parameters(op), *_query_parameters(op), *_header_parameters(op)],
        "responses": _responses(op),
    }
    if op.body is not None:
        said["requestBody"] = {"content": {"application/json": {"schema": _ref(op.body)}}}
        required = any(f.required for f in msgspec.structs.fields(op.body))
        said["requestBody"]["required"] = required
    elif op.takes_lines:
        lines = {"schema": {"type": "string"}}
        said["requestBody"] = {"content": {"application/x-ndjson": lines}, "required": True}
    return said


def _path_parameters(op: Operation) -> list[dict[str, Any]]:
    pattern = {"run_id": {"type": "string", "pattern": f"^{RUN_ID.pattern}$"}}
    text = {"type": "string", "minLength": 1, "maxLength": 200}
    return [
        {"name": name, "in": "path", "required": True, "schema": pattern.get(name, text)}
        for name in op.parameters
    ]


def _query_parameters(op: Operation) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "query", "required": required, "schema": schema}
        for name, (schema, required) in query_fields(op.query).items()
    ]


def _header_parameters(op: Operation) -> list[dict[str, Any]]:
    def header(name: str, description: str, *, required: bool = False) -> dict[str, Any]:
        schema = {"type": "string"}
        return {
            "name": name,
            "in": "header",
            "required": required,
            "description": description,
            "schema": schema,
        }

    match op.verb:
        case "start":
            return [
                header("Idempotency-Key", "The same key with the same request is the same run.")
            ]
        case "patch":
            return [
                header(
                    "If-Match",
                    "The ETag of the run as it was read; `*` for any version.",
                    required=True,
                )
            ]
        case "get" | "at":
            return [header("If-None-Match", "An ETag: 304 if the run has not changed.")]
        case "stream":
            return [header("Last-Event-ID", "Continue after this event.")]
        case "artifact" | "blob":
            return [header("Range", "A part of the bytes, such as bytes=0-999.")]
    return []


def _responses(op: Operation) -> dict[str, Any]:
    problem = {MEDIA_TYPE: {"schema": _ref(Problem)}}
    found: dict[str, Any] = {}
    good = [op.status, *_also_good(op)]
    for status in good:
        found[str(status)] = {"description": _STATUS_TEXT[status]}
        if status < 300:
            found[str(status)]["content"] = _content(op)
    for status in sorted({*_ALWAYS, *_also_bad(op)}):
        found[str(status)] = {"description": _STATUS_TEXT[status], "content": problem}
    return found


def _also_good(op: Operation) -> tuple[int, ...]:
    if op.media == "bytes":
        return (206, 304)
    return {"start": (200,), "get": (304,), "at": (304,)}.get(op.verb, ())


def _also_bad(op: Operation) -> set[int]:
    found = {404} if op.parameters or "not-found" in op.problems else set()
    if op.changes:
        found |= {408, 409, 413}
    if op.body is not None:
        found |= {400, 415}
    if op.verb == "patch":
        found |= {412, 428}
    if op.media == "bytes":
        found |= {416}
    return found


def _content(op: Operation) -> dict[str, Any]:
    match op.media:
        case "json":
            return {"application/json": {"schema": _ref(op.result)}}
        case "events":  # the schema is that of one message
            return {"text/event-stream": {"schema": _message(op)}}
        case "lines":
            return {"application/x-ndjson": {"schema": {"type": "string"}}}
        case "bytes":
            return {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


def _message(op: Operation) -> dict[str, Any]:
    """One server-sent event. Its data is JSON: an event of the log; of the last message an object with at most a `detail`."""
    text = {"type": "string"}
    content = {"anyOf": [_ref(op.result), {"type": "object", "maxProperties": 1}]}
    data = {**text, "contentMediaType": "application/json", "contentSchema": content}
    return {"type": "object", "properties": {"id": text, "event": text, "data": data}}


def _ref(kind: Any) -> dict[str, Any]:
    return {"$ref": REF + kind.__name__}


# ── for people ───────────────────────────────────────────────────────────────────────────────


async def document(request: Request) -> Response:
    """The document as JSON."""
    require(request, "whoami")
    return Response(msgspec.json.encode(openapi()), media_type="application/json")


async def page(request: Request) -> Response:
    """The operations as a page."""
    require(request, "whoami")
    rows = "".join(
        f"<tr><td><code>{op.method}</code><td><code>{escape(PREFIX + op.path)}</code>"
        f"<td>{escape(op.summary)}<td>{', '.join(r for r in ROLES if op.needs in ALLOWED[r])}"
        for op in OPERATIONS
    )
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><title>Holdfast API</title>'
    link = escape(request.url_for("api.openapi").path)
    text = f'{head}<h1>HTTP API</h1><p><a href="{link}">OpenAPI document</a></p>'
    columns = "".join(f"<th>{name}" for name in ("Method", "Path", "What it does", "Roles"))
    return HTMLResponse(f"{text}<table><thead><tr>{columns}<tbody>{rows}</table>")
