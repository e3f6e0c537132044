"""The agent of `holdfast demo`: it brings a new colleague on board, in nine steps with four tools.

An ordinary agent file; `holdfast run` runs it like any other. The calendar that it books with is
another process, reached over HTTP, and now and then it answers 503. The only unusual line is the one
that kills this process when the demo asks for it.
"""

import json
import os
import signal
import urllib.error
import urllib.request
from typing import Any

from holdfast import Retry, Run, agent, step, tool

CALENDAR = os.environ.get("HOLDFAST_DEMO_CALENDAR", "http://127.0.0.1:9")
PATIENT = Retry(attempts=5, initial=0.05)


def call(method: str, path: str, body: dict[str, Any] | None = None, key: str = "") -> Any:
    """One request to the calendar."""
    print(f"    [process {os.getpid()}] {method} {path}", flush=True)
    request = urllib.request.Request(  # noqa: S310  (the demo's own calendar)
        CALENDAR + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Idempotency-Key": key},
    )
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310
            return json.load(answer)
    except urllib.error.HTTPError as error:
        error.close()
        raise ConnectionError(f"the calendar answers {error.code} {error.reason}") from None


@step
def read_profile(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "team": "search",
        "email": f"{name.partition(' ')[0].lower()}@example.com",
    }


@step
def choose_buddy(team: str) -> str:
    return {"search": "Grace Hopper"}.get(team, "Alan Turing")


@tool(risk="read", retry=PATIENT)
def find_slot(person: str) -> str:
    found: str = call("GET", f"/slot?of={person}")["slot"]
    return found


@tool(risk="external_action", retry=PATIENT)
def reserve_room(slot: str, idempotency_key: str = "") -> str:
    room: str = call("POST", "/rooms", {"slot": slot}, idempotency_key)["id"]
    return room


@step
def draft_agenda(name: str, buddy: str) -> str:
    return f"Welcome {name}. First coffee with {buddy}, then accounts, then the first small fix."


@tool(risk="external_action", retry=PATIENT)
def send_invite(to: str, slot: str, room: str, agenda: str, idempotency_key: str = "") -> str:
    body = {"to": to, "slot": slot, "room": room, "agenda": agenda}
    invite: str = call("POST", "/invites", body, idempotency_key)["id"]
    if os.environ.get("HOLDFAST_DEMO_KILL"):
        # The worst moment: the invite is sent, and that is not recorded yet.
        print(
            f"    [process {os.getpid()}] the invite is sent; kill -9 before it is recorded",
            flush=True,
        )
        os.kill(os.getpid(), signal.SIGKILL)
    return invite


@step
def draft_welcome(name: str, buddy: str) -> str:
    return f"Please say hello to {name}! {buddy} will show the way."


@tool(risk="external_action", retry=PATIENT)
def post_welcome(text: str, idempotency_key: str = "") -> str:
    post: str = call("POST", "/posts", {"text": text}, idempotency_key)["id"]
    return post


@step
def write_summary(name: str, invite: str, post: str) -> str:
    return f"{name} is on board: invite {invite}, post {post}"


@agent(stages=("research", "booking", "welcome", "complete"))
def onboard(run: Run, name: str) -> str:
    """Nine steps; the sixth sends the invite."""
    run.plan(
        [
            "profile",
            "buddy",
            "slot",
            "room",
            "agenda",
            "invite",
            "welcome text",
            "welcome post",
            "summary",
        ]
    )
    run.stage = "research"
    with run.doing("profile"):
        person = read_profile(name)
    with run.doing("buddy"):
        buddy = run.decide(
            "buddy", choose_buddy(person["team"]), why=f"knows the {person['team']} team best"
        )
    run.stage = "booking"
    with run.doing("slot"):
        run.state.slot = find_slot(person["email"])
    with run.doing("room"):
        run.state.room = reserve_room(run.state.slot)
    with run.doing("agenda"):
        agenda = draft_agenda(name, buddy)
    with run.doing("invite"):
        run.state.invite = send_invite(person["email"], run.state.slot, run.state.room, agenda)
    run.stage = "welcome"
    with run.doing("welcome text"):
        text = draft_welcome(name, buddy)
    with run.doing("welcome post"):
        run.state.post = post_welcome(text)
    with run.doing("summary"):
        summary = write_summary(name, run.state.invite, run.state.post)
    run.stage = "complete"
    return summary
