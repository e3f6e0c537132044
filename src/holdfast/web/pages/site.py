"""What the pages of one server share: counts that are kept for a moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl

from starlette.requests import Request

from holdfast.errors import InvalidInput
from holdfast.store.base import Store
from holdfast.views.fleet import Tally, tally
from holdfast.web.api.events import Streams
from holdfast.web.context import Server
from holdfast.web.reader import RunView

WHOLE_MAX: Final = 2**62
FIELDS_MAX: Final = 1000
COUNTS_SECONDS: Final = 2.0
"""Counts on pages may be so old: many viewers cost no more than one."""


class Site:
    """The pages of one server."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.streams = Streams(server.limits.streams_per_user, server.limits.streams)
        self._lock = threading.Lock()
        self._tally: tuple[float, Tally] | None = None

    async def view(self, run_id: str) -> RunView:
        """The run now."""
        return await self.server.call(lambda store: self.server.reader.read(store, run_id))

    async def tally(self) -> Tally:
        """How many runs there are of each status, as of a moment ago."""
        return await self.server.call(self._counted)

    def _counted(self, store: Store) -> Tally:
        with self._lock:
            now = time.monotonic()
            if self._tally is None or now - self._tally[0] > COUNTS_SECONDS:
                self._tally = (now, tally(store))
            return self._tally[1]


def whole_number(values: Mapping[str, str], name: str, default: int | None = None) -> int | None:
    """A whole number of a query or form; InvalidInput if it is something else."""
    text = values.get(name, "")
    if not text:
        return default
    try:
        found = int(text[:25])
    except ValueError:
        found = WHOLE_MAX
    if abs(found) >= WHOLE_MAX:  # beyond what a store counts to
        raise InvalidInput(f"{name} must be a whole number, not {text[:50]!r}")
    return found


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form; of several with one name the last."""
    body = await request.body()
    try:
        pairs = parse_qsl(
            body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=FIELDS_MAX
        )
    except ValueError:
        raise InvalidInput(f"a form has at most {FIELDS_MAX:,} fields") from None
    return dict(pairs)


def is_fragment(request: Request) -> bool:
    """Whether htmx asks for a part of a page."""
    return "hx-request" in request.headers
