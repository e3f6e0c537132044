"""What can be read of a server's store, with the names of `Store`: so that the command line looks at a server's runs with the
same code. Logs are verified here again.

Nothing is written through this: decisions are requests to the server, which checks the role and records who decided.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NoReturn

from msgspec.structs import replace

from holdfast.client import calls
from holdfast.client.sync import Client
from holdfast.core.log import Record
from holdfast.errors import InvalidInput, NoSuchRun, NotFound
from holdfast.store.base import Filter, RunRow, Schedule, Snapshot


class RemoteStore:
    """The reading part of a `Store`."""

    def __init__(self, client: Client) -> None:
        self.client_of_server = client
        self.url = client.url

    def __getattr__(self, name: str) -> NoReturn:
        raise InvalidInput(
            f"this is not possible through a server ({name}); run it where the database is, with the database's URL"
        )

    def now(self) -> int:
        return time.time_ns() // 1000

    def get(self, run_id: str) -> RunRow | None:
        try:
            found = self.client_of_server.row(run_id)
        except NoSuchRun:
            return None
        # `interrupted` is how a running row is shown; the reader finds that out by itself.
        as_stored = "running" if found.status == "interrupted" else found.status
        return replace(found, status=as_stored)

    def read(self, run_id: str, *, after: int = -1, limit: int | None = None) -> list[Record]:
        found: list[Record] = []
        while limit is None or len(found) < limit:
            left = calls.PAGE if limit is None else limit - len(found)
            try:
                page = self.client_of_server.do(calls.records(run_id, after, left))
            except NoSuchRun:
                return []
            if not page:
                break
            found += page
            after = page[-1].seq
        return found

    def head(self, run_id: str) -> int:
        return self.heads([run_id]).get(run_id, -1)

    def heads(self, run_ids: Sequence[str]) -> dict[str, int]:
        found: dict[str, int] = {}
        for run_id in run_ids:
            try:
                found[run_id] = self.client_of_server.do(calls.head(run_id))
            except NoSuchRun:
                continue
        return found

    def runs(
        self, filter: Filter = Filter(), *, limit: int = 50, cursor: int | None = None
    ) -> list[RunRow]:
        found: list[RunRow] = []
        while len(found) < limit:
            page = self.client_of_server.runs(
                status=filter.status,
                agent=filter.agent,
                parent=filter.parent,
                limit=min(calls.PAGE, limit - len(found)),
                cursor=cursor,
            )
            found += page
            if not page:
                break
            cursor = page[-1].cursor
        return found

    def blob(self, run_id: str, hash: str) -> bytes | None:
        try:
            return self.client_of_server.do(calls.large_value(run_id, hash))
        except NotFound:
            return None

    @property
    def snapshots(self) -> NoSnapshots:
        return NoSnapshots()

    @property
    def schedules(self) -> RemoteSchedules:
        return RemoteSchedules(self.client_of_server)

    def close(self) -> None:
        self.client_of_server.close()


class NoSnapshots:
    """A cache: a reader of a server has none."""

    def newest(self, run_id: str, **_: Any) -> Snapshot | None:
        """There is none."""

    def save(self, run_id: str, snapshot: Snapshot, **_: Any) -> None:
        """Nothing is kept."""


class RemoteSchedules:
    """The reading part of `Schedules`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def all(self) -> list[Schedule]:
        return self._client.schedules()

    def delete(self, schedule_id: str) -> bool:
        self._client.unschedule(schedule_id)
        return True
