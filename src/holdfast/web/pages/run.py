"""The pages of one run: calls, state through time, dialogue, decisions, artifacts, usage, events.

Not here: its first page, the timeline (`timeline.py`).
"""

from __future__ import annotations

from typing import Any, Final, Literal

from starlette.requests import Request
from starlette.responses import Response

from holdfast import views
from holdfast.core.state import Call, RunState
from holdfast.errors import NotFound
from holdfast.store.artifacts import read_artifact
from holdfast.store.base import TERMINAL_STATUSES, Store
from holdfast.views.state import around
from holdfast.web.auth import require
from holdfast.web.pages import chart
from holdfast.web.pages.render import page
from holdfast.web.pages.site import Site, is_fragment, whole_number
from holdfast.web.reader import RunView
from holdfast.words.advice import advice
from holdfast.words.text import span, visible

EVENTS: Final = 100
MESSAGES: Final = 100


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


# ── one call ─────────────────────────────────────────────────────────────────────────────────


async def call(site: Site, request: Request) -> Response:
    """One call: input, output, attempts, errors, key, and what it changed."""
    require(request, "get")
    view = await site.view(request.path_params["run_id"])
    values = await call_values(site, view, request.path_params["step"])
    if is_fragment(request):
        return page(request, "run/call_panel.html", panel=values, state=view.state, row=view.row)
    return page(
        request, "run/call.html", **await head(site, request, view, "timeline"), panel=values
    )


async def call_values(site: Site, view: RunView, step: int) -> dict[str, Any]:
    """What is shown of one call."""
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


def _is_within(time: int, call: Call, now: int) -> bool:
    return call.started_at <= time <= (call.ended_at or now)


# ── state through time ───────────────────────────────────────────────────────────────────────


async def state_at(site: Site, request: Request) -> Response:
    """What the agent knew before and after a step, and what changed."""
    require(request, "at")
    view = await site.view(request.path_params["run_id"])
    last = view.state.calls[-1].step if view.state.calls else 0
    asked = whole_number(request.query_params, "step", last) or 0
    step = min(max(0, asked), last)
    found = view.call(step)
    before, after = await site.server.call(
        lambda store: around(store, view.state.id, found, view.marks)
    )
    values: dict[str, Any] = {
        "step": step,
        "last_step": last,
        "call": found,
        "before": views.knowledge_of(before),
        "after": views.knowledge_of(after),
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
    start = whole_number(request.query_params, "from")
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

    def points(value_of: Any, highest: float) -> list[tuple[float, float]]:
        many = len(spending)
        return (
            [((n + 0.5) / many, value_of(s.total) / highest) for n, s in enumerate(spending)]
            if highest
            else []
        )

    charts = {
        "tokens": chart.steps_svg(
            points(lambda u: u.input_tokens + u.output_tokens, tokens),
            "tokens used over the run",
            "busy",
        ),
        "cost": chart.steps_svg(points(lambda u: u.cost_usd, cost), "cost over the run", "ok"),
    }
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
    after = whole_number(request.query_params, "after", -1)
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
