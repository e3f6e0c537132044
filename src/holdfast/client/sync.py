"""The client for ordinary code. The same on an event loop is `aio.py`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
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


class RemoteRun(Generic[R_co]):
    """A run on the server."""

    def __init__(self, client: Client, run_id: str) -> None:
        self._client = client
        self.id = run_id

    def __repr__(self) -> str:
        return f"<run {self.id!r}>"

    @property
    def status(self) -> str:
        """pending, running, waiting, completed, failed …"""
        return self._client.row(self.id).status

    def state(self) -> RunState:
        """The state now."""
        return self._client.get(self.id)

    def result(self, *, timeout: float | None = None) -> R_co:
        """Wait until the run has ended; its result, or the error it ended with."""
        found: R_co = self._client.result(self.id, timeout=timeout)
        return found

    def events(self, *, after: int = -1) -> list[tuple[Record, Event]]:
        """The run's log: each record with its event."""
        return self._client.events(self.id, after=after)

    def stream(self, *, after: int = -1) -> Iterator[tuple[Record, Event]]:
        """The run's events, old and new, until it has ended."""
        return self._client.stream(self.id, after=after)

    def signal(self, name: str, value: Any = None, *, signal_id: str = "", why: str = "") -> None:
        """Send the run a signal."""
        self._client.signal(self.id, name, value, signal_id=signal_id, why=why)

    def cancel(self, *, why: str = "") -> None:
        """End the run and its child runs, each at its next call."""
        self._client.cancel(self.id, why=why)


