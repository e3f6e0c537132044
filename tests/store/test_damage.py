"""Damage in a store is noticed on every read and never returned as a value (FAULTS 26, 131; invariant 22).

Values over 64 KiB are stored as blobs, outside of the events that refer to them. Their digests are part of
the hash chain, so their bytes can be checked too. A snapshot is a cache: a damaged one is not used.
"""

import contextlib
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, Message, Run, agent, bundle, control, step, tool
from holdfast.cli.describe import content
from holdfast.core.parts import ToolCall
from holdfast.doctor import damage_of
from holdfast.errors import (
    ArtifactDamaged,
    HoldfastError,
    LogDamaged,
    RunWaiting,
    SchemaMismatch,
    StoreUnavailable,
)
from holdfast.store.base import Store
from holdfast.store.sqlite import SQLiteStore
from support.workload import folder_in_memory

BIG = "0123456789abcdef" * 5000
DELETE = "DELETE FROM holdfast.blobs"
CHANGE = "UPDATE holdfast.blobs SET data = :data"


@step
def read_big(n: int) -> str:
    return f"{n}{BIG}"


@tool
def publish(text: str, idempotency_key: str = "") -> str:
    return f"published {text}{BIG}"


@agent
def result_only(run: Run) -> str:
    return BIG


@agent
def artifact_only(run: Run) -> str:
    run.artifact("report", BIG.encode(), type="text/plain")
    return "done"


@agent
def step_only(run: Run) -> str:
    read_big(1)
    return "done"


@agent
def message_only(run: Run) -> str:
    run.messages.add(Message("assistant", "", tool_calls=(ToolCall("1", "find", {"text": BIG}),)))
    return "done"


@agent
def input_only(run: Run, text: str) -> str:
    return "done"


@agent
def publishing(run: Run) -> str:
    return publish("news", idempotency_key="the-news")


@agent
def publishing_too(run: Run) -> str:
    return publish("news", idempotency_key="the-news")[:20]


@agent
def waiting_after(run: Run) -> str:
    found = read_big(1)
    run.wait_for("go")
    return found[:10]


@agent
def small(run: Run, name: str) -> str:
    run.state.name = name
    run.note("greeting", "hello")
    return "done"


@agent
def large(run: Run) -> str:
    run.state.read = read_big(1)
    run.artifact("report", BIG.encode(), type="text/plain")
    return read_big(2)


class Opened:
    """A store of either kind, and a way to change what it holds behind its back."""

    def __init__(self, store: Store, execute: Callable[[str, dict[str, Any]], int]) -> None:
        self.store, self._execute = store, execute
        self.hf = Holdfast(store)

    def change(self, statement: str, **params: Any) -> None:
        assert self._execute(statement, params) > 0


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    if request.param == "sqlite":
        made = _sqlite(tmp_path / "a.db")
    else:
        made = _postgres(request.getfixturevalue("postgres_dsn"))
    with contextlib.closing(made.hf):
        yield made


def _sqlite(path: Path) -> Opened:
    import apsw

    def execute(statement: str, params: dict[str, Any]) -> int:
        with contextlib.closing(apsw.Connection(str(path))) as db:
            db.execute(statement.replace("holdfast.", ""), params)
            return db.changes()

    return Opened(SQLiteStore(path), execute)


def _postgres(dsn: str) -> Opened:
    import psycopg

    from holdfast.store.postgres import PostgresStore

    def execute(statement: str, params: dict[str, Any]) -> int:
        for name in params:
            statement = statement.replace(f":{name}", f"%({name})s")
        with psycopg.connect(dsn, autocommit=True) as db:
            return db.execute(statement.encode(), params).rowcount

    return Opened(PostgresStore(dsn), execute)


