"""A model's answer is used only if it is complete: with the real clients, against a strict server."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    AsyncHoldfast,
    Budget,
    BudgetExceeded,
    Diverged,
    Holdfast,
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
    Prompt,
    Reply,
    ScriptedModel,
    ToolRequest,
    call,
)
from holdfast.agents.models.client import ClientModel
from holdfast.core.values import decode
from holdfast.store.sqlite import SQLiteStore
from holdfast.testing.clock import ManualClock
from support.dialogues import thinking
from support.provider import KEY, ModelReply, Provider

THOUGHTS = [
    thinking("The disk first, then the logs."),
    {"type": "redacted_thinking", "data": "c2Vj"},
]
FINISHES = {"cut": ("length", "max_tokens"), "filtered": ("content_filter", "refusal")}


def brain(model: str, turn: int, results: list[str]) -> ModelReply:
    """The model's name is what happens in its first turn; then it wipes once and answers."""
    mood, _, rest = model.partition("-")
    kind = int(rest.startswith("anthropic"))
    wipe = [("wipe", '{"disk": "a"}')]
    if turn == 1 and mood in FINISHES:
        return {"text": "I wipe", "calls": wipe, "finish": FINISHES[mood][kind]}
    if turn == 1 and mood == "half":
        return {"text": "The answer is", "finish": FINISHES["cut"][kind]}
    if turn == 1 and mood == "refused":
        if kind:
            return {"text": "I cannot help.", "finish": "refusal"}
        return {"refusal": "I cannot help."}
    if turn == 1 and mood == "empty":
        return {"text": ""}
    if turn == 1 and mood == "strange":
        return {"text": "Well.", "calls": wipe, "finish": "reticulated"}
    if turn == 1 and mood == "full":
        return {"text": "I", "finish": "model_context_window_exceeded"}
    if turn == 1 and mood == "paused":
        return {"text": "I search.", "thinking": THOUGHTS, "finish": "pause_turn"}
    if turn == 1:
        return {"text": "", "calls": wipe, "thinking": THOUGHTS if mood == "thinking" else ()}
    return {"text": f"Done: {'; '.join(results)}."}


wiped: list[str] = []


@tool(risk="external_action")
def wipe(disk: str, idempotency_key: str = "") -> str:
    """Erase a disk."""
    wiped.append(disk)
    return f"{disk} is empty"


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
each_client = pytest.mark.parametrize("kind", ["openai", "anthropic"])
each_model = pytest.mark.parametrize("kind", MODELS)
streaming_or_not = pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])

opened: list[ClientModel] = []


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    wiped.clear()
    yield
    while opened:
        opened.pop().close()


def model_of(kind: str, provider: Provider, mood: str, **more: Any) -> tuple[Any, str]:
    name = f"{mood}-{kind.removeprefix('async ')}-{uuid.uuid4().hex[:8]}"
    url = provider.url + ("/v1" if "openai" in kind else "")
    model = MODELS[kind](name, base_url=url, api_key=KEY, **more)
    opened.append(model)
    return model, name


def agent_of(model: Any, *, streaming: bool = False, **more: Any) -> LLMAgent:
    heard: list[str] = []
    return LLMAgent(
        "devops",
        model=model,
        tools=[wipe],
        on_text=heard.append if streaming else None,
        retry=more.pop("retry", Retry(attempts=4, initial=1.0, jitter=0)),
        **more,
    )


# ── answers that must not be used ────────────────────────────────────────────────────────────


@each_model
@streaming_or_not
@pytest.mark.parametrize(
    ("mood", "error", "advice"),
    [
        ("cut", "ModelCutOff", "max_output_tokens"),
        ("half", "ModelCutOff", "max_output_tokens"),
        ("filtered", "ModelDeclined", "hf.resume"),
        ("refused", "ModelDeclined", "hf.resume"),
        ("empty", "ModelEmpty", "hf.resume"),
        ("strange", "ModelIncomplete", "reticulated"),
    ],
)
def test_an_answer_that_is_not_complete_fails_the_run_and_none_of_it_is_executed(
    kind: str, streaming: bool, mood: str, error: str, advice: str, provider: Provider, hf: Holdfast
) -> None:
    model, name = model_of(kind, provider, mood)
    with pytest.raises(RunFailed, match=advice) as failed:
        hf.run(agent_of(model, streaming=streaming), "Clean up", id="r")

    assert error == failed.value.error_type
    assert [] == wiped
    assert ["model"] == [c.name for c in hf.get("r").calls]
    assert "failed" == hf.get("r").status
    assert 1 == len(provider.requests(name))  # the same question would get the same answer


@each_client
def test_a_run_that_failed_on_a_cut_answer_asks_again_when_it_is_resumed(
    kind: str, provider: Provider, tmp_path: Path
) -> None:
    """With a higher limit, or another model: here one that answers."""
    cut, _ = model_of(kind, provider, "cut")
    with Holdfast(tmp_path / "h.db") as hf, pytest.raises(RunFailed):
        hf.run(agent_of(cut), "Clean up", id="r")
    whole, _ = model_of(kind, provider, "calm")
    with Holdfast(tmp_path / "h.db", agents=[agent_of(whole)]) as hf:
        assert "Done: a is empty." == hf.resume("r")
    assert ["a"] == wiped


