"""Damage in a store is noticed on every read and never returned as a value (FAULTS 26, 131; invariant 22).

Values over 64 KiB are stored as blobs, outside of the events that refer to them. Their digests are part of
the hash chain, so their bytes can be checked too. A snapshot is a cache: a damaged one is not used.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, Message, Run, agent, control, step, tool
from holdfast.cli import bundle
from holdfast.cli.describe import content
from holdfast.cli.keeping import damage_of
from holdfast.core.parts import ToolCall
from holdfast.errors import ArtifactDamaged, HoldfastError, LogDamaged
from holdfast.store.base import Store
from holdfast.store.sqlite import SQLiteStore

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

    kinds = {"result": "run_completed", "artifact": "artifact_saved", "step": "call_succeeded",
             "message": "message_added", "input": "run_created"}  # fmt: skip
    seq = next(record.seq for record, _ in hf.events("r") if record.kind == kinds[where])
    assert not verdict.ok
    assert f"'r' is damaged at event {seq}" in verdict.problem
    assert verdict.problem == damage_of(opened.store, "r")
    with pytest.raises(ArtifactDamaged) as found:
        bundle.pack(opened.store, "r")
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
    with pytest.raises(HoldfastError, match="go"):
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
    lines = bundle.pack(opened.store, "r")

    with Holdfast(tmp_path / "other.db") as other:
        bundle.take_in(other.store, bundle.unpack(lines))
        assert other.verify("r").ok
