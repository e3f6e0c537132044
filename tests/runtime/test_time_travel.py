"""Look at any moment of a run, go another way from there, and check the log against the code."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from holdfast import (
    AsyncRun,
    Holdfast,
    InvalidInput,
    LogDamaged,
    NotFound,
    Run,
    RunFailed,
    RunWaiting,
    agent,
    step,
    tool,
    views,
)
from holdfast.core import events as e


class Desk:
    """A run with a read, a decision and two sends; it counts what really happens."""

    def __init__(self) -> None:
        self.read: list[str] = []
        self.keys: list[str] = []

        @step
        def look(name: str) -> str:
            self.read.append(name)
            return f"notes of {name}"

        @tool
        def send(to: str, body: str, idempotency_key: str = "") -> dict[str, Any]:
            self.keys.append(idempotency_key)
            return {"id": f"m{len(self.keys)}", "to": to}

        @agent(stages=("reading", "sending"))
        def desk(run: Run, name: str) -> Any:
            run.stage = "reading"
            run.state.notes = look(name)
            run.state.to = "sam"
            run.stage = "sending"
            first = send(to=run.state.to, body=run.state.notes)
            run.state.first = first["id"]
            run.decide("second", run.state.to, why="same again")
            second = send(to=run.state.to, body="again")
            run.state.second = second["id"]
            return [run.state.first, run.state.second, run.state.to]

        self.agent = desk


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def ran(home: Any, desk: Desk) -> Holdfast:
    hf: Holdfast = home.open(desk.agent)
    hf.run(desk.agent, id="r", name="sam")
    return hf


def test_at_gives_the_state_before_and_after_a_step(ran: Holdfast) -> None:
    assert ran.at("r", 1, "before").state == {}
    assert ran.at("r", 1).state == {"notes": "notes of sam", "to": "sam"}
    before, after = ran.at("r", 2, "before"), ran.at("r", 2)
    assert before.state == {"notes": "notes of sam", "to": "sam"}
    assert (before.stage, before.steps, after.steps) == ("sending", 1, 2)
    assert [c.status for c in after.calls] == ["done", "done"]
    assert ran.at("r", step=3, when="after").state["second"] == "m2"
    with pytest.raises(NotFound, match="has no step 9; it has 3"):
        ran.at("r", 9)
    with pytest.raises(InvalidInput, match="when"):
        ran.at("r", 1, "during")  # type: ignore[arg-type]


def test_diff_shows_what_changed_between_two_steps(ran: Holdfast) -> None:
    changes = {change.path: (change.before, change.after) for change in ran.diff("r", 1, 2)}

    assert changes["state.first"] == (None, "m1")
    assert changes["steps"] == (1, 2)
    assert "state.notes" not in changes
    assert any(path.startswith("decisions[0]") for path in changes)


def test_events_are_the_log_and_can_be_read_from_any_place(ran: Holdfast) -> None:
    everything = ran.events("r")

    assert [record.seq for record, _ in everything] == list(range(len(everything)))
    assert isinstance(everything[0][1], e.RunCreated)
    assert isinstance(everything[-1][1], e.RunCompleted)
    assert ran.events("r", after=4) == everything[5:]


def test_replay_runs_the_code_against_the_log_and_executes_nothing(
    ran: Holdfast, desk: Desk
) -> None:
    before = ran.events("r")
    counts = (len(desk.read), len(desk.keys))

    replayed = ran.replay("r")

    assert replayed.diverged is None
    assert replayed.reached_end
    assert replayed.result == ["m1", "m2", "sam"]
    assert (len(desk.read), len(desk.keys)) == counts
    assert ran.events("r") == before


def test_replay_of_an_unfinished_run_stops_where_the_log_ends(home: Any, desk: Desk) -> None:
    home.crash(desk.agent, "r", "after commit call_started", name="sam")
    hf = home.open(desk.agent)
    before = hf.events("r")

    replayed = hf.replay("r")

    assert (replayed.diverged, replayed.reached_end) == (None, False)
    assert desk.keys == []
    assert hf.events("r") == before


def test_replay_of_a_failed_and_of_a_waiting_run(home: Any) -> None:
    @step
    def bad() -> None:
        raise ValueError("no")

    @agent
    def main(run: Run, patient: bool) -> None:
        if patient:
            run.wait_for("go")
        bad()

    hf = home.open(main)
    with pytest.raises(RunFailed):
        hf.run(main, id="failed", patient=False)
    with pytest.raises(RunWaiting):
        hf.run(main, id="waiting", patient=True)

    assert hf.replay("failed").diverged is None
    assert hf.replay("failed").reached_end
    assert hf.replay("waiting").diverged is None
    assert not hf.replay("waiting").reached_end


def test_replay_of_an_async_run_with_branches_and_a_child(home: Any) -> None:
    import asyncio

    ran: list[Any] = []

    @step
    async def work(n: int) -> int:
        ran.append(n)
        return n

    @agent
    async def child(run: AsyncRun) -> int:
        return await work(100)

    @agent
    async def main(run: AsyncRun) -> Any:
        return [*await asyncio.gather(work(1), work(2)), await child()]

    hf = home.open(main, child)
    hf.run(main, id="r")
    count = len(ran)

    replayed = hf.replay("r")

    assert (replayed.diverged, replayed.result, len(ran)) == (None, [1, 2, 100], count)


def test_replay_after_a_rerun_looks_at_the_last_execution(home: Any) -> None:
    @step
    def work(n: int) -> int:
        return n

    @agent
    def main(run: Run) -> int:
        run.state.increment("times")
        return work(run.state.times)

    hf = home.open(main)
    hf.run(main, id="r")
    assert hf.rerun("r") == 2

    assert hf.replay("r").diverged is None
    assert hf.replay("r").result == 2


def test_replay_shows_where_changed_code_diverges_and_writes_nothing(
    ran: Holdfast, home: Any
) -> None:
    @step
    def other(name: str) -> str:
        return name

    @agent(name="desk")
    def desk(run: Run, name: str) -> Any:
        return other(name)

    hf = home.open(desk)
    before = hf.events("r")

    replayed = hf.replay("r")

    assert replayed.diverged is not None
    assert "look" in replayed.diverged.recorded
    assert "other" in replayed.diverged.attempted
    assert hf.events("r") == before
    assert hf.get("r").status == "completed"


# ── forking ──────────────────────────────────────────────────────────────────────────────────


def test_a_signal_that_a_wait_has_received_is_not_delivered_again_in_a_fork(home: Any) -> None:
    @step
    def between(name: str) -> str:
        return name

    @agent
    def twice(run: Run) -> list[Any]:
        got = [between("first"), run.wait_for("mail"), between("second")]
        return [*got, run.wait_for("mail")]

    hf = home.open(twice)
    with pytest.raises(RunWaiting):
        hf.run(twice, id="r")
    hf.signal("r", "mail", 1)
    with pytest.raises(RunWaiting):
        hf.run(twice, id="r")

    copy = hf.fork("r", 2)

    with pytest.raises(RunWaiting, match="mail"):
        hf.resume(copy.id)
    hf.signal(copy.id, "mail", 2)
    assert hf.resume(copy.id) == ["first", 1, "second", 2]


def test_a_fork_continues_from_a_step_with_its_own_keys(ran: Holdfast, desk: Desk) -> None:
    handle = ran.fork("r", 2, id="f")
    assert handle.status == "pending"

    result = ran.run(desk.agent, id="f", name="sam")

    assert result == ["m1", "m3", "sam"]
    assert len(desk.read) == 1
    assert len(desk.keys) == 3
    assert desk.keys[2].startswith("f:3:send:")
    assert len(set(desk.keys)) == 3
    assert ran.verify("f").ok
    assert ran.run(desk.agent, id="r", name="sam") == ["m1", "m2", "sam"]


def test_a_fork_lists_the_effects_it_inherits(ran: Holdfast) -> None:
    ran.fork("r", 2, id="f")

    state = ran.get("f")

    assert state.forked_from == "r"
    assert state.inherited_effects == ("step 2: send",)
    assert ran.get("r").inherited_effects == ()


def test_a_forks_state_is_available_when_the_code_continues_from_that_step(
    ran: Holdfast, desk: Desk
) -> None:
    ran.fork("r", 1, id="f", state={"to": "kim"}, by="ann")

    # The code itself sets it after step 1.
    assert ran.run(desk.agent, id="f", name="sam")[2] == "sam"
    ran.fork("r", 2, id="g", state={"to": "kim"})
    result = ran.run(desk.agent, id="g", name="sam")

    assert result == ["m1", "m5", "kim"]
    assert ran.get("g").call(3).args is not None
    assert views.to_plain(ran.get("g").call(3).args)["to"] == "kim"


def test_a_fork_of_a_finished_run_is_not_finished(ran: Holdfast) -> None:
    ran.fork("r", 3, id="f")

    assert ran.get("f").status == "pending"
    assert ran.get("f").result is None


def test_a_fork_asks_for_approvals_again(home: Any) -> None:
    sent: list[str] = []

    @step
    def look() -> str:
        return "x"

    @tool
    def send(to: str) -> str:
        sent.append(to)
        return to

    @agent(approve=("external_action",))
    def main(run: Run) -> str:
        look()
        return send("sam")

    hf = home.open(main)
    with pytest.raises(RunWaiting):
        hf.run(main, id="r")
    hf.approve("r")
    hf.run(main, id="r")
    hf.fork("r", 1, id="f")

    with pytest.raises(RunWaiting, match="approval of send"):
        hf.run(main, id="f")
    assert sent == ["sam"]


def test_an_approval_that_was_given_and_not_used_is_not_inherited(home: Any) -> None:
    """Two branches: one has its approval, the other's step is where the fork begins."""
    sent: list[str] = []

    @step
    def look(n: int) -> int:
        return n

    @tool
    def send(to: str) -> str:
        sent.append(to)
        return to

    @agent(approve=("external_action",))
    def main(run: Run) -> Any:
        def one(n: int) -> Any:
            if n == 0:
                return send("sam")
            look(1)
            run.wait_for("go")
            return look(2)

        return run.map(one, [0, 1], threads=1)

    hf = home.open(main)
    with pytest.raises(RunWaiting):
        hf.run(main, id="r")
    hf.approve("r")
    hf.signal("r", "go")
    home.crash(main, "r", "before commit call_started")
    with pytest.raises(NotFound):
        hf.fork("r", 7, id="nothing")
    hf.fork("r", 1, id="f")

    with pytest.raises(RunWaiting, match=r"approval of send|signal"):
        hf.run(main, id="f")
    assert sent == []


