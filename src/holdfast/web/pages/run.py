"""The pages of one run: timeline, calls, state through time, dialogue, decisions, artifacts, usage, events."""

from __future__ import annotations

import bisect
import itertools
import math
from collections import Counter
from operator import attrgetter
from typing import Any, Final, Literal

from starlette.requests import Request
from starlette.responses import Response

from holdfast import views
from holdfast.core.state import Call, RunState
from holdfast.errors import NotFound
from holdfast.store.artifacts import read_artifact
from holdfast.store.base import TERMINAL_STATUSES, Store
from holdfast.views.moments import around
from holdfast.views.spans import SpanRow, grouped
from holdfast.web.auth import require
from holdfast.web.pages import chart
from holdfast.web.pages.chart import Scale, Strip, idle_gaps
from holdfast.web.pages.render import page
from holdfast.web.pages.site import Site, is_fragment, whole
from holdfast.web.reader import RunView
from holdfast.words.advice import advice
from holdfast.words.signs import CALL_SIGNS, MARK_SIGNS, SPAN_SIGNS
from holdfast.words.text import compact, cut, span, visible

CHILD_ROWS: Final = 50
STRIPS: Final = 8
_seq_of: Final = attrgetter("seq")
"""So many rows of a child run are shown in place."""
ROWS: Final = 120
"""So many rows are a page of about 120 KB."""
EVENTS: Final = 100
MESSAGES: Final = 100
LABEL: Final = 120


# ── what all of them show ────────────────────────────────────────────────────────────────────


async def head(site: Site, request: Request, view: RunView, tab: str) -> dict[str, Any]:
    """The head of a run's page: what it is, how it is, and how it continues."""
    state = view.brief
    steps = await site.server.call(lambda store: _next_steps(store, state))
    open_requests = [w for w in state.waits if not w.decided and w.wait in ("approval", "answer")]
    return {
        "view": view,
        "row": view.row,
        "state": state,
        "tab": tab,
        "position": views.position(state),
        "next_steps": steps,
        "open_requests": open_requests,
        "is_over": view.row.status in TERMINAL_STATUSES,
        "took": (state.updated_at if view.row.status in TERMINAL_STATUSES else view.now)
        - state.created_at,
        "budget": _budget(state),
        "did": visible(request.query_params.get("did", "")[:300]),
        "live": live_path(request, view, tab),
        "failed_call": state.call(state.failure.step) if state.failure else None,
    }


def live_path(request: Request, view: RunView, tab: str) -> dict[str, Any] | None:
    """The query of the stream that keeps this page current; None for a run that has ended."""
    if view.row.status in TERMINAL_STATUSES:
        return None
    kept = {
        k: v
        for k, v in request.query_params.items()
        if k in ("from", "to", "after", "only", "gaps", "call")
    }
    return {
        **{f"{k}_" if k == "from" else k: v for k, v in kept.items()},
        "tab": tab,
        "seq": view.state.seq,
    }


def _next_steps(store: Store, state: RunState) -> list[tuple[str, str]]:
    url = getattr(store, "url", None)
    return [(step.verb, advice(step, url)) for step in views.next_steps(store, state)[:6]]


def _budget(state: RunState) -> list[tuple[str, str, str, float]]:
    """Name, used, limit, and the part that is used."""
    if not state.budget:
        return []
    use = views.used_budget(state)
    found = []
    for name, limit in use.limits.items():
        used, (words, unit) = use.used.get(name, 0), _LIMITS.get(name, (name.replace("_", " "), ""))
        share = min(1.0, used / limit) if limit else 1.0
        found.append((words, _amount(used, unit), _amount(limit, unit), round(share, 3)))
    return found


_LIMITS: Final = {
    "max_steps": ("Step limit", ""),
    "max_llm_tokens": ("Token limit", ""),
    "max_cost_usd": ("Cost limit", "$"),
    "max_wall_time": ("Time limit", "s"),
    "max_artifact_bytes_in_context": ("Artifact bytes in context", ""),
}
"""What people call a limit, and its unit."""


