"""The first page of a run: its timeline, drawn row by row, and the rows of its child runs in place.

Not here: how a row is drawn (`chart.py`), the other pages of a run (`run.py`).
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections import Counter
from operator import attrgetter
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from holdfast import views
from holdfast.errors import NotFound
from holdfast.store.base import TERMINAL_STATUSES
from holdfast.views.spans import SpanRow, grouped
from holdfast.web.auth import require
from holdfast.web.pages import chart
from holdfast.web.pages.chart import Scale, Strip, idle_gaps
from holdfast.web.pages.render import page
from holdfast.web.pages.run import call_values, head
from holdfast.web.pages.site import Site, whole_number
from holdfast.web.reader import RunView
from holdfast.words.signs import CALL_SIGNS, MARK_SIGNS, SPAN_SIGNS
from holdfast.words.text import compact, cut, visible

CHILD_ROWS: Final = 50
"""So many rows of a child run are shown in place."""
STRIPS: Final = 8
ROWS: Final = 120
"""So many rows are a page of about 120 KB."""
LABEL: Final = 120
_seq_of: Final = attrgetter("seq")


async def timeline(site: Site, request: Request) -> Response:
    """The run as a timeline, and a call next to it."""
    require(request, "timeline")
    view = await site.view(request.path_params["run_id"])
    shown = await head(site, request, view, "timeline")
    step = whole_number(request.query_params, "call")
    panel = await call_values(site, view, step) if step else None
    return page(
        request, "run/timeline.html", **shown, **timeline_values(request, view), panel=panel
    )


def timeline_values(request: Request, view: RunView) -> dict[str, Any]:
    """The rows that this page shows, drawn."""
    spans, query = view.spans, request.query_params
    live = view.row.status == "running"
    strip, scale, zoom = _scales(request, view)
    overview = strip.scale
    only, after = query.get("only", ""), whole_number(query, "after", -1) or -1
    first = bisect.bisect_right(spans.rows, after, key=_seq_of)
    following = itertools.islice(spans.rows, first, None)
    later = (row for row in following if _is_shown(row, only, view))
    matching = list(itertools.islice(later, ROWS + 1))
    rows = matching[:ROWS]
    drawn = [_drawn(group, scale, view) for group in grouped(rows)]
    return {
        "spans": spans,
        "overview": chart.overview_svg(spans, strip, view.now, zoom),
        "axis": chart.axis_svg(scale),
        "holders": chart.holders_svg(spans, scale, view.now, live),
        "marks": chart.marks_svg(spans, scale),
        "rows": drawn,
        "gaps": overview.gaps,
        "gaps_off": query.get("gaps") == "off",
        "zoom": zoom,
        "zoom_links": _zoom_links(scale, spans.start, overview.end),
        "scale": scale,
        "only": only,
        "selected": whole_number(query, "call", 0),
        "more_after": rows[-1].seq if len(matching) > ROWS else None,
        "row_count": len(spans.rows),
        "counts": _counts(view),
        "legend": _legend(rows, view),
        "now_share": overview.x(view.now),
    }


GROWTH: Final = 1.04
"""By this the scale of a run grows that has not ended: less than an idle time that would be shortened."""


def _end(view: RunView) -> int:
    """Where the timeline ends. While the run lasts it moves in steps, so that a drawing is continued for a while."""
    spans = view.spans
    if view.row.status in TERMINAL_STATUSES:
        return spans.end
    age = max(2, view.now - spans.start, spans.end - spans.start)
    return spans.start + math.ceil(GROWTH ** math.ceil(math.log(age, GROWTH)))


def _strip(request: Request, view: RunView) -> Strip:
    """The overview of the whole run, and its scale."""
    spans, end, off = view.spans, _end(view), request.query_params.get("gaps") == "off"
    found = view.strips.get((off, end))
    if not isinstance(found, Strip):
        if len(view.strips) > STRIPS:
            view.strips.clear()
        gaps = [] if off else idle_gaps(spans, spans.start, end)
        found = view.strips[off, end] = Strip(Scale(spans.start, end, gaps))
    return found


def _scales(request: Request, view: RunView) -> tuple[Strip, Scale, tuple[int, int] | None]:
    """The overview of the whole run, the scale of the part that is shown, and that part if it is not all."""
    strip = _strip(request, view)
    zoom = _zoom(request, view.spans.start, strip.scale.end)
    if zoom is None:
        return strip, strip.scale, None
    within = [g for g in strip.scale.gaps if g.start >= zoom[0] and g.end <= zoom[1]]
    return strip, Scale(*zoom, gaps=within), zoom


def _zoom(request: Request, start: int, end: int) -> tuple[int, int] | None:
    """The part that is shown, as microseconds since the start of the run."""
    a, b = whole_number(request.query_params, "from"), whole_number(request.query_params, "to")
    if a is None or b is None or b <= a:
        return None
    first, last = max(start, start + a), min(end, start + b)
    return (first, last) if last > first else None


def _zoom_links(scale: Scale, start: int, end: int) -> dict[str, tuple[int, int]]:
    width, middle = scale.end - scale.start, (scale.end + scale.start) // 2
    near = (middle - width // 4 - start, middle + width // 4 - start)
    far = (max(start, middle - width) - start, min(end, middle + width) - start)
    return {"in": near, "out": far}


def _status(row: SpanRow, view: RunView) -> str:
    """The row's status; an open call without a living owner is in doubt, as the state says."""
    if row.step and row.status == "running":
        call = view.brief.call(row.step)
        return call.status if call is not None else row.status
    return row.status