DAMAGE = {"missing": (DELETE, {}), "changed": (CHANGE, {"data": b'"other"'})}
AGENTS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "result": (result_only, {}),
    "artifact": (artifact_only, {}),
    "step": (step_only, {}),
    "message": (message_only, {}),
    "input": (input_only, {"text": BIG}),
}


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("where", AGENTS)
def test_verify_doctor_and_export_report_a_damaged_blob_with_its_event(
    opened: Opened, where: str, how: str
) -> None:
    hf, (fn, given) = opened.hf, AGENTS[where]
    hf.run(fn, id="r", **given)
    hf.run(fn, id="sound", **given)
    assert (True, "") == (hf.verify("r").ok, damage_of(opened.store, "r"))
    statement, params = DAMAGE[how]
    opened.change(
        f"{statement} WHERE run = (SELECT key FROM holdfast.runs WHERE id = 'r')", **params
    )

    verdict = hf.verify("r")

    kinds = {
        "result": "run_completed",
        "artifact": "artifact_saved",
        "step": "call_succeeded",
        "message": "message_added",
        "input": "run_created",
    }
    seq = next(record.seq for record, _ in hf.events("r") if record.kind == kinds[where])
    assert not verdict.ok
    assert f"'r' is damaged at event {seq}" in verdict.problem
    assert verdict.problem == damage_of(opened.store, "r")
    with pytest.raises(ArtifactDamaged) as found:
        list(bundle.export(opened.store, "r"))
    assert ("r", seq) == (found.value.run_id, found.value.seq)
    assert hf.verify("sound").ok


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_result_is_never_returned(opened: Opened, how: str) -> None:
    hf = opened.hf
    assert BIG == hf.run(result_only, id="r")
    statement, params = DAMAGE[how]
    opened.change(statement, **params)

    completed = hf.events("r")[-1]
    reads: list[Callable[[], Any]] = [
        lambda: hf.run(result_only, id="r"),
        lambda: hf.result("r"),
        lambda: hf.value("r", completed[1].result),  # type: ignore[attr-defined]
        lambda: content(opened.store, "r", completed[1].result),  # type: ignore[attr-defined]
    ]
    for read in reads:
        with pytest.raises(ArtifactDamaged) as found:
            read()
        assert ("r", completed[0].seq) == (found.value.run_id, found.value.seq)


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_artifact_is_never_returned(opened: Opened, how: str) -> None:
    opened.hf.run(artifact_only, id="r")
    statement, params = DAMAGE[how]
    opened.change(statement, **params)

    with pytest.raises(ArtifactDamaged, match="'r' is damaged at event 1"):
        opened.hf.artifact("r", "report")


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_result_of_another_run_is_not_taken_over_by_its_key(
    opened: Opened, how: str
) -> None:
    """A caller's own key gives a second run the first one's result: checked like any other read."""
    hf = opened.hf
    hf.run(publishing, id="first")
    statement, params = DAMAGE[how]
    opened.change(statement, **params)

    with pytest.raises(ArtifactDamaged, match="'first' is damaged at event"):
        hf.run(publishing_too, id="second")
    assert "completed" != hf.get("second").status


def test_a_damaged_log_of_another_run_is_not_believed(opened: Opened) -> None:
    hf = opened.hf
    hf.run(publishing, id="first")
    opened.change("UPDATE holdfast.events SET epoch = 7 WHERE kind = 'call_succeeded'")

    with pytest.raises(LogDamaged, match="'first' is damaged at event"):
        hf.run(publishing_too, id="second")


@pytest.mark.parametrize("how", DAMAGE)
def test_a_run_whose_recorded_value_is_damaged_does_not_resume(opened: Opened, how: str) -> None:
    hf = opened.hf
    with pytest.raises(RunWaiting):
        hf.run(waiting_after, id="r")
    statement, params = DAMAGE[how]
    opened.change(statement, **params)
    hf.signal("r", "go")

    with pytest.raises(ArtifactDamaged, match="'r' is damaged at event"):
        hf.run(waiting_after, id="r")
    assert "quarantined" == opened.hf.get("r").status


@pytest.mark.parametrize("how", DAMAGE)
def test_a_run_with_a_damaged_blob_is_not_forked(opened: Opened, how: str) -> None:
    opened.hf.run(step_only, id="r")
    statement, params = DAMAGE[how]
    opened.change(statement, **params)

    with pytest.raises(ArtifactDamaged, match="'r' is damaged at event"):
        control.fork(opened.store, "r", 1, "copy", {})
    assert opened.store.get("copy") is None


def test_a_run_with_a_large_tool_call_in_a_message_is_exported_whole(
    opened: Opened, tmp_path: Path
) -> None:
    opened.hf.run(message_only, id="r")
    lines = list(bundle.export(opened.store, "r"))

    with Holdfast(tmp_path / "other.db") as other:
        bundle.import_run(other.store, bundle.read(lines))
        assert other.verify("r").ok


