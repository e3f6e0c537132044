"""Holdfast itself, measured exactly as its alternatives are: one piece of work in its own process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final

from bench.alternatives import MARKS, serve, work
from holdfast import AsyncHoldfast, AsyncRun, Holdfast, Run, agent, step, tool
from holdfast.store.base import Append

RUN_ID: Final = "interrupted-{n}"


@step
def one(i: int) -> str:
    return work(i)


@tool
def act(i: int, idempotency_key: str = "") -> str:  # noqa: ARG001  (having one makes it keyed)
    return work(i)


@step
async def one_async(i: int) -> str:
    return work(i)


@agent
def loop(run: Run, n: int) -> int:  # noqa: ARG001
    for i in range(n):
        one(i)
    return n


@agent
def loop_of_tools(run: Run, n: int) -> int:  # noqa: ARG001
    for i in range(n):
        act(i)
    return n


@agent
async def loop_async(run: AsyncRun, n: int) -> int:  # noqa: ARG001
    for i in range(n):
        await one_async(i)
    return n


@step
def new(i: int) -> str:
    """The first step that an interrupted run has not done yet."""
    work(i)
    raise KeyboardInterrupt  # so the run stays as it is, and can be resumed in every round


@agent
def resumed(run: Run, n: int) -> int:  # noqa: ARG001
    for i in range(n):
        one(i)
    new(n)
    return n


@agent
def talk(run: Run, n: int) -> int:
    for i in range(n):
        run.messages.add("assistant", one(i))
    return n


@agent
def talk_and_read(run: Run, n: int) -> int:
    for i in range(n):
        run.messages.add("assistant", one(i))
        run.messages.all()
    return n


class HoldfastEngine:
    def setup(self, url: str) -> str:
        self.url = url
        self.hf = Holdfast(url)
        wanted = ("journal", "durability", "fsync", "synchronous_commit")
        return ", ".join(f"{f.name}={f.value}" for f in self.hf.store.examine() if f.name in wanted)

    def alone(self, n: int) -> None:
        self.hf.run(loop, n=n)

    def tools(self, n: int) -> None:
        """One run of `n` tools, each with an intent before and a receipt after."""
        self.hf.run(loop_of_tools, n=n)

    def concurrent(self, runs: int, n: int) -> dict[str, Any]:
        async def all_of_them() -> dict[str, Any]:
            async with AsyncHoldfast(self.url) as hf:
                await hf.run(loop_async, n=MARKS.warm_up)
                sizes = _count_batches(hf.sync.store)
                began = time.perf_counter()
                await asyncio.gather(*(hf.run(loop_async, n=n) for _ in range(runs)))
                seconds = time.perf_counter() - began
                return {"seconds": seconds, "per_commit": sum(sizes) / max(1, len(sizes))}

        return asyncio.run(all_of_them())

    def interrupted(self, n: int) -> None:
        """A log with `n` completed steps, written as `loop` would have, in a few big appends."""
        import bench.harness  # noqa: F401  (which finds the tests' support; not before the clock of others)
        from support.long_runs import write_steps

        write_steps(self.hf.store, resumed, RUN_ID.format(n=n), n, one, n=n)
        self.hf.close()

    def resume(self, n: int) -> None:
        try:
            self.hf.run(resumed, id=RUN_ID.format(n=n), n=n)
        except KeyboardInterrupt:
            return
        raise AssertionError("the run was not interrupted")

    def conversation(self, n: int) -> None:
        self.hf.run(talk, n=n)

    def reading(self, n: int) -> None:
        """A conversation whose agent also reads all of it at each step."""
        self.hf.run(talk_and_read, n=n)

    def teardown(self) -> None:
        self.hf.close()


def _count_batches(store: Any) -> list[int]:
    """The sizes of the batches that the store commits from here on."""
    group, sizes = store._group, []
    commit = group._commit

    def counted(batch: Sequence[Append]) -> Any:
        sizes.append(len(batch))
        return commit(batch)

    group._commit = counted
    return sizes


if __name__ == "__main__":
    serve(HoldfastEngine)