def test_a_full_context_is_distinguished_from_a_limit_on_the_answer(
    provider: Provider, hf: Holdfast
) -> None:
    model, _ = model_of("anthropic", provider, "full")
    with pytest.raises(RunFailed, match="max_context_tokens") as failed:
        hf.run(agent_of(model), "Clean up", id="r")
    assert "ModelContextFull" == failed.value.error_type


@pytest.mark.parametrize(
    ("finish", "error"),
    [
        ("length", "ModelCutOff"),
        ("max_tokens", "ModelCutOff"),
        ("content_filter", "ModelDeclined"),
        ("refusal", "ModelDeclined"),
        ("something new", "ModelIncomplete"),
        ("pause_turn", "ModelIncomplete"),
    ],
)
def test_what_a_model_of_ones_own_reports_counts_as_well(
    finish: str, error: str, hf: Holdfast
) -> None:
    """A tool call must not be executed because of who wrote the model's class."""

    class Own:
        def answer(self, prompt: Prompt) -> Reply:
            asked = ToolRequest("1", "wipe", '{"disk": "a"}')
            return Reply(text="I wipe", tool_calls=(asked,), finish=finish)

    with pytest.raises(RunFailed) as failed:
        hf.run(agent_of(Own(), retry=Retry(attempts=3, initial=0)), "Clean up", id="r")
    assert error == failed.value.error_type
    assert [] == wiped
    assert 1 == len(hf.get("r").calls[0].attempts)


