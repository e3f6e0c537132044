"""A model agent that is killed anywhere continues where it stopped: questions may be asked again, effects
never happen again."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from holdfast import LLMAgent, Retry, tool
from holdfast.agents.models import (
    AnthropicModel,
    AsyncAnthropicModel,
    AsyncOpenAIModel,
    OpenAIModel,
    ScriptedModel,
    call,
    say,
)
from holdfast.core import events as e
from holdfast.core.policy import STRATEGIES
from holdfast.core.values import decode
from holdfast.runtime.log.branches import CURRENT, Inside
from support import scenarios
from support.kill import Count, MakeStore, Scenario, kill, on_postgres, on_sqlite, run_schedule
from support.ledger import Ledger
from support.provider import KEY, ModelReply, Provider
from support.scenarios import book, read_notes, send, send_async

QUICK = Retry(attempts=6, initial=0.001, jitter=0)


def brain(model: str, turn: int, results: list[str]) -> ModelReply:
    """Two effects at once, then one that no one may repeat, then an answer; `moody` never says the same."""
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


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> MakeStore:
    if request.param == "sqlite":
        return on_sqlite(tmp_path)
    return on_postgres(request.getfixturevalue("postgres_dsn"))


def over_openai(url: str, name: str) -> OpenAIModel:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY)  # no connection yet: safe to fork
    return OpenAIModel(name, client=client)


def over_anthropic(url: str, name: str) -> AnthropicModel:
    return AnthropicModel(name, client=anthropic.Anthropic(base_url=url, api_key=KEY))


def over_async_openai(url: str, name: str) -> AsyncOpenAIModel:
    return AsyncOpenAIModel(name, base_url=f"{url}/v1", api_key=KEY)


def over_async_anthropic(url: str, name: str) -> AsyncAnthropicModel:
    return AsyncAnthropicModel(name, base_url=url, api_key=KEY)


def silent(_: str) -> None:
    """A caller that listens gets a stream."""


@dataclass(frozen=True)
class Kind:
    """A provider's real client, and whether its answers come in one piece."""

    name: str
    model: Callable[[str, str], Any]
    on_text: Callable[[str], None] | None = None

    def scenario(self, provider: Provider, mood: str = "calm", **options: Any) -> Scenario:
        """A clerk on a model that no one else asks; `moody` never says the same."""
        clerk = LLMAgent(
            "clerk",
            model=self.model(provider.url, f"{mood}-{uuid.uuid4().hex[:6]}"),
            retry=QUICK,
            instructions="Do it.",
            tools=[read_notes, send, book, pay_once],
            on_text=self.on_text,
            **options,
        )
        return Scenario("clerk", clerk, {"goal": "Send it"}, same_result=mood == "calm")


OPENAI = Kind("openai", over_openai)
KINDS = (
    OPENAI,
    Kind("openai-streamed", over_openai, silent),
    Kind("anthropic", over_anthropic),
    Kind("anthropic-streamed", over_anthropic, silent),
)
ASYNC_KINDS = (
    Kind("async-openai", over_async_openai),
    Kind("async-anthropic-streamed", over_async_anthropic, silent),
)
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


@every_kind
def test_killed_at_some_boundaries_each_effect_happens_once(
    kind: Kind, provider: Provider, ledger: Ledger, tmp_path: Path, record_property: Count
) -> None:
    """At others for each kind of model; the night takes all of each, on both stores."""
    first = 1 + 4 * KINDS.index(kind)
    make = on_sqlite(tmp_path)

    assert kill(kind.scenario(provider), make, ledger, record_property, first=first, stride=16) >= 2


@pytest.mark.parametrize("strategy", STRATEGIES[1:])
def test_under_a_coarser_checkpoint_strategy_each_effect_still_happens_once(
    strategy: Any, provider: Provider, ledger: Ledger, tmp_path: Path, record_property: Count
) -> None:
    """Answers may be asked for again; what an effect rests on never."""
    scenario = OPENAI.scenario(provider, checkpoint=strategy)

    assert kill(scenario, on_sqlite(tmp_path), ledger, record_property, first=3, stride=13) >= 2


