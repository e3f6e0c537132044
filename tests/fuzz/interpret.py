"""Runs a program as an agent: declares tools, agents and models for it, in any process that asks.

A program is interpreted by one generator that yields operations; a small driver for plain agents and one for
async agents carry them out. A running value `acc` takes in every result, and is an argument of every call:
so a value that changes between two executions makes the run diverge, and cannot pass unnoticed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import zlib
from collections.abc import Callable, Generator, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

from fuzz.programs import Body, Program, family
from fuzz.world import Refused, World, stand_still
from holdfast import (
    AgentState,
    Approval,
    AsyncRun,
    Budget,
    CallFailed,
    LLMAgent,
    Question,
    Retry,
    Run,
    Timer,
    agent,
    loop,
    step,
    tool,
)
from holdfast.agents.models.base import Prompt, Reply, ToolRequest
from holdfast.core.events import Usage
from holdfast.runtime.log.branches import current_branch

LOOP_ITERATIONS = 3
QUICK_RETRY = Retry(attempts=4, initial=0.005, factor=1.0, jitter=0)
LATE_RETRY = Retry(attempts=4, initial=0.12, factor=1.0, jitter=0)


class ProgramError(Exception):
    """What a program raises on purpose."""


class Op(NamedTuple):
    """Something that the driver does for the interpreter."""

    what: str
    args: tuple[Any, ...] = ()


Steps = Generator[Op, Any, None]


class Line:
    """A line of execution: where it is, and what it has seen."""

    def __init__(self, at: str, acc: int) -> None:
        self.at, self.acc = at, acc

    def see(self, value: Any) -> None:
        self.acc = zlib.crc32(json.dumps([self.acc, value], default=str).encode()) % 100_000


# ── tools ────────────────────────────────────────────────────────────────────────────────────


def tools_of(world: World, table: str) -> dict[str, Callable[..., Any]]:
    """Every tool, as a plain function and (its name with an `a` before it) as an async one."""

    def find(key: str) -> Any:
        return world.find(key)

    def drawn(at: str, n: int) -> list[Any]:
        """A model that answers differently each time."""
        return [at[-20:], n, random.randrange(1000)]

    def acted(name: str, at: str, n: int, key: str = "") -> dict[str, Any]:
        return world.act(name, key, {"at": at, "n": n})

    def undo_of(name: str) -> Callable[..., None]:
        def undo(at: str, n: int, result: Any, idempotency_key: str = "") -> None:
            args = {"at": at, "n": n, "result": result}
            world.act(f"undo {name}", idempotency_key, args)

        return undo

    @step(name="step")
    def plain(at: str, n: int) -> list[Any]:
        return drawn(at, n)

    @step(name="slow")
    def slow(at: str, n: int, ms: float) -> int:
        world.take(ms / 1000)
        return n

    @tool(name="keyed")
    def keyed(at: str, n: int, idempotency_key: str = "") -> dict[str, Any]:
        return acted("keyed", at, n, idempotency_key)

    @tool(name="checked", check=find)
    def checked(at: str, n: int, idempotency_key: str = "") -> dict[str, Any]:
        return acted("checked", at, n, idempotency_key)

    @tool(name="once")
    def once(at: str, n: int) -> dict[str, Any]:
        return acted("once", at, n)

    @tool(name="undoable", undo=undo_of("undoable"), risk="write_local")
    def undoable(at: str, n: int, idempotency_key: str = "") -> dict[str, Any]:
        return acted("undoable", at, n, idempotency_key)

    @tool(name="tx", risk="write_local")
    def written(at: str, n: int, tx: Any = None) -> int:
        tx.execute(table, (at, n))
        world.dawdle()
        return n

    def flaky_of(name: str, retry: Retry) -> Callable[..., Any]:
        @tool(name=name, retry=retry)
        def flaky(at: str, n: int, fails: int, idempotency_key: str = "") -> dict[str, Any]:
            world.fail_first(idempotency_key, fails)
            return world.act(name, idempotency_key, {"at": at, "n": n, "fails": fails})

        return flaky

    @tool(name="unlucky", risk="write_local")
    def unlucky(at: str, n: int, fails: int, idempotency_key: str = "") -> dict[str, Any]:
        world.fail_first(at, fails)
        return world.act("unlucky", idempotency_key, {"at": at, "n": n, "fails": fails})

    @tool(name="failing", risk="write_local")
    def failing(at: str, n: int, idempotency_key: str = "") -> None:
        raise Refused(f"not {n}")

    @step(name="astep")
    async def aplain(at: str, n: int) -> list[Any]:
        _begins(at)
        await asyncio.sleep(0)
        return drawn(at, n)

    @step(name="aslow")
    async def aslow(at: str, n: int, ms: float) -> int:
        _begins(at)
        await _later(ms / 1000)
        return n

    @step(name="aswallow")
    async def aswallow(at: str, n: int, ms: float) -> int:
        """Ends when it is cancelled, and does not say so."""
        with contextlib.suppress(asyncio.CancelledError):
            await _later(ms / 1000)
        return n

    @tool(name="acleans", risk="read")
    async def acleans(at: str, n: int, ms: float, cleaning_ms: float) -> int:
        """Takes its time to clean up when it is cancelled."""
        try:
            await _later(ms / 1000)
        finally:
            await _later(cleaning_ms / 1000)
        return n

    @step(name="aendless")
    async def aendless(at: str, n: int) -> None:
        """Returns only if it is cancelled."""
        await asyncio.get_running_loop().create_future()

    @tool(name="akeyed")
    async def akeyed(at: str, n: int, idempotency_key: str = "") -> dict[str, Any]:
        _begins(at)
        return await asyncio.to_thread(acted, "akeyed", at, n, idempotency_key)

    @tool(name="achecked", check=find)
    async def achecked(at: str, n: int, idempotency_key: str = "") -> dict[str, Any]:
        return await asyncio.to_thread(acted, "achecked", at, n, idempotency_key)

    @tool(name="aonce")
    async def aonce(at: str, n: int) -> dict[str, Any]:
        return acted("aonce", at, n)

    @tool(name="aundoable", undo=undo_of("aundoable"), risk="write_local")
    async def aundoable(at: str, n: int, idempotency_key: str = "") -> dict[str, Any]:
        return acted("aundoable", at, n, idempotency_key)

    def aflaky_of(name: str, retry: Retry) -> Callable[..., Any]:
        @tool(name=name, retry=retry)
        async def aflaky(at: str, n: int, fails: int, idempotency_key: str = "") -> dict[str, Any]:
            world.fail_first(idempotency_key, fails)
            return world.act(name, idempotency_key, {"at": at, "n": n, "fails": fails})

        return aflaky

    @tool(name="aunlucky", risk="write_local")
    async def aunlucky(at: str, n: int, fails: int, idempotency_key: str = "") -> dict[str, Any]:
        world.fail_first(at, fails)
        return world.act("aunlucky", idempotency_key, {"at": at, "n": n, "fails": fails})

    @tool(name="afailing", risk="write_local")
    async def afailing(at: str, n: int, idempotency_key: str = "") -> None:
        await asyncio.sleep(0)
        raise Refused(f"not {n}")

    return {
        "step": plain,
        "slow": slow,
        "keyed": keyed,
        "checked": checked,
        "once": once,
        "undoable": undoable,
        "tx": written,
        "failing": failing,
        "unlucky": unlucky,
        "astep": aplain,
        "aslow": aslow,
        "akeyed": akeyed,
        "achecked": achecked,
        "aonce": aonce,
        "aundoable": aundoable,
        "atx": written,
        "afailing": afailing,
        "aunlucky": aunlucky,
        "aswallow": aswallow,
        "acleans": acleans,
        "aendless": aendless,
        "flaky": flaky_of("flaky", QUICK_RETRY),
        "late": flaky_of("late", LATE_RETRY),
        "aflaky": aflaky_of("aflaky", QUICK_RETRY),
        "alate": aflaky_of("alate", LATE_RETRY),
    }


CERTAIN = ("step", "slow")
"""Calls whose outcome nobody else can record: an async agent is given it by its log, or makes the call."""
EXECUTION: ContextVar[Async | None] = ContextVar("EXECUTION", default=None)
"""Whose code is running here."""


def _begins(at: str) -> None:
    here = EXECUTION.get()
    if here is not None:
        here.made.add(at)


async def _later(seconds: float) -> None:
    """Wait on the event loop: a timer that can be cancelled."""
    future = asyncio.get_running_loop().create_future()
    handle = asyncio.get_running_loop().call_later(seconds, _wake, future)
    try:
        await future
    finally:
        handle.cancel()


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


# ── the interpreter ──────────────────────────────────────────────────────────────────────────


def interpret(run: Any, body: Body, line: Line) -> Steps:
    """What a body does, as operations. Its driver sends the results back, or throws what was raised."""
    top = line.at
    for number, (word, *rest) in enumerate(body):
        line.at = at = f"{top}.{number}"
        match word:
            case "step" | "keyed" | "checked" | "once" | "undoable" | "tx" | "failing":
                line.see((yield Op("call", (word, at, line.acc))))
            case "slow" | "swallow" | "cleans" | "unlucky" | "endless":
                line.see((yield Op("call", (word, at, line.acc, *rest))))
            case "flaky":
                fails, delay = rest
                name = "flaky" if delay < 0.1 else "late"
                line.see((yield Op("call", (name, at, line.acc, fails))))
            case "child":
                line.see((yield Op("child", (rest[0], at))))
            case "random":
                line.see(run.random())
            case "uuid":
                line.see(str(run.uuid()))
            case "now":
                line.see(run.now().isoformat())
            case "state":
                line.see(_state(run, rest[0], line.acc))
            case "patched":
                line.see(run.patched(f"change {number}"))
            case "checkpoint":
                yield Op("checkpoint")
            case "raise":
                raise ProgramError(at)
            case "raise_in":
                if top.endswith(f"i{rest[0]}"):
                    raise ProgramError(at)
            case "stall":
                if random.random() < 0.3:
                    # Not run.random(): another execution may be as fast as ever.
                    stand_still(rest[0])
            case "leave":
                yield Op(word, (at, rest[0], line.acc))
            case "hang":
                yield Op(word)
            case "ask" | "approve" | "signal" | "sleep" | "wait_any":
                line.see((yield Op(word, (at, *rest))))
            case "loop":
                for turn in range(rest[0]):
                    line.at = f"{at}r{turn}"
                    yield from interpret(run, rest[1], line)
            case "if":
                chosen = rest[0] if run.random() < 0.5 else rest[1]
                line.see(len(chosen))
                yield from interpret(run, chosen, line)
            case "try":
                yield from _tried(run, rest, line, at)
            case "clean_up":
                yield from _cleaned_up(run, rest, line, at)
            case "limited" | "within" | "until" | "shielded":
                line.see((yield Op(word, (at, rest[0], rest[1], line.acc))))
            case "thread":
                line.see((yield Op(word, (at, rest[0], line.acc))))
            case "map" | "gather" | "group" | "race" | "notify" | "queue" | "completed":
                line.see((yield Op(word, (at, rest[0], line.acc))))
            case "timeout":
                line.see((yield Op(word, (at, rest[0], rest[1], line.acc))))
            case _:
                raise AssertionError(f"no such statement: {word}")
    line.at = top


def _tried(run: Any, bodies: Sequence[Body], line: Line, at: str) -> Steps:
    try:
        yield from interpret(run, bodies[0], line)
    except (CallFailed, ProgramError, ExceptionGroup) as error:
        line.see(type(error).__name__)
        line.at = f"{at}x"
        yield from interpret(run, bodies[1], line)


def _cleaned_up(run: Any, bodies: Sequence[Body], line: Line, at: str) -> Steps:
    """What code does that cleans up after a failure, and fails."""
    try:
        yield from interpret(run, bodies[0], line)
    except CallFailed:
        line.at = f"{at}x"
        yield from interpret(run, bodies[1], line)
        raise


def _state(run: Any, op: str, n: int) -> Any:
    match op:
        case "set":
            run.state.seen = n
        case "increment":
            run.state.increment("count")
        case "append":
            run.state.append("list", n)
        case _:
            pass
    return json.loads(json.dumps(run.state.all()))


class Sync:
    """Carries out the operations of a plain agent."""

    def __init__(self, run: Run, tools: dict[str, Any], children: Sequence[Any]) -> None:
        self.run, self.tools, self.children = run, tools, children

    def execute(self, body: Body, at: str, acc: int) -> int:
        line = Line(at, acc)
        steps = interpret(self.run, body, line)
        try:
            op = next(steps)
            while True:
                try:
                    result = self.do(op)
                except Exception as error:
                    op = steps.throw(error)
                else:
                    op = steps.send(result)
        except StopIteration:
            return line.acc

    def do(self, op: Op) -> Any:
        run, args = self.run, op.args
        match op.what:
            case "call":
                return self.tools[args[0]](*args[1:])
            case "child":
                return _plain(self.children[args[0]](f"{run.id}@{args[1]}"))
            case "checkpoint":
                return run.checkpoint()
            case "ask":
                return run.ask(args[0], timeout=args[1])
            case "approve":
                return run.approve(args[0], timeout=args[1])
            case "signal":
                return run.wait_for(args[1], timeout=args[2])
            case "sleep":
                return run.sleep(args[1])
            case "wait_any":
                return run.wait_any(*_choices(args[0], args[1]), timeout=_limit(args[1], args[2]))
            case "map":
                at, bodies, acc = args
                work = list(enumerate(bodies))
                return run.map(lambda x: self.execute(x[1], f"{at}b{x[0]}", acc + x[0]), work)
            case _:
                raise AssertionError(f"no such operation in a plain agent: {op}")


class Async:
    """Carries out the operations of an async agent."""

    def __init__(
        self,
        run: AsyncRun,
        tools: dict[str, Any],
        children: Sequence[Any],
        world: World,
        *,
        is_resumed: bool,
    ) -> None:
        self.run, self.tools, self.children, self.world = run, tools, children, world
        self.is_resumed = is_resumed
        """Whether people may resume this run when it has failed."""
        self.left: list[asyncio.Task[int]] = []
        """Tasks that the code does not wait for."""
        self.made: set[str] = set()
        """Where calls were made by this execution."""
        self.swallowed: dict[asyncio.Task[Any] | None, int] = {}
        """By task: how many of its cancellations it will not hear of."""
        EXECUTION.set(self)

    async def execute(self, body: Body, at: str, acc: int) -> int:
        line = Line(at, acc)
        steps = interpret(self.run, body, line)
        try:
            op = next(steps)
            while True:
                was_cancelled = _cancelling() > self.swallowed.get(asyncio.current_task(), 0)
                try:
                    result = await self.do(op)
                except asyncio.CancelledError:
                    self._check_not_suspended(op, line)
                    raise
                except Exception as error:
                    if op.what in ("gather", "map", "notify"):
                        # asyncio.gather cancels its tasks instead. If one of them fails at that moment, the failure is all
                        # that its caller is told: so it is without Holdfast, too.
                        self.swallowed[asyncio.current_task()] = _cancelling()
                    op = steps.throw(error)
                else:
                    self._check_cancelled(was_cancelled, op, line)
                    self._check_order(op)
                    op = steps.send(result)
        except StopIteration:
            return line.acc

    def _check_cancelled(self, before: bool, op: Op, line: Line) -> None:
        """A task that was cancelled before a call began must not be given its result. Not so a plain call, which
        awaits nothing; and a wait whose answer is there gives it, and the cancellation follows."""
        if before and op.what == "call" and op.args[0] != "tx":
            text = f"{line.at}: {op.what} {op.args[:2]} was answered although its task was cancelled before it began"
            self.world.report("cancellation dropped", self.run.id, text)

    def _check_order(self, op: Op) -> None:
        """27: nothing new begins before the code has all that is recorded. Not so in a run that was resumed after a
        failure: its code may take another path, and come to what is recorded later."""
        if op.what != "call" or op.args[0] not in CERTAIN or op.args[1] in self.made:
            return
        if self.made and not self.is_resumed:
            text = f"{op.args[:2]} was given to the code after it had made other calls: {sorted(self.made)[:3]}"
            self.world.report("begun before what is recorded", self.run.id, text)

    def _check_not_suspended(self, op: Op, line: Line) -> None:
        """Code must not see a suspension as a cancellation. (A task group does, which expects one.)"""
        branch = current_branch()
        lines = None if branch is None else branch.session.lines
        if lines is not None and lines.suspension is not None and op.what != "group":
            text = f"{line.at}: {op.what} {op.args[:2]} was cancelled because the run is suspended"
            self.world.report("suspension is a cancellation", self.run.id, text)

    async def do(self, op: Op) -> Any:
        run, args = self.run, op.args
        match op.what:
            case "call":
                name = args[0]
                if name == "tx":
                    return self.tools["tx"](*args[1:])
                return await self.tools[f"a{name}"](*args[1:])
            case "child":
                return _plain(await self.children[args[0]](f"{run.id}@{args[1]}"))
            case "checkpoint":
                return await run.checkpoint()
            case "ask":
                return await run.ask(args[0], timeout=args[1])
            case "approve":
                return await run.approve(args[0], timeout=args[1])
            case "signal":
                return await run.wait_for(args[1], timeout=args[2])
            case "sleep":
                return await run.sleep(args[1])
            case "wait_any":
                limit = _limit(args[1], args[2])
                return await run.wait_any(*_choices(args[0], args[1]), timeout=limit)
            case "timeout":
                return await self._within(*args)
            case "leave":
                self.left.append(asyncio.create_task(self.execute(args[1], f"{args[0]}l", args[2])))
                return await asyncio.sleep(0)
            case "notify":
                return await self._notified(*args)
            case "hang":
                return await self._hang()
            case "limited":
                return await self._limited(*args)
            case "queue":
                return await self._queued(*args)
            case "completed":
                return await self._completed(*args)
            case "within":
                return await self._waited_for(*args)
            case "until":
                return await self._until(*args)
            case "shielded":
                return await self._shielded(*args)
            case "thread":
                return await asyncio.to_thread(self._in_thread, *args)
            case _:
                return await self._together(op.what, *args)

    async def _within(self, at: str, seconds: float, body: Body, acc: int) -> Any:
        try:
            async with asyncio.timeout(seconds):
                return await self.execute(body, f"{at}t", acc)
        except TimeoutError:
            return "time"

    async def _hang(self) -> None:
        """Await something that Holdfast does not know; see `World.hangs`."""
        self.world.enter_hang(self.run.id)
        while self.world.hangs(self.run.id):
            await _later(0.05)

    async def _notified(self, at: str, bodies: list[Body], acc: int) -> Any:
        """The second line waits for the first by means that Holdfast does not know."""
        event = asyncio.Event()

        async def first() -> int:
            seen = await self.execute(bodies[0], f"{at}b0", acc)
            event.set()
            return seen

        async def second() -> int:
            await event.wait()
            return await self.execute(bodies[1], f"{at}b1", acc + 1)

        return list(await asyncio.gather(first(), second()))

    async def _limited(self, at: str, places: int, bodies: list[Body], acc: int) -> Any:
        limit = asyncio.Semaphore(places) if places > 1 else asyncio.Lock()

        async def one(n: int) -> int:
            async with limit:
                return await self.execute(bodies[n], f"{at}b{n}", acc + n)

        return list(await asyncio.gather(*map(one, range(len(bodies)))))

    async def _queued(self, at: str, bodies: list[Body], acc: int) -> Any:
        """Which of the two consumers takes what depends on which is free first."""
        queue: asyncio.Queue[int] = asyncio.Queue()
        taken: list[list[int]] = []

        async def consume(number: int) -> None:
            while not queue.empty():
                n = await queue.get()
                taken.append([number, n, await self.execute(bodies[n], f"{at}b{n}", acc + n)])

        for n in range(len(bodies)):
            queue.put_nowait(n)
        await asyncio.gather(consume(0), consume(1))
        return taken

    async def _completed(self, at: str, bodies: list[Body], acc: int) -> Any:
        branches = [self.execute(body, f"{at}b{n}", acc + n) for n, body in enumerate(bodies)]
        # asyncio starts coroutines in any order here, but tasks have one.
        tasks = [asyncio.create_task(branch) for branch in branches]
        return [await first for first in asyncio.as_completed(tasks)]

    async def _waited_for(self, at: str, seconds: float, body: Body, acc: int) -> Any:
        try:
            return await asyncio.wait_for(self.execute(body, f"{at}w", acc), seconds)
        except TimeoutError:
            return "time"

    async def _until(self, at: str, seconds: float, body: Body, acc: int) -> Any:
        """The code stops waiting for a task. If that is late, it is cancelled half of the time."""
        task = asyncio.ensure_future(self.execute(body, f"{at}u", acc))
        done, late = await asyncio.wait([task], timeout=seconds)
        if late and acc % 2:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return "given up"
        return [len(done), await task]

    async def _shielded(self, at: str, seconds: float, body: Body, acc: int) -> Any:
        """The code stops waiting for a task, and then still waits for it."""
        task = asyncio.ensure_future(self.execute(body, f"{at}s", acc))
        late = await self._late(task, seconds)
        return [late, await task]

    @staticmethod
    async def _late(task: asyncio.Future[int], seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(task)
        except TimeoutError:
            return True
        return False

    def _in_thread(self, at: str, names: list[str], acc: int) -> Any:
        return [self.tools[name](f"{at}n{n}", acc) for n, name in enumerate(names)]

    async def _together(self, how: str, at: str, bodies: list[Body], acc: int) -> Any:
        branches = [self.execute(body, f"{at}b{n}", acc + n) for n, body in enumerate(bodies)]
        if how == "gather":
            return list(await asyncio.gather(*branches))
        if how == "map":
            todo = dict(enumerate(branches))
            return await self.run.map(lambda n: todo[n], range(len(branches)))
        if how == "group":
            return await self._group(branches)
        return await self._race(branches)

    async def _group(self, branches: Sequence[Any]) -> Any:
        before = _cancelling()
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(branch) for branch in branches]
        except BaseExceptionGroup:
            # Before Python 3.13 a group that fails leaves its own cancellation of this task counted.
            task = asyncio.current_task()
            while task is not None and task.cancelling() > before:
                task.uncancel()
            raise
        return [task.result() for task in tasks]

    async def _race(self, branches: Sequence[Any]) -> Any:
        tasks = [asyncio.ensure_future(branch) for branch in branches]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            winner = next(task for task in tasks if task in done)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return [tasks.index(winner), winner.result()]


def _cancelling() -> int:
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0


def _limit(kinds: Sequence[str], timeout: float | None) -> float | None:
    return None if "timer" in kinds else timeout


def _choices(at: str, kinds: Sequence[str]) -> list[Any]:
    made: dict[str, Any] = {
        "approval": Approval(at),
        "question": Question(at),
        "timer": Timer(0.15),
    }
    return [made.get(kind, kind) for kind in kinds]


def _plain(result: Any) -> Any:
    return result.answer if isinstance(result, AgentState) else result


# ── models ───────────────────────────────────────────────────────────────────────────────────


class Script:
    """A model that asks for the calls of its turn, with arguments that differ each time it is asked."""

    def __init__(self, turns: list[list[Any]], helper: str) -> None:
        self.turns, self.helper = turns, helper

    def reply(self, prompt: Prompt) -> Reply:
        label = next(str(m.content) for m in prompt.messages if m.role == "user")
        if prompt.turn > len(self.turns):
            return Reply(text="the end", usage=Usage(1, 1))
        calls = []
        for number, (wanted,) in enumerate(self.turns[prompt.turn - 1]):
            name = wanted
            at = f"{label}.t{prompt.turn}c{number}"
            args: dict[str, Any] = {"at": at, "n": random.randrange(1000)}
            if wanted == "llm_helper":
                name, args = self.helper, {"label": at}
            calls.append(ToolRequest(f"c{prompt.turn}-{number}", name, json.dumps(args)))
        return Reply(tool_calls=tuple(calls), usage=Usage(1, 1))


class Model(Script):
    def answer(self, prompt: Prompt) -> Reply:
        return self.reply(prompt)


class AsyncModel(Script):
    async def answer(self, prompt: Prompt) -> Reply:
        await asyncio.sleep(0)
        return self.reply(prompt)


def _llm_tools(world: World, is_async: bool) -> list[Callable[..., Any]]:
    if not is_async:

        @step
        def llm_step(at: str, n: int) -> int:
            return n

        @step
        def llm_slow(at: str, n: int) -> int:
            world.take(random.choice((0.06, 0.15)))
            return n

        @tool
        def llm_keyed(at: str, n: int, idempotency_key: str = "") -> dict[str, Any]:
            return world.act("llm_keyed", idempotency_key, {"at": at, "n": n})

        @tool
        def llm_once(at: str, n: int) -> dict[str, Any]:
            return world.act("llm_once", "", {"at": at, "n": n})

        return [llm_step, llm_slow, llm_keyed, llm_once]

    @step(name="llm_step")
    async def allm_step(at: str, n: int) -> int:
        await asyncio.sleep(0)
        return n

    @step(name="llm_slow")
    async def allm_slow(at: str, n: int) -> int:
        await _later(random.choice((0.06, 0.15)))
        return n

    @tool(name="llm_keyed")
    async def allm_keyed(at: str, n: int, idempotency_key: str = "") -> dict[str, Any]:
        return world.act("llm_keyed", idempotency_key, {"at": at, "n": n})

    @tool(name="llm_once")
    async def allm_once(at: str, n: int) -> dict[str, Any]:
        return world.act("llm_once", "", {"at": at, "n": n})

    return [allm_step, allm_slow, allm_keyed, allm_once]


# ── agents ───────────────────────────────────────────────────────────────────────────────────


class AgentSet:
    """The agents of some programs, declared in this process."""

    def __init__(self, programs: Sequence[Program], world: World, insert: str) -> None:
        self.world = world
        self.tools = tools_of(world, insert)
        self.agents: dict[str, Callable[..., Any]] = {}
        for program in programs:
            self._declare(program)

    def _declare(self, program: Program) -> Any:
        children = [self._declare(child) for child in program["children"]]
        options = dict(program["options"], name=program["name"])
        steps = options.pop("max_steps", None)
        if steps is not None:
            options["budget"] = Budget(max_steps=steps)
        made = self._agent(program, children, options)
        self.agents[program["name"]] = made
        return made

    def _agent(self, program: Program, children: list[Any], options: dict[str, Any]) -> Any:
        body, tools, world = program["body"], self.tools, self.world
        again = bool(program["people"].get("again"))
        match program["kind"]:
            case "sync":

                @agent(**options)
                def plain(run: Run, label: str) -> int:
                    return Sync(run, tools, children).execute(body, label, 0)

                return plain
            case "async":

                @agent(**options)
                async def awaited(run: AsyncRun, label: str) -> int:
                    return await Async(run, tools, children, world, is_resumed=again).execute(
                        body, label, 0
                    )

                return awaited
            case "loop":

                @loop(max_iterations=20, **options)
                def looping(run: Run, state: AgentState) -> AgentState:
                    at, acc = f"{state.goal}i{state.iteration}", _acc(state)
                    seen = Sync(run, tools, children).execute(body, at, acc)
                    return _next(state, seen)

                return looping
            case "async_loop":

                @loop(max_iterations=20, **options)
                async def looping_async(run: AsyncRun, state: AgentState) -> AgentState:
                    at, acc = f"{state.goal}i{state.iteration}", _acc(state)
                    seen = await Async(run, tools, children, world, is_resumed=again).execute(
                        body, at, acc
                    )
                    return _next(state, seen)

                return looping_async
            case _:
                return self._llm(program, children, options)

    def _llm(self, program: Program, children: list[Any], options: dict[str, Any]) -> Any:
        is_async = program["kind"].startswith("async")
        helper = program["children"][0]["name"] if children else ""
        script = (AsyncModel if is_async else Model)(program["body"], helper)
        tools = [*_llm_tools(self.world, is_async), *children[:1]]
        return LLMAgent(options.pop("name"), model=script, tools=tools, **options)

    @property
    def all(self) -> list[Callable[..., Any]]:
        return list(self.agents.values())


def _acc(state: AgentState) -> int:
    return int(state.memory.notes.get("acc", 0))


def _next(state: AgentState, count: int) -> AgentState:
    after = state.with_note("acc", count)
    if state.iteration >= LOOP_ITERATIONS:
        return after.to_done(count)
    return after.to_executing() if state.phase != "executing" else after.to_reflecting()


def input_of(program: Program, run_id: str) -> dict[str, Any]:
    """What a run of this program is started with."""
    is_goal = program["kind"] not in ("sync", "async")
    return {"goal" if is_goal else "label": run_id}


__all__ = ["AgentSet", "ProgramError", "family", "input_of"]
