"""What people do to a run: each action first says what it will do, then does it under the name that is signed in."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from holdfast import control, views
from holdfast.api.problems import problem_of
from holdfast.core.policy import Budget, Limits
from holdfast.core.state import RunState
from holdfast.errors import Conflict, InvalidInput, NotFound, NotNow
from holdfast.store.base import Store
from holdfast.views.state import ranges
from holdfast.web.auth import require
from holdfast.web.pages.inbox import json_of
from holdfast.web.pages.refusals import message_of, ways_on
from holdfast.web.pages.render import linker, page
from holdfast.web.pages.site import Site, form_of, whole_number
from holdfast.web.reader import RunView
from holdfast.words.text import count

Form = dict[str, str]


@dataclass(frozen=True, slots=True)
class Action:
    """One verb: its button, what it will do to this run, and doing it."""

    verb: str
    name: str
    says: Callable[[RunView, Form], list[str]]
    does: Callable[[Store, str, Form, str], str]
    """Returns what was done; a name that starts with `->` is a run to go to."""
    is_dangerous: bool = False
    fields: str = ""
    """The template of its own fields."""


async def ask(site: Site, request: Request) -> Response:
    """What the action will do, and the form that does it."""
    action = _action(request)
    require(request, action.verb)
    view = await site.view(request.path_params["run_id"])
    given = dict(request.query_params)
    known = await site.server.call(
        lambda store: {a.name for a in views.agents(store) if a.is_registered}
    )
    shown = _shown(view, action, given) | {"is_registered": view.row.agent in known}
    return page(request, "action.html", **shown)


def _shown(view: RunView, action: Action, form: Form, message: str = "") -> dict[str, Any]:
    state = view.state
    return {
        "view": view,
        "row": view.row,
        "state": state,
        "action": action,
        "says": action.says(view, form),
        "given": form,
        "message": message,
        "ways": [],
        "state_json": json.dumps(views.to_plain(state.state), indent=2, ensure_ascii=False),
        "step": whole_number(form, "step", state.steps),
        "is_registered": True,
    }


async def act(site: Site, request: Request) -> Response:
    """Do it, and show the run."""
    action = _action(request)
    who = require(request, action.verb)
    form = await form_of(request)
    run_id = request.path_params["run_id"]
    try:
        said = await site.server.call(lambda store: action.does(store, run_id, form, who.name))
    except (InvalidInput, Conflict, NotNow, NotFound) as error:
        view = await site.view(run_id)
        values = _shown(view, action, form, message_of(error)) | {"ways": ways_on(request, error)}
        return page(request, "action.html", problem_of(error).status, **values)
    site.server.feed.nudge()
    link = linker(request)
    if said.startswith("->"):
        return RedirectResponse(
            link("runs", said[2:], did=f"{action.name}: this is the new run."), 303
        )
    return RedirectResponse(link("runs", run_id, did=said), 303)


def _action(request: Request) -> Action:
    found = ACTIONS.get(request.path_params["verb"])
    if found is None:
        raise NotFound(f"unknown action; use one of {', '.join(ACTIONS)}")
    return found


# ── what they will do ────────────────────────────────────────────────────────────────────────


def _running(state: RunState) -> list[str]:
    names = [f"step {c.step}, {c.name}" for c in state.calls if c.status == "running"]
    return [f"In progress now: {'; '.join(names)}. It is not interrupted."] if names else []


def _done(state: RunState) -> str:
    steps = [c.step for c in state.calls if c.status == "done" and c.index >= 0]
    if not steps:
        return "No call is recorded yet."
    if len(steps) == 1:
        return f"Step {steps[0]} is recorded and is not executed again."
    return f"Steps {ranges(steps)} are recorded and are not executed again."


def _next(state: RunState) -> str:
    open_ones = [c for c in state.calls if c.status not in ("done",) and c.index >= 0]
    if open_ones:
        return f"It continues at step {open_ones[0].step}, {open_ones[0].name}."
    return (
        f"It continues after step {state.steps}." if state.steps else "It starts at its first call."
    )


def _says_resume(view: RunView, _: Form) -> list[str]:
    state = view.state
    doubt = [f"step {c.step}, {c.name}" for c in state.in_doubt]
    found = [_next(state), _done(state)]
    if doubt:
        found.append(
            f"In doubt: {'; '.join(doubt)}. Calls in doubt are not repeated unless their tool declares how."
        )
    if state.status in ("waiting", "pending", "running"):
        found.insert(
            0, f"The run is {state.status} and continues by itself; resuming changes nothing."
        )
    return [*found, "A worker that has the agent's code executes it."]


def _says_cancel(view: RunView, _: Form) -> list[str]:
    children = sum(1 for c in view.state.calls if c.child and c.status not in ("done", "failed"))
    found = ["The run ends at its next call. Completed calls are not undone; use Undo for that."]
    found += _running(view.state)
    return found + (
        [f"Its {count(children, 'open child run')} are cancelled too."] if children else []
    )


def _says_pause(view: RunView, _: Form) -> list[str]:
    return ["The run stops at its next call, until it is resumed.", *_running(view.state)]


def _says_undo(view: RunView, _: Form) -> list[str]:
    steps = view.state.to_undo
    if not steps:
        return [
            "There is nothing to undo: no completed call declares how (@tool(undo=…)), or all are undone."
        ]
    return [
        "These calls are undone, newest first, by a worker that has the agent's code:",
        *(f"step {c.step}, {c.name}" for c in steps),
    ]


def _says_signal(view: RunView, _: Form) -> list[str]:
    waits = [name for w in view.state.waits if w.wait == "signal" for name in (w.of or (w.name,))]
    if waits:
        return [f"The run is waiting for: {', '.join(waits)}."]
    return ["The run is not waiting for a signal now. It is kept until the run asks for it."]


def _says_fork(view: RunView, form: Form) -> list[str]:
    step = whole_number(form, "step", view.state.steps) or 0
    following = next((c for c in view.state.calls if c.step > step), None)
    first = (
        f"step {following.step}, {following.name}" if following else f"what comes after step {step}"
    )
    return [
        f"A new run is created. It starts with the recorded results of steps 1 to {step}.",
        f"The first call that will execute is {first}.",
        "This run is not changed.",
    ]


def _says_patch(view: RunView, _: Form) -> list[str]:
    found = [
        "The agent sees the new values when its next call returns; a loop, when its iteration ends."
    ]
    if view.state.status in ("failed", "paused", "quarantined"):
        found.append(_next(view.state))
    return [
        *found,
        f"It is refused if the run continues in the meantime (the state shown is as of event {view.state.seq}).",
    ]


def _says_rerun(_view: RunView, _: Form) -> list[str]:
    return [
        "The code starts at its first line again, with the state kept. Calls are made again, unless the code skips them because of its state."
    ]


# ── doing it ─────────────────────────────────────────────────────────────────────────────────


def _resume(store: Store, run_id: str, form: Form, by: str) -> str:
    limits = Limits(_number(form, "deadline"), _budget(form))
    if limits.deadline is not None or limits.budget is not None:
        control.set_limits(store, run_id, limits, by=by, why=form.get("why", ""))
    control.reopen(store, run_id, by=by, why=form.get("why", ""))
    return "Resumed. A worker will claim it."


def _budget(form: Form) -> Budget | None:
    given = {
        name: _number(form, name)
        for name in ("max_steps", "max_llm_tokens", "max_cost_usd", "max_wall_time")
    }
    kept = {
        k: int(v) if k in ("max_steps", "max_llm_tokens") else v
        for k, v in given.items()
        if v is not None
    }
    return Budget(**kept) if kept else None  # type: ignore[arg-type]


def _number(form: Form, name: str) -> float | None:
    text = form.get(name, "").strip()
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise InvalidInput(f"{name} must be a number, not {text[:50]!r}") from None


def _cancel(store: Store, run_id: str, form: Form, by: str) -> str:
    control.cancel(store, run_id, by=by, why=form.get("why", ""))
    return "Cancellation requested."


def _pause(store: Store, run_id: str, form: Form, by: str) -> str:
    control.pause(store, run_id, by=by, why=form.get("why", ""))
    return "Paused at its next call."


def _undo(store: Store, run_id: str, form: Form, by: str) -> str:
    control.undo(store, run_id, by=by, why=form.get("why", ""))
    return "Undo requested. A worker executes it."


def _rerun(store: Store, run_id: str, form: Form, by: str) -> str:
    control.rerun(store, run_id, by=by, why=form.get("why", ""))
    return "The run starts over, with its state kept."


def _signal(store: Store, run_id: str, form: Form, by: str) -> str:
    name = form.get("name", "").strip()
    value = json_of(form.get("value") or "null", "the value")
    control.signal(store, run_id, name, value, by=by, why=form.get("why", ""))
    return f"Signal {name} sent."


def _fork(store: Store, run_id: str, form: Form, by: str) -> str:
    step = whole_number(form, "step")
    if step is None:
        raise InvalidInput("a fork needs a step")
    new_id = form.get("id", "").strip() or f"{run_id}~fork-{uuid.uuid4().hex[:8]}"
    changes = _changed(store, run_id, step, form) if form.get("state", "").strip() else {}
    control.fork(store, run_id, step, new_id, changes, by=by, why=form.get("why", ""))
    return f"->{new_id}"


def _changed(store: Store, run_id: str, step: int, form: Form) -> dict[str, Any]:
    wanted = json_of(form["state"], "the state")
    if not isinstance(wanted, dict):
        raise InvalidInput("the state must be a JSON object")
    now = views.to_plain(views.at(store, run_id, step).state)
    return {k: v for k, v in wanted.items() if k not in now or now[k] != v}


def _patch(store: Store, run_id: str, form: Form, by: str) -> str:
    wanted = json_of(form.get("state", ""), "the state")
    if not isinstance(wanted, dict):
        raise InvalidInput("the state must be a JSON object")
    seq = whole_number(form, "seq")
    now = views.to_plain(views.get(store, run_id).state)
    changes = {k: v for k, v in wanted.items() if k not in now or now[k] != v}
    gone = [k for k in now if k not in wanted]
    if not changes and not gone:
        raise InvalidInput("nothing was changed")
    goes_on = bool(form.get("resume"))
    why = form.get("why", "")
    control.patch(store, run_id, changes, delete=gone, expected=seq, resume=goes_on, by=by, why=why)
    return "State changed; the run continues." if goes_on else "State changed."


ACTIONS: Final[dict[str, Action]] = {
    a.verb: a
    for a in (
        Action("resume", "Resume", _says_resume, _resume, fields="limits"),
        Action("pause", "Pause", _says_pause, _pause),
        Action("cancel", "Cancel", _says_cancel, _cancel, is_dangerous=True),
        Action("fork", "Fork", _says_fork, _fork, fields="fork"),
        Action("patch", "Edit state", _says_patch, _patch, fields="patch"),
        Action("signal", "Send a signal", _says_signal, _signal, fields="signal"),
        Action("undo", "Undo", _says_undo, _undo, is_dangerous=True),
        Action("rerun", "Start over", _says_rerun, _rerun, is_dangerous=True),
    )
}
