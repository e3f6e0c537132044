"""Agents that cover the ways a run can go: each is killed everywhere."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from holdfast import Approval, AsyncRun, CallFailed, Holdfast, Retry, Run, Timer, agent, step, tool
from support.kill import Scenario
from support.ledger import Ledger

_HERE: dict[str, Ledger] = {}


def use(ledger: Ledger) -> None:
    """The ledger that the tools below talk to (inherited by forked processes)."""
    _HERE["ledger"] = ledger


def _do(tool_name: str, run_id: str, key: str, args: dict[str, Any], **options: Any) -> Any:
    return _HERE["ledger"].do(run_id, tool_name, key, args, **options)


def _run_of(key: str) -> str:
    return key.partition(":")[0]


@step
def read_notes(name: str) -> str:
    return f"notes of {name}"


@step
def think(text: str) -> dict[str, Any]:
    """A model that answers differently each time."""
    return {"to": f"person-{random.randrange(10**9)}", "about": text}


@tool
def pay(run_id: str, amount: int) -> dict[str, Any]:
    """At most once: no key, no check."""
    return _do("pay", run_id, "", {"run_id": run_id, "amount": amount})


@tool
def send(to: str, idempotency_key: str = "") -> dict[str, Any]:
    return _do("send", _run_of(idempotency_key), idempotency_key, {"to": to}, honours_key=True)


@tool(retry=Retry(attempts=5, initial=0.001, jitter=0))
def flaky(to: str, idempotency_key: str = "") -> dict[str, Any]:
    return _do(
        "flaky",
        _run_of(idempotency_key),
        idempotency_key,
        {"to": to},
        honours_key=True,
        fail_first=2,
    )


def _look_up(key: str) -> Any:
    return _HERE["ledger"].find(_run_of(key), key)


@tool(check=_look_up)
def book(room: str, idempotency_key: str = "") -> dict[str, Any]:
    return _do("book", _run_of(idempotency_key), idempotency_key, {"room": room})


def _unbook(room: str, result: dict[str, Any], idempotency_key: str = "") -> None:
    _do(
        "undo book_for_undo",
        _run_of(idempotency_key),
        idempotency_key,
        {"room": room, "result": result},
        honours_key=True,
    )


@tool(undo=_unbook)
def book_for_undo(room: str, idempotency_key: str = "") -> dict[str, Any]:
    return _do(
        "book_for_undo", _run_of(idempotency_key), idempotency_key, {"room": room}, honours_key=True
    )


@agent(stages=("reading", "sending", "over"))
def chain(run: Run, name: str) -> dict[str, Any]:
    run.stage = "reading"
    notes = read_notes(name)
    run.state.notes = notes
    run.state.increment("tries")
    run.stage = "sending"
    first = send(to=name)
    run.state.append("sent", first["number"])
    booked = book(room="blue")
    run.decide("where", booked["tool"], why="it was free")
    second = send(to=name)  # the same words again are another action
    run.state.append("sent", second["number"])
    run.stage = "over"
    return {"sent": run.state.sent, "tries": run.state.tries, "notes": notes}


@agent
def careful(run: Run, amount: int) -> Any:
    """A call that no one may repeat, between two that one may."""
    before = read_notes("a")
    paid = pay(run.id, amount)
    return [before, paid["tool"], read_notes("b")]


@agent
def threads(run: Run, names: list[str]) -> list[Any]:
    def one(name: str) -> Any:
        notes = read_notes(name)
        return [notes, send(to=name)["tool"]]

    found = run.map(one, names)
    return [*found, read_notes("after")]


@agent
async def tasks(run: AsyncRun, names: list[str]) -> list[Any]:
    async def one(name: str) -> Any:
        notes = await read_async(name)
        return [notes, (await send_async(to=name))["tool"]]

    found = await asyncio.gather(*(one(name) for name in names))
    return [*found, await read_async("after")]


@step
async def read_async(name: str) -> str:
    await asyncio.sleep(0)
    return f"notes of {name}"


@tool
async def send_async(to: str, idempotency_key: str = "") -> dict[str, Any]:
    return await asyncio.to_thread(
        _do, "send_async", _run_of(idempotency_key), idempotency_key, {"to": to}, honours_key=True
    )


@agent
def retrying(run: Run, name: str) -> Any:
    return flaky(to=name)["tool"]


@tool
def shaky(to: str, idempotency_key: str = "") -> dict[str, Any]:
    return _do(
        "shaky",
        _run_of(idempotency_key),
        idempotency_key,
        {"to": to},
        honours_key=True,
        fail_first=1,
    )


@agent
def repaired(run: Run, name: str) -> Any:
    """Fails, tells someone, is resumed, and goes another way."""
    try:
        first = shaky(to=name)
    except CallFailed as error:
        run.state.outcome = error.error_type
        send(to="somebody")
        raise
    run.state.outcome = first["tool"]
    second = send(to=name)
    return [run.state.outcome, second["tool"]]


@agent(approve=("external_action",))
def gated(run: Run, name: str) -> Any:
    sent = send(to=name)
    run.approve("Go on?", show={"sent": sent["tool"]})
    return sent["tool"]


def approve_all(hf: Holdfast, run_id: str, ledger: Ledger) -> None:
    for wait in hf.get(run_id).waits:
        if wait.wait == "approval" and not wait.decided:
            hf.approve(run_id, wait.id, by="test")


def approve_edited(hf: Holdfast, run_id: str, ledger: Ledger) -> None:
    """The mail goes to another person than the code wanted."""
    for wait in hf.get(run_id).waits:
        if wait.wait == "approval" and not wait.decided:
            hf.approve(run_id, wait.id, args={"to": "ann"} if wait.tool else None, by="test")


@agent
def choosing(run: Run, name: str) -> Any:
    first = run.wait_any("go", Approval("Now?"), Timer(3600))
    send(to=name)
    return [first, run.wait_for("go")]


def approve_then_signal(hf: Holdfast, run_id: str, ledger: Ledger) -> None:
    open_ones = [w for w in hf.get(run_id).waits if not w.decided]
    if any(w.wait == "approval" for w in open_ones):
        hf.approve(run_id)
    elif open_ones:
        hf.signal(run_id, "go", "gone", signal_id="once")


@agent
def patient(run: Run, name: str) -> Any:
    run.state.asked = True
    word = run.wait_for("go")
    run.sleep(3600)
    return [word, send(to=name)["tool"], run.state.asked]


def send_go(hf: Holdfast, run_id: str, ledger: Ledger) -> None:
    hf.signal(run_id, "go", {"speed": 3}, signal_id="go-1")


@agent
def inner(run: Run, name: str) -> Any:
    run.state.seen = name
    return [read_notes(name), send(to=name)["tool"]]


@agent
def outer(run: Run, name: str) -> Any:
    first = inner(name)
    return [first, read_notes("outer")]


@agent(on_failure="undo")
def undoing(run: Run, rooms: list[str]) -> Any:
    for room in rooms:
        book_for_undo(room=room)
    raise RuntimeError("the trip is off")


@agent(on_failure="undo")
def cancelled(run: Run, rooms: list[str]) -> Any:
    for room in rooms:
        book_for_undo(room=room)
    run.wait_for("never")


def cancel(hf: Holdfast, run_id: str, ledger: Ledger) -> None:
    hf.cancel(run_id, by="test", why="changed my mind")


@agent
def improvising(run: Run, text: str) -> Any:
    for _ in range(3):
        plan = think(text)
        run.fact("plan", plan, source="model")
        sent = send(to=plan["to"])
        text = f"{plan['to']} got {sent['tool']}"
    return text


@agent
def forgiving(run: Run, name: str) -> Any:
    """Catches a failure and continues: the failure is part of its history."""
    try:
        refused(name)
    except CallFailed as failed:
        run.state.error = failed.error_type
    return [run.state.error, send(to=name)["tool"]]


@step
async def unanswered(name: str) -> str:
    """A provider that never answers."""
    await asyncio.get_running_loop().create_future()
    return name


@step
async def unwell(name: str) -> str:
    await asyncio.sleep(0)
    raise ValueError(name)


@agent
async def impatient(run: AsyncRun, name: str) -> Any:
    """Cancels a call because another one failed next to it, and continues."""
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(unanswered(name))
            group.create_task(unwell(name))
    except* Exception:
        run.state.fell_back = True
    return await send_async(name)


@tool
def refused(to: str, idempotency_key: str = "") -> None:
    raise PermissionError(f"not {to}")


ALL = (
    Scenario("chain", chain, {"name": "sam"}),
    Scenario("careful", careful, {"amount": 5}),
    Scenario("threads", threads, {"names": ["a", "b"]}),
    Scenario("tasks", tasks, {"names": ["a", "b"]}),
    Scenario("retrying", retrying, {"name": "sam"}),
    Scenario("repaired", repaired, {"name": "sam"}, same_result=False, resumed=True),
    Scenario("gated", gated, {"name": "sam"}, approve_all),
    Scenario("edited", gated, {"name": "sam"}, approve_edited),
    Scenario("choosing", choosing, {"name": "sam"}, approve_then_signal),
    Scenario("patient", patient, {"name": "sam"}, send_go),
    Scenario("child", outer, {"name": "sam"}),
    Scenario("undoing", undoing, {"rooms": ["a", "b"]}, final="failed"),
    Scenario("cancelled", cancelled, {"rooms": ["a", "b"]}, cancel, final="cancelled"),
    Scenario("improvising", improvising, {"text": "hello"}, same_result=False),
    Scenario("forgiving", forgiving, {"name": "sam"}),
    Scenario("impatient", impatient, {"name": "sam"}),
)
