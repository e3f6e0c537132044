"""Agents that a crash does not harm. The explorer must let every one of them pass."""

import asyncio
from typing import Any

from holdfast import AsyncRun, CallFailed, Retry, Run, agent, step, tool


@step
def look_up(name: str) -> str:
    return f"{name}@example.com"


@tool(retry=Retry(attempts=4))
def send(to: str, idempotency_key: str = "") -> str:
    return f"{to} {idempotency_key}"


@tool
def charge(amount: int) -> str:
    return f"charged {amount}"


def find_booking(key: str) -> str | None:
    raise AssertionError("mocked with its tool")


@tool(check=find_booking)
def book(room: str, idempotency_key: str = "") -> str:
    return f"{room} {idempotency_key}"


@tool
def count_up(by: int, tx: Any) -> int:
    tx.execute("CREATE TABLE IF NOT EXISTS counter (n INTEGER)")
    tx.execute("INSERT INTO counter VALUES (?)", [by])
    return int(tx.execute("SELECT count(*) FROM counter")[0][0])


@agent(stages=("looking", "sending", "over"))
def guarded(run: Run, to: str = "sam") -> dict[str, Any]:
    run.stage = "looking"
    run.state.address = look_up(to)
    run.stage = "sending"
    if not run.state.sent:
        run.state.increment("tries")
        run.state.sent = send(run.state.address)
    run.stage = "over"
    return {"sent": bool(run.state.sent), "tries": run.state.tries}


@agent
def checked_and_transactional(run: Run) -> list[Any]:
    return [book("blue").split()[0], count_up(2), count_up(3)]


@agent
def recorded_time_and_chance(run: Run) -> bool:
    send(f"{run.now()} {run.random()} {run.uuid()}")
    look_up("sam")
    return True


@agent(approve=("external_action",))
def with_people(run: Run) -> list[Any]:
    colour = run.ask("Which colour?", options=["red", "blue"])
    run.sleep(86_400)
    return [colour, run.wait_for("payment"), bool(send("sam"))]


@agent
def asks_once(run: Run) -> list[Any]:
    return [run.ask("Which colour?", options=["red", "blue"]), bool(send("sam"))]


@agent
def in_threads(run: Run) -> list[bool]:
    return [bool(x) for x in run.map(send, ["ann", "bob"])]


@step
async def look_up_async(name: str) -> str:
    await asyncio.sleep(0)
    return f"{name}@example.com"


@tool
async def send_async(to: str, idempotency_key: str = "") -> str:
    await asyncio.sleep(0)
    return f"{to} {idempotency_key}"


@agent
async def on_a_loop(run: AsyncRun) -> list[str]:
    found = await asyncio.gather(look_up_async("ann"), look_up_async("bob"))
    return [(await send_async(found[0])).split()[0], *found]


@agent
def child(run: Run, to: str) -> str:
    return send(to).split()[0]


@agent
def with_a_child(run: Run) -> list[str]:
    return [child("ann"), look_up("bob")]


@agent
def accepts_doubt(run: Run) -> str:
    return charge(5)


@agent
def fails_and_says_so(run: Run) -> str:
    try:
        return send("nobody")
    except CallFailed:
        look_up("nobody")
        raise ValueError("nobody is there") from None


@agent(on_failure="undo")
def taken_back(run: Run) -> str:
    reserve("blue")
    raise ValueError("changed my mind")


def release(room: str, idempotency_key: str = "") -> str:
    return f"{room} {idempotency_key}"


@tool(undo=release)
def reserve(room: str, idempotency_key: str = "") -> str:
    return f"{room} {idempotency_key}"


@agent
def branches_on_chance(run: Run) -> list[str]:
    found = [look_up("ann")]
    if run.random() < 0.85:
        found.append(look_up("bob"))
    if run.uuid().int % 8:
        found.append(look_up("cid"))
    return found


@agent
def draws_in_a_child(run: Run) -> list[str]:
    return [str(run.random()), look_up(str(run.uuid())), run.now().isoformat()]


@agent
def draws_everything(run: Run) -> dict[str, Any]:
    """Time, chance and ids, between calls, in branches, in a child run, and after a timer."""
    began = run.now()

    def one(name: str) -> list[str]:
        first = [str(run.random()), str(run.random())]
        return [*first, look_up(f"{name} {run.uuid()}"), str(run.uuid())]

    lines = run.map(one, ["a", "b", "c"])
    below = draws_in_a_child()
    run.sleep(2)
    run.sleep(600)
    passed = (run.now() - began).total_seconds()
    return {
        "lines": lines,
        "below": below,
        "passed": passed,
        "numbers": [run.random() for _ in range(3)],
    }


@tool
async def send_soon(to: str, idempotency_key: str = "") -> str:
    await asyncio.sleep(0)
    return f"{to} {idempotency_key}"


@step
async def reads_nothing() -> None:
    await asyncio.sleep(0)


@agent
async def cancels_what_is_late(run: AsyncRun) -> str:
    """Whether the message is sent before the group is cancelled is not decided by the code, and both are right."""

    async def fail() -> None:
        await reads_nothing()
        raise ValueError("no")

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(send_soon("sam"))
            group.create_task(fail())
    except* ValueError:
        await send_soon("sue")
    return "done"
