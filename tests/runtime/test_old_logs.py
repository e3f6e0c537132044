"""Logs that Holdfast 0.1 wrote verify, replay and resume with today's code; nothing of them is written differently.

`logs_0_1` has every agent of `support.old_logs`: its whole run, and its logs as they were when one or two processes
had been killed, at every boundary (once for each shape of a log). It was written before the runtime was rebuilt.
"""

from __future__ import annotations

import base64
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import Holdfast, Options, control
from holdfast.core.entry import Entry
from holdfast.core.events import SignalReceived
from holdfast.core.fold import fold
from holdfast.core.log import Blob, Record
from holdfast.core.state import RunState
from holdfast.runtime.call import enter, enter_async, flow, match
from holdfast.runtime.call.request import CallRequest
from holdfast.store.base import Append, Creation, NewRun, RowChange, Store, system_clock
from holdfast.store.sqlite import SQLiteStore
from support.old_logs import DONE, SCENARIOS, execute

LOGS = Path(__file__).parent / "logs_0_1"
OWNER = "of-0.1"
POSTGRES_STRIDE = 9
"""Of the logs on SQLite, every such one is resumed on PostgreSQL too."""

Case = dict[str, Any]
NAMES = sorted(file.name.partition(".")[0] for file in LOGS.iterdir())


def _cases(name: str) -> list[Case]:
    return [
        json.loads(line)
        for line in lzma.decompress((LOGS / f"{name}.jsonl.xz").read_bytes()).splitlines()
    ]


def _records(run: dict[str, Any]) -> list[Record]:
    return [
        Record(seq, time, epoch, kind, data.encode(), bytes.fromhex(hash_))
        for seq, (time, epoch, kind, data, hash_) in enumerate(run["log"])
    ]


def _load(store: Store, run: dict[str, Any]) -> None:
    """Bring a run into a store with the row that it had. Its owner is dead."""
    row, records = run["row"], _records(run)
    new = NewRun(run["id"], row["agent"], row["input_digest"], row["code_version"], row["parent"])
    blobs = [Blob(name, base64.b64decode(data)) for name, data in run["blobs"].items()]
    signals = [(r.seq, r.event) for r in records if r.kind == SignalReceived.stored_as]
    keys = [*((key, seq) for key, seq in run["keys"]), *control.received(new.id, signals)]
    made, _ = (
        store.create(Creation(new, records, blobs=blobs, worker=OWNER, lease_us=1, keys=keys))
        .wait()
        .made
    )
    while made.epoch < row["epoch"]:
        store.release(new.id, made.epoch)  # so that the claims do not count as attempts
        claimed = store.claim(new.id, worker=OWNER, lease_us=1)
        assert claimed is not None
        made = claimed
    if row["status"] != "running":
        change = RowChange(row["status"], row["due_at"], row["waiting_for"])
        store.append(Append(new.id, records[-1].seq, [], made.epoch, change))


def _check(store: Store, case: Case, expected: Case) -> None:
    """Load a case, and see that today's code continues it as 0.1 would have."""
    name, scenario = case["scenario"], SCENARIOS[case["scenario"]]
    for run in case["runs"]:
        _load(store, run)
    DONE[:] = case["done"]
    with Holdfast(store, agents=[scenario.agent, *scenario.others]) as hf:
        for run in case["runs"]:
            assert hf.verify(run["id"]).ok
            hf.replay(run["id"])
        assert DONE == case["done"], "a replay executes nothing"

        assert execute(hf, name) == expected["result"]

        assert set(DONE) <= set(expected["done"])
        assert not any(DONE.count(done) > 1 for done in DONE if done.startswith("ring"))
        for run in case["runs"]:
            assert store.read(run["id"])[: len(run["log"])] == _records(run)
        for row in hf.runs():
            assert hf.verify(row.id).ok
            hf.replay(row.id)


Clock = Callable[[], int]


def _clock(case: Case) -> Clock:
    """Real time, as if the last event had been written just now: timers of the logs have not ended meanwhile."""
    last = max(run["log"][-1][0] for run in case["runs"])
    ago = system_clock() - last
    return lambda: system_clock() - ago


def _check_all(cases: list[Case], stride: int, make_store: Callable[[str, Clock], Store]) -> None:
    for number, case in enumerate(cases):
        if number % stride:
            continue
        try:
            _check(make_store(f"log_{number}", _clock(case)), case, cases[0])
        except Exception as error:
            error.add_note(
                f"the log of {case['scenario']} whose processes died at {case['deaths']}"
            )
            raise