def _amount(x: float, unit: str) -> str:
    if unit == "s":
        return span(int(x * 1_000_000))
    text = f"{x:,.2f}" if unit == "$" else f"{x:,.0f}"
    return unit + text


# ── timeline ─────────────────────────────────────────────────────────────────────────────────


async def timeline(site: Site, request: Request) -> Response:
    """The run as a timeline, and a call next to it."""
    require(request, "timeline")
    view = await site.view(request.path_params["run_id"])
    shown = await head(site, request, view, "timeline")
    step = whole(request.query_params, "call")
    panel = await _call_values(site, view, step) if step else None
    return page(
        request, "run/timeline.html", **shown, **timeline_values(request, view), panel=panel
    )


def timeline_values(request: Request, view: RunView) -> dict[str, Any]:
    """The rows that this page shows, drawn."""
    spans, query = view.spans, request.query_params
    live = view.row.status == "running"
    strip, scale, zoom = _scales(request, view)
    overview = strip.scale
    only, after = query.get("only", ""), whole(query, "after", -1) or -1
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
        "selected": whole(query, "call", 0),
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
    a, b = whole(request.query_params, "from"), whole(request.query_params, "to")
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
    """What tells this call from others of its tool: its first argument."""
    if row.args is None:
        return cut(visible(row.spans[0].text), LABEL) if row.spans and not row.step else ""
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


# ── one call ─────────────────────────────────────────────────────────────────────────────────


async def call(site: Site, request: Request) -> Response:
    """One call: input, output, attempts, errors, key, and what it changed."""
    require(request, "get")
    view = await site.view(request.path_params["run_id"])
    values = await _call_values(site, view, request.path_params["step"])
    if is_fragment(request):
        return page(request, "run/call_panel.html", panel=values, state=view.state, row=view.row)
    return page(
        request, "run/call.html", **await head(site, request, view, "timeline"), panel=values
    )


async def _call_values(site: Site, view: RunView, step: int) -> dict[str, Any]:
    found = view.call(step)
    if found is None:
        raise NotFound(f"run {view.state.id!r} has no step {step}; it has {view.state.steps}")
    before, after = await site.server.call(
        lambda store: around(store, view.state.id, found, view.marks)
    )
    return {
        "call": found,
        "span_row": view.spans.row(step),
        "changes": views.changes(before, after),
        "before_step": view.step_next_to(step, -1),
        "after_step": view.step_next_to(step, 1),
        "lines": [line for line in view.state.lines if _is_within(line.time, found, view.now)],
    }


def _is_within(time: int, found: Call, now: int) -> bool:
    return found.started_at <= time <= (found.ended_at or now)


# ── state through time ───────────────────────────────────────────────────────────────────────


async def state_at(site: Site, request: Request) -> Response:
    """What the agent knew before and after a step, and what changed."""
    require(request, "at")
    view = await site.view(request.path_params["run_id"])
    last = view.state.calls[-1].step if view.state.calls else 0
    asked = whole(request.query_params, "step", last) or 0
    step = min(max(0, asked), last)
    found = view.call(step)
    before, after = await site.server.call(
        lambda store: around(store, view.state.id, found, view.marks)
    )
    values: dict[str, Any] = {
        "step": step,
        "last_step": last,
        "call": found,
        "before": views.known(before),
        "after": views.known(after),
        "changes": views.changes(before, after),
        "stage": after.stage,
        "show_all": request.query_params.get("all") == "1",
    }
    if is_fragment(request):
        return page(request, "run/moment.html", state=view.state, row=view.row, **values)
    return page(request, "run/state.html", **await head(site, request, view, "state"), **values)


# ── what it knows ────────────────────────────────────────────────────────────────────────────


async def dialogue(site: Site, request: Request) -> Response:
    """The messages as a chat, and what a model was last shown."""
    require(request, "get")
    view = await site.view(request.path_params["run_id"])
    messages = views.with_dialogue(view.state).messages
    start = whole(request.query_params, "from")
    first = max(0, len(messages) - MESSAGES) if start is None else min(max(0, start), len(messages))
    return page(
        request,
        "run/dialogue.html",
        **await head(site, request, view, "dialogue"),
        messages=messages[first : first + MESSAGES],
        first=first,
        total=len(messages),
        per_page=MESSAGES,
    )


