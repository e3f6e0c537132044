"""Real `openai` and `anthropic` clients against a server that speaks their protocols, and misbehaves."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Budget,
    BudgetExceeded,
    Holdfast,
    InvalidInput,
    LLMAgent,
    Options,
    Retry,
    RunFailed,
    RunWaiting,
    tool,
)
from holdfast.agents.models import (
    AnthropicModel,
    AsyncAnthropicModel,
    AsyncOpenAIModel,
    OpenAIModel,
    Price,
)
from holdfast.agents.models.client import ClientModel
from holdfast.core import events as e
from holdfast.core.values import decode
from holdfast.store.sqlite import SQLiteStore
from holdfast.testing.clock import ManualClock
from support.provider import KEY, ModelReply, Provider

QUICK = Retry(attempts=4, initial=1.0, jitter=0)


def brain(model: str, turn: int, results: list[str]) -> ModelReply:
    """Look at two disks at once, clean one, answer. The name of the model may ask for something else."""
    if model.startswith("malformed") and turn == 1:
        return {"text": "Oops", "calls": [("clean", '{"days": ')]}
    if model.startswith("silent"):
        return {"text": "I do not count.", "silent": True}
    if turn == 1:
        return {
            "text": "I look at both disks first.",
            "calls": [("look", '{"disk": "a"}'), ("look", '{"disk": "b"}')],
        }
    if turn == 2:
        return {"text": "", "calls": [("clean", json.dumps({"days": 7}))]}
    return {"text": f"Disks: {'; '.join(results)}."}


@tool(risk="read")
def look(disk: str) -> str:
    """How full a disk is."""
    return f"{disk} is full"


@tool
def clean(days: int, idempotency_key: str = "") -> str:
    """Delete logs older than so many days."""
    return f"cleaned {days}"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def hf(tmp_path: Path, clock: ManualClock) -> Iterator[Holdfast]:
    options = Options(sleep=clock.advance, patience_seconds=60)
    with Holdfast(SQLiteStore(tmp_path / "h.db", clock=clock.now), options=options) as opened:
        yield opened


MODELS: dict[str, type[Any]] = {
    "openai": OpenAIModel,
    "anthropic": AnthropicModel,
    "async openai": AsyncOpenAIModel,
    "async anthropic": AsyncAnthropicModel,
}
each_model = pytest.mark.parametrize("kind", MODELS)
each_client = pytest.mark.parametrize("kind", ["openai", "anthropic"])
streaming_or_not = pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])


opened: list[ClientModel] = []


@pytest.fixture(autouse=True)
def _close_models() -> Iterator[None]:
    """A connection that no one closes is found by the garbage collector, in some other test."""
    yield
    while opened:
        opened.pop().close()


def model_of(
    kind: str, provider: Provider, name: str = "m", *, key: str = KEY, **more: Any
) -> tuple[Any, str]:
    """A model with a name that only this test uses."""
    name = f"{name}-{uuid.uuid4().hex[:8]}"
    url = provider.url + ("/v1" if "openai" in kind else "")
    model = MODELS[kind](name, base_url=url, api_key=key, timeout=more.pop("timeout", 120), **more)
    opened.append(model)
    return model, name


def agent_of(model: Any, heard: list[str] | None = None, **more: Any) -> LLMAgent:
    on_text = heard.append if heard is not None else None
    return LLMAgent(
        "devops",
        model=model,
        instructions="Be careful.",
        tools=[look, clean],
        on_text=on_text,
        retry=more.pop("retry", QUICK),
        **more,
    )


ANSWER = "Disks: a is full; b is full; cleaned 7."


@each_model
@streaming_or_not
def test_an_agent_reaches_its_answer_through_tools(
    kind: str, streaming: bool, provider: Provider, hf: Holdfast
) -> None:
    model, name = model_of(kind, provider, price=Price(input=1.0, output=10.0))
    heard: list[str] = []
    agent = agent_of(model, heard if streaming else None)

    assert ANSWER == hf.run(agent, "The disk is full", id="r")
    state = hf.get("r")
    assert ["model", "look", "look", "model", "clean", "model"] == [c.name for c in state.calls]
    assert ["system", "user", "assistant", "tool", "tool", "assistant", "tool", "assistant"] == [
        m.role for m in state.messages
    ]
    assert ("I look at both disks first.", ["look", "look"]) == (
        state.decisions[0].why,
        state.decisions[0].choice,
    )
    assert (300, 30, 0.0006) == (
        state.usage.input_tokens,
        state.usage.output_tokens,
        round(state.usage.cost_usd, 9),
    )
    assert [200] * 3 == [r["status"] for r in provider.requests(name)]
    assert "".join(heard) == (f"I look at both disks first.{ANSWER}" if streaming else "")
    heard.clear()
    assert ANSWER == hf.run(agent, "The disk is full", id="r")
    assert ANSWER == hf.replay("r").result
    assert (3, []) == (len(provider.requests(name)), heard)


@each_client
@streaming_or_not
@pytest.mark.parametrize(
    "fault", ["429", "500", "529", "timeout", "broken", "cut", "error", "garbage"]
)
def test_what_passes_is_tried_again_by_the_log_and_effects_happen_once(
    kind: str, streaming: bool, fault: str, provider: Provider, hf: Holdfast
) -> None:
    """One attempt for each request: the client's own retries are off."""
    late = fault == "timeout"
    model, name = model_of(kind, provider, timeout=2 if late else 120)
    faults = [fault] if late else [fault, fault]
    provider.fail(name, *faults)

    assert ANSWER == hf.run(agent_of(model, [] if streaming else None), "Full", id="r")
    assert 3 + len(faults) == len(provider.requests(name))
    first = hf.get("r").calls[0]
    assert [*["ModelUnavailable"] * len(faults), None] == [
        a.error and a.error.type for a in first.attempts
    ]
    assert 1 == sum(isinstance(x, e.CallStarted) and x.name == "clean" for _, x in hf.events("r"))


