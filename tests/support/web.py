"""Agents and credentials for tests of the server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from httpx2 import Response
from starlette.testclient import TestClient

from holdfast import InDoubt, Run, agent, step, tool
from holdfast.api.operations import Operation
from holdfast.client import AsyncClient, AsyncRemoteRun
from holdfast.control.roles import ROLES
from holdfast.web.credentials import Credential, digest_of
from holdfast.web.server import bind, config
from support.waiting import eventually

TOKENS = {role: f"hf_test-token-of-{role}" for role in ROLES}
NAMES = {"viewer": "vic", "approver": "ann", "operator": "olga", "admin": "ada"}


def credentials() -> tuple[Credential, ...]:
    """One credential for each role."""
    return tuple(Credential(NAMES[r], r, digest_of(TOKENS[r]), 0) for r in ROLES)


@step
def look(n: int) -> int:
    return n + 1


@tool(risk="external_action")
def send(to: str) -> str:
    return f"sent to {to}"


@agent
def job(run: Run, n: int = 1) -> int:
    """Adds one."""
    run.state.seen = look(n)
    return n + 1


@agent(approve=("external_action",))
def mail(run: Run, to: str) -> str:
    return send(to)


@agent
def quiz(run: Run) -> Any:
    return run.ask("Which one?", options=["a", "b"])


@agent
def patient(run: Run) -> Any:
    run.artifact("report.txt", b"0123456789" * 10, type="text/plain")
    run.state.asked = True
    return run.wait_for("go")


@tool
def act(n: int) -> int:
    """A call that may be in doubt."""
    raise InDoubt("the answer was lost")


@agent
def doubtful(run: Run, n: int = 1) -> int:
    look(n)
    return act(n)


@agent
def broken(run: Run) -> int:
    raise ValueError("it does not work")


@agent(stages=("one", "two"))
def talker(run: Run, text: str = "x") -> dict[str, Any]:
    """Fills every part of a state."""
    run.stage = "one"
    run.plan(["first", "second"])
    with run.doing("first"):
        run.state.seen = look(1)
    run.decide("route", "left", why="it is shorter", options=["left", "right"])
    run.fact("colour", "green", source="eyes")
    run.messages.add("user", text)
    run.note("n", {"deep": [1, 2, {"$blob": "not one"}]})
    run.state.large = "y" * 100_000
    run.stage = "two"
    return {"large": "z" * 100_000}


AGENTS = [job, mail, quiz, patient, doubtful, broken, talker]


EXAMPLES: dict[str, dict[str, Any]] = {
    "start": {"agent": "job"},
    "answer": {"value": "a"},
    "signal": {"name": "go"},
    "resolve": {"how": "retry"},
    "fork": {"step": 1},
    "gc": {"keep": 100},
    "bulk": {"verb": "cancel", "q": "agent:none"},
    "record": {"agent": "graph", "id": "recorded"},
    "put_item": {"collection": "notes", "key": "k", "value": 1},
}
"""Bodies that are valid."""
_ITEM = {"collection": "notes", "key": "k"}
QUERIES = {"at": {"step": 0}, "diff": {"a": 0, "b": 0}, "item": _ITEM, "delete_item": _ITEM}


def call(client: TestClient, op: Operation, body: Any, headers: dict[str, str]) -> Response:
    """One request of an operation; its parts name things that do not exist."""
    url = op.url(**dict.fromkeys(op.parameters, "none"))
    return client.request(op.method, url, json=body, params=QUERIES.get(op.verb), headers=headers)


# ── a real server ────────────────────────────────────────────────────────────────────────────


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """The address of an application that a real server serves, in a thread."""
    listening = bind("127.0.0.1", 0)
    server = uvicorn.Server(config(app))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        eventually(lambda: server.started, "the start of the server")
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)
        listening.close()


class Blocking:
    """An AsyncClient that is used from ordinary code: every method runs on a loop of its own until it is done."""

    def __init__(self, url: str, token: str) -> None:
        self._runner = asyncio.Runner()
        self._client = self._runner.run(self._open(url, token))

    async def _open(self, url: str, token: str) -> AsyncClient:
        return AsyncClient(url, token=token)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(*args: Any, **keywords: Any) -> Any:
            found = method(*args, **keywords)
            if name == "stream":
                return iter(self._runner.run(self._collected(found)))
            done = self._runner.run(found)
            return BlockingRun(self, done.id) if isinstance(done, AsyncRemoteRun) else done

        return call

    async def _collected(self, value: Any) -> list[Any]:
        return [one async for one in value]

    def close(self) -> None:
        self._runner.run(self._client.close())
        self._runner.close()


class BlockingRun:
    def __init__(self, client: Blocking, run_id: str) -> None:
        self._client, self.id = client, run_id

    @property
    def status(self) -> str:
        found: str = self._client.row(self.id).status
        return found

    def result(self, *, timeout: float | None = None) -> Any:
        return self._client.result(self.id, timeout=timeout)
