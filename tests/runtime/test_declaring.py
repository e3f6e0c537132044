"""A slip in a declaration is an error where it stands, which says what to write."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    AgentState,
    Budget,
    Checkpoint,
    Holdfast,
    InvalidInput,
    LLMAgent,
    NotStorable,
    Rate,
    Retry,
    Run,
    RunWaiting,
    agent,
    loop,
    step,
    tool,
)
from holdfast.agents.models import ScriptedModel


def an_agent(**options: Any) -> object:
    def one(run: Run) -> None: ...

    return agent(**options)(one)


def a_loop(**options: Any) -> object:
    def one(run: Run, state: AgentState) -> AgentState:
        return state

    return loop(**{"max_iterations": 3, **options})(one)


def a_step(**options: Any) -> object:
    def one(token: str) -> None: ...

    return step(**options)(one)


def a_tool(**options: Any) -> object:
    def one(token: str) -> None: ...

    return tool(**options)(one)


def a_model(**options: Any) -> object:
    return LLMAgent(**{"name": "one", "model": ScriptedModel("x"), **options})


def a_rate(**options: Any) -> object:
    return Rate(**{"count": 1, **options})


async def asynchronous(_: object) -> None: ...


def plain(_: object) -> None: ...


LISTS = ["text", b"text", 5, None, [5], {"text": 1}, plain]
SECONDS = ["5", -1, math.nan, math.inf, True, [5], 1e12]
COUNTS = ["5", -1, 0, math.nan, 1.5, True, [5]]
TEXTS = [5, ["text"], b"text", True, plain]
AGENTS = {
    "approve": [*LISTS, ["text"]],
    "stages": LISTS,
    "continues": [5, [5], None, {"1": 1}],
    "deadline": SECONDS,
    "approval_ttl": SECONDS,
    "max_running": COUNTS,
    "name": [*TEXTS, " "],
    "version": [*TEXTS, None],
    "budget": ["5", 5, {"max_steps": 5}, [1]],
    "on_failure": [5, ["undo"], "undo it", None, plain],
    "checkpoint": ["every", 5, ["every_step"], None],
}
CALLS = {
    "name": [*TEXTS, " "],
    "timeout": [*SECONDS, 0],
    "retry": ["5", 5, {"attempts": 3}, [1], Retry, True],
    "redact": ["token", 5, [5], None, {"token": 1}],
    "version": [*TEXTS, None],
    "rate": ["10", 10, (10, 60)],
    "max_running": COUNTS,
    "nonsense": [1],
}
WRONG: list[tuple[Callable[..., object], dict[str, list[Any]]]] = [
    (an_agent, {**AGENTS, "state": ["text", 5, dict, {"a": 1}], "nonsense": [1], "body": [plain]}),
    (a_loop, {**AGENTS, "max_iterations": COUNTS}),
    (a_step, {**CALLS, "check": [plain], "risk": ["read"]}),
    (
        a_tool,
        {
            **CALLS,
            "risk": ["dangerous", 5, ["read"], None],
            "check": ["text", 5, True, [plain]],
            "undo": ["text", 5, True, [plain]],
            "key_ttl": SECONDS,
            "on_doubt": ["ask", 5, None, ["retry"], asynchronous],
        },
    ),
    (
        a_model,
        {
            "name": [*TEXTS, "", None],
            "model": ["gpt", None, ScriptedModel],
            "instructions": [5, ["text"], None],
            "tools": ["text", 5, None, plain],
            "approve": LISTS,
            "continues": [5, [5]],
            "approval_ttl": SECONDS,
            "on_reject": [5, ["tell"], "text"],
            "budget": ["5", {"max_steps": 1}],
            "deadline": SECONDS,
            "on_failure": [5, ["undo"]],
            "retry": ["5", 5, None],
            "version": TEXTS,
            "on_text": ["text", 5, asynchronous],
            "counter": [5, "text"],
            "max_turns": COUNTS,
            "keep_last": COUNTS,
            "max_context_tokens": COUNTS,
            "max_observation_chars": COUNTS,
            "max_running": COUNTS,
            "checkpoint": ["every", 5],
        },
    ),
    (
        Retry,
        {
            "attempts": COUNTS,
            "initial": SECONDS,
            "max_delay": SECONDS,
            "factor": ["2", 0, -1, math.nan, math.inf, True, [2]],
            "jitter": ["0.1", -1, math.nan, 2, [1], True],
            "retry_on": ["ValueError", [ValueError], ValueError, (5,), None],
            "give_up_on": ["ValueError", [ValueError], ValueError, (5,), None],
        },
    ),
    (Budget, {name: ["5", -1, math.nan, math.inf, True, [5]] for name in Budget.__struct_fields__}),
    (a_rate, {"count": COUNTS, "per": [*SECONDS, 0], "name": TEXTS}),
    (
        Checkpoint,
        {"strategy": [5, "text", ["every_step"]], "max_count": COUNTS, "max_age": SECONDS},
    ),
]


@pytest.mark.parametrize(
    ("declare", "option", "values"),
    [(declare, option, values) for declare, wrong in WRONG for option, values in wrong.items()],
    ids=lambda x: x if isinstance(x, str) else getattr(x, "__name__", ""),
)
def test_a_wrong_option_is_refused_by_its_name(
    declare: Callable[..., object], option: str, values: list[Any]
) -> None:
    said = {"strategy": "checkpoint", "name": "name"}.get(option, option)
    for value in values:
        with pytest.raises(InvalidInput, match=said):
            declare(**{option: value})


@pytest.mark.parametrize(
    ("declare", "options", "said"),
    [
        (an_agent, {"approve": "external_action"}, "approve=('external_action',)"),
        (a_loop, {"stages": "drafting"}, "stages=('drafting',)"),
        (a_model, {"approve": "external_action"}, "approve=('external_action',)"),
        (a_tool, {"redact": "token"}, "redact=('token',)"),
        (a_tool, {"retry": 3}, "Retry(attempts=3)"),
        (a_step, {"check": plain}, "@step has no option check=; it takes name, timeout,"),
        (an_agent, {"aprove": ()}, "@agent has no option aprove=; it takes name, stages,"),
    ],
    ids=lambda x: "-".join(x) if isinstance(x, dict) else "",
)
def test_the_error_shows_what_to_write(
    declare: Callable[..., object], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        declare(**options)

    assert said in str(refused.value)


# ── input ────────────────────────────────────────────────────────────────────────────────────


@dataclasses.dataclass
class Order:
    item: str
    count: int


def test_input_of_another_type_is_refused_before_there_is_a_run(home: Any) -> None:
    @agent
    def buy(run: Run, order: Order, express: bool = False) -> str:
        return order.item

    hf = home.open(buy)
    for given in (
        {"order": {"item": "tea", "count": "two"}},
        {"order": Order("tea", 2), "express": "yes"},
    ):
        for begin in (hf.run, hf.start):
            with pytest.raises(
                InvalidInput, match=r"agent buy was given wrong input: at \$\."
            ) as no:
                begin(buy, id="r", **given)
            assert "declared type" in str(no.value)

    assert [] == hf.runs()
    assert "tea" == hf.run(buy, id="r", order=Order("tea", 2))


def test_a_run_whose_input_no_longer_fits_fails_and_continues_when_the_code_is_fixed(
    home: Any,
) -> None:
    def made(kind: Any) -> Any:
        def count(run: Run, number: Any) -> Any:
            return number

        count.__annotations__["number"] = kind
        return agent(name="count")(count)

    home.open().start(made(str), id="r", number="five")
    hf = home.open(made(int))

    assert 1 == hf.worker().run(once=True)
    assert "failed" == hf.get("r").status
    assert "agent count was given wrong input" in hf.get("r").failure.error.message
    assert "wrong input" in hf.replay("r").failed
    assert "five" == home.open(made(str)).resume("r")


# ── Holdfast itself ──────────────────────────────────────────────────────────────────────────


def test_a_wrong_store_agent_list_or_status_is_refused(home: Any, tmp_path: Path) -> None:
    for url, said in (
        (5, "a path, a URL or a store"),
        (tmp_path, "is a folder; use a file in it"),
    ):
        with pytest.raises(InvalidInput, match=said):
            Holdfast(url)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"agents=\[main\]"):
        Holdfast(tmp_path / "h.db", agents=plain)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="unknown status 'done'; use one of pending, running"):
        home.open().runs(status="done")


def test_state_that_cannot_be_kept_is_named_when_a_run_is_patched(home: Any) -> None:
    @agent
    def main(run: Run) -> None:
        run.wait_for("go")

    hf = home.open()
    with pytest.raises(RunWaiting):
        hf.run(main, id="r")
    with pytest.raises(NotStorable, match=r"state\.x cannot be stored: at \$\[0\]"):
        hf.patch("r", {"x": [object()]})
