"""DBOS: workflows and steps in its system database, on SQLite or PostgreSQL.

On SQLite it sets neither the journal mode nor `synchronous`, so it runs with SQLite's defaults: a
rollback journal with `synchronous=FULL`. Concurrent workflows are async ones on its event loop.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from typing import Any

from dbos import DBOS, SetWorkflowID

from bench.alternatives import MARKS, serve, work

RUN_ID = "interrupted"
PATIENCE_SECONDS = 120


@DBOS.step()
def step(i: int) -> str:
    return work(i)


@DBOS.workflow()
def loop(n: int) -> int:
    for i in range(n):
        step(i)
    return n


@DBOS.step()
async def step_async(i: int) -> str:
    return work(i)


@DBOS.workflow()
async def loop_async(n: int) -> int:
    for i in range(n):
        await step_async(i)
    return n


class Dbos:
    def setup(self, url: str) -> str:
        DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR"})
        DBOS.launch()
        if not url.startswith("sqlite"):
            return "synchronous_commit as the server has it"
        db = sqlite3.connect(url.removeprefix("sqlite:///"))
        journal = db.execute("PRAGMA journal_mode").fetchone()[0]
        level = db.execute("PRAGMA synchronous").fetchone()[0]  # of this library: DBOS sets none
        db.close()
        return f"journal_mode={journal}, synchronous={level} (2 is FULL)"

    def alone(self, n: int) -> None:
        loop(n)

    def concurrent(self, runs: int, n: int) -> dict[str, Any]:
        async def one(n: int) -> None:
            handle = await DBOS.start_workflow_async(loop_async, n)
            await handle.get_result()

        async def all_of_them() -> float:
            await one(MARKS.warm_up)
            began = time.perf_counter()
            await asyncio.gather(*(one(n) for _ in range(runs)))
            return time.perf_counter() - began

        return {"seconds": asyncio.run(all_of_them())}

    def interrupted(self, n: int) -> None:
        with SetWorkflowID(RUN_ID):
            loop(n + 1)

    def resume(self, n: int) -> None:
        """`launch` has found the workflow and put it in a queue; it is taken from there."""
        end = time.monotonic() + PATIENCE_SECONDS
        while not MARKS.times:
            if time.monotonic() > end:
                raise TimeoutError(f"not resumed after {n} steps within {PATIENCE_SECONDS} s")
            time.sleep(0.001)

    def conversation(self, n: int) -> None:
        raise NotImplementedError("DBOS has no list that grows: a workflow would keep its own")

    def teardown(self) -> None:
        DBOS.destroy()


if __name__ == "__main__":
    serve(Dbos)