@pytest.mark.parametrize("name", NAMES)
def test_logs_of_0_1_resume_and_replay(name: str, tmp_path: Path) -> None:
    def make_store(file: str, clock: Clock) -> Store:
        return SQLiteStore(tmp_path / f"{file}.db", clock=clock)

    _check_all(_cases(name), 1, make_store)


@pytest.mark.parametrize("name", NAMES)
def test_logs_of_0_1_resume_and_replay_on_postgresql(name: str, postgres_dsn: str) -> None:
    from holdfast.store.postgres import PostgresStore

    def make_store(schema: str, clock: Clock) -> Store:
        return PostgresStore(postgres_dsn, schema=schema, clock=clock)

    _check_all(_cases(name), POSTGRES_STRIDE, make_store)


@pytest.mark.parametrize("name", NAMES)
def test_logs_of_0_1_add_up_to_the_same_state(name: str) -> None:
    for case in _cases(name):
        for run in case["runs"]:
            state = fold(RunState(), _records(run))
            assert _comparable(json.loads(msgspec.json.encode(state))) == _comparable(run["state"])


# ── with and without the shortcut ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", NAMES)
def test_every_scenario_leaves_the_same_log_without_the_shortcut_of_the_call_path(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recorded result is returned, and a plain step made, without driving a flow, for speed only: so from every log, all
    continues alike without that, and if a test watches every boundary."""
    cases = [{**_cases(name)[0], "runs": []}, *_cases(name)]  # from its start, too

    with_them = [_continued(tmp_path / f"a{n}", case, Options()) for n, case in enumerate(cases)]
    _use_the_flow(monkeypatch)
    watched = Options(boundary=lambda _: None)
    without = [_continued(tmp_path / f"b{n}", case, watched) for n, case in enumerate(cases)]

    assert with_them == without


def _use_the_flow(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `enter` finds in the log is shown to the flow only: so `enter` cannot answer a call by itself."""
    found: dict[int, Entry | None] = {}

    class Hidden:
        entry = None

    def find(request: CallRequest) -> Hidden:
        found[id(request)] = match.find(request).entry
        return Hidden()

    def shown(request: CallRequest, entry: Entry | None) -> tuple[CallRequest, Entry | None]:
        return request, found.pop(id(request), entry)

    for module in (enter, enter_async):
        monkeypatch.setattr(module, "find", find)
        monkeypatch.setattr(module, "is_plain_step", lambda *_: False)
    monkeypatch.setattr(enter, "answer", lambda *call: flow.answer(*shown(*call)))
    monkeypatch.setattr(enter, "proceed", lambda *call: flow.proceed(*shown(*call)))
    monkeypatch.setattr(enter_async, "answer", lambda *call: flow.answer(*shown(*call)))


def _continued(file: Path, case: Case, options: Options) -> tuple[Any, list[Any]]:
    """The result of a scenario that continues from a log, and what its runs' logs contain then."""
    clock = _clock(case) if case["runs"] else system_clock
    store, scenario = SQLiteStore(file, clock=clock), SCENARIOS[case["scenario"]]
    for run in case["runs"]:
        _load(store, run)
    DONE[:] = case["done"] if case["runs"] else []
    with Holdfast(store, agents=[scenario.agent, *scenario.others], options=options) as hf:
        result = execute(hf, case["scenario"])
        logs = [_by_branch(store.read(row.id)) for row in hf.runs()]
        return result, sorted(logs, key=json.dumps)  # which child came first decides its id


def _by_branch(records: list[Record]) -> dict[str, list[Any]]:
    """What the log contains of each branch, in order, without what differs between any two executions: times, chance,
    processes, and which of several threads was first."""
    found: dict[str, list[Any]] = {}
    for record in records:
        if record.kind not in ("run_claimed", "run_suspended"):
            event = _lasting(json.loads(record.data))
            if record.kind == "value_recorded":
                del event["value"]
            found.setdefault(event.get("branch", ""), []).append((record.kind, event))
    return found


def _lasting(value: Any) -> Any:
    if isinstance(value, list):
        return [_lasting(x) for x in value]
    if isinstance(value, dict):
        return {name: _lasting(x) for name, x in value.items() if name not in VARYING}
    return "a time" if isinstance(value, int | float) and value > 10**15 else value


VARYING = {"child", "duration_us", "id", "key", "run_id", "step", "traceback", "worker"}


def _comparable(state: dict[str, Any]) -> dict[str, Any]:
    """A folded state without what is described in other words, or as data, since 0.1."""
    for name in ("lines", "waiting"):
        state.pop(name, None)
    for one in state.get("calls", ()):
        one.pop("resolved", None)
        one.pop("resolution", None)
    return state
