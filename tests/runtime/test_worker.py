"""A worker takes runs up that are due, and goes on when the store has failed for a moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, Run, StoreUnavailable, agent, step
from holdfast.store.base import RunRow


@step
def double(n: int) -> int:
    return 2 * n


@agent
def doubling(run: Run, n: int) -> int:
    return double(n)


def test_a_worker_executes_what_was_started_and_ends_when_nothing_is_due(tmp_path: Path) -> None:
    with Holdfast(tmp_path / "h.db", agents=[doubling]) as hf:
        handles = [hf.start(doubling, n=i) for i in range(5)]

        done = hf.worker(concurrency=2).run(once=True)

        assert (done, [h.result() for h in handles]) == (5, [0, 2, 4, 6, 8])


def test_a_store_that_fails_for_a_moment_does_not_end_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Holdfast(tmp_path / "h.db", agents=[doubling]) as hf:
        handle = hf.start(doubling, n=4)
        claim, failures = (
            hf.store.claim_due,
            [StoreUnavailable("restarting"), StoreUnavailable("restarting")],
        )

        def sometimes(**kwargs: Any) -> list[RunRow]:
            if failures:
                raise failures.pop()
            return claim(**kwargs)

        monkeypatch.setattr(hf.store, "claim_due", sometimes)

        hf.worker().run(once=True)

        assert handle.result(timeout=5) == 8


def test_a_run_that_kills_its_workers_is_set_aside_and_others_go_on(tmp_path: Path) -> None:
    with Holdfast(tmp_path / "h.db", agents=[doubling]) as hf:
        poison = hf.start(doubling, id="poison", n=1)
        for _ in range(hf.engine.options.quarantine_after):  # as if each worker had died at once
            row = hf.store.claim("poison", worker="dead", lease_us=0)
            assert row is not None
        other = hf.start(doubling, n=3)

        hf.worker().run(once=True)

        assert (poison.status, other.status) == ("quarantined", "completed")
        assert "may kill its workers" in hf.get("poison").waiting_for
        assert hf.resume("poison") == 2
