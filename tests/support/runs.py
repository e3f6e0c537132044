"""What tests ask of a run, and an agent that hangs until someone ends it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from holdfast import AsyncHoldfast, AsyncRun, Holdfast, RunWaiting, agent, step
from support.waiting import PATIENCE_SECONDS

T = TypeVar("T")


def of_kind(hf: Holdfast, run_id: str, kind: type[T]) -> list[T]:
    """The events of this kind in the run's log."""
    return [event for _, event in hf.events(run_id) if isinstance(event, kind)]


def waits(hf: Holdfast, agent: Any, run_id: str = "r", **input: Any) -> RunWaiting:
    """Execute the run until it waits; what it then says."""
    with pytest.raises(RunWaiting) as waiting:
        hf.run(agent, id=run_id, **input)
    return waiting.value


class Hanging:
    """An agent that awaits one call, declared as a step or so, which never ends by itself."""

    def __init__(self, declare: Callable[..., Any] = step, **of_agent: Any) -> None:
        self._entered = threading.Event()
        self.ended: list[str] = []

        @declare
        async def hang() -> None:
            self._entered.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.ended.append("cancelled")
                raise

        @agent(**of_agent)
        async def main(run: AsyncRun) -> None:
            await hang()

        self.agent = main

    async def begin(self, hf: AsyncHoldfast) -> asyncio.Task[None]:
        """Start it as run `r`; it is in its call when this returns."""
        task = asyncio.ensure_future(hf.run(self.agent, id="r"))
        assert await asyncio.to_thread(self._entered.wait, PATIENCE_SECONDS)
        return task