def test_a_model_that_replies_differently_each_time_is_held_to_its_recorded_replies(
    provider: Provider, ledger: Ledger, tmp_path: Path, record_property: Count
) -> None:
    """Arguments come only from the recorded answer, keys never from the model's words."""
    scenario = OPENAI.scenario(provider, "moody")

    assert kill(scenario, on_sqlite(tmp_path), ledger, record_property, first=2, stride=13) >= 3


def test_a_crash_between_answer_and_record_repeats_the_question_only(
    provider: Provider, ledger: Ledger, tmp_path: Path
) -> None:
    """Some kill falls there; the question comes once more, and what was sent is what was recorded."""
    name = f"moody-{uuid.uuid4().hex[:6]}"
    make = on_sqlite(tmp_path)
    model = over_openai(provider.url, name)
    clerk = LLMAgent("clerk", model=model, tools=[read_notes, send, book, pay_once], retry=QUICK)
    scenario = Scenario("clerk", clerk, {"goal": "Send it"}, same_result=False)
    asked = []
    for kill_at in range(2, 5):
        before = len(provider.requests(name))
        run_id = f"one-{uuid.uuid4().hex[:6]}"
        _, _, evidence = run_schedule(scenario, make, ledger, run_id, [kill_at])
        asked.append(len(provider.requests(name)) - before)
        sent = [x for x in evidence.effects if x["tool"] == "send"]
        reply = next(
            x for x in evidence.events if isinstance(x, e.CallSucceeded) and x.name == "model"
        )
        recorded = decode(reply.result.json)["tool_calls"][1]["arguments"]
        assert [json.loads(recorded)] == [x["args"] for x in sent]
        evidence.store.close()

    assert {3, 4} == set(asked)


def async_clerk() -> Scenario:
    """Both kinds of tools at once, and a person who says yes to each effect."""
    model = ScriptedModel(
        say("Both at once.", call("send", to="ann"), call("send_async", to="bob")),
        call("book", room="red"),
        "sent",
    )
    clerk = LLMAgent(
        "clerk",
        model=model,
        tools=[send, send_async, book],
        approve=("external_action",),
        retry=QUICK,
    )
    return Scenario("clerk", clerk, {"goal": "Send it"}, act=scenarios.approve_all)


def test_an_async_agent_with_approvals_survives_kills(
    ledger: Ledger, tmp_path: Path, record_property: Count
) -> None:
    make = on_sqlite(tmp_path)

    assert kill(async_clerk(), make, ledger, record_property, first=2, stride=14) >= 3


# ── the night ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@every_kind
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_killed_at_every_boundary_each_effect_happens_once(
    strategy: Any,
    kind: Kind,
    provider: Provider,
    ledger: Ledger,
    make_store: MakeStore,
    record_property: Count,
) -> None:
    scenario = kind.scenario(provider, checkpoint=strategy)

    assert kill(scenario, make_store, ledger, record_property) >= 20


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ASYNC_KINDS, ids=lambda kind: kind.name)
def test_an_async_model_killed_at_every_boundary_lets_each_effect_happen_once(
    kind: Kind, provider: Provider, ledger: Ledger, make_store: MakeStore, record_property: Count
) -> None:
    assert kill(kind.scenario(provider), make_store, ledger, record_property) >= 20


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@every_kind
def test_a_nondeterministic_model_killed_at_every_boundary_is_held_to_its_recorded_replies(
    kind: Kind, provider: Provider, ledger: Ledger, make_store: MakeStore, record_property: Count
) -> None:
    assert kill(kind.scenario(provider, "moody"), make_store, ledger, record_property) >= 20


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_an_async_agent_with_approvals_survives_every_kill(
    ledger: Ledger, make_store: MakeStore, record_property: Count
) -> None:
    assert kill(async_clerk(), make_store, ledger, record_property) >= 30


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@every_kind
def test_killed_again_while_it_recovers_each_effect_happens_once(
    kind: Kind, provider: Provider, ledger: Ledger, make_store: MakeStore, record_property: Count
) -> None:
    """At every third boundary, and then at every third of the next life."""
    scenario = kind.scenario(provider)

    assert kill(scenario, make_store, ledger, record_property, pairs=True, stride=3) >= 100
