"""Notifications: of every process's commits, in both versions of the protocol, and none without reach."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.subscriptions import ResourcesListChanged, ResourceUpdated
from mcp.shared.exceptions import MCPError

from holdfast import Holdfast, StoreUnavailable
from holdfast.mcp import feed
from holdfast.mcp.reach import Identity
from holdfast.mcp.server import HoldfastServer
from support.mcp_tasks import connected, migration, run, waits

ME = Identity("migration")


def elsewhere(hf: Holdfast, task_id: str) -> None:
    """A commit that this server does not make: as another process does."""
    with Holdfast(hf.store.url) as other:
        other.patch(task_id, {"n": 1})


def test_a_listener_is_notified_of_a_commit_by_another_process(hf: Holdfast) -> None:
    """Protocol 2026-07-28."""
    uri = waits(hf, migration, "m", goal="x")

    async def main() -> Any:
        async with connected(hf.store, ME) as client:
            listening = client.listen(resource_subscriptions=[uri])
            async with listening as changes:
                await anyio.to_thread.run_sync(elsewhere, hf, "m")
                return await anext(aiter(changes))

    assert ResourceUpdated(uri) == run(main())


def test_an_older_client_is_notified_until_it_unsubscribes(hf: Holdfast) -> None:
    """Protocol 2025-11-25."""
    uri = waits(hf, migration, "m", goal="x")
    seen: list[str] = []
    arrived = [anyio.Event(), anyio.Event()]

    def notified(message: Any) -> None:
        if message.method == "notifications/resources/updated":
            arrived[len(seen)].set()
            seen.append(message.params.uri)

    async def main() -> None:
        async with connected(hf.store, ME, "legacy", notified) as client:
            await client.subscribe_resource(uri)
            await client.subscribe_resource(f"{uri}/events")
            await client.unsubscribe_resource(f"{uri}/events")
            await anyio.to_thread.run_sync(elsewhere, hf, "m")
            await arrived[0].wait()
            await client.unsubscribe_resource(uri)
            await client.subscribe_resource("state://agents/migration/tasks")
            await anyio.to_thread.run_sync(elsewhere, hf, "m")
            hf.start(migration, id="new", goal="x")
            await arrived[1].wait()

    run(main())
    assert [uri, "state://agents/migration/tasks"] == seen


def test_a_subscriber_with_an_old_version_is_notified_at_once(hf: Holdfast) -> None:
    """It reconnects and misses nothing that it asks for by version."""
    uri = waits(hf, migration, "m", goal="x")

    async def main() -> Any:
        async with connected(hf.store, ME) as client:
            listening = client.listen(resource_subscriptions=[f"{uri}/events?after=2"])
            async with listening as changes:
                return await anext(aiter(changes))

    assert ResourceUpdated(f"{uri}/events?after=2") == run(main())


def test_what_cannot_be_reached_is_not_acknowledged(hf: Holdfast) -> None:
    """Nor is what is not a resource; the rest of the request is honoured."""
    uri = waits(hf, migration, "m", goal="x")
    mine = Identity("writer")
    hf.start(migration, id="other", goal="x")

    async def main() -> Any:
        async with connected(hf.store, mine) as client:
            asked = [uri, "state://agents/migration/tasks", "file:///etc/passwd", "state://agents"]
            async with client.listen(resource_subscriptions=asked) as changes:
                return changes.honored

    assert ["state://agents"] == run(main()).resource_subscriptions


def test_an_older_client_cannot_subscribe_to_what_it_cannot_reach(hf: Holdfast) -> None:
    """The answer is the one for a task that does not exist."""
    uri = waits(hf, migration, "m", goal="x")

    async def main() -> list[int]:
        codes = []
        async with connected(hf.store, Identity("writer"), "legacy") as client:
            for asked in (
                uri,
                "state://agents/writer/tasks/none",
                "state://agents/migration/tasks",
            ):
                with pytest.raises(MCPError) as refused:
                    await client.subscribe_resource(asked)
                codes.append(refused.value.code)
        return codes

    assert [-32002, -32002, -32002] == run(main())


def test_new_tasks_change_the_list_of_resources(hf: Holdfast) -> None:
    """For clients that ask to be told."""

    async def main() -> Any:
        async with connected(hf.store, ME) as client:
            listening = client.listen(resources_list_changed=True)
            async with listening as changes:
                hf.start(migration, id="new", goal="x")
                return await anext(aiter(changes))

    assert ResourcesListChanged() == run(main())


def test_a_store_that_fails_in_an_unexpected_way_does_not_end_notifications(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is logged and tried again."""
    uri = waits(hf, migration, "m", goal="x")
    heads, failures = hf.store.heads, [RuntimeError("a bug"), StoreUnavailable("away")]
    monkeypatch.setattr(feed, "RETRY_SECONDS", 0.01)

    async def main() -> Any:
        async with (
            connected(hf.store, ME) as client,
            client.listen(resource_subscriptions=[uri]) as changes,
        ):

            def failing(ids: Sequence[str]) -> dict[str, int]:
                if failures:
                    raise failures.pop()
                return heads(ids)

            monkeypatch.setattr(hf.store, "heads", failing)
            await anyio.to_thread.run_sync(elsewhere, hf, "m")
            return await anext(aiter(changes))

    assert ResourceUpdated(uri) == run(main())
    assert [] == failures


def test_a_slow_subscriber_delays_no_other(hf: Holdfast) -> None:
    """Its notifications are merged; those of the others go out."""
    from holdfast.mcp.feed import Feed, Subject, Watch

    waits(hf, migration, "m", goal="x")
    seen: list[str] = []

    async def main() -> None:
        feed, door, quick = Feed(hf.store), anyio.Event(), anyio.Event()
        slow_done = anyio.Event()

        async def slowly() -> None:
            seen.append("slow")
            await door.wait()
            if len(seen) > 2:
                slow_done.set()

        async def quickly() -> None:
            seen.append("quick")
            quick.set()

        subject = Subject("m")
        head = feed.marks([subject])[subject]
        async with feed.running():
            feed.add(Watch(subject, head, slowly))
            feed.add(Watch(subject, head, quickly))
            hf.patch("m", {"n": 1})
            await quick.wait()
            for number in range(3):
                hf.patch("m", {"n": number})
                await feed.wait("m", hf.get("m").seq - 1, 60)
            door.set()
            await slow_done.wait()

    run(main())
    assert 2 == seen.count("slow")


def test_a_client_that_disconnects_is_forgotten(hf: Holdfast) -> None:
    """A stream that has ended costs nothing any more."""
    uri = waits(hf, migration, "m", goal="x")
    server = HoldfastServer(hf.store, lambda _: ME)

    async def main() -> tuple[int, int]:
        async with Client(server.protocol, mode="auto") as client:
            async with client.listen(resource_subscriptions=[uri]):
                during = server.feed.watches
            with anyio.fail_after(60):
                while server.feed.watches:
                    await anyio.lowlevel.checkpoint()
            return during, server.feed.watches

    assert (1, 0) == run(main())
