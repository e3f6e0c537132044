"""Agents that a crash harms, each in its own way. The explorer must find every one of them."""

import asyncio
import random
import time
import uuid
from pathlib import Path

from holdfast import AsyncRun, Run, agent, step, tool

CACHE: dict[str, str] = {}


def smtp_send(to: str, body: str) -> str:
    """A plain function: nothing is declared about it."""
    raise AssertionError("real mail")


@step
def look_up(name: str) -> str:
    return f"{name}@example.com"


# ── effects that no one declared ─────────────────────────────────────────────────────────────


@step
def notify(to: str) -> str:
    return smtp_send(to, "hello")


@agent
def guard_after_effect(run: Run, to: str = "sam") -> str:
    """The guard is set after the effect, and the effect hides in a step."""
    if not run.state.sent:
        run.state.sent = notify(to)
    return str(run.state.sent)


@agent
def effect_in_plain_code(run: Run, to: str = "sam") -> str:
    look_up(to)
    smtp_send(to, "hello")
    return look_up("sue")


@step
def write_line(file: str) -> int:
    with Path(file).open("a") as opened:
        return opened.write("a line\n")


@agent
def appends_in_a_step(run: Run, file: str) -> int:
    return write_line(file)


@agent
def appends_in_plain_code(run: Run, file: str) -> str:
    with Path(file).open("a") as opened:
        opened.write("a line\n")
    return look_up("sam")


# ── code that takes another way the second time ──────────────────────────────────────────────


@tool
def send(to: str, idempotency_key: str = "") -> str:
    return f"{to} {idempotency_key}"


@agent
def chance_decides(run: Run) -> str:
    return send(f"person {random.randrange(10**9)}")


@agent
def time_decides(run: Run) -> str:
    return send(f"at {time.time_ns()}")


@agent
def order_of_a_set_decides(run: Run) -> list[str]:
    return [send(name) for name in ("ann", "bob", "carl", "dora", "ede", "fay", "gus", "hal")]


@tool
async def send_soon(to: str, idempotency_key: str = "") -> str:
    await asyncio.sleep(0)
    return f"{to} {idempotency_key}"


@step
def fill_cache(name: str) -> str:
    CACHE[name] = "filled"
    return name


@agent
def memory_of_the_process_decides(run: Run) -> str:
    name = fill_cache("sam")
    look_up("sue")
    return CACHE.pop(name)


@agent
def memory_of_the_process_is_sent(run: Run) -> str:
    name = fill_cache("sam")
    send(CACHE.pop(name, "nobody"))
    return "sent"


@agent
async def memory_of_the_process_cancels(run: AsyncRun) -> str:
    fill_cache("sam")
    sending = asyncio.create_task(send_soon("sam"))
    await asyncio.sleep(0)
    if not CACHE.pop("sam", ""):
        sending.cancel()
    await asyncio.wait([sending])
    return "sent"


# ── tools that declare too little, or the wrong thing ────────────────────────────────────────


@tool
def charge(amount: int) -> str:
    return f"charged {amount}"


@agent
def missing_key(run: Run, amount: int = 5) -> str:
    look_up("sam")
    return charge(amount)


@tool(on_doubt="retry")
def charge_blindly(amount: int) -> str:
    return f"charged {amount}"


@agent
def repeats_blindly(run: Run) -> str:
    return charge_blindly(5)


@tool
def send_without_key(to: str, idempotency_key: str = "") -> str:
    return f"sent to {to}"


@agent
def ignores_its_key(run: Run) -> str:
    return send_without_key("sam")


@agent
def makes_its_key_by_chance(run: Run) -> str:
    return send("sam", idempotency_key=str(uuid.uuid4()))


def is_there(key: str) -> str | None:
    return key and None


@tool(check=is_there)
def book(room: str) -> str:
    return f"booked {room}"


@agent
def check_that_never_finds(run: Run) -> str:
    return book("blue")


@agent
def child(run: Run) -> str:
    return charge_blindly(5)


@agent
def repeats_in_a_child(run: Run) -> str:
    return child()
