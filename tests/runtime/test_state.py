"""What an agent remembers: state, stages, plan, decisions, facts, notes, messages, artifacts."""

from __future__ import annotations

import enum
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import (
    AsyncRun,
    Conflict,
    Holdfast,
    InvalidInput,
    NotFound,
    NotNow,
    NotStorable,
    Run,
    RunFailed,
    RunWaiting,
    StatePatch,
    agent,
    step,
    tool,
    views,
)
from holdfast.core import events as e
from support.runs import of_kind, waits

BIG = "x" * 100_000
"""More than an event holds: it is kept next to the log."""


@step
def work() -> None: ...


# ── run.state ────────────────────────────────────────────────────────────────────────────────


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["set", "increment", "append", "delete", "step", "note"]),
        st.sampled_from("ab"),
        st.integers(0, 3),
    ),
    max_size=25,
)


@given(CHANGES, st.sampled_from(["every_step", "on_state_change"]))
def test_state_reads_like_a_dict_that_is_changed_in_the_same_way(
    changes: list[tuple[str, str, int]], checkpoint: Any
) -> None:
    """Read after each change, with calls in between that record some of them; and again on replay."""

    @agent(checkpoint=checkpoint)
    def main(run: Run) -> None:
        expected: dict[str, Any] = {}
        for change, key, value in changes:
            before = expected.get(key)
            match change:
                case "set":
                    run.state[key] = expected[key] = value
                case "increment" if not isinstance(before, list):
                    expected[key] = (before or 0) + value
                    assert expected[key] == run.state.increment(key, value)
                case "append" if before is None or isinstance(before, list):
                    expected[key] = [*(before or ()), value]
                    run.state.append(key, value)
                case "delete":
                    expected.pop(key, None)
                    del run.state[key]
                case "step":
                    work()
                case _:
                    run.note(key, value)
            assert expected == run.state.all()

    with Holdfast(":memory:") as hf:
        hf.run(main, id="r")
        assert hf.replay("r").diverged is None


