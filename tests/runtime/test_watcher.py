"""What the thread that watches async runs leaves alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast import AsyncRun, agent, step
from holdfast.runtime.exec import watcher

PATIENCE_SECONDS = 30


def test_the_log_of_a_run_that_only_wrote_itself_is_not_read_by_the_thread_that_watches_it(
    home: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 500 busy runs it read 500 logs each second, and each kept the event loop waiting."""
    is_wanted, is_made, readers = threading.Event(), threading.Event(), list[str]()

    @step
    async def count(i: int) -> int:
        return i

    @agent
    async def main(_: AsyncRun) -> int:
        for i in range(3):
            assert await asyncio.to_thread(is_wanted.wait, PATIENCE_SECONDS)
            is_wanted.clear()
            await count(i)
            is_made.set()
        return 3

    monkeypatch.setattr(watcher, "CHECK_SECONDS", 0.01)
    hf = home.open(main)
    heads, read = hf.store.heads, hf.store.read

    def heads_after_a_step(run_ids: Sequence[str]) -> Any:
        if "r" in run_ids:
            is_made.clear()
            is_wanted.set()
            is_made.wait(1)  # in the last check the run may have ended
        return heads(run_ids)

    def note_reader(*args: Any, **options: Any) -> Any:
        readers.append(threading.current_thread().name)
        return read(*args, **options)

    monkeypatch.setattr(hf.store, "heads", heads_after_a_step)
    monkeypatch.setattr(hf.store, "read", note_reader)
    assert 3 == hf.run(main, id="r")

    assert not [name for name in readers if "watcher" in name]
