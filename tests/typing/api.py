"""The public API as a type checker sees it. Checked, never run: see `tests/runtime/test_typing.py`.

`reveal_type` lines are answered in the comment behind them; a line that must be refused says so.
"""
# ruff: noqa: F821  (reveal_type is the type checker's)

from __future__ import annotations

from typing import Any

from holdfast import (
    AsyncHoldfast,
    AsyncRun,
    Budget,
    Done,
    Holdfast,
    LLMAgent,
    OpenAIModel,
    Retry,
    Run,
    RunState,
    agent,
    step,
    tool,
)


@step
def draft(notes: str, *, length: int = 3) -> list[str]:
    return [notes] * length


@step(timeout=5, retry=Retry(attempts=2))
async def think(prompt: str) -> str:
    return prompt


def look_up(key: str) -> Done | None:
    return None


@tool(risk="external_action", timeout=10, retry=Retry(attempts=5), check=look_up, redact=("token",))
def send_email(to: str, token: str, idempotency_key: str = "") -> dict[str, str]:
    return {"message_id": to}


@tool
async def pay(amount: int) -> float:
    return float(amount)


@agent
def recap(run: Run, recipient: str, notes: str = "") -> str:
    run.state.draft = draft(notes)
    reveal_type(draft(notes))  # list[str]
    reveal_type(send_email("sam", token="x"))  # dict[str, str]
    reveal_type(run.decide("route", "refund", why="small"))  # str
    reveal_type(run.map(draft, ["a", "b"]))  # list[list[str]]
    reveal_type(run.approve("ok?"))  # bool
    draft(5)  # refused: arg-type
    send_email("sam")  # refused: call-arg
    return recipient


@agent(stages=("a", "b"), deadline=300, budget=Budget(max_steps=3), approve=("external_action",))
async def research(run: AsyncRun, question: str) -> int:
    reveal_type(await think(question))  # str
    reveal_type(await pay(3))  # float
    reveal_type(await run.map(think, ["a"]))  # list[str]
    reveal_type(await run.wait_any("a", "b"))  # tuple[str, Any] | None
    recap("sam")
    return 1


def outside(hf: Holdfast) -> None:
    reveal_type(draft)  # def (notes: str, *, length: int =) -> list[str]
    reveal_type(recap)  # def (recipient: str, notes: str =) -> str
    reveal_type(hf.run(recap, id="r", recipient="sam"))  # str
    reveal_type(hf.run(research, "why?"))  # int
    reveal_type(hf.get("r"))  # RunState
    state: RunState = hf.at("r", 6, "before")
    reveal_type(state.state)  # dict[str, Any]
    hf.at("r", 6, "during")  # refused: arg-type
    hf.run("recap")  # refused: call-overload
    handle = hf.start(research, "why?")
    result: Any = handle.result()
    print(result)


async def outside_async(hf: AsyncHoldfast) -> None:
    reveal_type(await hf.run(research, "why?"))  # int
    reveal_type(await hf.run(recap, "sam"))  # str


devops = LLMAgent("devops", model=OpenAIModel("m"), tools=[draft, think, send_email, recap])
LLMAgent("nobody", model="m")  # refused: arg-type


def talking(hf: Holdfast, run: Run) -> None:
    reveal_type(hf.run(devops, "clean up", id="r"))  # Any
    reveal_type(run.messages.for_model(max_tokens=100))  # list[dict[str, Any]]
    reveal_type(run.messages.for_model(shape="anthropic")["messages"])  # list[dict[str, Any]]
    reveal_type(run.context(max_bytes=100))  # ContextSlice


@tool(risk="harmless")  # refused: call-overload
def wrong() -> None: ...
