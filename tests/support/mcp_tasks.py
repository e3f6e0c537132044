"""Agents whose tasks are shared over MCP, and clients that talk to the server: in this process, and from others.

python mcp_tasks.py writer|reader URL TASK_ID MODE     (what the two agents of a hand-over do)
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import anyio
from mcp import Client, StdioServerParameters
from mcp.shared.exceptions import MCPDeprecationWarning

from holdfast import Holdfast, Run, agent, step, tool
from holdfast.errors import RunFailed, RunWaiting
from holdfast.mcp.reach import Identity
from holdfast.mcp.server import HoldfastServer
from holdfast.store.base import Store
from support.waiting import PATIENCE_SECONDS

MODES = ("auto", "legacy")
HOLDFAST = Path(sys.executable).parent / "holdfast"
T = TypeVar("T")


@step
def look(service: str) -> str:
    return f"{service} runs on the old cluster"


@tool(risk="external_action")
def move(service: str) -> str:
    return f"{service} moved"


@tool(redact=("password",))
def log_in(user: str, password: str) -> str:
    return f"{user} is logged in"


@agent
def migration(run: Run, goal: str) -> dict[str, Any]:
    """A task that outside agents work on: it ends when one of them says so."""
    run.plan(["Check status", "Collect config", "Apply changes"])
    run.fact("service", look("billing"), source="user")
    run.ask_later("Which namespace?")
    run.messages.add("user", goal)
    run.artifact("status.log", b"all is well\n" * 3, type="tool_result.logs", summary="status")
    outcome = run.wait_for("finished")
    return {"outcome": outcome, "namespace": run.state.namespace}


@agent(approve=("external_action",))
def gated(run: Run) -> str:
    """Needs a person's approval."""
    return move("billing")


@agent
def asking(run: Run) -> str:
    return str(run.ask("Which colour?", options=["red", "blue"]))


@agent
def wordy(run: Run) -> bool:
    return bool(run.approve("really? " * 10_000))


@agent
def secretive(run: Run) -> str:
    log_in("sam", password="hunter2-canary")
    return str(run.wait_for("finished"))


@agent
def failing(run: Run, file: str) -> str:
    if not Path(file).exists():
        raise FileNotFoundError(file)
    return "found"


AGENTS = (migration, gated, asking, wordy, secretive, failing)


def waits(hf: Holdfast, function: Callable[..., Any], task_id: str, **arguments: Any) -> str:
    """Start a task and execute it until it is suspended or fails."""
    with suppress(RunWaiting, RunFailed):
        hf.run(function, id=task_id, **arguments)
    return f"state://agents/{function.__name__}/tasks/{task_id}"


# ── clients in this process ──────────────────────────────────────────────────────────────────


@asynccontextmanager
async def connected(
    store: Store, who: Identity, mode: str = "auto", notified: Callable[[Any], None] | None = None
) -> AsyncIterator[Client]:
    """A client of a server in this process."""

    async def handle(message: Any) -> None:
        if notified is not None:
            notified(message)

    server = HoldfastServer(store, lambda _: who)
    async with Client(server.protocol, mode=mode, message_handler=handle) as client:
        yield client


def talk(
    store: Store, who: Identity, say: Callable[[Client], Awaitable[T]], mode: str = "auto"
) -> T:
    """What comes of a talk with a server in this process."""

    async def main() -> T:
        async with connected(store, who, mode) as client:
            return await say(client)

    return run(main())


def run(main: Coroutine[Any, Any, T]) -> T:
    with warnings.catch_warnings():
        # What is deprecated in the newer protocol is what older clients use.
        warnings.simplefilter("ignore", MCPDeprecationWarning)
        return asyncio.run(asyncio.wait_for(main, PATIENCE_SECONDS))


def call(store: Store, who: Identity, name: str, /, mode: str = "auto", **args: Any) -> Any:
    """One tool call: its structured content."""

    async def say(client: Client) -> Any:
        done = await client.call_tool(name, args)
        assert not done.is_error, done.structured_content
        return done.structured_content

    return talk(store, who, say, mode)