async def decisions(site: Site, request: Request) -> Response:
    """Decisions with their reasons, facts, open questions, notes, plan, and what people did."""
    require(request, "get")
    view = await site.view(request.path_params["run_id"])
    return page(request, "run/decisions.html", **await head(site, request, view, "decisions"))


async def artifacts(site: Site, request: Request) -> Response:
    """The artifacts, with a preview of those that are small texts or images."""
    require(request, "artifact")
    view = await site.view(request.path_params["run_id"])
    kept = view.state.artifacts[-100:][::-1]
    previews = await site.server.call(
        lambda store: {a.id: _preview(store, view.state.id, a) for a in kept}
    )
    shown = await head(site, request, view, "artifacts")
    return page(request, "run/artifacts.html", **shown, kept=kept, previews=previews)


PREVIEW_BYTES: Final = 64 * 1024
_TEXTS: Final = (
    "text/",
    "application/json",
    "application/xml",
    "application/yaml",
    "application/x-yaml",
)
IMAGES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")


def _preview(store: Store, run_id: str, artifact: Any) -> tuple[Literal["", "text", "image"], str]:
    if artifact.type in IMAGES:
        return "image", ""
    if artifact.bytes > PREVIEW_BYTES or not artifact.type.startswith(_TEXTS):
        return "", ""
    return "text", read_artifact(store, run_id, artifact.id).decode("utf-8", "replace")


async def artifact(site: Site, request: Request) -> Response:
    """The bytes of an artifact, as a download; an image may be shown inside a page."""
    require(request, "artifact")
    run_id, name = request.path_params["run_id"], request.path_params["name"]
    data = await site.server.call(lambda store: views.artifact(store, run_id, name))
    view = await site.view(run_id)
    known = next((a for a in reversed(view.state.artifacts) if name in (a.id, a.name)), None)
    kind = known.type if known is not None and known.type in IMAGES else "application/octet-stream"
    headers = {
        "content-disposition": "attachment",
        "content-security-policy": "sandbox; default-src 'none'",
    }
    return Response(data, media_type=kind, headers=headers)


async def usage(site: Site, request: Request) -> Response:
    """Tokens and cost over the run."""
    require(request, "get")
    view = await site.view(request.path_params["run_id"])
    state, spending = view.state, view.spending
    tokens, cost = state.usage.input_tokens + state.usage.output_tokens, state.usage.cost_usd

    def points(of: Any, most: float) -> list[tuple[float, float]]:
        many = len(spending)
        return (
            [((n + 0.5) / many, of(s.total) / most) for n, s in enumerate(spending)] if most else []
        )

    charts = {
        "tokens": chart.steps_svg(points(lambda u: u.input_tokens + u.output_tokens, tokens), "tokens used over the run", "busy"),
        "cost": chart.steps_svg(points(lambda u: u.cost_usd, cost), "cost over the run", "ok"),
    }  # fmt: skip
    dearest = sorted(
        (c for c in state.calls if c.usage), key=lambda c: -(c.usage.cost_usd if c.usage else 0)
    )
    shown = await head(site, request, view, "usage")
    return page(
        request,
        "run/usage.html",
        **shown,
        charts=charts,
        tokens=tokens,
        calls=dearest[:50],
        has=bool(spending),
    )


async def events(site: Site, request: Request) -> Response:
    """The raw events, each as a sentence and as its stored JSON."""
    require(request, "events")
    run_id = request.path_params["run_id"]
    view = await site.view(run_id)
    after = whole(request.query_params, "after", -1)
    assert after is not None
    found = await site.server.call(
        lambda store: list(views.events(store, run_id, after=after, limit=EVENTS))
    )
    said = await site.server.call(
        lambda store: list(views.timeline(store, run_id, after=after, limit=EVENTS))
    )
    shown = await head(site, request, view, "events")
    return page(
        request,
        "run/events.html",
        **shown,
        events=list(zip(found, said, strict=False)),
        after=after,
        per_page=EVENTS,
    )
