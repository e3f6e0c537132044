"""An agent that a model drives: what it does right is durable, what it gets wrong it is told."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    AsyncHoldfast,
    Budget,
    BudgetExceeded,
    DeadlineExceeded,
    Diverged,
    Holdfast,
    InvalidInput,
    LLMAgent,
    Run,
    RunFailed,
    RunWaiting,
    agent,
    step,
    tool,
)
from holdfast.agents.models import Model, Prompt, Reply, ScriptedModel, ToolRequest, call, say
from holdfast.core.events import Usage
from holdfast.core.values import decode


@step
def look(disk: str = "/") -> dict[str, Any]:
    """How full a disk is."""
    return {"disk": disk, "used": 93}


@tool
def clean(days: int, idempotency_key: str = "") -> str:
    """Delete old logs."""
    return f"cleaned {days} under {idempotency_key}"


@tool
def fail(why: str, idempotency_key: str = "") -> None:
    """It always fails."""
    raise PermissionError(why)


@tool
def fire() -> str:
    """No one may repeat it."""
    return "fired"


def devops(*lines: Any, tools: Any = (look, clean, fail, fire), **more: Any) -> LLMAgent:
    return LLMAgent("devops", model=ScriptedModel(*lines), tools=tools, **more)


def told(hf: Holdfast, run_id: str = "r") -> list[str]:
    """What the model was told of its tool calls."""
    return [m.content for m in hf.get(run_id).messages if m.role == "tool"]


# ── running ──────────────────────────────────────────────────────────────────────────────────


def test_it_runs_like_any_agent_and_later_returns_its_recorded_result(hf: Holdfast) -> None:
    main = devops(
        say("I look.", call("look", disk="/var")), "It is full.", instructions="Be brief."
    )

    assert "It is full." == hf.run(main, "How full?", id="r")
    assert "It is full." == hf.run(main, "How full?", id="r")
    assert "It is full." == hf.replay("r").result
    state = hf.get("r")
    assert [
        ("system", "Be brief."),
        ("user", "How full?"),
        ("assistant", "I look."),
        ("tool", '{"disk":"/var","used":93}'),
        ("assistant", "It is full."),
    ] == [(m.role, m.content) for m in state.messages]
    assert ("turn 1", ["look"], "I look.") == (
        state.decisions[0].name,
        state.decisions[0].choice,
        state.decisions[0].why,
    )
    assert ("look", "clean", "fail", "fire") == state.decisions[0].options


def test_a_worker_executes_it(hf: Holdfast) -> None:
    handle = hf.start(devops(call("look"), "Full."), "How full?")
    hf.worker().run(once=True)

    assert "Full." == handle.result(timeout=120)


def test_the_command_line_runs_it(tmp_path: Path) -> None:
    (tmp_path / "ops.py").write_text(
        "from holdfast import LLMAgent, step\n"
        "from holdfast.agents.models import ScriptedModel, call\n"
        "@step\ndef look() -> str:\n    return 'full'\n"
        "devops = LLMAgent('devops', model=ScriptedModel(call('look'), 'Full.'), tools=[look])\n"
    )
    words = [
        sys.executable,
        "-m",
        "holdfast.cli",
        "run",
        "ops.py",
        "--id",
        "r",
        "--param",
        "goal=How full?",
    ]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=240)

    assert (0, "Full.") == (done.returncode, done.stdout.strip().splitlines()[-1]), done.stderr


def test_inside_another_agent_it_is_a_child_run(hf: Holdfast) -> None:
    inner = devops(call("look"), "It is full.")

    @agent
    def main(run: Run) -> str:
        return f"inner says: {inner('How full?')}"

    assert "inner says: It is full." == hf.run(main, id="r")
    assert ["r~1"] == [row.id for row in hf.runs(parent="r")]


def test_an_agent_can_be_the_tool_of_another(hf: Holdfast) -> None:
    helper = LLMAgent("helper", model=ScriptedModel("42"), instructions="Answer questions.")
    main = devops(call("helper", goal="What is it?"), "It is 42.", tools=[helper])

    assert "It is 42." == hf.run(main, "Find out", id="r")
    assert ["42"] == told(hf)


def test_a_run_continues_when_instructions_change_and_keeps_its_first_ones(hf: Holdfast) -> None:
    """A person may take days to approve; no one's run should be lost to a better wording meanwhile."""
    lines = (call("clean", days=7), "Done.")
    with pytest.raises(RunWaiting):
        hf.run(devops(*lines, instructions="Old.", approve=["external_action"]), "Go", id="r")
    hf.approve("r")

    assert "Done." == hf.run(
        devops(*lines, instructions="New.", approve=["external_action"]), "Go", id="r"
    )
    assert "Old." == hf.get("r").messages[0].content


