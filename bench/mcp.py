"""Reads, patches and notifications over MCP, compared with a bare SDK server that keeps its state in a dict.

Both servers are low-level ones of the same SDK, with the same client in the same process, so that what differs is
the state layer: a dict forgets everything with its process, checks no version against other processes and notifies
only its own clients. A notification is timed from the call that changes the task to its arrival at a subscriber; for
Holdfast also when another process makes the change, which the dict cannot do.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import mcp_types as types
from mcp import Client
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated

from bench.harness import Report, Series, folder, postgres
from holdfast import Holdfast, Run, RunWaiting, agent
from holdfast.mcp.reach import Identity
from holdfast.mcp.server import HoldfastServer
from holdfast.mcp.tools import TOOLS

LATENCY: Final = "notification"


@agent
def shared(run: Run) -> str:
    run.plan(["Check", "Move", "Verify"])
    run.fact("service", "billing", source="user")
    return str(run.wait_for("finished"))


def main(*, rounds: int, quick: bool, databases: Sequence[str], results: Path) -> None:
    """Print and keep the table."""
    report = Report("mcp", rounds, results)
    count = 20 if quick else 500
    if "sqlite" in databases:
        with folder() as here:
            _measure(report, "SQLite", str(here / "h.db"), count)
    if "postgres" in databases:
        with postgres() as url:
            if url is not None:
                _measure(report, "PostgreSQL", url, count)
    report.show()


def _measure(report: Report, database: str, url: str, count: int) -> None:
    figures = ("reads", "patches", LATENCY)
    ours = {name: Series("holdfast", _unit(name)) for name in figures}
    theirs = {name: Series("dict", _unit(name)) for name in figures}
    foreign: list[float] = []
    with Holdfast(url, agents=[shared]) as hf:
        for number in range(report.rounds):
            task = f"t{number}"  # a task per round: a log of the usual length
            _start(hf, task)
            for series, server in ((ours, _holdfast(hf)), (theirs, BareServer(task).server)):
                for name, value in asyncio.run(_figures(server, task, count)).items():
                    series[name].values.append(value)
            foreign += asyncio.run(_from_elsewhere(hf, url, task, max(5, count // 50)))
    for name in ("reads", "patches"):
        report.add(f"{database}: {name}", ours[name], theirs[name])
    said = f"{ours[LATENCY].median:.1f} ms, dict {theirs[LATENCY].median:.1f} ms"
    report.fact(f"{database}: from a patch to its notification", said)
    ms = statistics.median(foreign)
    report.fact(f"{database}: notification of another process's commit", f"{ms:.0f} ms (median)")


def _start(hf: Holdfast, task: str) -> None:
    try:
        hf.run(shared, id=task)
    except RunWaiting:
        pass  # for the signal: a task to work on


def _uri(task: str) -> str:
    return f"state://agents/shared/tasks/{task}"


def _unit(name: str) -> str:
    return "ms" if name == LATENCY else "/s"


def _holdfast(hf: Holdfast) -> Server[Any]:
    return HoldfastServer(hf.store, lambda _: Identity("shared")).protocol


async def _figures(server: Server[Any], task: str, count: int) -> dict[str, float]:
    async with Client(server, cache=None) as client:
        uri = _uri(task)
        version = await _version(client, uri)
        reads = await _rate(count, lambda _: client.read_resource(uri))

        async def patch(number: int) -> None:
            nonlocal version
            done = await client.call_tool("patch_task", _patch(task, version, number))
            assert not done.is_error, done.content
            version = (done.structured_content or {})["version"]

        patches = await _rate(count, patch)
        async with client.listen(resource_subscriptions=[uri]) as changes:
            events = aiter(changes)
            took = []
            for number in range(max(5, count // 10)):
                began = time.perf_counter()
                await patch(number)
                await anext(events)
                took.append(time.perf_counter() - began)
    return {"reads": reads, "patches": patches, LATENCY: 1000 * statistics.median(took)}


async def _version(client: Client, uri: str) -> int:
    found = await client.read_resource(uri)
    return int(json.loads(found.contents[0].text)["version"])  # type: ignore[union-attr]


def _patch(task: str, version: int, number: int) -> dict[str, Any]:
    return {"task_id": task, "expected_version": version, "state": {"n": number}}


async def _rate(count: int, work: Callable[[int], Awaitable[object]]) -> float:
    began = time.perf_counter()
    for number in range(count):
        await work(number)
    return count / (time.perf_counter() - began)


_ELSEWHERE: Final = """
import sys, time
from holdfast import Holdfast
with Holdfast(sys.argv[1]) as hf:
    for line in sys.stdin:
        hf.patch(sys.argv[2], {"n": 1})
        print(time.time(), flush=True)
"""


async def _from_elsewhere(hf: Holdfast, url: str, task: str, count: int) -> list[float]:
    """Milliseconds from the acknowledged commit of another process to the notification here."""
    words = [sys.executable, "-c", _ELSEWHERE, url, task]
    process = await asyncio.create_subprocess_exec(
        *words, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    took = []
    async with (
        Client(_holdfast(hf)) as client,
        client.listen(resource_subscriptions=[_uri(task)]) as changes,
    ):
        events = aiter(changes)
        for _ in range(count):
            process.stdin.write(b"\n")
            await anext(events)
            arrived = time.time()
            committed = float(await process.stdout.readline())
            took.append(max(0.0, 1000 * (arrived - committed)))
    process.stdin.close()
    await process.wait()
    return took


class BareServer:
    """What the SDK alone gives: a dict, a version, a bus."""

    def __init__(self, task: str) -> None:
        self.uri = _uri(task)
        self.task: dict[str, Any] = {
            "task_id": task,
            "version": 0,
            "state": {},
            "plan": ["Check", "Move", "Verify"],
            "status": "waiting",
            "uri": self.uri,
            "is_new": True,
            "known_facts": [{"key": "service", "value": "billing", "source": "user"}],
        }
        self.bus = InMemorySubscriptionBus()
        self.server: Server[Any] = Server(
            "bare",
            on_read_resource=self.read,
            on_list_tools=self.tools,
            on_call_tool=self.patch,
            on_subscriptions_listen=ListenHandler(self.bus),
        )

    async def tools(self, *_: Any) -> types.ListToolsResult:
        found = next(tool for tool in TOOLS if tool.name == "patch_task")
        return types.ListToolsResult(tools=[found.described()])

    async def read(
        self, _: Any, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        text = types.TextResourceContents(uri=params.uri, text=json.dumps(self.task))
        return types.ReadResourceResult(contents=[text])

    async def patch(self, _: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        given = params.arguments or {}
        if given["expected_version"] != self.task["version"]:
            return types.CallToolResult(content=[], is_error=True)
        self.task["state"] |= given["state"]
        self.task["version"] += 1
        await self.bus.publish(ResourceUpdated(self.uri))
        data = {k: self.task[k] for k in ("task_id", "version", "status", "uri", "is_new")}
        text = types.TextContent(text=json.dumps(data))
        return types.CallToolResult(content=[text], structured_content=data)
