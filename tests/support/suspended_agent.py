"""What the processes of `support.suspended` execute: a call during which the machine sleeps, and an effect after it."""

from __future__ import annotations

from pathlib import Path

from holdfast import Holdfast, Options, Run, agent, tool
from holdfast.store.base import Store, system_clock
from holdfast.store.postgres import PostgresStore
from holdfast.store.sqlite import SQLiteStore
from support.suspended import Machine
from support.waiting import go_through

LEASE_SECONDS = 3600
"""A test that waits until it ends fails."""


@tool
def choose(door: str, idempotency_key: str = "") -> str:
    print("inside", flush=True)
    go_through(door)
    return "a book"


@tool
def pay(what: str, paid: str) -> str:
    with Path(paid).open("a", encoding="utf-8") as file:
        file.write(f"{what}\n")
    return "paid"


@agent
def shopping(run: Run, door: str, paid: str) -> str:
    return pay(choose(door), paid)


def open_store(url: str, machine: Machine | None = None) -> Holdfast:
    """The store with its clock on a machine; by default that of this process. A server's clock never sleeps,
    so it shows the same time of day."""

    def clock() -> int:
        return system_clock() + (machine.slept * 1_000_000 if machine is not None else 0)

    made: Store = (
        SQLiteStore(url, clock=clock) if url.endswith(".db") else PostgresStore(url, clock=clock)
    )
    return Holdfast(made, agents=[shopping], options=Options(lease_seconds=LEASE_SECONDS))