def test_a_removed_tool_diverges_before_anything_new_happens(hf: Holdfast) -> None:
    lines = (call("clean", days=7), call("clean", days=8), "Done.")
    with pytest.raises(RunWaiting):
        hf.run(devops(*lines, approve=["external_action"]), "Go", id="r")
    hf.approve("r")
    with pytest.raises(RunWaiting):
        hf.run(devops(*lines, approve=["external_action"]), "Go", id="r")

    with pytest.raises(Diverged):
        hf.run(devops(*lines, tools=[look]), "Go", id="r")


# ── what a model gets wrong ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (call("clear", days=1), "unknown tool 'clear'; known tools: look, clean, fail, fire"),
        (ToolRequest("", "clean", '{"days": '), "not valid JSON"),
        (ToolRequest("", "clean", "[1]"), "must be a JSON object"),
        (call("clean", days="seven"), "'days' is wrong: Expected `int`, got `str`"),
        (call("clean"), "'days' is missing"),
        (call("clean", days=1, idempotency_key="mine"), "'idempotency_key' is not an argument"),
        (call("fail", why="disk is read-only"), "fail failed: PermissionError: disk is read-only"),
        (call("drop table; --"), "unknown tool"),
    ],
)
def test_a_mistake_becomes_an_observation_and_the_run_continues(
    hf: Holdfast, wrong: ToolRequest, says: str
) -> None:
    assert "Sorry." == hf.run(devops(wrong, "Sorry."), "Go", id="r")
    [observed] = told(hf)
    assert says in observed
    assert not [c for c in hf.get("r").calls if c.name == "clean"]


def test_a_key_never_comes_from_the_models_reply(hf: Holdfast) -> None:
    """Ids of calls are the model's, and may be anything, twice; keys are ours."""
    same = ToolRequest("r:1:clean:x", "clean", '{"days": 1}')
    hf.run(devops(say("", same, same), "Done."), "Go", id="r")
    keys = [c.key for c in hf.get("r").calls if c.name == "clean"]

    assert len(set(keys)) == 2
    assert all(key.startswith("r:") and "r:1:clean:x" not in key for key in keys)
    assert all(key in text for key, text in zip(keys, told(hf), strict=True))


def test_a_long_result_is_shown_without_its_middle_and_kept_whole(hf: Holdfast) -> None:
    @step
    def dump() -> str:
        return "begin " + "x" * 50_000 + " end"

    hf.run(devops(call("dump"), "Long.", tools=[dump], max_observation_chars=300), "Go", id="r")
    [shown] = told(hf)

    assert shown.startswith("begin") and shown.endswith("end") and len(shown) < 400
    assert "characters omitted" in shown
    assert 50_010 == len(hf.value("r", hf.get("r").calls[1].result))


def test_a_model_that_never_answers_runs_out_of_turns_and_may_get_more(
    hf: Holdfast, tmp_path: Path
) -> None:
    lines = [call("look")] * 5 + ["At last."]
    with pytest.raises(RunFailed, match="did not finish within 3 turns") as failed:
        hf.run(devops(*lines, max_turns=3), "Go", id="r")
    assert "OutOfTurns" == failed.value.error_type

    with Holdfast(tmp_path / "h.db", agents=[devops(*lines, max_turns=9)]) as again:
        assert "At last." == again.resume("r")
    assert 11 == len(hf.get("r").calls)


# ── what a model may not do ──────────────────────────────────────────────────────────────────


def test_risky_calls_wait_for_a_person_each_of_them(hf: Holdfast) -> None:
    both = say("Both.", call("clean", days=1), call("clean", days=2), call("look"))
    main = devops(both, "Done.", approve=["external_action"])
    with pytest.raises(RunWaiting, match="approval of clean"):
        hf.run(main, "Go", id="r")
    waits = hf.get("r").waits
    assert 2 == len(waits)
    for wait in waits:
        hf.approve("r", wait.id, by="ann")

    assert "Done." == hf.run(main, "Go", id="r")
    assert 1 == sum(c.name == "look" for c in hf.get("r").calls)


