"""What integrations keep in a run: items under keys of their own, and runs that another program executes."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import (
    Holdfast,
    InputConflict,
    InvalidInput,
    LogDamaged,
    NotFound,
    NotNow,
    Run,
    RunCancelled,
    RunWaiting,
    agent,
    step,
    views,
)
from holdfast.store.items import newest_version

BIG = "x" * 100_000


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "h.db")
    dsn: str = request.getfixturevalue("postgres_dsn")
    return dsn


@pytest.fixture
def hf(url: str) -> Iterator[Holdfast]:
    with Holdfast(url) as opened:
        opened.record("graph", id="t", thread="t")
        yield opened


def kept(hf: Holdfast, run_id: str = "t", **which: Any) -> list[tuple[str, Any, int]]:
    return [(x.key, x.value, x.version) for x in hf.items(run_id, "notes", **which)]


# ── items ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "value", [None, 0, "text", {"b": [1, 2.5], "a": None}, b"", b"\0\xff", BIG, BIG.encode()]
)
def test_what_is_put_is_what_is_found(hf: Holdfast, value: Any) -> None:
    assert hf.put_item("t", "notes", "k", value)

    found = hf.item("t", "notes", "k")
    assert found is not None
    assert (found.key, found.value, found.version) == ("k", value, 1)
    assert [found] == hf.items("t", "notes") == hf.items("t")
    assert hf.verify("t").ok


def test_the_same_value_again_is_not_recorded_and_another_is_the_next_version(hf: Holdfast) -> None:
    recorded = [
        hf.put_item("t", "notes", "k", value)
        for value in ({"a": 1, "b": 2}, {"b": 2, "a": 1}, 3, b"3", 3)
    ]

    assert [True, False, True, True, True] == recorded
    assert [("k", 3, 4)] == kept(hf)


def test_a_key_that_is_deleted_has_no_value_until_it_is_put_again(hf: Holdfast) -> None:
    hf.put_item("t", "notes", "k", 1)

    assert [True, False] == [hf.delete_item("t", "notes", "k") for _ in range(2)]
    assert (hf.item("t", "notes", "k"), hf.items("t"), hf.get("t").items) == (
        None,
        [],
        {"notes": 0},
    )
    assert hf.put_item("t", "notes", "k", 1)
    assert [("k", 1, 3)] == kept(hf)
    assert {"notes": 1} == hf.get("t").items
    assert not hf.delete_item("t", "notes", "another")


def test_items_are_listed_the_last_first_by_collection_prefix_and_place(hf: Holdfast) -> None:
    for key in ("a/1", "a/2", "b/1", "a/1"):
        hf.put_item("t", "notes", key, f"{key} of {hf.get('t').seq}")
    hf.put_item("t", "other", "a/1", 0)

    assert ["a/1", "b/1", "a/2"] == [x.key for x in hf.items("t", "notes")]
    assert ["a/1", "a/2"] == [x.key for x in hf.items("t", "notes", prefix="a/")]
    assert ["a/1"] == [x.key for x in hf.items("t", "notes", limit=1)]
    assert ["other", "notes", "notes", "notes"] == [x.collection for x in hf.items("t")]
    last = hf.items("t", "notes")[1]
    assert ["a/1"] == [x.key for x in hf.items("t", "notes", after=last.seq)]


def test_an_item_is_found_without_reading_the_log(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(300):
        hf.put_item("t", "notes", "k", n)
        hf.put_item("t", "notes", f"k{n}", n)
    real, read = hf.store.read, []

    def counting(*args: Any, **kwargs: Any) -> Any:
        read.append(len(found := real(*args, **kwargs)))
        return found

    monkeypatch.setattr(hf.store, "read", counting)

    assert hf.item("t", "notes", "k0").value == 0  # type: ignore[union-attr]
    assert hf.item("t", "notes", "k").version == 300  # type: ignore[union-attr]
    assert sum(read) == 4
    assert ["k299", "k"] == [x.key for x in hf.items("t", limit=2)]
    assert sum(read) < 30


@given(st.integers(0, 5000))
def test_the_newest_version_is_found_with_few_questions(newest: int) -> None:
    asked: list[int] = []

    def exists(version: int) -> bool:
        asked.append(version)
        return version <= newest

    assert newest == newest_version(exists)
    assert len(asked) <= 28


def test_items_are_on_the_timeline_and_in_the_state(hf: Holdfast) -> None:
    hf.put_item("t", "graph.checkpoints", "c1", {"v": 1}, by="sam")
    hf.put_item("t", "graph.blobs", "b1", b"12345")
    hf.delete_item("t", "graph.checkpoints", "c1")

    assert (
        {"graph.checkpoints": 0, "graph.blobs": 1}
        == hf.get("t").items
        == hf.get("t", brief=True).items
    )
    assert [
        ("graph.checkpoints", 'c1: {"v": 1} by sam'),
        ("graph.blobs", "b1: 5 bytes"),
        ("graph.checkpoints", "c1 (version 2): deleted"),
    ] == [(x.about, x.text) for x in hf.timeline("t", last=3)]


@pytest.mark.parametrize(
    "arguments",
    [
        ("", "k"),
        ("with space", "k"),
        ("notes", ""),
        ("notes", "k" * 1001),
        ("notes", "\0"),
        ("notes", "\ud800"),
        ("notes", 7),
    ],
)
def test_names_and_keys_that_no_store_can_hold_are_refused(
    hf: Holdfast, arguments: tuple[Any, Any]
) -> None:
    with pytest.raises(InvalidInput):
        hf.put_item("t", *arguments, 1)
    with pytest.raises(InvalidInput):
        hf.item("t", *arguments)


def test_a_run_that_does_not_exist_has_no_items(hf: Holdfast) -> None:
    for act in (
        lambda: hf.put_item("nowhere", "notes", "k", 1),
        lambda: hf.delete_item("nowhere", "notes", "k"),
        lambda: hf.item("nowhere", "notes", "k"),
        lambda: hf.items("nowhere"),
        lambda: hf.delete("nowhere"),
    ):
        with pytest.raises(NotFound):
            act()


def test_processes_that_put_the_same_at_once_record_it_once(hf: Holdfast, url: str) -> None:
    start, recorded = threading.Barrier(4), []

    def put() -> None:
        with Holdfast(url) as other:
            start.wait()
            recorded.extend(other.put_item("t", "notes", f"k{n}", n) for n in range(20))

    threads = [threading.Thread(target=put) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert 20 == sum(recorded)
    assert {"notes": 20} == hf.get("t").items
    assert hf.verify("t").ok


PUTS = """
import sys
from holdfast import Holdfast
with Holdfast(sys.argv[1]) as hf:
    for n in range(10_000):
        hf.put_item("t", "notes", f"k{n}", {"n": n})
        print(n, flush=True)