class Client:
    """A server's runs. Without a URL, HOLDFAST_URL; without a token, HOLDFAST_TOKEN."""

    def __init__(self, url: str | None = None, *, token: str | None = None) -> None:
        self.url = calls.base_url(url)
        transport = httpx2.HTTPTransport(retries=2)
        self._http = httpx2.Client(
            base_url=self.url,
            headers=calls.authorization(token),
            timeout=calls.TIMEOUT_SECONDS,
            transport=transport,
            follow_redirects=False,  # the token is for this server alone
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Runs are not touched."""
        self._http.close()

    def do(self, call: Call[T]) -> T:
        """Make a request; what it returns, or the error that the server answers with."""
        attempt = 0
        while True:
            attempt += 1
            try:
                found = self._http.request(
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
            time.sleep(pause)

    def _perform(self, flow: Flow[T]) -> T:
        """Make the requests of a flow, one after the other; what it returns."""
        try:
            call = next(flow)
            while True:
                call = flow.send(self.do(call))
        except StopIteration as done:
            found: T = done.value
            return found

    # ── running ──────────────────────────────────────────────────────────────────────────

    def run(self, agent: str, /, *, id: str | None = None, timeout: float | None = None, priority: int = 0,
            deadline: float | None = None, budget: Budget | None = None, why: str = "", **input: Any) -> Any:  # fmt: skip
        """Start a run, or find the one of this id, and wait for its result. Workers execute it."""
        made = self.start(
            agent, id=id, priority=priority, deadline=deadline, budget=budget, why=why, **input
        )
        return made.result(timeout=timeout)

    def start(self, agent: str, /, *, id: str | None = None, priority: int = 0, deadline: float | None = None,
              budget: Budget | None = None, why: str = "", **input: Any) -> RemoteRun[Any]:  # fmt: skip
        """Create a run of a registered agent and leave the work to workers. Run ids are idempotent."""
        call = calls.start(
            agent, input, id=id, priority=priority, deadline=deadline, budget=budget, why=why
        )
        return RemoteRun(self, (self.do(call)).run.id)

    def start_row(
        self, agent: str, input: Mapping[str, Any], *, id: str | None, version: str | None, priority: int, why: str
    ) -> RunRow:  # fmt: skip
        """For the command line: the same with a version, and the run's row."""
        call = calls.start(
            agent, input, id=id, version=version, priority=priority, deadline=None, budget=None, why=why
        )  # fmt: skip
        return self.do(call).run

    def handle(self, run_id: str) -> RemoteRun[Any]:
        """A handle on a run that exists."""
        self.do(calls.row(run_id))
        return RemoteRun(self, run_id)

    def resume(self, run_id: str, *, wait: bool = False, why: str = "", accept_new_steps: bool = False,
               deadline: float | None = None, budget: Budget | None = None) -> Any:  # fmt: skip
        """Let a failed or paused run continue; a worker executes it. With `wait`, its result is returned."""
        self.do(calls.resume(run_id, deadline, budget, accept_new_steps, why))
        return self.result(run_id) if wait else None

    def rerun(self, run_id: str, *, wait: bool = False, why: str = "") -> Any:
        """Start the run's code from its first line again, with the state kept; a worker executes it."""
        self.do(calls.simple("rerun", run_id, why))
        return self.result(run_id) if wait else None

    def result(self, run_id: str, *, timeout: float | None = None) -> Any:
        """Wait until the run has ended; its result, or the error it ended with."""
        return self._perform(flows.result(run_id, timeout))

    # ── looking ──────────────────────────────────────────────────────────────────────────

    def whoami(self) -> Whoami:
        """Who this token is, and what it may do."""
        return self.do(calls.whoami())

    def get(self, run_id: str, *, brief: bool = False) -> RunState:
        """The state now; with `brief`, without most calls that are over."""
        return self.do(calls.get(run_id, brief))

    def row(self, run_id: str) -> RunRow:
        """What is known of a run without its log."""
        return self.do(calls.row(run_id))

    def at(self, run_id: str, step: int, when: Literal["before", "after"] = "after") -> RunState:
        """The state before or after a step. Step 0 is the beginning."""
        return self.do(calls.at(run_id, step, when))

    def diff(self, run_id: str, step_a: int, step_b: int) -> list[views.Change]:
        """What changed in what the agent knew between the ends of two steps."""
        return self.do(calls.diff(run_id, step_a, step_b))

    def events(
        self, run_id: str, *, after: int = -1, limit: int | None = None
    ) -> list[tuple[Record, Event]]:
        """The run's log after a seq, at most `limit` events: each record with its event."""
        return self._perform(flows.events(run_id, after, limit))

    def timeline(
        self, run_id: str, *, after: int = -1, limit: int | None = None
    ) -> list[views.Moment]:
        """The run's events as sentences."""
        return self._perform(flows.timeline(run_id, after, limit))

    def stream(self, run_id: str, *, after: int = -1) -> Iterator[tuple[Record, Event]]:
        """The run's events, old and new, until it has ended. A lost connection is opened again where it was."""
        call, failures = calls.stream(run_id), 0
        while True:
            reader = calls.MessageReader()
            try:
                with self._http.stream("GET", call.path, params={"after": after}) as answer:
                    if not answer.is_success:
                        kind, content = answer.headers.get("content-type", ""), answer.read()
                        raise calls.refusal(answer.status_code, kind, content)
                    for line in answer.iter_lines():
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
                time.sleep(failures / 4)

    def artifact(self, run_id: str, name: str) -> bytes:
        """The bytes of an artifact, by its name (the newest of that name) or its id."""
        return self.do(calls.artifact(run_id, name))

    def value(self, run_id: str, value: Any) -> Any:
        """Something found in a run's state, whole: what was too big for its event is fetched."""
        return self._perform(flows.value(run_id, value))

    def runs(self, *, status: str = "", agent: str = "", parent: str = "", limit: int = 50,
             cursor: int | None = None) -> list[RunRow]:  # fmt: skip
        """Runs, newest first. The last row's `cursor` is where the next page begins."""
        return self.do(calls.runs(status, agent, parent, limit, cursor))

    def search(
        self, query: str, *, limit: int = 50, cursor: int | None = None
    ) -> views.SearchResult:
        """Runs that match a search such as `status:failed agent:recap error:timeout since:24h`, newest first. One that is
        cut (`stopped`) is continued with `cursor=found.next`."""
        return self.do(calls.search(query, limit, cursor))

    def inbox(self, *, agent: str = "", limit: int = 50) -> list[views.InboxItem]:
        """Runs that are waiting for people, with their requests and calls in doubt."""
        return self.do(calls.inbox(agent, limit))

    def agents(self) -> list[views.AgentInfo]:
        """The agents that the store knows."""
        return self.do(calls.agents())

    def schedules(self) -> list[Schedule]:
        """All schedules, by id."""
        return self.do(calls.schedules())

    def unschedule(self, schedule_id: str) -> None:
        """Delete a schedule. Runs that it has started are not touched."""
        self.do(calls.unschedule(schedule_id))

    def verify(self, run_id: str) -> views.Verification:
        """Check the run's whole log against its hash chain."""
        return self.do(calls.verify(run_id))

    # ── the store ────────────────────────────────────────────────────────────────────────

    def delete(self, run_id: str) -> None:
        """Delete a run that has ended. Its id is free again."""
        self.do(calls.delete(run_id))

    def bulk(self, verb: BulkVerb, query: str = "", *, runs: Sequence[str] = (), newest: int | None = None,
             dry_run: bool = False, why: str = "") -> BulkReport:  # fmt: skip
        """Cancel or resume the runs that match a search, or these runs. With `dry_run`, only report what would be done;
        `newest` of that report keeps runs out that were created since. At most 1,000 runs at once."""
        return self.do(calls.bulk(verb, query, runs, newest, dry_run, why))

    def gc(self, *, older_than: float | None = None, keep: int | None = None, snapshots: int | None = None,
           snapshot_age: float | None = None, dry_run: bool = False) -> GcResult:  # fmt: skip
        """Delete runs that ended more than `older_than` seconds ago, but the newest `keep`; and old snapshots."""
        return self.do(calls.gc(older_than, keep, snapshots, snapshot_age, dry_run))

    def export(self, run_id: str) -> list[str]:
        """A run as lines of JSON: its log and its artifacts."""
        return self.do(calls.export(run_id))

    def import_run(self, lines: Iterable[str]) -> bundle.ImportResult:
        """Import a run that `export` wrote. It is checked and not trusted: one that had not ended is paused."""
        return self.do(calls.import_run(lines))

    def doctor(self) -> Diagnosis:
        """Examine the store: weak settings, damaged runs, and runs that no worker claims."""
        return self.do(calls.doctor())

    # ── deciding ─────────────────────────────────────────────────────────────────────────

    def approve(self, run_id: str, request: str = "", *, why: str = "", digest: str = "") -> None:
        """Approve what the run asks for."""
        self.do(calls.approve(run_id, request, why, digest))

    def reject(self, run_id: str, request: str = "", *, why: str = "", digest: str = "") -> None:
        """Reject what the run asks for."""
        self.do(calls.reject(run_id, request, why, digest))

    def answer(self, run_id: str, value: Any, request: str = "", *, why: str = "") -> None:
        """Answer the question that the run asks."""
        self.do(calls.answer(run_id, value, request, why))

    def signal(
        self, run_id: str, name: str, value: Any = None, *, signal_id: str = "", why: str = ""
    ) -> None:
        """Send a signal. It is kept until the run is waiting for it; the same `signal_id` counts once."""
        self.do(calls.signal(run_id, name, value, signal_id, why))

    def resolve(self, run_id: str, call: int | str | None = None, *, done: Any = ..., failed: str | None = None,
                retry: bool = False, why: str = "") -> None:  # fmt: skip
        """Settle a call in doubt: it happened (`done=result`), it did not (`failed=why`), or try again."""
        self.do(calls.resolve(run_id, call, done=done, failed=failed, retry=retry, why=why))

    def patch(self, run_id: str, changes: Patch, *, delete: Sequence[str] = (), expected: int | None = None,
              key: str = "", why: str = "") -> bool:  # fmt: skip
        """Change what the run knows from outside. With `expected`, the `seq` of the state that you have read, it is
        refused with Conflict if the run has changed since. The same `key` counts once."""
        if isinstance(changes, StatePatch) and delete:
            raise InvalidInput(
                "delete=… works with new values of run.state, not with another kind of patch"
            )
        return self.do(
            calls.patch(run_id, changes, delete=delete, expected=expected, key=key, why=why)
        )

    def pause(self, run_id: str, *, why: str = "") -> None:
        """Stop the run at its next call, until it is resumed."""
        self.do(calls.simple("pause", run_id, why))

    def cancel(self, run_id: str, *, why: str = "") -> None:
        """End the run and its child runs, each at its next call."""
        self.do(calls.simple("cancel", run_id, why))

    def undo(self, run_id: str, *, why: str = "") -> None:
        """Undo what the run did, newest first; a worker executes it."""
        self.do(calls.simple("undo", run_id, why))

    def fork(self, run_id: str, step: int, *, id: str | None = None, state: Mapping[str, Any] | None = None,
             why: str = "") -> RemoteRun[Any]:  # fmt: skip
        """A new run that starts with this one's first steps, and continues on its own from there."""
        return RemoteRun(self, self.do(calls.fork(run_id, step, id, state, why)))