def test_a_rejection_is_passed_to_the_model_with_its_reason(hf: Holdfast) -> None:
    main = devops(call("clean", days=1), "I leave it.", approve=["external_action"])
    with pytest.raises(RunWaiting):
        hf.run(main, "Go", id="r")
    hf.reject("r", by="ann", why="not on a Friday")

    assert "I leave it." == hf.run(main, "Go", id="r")
    assert "rejected by ann: not on a Friday" in told(hf)[0]


def test_a_rejection_ends_the_run_where_that_is_wanted(hf: Holdfast) -> None:
    main = devops(call("clean", days=1), "x", approve=["external_action"], on_reject="fail")
    with pytest.raises(RunWaiting):
        hf.run(main, "Go", id="r")
    hf.reject("r", by="ann")
    with pytest.raises(RunFailed, match="Rejected"):
        hf.run(main, "Go", id="r")


def test_a_call_in_doubt_suspends_the_run_and_is_not_reported_as_a_failure(
    tmp_path: Path,
) -> None:
    class Crash(BaseException):
        """The process ends here."""

    @tool
    def fire() -> str:
        raise Crash

    main = devops(call("fire"), "Fired.", tools=[fire])
    with Holdfast(tmp_path / "h.db") as hf, pytest.raises(Crash):
        hf.run(main, "Go", id="r")
    with Holdfast(tmp_path / "h.db") as hf:
        with pytest.raises(RunWaiting, match="decision about step 2, fire"):
            hf.run(main, "Go", id="r")
        hf.resolve("r", 2, done="fired, I saw it")
        assert "Fired." == hf.run(main, "Go", id="r")
        assert ["fired, I saw it"] == told(hf)


def test_budget_and_deadline_end_it_as_they_end_any_run(hf: Holdfast) -> None:
    lines = [call("look")] * 9 + ["x"]
    with pytest.raises(BudgetExceeded, match="max_steps is 4"):
        hf.run(devops(*lines, budget=Budget(max_steps=4)), "Go", id="r")
    with pytest.raises(DeadlineExceeded):
        hf.run(devops(*lines, deadline=0), "Go", id="d")
    paid = LLMAgent(
        "paid",
        model=ScriptedModel(*lines, tokens_per_turn=40),
        tools=[look],
        budget=Budget(max_llm_tokens=100),
    )
    with pytest.raises(BudgetExceeded, match="max_llm_tokens is 100, and 120 are used"):
        hf.run(paid, "Go", id="t")


def test_on_failure_its_calls_are_undone(hf: Holdfast) -> None:
    undone: list[int] = []

    def unclean(days: int, idempotency_key: str = "") -> None:
        undone.append(days)

    @tool(undo=unclean)
    def clean_up(days: int, idempotency_key: str = "") -> str:
        return "cleaned"

    main = devops(
        call("clean_up", days=1),
        call("clean_up", days=2),
        call("clean_up", days=3),
        tools=[clean_up],
        max_turns=2,
        on_failure="undo",
    )
    with pytest.raises(RunFailed, match="OutOfTurns"):
        hf.run(main, "Go", id="r")

    assert [2, 1] == undone


# ── sync and async ───────────────────────────────────────────────────────────────────────────


@step
async def look_async(disk: str) -> str:
    """The same, awaited."""
    await asyncio.sleep(0)
    return f"{disk} is full"


def test_tools_of_both_kinds_are_called_at_the_same_time(hf: Holdfast) -> None:
    """Each waits for the other: one after the other they would wait forever."""
    here = threading.Barrier(2, timeout=120)

    @step
    def wait_here() -> str:
        here.wait()
        return "plain"

    @step
    async def wait_there() -> str:
        await asyncio.to_thread(here.wait)
        return "async"

    main = devops(
        say("", call("wait_here"), call("wait_there")), "Met.", tools=[wait_here, wait_there]
    )

    assert "Met." == hf.run(main, "Go", id="r")
    assert ["plain", "async"] == told(hf)