"""


def test_what_was_acknowledged_survives_a_kill_and_is_recorded_once(hf: Holdfast, url: str) -> None:
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", PUTS, url], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            acknowledged = [int(process.stdout.readline()) for _ in range(30)]
            process.send_signal(signal.SIGKILL)
            acknowledged += [int(line) for line in process.stdout if line.endswith("\n")]

        assert all(hf.item("t", "notes", f"k{n}").value == {"n": n} for n in acknowledged)  # type: ignore[union-attr]
        assert not any(hf.put_item("t", "notes", f"k{n}", {"n": n}) for n in acknowledged)
    assert hf.verify("t").ok
    assert {1} == {x.version for x in hf.items("t")}


# ── with a run that Holdfast executes ────────────────────────────────────────────────────────


@step
def put_inside() -> str:
    """While it executes, another thread puts an item."""
    HOLDS["put"]()
    return "done"


@agent
def working(run: Run) -> str:
    run.state.x = put_inside()
    return put_inside()


HOLDS: dict[str, Callable[[], object]] = {}


def test_an_item_may_be_put_while_the_run_is_executed(url: str) -> None:
    numbers = iter(range(10))
    with Holdfast(url, agents=[working]) as hf, Holdfast(url) as other:
        HOLDS["put"] = lambda: other.put_item("r", "notes", f"k{next(numbers)}", 1)
        assert "done" == hf.run(working, id="r")

        assert {"notes": 2} == hf.get("r").items
        assert hf.replay("r").reached_end
        with pytest.raises(NotNow, match="already completed"):
            hf.put_item("r", "notes", "k2", 1)
        assert not hf.put_item("r", "notes", "k0", 1)  # it is there


@agent
def asks(run: Run) -> bool:
    run.state.draft = "a"
    return run.approve("Send?")


def test_a_run_that_waits_is_not_woken_by_an_item(url: str) -> None:
    with Holdfast(url, agents=[asks]) as hf:
        with pytest.raises(RunWaiting):
            hf.run(asks, id="r")
        before = hf.store.get("r")
        hf.put_item("r", "notes", "k", 1)

        assert before is not None
        assert (before.status, before.due_at) == (hf.runs()[0].status, hf.runs()[0].due_at)
        hf.approve("r")
        assert hf.resume("r") is True


# ── export, fork and deletion ────────────────────────────────────────────────────────────────


def test_items_are_exported_and_imported(hf: Holdfast, tmp_path: Path) -> None:
    values = {"a": 1, "b": b"bytes", "c": BIG}
    for key, value in values.items():
        hf.put_item("t", "notes", key, value)
    hf.put_item("t", "notes", "a", 2)

    with Holdfast(tmp_path / "other.db") as other:
        other.import_run(hf.export("t"))
        assert hf.items("t") == other.items("t")
        assert {**values, "a": 2} == {key: other.item("t", "notes", key).value for key in values}  # type: ignore[union-attr]
        assert not other.put_item("t", "notes", "a", 2)
        assert other.put_item("t", "notes", "d", 4)


def test_a_fork_has_the_items_that_were_there(url: str) -> None:
    @step
    def look(n: int) -> int:
        return n

    @agent
    def steps(run: Run) -> int:
        look(1)
        run.wait_for("more")
        return look(2)

    with Holdfast(url, agents=[steps]) as hf:
        with pytest.raises(RunWaiting):
            hf.run(steps, id="r")
        hf.put_item("r", "notes", "k", BIG)
        hf.signal("r", "more")
        hf.resume("r")
        hf.fork("r", 2, id="f")

        assert hf.item("f", "notes", "k").value == BIG  # type: ignore[union-attr]
        assert hf.put_item("f", "notes", "k", 2)
        assert hf.item("r", "notes", "k").value == BIG  # type: ignore[union-attr]


def test_items_are_deleted_with_their_run(hf: Holdfast) -> None:
    hf.put_item("t", "notes", "k", b"bytes")
    with pytest.raises(NotNow, match="only a run that has ended can be deleted"):
        hf.delete("t")
    hf.finish("t", {"answer": 7})
    hf.finish("t", "again")
    assert {"answer": 7} == hf.result("t")

    hf.delete("t")

    hf.record("graph", id="t", thread="t")
    assert (hf.item("t", "notes", "k"), hf.items("t")) == (None, [])
    assert hf.put_item("t", "notes", "k", 2)


def test_gc_deletes_runs_that_another_program_executed_once_they_have_ended(hf: Holdfast) -> None:
    hf.record("graph", id="open")
    hf.finish("t")

    assert ["t"] == list(hf.gc(keep=0).runs)
    assert ["open"] == [row.id for row in hf.runs()]


# ── runs that another program executes ───────────────────────────────────────────────────────


def test_no_worker_claims_a_run_that_another_program_executes(hf: Holdfast, url: str) -> None:
    @agent
    def graph(run: Run, thread: str) -> None: ...

    with Holdfast(url, agents=[graph]) as other:
        other.worker().run(once=True)
    state = hf.get("t")

    assert ("waiting", "graph, which is executing it", True) == (
        state.status,
        state.waiting_for,
        state.is_recorded,
    )
    assert [] == views.next_steps(hf.store, "t")
    assert [] == [x for x in hf.doctor().overdue if x.agent == "graph"]


def test_a_recorded_run_is_idempotent_by_its_id(hf: Holdfast) -> None:
    events = hf.events("t")
    hf.record("graph", id="t", thread="t")
    assert events == hf.events("t")
    with pytest.raises(InputConflict):
        hf.record("graph", id="t", thread="another")
    with pytest.raises(InputConflict):
        hf.record("other", id="t", thread="t")


def test_a_run_whose_creator_died_at_once_is_recorded_by_the_next(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Holdfast(url) as hf:
        with monkeypatch.context() as patch:
            patch.setattr("holdfast.control.items._suspend", interrupted)
            with pytest.raises(KeyboardInterrupt):
                hf.record("graph", id="t")
        assert "pending" == hf.get("t").status
        hf.record("graph", id="t")
        assert "waiting" == hf.get("t").status


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_recorded_run_is_cancelled_at_once(hf: Holdfast) -> None:
    hf.cancel("t", by="sam", why="no longer needed")

    assert "cancelled" == hf.get("t").status
    with pytest.raises(RunCancelled):
        hf.result("t", timeout=0)
    with pytest.raises(NotNow):
        hf.put_item("t", "notes", "k", 1)


def test_only_a_recorded_run_can_be_finished_from_outside(url: str) -> None:
    with Holdfast(url, agents=[asks]) as hf:
        with pytest.raises(RunWaiting):
            hf.run(asks, id="r")
        with pytest.raises(NotNow, match="its agent ends it"):
            hf.finish("r")


def test_an_index_that_names_another_event_is_reported(tmp_path: Path) -> None:
    with Holdfast(tmp_path / "h.db") as hf:
        hf.record("graph", id="t")
        hf.put_item("t", "notes", "k", 1)
        hf.put_item("t", "notes", "other", 2)
    connection = apsw.Connection(str(tmp_path / "h.db"))
    connection.execute("UPDATE keys SET seq = 3 WHERE seq = 2")
    connection.close()
    with Holdfast(tmp_path / "h.db") as hf, pytest.raises(LogDamaged, match="should be item 'k'"):
        hf.item("t", "notes", "k")
