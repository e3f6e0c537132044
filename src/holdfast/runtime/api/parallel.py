"""`run.map` of a sync agent: one function for many items, in threads, each item on its own branch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

from holdfast.errors import CallFailed, Unwind
from holdfast.runtime.log.branches import CURRENT, Branch

T = TypeVar("T")
U = TypeVar("U")


def map_in_threads(fn: Callable[[U], T], work: Sequence[tuple[Branch, U]], threads: int) -> list[T]:
    """Results in the order of the items. After an error all others are still awaited; of several, one is raised."""
    if not work:
        return []

    def one(branch: Branch, item: U) -> T:
        CURRENT.set(branch)
        return fn(item)

    with ThreadPoolExecutor(
        max_workers=min(threads, len(work)), thread_name_prefix="holdfast-map"
    ) as pool:
        futures = [pool.submit(copy_context().run, one, branch, item) for branch, item in work]
    errors = [x for x in (future.exception() for future in futures) if x is not None]
    signals = [x for x in errors if isinstance(x, Unwind)]
    for error in (*signals, *errors):
        if isinstance(error, CallFailed):
            error.also = tuple(
                x.step for x in errors if isinstance(x, CallFailed) and x is not error
            )
        raise error
    return [future.result() for future in futures]
