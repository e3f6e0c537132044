"""Subscriptions in both forms of the protocol, over one feed.

- 2026-07-28: `subscriptions/listen`, a request whose response is the stream of notifications;
- 2025-11-25: `resources/subscribe` and `resources/unsubscribe`, notifications on the connection's own stream.

A subscriber names the version it has seen with `?after=`; without it, it is notified of what comes from now on.
Only what the identity can reach is watched; of the rest, `subscriptions/listen` acknowledges nothing.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final

import anyio.to_thread
import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
)
from mcp.shared.exceptions import MCPError

from holdfast.errors import InvalidInput, NotFound
from holdfast.mcp import uris
from holdfast.mcp.feed import Feed, Subject, Watch
from holdfast.mcp.reach import Identity, reachable
from holdfast.store.base import Store

URIS_PER_CONNECTION_MAX: Final = 256
WATCHES_MAX: Final = 10_000


class Subscriptions:
    """The handlers. `key` names a connection: the session id of HTTP, nothing on stdio."""

    def __init__(self, store: Store, feed: Feed) -> None:
        self._store, self._feed = store, feed
        self._connections: dict[str, dict[str, list[Watch]]] = {}
        """Of 2025-11-25 connections: what each watches, by URI."""
        self._listening: set[ListenHandler] = set()

    def close(self) -> None:
        """End all listen streams as the protocol wants it."""
        for handler in list(self._listening):
            handler.close()

    def _interest(self, who: Identity, uri: str) -> dict[Subject, int]:
        """What to watch for a URI, and the version that the subscriber has seen; an error if it cannot be reached.

        Without a version in the URI it is the present one, taken before the subscription is acknowledged.
        """
        address = uris.parse(uri)
        if not address.task:
            return self._feed.marks(_lists(who, address.agent))
        reachable(self._store, who, address.task, address.agent)
        subject = Subject(address.task)
        if address.after is not None:
            return {subject: address.after}
        return self._feed.marks([subject])

    # ── 2026-07-28 ───────────────────────────────────────────────────────────────────────

    async def listen(
        self,
        ctx: ServerRequestContext[Any, Any],
        params: types.SubscriptionsListenRequestParams,
        who: Identity,
    ) -> types.SubscriptionsListenResult:
        """Serve one stream, with a bus of its own: so each has its own versions."""
        asked = params.notifications
        resources = list(dict.fromkeys(asked.resource_subscriptions or ()))
        self._check_count(len(resources))
        bus = InMemorySubscriptionBus()
        found = await anyio.to_thread.run_sync(self._honoured, who, resources)
        watches = [
            _watch(subject, seen, bus, ResourceUpdated(uri))
            for uri, interest in found.items()
            for subject, seen in interest.items()
        ]
        if asked.resources_list_changed:
            marks = await anyio.to_thread.run_sync(self._feed.marks, _lists(who, ""))
            watches += [_watch(x, seen, bus, ResourcesListChanged()) for x, seen in marks.items()]
        honoured = types.SubscriptionFilter(
            resource_subscriptions=list(found) or None,
            resources_list_changed=asked.resources_list_changed,
        )
        handler = ListenHandler(bus)
        self._listening.add(handler)
        for watch in watches:
            self._feed.add(watch)
        try:
            # No await before the handler subscribes to the bus: nothing is published in between.
            return await handler(ctx, params.model_copy(update={"notifications": honoured}))
        finally:
            self._listening.discard(handler)
            self._feed.remove(watches)

    def _honoured(self, who: Identity, resources: list[str]) -> dict[str, dict[Subject, int]]:
        found = {}
        for uri in resources:
            # What is not a resource, or cannot be reached, is left out of the acknowledgement.
            with contextlib.suppress(InvalidInput, NotFound):
                found[uri] = self._interest(who, uri)
        return found

    # ── 2025-11-25 ───────────────────────────────────────────────────────────────────────

    async def subscribe(
        self, ctx: ServerRequestContext[Any, Any], uri: str, who: Identity, key: str
    ) -> None:
        """Notify this connection from now on (or from the version in the URI)."""
        interest = await anyio.to_thread.run_sync(self._interest, who, uri)
        own = self._connections.setdefault(key, {})
        if uri in own:
            return
        self._check_count(len(own) + 1)
        session = ctx.session

        async def notify() -> None:
            await session.send_resource_updated(uri)

        own[uri] = [Watch(subject, seen, notify) for subject, seen in interest.items()]
        for watch in own[uri]:
            self._feed.add(watch)

    def unsubscribe(self, uri: str, key: str) -> None:
        self._feed.remove(self._connections.get(key, {}).pop(uri, ()))

    def forget(self, key: str) -> None:
        """The connection is gone."""
        for watches in self._connections.pop(key, {}).values():
            self._feed.remove(watches)

    def _check_count(self, count: int) -> None:
        if count > URIS_PER_CONNECTION_MAX or self._feed.watches + count > WATCHES_MAX:
            raise MCPError(types.INTERNAL_ERROR, "too many subscriptions; end some of them first")


def _lists(who: Identity, agent: str) -> list[Subject]:
    """The lists of tasks that an identity can watch: of one agent, or of all that it can reach."""
    if agent and not who.reaches(agent):
        raise NotFound(f"unknown agent {agent!r}")
    names = (agent,) if agent else ("",) if who.reaches_all else who.agents
    return [Subject(agent=name) for name in names]


def _watch(
    subject: Subject, version: int, bus: InMemorySubscriptionBus, event: ServerEvent
) -> Watch:
    async def notify() -> None:
        await bus.publish(event)

    return Watch(subject, version, notify)
