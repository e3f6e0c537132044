"""The inbox: approvals, questions and calls in doubt of all runs, and what people decide about them.

What is shown is decoded from the bytes that the decision is bound to (`digest`). Deciding is `control`, under the name
that is signed in.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from holdfast import control, views
from holdfast.core.state import Call, RunState, Waiting
from holdfast.errors import InvalidInput, NotFound
from holdfast.store.base import RunRow, Store
from holdfast.views.open_requests import inbox as read_inbox
from holdfast.web.auth import require
from holdfast.web.pages import edits
from holdfast.web.pages.render import linker, page
from holdfast.web.pages.site import Site, form_of, whole_number

ROWS: Final = 30


@dataclass(frozen=True, slots=True)
class OpenDecision:
    """One thing to decide. `kind` is approval, answer or doubt."""

    kind: str
    run_id: str
    agent: str
    id: str
    since: int
    wait: Waiting | None = None
    call: Call | None = None
    arguments: Any = None
    """What is shown of the request, decoded from the bytes that a decision is bound to."""
    is_whole: bool = True
    """Whether `arguments` is all of it; if not, it cannot be approved here."""

    @property
    def until(self) -> int | None:
        return self.wait.until if self.wait is not None else None


EXACT_BYTES: Final = 1024 * 1024
"""What is larger is not shown on a page, and so cannot be approved on one."""


def _exact(store: Store, item: OpenDecision) -> OpenDecision:
    """The item with its arguments, even if they are stored outside the log."""
    given = item.call.args if item.call is not None else item.wait.show if item.wait else None
    if given is None:
        return item
    if given.blob and given.bytes > EXACT_BYTES:
        return replace(item, is_whole=False)
    return replace(item, arguments=views.value(store, item.run_id, given))


def items_of(
    run_id: str, agent: str, waits: tuple[Waiting, ...], calls: tuple[Call, ...]
) -> list[OpenDecision]:
    """What people can decide about one run."""
    found = [
        OpenDecision(w.wait, run_id, agent, w.id, w.since, wait=w)
        for w in waits
        if w.wait in ("approval", "answer") and not w.decided
    ]
    return found + [
        OpenDecision("doubt", run_id, agent, f"step-{c.step}", c.started_at, call=c) for c in calls
    ]


async def inbox(site: Site, request: Request) -> Response:
    """All open requests, sorted by when they expire."""
    require(request, "inbox")
    cursor = whole_number(request.query_params, "after")
    found = await site.server.call(lambda store: read_inbox(store, limit=ROWS, cursor=cursor))
    now = await site.server.call(lambda store: store.now())
    items = [i for x in found.items for i in items_of(x.run_id, x.agent, x.requests, x.in_doubt)]
    items = await site.server.call(lambda store: [_exact(store, i) for i in items])
    items.sort(key=lambda i: (i.until is None, i.until or 0, i.since))
    did = request.query_params.get("did", "")[:300]
    return page(
        request,
        "inbox.html",
        items=items,
        next=found.next,
        now=now,
        did=did,
        tally=await site.tally(),
    )


async def item(site: Site, request: Request) -> Response:
    """One request, for a phone or a link in a message."""
    require(request, "inbox")
    found, row, state = await _find(site, request)
    now = await site.server.call(lambda store: store.now())
    return page(request, "inbox_item.html", item=found, state=state, row=row, now=now)


async def _find(site: Site, request: Request) -> tuple[OpenDecision, RunRow, RunState]:
    run_id, asked = request.path_params["run_id"], request.path_params["request"]

    def read(store: Store) -> tuple[RunRow, RunState]:
        return views.row_of(store, run_id), views.pending(store, run_id)

    row, state = await site.server.call(read)
    for found in items_of(run_id, row.agent, state.waits, state.in_doubt):
        if found.id == asked:
            return await site.server.call(partial(_exact, item=found)), row, state
    raise NotFound(
        f"run {run_id!r} has no open request {asked!r}; it may have been decided already"
    )


async def edit(site: Site, request: Request) -> Response:
    """The arguments of a call as a form; then what was changed, to be approved."""
    require(request, "approve")
    found, _, _ = await _find(site, request)
    if found.wait is None or not found.wait.tool or not isinstance(found.arguments, dict):
        raise NotFound(
            "only the arguments of a tool call that is waiting for approval can be edited"
        )
    form = await form_of(request) if request.method == "POST" else {}
    shown: dict[str, Any] = {"item": found, "form": form, "fields": edits.fields(found.arguments)}
    args, message = found.arguments, ""
    try:
        args = edits.edited_arguments(found.arguments, form)
        if form and args == found.arguments:
            message = "Nothing was changed. To approve the call as it is, go back."
    except InvalidInput as error:
        message = str(error)
    shown |= {
        "changes": views.compare(found.arguments, args),
        "args": json.dumps(args),
        "message": message,
    }
    return page(request, "inbox_edit.html", 422 if message else 200, **shown)


async def decide(site: Site, request: Request) -> Response:
    """Approve, reject, answer or resolve; then back to the inbox, or to the run."""
    verb = request.path_params["verb"]
    if verb not in _DECIDE:
        raise NotFound(f"unknown decision {verb!r}")
    who = require(request, verb)
    form = await form_of(request)
    run_id, asked = request.path_params["run_id"], request.path_params["request"]
    said = await site.server.call(lambda store: _DECIDE[verb](store, run_id, asked, form, who.name))
    site.server.feed.nudge()
    link = linker(request)
    if form.get("back") == "run":
        return RedirectResponse(link("runs", run_id, did=said), 303)
    return RedirectResponse(link("inbox", did=said), 303)


def _approve(store: Store, run_id: str, request: str, form: dict[str, str], by: str) -> str:
    args = json_of(form["args"], "the arguments") if "args" in form else None
    if args is not None and not isinstance(args, dict):
        raise InvalidInput("the arguments must be a JSON object")
    why, digest = form.get("why", ""), form.get("digest", "")
    control.approve(store, run_id, request, args=args, by=by, why=why, digest=digest)
    how = "Approved" if args is None else "Approved as edited"
    return f"{how}. {run_id} continues as soon as a worker claims it."


def _reject(store: Store, run_id: str, request: str, form: dict[str, str], by: str) -> str:
    control.reject(
        store, run_id, request, by=by, why=form.get("why", ""), digest=form.get("digest", "")
    )
    return f"Rejected. {run_id} continues with the rejection as soon as a worker claims it."


def _answer(store: Store, run_id: str, request: str, form: dict[str, str], by: str) -> str:
    value: Any = form.get("value", "")
    if form.get("as") == "json":
        value = json_of(value, "the answer")
    control.answer(store, run_id, value, request, by=by, why=form.get("why", ""))
    return f"Answered. {run_id} continues as soon as a worker claims it."


def _resolve(store: Store, run_id: str, request: str, form: dict[str, str], by: str) -> str:
    step = request.removeprefix("step-")
    if not step.isdecimal():
        raise NotFound(f"{request!r} is not a call in doubt")
    how, why = form.get("how", ""), form.get("why", "")
    if how == "done":
        result = json_of(form.get("result") or "null", "the result")
        control.resolve(store, run_id, int(step), done=result, by=by, why=why)
    elif how == "failed":
        control.resolve(store, run_id, int(step), failed=why or "it did not happen", by=by, why=why)
    elif how == "retry":
        control.resolve(store, run_id, int(step), retry=True, by=by, why=why)
    else:
        raise InvalidInput("choose what happened: done, failed or retry")
    said = {
        "done": "recorded as done",
        "failed": "recorded as failed",
        "retry": "it will be called again",
    }[how]
    return f"Step {step} of {run_id}: {said}."


_DECIDE: Final = {"approve": _approve, "reject": _reject, "answer": _answer, "resolve": _resolve}


def json_of(text: str, what: str) -> Any:
    """A value that a person typed as JSON; InvalidInput says where it is wrong."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidInput(
            f'{what} is not JSON: {error}; text needs quotes, such as "yes"'
        ) from None
    except RecursionError:
        raise InvalidInput(f"{what} is nested too deeply") from None
