"""A model agent that is killed anywhere goes on where it stopped: questions may be asked again, effects
never happen again."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from holdfast import Holdfast, LLMAgent, Retry, tool
from holdfast.agents.models import AnthropicModel, OpenAIModel, ScriptedModel, call, say
from holdfast.core import events as e
from holdfast.core.values import decode
from holdfast.runtime.context import CURRENT, Inside
from holdfast.store.sqlite import SQLiteStore
from support import scenarios
from support.kill import Clock, Scenario, explore, run_schedule
from support.ledger import Ledger
from support.provider import KEY, Provider, Said
from support.scenarios import book, read_notes, send, send_async

QUICK = Retry(attempts=6, initial=0.001, jitter=0)


def brain(model: str, turn: int, results: list[str]) -> Said:
    """Two effects at once, then one that nobody may repeat, then an answer; `moody` never says the same."""
    whom = f"person-{random.SystemRandom().randrange(10**9)}" if "moody" in model else "sam"
    if turn == 1:
        return {
            "text": "I read, send and book at once.",
            "calls": [
                ("read_notes", '{"name": "sam"}'),
                ("send", json.dumps({"to": whom})),
                ("book", '{"room": "blue"}'),
            ],
        }
    if turn == 2:
        return {"text": "Now I pay.", "calls": [("pay_once", json.dumps({"amount": len(whom)}))]}
    return {"text": f"done after {len(results)} results"}


@tool
def pay_once(amount: int) -> dict[str, Any]:
    """At most once: no key, no check."""
    inside = CURRENT.get()
    assert isinstance(inside, Inside)
    return scenarios._do("pay_once", inside.run_id, "", {"amount": amount})


@pytest.fixture(scope="module")
def ledger() -> Iterator[Ledger]:
    server = Ledger().start()
    scenarios.use(server)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    server = Provider(brain).start()
    yield server
    server.stop()


def over_openai(provider: Provider, name: str) -> LLMAgent:
    client = openai.OpenAI(
        base_url=f"{provider.url}/v1", api_key=KEY
    )  # no connection yet: safe to fork
    return agent_on(OpenAIModel(name, client=client))


def over_anthropic(provider: Provider, name: str) -> LLMAgent:
    client = anthropic.Anthropic(base_url=provider.url, api_key=KEY)
    return agent_on(AnthropicModel(name, client=client), on_text=lambda _: None)  # streamed


def agent_on(model: Any, **more: Any) -> LLMAgent:
    tools = [read_notes, send, book, pay_once]
    return LLMAgent("clerk", model=model, instructions="Do it.", tools=tools, retry=QUICK, **more)


def kill_everywhere(
    agent: Any, ledger: Ledger, folder: Path, *, same: bool, stride: int = 1, **more: Any
) -> int:
    def make_store(clock: Clock) -> SQLiteStore:
        return SQLiteStore(folder / "h.db", clock=clock)

    scenario = Scenario("clerk", agent, {"goal": "Send it"}, same_result=same, **more)
    prefix = f"clerk-{uuid.uuid4().hex[:6]}"
    return explore(scenario, make_store, ledger, prefix, stride=stride).schedules


def test_killed_at_every_boundary_each_effect_happens_once(
    provider: Provider, ledger: Ledger, tmp_path: Path
) -> None:
    """The real OpenAI client, answers in one piece."""
    agent = over_openai(provider, f"calm-{uuid.uuid4().hex[:6]}")

    assert kill_everywhere(agent, ledger, tmp_path, same=True) >= 25


def test_killed_at_every_boundary_of_a_stream_each_effect_happens_once(
    provider: Provider, ledger: Ledger, tmp_path: Path
) -> None:
    """The real Anthropic client, answers streamed."""
    agent = over_anthropic(provider, f"calm-{uuid.uuid4().hex[:6]}")

    assert kill_everywhere(agent, ledger, tmp_path, same=True, stride=3) >= 10


def test_a_model_that_says_something_else_each_time_is_held_to_what_was_recorded(
    provider: Provider, ledger: Ledger, tmp_path: Path
) -> None:
    """Arguments come only from the recorded answer, keys never from the model's words."""
    agent = over_openai(provider, f"moody-{uuid.uuid4().hex[:6]}")

    assert kill_everywhere(agent, ledger, tmp_path, same=False, stride=4) >= 8


def test_a_crash_between_answer_and_record_repeats_the_question_only(
    provider: Provider, ledger: Ledger, tmp_path: Path
) -> None:
    """Some kill falls there; the question comes once more, and what was sent is what was recorded."""
    name = f"moody-{uuid.uuid4().hex[:6]}"
    agent = over_openai(provider, name)

    def make_store(clock: Clock) -> SQLiteStore:
        return SQLiteStore(tmp_path / "h.db", clock=clock)

    scenario = Scenario("clerk", agent, {"goal": "Send it"}, same_result=False)
    asked = []
    for kill_at in range(1, 6):
        before = len(provider.requests(name))
        run_id = f"one-{uuid.uuid4().hex[:6]}"
        _, _, evidence = run_schedule(scenario, make_store, ledger, run_id, [kill_at])
        asked.append(len(provider.requests(name)) - before)
        sent = [x for x in evidence.effects if x["tool"] == "send"]
        reply = next(
            x for x in evidence.events if isinstance(x, e.CallSucceeded) and x.name == "model"
        )
        recorded = decode(reply.result.json)["tool_calls"][1]["arguments"]
        assert [json.loads(recorded)] == [x["args"] for x in sent]
        evidence.store.close()

    assert {3, 4} == set(asked)


def _approve_all(hf: Holdfast, run_id: str, ledger: Ledger) -> None:
    scenarios.approve_all(hf, run_id, ledger)


def test_an_async_agent_with_approvals_survives_every_kill(ledger: Ledger, tmp_path: Path) -> None:
    model = ScriptedModel(
        say("Both at once.", call("send", to="ann"), call("send_async", to="bob")),
        call("book", room="red"),
        "sent",
    )
    agent = LLMAgent(
        "clerk",
        model=model,
        tools=[send, send_async, book],
        approve=("external_action",),
        retry=QUICK,
    )

    assert kill_everywhere(agent, ledger, tmp_path, same=True, act=_approve_all, stride=3) >= 12


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_killed_again_while_it_recovers_each_effect_happens_once(
    provider: Provider, ledger: Ledger, tmp_path: Path
) -> None:
    def make_store(clock: Clock) -> SQLiteStore:
        return SQLiteStore(tmp_path / "h.db", clock=clock)

    agent = over_anthropic(provider, f"calm-{uuid.uuid4().hex[:6]}")
    scenario = Scenario("clerk", agent, {"goal": "Send it"})
    prefix = f"pairs-{uuid.uuid4().hex[:6]}"

    assert explore(scenario, make_store, ledger, prefix, pairs=True, stride=2).schedules >= 100