def _is_shown(row: SpanRow, only: str, view: RunView) -> bool:
    return not only or _status(row, view) in only.split(",")


def _counts(view: RunView) -> list[tuple[str, int]]:
    found = Counter(_status(row, view) for row in view.spans.rows if row.status != "done")
    return [(status, found[status]) for status in CALL_SIGNS if found[status]]


def _drawn(rows: list[SpanRow], scale: Scale, view: RunView) -> dict[str, Any]:
    first, many = rows[0], len(rows)
    took = sum(row.end(view.now) - row.start for row in rows)
    failed = sum(row.status == "failed" for row in rows)
    status = "failed" if many > 1 and failed else _status(first, view)
    return {
        "row": first,
        "id": first.id if many == 1 else f"group-{first.seq}",
        "rows": rows if many > 1 else [],
        "label": label(first) if many == 1 else "",
        "status": status,
        "count": many,
        "failed": failed,
        "took": took,
        "attempts": first.attempts,
        "svg": chart.row_svg(rows, scale, view.spans, view.now),
        "inner": [_drawn([row], scale, view) for row in rows] if many > 1 else [],
    }


def label(row: SpanRow) -> str:
    """What distinguishes this call from others of its tool: its first argument."""
    if row.args is None:
        text = row.spans[0].text if row.spans and not row.step else ""
        return "" if text == row.name else cut(visible(text), LABEL)
    if row.args.blob:
        return ""
    given = views.to_plain(row.args)
    first = next(iter(given.values()), "") if isinstance(given, dict) else given
    return cut(visible(first), LABEL) if isinstance(first, str) else compact(first, LABEL)


def _legend(rows: list[SpanRow], view: RunView) -> list[tuple[str, Any]]:
    """What this page draws, with its signs."""
    kinds = {span.kind for row in rows for span in row.spans}
    found: list[tuple[str, Any]] = [(f"bar {k}", s) for k, s in SPAN_SIGNS.items() if k in kinds]
    marks = {mark.kind for mark in view.spans.marks}
    return found + [("mark", sign) for kind, sign in MARK_SIGNS.items() if kind in marks]


# ── a child run, in place ──────────────────────────────────────────────────────────────────────


async def child(site: Site, request: Request) -> Response:
    """The rows of a call's child run, on the scale of this run's timeline."""
    require(request, "timeline")
    view = await site.view(request.path_params["run_id"])
    found = view.call(request.path_params["step"])
    if found is None or not found.child:
        raise NotFound(
            f"step {request.path_params['step']} of run {view.state.id!r} has no child run"
        )
    inner = await site.view(found.child)
    _, scale, _ = _scales(request, view)
    rows = [_drawn([row], scale, inner) for row in inner.spans.rows[:CHILD_ROWS]]
    return page(
        request,
        "run/child_rows.html",
        rows=rows,
        state=inner.state,
        more=max(0, len(inner.spans.rows) - CHILD_ROWS),
    )