@each_client
def test_the_wait_that_a_provider_asks_for_is_kept(
    kind: str, provider: Provider, hf: Holdfast, clock: ManualClock
) -> None:
    """Retry-After is 7 seconds; our own first wait would be one."""
    model, name = model_of(kind, provider)
    provider.fail(name, "429")
    hf.run(agent_of(model), "Full", id="r")
    failed = next(x for _, x in hf.events("r") if isinstance(x, e.CallFailure))
    at = next(r.time for r, x in hf.events("r") if isinstance(x, e.CallFailure))

    assert failed.retry_at is not None
    assert 7_000_000 == failed.retry_at - at


@each_client
def test_an_unavailable_provider_fails_the_run_and_resume_retries(
    kind: str, provider: Provider, hf: Holdfast
) -> None:
    model, name = model_of(kind, provider)
    provider.fail(name, *["500"] * 4)
    with pytest.raises(RunFailed, match="returned 500"):
        hf.run(agent_of(model), "Full", id="r")

    assert ANSWER == hf.resume("r")
    assert 4 + 3 == len(provider.requests(name))


@each_client
@pytest.mark.parametrize(
    ("fault", "says"), [("400", "request is invalid"), ("401", "_API_KEY"), ("404", "model's name")]
)
def test_what_will_not_pass_fails_at_once_with_what_to_do(
    kind: str, fault: str, says: str, provider: Provider, hf: Holdfast
) -> None:
    model, name = model_of(kind, provider)
    provider.fail(name, fault)
    with pytest.raises(RunFailed, match=says) as failed:
        hf.run(agent_of(model), "Full", id="r")

    assert "ModelRefused" == failed.value.error_type
    assert 1 == len(provider.requests(name))


def test_a_quota_that_is_used_up_is_not_waited_for(provider: Provider, hf: Holdfast) -> None:
    model, name = model_of("openai", provider)
    provider.fail(name, "quota")
    with pytest.raises(RunFailed, match="quota is exhausted"):
        hf.run(agent_of(model), "Full", id="r")

    assert 1 == len(provider.requests(name))


@each_model
def test_a_wrong_key_is_shown_nowhere(kind: str, provider: Provider, hf: Holdfast) -> None:
    """Although the provider repeats it in its error."""
    wrong = "sk-wrong-0123456789abcdef"
    model, _ = model_of(kind, provider, key=wrong)
    with pytest.raises(RunFailed, match="API_KEY") as failed:
        hf.run(agent_of(model), "Full", id="r")

    everything = f"{failed.value} {model!r} {[(r.data, x) for r, x in hf.events('r')]}"
    assert "0123456789" not in everything


