"""What people see is the log, whatever is kept next to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, Run, agent, step, views
from holdfast.core import snapshot
from holdfast.core.fold import fold
from holdfast.core.state import RunState
from holdfast.store.base import Snapshot


@step
def double(n: int) -> int:
    return 2 * n


@agent
def counting(run: Run, n: int) -> int:
    for i in range(n):
        run.state.append("seen", double(i))
    return n


@pytest.fixture
def hf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("holdfast.store.brief.SNAPSHOT_AFTER", 10)
    with Holdfast(tmp_path / "h.db") as hf:
        hf.run(counting, id="r", n=20)
        yield hf


def truth(hf: Holdfast) -> RunState:
    return fold(RunState(), hf.store.read("r"))


def test_reading_a_long_run_leaves_a_snapshot_that_changes_nothing(hf: Holdfast) -> None:
    first = hf.get("r", brief=True)
    kept = hf.store.snapshots.newest("r")

    assert kept is not None
    assert snapshot.load(kept.data) == truth(hf)
    assert hf.get("r", brief=True) == first == hf.get("r") == truth(hf)


def spoiled(good: Snapshot, how: str) -> Snapshot:
    other = snapshot.dump(RunState(id="r", seq=good.seq, status="failed"))
    return {
        "of another log": good._replace(hash=b"x" * 32, data=other),
        "of another version": good._replace(code_version="0", data=other),
        "of another run": good._replace(
            data=snapshot.dump(RunState(id="q", seq=good.seq, status="failed"))
        ),
        "of another length": good._replace(
            data=snapshot.dump(RunState(id="r", seq=3, status="failed"))
        ),
        "beyond the log": good._replace(seq=good.seq + 5, data=other),
        "cut short": good._replace(data=good.data[:50]),
    }[how]


@pytest.mark.parametrize(
    "how",
    [
        "of another log",
        "of another version",
        "of another run",
        "of another length",
        "beyond the log",
        "cut short",
    ],
)
def test_a_snapshot_that_does_not_fit_the_log_is_ignored(hf: Holdfast, how: str) -> None:
    hf.get("r", brief=True)
    good = hf.store.snapshots.newest("r")
    assert good is not None
    hf.store.snapshots.save("r", spoiled(good, how), keep=1)

    assert hf.get("r", brief=True) == truth(hf)


@agent
def planning(run: Run, goes_by_it: bool) -> None:
    run.plan(["double", "tell"])
    if goes_by_it:
        with run.doing("double"):
            double(1)
    else:
        double(1)
        double(2)
        double(3)


def test_the_position_of_a_run_is_from_its_plan_or_from_its_calls_if_it_only_wrote_a_plan(
    hf: Holdfast,
) -> None:
    hf.run(planning, True, id="goes-by-it")
    hf.run(planning, False, id="only-written")

    assert "step 2 of 2, tell; 1 committed" == str(views.position(hf.get("goes-by-it")))
    assert "step 3; 1–3 committed" == str(views.position(hf.get("only-written")))
