"""Decoding of requests: path, query and body become what the table of operations declares, or a problem.

Types are not guessed: "5" in a body is not a number. Unknown fields and parameters are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from holdfast.api.problems import FieldError, Problem, problem

S = TypeVar("S", bound=msgspec.Struct)


class RequestRefused(Exception):
    """A request that is refused before anything is done; `found` says why."""

    def __init__(self, problem: Problem, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(problem.detail)
        self.found, self.headers = problem, dict(headers or {})


def read_query(request: Request, kind: type[S]) -> S:
    """The query parameters. Each may be given once."""
    given = dict(request.query_params)
    if len(given) != len(request.query_params.multi_items()):
        raise RequestRefused(problem("invalid-query", 422, "a query parameter occurs twice"))
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise RequestRefused(_invalid("invalid-query", error)) from None


async def read_body(request: Request, kind: type[S]) -> S:
    """The JSON body; none is the same as {}."""
    data = await request.body()
    if data and not _is_json(request.headers.get("content-type", "")):
        raise RequestRefused(
            problem(
                "unsupported-media-type", 415, "send the body as Content-Type: application/json"
            )
        )
    try:
        return msgspec.json.decode(data or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise RequestRefused(_invalid("invalid-body", error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestRefused(problem("not-json", 400, f"the body is not JSON: {error}")) from None


def _is_json(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() == "application/json"


def _invalid(name: str, error: msgspec.ValidationError) -> Problem:
    said, _, place = str(error).partition(" - at `")
    pointer = _pointer(place.removesuffix("`"))
    where = f" at {pointer}" if pointer else ""
    return problem(name, 422, f"{said}{where}", errors=(FieldError(said, pointer),))


def _pointer(path: str) -> str:
    """`$.budget.max_steps` as a JSON Pointer."""
    steps: list[Any] = re.findall(r"\.([^.\[\]]+)|\[(\d+)\]|\[(\.\.\.)\]", path)
    return "".join(f"/{name or number or '*'}" for name, number, _ in steps)
