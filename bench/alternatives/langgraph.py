"""LangGraph: a graph whose one node leads back to itself, with its SQLite or PostgreSQL saver.

`durability="sync"`: a checkpoint is written before the next step starts, which is what the others
do. Its SQLite saver sets WAL and leaves `synchronous` at SQLite's default, FULL.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from bench.alternatives import MARKS, serve, work

POOL_SIZE = 20
RUN_ID = "interrupted"


class Loop(TypedDict):
    n: int
    i: int
    result: str


class Talk(TypedDict):
    n: int
    i: int
    messages: Annotated[list[AnyMessage], add_messages]


def _extend(state: list[Any], writes: Sequence[list[Any]]) -> list[Any]:
    return [*state, *(message for write in writes for message in write)]


class TalkDelta(TypedDict):
    n: int
    i: int
    messages: Annotated[list[AnyMessage], DeltaChannel(_extend)]


def _step(state: Loop) -> dict[str, Any]:
    return {"i": state["i"] + 1, "result": work(state["i"])}


async def _step_async(state: Loop) -> dict[str, Any]:
    return _step(state)


def _say(state: Any) -> dict[str, Any]:
    return {"i": state["i"] + 1, "messages": [AIMessage(content=work(state["i"]))]}


def _graph(schema: Any, node: Any, saver: Any) -> Any:
    graph = StateGraph(schema)
    graph.add_node("step", node)
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", lambda s: "step" if s["i"] < s["n"] else END)
    return graph.compile(checkpointer=saver)


class LangGraph:
    def setup(self, url: str) -> str:
        self.url = url
        self.stack = ExitStack()
        self.runs = 0
        if url.startswith("sqlite"):
            path = url.removeprefix("sqlite:///")
            saver = self.stack.enter_context(SqliteSaver.from_conn_string(path))
            saver.setup()
            journal = saver.conn.execute("PRAGMA journal_mode").fetchone()[0]
            level = saver.conn.execute("PRAGMA synchronous").fetchone()[0]
            self.saver: Any = saver
            return f"journal_mode={journal}, synchronous={level} (2 is FULL)"
        self.saver = self.stack.enter_context(PostgresSaver.from_conn_string(url))
        self.saver.setup()
        return "synchronous_commit as the server has it"

    def _config(self, n: int, run_id: str = "") -> dict[str, Any]:
        self.runs += 1
        name = run_id or f"{id(self)}-{self.runs}"
        return {"configurable": {"thread_id": name}, "recursion_limit": n + 10}

    def alone(self, n: int) -> None:
        first = {"n": n, "i": 0, "result": ""}
        _graph(Loop, _step, self.saver).invoke(first, self._config(n), durability="sync")

    def concurrent(self, runs: int, n: int) -> dict[str, Any]:
        return {"seconds": asyncio.run(self._concurrent(runs, n))}

    async def _concurrent(self, runs: int, n: int) -> float:
        async with AsyncExitStack() as stack:
            saver: Any
            if self.url.startswith("sqlite"):
                path = self.url.removeprefix("sqlite:///")
                saver = await stack.enter_async_context(AsyncSqliteSaver.from_conn_string(path))
            else:
                how = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
                pool: Any = AsyncConnectionPool(
                    self.url, max_size=POOL_SIZE, kwargs=how, open=False, timeout=600
                )
                await stack.enter_async_context(pool)
                saver = AsyncPostgresSaver(pool)
            graph = _graph(Loop, _step_async, saver)

            async def one(n: int) -> None:
                first = {"n": n, "i": 0, "result": ""}
                await graph.ainvoke(first, self._config(n), durability="sync")

            await one(MARKS.warm_up)
            began = time.perf_counter()
            await asyncio.gather(*(one(n) for _ in range(runs)))
            return time.perf_counter() - began

    def interrupted(self, n: int) -> None:
        first = {"n": n + 1, "i": 0, "result": ""}
        graph = _graph(Loop, _step, self.saver)
        graph.invoke(first, self._config(n, RUN_ID), durability="sync")

    def resume(self, n: int) -> None:
        graph = _graph(Loop, _step, self.saver)
        graph.invoke(None, self._config(n, RUN_ID), durability="sync")

    def conversation(self, n: int) -> None:
        first = {"n": n, "i": 0, "messages": []}
        _graph(Talk, _say, self.saver).invoke(first, self._config(n), durability="sync")

    def conversation_delta(self, n: int) -> None:
        """The same with its channel that keeps only what was added (beta)."""
        first = {"n": n, "i": 0, "messages": []}
        _graph(TalkDelta, _say, self.saver).invoke(first, self._config(n), durability="sync")

    def teardown(self) -> None:
        self.stack.close()


if __name__ == "__main__":
    serve(LangGraph)