def test_a_fork_with_big_values_brings_them_along(home: Any) -> None:
    @step
    def big() -> str:
        return "x" * 100_000

    @step
    def size(text: str) -> int:
        return len(text)

    @agent
    def main(run: Run) -> int:
        return size(big())

    hf = home.open(main)
    hf.run(main, id="r")
    hf.fork("r", 1, id="f")

    assert hf.run(main, id="f") == 100_000


def test_a_fork_with_an_existing_or_invalid_id_is_refused(ran: Holdfast) -> None:
    for bad in ("r", "no/slash"):
        with pytest.raises((InvalidInput, Exception), match=r"exist|not a run id"):
            ran.fork("r", 1, id=bad)
    with pytest.raises(NotFound):
        ran.fork("nobody", 1, id="f")
    assert ran.fork("r", 1).id.startswith("r~fork-")


def test_a_fork_of_a_fork_remembers_both(ran: Holdfast, desk: Desk) -> None:
    ran.fork("r", 2, id="f")
    ran.run(desk.agent, id="f", name="sam")
    ran.fork("f", 3, id="g")

    assert ran.get("g").inherited_effects == ("step 2: send", "step 3: send")
    assert ran.get("g").forked_from == "f"
    assert ran.run(desk.agent, id="g", name="sam") == ["m1", "m3", "sam"]


