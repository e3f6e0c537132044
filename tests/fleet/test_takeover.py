"""A worker dies, and its runs continue elsewhere; a worker that only seemed dead can do no harm."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from holdfast import Holdfast, views
from holdfast.core.events import CallDoubted, CallEvidence, RunClaimed
from support import chaos_agents
from support.fleet import Fleet
from support.ledger import Ledger
from support.waiting import PATIENCE_SECONDS, Door, eventually

LEASE_SECONDS = 5.0  # two of them leave a busy machine time to be late


def claims(hf: Holdfast, run_id: str) -> int:
    return sum(isinstance(event, RunClaimed) for _, event in hf.events(run_id))


def doubted(hf: Holdfast, run_id: str) -> list[Any]:
    """The calls in doubt, as soon as another worker has taken the run over and said so: that the lease has
    ended is seen before."""
    said = any(isinstance(event, CallDoubted) for _, event in hf.events(run_id))
    return list(hf.get(run_id).in_doubt) if said else []


def marks(ledger: Ledger, run_id: str) -> list[dict[str, Any]]:
    return [effect["args"] for effect in ledger.effects(run_id)]


def test_runs_of_a_killed_worker_are_resumed_elsewhere_within_two_lease_times(
    url: str, ledger: Ledger, door: Door, tmp_path: Path
) -> None:
    with (
        Holdfast(url) as hf,
        Fleet(url, ledger, tmp_path, size=2, lease_seconds=LEASE_SECONDS) as fleet,
    ):
        hf.start(chaos_agents.marked, id="r", steps=8, door=door.path)
        first = eventually(lambda: marks(ledger, "r")[3:] and marks(ledger, "r")[0])

        fleet.kill(fleet.place_of(first["pid"]))

        killed_at = time.monotonic()
        door.open()
        after = eventually(lambda: [x for x in marks(ledger, "r") if x["pid"] != first["pid"]])
        assert after[0]["at"] - killed_at < 2 * LEASE_SECONDS
        assert hf.result("r", timeout=PATIENCE_SECONDS) == 8


def test_code_that_computes_for_longer_than_its_lease_keeps_it(
    url: str, ledger: Ledger, tmp_path: Path
) -> None:
    with (
        Holdfast(url) as hf,
        Fleet(url, ledger, tmp_path, size=2, lease_seconds=3.0) as fleet,
    ):
        hf.start(chaos_agents.crunching, id="r", seconds=4.5)

        hf.result("r", timeout=PATIENCE_SECONDS)

        assert claims(hf, "r") == 1
        assert fleet.died == []


def with_evidence(hf: Holdfast, run_id: str) -> list[Any]:
    """The calls in doubt about which a worker has reported, once the run waits for a decision about them: before
    that, another worker may just have claimed it."""
    state = hf.get(run_id)
    return [x for x in state.in_doubt if x.evidence] if state.status == "waiting" else []


def test_a_call_that_holds_the_interpreter_past_its_lease_is_in_doubt_and_not_repeated(
    url: str, ledger: Ledger, door: Door, tmp_path: Path
) -> None:
    """Nothing in that process can renew the lease. Another worker takes the run; what the first one did is
    refused as a receipt and kept as evidence, and the run continues when someone has decided."""
    with (
        Holdfast(url) as hf,
        Fleet(url, ledger, tmp_path, size=2, lease_seconds=0.8) as fleet,
    ):
        hf.start(chaos_agents.hogged, id="r", door=door.path)
        doubt = eventually(lambda: doubted(hf, "r"), "doubt")[0]
        assert [x["tool"] for x in ledger.effects("r")] == ["begins"]
        door.open()
        doubt = eventually(lambda: with_evidence(hf, "r"), "evidence")[0]
        assert doubt.evidence[0].outcome == "done"
        hf.resolve("r", doubt.step, done="done", by="test", why="the worker said so")

        assert hf.result("r", timeout=PATIENCE_SECONDS) == "done"
        assert [x["tool"] for x in ledger.effects("r")] == ["begins", "ends"]
        assert claims(hf, "r") >= 2
        assert fleet.died == []


def test_the_receipt_of_a_frozen_worker_is_shown_to_the_person_who_decides(
    url: str, ledger: Ledger, door: Door, tmp_path: Path
) -> None:
    with (
        Holdfast(url) as hf,
        Fleet(url, ledger, tmp_path, size=2, lease_seconds=2.0) as fleet,
    ):
        hf.start(chaos_agents.blocking, id="r", door=door.path)
        frozen = eventually(lambda: marks(ledger, "r"))[0]["pid"]
        fleet.freeze(fleet.place_of(frozen), seconds=0)

        doubt = eventually(lambda: doubted(hf, "r"), "doubt")[0]
        assert doubt.evidence == ()
        door.open()
        fleet.look_after()  # it wakes, and its tool comes to its end
        doubt = eventually(lambda: with_evidence(hf, "r"), "evidence")[0]

        assert doubt.evidence[0].outcome == "done"
        hf.resolve("r", doubt.step, done="it", by="test", why="the worker said so")
        assert hf.result("r", timeout=PATIENCE_SECONDS) == "it"
        kinds = [type(event) for _, event in hf.events("r")]
        assert (kinds.count(CallDoubted), kinds.count(CallEvidence)) == (1, 1)
        assert [x["tool"] for x in ledger.effects("r")] == ["begins it", "ends it"]
        assert views.verify(hf.store, "r").ok