@each_client
def test_a_key_that_is_not_there_is_asked_for(
    kind: str, provider: Provider, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.delenv("ANTHROPIC_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("HOME", "/nonexistent")
    with pytest.raises(RunFailed, match=f"{kind.upper()}_API_KEY") as failed:
        hf.run(agent_of(MODELS[kind]("m", base_url=provider.url)), "Full", id="r")

    assert "ModelRefused" == failed.value.error_type


@each_client
def test_key_and_address_come_from_the_usual_variables(
    kind: str, provider: Provider, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_BASE_URL", f"{provider.url}/v1")
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", provider.url)

    assert ANSWER == hf.run(agent_of(MODELS[kind]("plain")), "Full", id="r")


@each_client
def test_arguments_that_are_not_json_become_an_observation(
    kind: str, provider: Provider, hf: Holdfast
) -> None:
    """Streamed, because Anthropic's whole answers are parsed by the client; and the history that holds
    them is accepted in the next turn."""
    model, name = model_of(kind, provider, "malformed")
    hf.run(agent_of(model, []), "Full", id="r")
    told = hf.get("r").messages[3]

    assert ("tool", {"error": True}) == (told.role, told.metadata)
    assert "not valid JSON" in told.content
    assert {200} == {r["status"] for r in provider.requests(name)}


def test_a_budget_of_tokens_counts_what_the_provider_reports(
    provider: Provider, hf: Holdfast
) -> None:
    model, _ = model_of("openai", provider)
    with pytest.raises(BudgetExceeded, match="max_llm_tokens is 150, and 220 are used"):
        hf.run(agent_of(model, budget=Budget(max_llm_tokens=150)), "Full", id="r")


def test_a_budget_in_dollars_ends_the_run_and_needs_a_price(
    provider: Provider, hf: Holdfast
) -> None:
    model, _ = model_of("anthropic", provider, price=Price(input=1000.0, output=0))
    with pytest.raises(BudgetExceeded, match=r"max_cost_usd is 0.15, and 0.2 are used"):
        hf.run(agent_of(model, budget=Budget(max_cost_usd=0.15)), "Full", id="r")

    unpriced, _ = model_of("anthropic", provider)
    with pytest.raises(InvalidInput, match="needs a price"):
        agent_of(unpriced, budget=Budget(max_cost_usd=1))


def test_a_server_that_reports_no_usage_is_estimated_and_limited(
    provider: Provider, hf: Holdfast
) -> None:
    model, _ = model_of("openai", provider, "silent")
    hf.run(agent_of(model, budget=Budget(max_llm_tokens=1000)), "Full", id="r")
    state = hf.get("r")

    assert state.usage.input_tokens > 0 < state.usage.output_tokens
    assert any("estimated" in line.text for line in state.lines)


def test_a_long_wait_between_attempts_suspends_the_run(tmp_path: Path, provider: Provider) -> None:
    model, name = model_of("openai", provider)
    provider.fail(name, "429")
    clock = ManualClock()
    agent = agent_of(model)
    options = Options(patience_seconds=1)
    with Holdfast(SQLiteStore(tmp_path / "h.db", clock=clock.now), options=options) as hf:
        with pytest.raises(RunWaiting, match="next attempt of model"):
            hf.run(agent, "Full", id="r")
        clock.advance(8)
        assert ANSWER == hf.run(agent, "Full", id="r")


def test_an_async_model_works_on_one_loop_after_another(provider: Provider, hf: Holdfast) -> None:
    """A client's connections belong to a loop; `hf.run` makes a new one each time."""
    model, _ = model_of("async openai", provider)
    agent = agent_of(model)

    assert [ANSWER, ANSWER] == [hf.run(agent, "Full", id=f"r{i}") for i in range(2)]


def test_async_agents_run_side_by_side(provider: Provider, tmp_path: Path) -> None:
    from holdfast import AsyncHoldfast

    model, name = model_of("async anthropic", provider)
    agent = agent_of(model)

    async def main() -> list[str]:
        async with AsyncHoldfast(tmp_path / "h.db") as hf:
            return await asyncio.gather(*(hf.run(agent, "Full", id=f"r{i}") for i in range(4)))

    assert [ANSWER] * 4 == asyncio.run(main())
    assert 12 == len(provider.requests(name))


def test_your_own_client_is_used_without_its_retries(provider: Provider, hf: Holdfast) -> None:
    import openai

    name = f"own-{uuid.uuid4().hex[:8]}"
    provider.fail(name, "500")

    with openai.OpenAI(base_url=f"{provider.url}/v1", api_key=KEY, max_retries=5) as client:
        model = OpenAIModel(name, client=client)
        assert ANSWER == hf.run(agent_of(model), "Full", id="r")
        model.close()
        assert not client.is_closed()
    assert 4 == len(provider.requests(name))
    assert 2 == len(hf.get("r").calls[0].attempts)


def test_what_is_recorded_of_a_reply_is_the_whole(provider: Provider, hf: Holdfast) -> None:
    model, name = model_of("anthropic", provider)
    hf.run(agent_of(model, []), "Full", id="r")
    result = hf.get("r").calls[0].result

    assert result is not None
    recorded = decode(result.json)
    assert (name, "tool_use", 2) == (
        recorded["model"],
        recorded["finish"],
        len(recorded["tool_calls"]),
    )
