"""What a model is shown of a run fits, holds what matters most, and is on record."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from holdfast import AgentState, Budget, Holdfast, InvalidInput, Run, RunWaiting, agent, loop, step
from holdfast.agents.state import Artifact, Fact, StatePatch
from holdfast.core.context import pack
from holdfast.core.policy import STRATEGIES
from holdfast.core.tokens import ESTIMATE
from holdfast.core.values import decode

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@step
def look(what: str) -> str:
    return what


@given(
    goal=TEXT,
    questions=st.lists(TEXT, max_size=4),
    facts=st.lists(st.builds(Fact, TEXT, TEXT | st.integers(), TEXT), max_size=8),
    contents=st.lists(
        st.tuples(TEXT, st.binary(max_size=60) | TEXT.map(str.encode), st.integers(1, 3)),
        max_size=5,
    ),
    limit=st.integers(1, 900),
    cap=st.none() | st.integers(0, 100),
    unit=st.sampled_from(["bytes", "tokens"]),
)
def test_a_slice_is_never_longer_than_its_cap_and_reports_its_length(
    goal: str,
    questions: list[str],
    facts: list[Fact],
    contents: list[Any],
    limit: int,
    cap: int | None,
    unit: str,
) -> None:
    blobs = {str(i): data for i, (_, data, _) in enumerate(contents)}
    artifacts = [
        Artifact(name, "text", str(i), len(data), "sum", at)
        for i, (name, data, at) in enumerate(contents)
    ]
    measure = ESTIMATE.count if unit == "tokens" else lambda text: len(text.encode())
    try:
        found = pack(
            goal=goal,
            questions=questions,
            facts=facts,
            artifacts=artifacts,
            content=lambda a: blobs[a.id],
            step=2,
            limit=limit,
            measure=measure,
            unit=unit,
            artifact_bytes_max=cap,
        )
    except InvalidInput:
        assert measure(f"# Goal\n{goal}\n") > limit
        return
    shown = str(found)

    assert measure(shown) <= found.size <= limit
    if unit == "bytes":
        assert found.size == len(shown.encode())
    assert cap is None or cap >= sum(a.bytes for a in found.artifacts if a.content is not None)
    newest = {fact.key: fact for fact in facts}
    assert [f.key for f in found.facts] == [
        key for key in dict.fromkeys(f.key for f in reversed(facts)) if newest[key] in found.facts
    ]
    known = len(questions) + len(newest) + len(artifacts)
    assert known == len(found.left_out) + len(found.questions) + len(found.facts) + len(
        found.artifacts
    )


def test_packing_does_not_stop_at_the_first_thing_that_does_not_fit(hf: Holdfast) -> None:
    @agent
    def main(run: Run, goal: str) -> list[str]:
        run.fact("small", 1)
        run.fact("huge", "x" * 5000)
        run.fact("also small", 2)
        found = run.context(max_bytes=400)
        return [*(fact.key for fact in found.facts), *found.left_out]

    assert ["also small", "small", "fact 'huge'"] == hf.run(main, "find out", id="r")


def test_this_steps_artifacts_come_first_and_big_ones_by_summary(hf: Holdfast) -> None:
    @agent(budget=Budget(max_artifact_bytes_in_context=1000))
    def main(run: Run, goal: str) -> str:
        look("a")
        run.artifact("old.txt", "old words", summary="something older")
        look("b")
        run.artifact("new.txt", "new words")
        run.artifact("big.txt", "x" * 2000, summary="two thousand letters")
        run.artifact("raw.bin", b"\xff\xfe", summary="bytes")
        run.ask_later("Which one?")
        run.fact("disk", "full", source="df")
        return str(run.context(max_tokens=500))

    assert hf.run(main, "clean up", id="r") == (
        "# Goal\nclean up\n"
        "# Open questions\n- Which one?\n"
        "# Artifacts\n"
        "- raw.bin (bytes, 2 bytes): bytes\n"
        "- big.txt (text, 2,000 bytes): two thousand letters\n"
        "--- new.txt (text, 9 bytes)\nnew words\n---\n"
        "- old.txt (text, 9 bytes): something older\n"
        "# Known facts, newest first\n- disk: full (from df)\n"
    )


def test_what_was_shown_is_recorded_and_the_same_on_replay(hf: Holdfast) -> None:
    @agent
    def main(run: Run, goal: str) -> str:
        run.fact("n", 1)
        first = run.context(max_bytes=200)
        look("x")
        run.fact("n", 2)
        second = run.context(max_bytes=200)
        look("y")
        return f"{first}{second}"

    shown = hf.run(main, "count", id="r")
    assert "- n: 1" in shown and "- n: 2" in shown

    assert shown == hf.replay("r").result
    before, after = hf.at("r", 1, "before").context, hf.get("r").context
    assert before is not None and after is not None
    assert 1 == decode(before.json)["facts"][0]["value"]
    assert 2 == decode(after.json)["facts"][0]["value"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_loop_is_shown_what_its_state_held_when_the_iteration_began(
    hf: Holdfast, strategy: Any
) -> None:
    shown: list[str] = []

    @loop(max_iterations=9, checkpoint=strategy)
    def main(run: Run, state: AgentState) -> AgentState:
        look(str(state.iteration))
        shown.append(str(run.context(max_bytes=400)))
        if state.iteration == 1:
            page = run.artifact("page", "the words", summary="a page")
            return state.with_artifact(page).with_fact("n", 1, source="look").with_question("why?")
        if state.iteration == 2:
            run.fact("m", 2)
            return state.with_fact("n", 3)
        return state.to_done(shown[2])

    answer = hf.run(main, "count", id="r").answer

    assert "# Goal\ncount\n" == shown[0]
    assert shown[1].endswith("# Known facts, newest first\n- n: 1 (from look)\n")
    assert answer.startswith("# Goal\ncount\n# Open questions\n- why?\n# Artifacts\n")
    assert {"- n: 3", "- m: 2"} == set(answer.splitlines()[-2:])
    assert 1 == answer.count("page (text")
    assert hf.replay("r").reached_end
    assert shown[:3] == shown[3:]


def test_an_artifact_is_the_same_value_when_the_code_runs_again(hf: Holdfast) -> None:
    @agent
    def main(run: Run) -> Any:
        look("a")
        page = run.artifact("page", "the words")
        look(f"{page.step} {page.time}")
        run.wait_for("go")
        return [page.step, page.time]

    with pytest.raises(RunWaiting):
        hf.run(main, id="r")
    hf.signal("r", "go")

    assert [1, 0] == hf.resume("r")


def test_an_artifact_that_is_kept_elsewhere_appears_by_its_summary(hf: Holdfast) -> None:
    there = Artifact("report", "pdf", "s3://reports/7", 12, "seven pages")

    @agent
    def main(run: Run) -> str:
        run.patch(StatePatch(artifacts=[there, Artifact("nowhere", step=0)]))
        return str(run.context(max_bytes=400))

    assert hf.run(main, id="r") == (
        "# Artifacts\n- nowhere (unknown, 0 bytes): no summary\n- report (pdf, 12 bytes): seven pages\n"
    )


@pytest.mark.parametrize(
    "caps", [{}, {"max_bytes": 1, "max_tokens": 1}, {"max_bytes": 0}, {"max_bytes": "9"}]
)
def test_a_slice_needs_exactly_one_cap(hf: Holdfast, caps: dict[str, Any]) -> None:
    @agent
    def main(run: Run) -> str:
        with pytest.raises(InvalidInput, match="one limit"):
            run.context(**caps)
        return "refused"

    assert "refused" == hf.run(main, id="r")


def test_messages_are_shaped_for_either_provider_from_inside_a_run(hf: Holdfast) -> None:
    @agent
    def main(run: Run) -> Any:
        run.messages.add("system", "be brief")
        run.messages.add("user", "the goal")
        for n in range(30):
            run.messages.add("assistant", f"thought {n} " * 20)
        openai = run.messages.for_model(max_tokens=900, keep_last=4)
        claude = run.messages.for_model(max_tokens=900, keep_last=4, shape="anthropic")
        with pytest.raises(InvalidInput, match="shape"):
            run.messages.for_model(shape="gemini")  # type: ignore[call-overload]
        return [openai[:2], len(openai) < 20, claude["system"], claude["messages"][0]["role"]]

    wanted = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "the goal"}]
    assert [wanted, True, "be brief", "user"] == hf.run(main, id="r")


def test_a_big_message_can_be_read_before_it_is_committed(hf: Holdfast) -> None:
    """What was noted and is not yet in the store is there for the code anyway."""
    big = "x" * 100_000

    @agent
    def main(run: Run) -> int:
        run.messages.add("user", big)
        run.state.text = big
        kept = run.artifact("big", big)
        shown = run.context(max_bytes=300_000)
        return (
            len(run.messages.for_model()[0]["content"])
            + len(run.state.text)
            + kept.bytes
            + shown.size
        )

    assert hf.run(main, id="r") > 500_000
