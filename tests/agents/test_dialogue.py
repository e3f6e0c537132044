"""Any dialogue, cut to any length, is accepted by providers and keeps what it must."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from holdfast import InvalidInput, Message
from holdfast.agents.state import ToolCall
from holdfast.core import dialogue
from holdfast.core.tokens import ESTIMATE, Estimate
from holdfast.errors import ContextTooLong
from support.dialogues import check_anthropic, check_openai

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.sampled_from(
    ["", " ", "hello ", "x" * 300]
)
IDS = st.sampled_from(["a", "b", "c", "", "not an id!", "call_1", "call_2"])
ARGUMENTS = st.dictionaries(TEXT, st.integers() | TEXT, max_size=2) | st.sampled_from(
    ["{broken", None]
)
CALLS = st.builds(
    ToolCall,
    IDS,
    st.sampled_from(["check", "clean up!", "", "n" * 99]),
    ARGUMENTS,
    st.none() | TEXT,
    st.none() | TEXT,
)
MESSAGES = st.one_of(
    st.builds(Message, st.just("system"), TEXT),
    st.builds(Message, st.just("user"), TEXT | st.dictionaries(TEXT, TEXT, max_size=2)),
    st.builds(Message, st.just("assistant"), TEXT),
    st.builds(
        lambda text, calls: Message("assistant", text, tool_calls=tuple(calls)),
        TEXT,
        st.lists(CALLS, min_size=1, max_size=3),
    ),
    st.builds(
        lambda text, call, meta: Message("tool", text, tool_call_id=call, metadata=meta),
        TEXT,
        IDS,
        st.sampled_from([None, {"error": True}]),
    ),
)
HISTORIES = st.lists(MESSAGES, max_size=25)


def cost(shaped: list[dict[str, Any]]) -> int:
    """What a provider would count, as far as the text goes."""
    calls = [call["function"] for message in shaped for call in message.get("tool_calls", ())]
    texts = [message["content"] or "" for message in shaped]
    return sum(map(ESTIMATE.count, [*texts, *(x for c in calls for x in c.values())]))


@given(HISTORIES, st.none() | st.integers(1, 3000), st.integers(1, 8))
def test_any_history_cut_to_any_budget_is_accepted_by_both_providers(
    history: list[Message], budget: int | None, keep_last: int
) -> None:
    """Or refused with a reason that names both figures, when what is always kept does not fit."""
    try:
        fitted = dialogue.fit(history, budget, keep_last=keep_last)
    except InvalidInput as refused:
        too_long = isinstance(refused, ContextTooLong) and refused.needed > (budget or 0)
        assert too_long or not dialogue.turns(history)
        return
    check_openai(dialogue.openai(fitted.messages))
    check_anthropic(dict(dialogue.anthropic(fitted.messages)))
    assert budget is None or fitted.tokens <= budget
    assert fitted.tokens > cost(dialogue.openai(fitted.messages))


@given(HISTORIES, st.integers(1, 3000), st.integers(1, 8))
def test_what_must_be_kept_is_kept_and_the_rest_is_the_newest(
    history: list[Message], budget: int, keep_last: int
) -> None:
    """System messages, the first user message, the last turns; between them no hole but one."""
    whole = dialogue.turns(history)
    try:
        kept = dialogue.fit(history, budget, keep_last=keep_last).messages
    except InvalidInput:
        return
    at = [all(any(m is k for k in kept) or m in kept for m in turn.messages) for turn in whole]
    spoken = [i for i, turn in enumerate(whole) if turn.role != "system"]

    assert all(at[i] for i, turn in enumerate(whole) if turn.role == "system")
    assert all(at[i] for i in spoken[-min(keep_last, dialogue.KEEP_LEAST) :])
    first_user = [i for i, turn in enumerate(whole) if turn.role == "user"][:1]
    assert all(at[i] for i in first_user)


def test_the_oldest_messages_are_dropped_first_and_calls_with_their_results() -> None:
    history = [Message("system", "be brief"), Message("user", "the goal")]
    for n in range(20):
        history += [
            Message("assistant", "", tool_calls=(ToolCall(f"c{n}", "look", {"n": n}),)),
            Message("tool", f"saw {n}", tool_call_id=f"c{n}"),
        ]
    fitted = dialogue.fit(history, 400)
    shown = dialogue.openai(fitted.messages)

    assert ["be brief", "the goal"] == [m["content"] for m in shown[:2]]
    first = int(shown[2]["tool_calls"][0]["id"][1:])
    assert 6 <= 20 - first < 20
    assert [f"saw {n}" for n in range(first, 20)] == [
        m["content"] for m in shown if m["role"] == "tool"
    ]
    assert 2 * first == fitted.left_out


def test_a_kept_part_that_is_too_long_is_refused_with_what_to_do() -> None:
    history = [
        Message("user", "go"),
        Message("assistant", "", tool_calls=(ToolCall("c", "dump", {}),)),
        Message("tool", "word " * 1000, tool_call_id="c"),
    ]
    with pytest.raises(ContextTooLong, match="the calls of dump and their results") as refused:
        dialogue.fit(history, 100)

    assert "keep_last" in str(refused.value)


def test_the_last_messages_are_dropped_to_four_before_it_is_refused() -> None:
    history = [Message("user", "go"), *(Message("assistant", "word " * 20) for _ in range(9))]
    each = dialogue.fit(history[-1:]).tokens
    goal = dialogue.fit(history[:1]).tokens

    assert 4 + 1 == len(dialogue.fit(history, goal + 4 * each).messages)
    with pytest.raises(ContextTooLong):
        dialogue.fit(history, goal + 4 * each - 1)


def test_a_call_that_was_never_answered_is_shown_as_such() -> None:
    history = [
        Message("user", "go"),
        Message(
            "assistant",
            "I look",
            tool_calls=(ToolCall("x", "look", {}), ToolCall("y", "read", {}, "seen")),
        ),
        Message("user", "and?"),
        Message("tool", "nobody asked", tool_call_id="z"),
    ]
    shown = dialogue.openai(history)

    assert [("x", dialogue.UNANSWERED), ("y", "seen")] == [
        (m["tool_call_id"], m["content"]) for m in shown if m["role"] == "tool"
    ]


def test_anthropic_gets_the_system_prompt_separately_and_alternating_roles() -> None:
    history = [
        Message("assistant", "Hi, what can I do? "),
        Message("system", "be brief"),
        Message("user", "look"),
        Message("user", "twice"),
        Message("assistant", "ok", tool_calls=(ToolCall("1", "look", {"at": "x"}),)),
        Message("tool", "no such file", tool_call_id="1", metadata={"error": True}),
        Message("user", "well?"),
    ]
    assert {
        "system": "be brief",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": dialogue.BEGIN}]},
            {"role": "assistant", "content": [{"type": "text", "text": "Hi, what can I do? "}]},
            {
                "role": "user",
                "content": [{"type": "text", "text": "look"}, {"type": "text", "text": "twice"}],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "ok"},
                    {"type": "tool_use", "id": "1", "name": "look", "input": {"at": "x"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "1",
                        "content": "no such file",
                        "is_error": True,
                    },
                    {"type": "text", "text": "well?"},
                ],
            },
        ],
    } == dialogue.anthropic(history)


def test_an_unknown_role_is_refused() -> None:
    with pytest.raises(InvalidInput, match="'narrator'"):
        dialogue.openai([Message("narrator", "once, long ago")])


def test_a_counter_of_your_own_decides_what_fits() -> None:
    class Letters:
        def count(self, text: str) -> int:
            return len(text)

    history = [Message("user", "go"), *(Message("assistant", "word " * 9) for _ in range(20))]

    assert len(dialogue.fit(history, 900, counter=Letters()).messages) < len(
        dialogue.fit(history, 900, counter=Estimate()).messages
    )
