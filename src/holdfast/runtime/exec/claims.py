"""Create runs and claim them for this process; release those that are not executed after all.

Not here: what happens to a claimed run (`sessions.py`, `engine.py`), and when a worker claims one (`worker.py`).
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Generator, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core import events as e
from holdfast.core import log
from holdfast.core.log import Head, Record
from holdfast.core.policy import NO_LIMITS, Limits
from holdfast.errors import LogDamaged, NotFound, RunWaiting, StoreError
from holdfast.runtime.declare.agent_spec import AgentSpec
from holdfast.runtime.exec.threads import Threads, uninterrupted
from holdfast.runtime.log import lineage
from holdfast.runtime.log.clock import elapsed
from holdfast.runtime.log.session import Session
from holdfast.store.base import ClaimFilter, Creation, Filter, NewRun, RunRow, Store
from holdfast.store.process import has_died_here, worker_name
from holdfast.waiting import WaitingFor
from holdfast.words.waiting import run_busy, run_waiting


class ClaimedRun(Struct):
    """A run that this process may execute now."""

    row: RunRow
    spec: AgentSpec
    requested_at: float
    """When the claim was sent, by `elapsed`: the lease lasts at least from then."""
    head: Head | None = None
    records: Sequence[Record] | None = None
    unchecked: bool = False
    """It was claimed because it was due, without a check whether it may be resumed."""
    parent: Session | None = None
    """The run in whose call it is to be executed."""
    unwanted: threading.Event | None = None
    """Set when the caller that wanted it executed has gone."""


class PendingRun:
    """A run that is being created. Wait for it or await it: the run, claimed if it is new and `claim` was given;
    else its row as it is."""

    __slots__ = ("_claims", "_creation", "_head", "_parent", "_requested_at", "_spec", "_ticket")

    def __init__(
        self,
        claims: Claims,
        creation: Creation,
        spec: AgentSpec,
        requested_at: float,
        head: Head,
        parent: Session | None,
    ) -> None:
        self._claims, self._creation, self._spec = claims, creation, spec
        self._requested_at, self._head, self._parent = requested_at, head, parent
        self._ticket = claims.store.create(creation)

    def wait(self) -> ClaimedRun | RunRow:
        self._ticket.wait()
        return self._made()

    def __await__(self) -> Generator[Any, None, ClaimedRun | RunRow]:
        return self._awaited().__await__()

    async def _awaited(self) -> ClaimedRun | RunRow:
        import asyncio

        try:
            await self._ticket
        except asyncio.CancelledError:  # by now it has been created, or not
            if self._creation.row is not None and self._creation.is_new:
                release = partial(self._claims.release, self._made())
                await uninterrupted(release, threads=self._claims.threads)
            raise
        return self._made()

    def _made(self) -> ClaimedRun | RunRow:
        creation = self._creation
        row, is_new = creation.made
        if not (is_new and creation.worker):
            return row
        return ClaimedRun(
            row,
            self._spec,
            self._requested_at,
            self._head,
            creation.records,
            parent=self._parent,
        )


class Claims:
    """Creates and claims runs of one store, in the name of this process."""

    def __init__(self, store: Store, lease_us: int, threads: Threads) -> None:
        self.store, self.lease_us, self.threads = store, lease_us, threads
        self.agents: dict[str, AgentSpec] = {}
        """The agents that this process knows, by name."""
        self._worker = (0, "")

    @property
    def worker(self) -> str:
        """A name that no other process has had: pods and hosts reuse theirs, and a fork inherits ours."""
        if self._worker[0] != os.getpid():
            self._worker = (os.getpid(), worker_name())
        return self._worker[1]

    def register(self, spec: AgentSpec) -> None:
        """Remember an agent, so that its runs can be resumed by their id alone."""
        self.agents[spec.name] = spec

    def agent_of(self, row: RunRow) -> AgentSpec:
        spec = self.agents.get(row.agent)
        if spec is None:
            raise NotFound(
                f"run {row.id!r} belongs to agent {row.agent!r}, which is unknown to this process; "
                f"pass it with Holdfast(agents=[…]), or call hf.run({row.agent}, id={row.id!r}, …)"
            )
        return spec

    def create(
        self,
        spec: AgentSpec,
        run_id: str,
        kwargs: Mapping[str, Any],
        *,
        args: tuple[Any, ...] = (),
        parent: Session | None = None,
        claim: bool = True,
        priority: int = 0,
        limits: Limits = NO_LIMITS,
    ) -> PendingRun:
        """Create the run, to wait for or to await. With `parent` it is a child of that run."""
        requested_at = elapsed()
        log.check_run_id(run_id)
        self.register(spec)
        data, digest = spec.encode_input(args, kwargs)
        value, blobs = log.wrap(data)
        now = self.store.now()
        policy, inherited = lineage.at_creation(spec, now, parent, limits)
        parent_id = "" if parent is None else parent.run_id
        created = e.RunCreated(
            run_id=run_id,
            agent=spec.name,
            input=value,
            code_version=spec.version,
            deadline_at=policy.deadline_at,
            budget=dict(policy.budget),
            stages=spec.stages,
            parent=parent_id,
            loop=spec.body is not None,
            policy=inherited,
        )
        head, records = log.seal(log.origin(run_id), [created], epoch=1 if claim else 0, time=now)
        creation = Creation(
            NewRun(run_id, spec.name, digest, spec.version, parent_id, priority),
            records,
            blobs=blobs,
            worker=self.worker if claim else "",
            lease_us=self.lease_us if claim else 0,
        )
        return PendingRun(self, creation, spec, requested_at, head, parent)

    def claim(self, row: RunRow, spec: AgentSpec, quota: ClaimFilter | None = None) -> ClaimedRun:
        """Claim a run that has not ended, or raise why that is impossible. With `quota`, only if there is
        room for it."""
        if row.status == "paused":
            raise run_waiting(row.id, WaitingFor("resume"))
        if row.status == "quarantined":
            raise run_waiting(row.id, *_reasons(self.store, row))
        requested_at = elapsed()
        claim = partial(
            self.store.claim, row.id, worker=self.worker, lease_us=self.lease_us, quota=quota
        )
        claimed = claim()
        now = self.store.get(row.id) if claimed is None else None
        if now is not None and self._release_if_dead(now):
            claimed = claim()
        if claimed is None:
            if quota is not None and now is not None and not now.is_live(self.store.now()):
                room = WaitingFor("room", spec.name, limit=spec.max_running or 0)
                raise run_waiting(row.id, room)
            owner = now.owner if now else "another worker"
            raise run_busy(row.id, owner, f"hf.result({row.id!r}) blocks until it ends")
        return ClaimedRun(claimed, spec, requested_at)

    def claim_due(
        self,
        agents: Mapping[str, AgentSpec],
        filters: Sequence[ClaimFilter],
        *,
        limit: int,
        exclude: Sequence[str],
    ) -> list[ClaimedRun]:
        """Claim up to `limit` runs of these agents that are due, but none of `exclude`."""
        requested_at = elapsed()
        rows = self.store.claim_due(
            worker=self.worker,
            lease_us=self.lease_us,
            limit=limit,
            filters=filters,
            exclude=exclude,
        )
        return [ClaimedRun(row, agents[row.agent], requested_at, unchecked=True) for row in rows]

    def claim_within_limits(self, row: RunRow, spec: AgentSpec) -> ClaimedRun | None:
        """Claim a run as a worker would: within the limits of its agent. None if that is impossible."""
        quota = ClaimFilter(spec.name, spec.version, spec.max_running)
        with contextlib.suppress(RunWaiting):
            return replace(self.claim(row, spec, quota), unchecked=True)
        return None

    def release(self, claimed: object) -> None:
        """Release a run that was claimed and is not executed after all; anything else is left alone."""
        if isinstance(claimed, ClaimedRun):
            with contextlib.suppress(StoreError):  # then the lease expires
                self.store.release(claimed.row.id, claimed.row.epoch)

    def release_dead(self) -> None:
        """End the leases of processes that have died on this machine, among the newest runs."""
        rows = self.store.runs(Filter(status="running"), limit=1000)
        dead = {owner for owner in {row.owner for row in rows} if has_died_here(owner)}
        for row in rows:
            if row.owner in dead:
                self._release_if_dead(row)

    def _release_if_dead(self, row: RunRow) -> bool:
        """End the lease of a process that has died on this machine. By its epoch: if another process claimed the
        run meanwhile, nothing happens."""
        if not row.is_live(self.store.now()) or not has_died_here(row.owner):
            return False
        return self.store.release(row.id, row.epoch, died=True)


def _reasons(store: Store, row: RunRow) -> Sequence[WaitingFor]:
    """Why a run is quarantined, as recorded. The log of one that was quarantined because of its log does not say."""
    from holdfast.store.brief import read_brief  # here, as few runs are quarantined

    with contextlib.suppress(LogDamaged):
        state = read_brief(store, row.id)
        if state.status == "quarantined":
            return state.waiting
    return (WaitingFor("quarantine", reason=row.waiting_for),)
