"""Group commit: which appends of an event loop go together."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

from holdfast.store.base import Append
from holdfast.store.group import GroupCommit
from support.waiting import eventually

PATIENCE_SECONDS = 30


def test_what_a_loop_has_submitted_is_committed_while_other_tasks_continue() -> None:
    """With many runs, one half of them continues while the other half's appends are committed. If what both submit went
    into one batch, the database would wait for the loop, and then the loop for the database."""
    batches: list[list[str]] = []
    is_begun, is_at_work, is_notified = threading.Event(), threading.Event(), threading.Event()

    def commit(batch: Sequence[Append]) -> list[None]:
        batches.append([work.run_id for work in batch])
        is_begun.set()
        assert is_at_work.wait(PATIENCE_SECONDS)
        return [None] * len(batch)

    async def main() -> None:
        group, loop = GroupCommit[Append](commit), asyncio.get_running_loop()
        call_soon = loop.call_soon_threadsafe

        def note_call(*args: Any, **options: Any) -> asyncio.Handle:
            handle = call_soon(*args, **options)
            is_notified.set()
            return handle

        loop.call_soon_threadsafe = note_call  # type: ignore[method-assign]

        async def first() -> None:
            await group.submit(Append("first", -1, ()))
            eventually(
                lambda: len(batches) > 1, "the second is committed while this blocks the loop"
            )
            await group.submit(Append("first, again", -1, ()))

        async def second() -> None:
            while not is_begun.is_set():  # noqa: ASYNC110 (it is set in another thread)
                await asyncio.sleep(0)
            is_at_work.set()
            assert is_notified.wait(PATIENCE_SECONDS)  # the first is to continue after this
            await group.submit(Append("second", -1, ()))

        await asyncio.gather(first(), second())
        group.close()

    asyncio.run(main())

    assert [["first"], ["second"], ["first, again"]] == batches
