"""The client for code on an event loop. The same without one is `sync.py`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar

import httpx2

from holdfast import bundle, views
from holdfast.api.documents import Whoami
from holdfast.bulk import BulkReport, BulkVerb
from holdfast.client import calls, flows
from holdfast.client.calls import Call
from holdfast.client.flows import Flow
from holdfast.control.patch import Patch
from holdfast.core.events import Event
from holdfast.core.log import Record
from holdfast.core.patch import StatePatch
from holdfast.core.policy import Budget
from holdfast.core.state import RunState
from holdfast.doctor import Diagnosis
from holdfast.errors import InvalidInput
from holdfast.gc import GcResult
from holdfast.store.base import RunRow, Schedule

T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)


class AsyncRemoteRun(Generic[R_co]):
    """A run on the server."""

    def __init__(self, client: AsyncClient, run_id: str) -> None:
        self._client = client
        self.id = run_id

    def __repr__(self) -> str:
        return f"<run {self.id!r}>"

    async def status(self) -> str:
        """pending, running, waiting, completed, failed …"""
        return (await self._client.row(self.id)).status

    async def state(self) -> RunState:
        """The state now."""
        return await self._client.get(self.id)

    async def result(self, *, timeout: float | None = None) -> R_co:
        """Wait until the run has ended; its result, or the error it ended with."""
        found: R_co = await self._client.result(self.id, timeout=timeout)
        return found

    async def events(self, *, after: int = -1) -> list[tuple[Record, Event]]:
        """The run's log: each record with its event."""
        return await self._client.events(self.id, after=after)

    def stream(self, *, after: int = -1) -> AsyncIterator[tuple[Record, Event]]:
        """The run's events, old and new, until it has ended."""
        return self._client.stream(self.id, after=after)

    async def signal(
        self, name: str, value: Any = None, *, signal_id: str = "", why: str = ""
    ) -> None:
        """Send the run a signal."""
        await self._client.signal(self.id, name, value, signal_id=signal_id, why=why)

    async def cancel(self, *, why: str = "") -> None:
        """End the run and its child runs, each at its next call."""
        await self._client.cancel(self.id, why=why)


