"""Absurd: tasks and steps as functions in PostgreSQL. Its schema comes with `absurdctl`.

Concurrent tasks run on its async worker, which has one connection.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import absurdctl
import psycopg
from absurd_sdk import Absurd, AsyncAbsurd

from bench.alternatives import MARKS, serve, work

POLL_SECONDS = 0.01
CLAIM_SECONDS = 600
PATIENCE_SECONDS = 30


class AbsurdEngine:
    def setup(self, url: str) -> str:
        if url.startswith("sqlite"):
            raise NotImplementedError("Absurd needs PostgreSQL")
        self.url = url
        with psycopg.connect(url, autocommit=True) as db:
            there = db.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'absurd'").fetchone()
            if there is None:
                db.execute(absurdctl.BUNDLED_SCHEMA_SQL)
        self.app = Absurd(url, queue_name="bench")
        self.app.create_queue()
        self.app.register_task("loop", queue="bench")(self._loop)
        return "synchronous_commit as the server has it"

    @staticmethod
    def _loop(params: Any, context: Any) -> int:
        for i in range(params["n"]):
            context.step("step", lambda i=i: work(i))
        return int(params["n"])

    def alone(self, n: int) -> None:
        self.app.spawn("loop", {"n": n})
        self.app.work_batch(claim_timeout=CLAIM_SECONDS)

    def concurrent(self, runs: int, n: int) -> dict[str, Any]:
        return {"seconds": asyncio.run(self._concurrent(runs, n))}

    async def _concurrent(self, runs: int, n: int) -> float:
        app = AsyncAbsurd(self.url, queue_name="bench")
        await app.create_queue()  # connects; the queue is there already
        ended = 0

        async def loop(params: Any, context: Any) -> int:
            nonlocal ended
            for i in range(params["n"]):

                async def step(i: int = i) -> str:
                    return work(i)

                await context.step("step", step)
            ended += 1
            if ended == runs:
                app.stop_worker()
            return int(params["n"])

        app.register_task("loop_async", queue="bench")(loop)
        began = time.perf_counter()
        for _ in range(runs):
            await app.spawn("loop_async", {"n": n})
        await app.start_worker(
            concurrency=runs, poll_interval=POLL_SECONDS, claim_timeout=CLAIM_SECONDS
        )
        seconds = time.perf_counter() - began
        await app.close()
        return seconds

    def interrupted(self, n: int) -> None:
        self.app.spawn("loop", {"n": n + 1})
        self.app.work_batch(claim_timeout=1)

    def resume(self, n: int) -> None:  # noqa: ARG002  (the task knows it)
        """Its claim ends after a second; from then on a worker may take it."""
        end = time.monotonic() + PATIENCE_SECONDS
        while not MARKS.times:
            if time.monotonic() > end:
                raise TimeoutError(f"not resumed within {PATIENCE_SECONDS} s")
            self.app.work_batch(claim_timeout=CLAIM_SECONDS)

    def conversation(self, n: int) -> None:
        raise NotImplementedError("Absurd has no list that grows: a task would keep its own")

    def teardown(self) -> None:
        self.app.close()


if __name__ == "__main__":
    serve(AbsurdEngine)
