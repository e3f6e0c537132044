"""Errors as responses: problem details for programs, a page for people."""

from __future__ import annotations

from typing import Final

import msgspec
from starlette.requests import HTTPConnection
from starlette.responses import Response

from holdfast.api.problems import MEDIA_TYPE, Problem

API_PATH: Final = "/api/"
MCP_PATH: Final = "/mcp"


def problem_response(problem: Problem, headers: dict[str, str] | None = None) -> Response:
    """A problem as JSON."""
    body = msgspec.json.encode(problem)
    return Response(body, problem.status, headers, media_type=MEDIA_TYPE)


def path_of(connection: HTTPConnection) -> str:
    """The path below the place where this application is mounted."""
    path: str = connection.scope["path"]
    return path.removeprefix(connection.scope.get("root_path", ""))


def is_for_programs(connection: HTTPConnection) -> bool:
    """Whether an error of this request is reported as JSON."""
    return path_of(connection).startswith((API_PATH, MCP_PATH))