def test_a_cut_answer_that_an_older_version_recorded_is_not_executed_either(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Versions before 0.2 recorded it as a success and continued with the tools."""
    from holdfast.agents import llm

    cut = Reply(tool_calls=(ToolRequest("1", "wipe", '{"disk": "a"}'),), finish="length")
    agent = agent_of(ScriptedModel(cut, "Done."), approve=["external_action"])
    with monkeypatch.context() as older:
        older.setattr(llm, "check_complete", lambda reply: None)
        with pytest.raises(RunWaiting):
            hf.run(agent, "Clean up", id="r")
    hf.approve("r", by="ann")

    with pytest.raises(Diverged, match="the agent fails with ModelCutOff"):
        hf.run(agent, "Clean up", id="r")
    assert [] == wiped


def test_the_failure_contains_the_partial_reply_of_the_model(
    provider: Provider, hf: Holdfast
) -> None:
    model, _ = model_of("openai", provider, "half")
    with pytest.raises(RunFailed, match="'The answer is'"):
        hf.run(agent_of(model), "Clean up", id="r")


def test_an_answer_that_was_not_used_counts_against_the_budget(
    provider: Provider, tmp_path: Path
) -> None:
    """It was charged for."""
    half, _ = model_of("openai", provider, "half")
    budget = Budget(max_llm_tokens=150)
    with Holdfast(tmp_path / "h.db") as hf:
        with pytest.raises(RunFailed, match="ModelCutOff"):
            hf.run(agent_of(half, budget=budget), "Clean up", id="r")
        used = hf.get("r").usage
        assert (100, 10) == (used.input_tokens, used.output_tokens)
    whole, _ = model_of("openai", provider, "calm")
    with (
        Holdfast(tmp_path / "h.db", agents=[agent_of(whole, budget=budget)]) as hf,
        pytest.raises(BudgetExceeded, match="max_llm_tokens is 150, and 220 are used"),
    ):
        hf.resume("r")
    assert [] == wiped


# ── answers that broke on the way ────────────────────────────────────────────────────────────


@each_model
@streaming_or_not
@pytest.mark.parametrize("fault", ["truncated", "no-end"])
def test_an_answer_that_breaks_on_the_way_is_asked_for_again(
    kind: str, streaming: bool, fault: str, provider: Provider, hf: Holdfast
) -> None:
    if streaming and fault == "truncated":
        fault = "broken"
    model, name = model_of(kind, provider, "calm")
    provider.fail(name, fault, fault)

    assert "Done: a is empty." == hf.run(agent_of(model, streaming=streaming), "Clean up", id="r")
    assert ["ModelUnavailable", "ModelUnavailable", None] == [
        a.error and a.error.type for a in hf.get("r").calls[0].attempts
    ]
    assert ["a"] == wiped
    assert 4 == len(provider.requests(name))


@each_client
def test_an_error_in_on_text_is_the_callers_and_is_not_retried(
    kind: str, provider: Provider, hf: Holdfast
) -> None:
    model, name = model_of(kind, provider, "half")

    def broken(_: str) -> None:
        json.loads("{")

    agent = LLMAgent("devops", model=model, on_text=broken)
    with pytest.raises(RunFailed, match="JSONDecodeError"):
        hf.run(agent, "Clean up", id="r")
    assert 1 == len(provider.requests(name))


# ── thinking ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["anthropic", "async anthropic"])
@streaming_or_not
def test_thinking_blocks_are_kept_and_returned_with_their_signatures(
    kind: str, streaming: bool, provider: Provider, tmp_path: Path
) -> None:
    """The server refuses a tool result whose call came without its signed thinking. The run waits for a
    person in between and is resumed in another process's store, so the blocks come from the log."""
    options = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    model, name = model_of(kind, provider, "thinking", options=options)
    agent = agent_of(model, streaming=streaming, approve=["external_action"])
    with Holdfast(tmp_path / "h.db") as hf, pytest.raises(RunWaiting):
        hf.run(agent, "Clean up", id="r")
    with Holdfast(tmp_path / "h.db") as hf:
        hf.approve("r", by="ann")
        assert "Done: a is empty." == hf.run(agent, "Clean up", id="r")
        assert "Done: a is empty." == hf.replay("r").result

    requests = provider.requests(name)
    assert [200, 200] == [r["status"] for r in requests]
    sent = requests[1]["body"]["messages"][1]["content"]
    assert THOUGHTS == sent[:2]
    assert ["thinking", "redacted_thinking", "tool_use"] == [block["type"] for block in sent]


def test_thinking_is_not_sent_to_a_provider_that_does_not_know_it(
    provider: Provider, tmp_path: Path
) -> None:
    first, _ = model_of("anthropic", provider, "thinking")
    with Holdfast(tmp_path / "h.db") as hf, pytest.raises(RunWaiting):
        hf.run(agent_of(first, approve=["external_action"]), "Clean up", id="r")
    other, name = model_of("openai", provider, "calm")
    with Holdfast(tmp_path / "h.db") as hf:
        hf.approve("r", by="ann")
        agent = agent_of(other, approve=["external_action"])
        assert "Done: a is empty." == hf.run(agent, "Clean up", id="r")

    [request] = provider.requests(name)
    assert "thinking" not in json.dumps(request["body"]["messages"])


def test_a_paused_reply_continues_with_its_recorded_part(provider: Provider, hf: Holdfast) -> None:
    """Anthropic pauses a long turn of its own tools and wants it back unchanged."""
    model, name = model_of("anthropic", provider, "paused")
    assert "Done: ." == hf.run(agent_of(model), "Look it up", id="r")
    sent = provider.requests(name)[1]["body"]["messages"][-1]

    assert "assistant" == sent["role"]
    assert [*THOUGHTS, {"type": "text", "text": "I search."}] == sent["content"]


def test_an_answer_without_thinking_is_recorded_as_before(provider: Provider, hf: Holdfast) -> None:
    model, _ = model_of("anthropic", provider, "calm")
    hf.run(agent_of(model), "Clean up", id="r")
    result = hf.get("r").calls[0].result

    assert result is not None
    assert decode(result.json)["kept"] is None
    assert hf.get("r").messages[1].metadata is None


# ── clients ──────────────────────────────────────────────────────────────────────────────────


@each_model
def test_a_model_asks_all_its_questions_through_one_client(
    kind: str, provider: Provider, hf: Holdfast
) -> None:
    model, name = model_of(kind, provider, "calm")
    hf.run(agent_of(model), "Clean up", id="r")

    assert 1 == len({r["connection"] for r in provider.requests(name)})


def test_async_runs_on_one_loop_share_a_client_and_each_loop_has_its_own(
    provider: Provider, tmp_path: Path
) -> None:
    made: list[Any] = []

    class Counted(AsyncOpenAIModel):
        def _client(self) -> Any:
            made.append(super()._client())
            return made[-1]

    model = Counted(
        f"calm-openai-{uuid.uuid4().hex[:8]}", base_url=f"{provider.url}/v1", api_key=KEY
    )
    agent = agent_of(model)

    async def main(first: int) -> list[str]:
        async with AsyncHoldfast(tmp_path / "h.db") as hf:
            runs = (hf.run(agent, "Clean up", id=f"r{first + i}") for i in range(3))
            return await asyncio.gather(*runs)

    assert ["Done: a is empty."] * 3 == asyncio.run(main(0))
    assert [True] == [client.is_closed() for client in made]
    assert ["Done: a is empty."] * 3 == asyncio.run(main(3))
    assert [True, True] == [client.is_closed() for client in made]


def test_the_client_of_a_loop_can_be_closed_before_the_loop_ends(
    provider: Provider, tmp_path: Path
) -> None:
    model, _ = model_of("async anthropic", provider, "calm")

    async def main() -> list[str]:
        async with AsyncHoldfast(tmp_path / "h.db") as hf:
            first = await hf.run(agent_of(model), "Clean up", id="r1")
            await model.aclose()
            return [first, await hf.run(agent_of(model), "Clean up", id="r2")]

    assert ["Done: a is empty."] * 2 == asyncio.run(main())


def test_a_script_may_hold_a_refusal(hf: Holdfast) -> None:
    """So that an agent's handling of one can be tested without a provider."""
    model = ScriptedModel(call("wipe", disk="a"), Reply(text="No.", finish="refusal"))
    with pytest.raises(RunFailed, match="ModelDeclined"):
        hf.run(agent_of(model), "Clean up", id="r")