def test_a_snapshot_with_a_changed_bit_is_not_used(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It still reads as a state, of this run and of this place in the log: only its digest can tell."""
    hf = opened.hf
    hf.run(small, id="r", name="sam")
    monkeypatch.setattr("holdfast.store.brief.SNAPSHOT_AFTER", 1)
    truth = hf.get("r", brief=True)
    kept = opened.store.snapshots.newest("r")
    assert kept is not None and b"sam" in kept.data
    opened.change(
        "UPDATE holdfast.snapshots SET data = :data", data=kept.data.replace(b"sam", b"tom")
    )

    assert truth == hf.get("r", brief=True) == hf.get("r")


def test_a_log_that_lost_its_end_is_reported(opened: Opened) -> None:
    """What is left is a good chain, but the run's row says that there was more."""
    hf = opened.hf
    with pytest.raises(RunWaiting):
        hf.run(waiting_after, id="waiting")
    hf.run(step_only, id="completed")
    for run_id in ("waiting", "completed"):
        last = hf.events(run_id)[-1][0].seq
        opened.change(
            "DELETE FROM holdfast.events WHERE seq = :seq AND "
            "run = (SELECT key FROM holdfast.runs WHERE id = :id)",
            seq=last,
            id=run_id,
        )
        assert not hf.verify(run_id).ok
        with pytest.raises(LogDamaged, match=f"{run_id!r} is damaged at event {last}"):
            hf.get(run_id)
    with pytest.raises(LogDamaged, match="'completed' is damaged at event"):
        hf.result("completed")


def test_a_run_without_any_event_is_reported(opened: Opened) -> None:
    opened.hf.run(step_only, id="r")
    opened.change("DELETE FROM holdfast.events")

    assert "'r' is damaged at event 0" in opened.hf.verify("r").problem
    assert opened.hf.verify("r").problem == damage_of(opened.store, "r")


# -- bits flipped anywhere in the file ----------------------------------------------------------

RUNS = ("small-0", "small-1", "large", "published", "waiting")
REPORTS = ("verify", "examine")
SAYS_DAMAGE = (LogDamaged, StoreUnavailable, SchemaMismatch)


def fill(path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A store with small values, blobs, an artifact, a caller's key, a waiting run and snapshots."""
    with monkeypatch.context() as patch, Holdfast(path) as hf:
        patch.setattr("holdfast.store.brief.SNAPSHOT_AFTER", 1)
        for n in range(2):
            hf.run(small, id=f"small-{n}", name=f"sam {n}")
        hf.run(large, id="large")
        hf.run(publishing, id="published")
        with pytest.raises(RunWaiting):
            hf.run(waiting_after, id="waiting")
        for run_id in RUNS:
            hf.get(run_id, brief=True)
    return path.read_bytes()


def read_all(hf: Holdfast) -> dict[tuple[str, str], Any]:
    """What a user can read of the store; errors as values."""
    reads: dict[tuple[str, str], Callable[[], Any]] = {
        ("large", "artifact"): lambda: hf.artifact("large", "report"),
        ("large", "value"): lambda: hf.value("large", hf.get("large").state["read"]),
        ("", "runs"): lambda: sorted((r.id, r.status, r.agent) for r in hf.runs()),
        ("", "examine"): lambda: [f.name for f in hf.store.examine() if not f.ok],
    }
    for run_id in RUNS:
        reads[run_id, "get"] = partial(hf.get, run_id)
        reads[run_id, "brief"] = partial(hf.get, run_id, brief=True)
        reads[run_id, "events"] = partial(hf.events, run_id)
        reads[run_id, "verify"] = partial(damage_of, hf.store, run_id)
        if run_id != "waiting":
            reads[run_id, "result"] = partial(hf.result, run_id, timeout=0)
    return {name: _outcome(read) for name, read in reads.items()}


def _outcome(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception as error:
        return error


def faults(path: Path, expected: dict[tuple[str, str], Any]) -> list[str]:
    """What is wrong with what is read from a damaged file: a wrong value, or an error that is not ours."""
    try:
        with Holdfast(path) as hf:
            got = read_all(hf)
    except SAYS_DAMAGE:
        return []
    return [fault for name in expected if (fault := _fault(name, expected, got))]


def _fault(
    name: tuple[str, str], expected: dict[tuple[str, str], Any], got: dict[tuple[str, str], Any]
) -> str:
    run_id, what = name
    value, structure = got[name], got["", "examine"]
    if isinstance(value, HoldfastError):
        # An index that has lost a row makes the row unknown; that the index is damaged, `doctor` reports.
        return "" if isinstance(value, SAYS_DAMAGE) or structure else f"{name}: {value!r}"
    if isinstance(value, Exception):
        return f"{name}: {value!r}"
    if what in REPORTS or value == expected[name]:
        return ""
    reported = structure or (what != "result" and got.get((run_id, "verify")))
    return "" if reported else f"{name}: a wrong value, and no report of damage"


@pytest.mark.parametrize(
    "flips", [250, pytest.param(5_000, marks=pytest.mark.nightly)], ids=["some", "many"]
)
def test_a_bit_flipped_anywhere_gives_the_right_value_or_an_error_that_reports_damage(
    flips: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULTS 131: over the whole file, and most often where there is more than the bytes of one blob."""
    whole = fill(tmp_path / "a.db", monkeypatch)
    chance = random.Random(flips)
    filler = BIG[:16].encode()
    pages = [whole[at : at + 4096] for at in range(0, len(whole), 4096)]
    of_blobs = [n for n, page in enumerate(pages) if page.count(filler) > 200]
    others = [n for n in range(len(pages)) if n not in of_blobs]
    found: dict[str, list[str]] = {}
    with folder_in_memory() as folder:
        (folder / "whole.db").write_bytes(whole)
        with Holdfast(folder / "whole.db") as hf:
            expected = read_all(hf)
        assert [] == [value for value in expected.values() if isinstance(value, Exception)]
        for number in range(flips):
            page = chance.choice(of_blobs if number % 8 == 0 else others)
            used = [at for at in range(4096) if pages[page][at]]
            at, bit = page * 4096 + chance.choice(used), chance.randrange(8)
            path = folder / f"{number}.db"
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
            path.chmod(0o600)
            if wrong := faults(path, expected):
                found[f"byte {at}, bit {bit}"] = wrong
            for file in folder.glob(f"{number}.db*"):
                file.unlink()

    assert {} == found
