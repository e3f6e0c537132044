"""What every interface offers, as methods: gc, export, import, doctor, check, timeline, runs by status."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, InvalidInput, LogDamaged, Options, Run, RunWaiting, agent, step, tool
from holdfast.bundle import NotABundle
from support.waiting import eventually


@step
def look(n: int) -> int:
    return n


@tool
def act(n: int) -> int:
    return n


@agent
def job(run: Run, n: int = 1) -> int:
    run.artifact("report", b"x" * 20_000)
    return look(n)


@agent
def patient(run: Run) -> Any:
    look(1)
    return run.wait_for("go")


@pytest.fixture
def hf(tmp_path: Path) -> Iterator[Holdfast]:
    with Holdfast(tmp_path / "a b.db", agents=[job, patient]) as hf:
        yield hf


def suspend(hf: Holdfast, run_id: str) -> None:
    with pytest.raises(RunWaiting):
        hf.run(patient, id=run_id)


def test_gc_deletes_runs_that_ended_and_keeps_the_newest(hf: Holdfast) -> None:
    for n in range(3):
        hf.run(job, id=f"r{n}")
    suspend(hf, "open")
    assert hf.gc(keep=1, dry_run=True).runs == ("r1", "r0")
    assert len(hf.runs()) == 4
    assert hf.gc(older_than=3600).runs == ()
    assert set(hf.gc(keep=1).runs) == {"r0", "r1"}
    assert [row.id for row in hf.runs()] == ["open", "r2"]
    for wrong in ({}, {"keep": -1}, {"older_than": "old"}):
        with pytest.raises(InvalidInput):
            hf.gc(**wrong)  # type: ignore[arg-type]


def test_an_exported_run_is_imported_elsewhere_as_it_was(hf: Holdfast, tmp_path: Path) -> None:
    hf.run(job, id="done")
    suspend(hf, "open")
    with Holdfast(tmp_path / "other.db", agents=[job, patient]) as other:
        found = other.import_run(hf.export("done"))
        assert dataclasses.astuple(found) == ("done", "completed", len(hf.events("done")))
        assert other.result("done") == 1
        assert other.artifact("done", "report") == b"x" * 20_000
        assert other.verify("done").ok
        assert other.import_run(hf.export("open")).status == "paused"
        with pytest.raises(InvalidInput, match="exists"):
            other.import_run(hf.export("done"))
        with pytest.raises(NotABundle):
            other.import_run(["{}"])


def test_a_damaged_run_is_not_exported(hf: Holdfast) -> None:
    import apsw

    hf.run(job, id="r")
    db = apsw.Connection(str(hf.store.url.removeprefix("sqlite:///")))
    db.execute("UPDATE events SET data = x'7b7d' WHERE seq = 1")
    db.close()
    with pytest.raises(LogDamaged):
        hf.export("r")
    found = hf.doctor()
    assert not found.ok and [one.run_id for one in found.damaged] == ["r"]


def test_the_doctor_finds_nothing_wrong_with_a_healthy_store(hf: Holdfast) -> None:
    hf.run(job, id="r")
    found = hf.doctor()
    assert found.ok and found.runs == 1 and found.damaged == () and found.overdue == ()
    assert {finding.name for finding in found.findings}


def test_check_lists_the_runs_that_new_code_would_not_continue(hf: Holdfast) -> None:
    suspend(hf, "r")

    @agent(name="patient")
    def changed(run: Run) -> Any:
        look(2)
        return run.wait_for("go")

    assert [(one.row.id, one.verdict) for one in hf.check()] == [("r", "agrees")]
    (one,) = hf.check(changed)
    assert (one.verdict, one.step, one.ok) == ("diverges", 1, False)
    assert "look" in one.recorded and "look" in one.attempted
    assert [one.verdict for one in hf.check(job)] == ["unknown"]


def test_a_runs_events_are_returned_as_sentences_page_by_page(hf: Holdfast) -> None:
    hf.run(job, id="r")
    whole = hf.timeline("r")
    assert [one.seq for one in whole] == list(range(len(hf.events("r"))))
    assert whole[0].text.startswith("created: job") and whole[-1].text.startswith("completed")
    assert hf.timeline("r", after=1, limit=2) == whole[2:4]
    assert hf.timeline("r", after=len(whole) + 5) == []
    assert [r.seq for r, _ in hf.events("r", after=0, limit=1)] == [1]


def test_runs_are_filtered_by_every_status_that_is_shown(tmp_path: Path) -> None:
    with Holdfast(tmp_path / "a.db", options=Options(lease_seconds=0.2)) as hf:
        for n in range(5):
            hf.start(job, id=f"r{n}")
        for n in (1, 3):  # claimed, and never renewed: as if its worker had died
            assert hf.store.claim(f"r{n}", worker="w", lease_us=1)
        eventually(lambda: hf.get("r3").status == "interrupted")
        assert hf.store.claim("r2", worker="w", lease_us=3_600_000_000)
        assert [row.id for row in hf.runs(status="interrupted")] == ["r3", "r1"]
        assert {row.status for row in hf.runs(status="interrupted")} == {"interrupted"}
        assert [row.id for row in hf.runs(status="running")] == ["r2"]
        assert [row.id for row in hf.runs(status="pending")] == ["r4", "r0"]
        (first,) = hf.runs(status="interrupted", limit=1)
        assert [row.id for row in hf.runs(status="interrupted", cursor=first.cursor)] == ["r1"]
        assert [row.status for row in hf.runs()] == [hf.get(row.id).status for row in hf.runs()]
        with pytest.raises(InvalidInput, match="unknown status 'runing'"):
            hf.runs(status="runing")
