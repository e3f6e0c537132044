"""Bytes with range requests (RFC 9110): artifacts and large values, as downloads. Never shown by the browser itself.

One range is answered; a request for several gets all bytes, which is allowed and cannot be made expensive.
"""

from __future__ import annotations

import re
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from holdfast.web.api.handlers import Bytes

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


def bytes_response(request: Request, content: Bytes) -> Response:
    """The bytes, or the part of them that is asked for."""
    etag, size = f'"{content.etag}"', len(content.data)
    kept = "private, max-age=31536000, immutable" if content.is_immutable else "no-store"
    headers = {
        "etag": etag,
        "accept-ranges": "bytes",
        "cache-control": kept,
        "content-disposition": f"attachment; filename*=UTF-8''{quote(content.filename, safe='')}",
        "content-type": "application/octet-stream",
    }
    if etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    wanted = _wanted(request, etag, size)
    if wanted is None:
        return Response(content.data, headers=headers)
    first, last = wanted
    if first > last:
        return Response(status_code=416, headers={**headers, "content-range": f"bytes */{size}"})
    headers["content-range"] = f"bytes {first}-{last}/{size}"
    return Response(content.data[first : last + 1], 206, headers)


def _wanted(request: Request, etag: str, size: int) -> tuple[int, int] | None:
    """The first and last byte; None for all, an empty range for one that cannot be satisfied."""
    matched = _RANGE.fullmatch(request.headers.get("range", "").strip())
    if matched is None or request.headers.get("if-range", etag) != etag:
        return None
    begin, end = matched.groups()
    if not begin and not end:
        return None
    if not begin:  # the last so many bytes
        return (max(0, size - int(end)), size - 1) if int(end) else (1, 0)
    first = int(begin)
    last = min(int(end), size - 1) if end else size - 1
    if end and int(end) < first:
        return None  # not a range at all
    return (first, last) if first < size else (1, 0)