class AsyncClient:
    """A server's runs. Without a URL, HOLDFAST_URL; without a token, HOLDFAST_TOKEN."""

    def __init__(self, url: str | None = None, *, token: str | None = None) -> None:
        self.url = calls.base_url(url)
        transport = httpx2.AsyncHTTPTransport(retries=2)
        self._http = httpx2.AsyncClient(
            base_url=self.url,
            headers=calls.authorization(token),
            timeout=calls.TIMEOUT_SECONDS,
            transport=transport,
            follow_redirects=False,  # the token is for this server alone
        )

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Runs are not touched."""
        await self._http.aclose()

    async def do(self, call: Call[T]) -> T:
        """Make a request; what it returns, or the error that the server answers with."""
        attempt = 0
        while True:
            attempt += 1
            try:
                found = await self._http.request(
                    call.op.method,
                    call.path,
                    params=dict(call.query),
                    content=call.body,
                    headers=call.sent,
                )
            except httpx2.TransportError as error:
                raise calls.unreachable(self.url, error) from None
            if found.is_success:
                return call.read(found.content)
            pause = calls.pause_before(
                found.status_code, found.headers.get("retry-after", ""), attempt
            )
            if pause is None:
                kind = found.headers.get("content-type", "")
                raise calls.refusal(found.status_code, kind, found.content)
            await asyncio.sleep(pause)

    async def _perform(self, flow: Flow[T]) -> T:
        """Make the requests of a flow, one after the other; what it returns."""
        try:
            call = next(flow)
            while True:
                call = flow.send(await self.do(call))
        except StopIteration as done:
            found: T = done.value
            return found

    # ── running ──────────────────────────────────────────────────────────────────────────

    async def run(self, agent: str, /, *, id: str | None = None, timeout: float | None = None, priority: int = 0,
            deadline: float | None = None, budget: Budget | None = None, why: str = "", **input: Any) -> Any:  # fmt: skip
        """Start a run, or find the one of this id, and wait for its result. Workers execute it."""
        made = await self.start(
            agent, id=id, priority=priority, deadline=deadline, budget=budget, why=why, **input
        )
        return await made.result(timeout=timeout)

    async def start(self, agent: str, /, *, id: str | None = None, priority: int = 0, deadline: float | None = None,
              budget: Budget | None = None, why: str = "", **input: Any) -> AsyncRemoteRun[Any]:  # fmt: skip
        """Create a run of a registered agent and leave the work to workers. Run ids are idempotent."""
        call = calls.start(
            agent, input, id=id, priority=priority, deadline=deadline, budget=budget, why=why
        )
        return AsyncRemoteRun(self, (await self.do(call)).run.id)

    async def handle(self, run_id: str) -> AsyncRemoteRun[Any]:
        """A handle on a run that exists."""
        await self.do(calls.row(run_id))
        return AsyncRemoteRun(self, run_id)

    async def resume(self, run_id: str, *, wait: bool = False, why: str = "", accept_new_steps: bool = False,
               deadline: float | None = None, budget: Budget | None = None) -> Any:  # fmt: skip
        """Let a failed or paused run continue; a worker executes it. With `wait`, its result is returned."""
        await self.do(calls.resume(run_id, deadline, budget, accept_new_steps, why))
        return await self.result(run_id) if wait else None

    async def rerun(self, run_id: str, *, wait: bool = False, why: str = "") -> Any:
        """Start the run's code from its first line again, with the state kept; a worker executes it."""
        await self.do(calls.simple("rerun", run_id, why))
        return await self.result(run_id) if wait else None

    async def result(self, run_id: str, *, timeout: float | None = None) -> Any:
        """Wait until the run has ended; its result, or the error it ended with."""
        return await self._perform(flows.result(run_id, timeout))

    # ── looking ──────────────────────────────────────────────────────────────────────────

    async def whoami(self) -> Whoami:
        """Who this token is, and what it may do."""
        return await self.do(calls.whoami())

    async def get(self, run_id: str, *, brief: bool = False) -> RunState:
        """The state now; with `brief`, without most calls that are over."""
        return await self.do(calls.get(run_id, brief))

    async def row(self, run_id: str) -> RunRow:
        """What is known of a run without its log."""
        return await self.do(calls.row(run_id))

    async def at(
        self, run_id: str, step: int, when: Literal["before", "after"] = "after"
    ) -> RunState:
        """The state before or after a step. Step 0 is the beginning."""
        return await self.do(calls.at(run_id, step, when))

    async def diff(self, run_id: str, step_a: int, step_b: int) -> list[views.Change]:
        """What changed in what the agent knew between the ends of two steps."""
        return await self.do(calls.diff(run_id, step_a, step_b))

    async def events(
        self, run_id: str, *, after: int = -1, limit: int | None = None
    ) -> list[tuple[Record, Event]]:
        """The run's log after a seq, at most `limit` events: each record with its event."""
        return await self._perform(flows.events(run_id, after, limit))

    async def timeline(
        self, run_id: str, *, after: int = -1, limit: int | None = None
    ) -> list[views.Moment]:
        """The run's events as sentences."""
        return await self._perform(flows.timeline(run_id, after, limit))

    async def stream(self, run_id: str, *, after: int = -1) -> AsyncIterator[tuple[Record, Event]]:
        """The run's events, old and new, until it has ended. A lost connection is opened again where it was."""
        call, failures = calls.stream(run_id), 0
        while True:
            reader = calls.MessageReader()
            try:
                async with self._http.stream("GET", call.path, params={"after": after}) as answer:
                    if not answer.is_success:
                        kind, content = answer.headers.get("content-type", ""), await answer.aread()
                        raise calls.refusal(answer.status_code, kind, content)
                    async for line in answer.aiter_lines():
                        found = reader.feed(line)
                        if found is None:
                            continue
                        if found[0] in calls.ENDS:
                            calls.stream_ended(*found)
                            return
                        record, event = calls.read_recorded(run_id, found[1])
                        after, failures = record.seq, 0
                        yield record, event
            except httpx2.TransportError as error:
                failures += 1
                if failures > calls.ATTEMPTS:
                    raise calls.unreachable(self.url, error) from None
                await asyncio.sleep(failures / 4)

    async def artifact(self, run_id: str, name: str) -> bytes:
        """The bytes of an artifact, by its name (the newest of that name) or its id."""
        return await self.do(calls.artifact(run_id, name))

    async def value(self, run_id: str, value: Any) -> Any:
        """Something found in a run's state, whole: what was too big for its event is fetched."""
        return await self._perform(flows.value(run_id, value))

    async def runs(self, *, status: str = "", agent: str = "", parent: str = "", limit: int = 50,
             cursor: int | None = None) -> list[RunRow]:  # fmt: skip
        """Runs, newest first. The last row's `cursor` is where the next page begins."""
        return await self.do(calls.runs(status, agent, parent, limit, cursor))

    async def search(
        self, query: str, *, limit: int = 50, cursor: int | None = None
    ) -> views.SearchResult:
        """Runs that match a search such as `status:failed agent:recap error:timeout since:24h`, newest first. One that is
        cut (`stopped`) is continued with `cursor=found.next`."""
        return await self.do(calls.search(query, limit, cursor))

    async def inbox(self, *, agent: str = "", limit: int = 50) -> list[views.InboxItem]:
        """Runs that are waiting for people, with their requests and calls in doubt."""
        return await self.do(calls.inbox(agent, limit))

    async def agents(self) -> list[views.AgentInfo]:
        """The agents that the store knows."""
        return await self.do(calls.agents())

    async def schedules(self) -> list[Schedule]:
        """All schedules, by id."""
        return await self.do(calls.schedules())

    async def unschedule(self, schedule_id: str) -> None:
        """Delete a schedule. Runs that it has started are not touched."""
        await self.do(calls.unschedule(schedule_id))

    async def verify(self, run_id: str) -> views.Verification:
        """Check the run's whole log against its hash chain."""
        return await self.do(calls.verify(run_id))

    # ── the store ────────────────────────────────────────────────────────────────────────

    async def delete(self, run_id: str) -> None:
        """Delete a run that has ended. Its id is free again."""
        await self.do(calls.delete(run_id))

    async def bulk(self, verb: BulkVerb, query: str = "", *, runs: Sequence[str] = (), newest: int | None = None,
             dry_run: bool = False, why: str = "") -> BulkReport:  # fmt: skip
        """Cancel or resume the runs that match a search, or these runs. With `dry_run`, only report what would be done;
        `newest` of that report keeps runs out that were created since. At most 1,000 runs at once."""
        return await self.do(calls.bulk(verb, query, runs, newest, dry_run, why))

    async def gc(self, *, older_than: float | None = None, keep: int | None = None, snapshots: int | None = None,
           snapshot_age: float | None = None, dry_run: bool = False) -> GcResult:  # fmt: skip
        """Delete runs that ended more than `older_than` seconds ago, but the newest `keep`; and old snapshots."""
        return await self.do(calls.gc(older_than, keep, snapshots, snapshot_age, dry_run))

    async def export(self, run_id: str) -> list[str]:
        """A run as lines of JSON: its log and its artifacts."""
        return await self.do(calls.export(run_id))

    async def import_run(self, lines: Iterable[str]) -> bundle.ImportResult:
        """Import a run that `export` wrote. It is checked and not trusted: one that had not ended is paused."""
        return await self.do(calls.import_run(lines))

    async def doctor(self) -> Diagnosis:
        """Examine the store: weak settings, damaged runs, and runs that no worker claims."""
        return await self.do(calls.doctor())

    # ── deciding ─────────────────────────────────────────────────────────────────────────

    async def approve(
        self, run_id: str, request: str = "", *, why: str = "", digest: str = ""
    ) -> None:
        """Approve what the run asks for."""
        await self.do(calls.approve(run_id, request, why, digest))

    async def reject(
        self, run_id: str, request: str = "", *, why: str = "", digest: str = ""
    ) -> None:
        """Reject what the run asks for."""
        await self.do(calls.reject(run_id, request, why, digest))

    async def answer(self, run_id: str, value: Any, request: str = "", *, why: str = "") -> None:
        """Answer the question that the run asks."""
        await self.do(calls.answer(run_id, value, request, why))

    async def signal(
        self, run_id: str, name: str, value: Any = None, *, signal_id: str = "", why: str = ""
    ) -> None:
        """Send a signal. It is kept until the run is waiting for it; the same `signal_id` counts once."""
        await self.do(calls.signal(run_id, name, value, signal_id, why))

    async def resolve(self, run_id: str, call: int | str | None = None, *, done: Any = ..., failed: str | None = None,
                retry: bool = False, why: str = "") -> None:  # fmt: skip
        """Settle a call in doubt: it happened (`done=result`), it did not (`failed=why`), or try again."""
        await self.do(calls.resolve(run_id, call, done=done, failed=failed, retry=retry, why=why))

    async def patch(self, run_id: str, changes: Patch, *, delete: Sequence[str] = (), expected: int | None = None,
              key: str = "", why: str = "") -> bool:  # fmt: skip
        """Change what the run knows from outside. With `expected`, the `seq` of the state that you have read, it is
        refused with Conflict if the run has changed since. The same `key` counts once."""
        if isinstance(changes, StatePatch) and delete:
            raise InvalidInput(
                "delete=… works with new values of run.state, not with another kind of patch"
            )
        return await self.do(
            calls.patch(run_id, changes, delete=delete, expected=expected, key=key, why=why)
        )

    async def pause(self, run_id: str, *, why: str = "") -> None:
        """Stop the run at its next call, until it is resumed."""
        await self.do(calls.simple("pause", run_id, why))

    async def cancel(self, run_id: str, *, why: str = "") -> None:
        """End the run and its child runs, each at its next call."""
        await self.do(calls.simple("cancel", run_id, why))

    async def undo(self, run_id: str, *, why: str = "") -> None:
        """Undo what the run did, newest first; a worker executes it."""
        await self.do(calls.simple("undo", run_id, why))

    async def fork(self, run_id: str, step: int, *, id: str | None = None, state: Mapping[str, Any] | None = None,
             why: str = "") -> AsyncRemoteRun[Any]:  # fmt: skip
        """A new run that starts with this one's first steps, and continues on its own from there."""
        return AsyncRemoteRun(self, await self.do(calls.fork(run_id, step, id, state, why)))