def refusal(store: Store, who: Identity, name: str, /, **args: Any) -> Any:
    """What a tool call that is refused says."""

    async def say(client: Client) -> Any:
        done = await client.call_tool(name, args)
        assert done.is_error, done.structured_content
        return done.structured_content

    return talk(store, who, say)


def read(store: Store, who: Identity, uri: str) -> Any:
    """A resource, as JSON."""

    async def say(client: Client) -> Any:
        found = await client.read_resource(uri)
        return json.loads(found.contents[0].text)  # type: ignore[union-attr]

    return talk(store, who, say)


# ── agents in other processes ────────────────────────────────────────────────────────────────


def stdio(url: str, name: str, *options: str) -> StdioServerParameters:
    """`holdfast mcp` as a client starts it."""
    words = ["mcp", "--as", name, "--allow-agent", "migration", "--db", url, *options]
    kept = ("PYTHONPYCACHEPREFIX", "PATH", "TMPDIR", "HOME")
    env = {name: os.environ[name] for name in kept if name in os.environ}
    return StdioServerParameters(command=str(HOLDFAST), args=words, env=env)


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


async def write(url: str, task_id: str, mode: str) -> None:
    """The first agent: writes progress, hands the task over, and hangs until it is killed."""
    async with Client(stdio(url, "researcher"), mode=mode) as client:
        task = await _called(client, "get_task", task_id=task_id)
        plan = [{"name": "Check status", "status": "done"}, "Collect config", "Apply changes"]
        facts = [{"key": "cluster", "value": "eu-2", "source": "kubectl"}]
        done = await _called(
            client,
            "patch_task",
            task_id=task_id,
            expected_version=task["version"],
            plan=plan,
            facts=facts,
        )
        note = "Config is next. Use the namespace billing."
        await _called(client, "hand_over_task", task_id=task_id, to_agent="writer", note=note)
        say(wrote=done["version"])
        await anyio.sleep_forever()


async def take_over(url: str, task_id: str, mode: str) -> None:
    """The second agent: is notified, reads, meets a conflict, continues and completes the task."""
    uri = f"state://agents/migration/tasks/{task_id}"
    updated = anyio.Event()

    async def handle(message: Any) -> None:
        if getattr(message, "method", "") == "notifications/resources/updated":
            updated.set()

    async with Client(stdio(url, "writer"), mode=mode, message_handler=handle) as client:
        before = await _called(client, "get_task", task_id=task_id)
        if mode == "legacy":
            await client.subscribe_resource(uri)
            say(listening=client.protocol_version)
            await updated.wait()
        else:
            async with client.listen(resource_subscriptions=[uri]) as changes:
                say(listening=client.protocol_version)
                async for _ in changes:
                    break
        say(notified=True)
        await anyio.to_thread.run_sync(sys.stdin.readline)  # until the first agent is dead
        due = await _called(client, "list_due", handed_over_to_me=True)
        task = json.loads((await client.read_resource(uri)).contents[0].text)  # type: ignore[union-attr]
        change = {"state": {"namespace": "billing"}, "close_questions": ["Which namespace?"]}
        refused = await client.call_tool(
            "patch_task", {"task_id": task_id, "expected_version": before["version"], **change}
        )
        conflict: Any = refused.structured_content
        await _called(
            client,
            "patch_task",
            task_id=task_id,
            expected_version=conflict["current_version"],
            **change,
        )
        version = (
            await _called(client, "signal_task", task_id=task_id, name="finished", value="moved")
        )["version"]
        while task["status"] != "completed":
            found = await _called(client, "wait_for_change", task_id=task_id, after_version=version)
            version = found["version"]
            task = {**task, "status": found["status"]}
        after = await _called(client, "get_task", task_id=task_id)
        say(due=due["tasks"], read=task, conflict=conflict, after=after)


async def _called(client: Client, name: str, /, **args: Any) -> Any:
    done = await client.call_tool(name, args)
    assert not done.is_error, done.structured_content
    return done.structured_content


if __name__ == "__main__":
    role, *words = sys.argv[1:]
    run({"writer": write, "reader": take_over}[role](*words))