def test_plain_tools_are_called_at_the_same_time_too(hf: Holdfast) -> None:
    here = threading.Barrier(3, timeout=120)

    @step
    def meet(n: int) -> int:
        here.wait()
        return n

    main = devops(say("", *(call("meet", n=n) for n in range(3))), "Met.", tools=[meet])

    assert "Met." == hf.run(main, "Go", id="r")
    assert ["0", "1", "2"] == told(hf)


def test_an_async_agent_is_suspended_for_people_and_resumes_on_any_event_loop(
    tmp_path: Path,
) -> None:
    main = devops(
        say("", call("look_async", disk="a"), call("clean", days=1)),
        "Done.",
        tools=[look_async, clean],
        approve=["external_action"],
    )

    async def go() -> str:
        async with AsyncHoldfast(tmp_path / "h.db") as hf:
            result: str = await hf.run(main, "Go", id="r")
            return result

    with pytest.raises(RunWaiting):
        asyncio.run(go())
    with Holdfast(tmp_path / "h.db") as hf:
        hf.approve("r", by="ann")

    assert "Done." == asyncio.run(go())


# ── models of one's own ──────────────────────────────────────────────────────────────────────


def test_anything_with_one_method_is_a_model(hf: Holdfast) -> None:
    seen: list[Prompt] = []

    class Echo:
        def answer(self, prompt: Prompt) -> Reply:
            seen.append(prompt)
            return Reply(text=f"you said {prompt.messages[-1].content}")

    model: Model = Echo()
    assert "you said Go" == hf.run(LLMAgent("echo", model=model, tools=[look]), "Go", id="r")
    assert (1, ["look"]) == (seen[0].turn, [t.name for t in seen[0].tools])


def test_a_model_that_reports_no_usage_is_charged_for_the_tools_and_calls_in_its_prompt(
    hf: Holdfast,
) -> None:
    class Silent:
        def answer(self, prompt: Prompt) -> Reply:
            asked = ToolRequest("1", "look", '{"path": "/' + "deep/" * 200 + '"}')
            return Reply(text="done") if prompt.turn > 1 else Reply(tool_calls=(asked,))

    for run_id, tools in (("none", []), ("look", [look])):
        hf.run(LLMAgent(run_id, model=Silent(), tools=tools), "Go", id=run_id)
    none, told = (hf.get(run_id).usage.input_tokens for run_id in ("none", "look"))

    assert none > 200  # the call that it made is in its second prompt
    assert told > none + 2 * 20  # and each prompt describes the tool


def test_a_model_may_be_async(hf: Holdfast) -> None:
    class Echo:
        async def answer(self, prompt: Prompt) -> Reply:
            await asyncio.sleep(0)
            return Reply(text="hello")

    assert "hello" == hf.run(LLMAgent("echo", model=Echo()), "Go", id="r")


def test_a_model_that_answers_something_else_fails_with_what_it_should_answer(hf: Holdfast) -> None:
    class Wrong:
        def answer(self, prompt: Prompt) -> Any:
            return "hello"

    with pytest.raises(RunFailed, match="must return a Reply, not 'hello'"):
        hf.run(LLMAgent("wrong", model=Wrong()), "Go", id="r")


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (Reply(text="x", usage=Usage(-5, 1)), "reported a negative usage"),
        (Reply(text=None), r"Expected `str`, got `null` - at `\$.text`"),
        (
            Reply(tool_calls=(ToolRequest("1", "look", {}),)),
            r"Expected `str`, got `object` - at `\$.tool_calls\[0\].arguments`",
        ),
    ],
)
def test_a_reply_of_the_wrong_shape_fails_at_once_and_names_the_place(
    hf: Holdfast, reply: Any, says: str
) -> None:
    class Careless:
        def answer(self, prompt: Prompt) -> Reply:
            return reply

    with pytest.raises(RunFailed, match=says):
        hf.run(LLMAgent("careless", model=Careless(), tools=[look]), "Go", id="r")
    assert 1 == len(hf.get("r").calls[-1].attempts)


