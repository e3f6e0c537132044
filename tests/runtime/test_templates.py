"""Templates: what the run knows, filled into instructions and messages, without reaching into Python objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import (
    AgentState,
    AsyncRun,
    InvalidInput,
    LLMAgent,
    Run,
    RunFailed,
    RunWaiting,
    agent,
    loop,
    tool,
)
from holdfast.agents.models import Prompt, Reply, ScriptedModel, call


def formatted(home: Any, template: str, state: dict[str, Any] | None = None, **input: Any) -> str:
    @agent(stages=("drafting", "sending"))
    def main(run: Run, name: str = "Sam", order: Any = None) -> str:
        run.stage = "drafting"
        for key, value in (state or {}).items():
            setattr(run.state, key, value)
        return run.format(template)

    result: str = home.open(main).run(main, id="r-1", **input)
    return result


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{state.count} items", "3 items"),
        ("{state.order.to.city}", "Rome"),
        ("{state.tags.1}", "b"),
        ("{state.order}", '{"to":{"city":"Rome"}}'),
        ("{state.tags}", '["a","b"]'),
        ("{state.nothing}!", "!"),
        ("{state.not_set}{state.order.x}{state.tags.9}{state.count.__class__}!", "!"),
        ("{state.price:.2f}", "9.50"),
        ("{input.name} / {input.order.id}", "Sam / 7"),
        ("{stage} of {run.id}", "drafting of r-1"),
        ('Answer as {{"id": {input.order.id}}}', 'Answer as {"id": 7}'),
        ("no names", "no names"),
    ],
)
def test_known_values_of_the_run_are_filled_in(template: str, says: str, home: Any) -> None:
    state = {
        "count": 3,
        "order": {"to": {"city": "Rome"}},
        "tags": ["a", "b"],
        "price": 9.5,
        "nothing": None,
    }
    assert says == formatted(home, template, state, order={"id": 7})


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{input.nmae}", "known: name, order"),
        ("{stat.count}", r"known: state\.…, input\.…, stage, run\.id"),
        ("{run.secret}", "known: id"),
        ("{state}", "known: state"),
        ("{stage.x}", "known: state"),
        ("{}", "known: state"),
        ('{"id": 1}', r"write \{\{ and \}\} for literal braces"),
        ("{state.count", r"write \{\{ and \}\} for literal braces"),
        ("{input.__class__}", "known: name, order"),
    ],
)
def test_an_unknown_name_is_an_error_with_the_known_ones(
    template: str, says: str, home: Any
) -> None:
    with pytest.raises(RunFailed, match=says):
        formatted(home, template, {"count": 3})


def test_a_declared_field_has_its_default_and_another_one_is_an_error(home: Any) -> None:
    @dataclass
    class Memory:
        draft: str = "(none)"

    @agent(state=Memory)
    def main(run: Run, template: str) -> str:
        return run.format(template)

    hf = home.open(main)
    assert "(none)" == hf.run(main, "{state.draft}", id="r")
    with pytest.raises(RunFailed, match=r"\{state\.darft\} .*known: draft"):
        hf.run(main, "{state.darft}", id="wrong")


def test_async_agents_and_loops_have_it_too(home: Any) -> None:
    @agent
    async def main(run: AsyncRun, name: str) -> str:
        return run.format("Hello {input.name}")

    @loop(max_iterations=3)
    def looking(run: Run, state: AgentState) -> AgentState:
        return state.to_executing().to_done(run.format("{input.goal}"))

    hf = home.open(main, looking)
    assert "Hello Sam" == hf.run(main, id="a", name="Sam")
    assert "find it" == hf.run(looking, "find it", id="l").answer


# ── agents that a model drives ───────────────────────────────────────────────────────────────


@tool
def ping(idempotency_key: str = "") -> str:
    return "pong"


class Seen:
    """A model that keeps what it was shown."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def answer(self, prompt: Prompt) -> Reply:
        self.shown = [str(m.content) for m in prompt.messages]
        return Reply(text="ok")


def test_instructions_and_the_first_message_are_templates(home: Any) -> None:
    model = Seen()
    main = LLMAgent(
        "clerk",
        model=model,
        instructions="You work on {run.id}. Answer as {{}}.",
        message="Task: {input.goal}",
    )
    home.open(main).run(main, "pay {state.secret}", id="r-7")
    assert ["You work on r-7. Answer as {}.", "Task: pay {state.secret}"] == model.shown


def test_instructions_show_the_state_as_it_is_at_each_question(home: Any) -> None:
    """A patch from outside is seen by the next question; the instructions are those that the run began with."""
    shown: list[str] = []

    def main(instructions: str) -> LLMAgent:
        def seen(prompt: Prompt) -> Reply:
            shown.append(str(prompt.messages[0].content))
            return Reply(text="ok") if prompt.turn == 2 else Reply(tool_calls=(call("ping"),))

        model = ScriptedModel(seen, seen)
        return LLMAgent(
            "clerk",
            model=model,
            instructions=instructions,
            tools=[ping],
            approve=["external_action"],
        )

    hf = home.open()
    with pytest.raises(RunWaiting):
        hf.run(main("Region: {state.region}."), "Go", id="r")
    hf.patch("r", [{"op": "add", "path": "/state/region", "value": "eu"}])
    hf.approve("r", by="ann")
    hf.run(main("Other instructions"), "Go", id="r")
    assert ["Region: .", "Region: eu."] == shown


@pytest.mark.parametrize("option", ["instructions", "message"])
@pytest.mark.parametrize("wrong", ["{stat.x}", '{"a": 1}', "{input.gaol}", "{run.x}", "{"])
def test_a_wrong_template_is_refused_when_the_agent_is_made(option: str, wrong: str) -> None:
    with pytest.raises(InvalidInput, match=f"{option}:"):
        LLMAgent("clerk", model=ScriptedModel("x"), **{option: wrong})  # type: ignore[arg-type]


def test_a_goal_is_never_a_template(home: Any) -> None:
    """It comes from users: braces in it are text."""
    model = Seen()
    main = LLMAgent("clerk", model=model)
    home.open(main).run(main, 'Parse {"a": 1} and {run.id}', id="r")
    assert ['Parse {"a": 1} and {run.id}'] == model.shown
