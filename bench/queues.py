"""Three engines as queues with workers: `python -m bench.queues ENGINE enqueue|work URL …`.

A worker opens its engine, says "ready", and starts when it is given a line; so what is measured is
work and not the start of processes. Each step notes who reached it and when, in the file that
BENCH_MARKS names, if any.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

from bench.alternatives import body

ROOT: Final = Path(__file__).parent.parent
CONCURRENCY: Final = 10
LEASE_SECONDS: Final = 2
"""How long a run stays with a worker that died, unless AS_SHIPPED asks for an engine's own choice."""
AS_SHIPPED: Final = "BENCH_AS_SHIPPED"
MARKS: Final = "BENCH_MARKS"
STEP_SECONDS: Final = "BENCH_STEP_SECONDS"


def work(i: int) -> str:
    """The body of every step: 1 KB, after as long as was asked for."""
    path = os.environ.get(MARKS)
    if path:
        with Path(path).open("a", encoding="ascii") as marks:
            marks.write(f"{os.getpid()} {time.monotonic()}\n")
    time.sleep(float(os.environ.get(STEP_SECONDS, "0")))
    return body(i)


class Queue(Protocol):
    """What is asked of each engine."""

    ended: str
    """The query that counts runs that have ended well."""

    def enqueue(self, url: str, runs: int, n: int) -> None:
        """That many runs of `n` steps each, for workers to take."""
        ...

    def work(self, url: str, begin: Callable[[], None]) -> None:
        """Open, call `start`, then execute what is due until killed."""
        ...


class HoldfastQueue:
    ended = "SELECT count(*) FROM holdfast.runs WHERE status = 'completed'"

    def _agent(self) -> Callable[..., Any]:
        from holdfast import Run, agent, step

        one = step(work)

        @agent
        def loop(run: Run, n: int) -> int:  # noqa: ARG001
            for i in range(n):
                one(i)
            return n

        return loop

    def enqueue(self, url: str, runs: int, n: int) -> None:
        from holdfast import Holdfast

        loop = self._agent()
        with Holdfast(url) as hf:
            for _ in range(runs):
                hf.start(loop, n=n)

    def work(self, url: str, begin: Callable[[], None]) -> None:
        from holdfast import Holdfast, Options

        options = Options() if AS_SHIPPED in os.environ else Options(lease_seconds=LEASE_SECONDS)
        with Holdfast(url, agents=[self._agent()], options=options) as hf:
            begin()
            hf.worker(concurrency=CONCURRENCY).run()


class DbosQueue:
    ended = "SELECT count(*) FROM dbos.workflow_status WHERE status = 'SUCCESS'"

    def enqueue(self, url: str, runs: int, n: int) -> None:
        from dbos import DBOS, DBOSClient

        DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR"})
        DBOS.launch()  # makes the schema
        DBOS.destroy()
        client = DBOSClient(system_database_url=url, application_name="bench")
        for _ in range(runs):
            client.enqueue({"queue_name": "bench", "workflow_name": "loop"}, n)
        client.destroy()

    def work(self, url: str, begin: Callable[[], None]) -> None:
        from dbos import DBOS

        @DBOS.step()
        def one(i: int) -> str:
            return work(i)

        @DBOS.workflow(name="loop")
        def loop(n: int) -> int:
            for i in range(n):
                one(i)
            return n

        DBOS(
            config={
                "name": "bench",
                "system_database_url": url,
                "log_level": "ERROR",
                "executor_id": str(os.getpid()),
            }
        )
        begin()  # it takes runs from its queues as soon as it is launched, so that counts too
        DBOS.launch()
        DBOS.register_queue("bench", worker_concurrency=CONCURRENCY)
        while True:
            time.sleep(60)


class AbsurdQueue:
    ended = "SELECT count(*) FROM absurd.t_bench WHERE state = 'completed'"

    def _app(self, url: str) -> Any:
        import absurdctl
        import psycopg
        from absurd_sdk import Absurd

        with psycopg.connect(url, autocommit=True) as db:
            there = db.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'absurd'").fetchone()
            if there is None:
                db.execute(absurdctl.BUNDLED_SCHEMA_SQL)
        app = Absurd(url, queue_name="bench")
        app.create_queue()
        return app

    def enqueue(self, url: str, runs: int, n: int) -> None:
        app = self._app(url)
        app.register_task("loop", queue="bench")(lambda *_: None)
        for _ in range(runs):
            app.spawn("loop", {"n": n})
        app.close()

    def work(self, url: str, begin: Callable[[], None]) -> None:
        app = self._app(url)

        def loop(params: Any, context: Any) -> int:
            for i in range(params["n"]):
                context.step("step", lambda i=i: work(i))
            return int(params["n"])

        app.register_task("loop", queue="bench")(loop)
        begin()
        lease = {} if AS_SHIPPED in os.environ else {"claim_timeout": LEASE_SECONDS}
        app.start_worker(concurrency=CONCURRENCY, **lease)


QUEUES: Final[dict[str, type[Queue]]] = {
    "holdfast": HoldfastQueue,
    "dbos": DbosQueue,
    "absurd": AbsurdQueue,
}


def _begin() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()


def main() -> None:
    name, what, url, *numbers = sys.argv[1:]
    queue = QUEUES[name]()
    if what == "enqueue":
        queue.enqueue(url, *map(int, numbers))
    else:
        queue.work(url, _begin)
    os._exit(0)


if __name__ == "__main__":
    main()