def test_a_long_dialogue_is_shortened_and_the_log_records_by_how_much(hf: Holdfast) -> None:
    @step
    def read(n: int) -> str:
        return "words and more words " * 20

    seen: list[int] = []

    def last(prompt: Prompt) -> str:
        seen.append(len(prompt.messages))
        return "Enough."

    main = devops(
        *(call("read", n=n) for n in range(20)), last, tools=[read], max_context_tokens=2500
    )
    assert "Enough." == hf.run(main, "Go", id="r")
    result = hf.get("r").calls[-1].result

    assert result is not None
    assert 1 + 40 == seen[0] + decode(result.json)["left_out"]
    assert seen[0] < 30


def test_a_dialogue_that_cannot_be_cut_fails_at_once_with_what_to_do(hf: Holdfast) -> None:
    @step
    def dump() -> str:
        return "words " * 3000

    main = devops(call("dump"), "x", tools=[dump], max_context_tokens=2000)
    with pytest.raises(RunFailed, match="Raise the limit") as failed:
        hf.run(main, "Go", id="r")

    assert "ContextTooLong" == failed.value.error_type
    assert 1 == len(hf.get("r").calls[-1].attempts)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_turns": 0}, "max_turns"),
        ({"on_reject": "ignore"}, "on_reject"),
        ({"approve": ["everything"]}, "approve takes risks"),
        ({"max_context_tokens": 10}, "describing its tools"),
        ({"tools": [len]}, "decorate it with @tool"),
        ({"tools": look}, "tools must be a list"),
        ({"max_turns": True}, "max_turns must be a whole number"),
        ({"keep_last": "6"}, "keep_last must be a whole number"),
        ({"instructions": None}, "instructions must be text"),
        ({"budget": {"max_steps": 3}}, "budget must be a Budget"),
        ({"retry": 5}, "retry must be a Retry"),
        ({"counter": 5}, "counter must be a TokenCounter"),
        ({"on_text": "print"}, "on_text must be a sync function"),
    ],
)
def test_wrong_options_are_refused_when_it_is_made(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        devops("x", **options)


@pytest.mark.parametrize("model", [None, "gpt", ScriptedModel])
def test_an_agent_with_an_invalid_model_is_refused_when_it_is_created(model: Any) -> None:
    with pytest.raises(InvalidInput, match=r"model must be a model, which has a method answer"):
        LLMAgent("devops", model=model)


def test_a_script_that_ends_too_early_raises_an_error(hf: Holdfast) -> None:
    with pytest.raises(RunFailed, match="end it with a text"):
        hf.run(devops(call("look")), "Go", id="r")


def test_a_scripted_answer_that_was_cut_short_fails_like_a_real_one(hf: Holdfast) -> None:
    short = Reply(text="The disk is", finish="length", model="small")
    with pytest.raises(RunFailed, match="ModelCutOff"):
        hf.run(LLMAgent("devops", model=ScriptedModel(short)), "Check the disk", id="r")


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("half \ud83d an emoji", "half \ufffd an emoji"),
        ("\ude00", "\ufffd"),
        ("two halves \ud83d\ude00", "two halves \U0001f600"),
    ],
)
def test_a_lone_surrogate_in_a_models_text_is_replaced(hf: Holdfast, said: str, kept: str) -> None:
    """Truncated in the middle of a character by a token limit: the run continues."""
    seen: list[str] = []
    bot = devops(say(said, call("look")), said, on_text=seen.append)

    assert kept == hf.run(bot, "Go", id="r")
    assert kept in [message.content for message in hf.get("r").messages]
    assert "".join(seen).encode()
    assert hf.verify("r").ok


@pytest.mark.parametrize("broken", ["\ud83d", "\\ud83d", "\\uDE00", "\\uD83Dx"])
def test_a_lone_surrogate_in_a_tools_arguments_is_replaced(hf: Holdfast, broken: str) -> None:
    """As a character, and escaped as JSON does it; a backslash of its own stays one."""
    arguments = f'{{"disk": "a{broken}", "path": "\\\\ud83d"}}'
    got: list[tuple[str, str]] = []

    @step
    def note(disk: str, path: str) -> str:
        got.append((disk, path))
        return "noted"

    bot = devops(Reply(tool_calls=(ToolRequest("1", "note", arguments),)), "done", tools=[note])

    assert "done" == hf.run(bot, "Go", id="r")
    assert [("a\ufffd" + broken[6:], "\\ud83d")] == got
