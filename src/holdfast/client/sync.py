"""The client for ordinary code. The same on an event loop is `aio.py`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import httpx2

from holdfast.client import calls, flows
from holdfast.client.calls import ApiCall
from holdfast.client.flows import Flow
from holdfast.core.events import Event
from holdfast.core.log import Record
from holdfast.core.policy import Budget
from holdfast.core.state import RunState
from holdfast.store.base import RunRow

T = TypeVar("T")
P = ParamSpec("P")
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


def _request(ask: Callable[P, ApiCall[T]]) -> Callable[Concatenate[Client, P], T]:
    """A method that makes one request."""

    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.do(ask(*args, **kwargs))

    return calls.described(method, ask)


def _flow(ask: Callable[P, Flow[T]]) -> Callable[Concatenate[Client, P], T]:
    """A method that makes several."""

    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._perform(ask(*args, **kwargs))

    return calls.described(method, ask)


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

    def do(self, call: ApiCall[T]) -> T:
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

    def run(
        self,
        agent: str,
        /,
        *,
        id: str | None = None,
        timeout: float | None = None,
        priority: int = 0,
        deadline: float | None = None,
        budget: Budget | None = None,
        why: str = "",
        **input: Any,
    ) -> Any:
        """Start a run, or find the one of this id, and wait for its result. Workers execute it."""
        made = self.start(
            agent, id=id, priority=priority, deadline=deadline, budget=budget, why=why, **input
        )
        return made.result(timeout=timeout)

    def start(
        self,
        agent: str,
        /,
        *,
        id: str | None = None,
        priority: int = 0,
        deadline: float | None = None,
        budget: Budget | None = None,
        why: str = "",
        **input: Any,
    ) -> RemoteRun[Any]:
        """Create a run of a registered agent and leave the work to workers. Run ids are idempotent."""
        call = calls.start(
            agent, input, id=id, priority=priority, deadline=deadline, budget=budget, why=why
        )
        return RemoteRun(self, (self.do(call)).run.id)

    def start_row(
        self,
        agent: str,
        input: Mapping[str, Any],
        *,
        id: str | None,
        version: str | None,
        priority: int,
        why: str,
    ) -> RunRow:
        """For the command line: the same with a version, and the run's row."""
        call = calls.start(
            agent,
            input,
            id=id,
            version=version,
            priority=priority,
            deadline=None,
            budget=None,
            why=why,
        )
        return self.do(call).run

    def handle(self, run_id: str) -> RemoteRun[Any]:
        """A handle on a run that exists."""
        self.do(calls.row(run_id))
        return RemoteRun(self, run_id)

    def fork(
        self,
        run_id: str,
        step: int,
        *,
        id: str | None = None,
        state: Mapping[str, Any] | None = None,
        why: str = "",
    ) -> RemoteRun[Any]:
        """A new run that starts with this one's first steps, and continues on its own from there."""
        return RemoteRun(self, self.do(calls.fork(run_id, step, id, state, why)))

    def record(self, agent: str, /, *, id: str, why: str = "", **input: Any) -> RemoteRun[Any]:
        """Create a run that another program executes (`agent` is its name): no worker claims it. The program stores
        items in it and ends it with `finish`."""
        return RemoteRun(self, self.do(calls.record(agent, input, id=id, why=why)))

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

    result = _flow(flows.result)
    resume = _flow(flows.resume)
    rerun = _flow(flows.rerun)

    # ── looking ──────────────────────────────────────────────────────────────────────────

    whoami = _request(calls.whoami)
    get = _request(calls.get)
    row = _request(calls.row)
    at = _request(calls.at)
    diff = _request(calls.diff)
    events = _flow(flows.events)
    timeline = _flow(flows.timeline)
    artifact = _request(calls.artifact)
    value = _flow(flows.value)
    runs = _request(calls.runs)
    search = _request(calls.search)
    inbox = _request(calls.inbox)
    agents = _request(calls.agents)
    schedules = _request(calls.schedules)
    verify = _request(calls.verify)
    doctor = _request(calls.doctor)

    # ── deciding ─────────────────────────────────────────────────────────────────────────

    approve = _request(calls.approve)
    reject = _request(calls.reject)
    answer = _request(calls.answer)
    signal = _request(calls.signal)
    resolve = _request(calls.resolve)
    patch = _request(calls.patch)
    pause = _request(calls.pause)
    cancel = _request(calls.cancel)
    undo = _request(calls.undo)
    bulk = _request(calls.bulk)

    # ── what integrations keep ───────────────────────────────────────────────────────────

    finish = _request(calls.finish)
    put_item = _request(calls.put_item)
    item = _flow(flows.item)
    items = _flow(flows.items)
    delete_item = _request(calls.delete_item)

    # ── the store ────────────────────────────────────────────────────────────────────────

    delete = _request(calls.delete)
    gc = _request(calls.gc)
    export = _request(calls.export)
    import_run = _request(calls.import_run)
    unschedule = _request(calls.unschedule)
