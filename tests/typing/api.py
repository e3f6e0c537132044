"""The public API as a type checker sees it: all of it, sync and async. Checked by `tests/runtime/test_typing.py`, never run.

`assert_type` says what must be found. A line that ends with `# expect-error` must be refused, by mypy and by basedpyright.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, assert_type

from holdfast import (
    Agent,
    AgentState,
    AnthropicModel,
    Approval,
    AsyncAgent,
    AsyncHandle,
    AsyncHoldfast,
    AsyncRun,
    AsyncWorker,
    BoundAgent,
    Budget,
    Checkpoint,
    Done,
    Handle,
    Holdfast,
    HoldfastError,
    Item,
    LLMAgent,
    Message,
    OpenAIModel,
    Options,
    Parameter,
    ParamSchema,
    Phase,
    Question,
    Rate,
    Retry,
    Run,
    RunFailed,
    RunState,
    RunWaiting,
    StatePatch,
    Timer,
    agent,
    loop,
    step,
    tool,
)
from holdfast.client import AsyncClient, Client

# ── declaring ────────────────────────────────────────────────────────────────────────────────


@step
def draft(notes: str, *, length: int = 3) -> list[str]:
    return [notes] * length


@step(timeout=5, retry=Retry(attempts=2), rate=Rate(10, per=60))
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


@tool(schema=ParamSchema((Parameter("path", str),)))
def read(**arguments: Any) -> str:
    return str(arguments["path"])


@tool(risk="harmless")  # expect-error
def wrong_risk() -> None: ...


@step(attempts=3)  # expect-error
def wrong_option() -> None: ...


@agent
def recap(run: Run, recipient: str, notes: str = "") -> str:
    assert_type(draft(notes), list[str])
    assert_type(send_email("sam", token="x"), dict[str, str])
    draft(5)  # expect-error
    send_email("sam")  # expect-error
    return recipient


@agent(stages=("a", "b"), deadline=300, budget=Budget(max_steps=3), checkpoint=Checkpoint())
async def research(run: AsyncRun, question: str, *, depth: int = 1) -> int:
    assert_type(await think(question), str)
    assert_type(await pay(3), float)
    assert_type(recap("sam"), str)
    recap(7)  # expect-error
    return 1


@dataclass
class Count:
    n: int


@loop(max_iterations=3, until=lambda state: state.n > 2)
def counting(run: Run, state: Count, by: int = 1) -> Count:
    return Count(state.n + by)


@loop(max_iterations=3)
async def thinking(run: AsyncRun, state: AgentState) -> AgentState:
    return state.replace(phase=Phase.DONE)


devops = LLMAgent("devops", model=OpenAIModel("m"), tools=[draft, think, send_email, recap])
other = LLMAgent("other", model=AnthropicModel("m"))
LLMAgent("nobody", model="m")  # expect-error


def kept_signatures() -> None:
    plain: Agent[..., str] = recap
    awaited: AsyncAgent[..., int] = research
    called: Callable[[str], str] = recap
    later: Callable[[str], Coroutine[Any, Any, int]] = research
    assert_type(recap.__name__, str)
    assert_type(recap.bind("sam", notes="…"), BoundAgent[str])
    assert_type(research.bind("why?", depth=2), BoundAgent[int])
    assert_type(counting.bind(Count(0), by=2), BoundAgent[Count])
    assert_type(thinking.bind("the goal"), BoundAgent[AgentState])
    assert_type(devops.bind("clean up"), BoundAgent[str])
    print(plain, awaited, called, later)
    recap.bind()  # expect-error
    recap.bind(7)  # expect-error
    recap.bind("sam", note="…")  # expect-error
    research.bind("why?", depth="deep")  # expect-error
    devops.bind(7)  # expect-error
    recap.bound("sam")  # expect-error


# ── inside an agent ──────────────────────────────────────────────────────────────────────────


def inside(run: Run) -> None:
    run.state.draft = "text"
    run.state.increment("n")
    run.stage = "a"
    run.advance()
    run.plan(["one", "two"])
    with run.doing("one"):
        pass
    assert_type(run.id, str)
    assert_type(run.decide("route", "refund", why="small"), str)
    assert_type(run.map(draft, ["a", "b"]), list[list[str]])
    assert_type(run.approve("ok?", show={"to": "sam"}), bool)
    assert_type(
        run.wait_any("a", Approval("ok?"), Question("which?"), Timer(3)), tuple[str, Any] | None
    )
    assert_type(run.messages.for_model(max_tokens=100), list[dict[str, Any]])
    run.messages.add(Message("user", "hello"))
    run.fact("k", 1, source="s")
    run.ask_later("?")
    run.patch(StatePatch())
    run.note("k", 1)
    run.artifact("report", b"", type="text/plain")
    run.sleep(3)
    run.wait_for("go", timeout=3)
    run.ask("Which?", options=["a", "b"])
    run.checkpoint()
    print(run.context(max_bytes=100), run.now(), run.random(), run.uuid(), run.budget)
    run.stage = 3  # expect-error
    run.sleep("3")  # expect-error
    run.wait_four("go")  # expect-error


async def inside_async(run: AsyncRun) -> None:
    assert_type(await run.map(think, ["a"]), list[str])
    assert_type(await run.approve("ok?"), bool)
    assert_type(await run.wait_any("a", "b"), tuple[str, Any] | None)
    await run.sleep(3)
    await run.wait_for("go", timeout=3)
    await run.ask("Which?")
    await run.checkpoint()
    assert_type(await run.map(draft, ["a"]), list[list[str]])
    await run.map(think, [7])  # expect-error


# ── outside, sync ────────────────────────────────────────────────────────────────────────────


def running(url: str) -> None:
    with Holdfast(url, agents=[recap, research, devops], options=Options(lease_seconds=30)) as hf:
        # Without options: the agent's parameters are checked.
        assert_type(hf.run(recap, "sam", notes="…"), str)
        assert_type(hf.run(research, "why?"), int)
        assert_type(hf.run(devops, "clean up"), str)
        assert_type(hf.run(counting, Count(0)), Count)
        assert_type(hf.start(recap, "sam"), Handle[str])
        hf.run(recap)  # expect-error
        hf.run(recap, 7)  # expect-error
        hf.run(recap, recipent="sam")  # expect-error
        hf.start(research, "why?", depth="deep")  # expect-error
        hf.run("recap")  # expect-error
        hf.run(draft, "notes")  # expect-error
        # With options and `bind`: checked too.
        assert_type(hf.run(recap.bind("sam"), id="r", wait=True), str)
        assert_type(hf.start(research.bind("why?"), id="r", priority=3), Handle[int])
        hf.run(recap.bind("sam"), id=7)  # expect-error
        hf.run(recap.bind("sam"), "more", id="r")  # expect-error
        hf.start(recap.bind("sam"), wait=True)  # expect-error
        # With options and without `bind`: the result is known, the input is not checked.
        assert_type(hf.run(recap, id="r", recipient="sam"), str)
        assert_type(hf.run(research, "why?", wait=True), int)
        assert_type(hf.start(research, "why?", id="r"), Handle[int])
        assert_type(hf.start(recap, "sam", priority=3), Handle[str])
        hf.run(recap, id="r", recipent="sam")
        # By name: nothing is known.
        assert_type(hf.start("recap", id="r", recipient="sam"), Handle[Any])


def looking(hf: Holdfast) -> None:
    state: RunState = hf.at("r", 6, "before")
    assert_type(hf.get("r"), RunState)
    assert_type(hf.get("r", brief=True), RunState)
    assert_type(state.state, dict[str, Any])
    assert_type(hf.artifact("r", "report"), bytes)
    for record, event in hf.stream("r", after=3):
        print(record.kind, event)
    hf.diff("r", 1, 2)
    hf.events("r", after=3)
    hf.events("r", last=10)
    hf.value("r", state.state)
    hf.runs(status="waiting", agent="recap", limit=5)
    found = hf.search("status:failed error:timeout", limit=5)
    assert_type(found.runs[0].id, str)
    assert_type(found.stopped, bool)
    assert_type(hf.bulk("resume", "status:failed", dry_run=True).acting, int)
    hf.bulk("delete", "status:failed")  # expect-error
    hf.verify("r")
    moments = hf.timeline("r", after=3, limit=10)
    shown: list[str] = [moment.text for moment in moments]
    collected = hf.gc(older_than=3600, keep=10, dry_run=True)
    lines: list[str] = list(hf.export("r"))
    imported = hf.import_run(lines)
    imported.status.upper()
    hf.doctor().ok.bit_length()
    checked = hf.check()
    print(shown, collected, checked)
    hf.replay("r")
    hf.agents()
    hf.at("r", 6, "during")  # expect-error
    hf.get(7)  # expect-error
    hf.gett("r")  # expect-error


def integrating(hf: Holdfast) -> None:
    assert_type(hf.record("graph", id="t", thread=7), Handle[Any])
    assert_type(hf.put_item("t", "graph.checkpoints", "1", {"v": 1}, by="graph"), bool)
    found = hf.item("t", "graph.checkpoints", "1")
    assert_type(found, Item | None)
    assert_type(hf.items("t", "graph.checkpoints", prefix="1", after=3, limit=1), list[Item])
    assert_type(hf.delete_item("t", "graph.checkpoints", "1"), bool)
    hf.finish("t", {"answer": 7})
    hf.delete("t")
    print(found.key)  # expect-error
    hf.record("graph")  # expect-error


def deciding(hf: Holdfast) -> None:
    hf.approve("r", by="ann")
    hf.reject("r", why="no")
    hf.answer("r", "this one")
    hf.signal("r", "go", {"n": 1}, signal_id="1")
    hf.resolve("r", 3, done={"id": 1})
    assert_type(hf.patch("r", {"x": 1}, expected=3, key="k"), bool)
    hf.pause("r")
    hf.cancel("r")
    hf.undo("r")
    hf.resume("r", wait=True, override=["age"])
    hf.rerun("r")
    hf.drive("r")
    hf.register(recap)
    hf.schedule(recap, cron="0 5 * * *", input={"recipient": "sam"}, catch_up="none")
    hf.schedules()
    hf.unschedule("recap")
    assert_type(hf.fork("r", 3), Handle[Any])
    assert_type(hf.worker(concurrency=2).run(once=True), int)
    hf.close()
    hf.resolve("r", 3, retry="yes")  # expect-error
    hf.schedule(recap, cron="0 5 * * *", catch_up="some")  # expect-error


def handles(hf: Holdfast) -> None:
    handle = hf.start(research, "why?")
    assert_type(handle.result(timeout=3), int)
    assert_type(handle.status, str)
    assert_type(handle.state(), RunState)
    assert_type(hf.handle("r").result(), Any)
    handle.events()
    handle.stream()
    handle.signal("go")
    handle.cancel(why="enough")
    text: str = handle.result()  # expect-error
    print(handle.id, text)
    try:
        handle.result()
    except RunFailed as failed:
        assert_type(failed.error_type, str)
    except RunWaiting as waiting:
        print(waiting.waiting_for)
    except HoldfastError:
        pass


# ── outside, async ───────────────────────────────────────────────────────────────────────────


async def running_async(url: str) -> None:
    async with AsyncHoldfast(url, agents=[recap], options=Options()) as hf:
        assert_type(await hf.run(recap, "sam"), str)
        assert_type(await hf.run(research, "why?", depth=2), int)
        assert_type(await hf.run(recap.bind("sam"), id="r", wait=True), str)
        assert_type(await hf.run(recap, id="r", recipient="sam"), str)
        assert_type(await hf.start(recap, "sam"), AsyncHandle[str])
        assert_type(await hf.start(research.bind("why?"), id="r"), AsyncHandle[int])
        assert_type(await hf.start("recap", recipient="sam"), AsyncHandle[Any])
        await hf.run(recap, 7)  # expect-error
        await hf.run(recap, recipent="sam")  # expect-error
        await hf.start(recap)  # expect-error
        await hf.start(recap.bind("sam"), "more")  # expect-error
        await hf.aprove("r")  # expect-error
        text: str = hf.run(recap, "sam")  # expect-error
        print(text, hf.sync.store)


async def looking_async(hf: AsyncHoldfast) -> None:
    assert_type(await hf.get("r"), RunState)
    assert_type(await hf.get("r", brief=True), RunState)
    assert_type(await hf.at("r", 6, "before"), RunState)
    assert_type(await hf.artifact("r", "report"), bytes)
    async for record, event in hf.stream("r", after=3):
        print(record.kind, event)
    await hf.diff("r", 1, 2)
    await hf.events("r", after=3)
    await hf.events("r", last=10)
    await hf.value("r", 1)
    await hf.runs(status="waiting")
    assert_type((await hf.search("status:failed")).next, int | None)
    assert_type((await hf.bulk("cancel", runs=["r"])).newest, int)
    await hf.verify("r")
    moments = await hf.timeline("r", after=3, limit=10)
    shown: list[str] = [moment.text for moment in moments]
    collected = await hf.gc(older_than=3600, keep=10, dry_run=True)
    lines: list[str] = await hf.export("r")
    imported = await hf.import_run(lines)
    imported.status.upper()
    (await hf.doctor()).ok.bit_length()
    checked = await hf.check()
    print(shown, collected, checked)
    await hf.replay("r")
    await hf.agents()
    await hf.get(7)  # expect-error
    await hf.runs(state="waiting")  # expect-error


async def integrating_async(hf: AsyncHoldfast) -> None:
    assert_type(await hf.record("graph", id="t", thread=7), AsyncHandle[Any])
    assert_type(await hf.put_item("t", "graph.checkpoints", "1", b"bytes"), bool)
    assert_type(await hf.item("t", "graph.checkpoints", "1"), Item | None)
    assert_type(await hf.items("t", "graph.checkpoints", prefix="1", limit=1), list[Item])
    assert_type(await hf.delete_item("t", "graph.checkpoints", "1"), bool)
    await hf.finish("t", {"answer": 7})
    await hf.delete("t")
    await hf.put_item("t", "k", 1)  # expect-error


async def deciding_async(hf: AsyncHoldfast) -> None:
    await hf.approve("r", by="ann")
    await hf.reject("r", why="no")
    await hf.answer("r", "this one")
    await hf.signal("r", "go", {"n": 1}, signal_id="1")
    await hf.resolve("r", 3, done={"id": 1})
    assert_type(await hf.patch("r", {"x": 1}, expected=3, key="k"), bool)
    await hf.pause("r")
    await hf.cancel("r")
    await hf.undo("r")
    await hf.resume("r", wait=True, override=["age"])
    await hf.rerun("r")
    await hf.drive("r")
    await hf.result("r", timeout=3)
    await hf.register(recap)
    await hf.schedule(recap, cron="0 5 * * *", input={"recipient": "sam"}, catch_up="none")
    await hf.schedules()
    await hf.unschedule("recap")
    assert_type(await hf.fork("r", 3), AsyncHandle[Any])
    await hf.close()
    await hf.signal("r")  # expect-error


async def handles_async(hf: AsyncHoldfast) -> None:
    handle = await hf.start(research, "why?")
    assert_type(await handle.result(timeout=3), int)
    assert_type(await handle.status(), str)
    assert_type(await handle.state(), RunState)
    assert_type((await hf.handle("r")).id, str)
    await handle.events()
    async for record, _ in handle.stream():
        print(record)
    await handle.signal("go")
    await handle.cancel(why="enough")
    text: str = await handle.result()  # expect-error
    print(text)


async def working(hf: AsyncHoldfast) -> None:
    worker = hf.worker(concurrency=4, own_loop=True)
    assert_type(worker, AsyncWorker)
    assert_type(await worker, int)
    assert_type(await worker.run(once=True), int)
    async with hf.worker() as also:
        assert_type(also.under_way, int)
        also.stop()
        await also.wait_stopped()
    task = asyncio.create_task(hf.worker().run())
    task.cancel()
    hf.worker(threads=3)  # expect-error


def result_of(hf: Holdfast, run_id: str) -> Any:
    return hf.result(run_id, timeout=3)


def takes_async_run(run: AsyncRun) -> None: ...


agent(takes_async_run)  # expect-error
agent()(takes_async_run)  # expect-error


def remote(client: Client) -> None:
    run = client.start("recap", id="r", to="sam", budget=Budget(max_steps=3))
    assert_type(run.id, str)
    assert_type(run.status, str)
    assert_type(client.get("r").status, str)
    assert_type(client.at("r", 1, "before").seq, int)
    assert_type(client.search("status:failed").runs[0].agent, str)
    assert_type(client.bulk("resume", "status:failed", dry_run=True).acting, int)
    assert_type(client.artifact("r", "report"), bytes)
    assert_type(client.patch("r", {"a": 1}, expected=3), bool)
    assert_type(client.whoami().role, str)
    for record, event in client.stream("r"):
        print(record.seq, event.kind)
    client.approve("r", why="fine", digest="0")
    client.resolve("r", 2, done=7)
    client.approve("r", args={"amount": 5})
    assert_type(client.put_item("r", "notes", "k", b"x"), bool)
    assert_type(client.items("r", prefix="k")[0].version, int)
    client.approve("r", by="boss")  # expect-error
    client.item("r", "notes")  # expect-error
    client.at("r", 1, "during")  # expect-error
    client.bulk("delete", "status:failed")  # expect-error


async def remote_async(client: AsyncClient) -> None:
    run = await client.start("recap", id="r", to="sam")
    assert_type(await run.status(), str)
    assert_type((await client.get("r")).status, str)
    assert_type((await client.search("status:failed")).stopped, bool)
    assert_type((await client.bulk("cancel", runs=["r"])).newest, int)
    assert_type(await client.artifact("r", "report"), bytes)
    async for record, event in client.stream("r"):
        print(record.seq, event.kind)
    assert_type((await client.items("r"))[0].key, str)
    await client.runs(state="waiting")  # expect-error
