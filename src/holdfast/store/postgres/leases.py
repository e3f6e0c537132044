"""Claims and leases in PostgreSQL. A claim whose response was lost is found again by its token.

Leases are renewed over a connection of their own, so that nothing else in this process can delay that.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Final

from holdfast.store.base import MICROSECONDS, NO_PROGRESS, ClaimFilter, RunRow
from holdfast.store.postgres.connections import Connection, Link, Pool, Route
from holdfast.store.postgres.timeline import StoreContext

RENEWAL_SECONDS_MAX: Final = 5.0
UNSETTLED_SECONDS: Final = 0.5
"""How long to wait at a time while others compare what they know with a new timeline."""


class Leases:
    """Claims, renews and releases runs."""

    def __init__(self, route: Route, pool: Pool, schema: str, context: StoreContext) -> None:
        self._route, self._pool, self._schema = route, pool, schema
        self._q, self._wakeups, self._channel, self._fixed_now, self._history = context
        self._link = Link(route, answer_seconds_max=RENEWAL_SECONDS_MAX)

    def close(self) -> None:
        self._link.close()

    def claim(
        self, run_id: str, worker: str, lease_us: int, quota: ClaimFilter | None
    ) -> RunRow | None:
        """See `base.Store.claim`."""
        max_running = -1 if quota is None or quota.max_running is None else quota.max_running
        params = {
            "id": run_id,
            "worker": worker,
            "lease": lease_us,
            "now": self._fixed_now(),
            "token": secrets.randbits(62) + 1,
            "no_progress": list(NO_PROGRESS),
            "max_running": max_running,
        }

        def claim(db: Connection, unsure: bool) -> list[tuple[Any, ...]]:
            if quota is None or max_running < 0:
                found = db.change(self._q["claim"], params)
                return found or (db.rows(self._q["claimed_by"], params) if unsure else [])
            if unsure and (found := db.rows(self._q["claimed_by"], params)):
                return found
            with db.pipeline():
                db.begin()
                names = (f"{self._schema} agent", [quota.agent])
                db.execute(self._q["lock_names"], names)
                done = db.execute(self._q["claim"], params)
                db.execute("COMMIT")
            return done.fetchall()

        found = [RunRow(*row) for row in self._pool.run(claim)]
        for row in found:
            self._history.remember(row.id, epoch=row.epoch)
        return found[0] if found else None

    def claim_due(
        self,
        worker: str,
        lease_us: int,
        limit: int,
        filters: Sequence[ClaimFilter],
        exclude: Sequence[str],
    ) -> list[RunRow]:
        """See `base.Store.claim_due`."""
        limited = sorted({one.agent for one in filters if one.max_running is not None})
        params = {
            "id": None,
            "worker": worker,
            "lease": lease_us,
            "now": self._fixed_now(),
            "token": secrets.randbits(62) + 1,
            "limit": limit,
            "exclude": list(exclude),
            "no_progress": list(NO_PROGRESS),
            "max_running": [-1 if one.max_running is None else one.max_running for one in filters],
            **columns_of(filters),
        }

        def claim(db: Connection, unsure: bool) -> list[tuple[Any, ...]]:
            if unsure and (found := db.rows(self._q["claimed_by"], params)):
                return found
            with db.pipeline():
                db.begin()
                if limited:
                    db.execute(self._q["lock_names"], (f"{self._schema} agent", limited))
                done = db.execute(self._q["claim_due"], params)
                db.execute("COMMIT")
            return done.fetchall()

        if unsettled := self._history.unsettled_seconds(lease_us / MICROSECONDS):
            self._route.closed.wait(min(unsettled, UNSETTLED_SECONDS))
            return []
        rows = [RunRow(*row) for row in self._pool.run(claim)]
        for row in rows:
            self._history.remember(row.id, epoch=row.epoch)
        return rows

    def renew(self, leases: Sequence[tuple[str, int]], lease_us: int) -> set[str]:
        """See `base.Store.renew`."""
        times = {"now": self._fixed_now(), "lease": lease_us}

        def renew(db: Connection, _unsure: bool) -> set[str]:
            params = {
                "ids": [run_id for run_id, _ in leases],
                "epochs": [epoch for _, epoch in leases],
                **times,
            }
            with self._route.clock.reading() as set_clock:
                found = db.change(self._q["renew"], params)
                if found and times["now"] is None:
                    set_clock(found[0][1])
            lost = {run_id for run_id, _ in leases} - {run_id for run_id, _ in found}
            for run_id, epoch in leases:
                if run_id in lost and db.change(
                    self._q["renew_one"], {"id": run_id, "epoch": epoch, **times}
                ):
                    lost.discard(run_id)
            return lost

        return self._link.run(renew)

    def release(self, run_id: str, epoch: int, *, died: bool) -> bool:
        """See `base.Store.release`."""
        params = {
            "id": run_id,
            "epoch": epoch,
            "now": self._fixed_now(),
            "channel": self._channel,
            "forgiven": int(not died),
        }

        def release(db: Connection, unsure: bool) -> bool:
            freed = db.change(self._q["release"], params)
            return bool(freed or (unsure and db.rows(self._q["released"], params)))

        freed = self._pool.run(release)
        self._wakeups.notify(run_id)
        return freed


def columns_of(filters: Sequence[ClaimFilter]) -> dict[str, list[str]]:
    return {
        "agents": [one.agent for one in filters],
        "versions": [one.code_version for one in filters],
    }
