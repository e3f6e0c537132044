"""People decide: approvals, questions, and calls gated by their risk."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from holdfast import (
    AlreadyDecided,
    Approval,
    AsyncRun,
    CallFailed,
    Holdfast,
    HoldfastError,
    InvalidInput,
    NotFound,
    NotNow,
    Rejected,
    Run,
    RunCancelled,
    RunFailed,
    RunWaiting,
    agent,
    tool,
    views,
)
from holdfast.core import events as e
from holdfast.core.values import digest
from support.runs import of_kind, waits

# ── run.approve and run.ask ──────────────────────────────────────────────────────────────────


@agent
def asking(run: Run) -> str:
    run.approve("Send to Sam?", show={"to": "sam"})
    return "sent"


def test_approve_suspends_the_run_until_a_person_decides(home: Any) -> None:
    hf = home.open()
    waiting = waits(hf, asking)
    assert waiting.waiting_for == "approval: Send to Sam?"
    assert waiting.how == "hf.approve('r'), or hf.reject('r')"
    (wait,) = hf.get("r").waits
    assert views.to_plain(wait.show) == {"to": "sam"}

    hf.approve("r", by="ann", why="because")

    assert home.open().run(asking, id="r") == "sent"
    (decision,) = of_kind(hf, "r", e.ApprovalDecided)
    assert (decision.by, decision.why, decision.approved) == ("ann", "because", True)


def test_an_agent_that_ignores_the_answer_stops_at_a_rejection(home: Any) -> None:
    hf = home.open()
    waits(hf, asking)

    hf.reject("r", by="ann", why="too soon")

    with pytest.raises(RunFailed, match="rejected by ann: too soon"):
        home.open().run(asking, id="r")
    with pytest.raises(RunFailed, match="rejected by ann: too soon"):
        home.open(asking).resume("r")


def test_an_agent_may_take_another_path_after_a_rejection(home: Any) -> None:
    @agent
    def main(run: Run) -> str:
        try:
            run.approve("ok?")
        except Rejected as no:
            return no.message
        return "yes"

    hf = home.open()
    waits(hf, main)
    hf.reject("r")

    assert home.open().run(main, id="r") == "rejected by a person"


def test_ask_suspends_the_run_until_one_of_its_options_is_answered(home: Any) -> None:
    @agent
    def main(run: Run) -> Any:
        return run.ask("Which one?", options=["red", "blue"])

    hf = home.open()
    assert waits(hf, main).how == "hf.answer('r', 'red')"
    with pytest.raises(InvalidInput, match="red, blue"):
        hf.answer("r", "green")
    hf.answer("r", "blue", by="ann")
    with pytest.raises(AlreadyDecided):
        hf.answer("r", "red")

    assert home.open().run(main, id="r") == "blue"


def test_an_open_question_takes_any_value(home: Any) -> None:
    @agent
    def main(run: Run) -> Any:
        return run.ask("Well?")

    hf = home.open()
    waits(hf, main)
    hf.answer("r", {"a": [1, 2]})

    assert hf.run(main, id="r") == {"a": [1, 2]}


def test_an_async_agent_asks_people_too(home: Any) -> None:
    @agent
    async def main(run: AsyncRun) -> Any:
        return [await run.approve("ok?"), await run.ask("which?")]

    hf = home.open()
    waits(hf, main)
    hf.approve("r")
    waits(hf, main)
    hf.answer("r", "this")

    assert hf.run(main, id="r") == [True, "this"]


def test_an_expired_approval_is_rejected(home: Any, clock: Any) -> None:
    @agent
    def main(run: Run) -> str:
        try:
            run.approve("ok?", timeout=60)
        except Rejected as rejected:
            return rejected.message
        return "?"

    hf = home.open(main)
    waits(hf, main)
    clock.advance(61)
    with pytest.raises(NotNow, match="expired"):
        hf.approve("r")
    hf.worker().run(once=True)

    assert hf.handle("r").result() == "no decision in time"


def test_an_expired_question_returns_none(home: Any, clock: Any) -> None:
    @agent
    def main(run: Run) -> Any:
        return run.ask("Which?", timeout=60)

    hf = home.open(main)
    waits(hf, main)
    clock.advance(61)
    with pytest.raises(NotNow, match="expired"):
        hf.answer("r", "late")
    hf.worker().run(once=True)

    assert hf.handle("r").result() is None


def test_the_first_decision_counts_and_later_ones_get_it_in_their_error(home: Any) -> None:
    hf = home.open()
    waits(hf, asking)
    hf.reject("r", by="ann", why="too late")

    with pytest.raises(AlreadyDecided, match="rejected by ann: too late"):
        hf.approve("r", by="bob")
    with pytest.raises(RunFailed, match="rejected by"):
        hf.run(asking, id="r")
    with pytest.raises(NotNow):
        hf.approve("r")


def test_deciding_where_nothing_is_asked_is_refused(home: Any) -> None:
    @agent
    def main(run: Run) -> None:
        run.wait_for("x")

    hf = home.open()
    waits(hf, main)
    for act in (hf.approve, hf.reject, lambda i: hf.answer(i, 1)):
        with pytest.raises(NotNow, match="is not waiting"):
            act("r")
        with pytest.raises(NotFound):
            act("nobody")


def test_with_several_open_requests_a_decision_must_name_one(home: Any) -> None:
    @agent
    def main(run: Run) -> list[bool]:
        return run.map(lambda name: run.wait_any(Approval(f"{name}?"))[1], ["a", "b"])

    hf = home.open()
    waits(hf, main)
    requests = {w.name: w.id for w in hf.get("r").waits}
    assert set(requests) == {"a?", "b?"}
    with pytest.raises(InvalidInput, match="waiting for 2 approvals; name one"):
        hf.approve("r")
    hf.approve("r", requests["b?"])
    waits(hf, main)
    hf.reject("r", requests["a?"])

    assert hf.run(main, id="r") == [False, True]


def test_of_racing_decisions_one_wins_and_the_others_get_an_error(home: Any) -> None:
    hf = home.open()
    for round_ in range(5):
        run_id = f"r{round_}"
        waits(hf, asking, run_id)
        people = 8
        outcomes: list[Any] = [None] * people
        start = threading.Barrier(people)
        stores = [home.open() for _ in range(2)]

        def decide(
            n: int,
            run_id: str = run_id,
            start: Any = start,
            outcomes: Any = outcomes,
            stores: Any = stores,
        ) -> None:
            start.wait()
            mine = stores[n % 2]
            try:
                (mine.approve if n % 3 else mine.reject)(run_id, by=f"person {n}")
                outcomes[n] = "won"
            except AlreadyDecided:
                outcomes[n] = "told"

        threads = [threading.Thread(target=decide, args=(n,)) for n in range(people)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert sorted(outcomes) == ["told"] * (people - 1) + ["won"]
        (decision,) = of_kind(hf, run_id, e.ApprovalDecided)
        assert decision.by == f"person {outcomes.index('won')}"
        if decision.approved:
            assert hf.run(asking, id=run_id) == "sent"
        else:
            with pytest.raises(RunFailed, match="rejected by"):
                hf.run(asking, id=run_id)


def test_a_cancel_that_comes_before_the_approval_is_used_wins(home: Any) -> None:
    hf = home.open()
    waits(hf, asking)
    hf.approve("r")
    hf.cancel("r", by="ann")

    with pytest.raises(RunCancelled):
        hf.run(asking, id="r")


def test_a_waiting_run_costs_a_row_and_no_thread(home: Any) -> None:
    hf = home.open()
    waits(hf, asking, "warm")
    before = threading.active_count()
    for n in range(50):
        waits(hf, asking, f"r{n}")

    assert threading.active_count() <= before
    assert len(hf.runs(status="waiting", limit=100)) == 51
    assert len(hf.engine.leases._sessions) == 0


# ── gated by risk ────────────────────────────────────────────────────────────────────────────


def gated(ran: list[Any], *, version: str = "", to: str = "sam", **options: Any) -> Any:
    @tool(version=version)
    def send(to: str) -> str:
        ran.append(to)
        return f"sent to {to}"

    @tool(risk="write_local")
    def save() -> str:
        ran.append("saved")
        return "saved"

    @agent(approve=("external_action",), name="gated", **options)
    def main(run: Run) -> str:
        save()
        return send(to)

    return main


def test_a_risky_call_needs_approval_and_others_do_not(home: Any) -> None:
    ran: list[Any] = []
    main = gated(ran)
    hf = home.open()

    assert waits(hf, main).waiting_for == "approval of send"
    assert ran == ["saved"]
    (wait,) = hf.get("r").waits
    assert views.to_plain(wait.show) == {"to": "sam"}
    assert (wait.tool, wait.digest) == ("send", digest(b'{"to":"sam"}'))
    assert hf.get("r").call(2) is None  # nothing has begun
    hf.approve("r", by="ann")

    assert home.open().run(main, id="r") == "sent to sam"


def test_the_approval_is_consumed_with_the_intent_in_one_event(home: Any) -> None:
    main = gated([])
    hf = home.open()
    waits(hf, main)
    hf.approve("r")
    hf.run(main, id="r")

    events = [event for _, event in hf.events("r")]
    (intent,) = [x for x in events if isinstance(x, e.CallStarted) and x.name == "send"]
    decision = events[intent.approval]
    assert isinstance(decision, e.ApprovalDecided)
    assert (decision.approved, decision.digest) == (True, intent.digest)


def test_a_rejected_call_is_a_failure_that_surely_had_no_effect(home: Any) -> None:
    ran: list[Any] = []

    @tool
    def send() -> None:
        ran.append(1)

    @agent(approve=("external_action",))
    def main(run: Run) -> list[str]:
        try:
            send()
        except Rejected as rejected:
            return [rejected.message]
        return []

    hf = home.open()
    waits(hf, main)
    hf.reject("r", by="ann", why="not on Fridays")

    assert hf.run(main, id="r") == ["rejected by ann: not on Fridays"]
    assert ran == []
    assert hf.get("r").call(1).error.effect == "none"
    assert issubclass(Rejected, CallFailed)


def test_resuming_a_run_that_failed_on_a_rejection_asks_again(home: Any) -> None:
    ran: list[Any] = []
    main = gated(ran)
    hf = home.open(main)
    waits(hf, main)
    hf.reject("r", by="ann")
    with pytest.raises(RunFailed, match="rejected by ann"):
        hf.run(main, id="r")

    with pytest.raises(RunWaiting, match="approval of send"):
        hf.resume("r")
    with pytest.raises(RunWaiting, match="approval of send"):  # once, however often one looks
        home.open(main).resume("r")
    assert len([x for x in of_kind(hf, "r", e.WaitBegan) if x.tool == "send"]) == 2
    hf.approve("r", by="bob")

    assert home.open().run(main, id="r") == "sent to sam"


@pytest.mark.parametrize(
    ("approved", "changed", "says"),
    [
        ({"to": "sam"}, {"to": "mallory"}, "diverged"),
        ({"version": "1"}, {"version": "2"}, "version '1'"),
    ],
    ids=["arguments", "version"],
)
def test_an_approval_is_bound_to_the_exact_arguments_and_to_the_tools_version(
    home: Any, approved: dict[str, str], changed: dict[str, str], says: str
) -> None:
    """Code that changed since must not send anything other than what was approved."""
    ran: list[Any] = []
    hf = home.open()
    waits(hf, gated(ran, **approved))
    hf.approve("r")

    with pytest.raises(HoldfastError, match=says):
        hf.run(gated(ran, **changed), id="r")
    assert ran == ["saved"]


def test_a_decision_on_an_outdated_request_is_refused(home: Any) -> None:
    hf = home.open()
    waits(hf, gated([]))

    with pytest.raises(NotNow, match="a different request than the one shown"):
        hf.approve("r", digest="0" * 32)
    hf.approve("r", digest=digest(b'{"to":"sam"}'))


def test_an_approval_is_used_once(home: Any) -> None:
    ran: list[Any] = []

    @tool
    def send(to: str) -> str:
        ran.append(to)
        return to

    @agent(approve=("external_action",))
    def main(run: Run) -> list[str]:
        return [send("sam"), send("sam")]

    hf = home.open()
    waits(hf, main)
    hf.approve("r")
    waits(hf, main)
    assert ran == ["sam"]
    hf.approve("r")

    assert hf.run(main, id="r") == ["sam", "sam"]


def test_an_approved_call_that_crashes_is_in_doubt_and_not_approved_again(
    home: Any,
) -> None:
    ran: list[Any] = []
    main = gated(ran)
    hf = home.open()
    waits(hf, main)
    hf.approve("r")
    home.crash(main, "r", "after send")

    with pytest.raises(RunWaiting, match="may or may not"):
        home.open().run(main, id="r")
    assert ran == ["saved", "sam"]


def test_an_approval_expires_whether_it_was_given_or_not(home: Any, clock: Any) -> None:
    ran: list[Any] = []
    main = gated(ran, approval_ttl=60)
    hf = home.open(main)
    waits(hf, main, "late")
    waits(hf, main, "unused")
    hf.approve("unused")
    clock.advance(61)

    with pytest.raises(NotNow, match="expired"):
        hf.approve("late")
    for run_id in ("late", "unused"):
        with pytest.raises(RunFailed, match="not given and used in time"):
            hf.run(main, id=run_id)
    assert ran == ["saved", "saved"]


def test_a_retry_of_an_approved_call_needs_no_second_approval(home: Any) -> None:
    """The approval is for the action; its attempts carry one key."""
    from holdfast import Retry

    tried: list[str] = []

    @tool(retry=Retry(attempts=3, initial=0))
    def send(idempotency_key: str = "") -> str:
        tried.append(idempotency_key)
        if len(tried) < 3:
            raise ConnectionError("no")
        return "sent"

    @agent(approve=("external_action",))
    def main(run: Run) -> str:
        return send()

    hf = home.open()
    waits(hf, main)
    hf.approve("r")

    assert hf.run(main, id="r") == "sent"
    assert len(set(tried)) == 1


def test_the_gate_looks_at_the_tool_however_it_is_called(home: Any) -> None:
    ran: list[Any] = []

    @tool
    def send(to: str) -> None:
        ran.append(to)

    alias = send
    in_a_dict = {"harmless": send}

    @agent(approve=("external_action",))
    def main(run: Run) -> None:
        run.map(lambda f: f("sam"), [alias, in_a_dict["harmless"], lambda to: send(to=to)])

    waits(home.open(), main)
    assert ran == []


def test_a_child_run_is_gated_by_its_own_agent(home: Any) -> None:
    ran: list[Any] = []

    @tool
    def send() -> str:
        ran.append(1)
        return "sent"

    @agent(approve=("external_action",))
    def child(run: Run) -> str:
        return send()

    @agent
    def parent(run: Run) -> str:
        return child()

    hf = home.open(parent, child)
    waits(hf, parent)
    assert ran == []
    hf.approve("r~1")
    hf.worker().run(once=True)

    assert hf.run(parent, id="r") == "sent"


def test_an_unknown_risk_is_refused_when_declared() -> None:
    with pytest.raises(InvalidInput, match="approve takes risks"):

        @agent(approve=("everything",))
        def main(run: Run) -> None: ...


def test_arguments_bigger_than_an_event_are_shown_and_bound_too(home: Any) -> None:
    ran: list[int] = []

    @tool
    def send(body: str) -> int:
        ran.append(len(body))
        return len(body)

    @agent(approve=("external_action",))
    def main(run: Run) -> int:
        return send("x" * 100_000)

    hf = home.open()
    waits(hf, main)
    hf.approve("r")

    assert hf.run(main, id="r") == 100_000


@pytest.mark.parametrize(
    "act",
    [
        lambda hf: hf.signal("r", "go", by=5),
        lambda hf: hf.signal("r", "go", signal_id=5),
        lambda hf: hf.patch("r", {"a": 1}, by=5),
        lambda hf: hf.pause("r", why=5),
        lambda hf: hf.cancel("r", by=5),
    ],
)
def test_a_reason_that_is_not_valid_text_is_refused_and_leaves_the_log_unchanged(
    hf: Holdfast, act: Any
) -> None:
    @agent
    def waiter(run: Run) -> Any:
        return run.wait_for("go")

    with pytest.raises(RunWaiting):
        hf.run(waiter, id="r")
    with pytest.raises(InvalidInput, match=r"nothing was recorded: .*Expected `str`, got `int`"):
        act(hf)

    assert "waiting" == hf.get("r").status
    assert hf.verify("r").ok