def test_a_change_of_state_costs_the_same_however_many_came_before(hf: Holdfast) -> None:
    """Counted in calls of the interpreter, which a busy machine does not change."""
    calls = 0

    def count(_frame: object, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    @agent
    def main(run: Run, times: int) -> None:
        sys.setprofile(count)
        try:
            for _ in range(times):
                run.state.increment("n")
        finally:
            sys.setprofile(None)

    hf.run(main, 50, id="few")
    few, calls = calls, 0
    hf.run(main, 500, id="many")
    assert calls < 11 * few


def test_state_has_the_helpers_that_a_guard_reads_like_a_sentence_with(home: Any) -> None:
    @agent
    def main(run: Run) -> None:
        state = run.state
        assert state.never is None
        assert "never" not in state
        state.a = 1
        state["b"] = [1]
        assert (state.a, state["b"], "a" in state) == (1, [1], True)
        assert state.get("a", 5) == 1
        assert state.get("zz", 5) == 5
        assert state.increment("n") == 1
        assert state.increment("n", 2.5) == 3.5
        state.append("b", 2)
        state.append("c", {"x": 1})
        assert state.all() == {"a": 1, "b": [1, 2], "n": 3.5, "c": [{"x": 1}]}
        work()
        assert state.all() == {"a": 1, "b": [1, 2], "n": 3.5, "c": [{"x": 1}]}
        del state.a
        del state["c"]
        assert "a" not in state
        assert state.a is None
        work()

    hf = home.open()
    hf.run(main, id="r")

    assert hf.get("r").state == {"b": [1, 2], "n": 3.5}


def test_state_is_the_same_on_replay_and_increments_are_not_doubled(home: Any) -> None:
    seen: list[Any] = []

    @agent
    def main(run: Run) -> Any:
        run.state.increment("tries")
        run.state.append("log", "a")
        work()
        run.state.increment("tries")
        run.state.append("log", "b")
        seen.append(dict(run.state.all()))
        run.wait_for("go")
        run.state.increment("tries")
        return run.state.tries

    for _ in range(4):
        waits(home.open(), main)
    hf = home.open()
    hf.signal("r", "go")

    assert hf.run(main, id="r") == 3
    assert seen == [{"tries": 2, "log": ["a", "b"]}] * 5
    assert hf.get("r").state == {"tries": 3, "log": ["a", "b"]}


@pytest.mark.parametrize(
    "point", ["before commit call_succeeded", "after commit call_succeeded", "before work"]
)
def test_increments_are_not_doubled_by_a_crash(home: Any, point: str) -> None:
    @agent
    def main(run: Run) -> int:
        run.state.increment("n")
        work()
        run.state.increment("n")
        return run.state.n

    home.crash(main, "r", point)

    assert home.open().run(main, id="r") == 2


def test_branches_change_state_without_losing_each_others_changes(home: Any) -> None:
    @agent
    def main(run: Run) -> Any:
        def one(n: int) -> None:
            run.state.increment("total", n)
            work()
            run.state.append("seen", n)
            run.state.increment("total", n)

        run.map(one, [1, 2, 3])
        run.wait_for("go")
        return [run.state.total, sorted(run.state.seen)]

    waits(home.open(), main)
    hf = home.open()
    hf.signal("r", "go")

    assert hf.run(main, id="r") == [12, [1, 2, 3]]


def test_what_is_read_from_state_cannot_be_changed_in_place(home: Any) -> None:
    said: list[str] = []

    @agent
    def main(run: Run) -> None:
        run.state.rows = [{"a": [1]}]
        rows = run.state.rows
        for change in (
            lambda: rows.append(1),
            lambda: rows[0].update(b=1),
            lambda: rows[0]["a"].append(2),
            lambda: rows.__setitem__(0, 1),
            lambda: run.state.all().clear(),
            rows.sort,
        ):
            with pytest.raises(TypeError, match="cannot be changed in place") as refused:
                change()
            said.append(str(refused.value))
        mine = [*rows, "new"]  # a copy is one's own
        run.state.rows = mine

    hf = home.open()
    hf.run(main, id="r")

    assert hf.get("r").state == {"rows": [{"a": [1]}, "new"]}
    assert "run.state" in said[0]


def test_a_value_that_was_put_into_state_is_not_changed_with_the_variable(home: Any) -> None:
    @agent
    def main(run: Run) -> Any:
        rows = [1]
        run.state.rows = rows
        rows.append(2)
        return run.state.rows

    assert home.open().run(main, id="r") == [1]


def test_wrong_uses_of_state_are_refused_at_once(home: Any) -> None:
    @agent
    def main(run: Run) -> None:
        run.state.text = "a"
        for wrong, message in (
            (lambda: run.state.increment("text"), "not a number"),
            (lambda: run.state.append("text", 1), "not a list"),
            (lambda: setattr(run.state, "get", 1), "cannot be a name"),
            (lambda: run.state.__setitem__("", 1), "cannot be a name"),
            (lambda: run.state.increment("n", "1"), "number"),  # type: ignore[arg-type]
        ):
            with pytest.raises(InvalidInput, match=message):
                wrong()
        with pytest.raises(NotStorable, match=r"state\.x cannot be stored"):
            run.state.x = object()
        with pytest.raises(NotStorable, match=r"\$\.a\[1\]"):
            run.state.x = {"a": [1, float("nan")]}

    hf = home.open()
    hf.run(main, id="r")
    assert hf.get("r").state == {"text": "a"}


def test_state_belongs_to_its_run(home: Any) -> None:
    @agent
    def child(run: Run) -> Any:
        run.state.mine = 2
        return run.state.all()

    @agent
    def main(run: Run) -> Any:
        run.state.mine = 1
        return [child(), run.state.mine]

    assert home.open().run(main, id="r") == [{"mine": 2}, 1]


# ── typed state ──────────────────────────────────────────────────────────────────────────────


@dataclass
class Address:
    street: str
    number: int = 1


@dataclass
class DataState:
    message_id: str | None = None
    tries: int = 0
    at: datetime | None = None
    home: Address | None = None
    tags: list[str] = field(default_factory=list)


class StructState(msgspec.Struct):
    message_id: str | None = None
    tries: int = 0
    at: datetime | None = None
    home: Address | None = None
    tags: list[str] = msgspec.field(default_factory=list)


class PydanticState(pydantic.BaseModel):
    message_id: str | None = None
    tries: int = pydantic.Field(default=0, ge=0)
    at: datetime | None = None
    home: Address | None = None
    tags: list[str] = pydantic.Field(default_factory=list)


MODELS = pytest.mark.parametrize("model", [DataState, StructState, PydanticState])


@MODELS
def test_a_model_types_the_state(home: Any, model: Any) -> None:
    moment = datetime(2026, 1, 2, tzinfo=UTC)

    @agent(state=model)
    def main(run: Run) -> list[Any]:
        state = run.state
        assert (state.message_id, state.tries, state.tags) == (None, 0, [])
        state.at = moment
        state.home = Address("Elm", 3)
        state.increment("tries")
        state.append("tags", "a")
        work()
        assert state.at == moment
        assert state.home == Address("Elm", 3)
        run.wait_for("go")
        assert state.home.number == 3
        return [state.tries, state.tags, state.at == moment]

    waits(home.open(), main)
    hf = home.open()
    hf.signal("r", "go")

    assert hf.run(main, id="r") == [1, ["a"], True]


@MODELS
def test_a_model_refuses_what_does_not_fit(home: Any, model: Any) -> None:
    @agent(state=model)
    def main(run: Run) -> None:
        state = run.state
        with pytest.raises(InvalidInput, match="not declared; declared are message_id, tries"):
            state.nonsense = 1
        with pytest.raises(NotStorable, match=r"state\.tries"):
            state.tries = "three"
        with pytest.raises(NotStorable, match=r"state\.home"):
            state.home = {"street": 5}
        with pytest.raises(NotStorable, match=r"state\.tags"):
            state.append("tags", 5)
        with pytest.raises(NotStorable, match=r"state\.tries"):
            state.increment("tries", 0.5)
        state.tries = 2

    hf = home.open()
    hf.run(main, id="r")
    assert hf.get("r").state == {"tries": 2}


def test_a_pydantic_constraint_is_enforced(home: Any) -> None:
    @agent(state=PydanticState)
    def main(run: Run) -> None:
        with pytest.raises(NotStorable):
            run.state.tries = -1
        with pytest.raises(NotStorable):
            run.state.increment("tries", -1)

    home.open().run(main, id="r")


def test_a_value_that_is_not_a_model_is_refused(home: Any) -> None:
    with pytest.raises(InvalidInput, match="dataclass, a msgspec Struct or a pydantic model"):

        @agent(state=dict)
        def main(run: Run) -> None: ...


# ── templates ────────────────────────────────────────────────────────────────────────────────


def test_a_template_is_filled_from_state(home: Any) -> None:
    @agent(stages=("one",))
    def main(run: Run) -> list[str]:
        run.stage = "one"
        run.state.name = "Sam"
        run.state.price = 1.5
        run.state.deep = {"a": {"b": "c"}}
        return [
            run.format(
                "Hi {state.name}, {state.price:.2f} {state.deep.a.b} [{state.missing}] {stage} {run.id}"
            ),
            run.format("{{literal}}"),
        ]

    assert home.open().run(main, id="r") == ["Hi Sam, 1.50 c [] one r", "{literal}"]


def test_a_template_cannot_reach_into_python(home: Any) -> None:
    @agent
    def main(run: Run) -> str:
        for bad in ("{run._session}", "{os}", "{0}", "{}", "{state}", "{run.state.x}"):
            with pytest.raises(InvalidInput, match="unknown in a template"):
                run.format(bad)
        return run.format("[{state.__class__}{state.x.__globals__}]")

    assert home.open().run(main, id="r") == "[]"


# ── stages, plan, decisions ──────────────────────────────────────────────────────────────────


def test_stages_are_declared_and_an_undeclared_one_lists_them(home: Any) -> None:
    @agent(stages=("drafting", "sending"))
    def main(run: Run) -> str:
        assert run.stage == ""
        assert run.advance() == "drafting"
        work()
        run.stage = "sending"
        with pytest.raises(
            InvalidInput, match="'typo' is not declared; declared stages: drafting, sending"
        ):
            run.stage = "typo"
        with pytest.raises(InvalidInput, match="last stage"):
            run.advance()
        return run.stage

    hf = home.open()

    assert hf.run(main, id="r") == "sending"
    state = hf.get("r")
    assert (state.stage, state.stage_history, state.stages) == (
        "sending",
        ("drafting", "sending"),
        ("drafting", "sending"),
    )


def test_a_plan_shows_the_progress_of_the_run(home: Any) -> None:
    @agent
    def main(run: Run) -> Any:
        run.plan(["collect", "write", "send"])
        with run.doing("collect"):
            work()
        with run.doing("write"):
            run.wait_for("go")
        return [(s.name, s.status) for s in run.plan_steps]

    hf = home.open()
    waits(hf, main)
    waits(home.open(), main)
    assert [(s.name, s.status) for s in hf.get("r").plan] == [
        ("collect", "done"),
        ("write", "doing"),
        ("send", "pending"),
    ]
    hf.signal("r", "go")

    assert hf.run(main, id="r") == [["collect", "done"], ["write", "done"], ["send", "pending"]]


def test_a_part_of_the_plan_that_fails_is_not_done(home: Any) -> None:
    @agent
    def main(run: Run) -> None:
        run.plan(["a"])
        with run.doing("a"):
            raise ValueError

    hf = home.open()
    with pytest.raises(RunFailed):
        hf.run(main, id="r")
    assert [s.status for s in hf.get("r").plan] == ["doing"]


def test_a_decision_is_recorded_with_its_reason_and_the_same_on_replay(home: Any) -> None:
    answers = iter(["refund", "call a human", "never asked"])

    @agent
    def main(run: Run) -> str:
        route = run.decide(
            "route", next(answers), why="small amount", options=["refund", "call a human"]
        )
        run.wait_for("go")
        return route

    waits(home.open(), main)
    hf = home.open()
    hf.signal("r", "go")

    assert hf.run(main, id="r") == "refund"
    (decision,) = hf.get("r").decisions
    assert (decision.name, decision.choice, decision.why, decision.options) == (
        "route",
        "refund",
        "small amount",
        ("refund", "call a human"),
    )


def test_two_decisions_of_one_name_are_two_in_order(home: Any) -> None:
    @agent
    def main(run: Run) -> Any:
        first = run.decide("n", 1)
        second = run.decide("n", 2)
        work()
        third = run.decide("n", 3)
        run.wait_for("go")
        return [first, second, third]

    waits(home.open(), main)
    hf = home.open()
    hf.signal("r", "go")

    assert hf.run(main, id="r") == [1, 2, 3]
    assert [d.choice for d in hf.get("r").decisions] == [1, 2, 3]


# ── facts, questions, notes, log lines, messages, artifacts ──────────────────────────────────


def test_facts_questions_notes_and_log_lines_are_kept(home: Any) -> None:
    @agent
    def main(run: Run) -> Any:
        run.fact("region", "eu", source="config")
        run.ask_later("Which namespace?")
        run.ask_later("Which cluster?")
        run.note("scratch", {"a": 1})
        run.log("hello")
        run.log("careful", level="warning")
        assert [f.value for f in run.facts] == ["eu"]
        work()
        run.close_question("Which cluster?")
        run.note("scratch", {"a": 2})
        run.fact("region", "us")
        run.wait_for("go")
        return [[f.value for f in run.facts], list(run.questions), dict(run.notes)]

    waits(home.open(), main)
    hf = home.open()
    hf.signal("r", "go")

    assert hf.run(main, id="r") == [["eu", "us"], ["Which namespace?"], {"scratch": {"a": 2}}]
    state = hf.get("r")
    assert [(f.key, f.value, f.source) for f in state.facts] == [
        ("region", "eu", "config"),
        ("region", "us", ""),
    ]
    assert state.questions == ("Which namespace?",)
    assert state.notes == {"scratch": {"a": 2}}
    assert [(x.level, x.text) for x in state.lines] == [("info", "hello"), ("warning", "careful")]


def test_messages_are_kept_apart_from_state(home: Any) -> None:
    @agent
    def main(run: Run) -> Any:
        run.messages.add("user", "hi", metadata={"id": 1})
        assert [m.content for m in run.messages] == ["hi"]
        work()
        run.messages.add("assistant", {"parts": ["a"]})
        run.wait_for("go")
        return [[m.role, m.content, m.metadata] for m in run.messages.all()]

    waits(home.open(), main)
    hf = home.open()
    hf.signal("r", "go")

    assert hf.run(main, id="r") == [
        ["user", "hi", {"id": 1}],
        ["assistant", {"parts": ["a"]}, None],
    ]
    assert len(hf.get("r").messages) == 2
    assert hf.get("r").state == {}


def test_an_artifact_is_kept_verbatim_by_its_hash(home: Any) -> None:
    data = bytes(range(256)) * 1000

    @agent
    def main(run: Run) -> list[Any]:
        kept = run.artifact("report", data, type="application/pdf", summary="the report")
        again = run.artifact("text", "héllo")
        run.artifact("json", {"a": [1]})
        run.wait_for("go")
        return [kept.id, kept.bytes, kept.type, again.type]

    waits(home.open(), main)
    hf = home.open()
    hf.signal("r", "go")
    result = hf.run(main, id="r")

    report, text, json = hf.get("r").artifacts
    assert result == [report.id, len(data), "application/pdf", "text"]
    assert (report.name, report.summary, report.step) == ("report", "the report", 0)
    assert hf.artifact("r", "report") == data
    assert hf.artifact("r", text.id) == "héllo".encode()
    assert hf.artifact("r", "json") == b'{"a":[1]}'
    assert json.type == "json"
    with pytest.raises(NotFound, match="no artifact 'nothing'"):
        hf.artifact("r", "nothing")


def test_values_bigger_than_an_event_go_everywhere_unnoticed(home: Any) -> None:
    seen: list[Any] = []

    @step
    def grow(text: str) -> str:
        return text + "!"

    @tool
    def send(text: str, idempotency_key: str = "") -> dict[str, Any]:
        return {"echo": text, "n": len(text)}

    @agent
    def main(run: Run, text: str) -> Any:
        grown = grow(text)
        sent = send(grown)
        run.state.big = grown
        run.state.rows = [grown, 1]
        run.state.append("list", grown)
        run.state.append("list", "small")
        run.messages.add("user", grown, metadata={"raw": grown})
        run.fact("big", grown)
        run.note("big", grown)
        chosen = run.decide("big", grown)
        got = run.wait_for("go")
        answer = run.ask("big?")
        message = run.messages.all()[0]
        seen.append(
            [
                grown == BIG + "!",
                sent == {"echo": grown, "n": len(grown)},
                run.state.big == grown,
                run.state.rows == [grown, 1],
                run.state.list == [grown, "small"],
                run.state.all()["big"] == grown,
                message.content == grown,
                message.metadata == {"raw": grown},
                run.facts[0].value == grown,
                run.notes["big"] == grown,
                chosen == grown,
                got == [grown],
                answer == grown,
                run.format("{state.big}") == grown,
            ]
        )
        run.wait_for("end")
        return {"all": grown}

    def story(hf: Holdfast) -> Any:
        return hf.run(main, id="r", text=BIG)

    with pytest.raises(RunWaiting):
        story(home.open())
    home.open().signal("r", "go", [BIG + "!"])
    with pytest.raises(RunWaiting):
        story(home.open())
    home.open().answer("r", BIG + "!")
    for _ in range(2):
        with pytest.raises(RunWaiting):
            story(home.open())
    hf = home.open()
    hf.signal("r", "end")

    assert story(hf) == {"all": BIG + "!"}
    assert story(home.open()) == {"all": BIG + "!"}
    assert seen == [[True] * 14] * 3
    assert max(len(record.data) for record, _ in hf.events("r")) < 70_000
    assert hf.verify("r").ok
    assert hf.replay("r").diverged is None


def test_big_values_can_be_read_from_outside(home: Any) -> None:
    @step
    def grow() -> str:
        return BIG

    @agent
    def main(run: Run) -> None:
        run.state.big = grow()

    hf = home.open()
    hf.run(main, id="r")

    assert hf.value("r", hf.get("r").state["big"]) == BIG
    assert hf.value("r", hf.get("r").call(1).result) == BIG
    assert hf.value("r", "plain") == "plain"


# ── from outside ─────────────────────────────────────────────────────────────────────────────


def test_a_patch_is_seen_when_the_next_call_returns_and_there_on_every_replay(home: Any) -> None:
    outside = home.open()
    seen: list[Any] = []

    @step
    def first() -> None:
        if not seen:
            outside.patch("r", {"colour": "red"}, by="ann")

    @agent
    def main(run: Run) -> Any:
        at: list[Any] = [run.state.colour]
        first()
        at.append(run.state.colour)
        work()
        at.append(run.state.colour)
        seen.append(at)
        run.wait_for("go")
        return at

    waits(home.open(), main)
    waits(home.open(), main)
    outside.patch("r", {"colour": "blue"})
    waits(home.open(), main)

    assert seen == [[None, "red", "red"]] * 3
    assert outside.get("r").state == {"colour": "blue"}
    assert any("ann" in line.text for line in outside.get("r").lines)


def test_a_patch_that_comes_while_the_agent_thinks_is_not_seen_before_its_next_call(
    home: Any,
) -> None:
    outside = home.open()
    patched: list[int] = []
    seen: list[Any] = []

    @agent
    def main(run: Run) -> None:
        work()
        if not patched:
            patched.append(1)
            outside.patch("r", {"x": 1})
        before = run.state.x
        work()
        seen.append([before, run.state.x])
        run.wait_for("go")

    waits(home.open(), main)
    waits(home.open(), main)

    assert seen == [[None, 1]] * 2


@agent
def listening(run: Run) -> Any:
    run.wait_for("go")
    return run.state.all()


def test_a_patch_of_a_state_that_has_changed_since_it_was_read_is_refused(home: Any) -> None:
    hf = home.open()
    waits(hf, listening)
    read = hf.get("r").seq
    assert hf.patch("r", {"colour": "red"}, expected=read)

    with pytest.raises(Conflict) as refused:
        hf.patch("r", {"colour": "blue"}, expected=read)

    assert (read, read + 1) == (refused.value.expected, refused.value.head)
    assert "read it again" in str(refused.value)
    assert hf.patch("r", {"colour": "green"}, expected=refused.value.head)
    assert {"colour": "green"} == hf.get("r").state


def test_a_patch_that_is_sent_again_under_its_key_is_recorded_once(home: Any) -> None:
    """Also one with a version, which the first attempt has changed."""
    hf = home.open()
    waits(hf, listening)
    read = hf.get("r").seq

    assert [True, False] == [hf.patch("r", {"n": 1}, expected=read, key="k") for _ in range(2)]
    assert read + 1 == hf.get("r").seq
    with pytest.raises(InvalidInput, match="another request"):
        hf.patch("r", {"n": 2}, key="k")


def test_a_patch_can_delete_and_the_agents_own_later_change_wins(home: Any) -> None:
    outside = home.open()

    @agent
    def main(run: Run) -> Any:
        run.state.a = 1
        run.state.b = 1
        run.wait_for("go")
        run.state.b = 3
        return run.state.all()

    hf = home.open()
    waits(hf, main)
    outside.patch("r", {"b": 2, "c": 2}, delete=["a"])
    outside.signal("r", "go")

    assert hf.run(main, id="r") == {"b": 3, "c": 2}


def test_a_patch_that_cannot_be_stored_is_refused(home: Any) -> None:
    @agent
    def main(run: Run) -> None:
        run.wait_for("go")

    hf = home.open()
    waits(hf, main)
    with pytest.raises(NotStorable):
        hf.patch("r", {"x": object()})
    with pytest.raises(InvalidInput, match="a patch may have up to"):
        hf.patch("r", {"x": BIG})
    assert of_kind(hf, "r", e.StatePatched) == []


def test_a_patch_is_checked_by_the_agents_model_when_it_is_seen(home: Any) -> None:
    @agent(state=DataState)
    def main(run: Run) -> Any:
        run.wait_for("go")
        return run.state.tries

    hf = home.open()
    waits(hf, main)
    hf.patch("r", {"tries": "three"})
    hf.signal("r", "go")

    with pytest.raises(RunFailed, match="tries"):
        hf.run(main, id="r")


def test_rerun_keeps_the_state_so_that_guards_hold_under_changed_code(home: Any) -> None:
    sent: list[str] = []

    @tool
    def send(to: str) -> str:
        sent.append(to)
        return f"m{len(sent)}"

    def version(number: int) -> Any:
        @agent(name="recap")
        def main(run: Run) -> list[Any]:
            if number == 2:
                work()
            run.state.increment("runs")
            if not run.state.message_id:
                run.state.message_id = send("sam")
            if number == 1:
                raise RuntimeError("a bug after the send")
            return [run.state.message_id, run.state.runs]

        return main

    with pytest.raises(RunFailed):
        home.open().run(version(1), id="r")
    hf = home.open(version(2))

    assert hf.rerun("r", by="ann", why="fixed") == ["m1", 2]
    assert sent == ["sam"]
    assert hf.get("r").restarts == 1
    assert [c.name for c in hf.get("r").calls] == ["send", "work"]
    assert hf.run(version(2), id="r") == ["m1", 2]
    assert hf.verify("r").ok


def test_rerun_of_a_completed_or_cancelled_run_starts_over(home: Any) -> None:
    ran: list[int] = []

    @agent
    def main(run: Run) -> int:
        ran.append(1)
        run.state.increment("n")
        return run.state.n

    hf = home.open()
    assert [hf.run(main, id="r"), hf.rerun("r"), hf.rerun("r"), hf.run(main, id="r")] == [
        1,
        2,
        3,
        3,
    ]
    assert len(ran) == 3


def test_rerun_refuses_while_a_call_is_in_doubt_and_keys_are_new_afterwards(home: Any) -> None:
    keys: list[str] = []

    @tool(key_ttl=1)
    def send(idempotency_key: str = "") -> None:
        keys.append(idempotency_key)

    @agent
    def main(run: Run) -> None:
        send()

    home.crash(main, "r", "after send")
    hf = home.open(main)
    with pytest.raises(NotNow, match="resolve it first"):
        hf.rerun("r")
    hf.resolve("r", done=None)
    hf.rerun("r")

    assert len(set(keys)) == 2


def test_the_five_layers_are_there_as_data(home: Any) -> None:
    """Position, tool outputs, decisions, retry context, failure context."""

    @tool
    def lookup(q: str) -> dict[str, Any]:
        return {"hits": [1, 2]}

    @tool
    def fail(q: str) -> None:
        raise ValueError("nothing found")

    @agent(stages=("searching",))
    def main(run: Run) -> None:
        run.stage = "searching"
        run.state.found = lookup("a")
        run.decide("more", True, why="too few")
        fail("b")

    hf = home.open()
    with pytest.raises(RunFailed):
        hf.run(main, id="r")
    state = hf.get("r")

    assert (state.steps, state.committed, state.stage) == (2, 2, "searching")
    assert views.to_plain(state.call(1).result) == {"hits": [1, 2]}
    assert [(d.name, d.choice, d.why, d.step) for d in state.decisions] == [
        ("more", True, "too few", 1)
    ]
    assert [(a.number, a.error.message) for a in state.call(2).attempts] == [(1, "nothing found")]
    failure = state.failure
    assert (failure.step, failure.tool, failure.error.type) == (2, "fail", "ValueError")
    assert views.to_plain(failure.input) == {"q": "b"}
    assert failure.state == {"found": {"hits": [1, 2]}}
    assert "nothing found" in failure.error.traceback
    assert failure.time > 0


def test_an_async_agent_keeps_the_same_kinds_of_memory(home: Any) -> None:
    @step
    async def awork() -> None: ...

    @agent(stages=("a",), state=DataState)
    async def main(run: AsyncRun) -> Any:
        run.stage = "a"
        run.state.increment("tries")
        await awork()
        run.state.increment("tries")
        await run.wait_for("go")
        return run.state.tries

    waits(home.open(), main)
    hf = home.open()
    hf.signal("r", "go")

    assert hf.run(main, id="r") == 2


@pytest.mark.parametrize(
    ("do", "says"),
    [
        (lambda run: run.fact(1, 2), "run.fact: the key must be text, not 1"),
        (lambda run: run.fact("k", 2, source=3), "run.fact: source must be text"),
        (lambda run: run.ask_later(5), "run.ask_later: the question must be text"),
        (lambda run: run.close_question(5), "run.close_question: the question must be text"),
        (lambda run: run.note(5, 5), "run.note: the key must be text"),
        (lambda run: run.plan([5]), r"run.plan\[0\] must be text"),
        (lambda run: run.plan("one"), "run.plan must be a list"),
        (lambda run: run.doing(5).__enter__(), "run.doing: the step must be text"),
        (lambda run: run.decide(5, 5), "run.decide: the name must be text"),
        (lambda run: run.decide("a", 5, why=5), "run.decide: why must be text"),
        (lambda run: run.decide("a", 5, options=[5]), r"options\[0\] must be text"),
        (lambda run: run.artifact(5, b""), "Artifact.name must be text"),
        (lambda run: run.log("a", level=5), "run.log: level must be text"),
        (lambda run: run.messages.add("user", "a", tool_call_id=5), "Message.tool_call_id"),
        (lambda run: run.approve(5), "run.approve: the prompt must be text"),
        (lambda run: run.ask("a", options=[5]), r"run.ask: options\[0\] must be text"),
    ],
)
def test_invalid_unicode_is_refused_before_it_makes_the_log_unreadable(
    hf: Holdfast, do: Any, says: str
) -> None:
    @agent
    def careless(run: Run) -> None:
        with pytest.raises(InvalidInput, match=says):
            do(run)

    hf.run(careless, id="c")

    assert "completed" == hf.get("c").status
    assert hf.replay("c").reached_end


class Topic(str, enum.Enum):  # noqa: UP042 - as code writes it that is older than StrEnum
    COLOUR = "colour"


def test_a_member_of_an_enum_is_kept_as_its_text(hf: Holdfast) -> None:
    @agent
    def main(run: Run) -> list[str]:
        run.fact(Topic.COLOUR, "red", source=Topic.COLOUR)
        return [run.facts[0].key, run.facts[0].source]

    assert ["colour", "colour"] == hf.run(main, id="r")


def test_a_patch_of_notes_leaves_a_note_that_is_stored_outside_the_log_unchanged(home: Any) -> None:
    @agent
    def main(run: Run) -> Any:
        run.note("big", BIG)
        return run.wait_for("go")

    hf = home.open(main)
    waits(hf, main)
    hf.patch("r", StatePatch(notes={"small": 1}))

    notes = hf.get("r").notes
    assert (BIG, 1) == (hf.value("r", notes["big"]), notes["small"])