# ── verifying ────────────────────────────────────────────────────────────────────────────────


def damage(home: Any, sql: str) -> None:
    with sqlite3.connect(home.path) as db:
        changed = db.execute(sql).rowcount
    db.close()
    assert changed > 0


DAMAGES = {
    "flipped": "UPDATE events SET data = CAST(replace(CAST(data AS TEXT), 'notes of sam', 'notes of tom') AS BLOB) WHERE kind = 'call_succeeded'",
    "missing": "DELETE FROM events WHERE seq = 3 AND run = (SELECT key FROM runs WHERE id = 'r')",
    "foreign": "UPDATE events SET kind = 'no_such_kind' WHERE seq = 3 AND run = (SELECT key FROM runs WHERE id = 'r')",
}


def test_verify_of_a_sound_log_reports_that_it_is_intact(ran: Holdfast) -> None:
    verdict = ran.verify("r")

    assert (verdict.ok, verdict.events, verdict.problem) == (True, len(ran.events("r")), "")


@pytest.mark.parametrize("how", sorted(DAMAGES))
def test_damage_is_seen_named_and_local(home: Any, desk: Desk, how: str) -> None:
    hf = home.open(desk.agent)
    hf.run(desk.agent, id="r", name="sam")
    hf.run(desk.agent, id="other", name="kim")
    damage(home, DAMAGES[how])
    sends = len(desk.keys)

    hf = home.open(desk.agent)
    verdict = hf.verify("r")
    assert not verdict.ok
    assert "'r' is damaged at event" in verdict.problem
    for look in (hf.get, hf.events, hf.replay, hf.resume, lambda i: hf.at(i, 1)):
        with pytest.raises(LogDamaged, match="'r' is damaged at event"):
            look("r")
    assert len(desk.keys) == sends
    assert hf.verify("other").ok
    assert hf.run(desk.agent, id="other", name="kim")


def test_a_damaged_run_that_is_not_finished_stops_before_any_effect(home: Any, desk: Desk) -> None:
    home.crash(desk.agent, "r", "after commit call_started", name="sam")
    damage(home, DAMAGES["flipped"])

    with pytest.raises(LogDamaged, match="'r' is damaged at event"):
        home.open().run(desk.agent, id="r", name="sam")
    assert desk.keys == []


def test_a_damaged_run_does_not_hold_up_a_worker(home: Any, desk: Desk) -> None:
    home.crash(desk.agent, "r", "after commit call_started", name="sam")
    damage(home, DAMAGES["flipped"])
    hf = home.open(desk.agent)
    hf.start(desk.agent, id="good", name="kim")

    hf.worker().run(once=True)

    assert hf.handle("good").status == "completed"
    assert hf.handle("r").status == "quarantined"
