"""Two runs, or two steps of one run, side by side: where they part first, what differs, and by how much."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from holdfast import views
from holdfast.core.state import Call, RunState
from holdfast.errors import InvalidInput
from holdfast.web.auth import require
from holdfast.web.pages.render import page
from holdfast.web.pages.site import Site, whole_number

MOST = 500


@dataclass(frozen=True, slots=True)
class Pair:
    """The same place in two runs. `how` is same, differs, only_a or only_b."""

    how: str
    a: Call | None
    b: Call | None
    what: str = ""


async def compare(site: Site, request: Request) -> Response:
    """Compare by `?a=RUN&b=RUN`, or `?a=RUN&from=STEP&to=STEP`."""
    require(request, "diff")
    query = request.query_params
    a, b = query.get("a", "").strip(), query.get("b", "").strip()
    steps = whole_number(query, "from"), whole_number(query, "to")
    values: dict[str, Any] = {
        "a": a,
        "b": b,
        "from_step": steps[0],
        "to_step": steps[1],
        "mode": "",
    }
    if a and steps[0] is not None and steps[1] is not None:
        first, last = steps
        changes = await site.server.call(lambda store: views.diff(store, a, first or 0, last or 0))
        values |= {"mode": "steps", "changes": changes}
    elif a and b:
        if a == b:
            raise InvalidInput(
                "choose two different runs; two steps of one run are compared with from= and to="
            )
        left, right = (await site.view(a)).state, (await site.view(b)).state
        # In a thread: two long runs have many calls.
        values |= await site.server.call(lambda _: _compared(left, right))
    return page(request, "compare.html", **values)


def _compared(left: RunState, right: RunState) -> dict[str, Any]:
    pairs = aligned(left, right)
    return {
        "mode": "runs",
        "left": left,
        "right": right,
        "pairs": pairs[:MOST],
        "more": max(0, len(pairs) - MOST),
        "first": next((p for p in pairs if p.how != "same"), None),
        "deltas": _deltas(left, right),
        "changes": views.compare(
            views.to_plain(dict(left.state)), views.to_plain(dict(right.state))
        ),
    }


def aligned(a: RunState, b: RunState) -> list[Pair]:
    """Calls of two runs, by where they are in the code: branch and position."""
    left = {c.id: c for c in a.calls if c.index >= 0}
    right = {c.id: c for c in b.calls if c.index >= 0}
    order = list(dict.fromkeys(itertools.chain(left, right)))
    return [_pair(left.get(key), right.get(key)) for key in order]


def _pair(a: Call | None, b: Call | None) -> Pair:
    if a is None or b is None:
        return Pair("only_b" if a is None else "only_a", a, b)
    what = [
        word
        for word, differs in (
            ("tool", a.name != b.name),
            ("input", a.digest != b.digest),
            ("outcome", a.status != b.status),
            ("result", a.result != b.result),
        )
        if differs
    ]
    return Pair("differs" if what else "same", a, b, ", ".join(what))


def _deltas(a: RunState, b: RunState) -> list[tuple[str, float, float, str]]:
    """Name, left, right, and how it is written."""
    return [
        ("steps", a.steps, b.steps, "number"),
        ("time", a.updated_at - a.created_at, b.updated_at - b.created_at, "span"),
        ("input tokens", a.usage.input_tokens, b.usage.input_tokens, "number"),
        ("output tokens", a.usage.output_tokens, b.usage.output_tokens, "number"),
        ("cost", a.usage.cost_usd, b.usage.cost_usd, "money"),
    ]
