"""What a tool declares decides what happens to it after a crash between intent and receipt."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    AsyncHoldfast,
    AsyncRun,
    CallFailed,
    Done,
    Holdfast,
    InvalidInput,
    LeaseLost,
    NotFound,
    NotNow,
    Options,
    Retry,
    Run,
    RunFailed,
    RunWaiting,
    agent,
    step,
    tool,
)
from holdfast.core import events as e
from holdfast.core.values import digest
from support.runs import Hanging, of_kind

DAY = 86_400.0


def call_of(hf: Holdfast, run_id: str, step: int = 1) -> Any:
    return hf.get(run_id).call(step)


# ── repeatable ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["step", "read tool"])
def test_a_repeatable_call_runs_again_and_its_result_is_recorded_once(home: Any, kind: str) -> None:
    ran: list[int] = []

    def look() -> int:
        ran.append(1)
        return len(ran)

    declared = step(look) if kind == "step" else tool(risk="read")(look)

    @agent
    def main(run: Run) -> int:
        return declared()

    home.crash(main, "r", "after look")

    hf = home.open()
    assert hf.run(main, id="r") == 2
    assert len(ran) == 2
    assert len(of_kind(hf, "r", e.CallSucceeded)) == 1
    assert of_kind(hf, "r", e.CallStarted) == []


# ── keyed ────────────────────────────────────────────────────────────────────────────────────


def test_a_keyed_call_is_sent_again_with_the_same_key_and_the_same_bytes(home: Any) -> None:
    sent: list[tuple[str, str]] = []

    @tool
    def send(to: str, idempotency_key: str = "") -> str:
        sent.append((to, idempotency_key))
        return "ok"

    @agent
    def main(run: Run) -> str:
        return send("sam")

    home.crash(main, "r", "after send")

    hf = home.open()
    assert hf.run(main, id="r") == "ok"
    assert sent == [sent[0], sent[0]]
    first, second = of_kind(hf, "r", e.CallStarted)
    assert (first.key, first.args, first.digest) == (second.key, second.args, second.digest)
    assert (first.attempt, second.attempt) == (1, 2)


def test_the_key_is_run_step_tool_and_hash_of_the_arguments(home: Any) -> None:
    keys: list[str] = []

    @step
    def before() -> None: ...

    @tool
    def send(to: str, times: int = 2, idempotency_key: str = "") -> None:
        keys.append(idempotency_key)

    @agent
    def main(run: Run) -> None:
        before()
        send("sam")
        send(to="sam", times=2)

    home.open().run(main, id="recap-1")

    hashed = digest(b'{"times":2,"to":"sam"}')
    assert keys == [f"recap-1:2:send:{hashed}", f"recap-1:3:send:{hashed}"]


def test_the_intent_holds_the_tools_version_and_the_exact_argument_bytes(home: Any) -> None:
    @tool(version="7")
    def send(to: str, body: dict[str, Any]) -> None: ...

    @agent
    def main(run: Run) -> None:
        send("sam", {"b": 1, "a": [1.0, "é"]})

    hf = home.open()
    hf.run(main, id="r")

    (intent,) = of_kind(hf, "r", e.CallStarted)
    args = bytes(intent.args.json)
    assert args == '{"body":{"a":[1,"é"],"b":1},"to":"sam"}'.encode()
    assert (intent.tool_version, intent.digest, intent.effect) == ("7", digest(args), "once")


def sending_agent(sent: list[str], **declared: Any) -> Any:
    """It sends once, with a key; what was sent is noted."""

    @tool(**declared)
    def send(idempotency_key: str = "") -> str:
        sent.append(idempotency_key)
        return "ok"

    @agent
    def main(run: Run) -> str:
        return send()

    return main


def test_after_key_ttl_a_keyed_call_is_in_doubt_and_not_sent_again(home: Any) -> None:
    sent: list[str] = []
    main = sending_agent(sent, key_ttl=DAY)

    home.crash(main, "r", "after send")
    home.clock.advance(DAY + 1)

    with pytest.raises(RunWaiting, match="forgotten its key"):
        home.open().run(main, id="r")
    assert len(sent) == 1
    assert call_of(home.open(), "r").status == "in_doubt"


def test_within_key_ttl_a_keyed_call_is_sent_again(home: Any) -> None:
    sent: list[str] = []
    main = sending_agent(sent, key_ttl=DAY)

    home.crash(main, "r", "after send")
    home.clock.advance(DAY - 1)

    assert home.open().run(main, id="r") == "ok"
    assert len(sent) == 2


def test_key_ttl_counts_from_the_first_attempt_not_from_the_last(home: Any) -> None:
    """The receiver remembers from when it first saw the key."""
    sent: list[str] = []
    main = sending_agent(sent, key_ttl=DAY)

    home.crash(main, "r", "after send")
    home.clock.advance(0.7 * DAY)
    home.crash(main, "r", "after send")
    home.clock.advance(0.7 * DAY)

    with pytest.raises(RunWaiting, match="forgotten its key"):
        home.open().run(main, id="r")
    assert len(sent) == 2


def test_a_retry_after_key_ttl_is_in_doubt_too(home: Any) -> None:
    """The first attempt's answer may have been lost on the way: it may have happened."""
    sent: list[str] = []

    @tool(key_ttl=60, retry=Retry(attempts=3, initial=100, jitter=0))
    def send(idempotency_key: str = "") -> str:
        sent.append(idempotency_key)
        raise ConnectionError("reset")

    @agent
    def main(run: Run) -> str:
        return send()

    hf = home.open(patience=1000)
    with pytest.raises(RunWaiting, match="forgotten its key"):
        hf.run(main, id="r")
    assert len(sent) == 1


# ── a key of the caller's own ────────────────────────────────────────────────────────────────


def test_a_callers_own_key_is_used_as_it_is_and_returns_the_first_result_to_other_runs(
    home: Any,
) -> None:
    sent: list[str] = []

    @tool
    def send(to: str, idempotency_key: str = "") -> dict[str, Any]:
        sent.append(idempotency_key)
        return {"number": len(sent)}

    @agent
    def main(run: Run, who: str) -> Any:
        return send("sam", idempotency_key="recap:sam@example.com")

    hf = home.open()
    first = hf.run(main, id="one", who="a")
    second = hf.run(main, id="two", who="b")

    assert first == second == {"number": 1}
    assert sent == ["recap:sam@example.com"]
    assert home.open().run(main, id="two", who="b") == {"number": 1}


def test_a_callers_own_key_for_other_arguments_or_another_tool_is_refused(home: Any) -> None:
    sent: list[str] = []

    @tool
    def send(to: str, idempotency_key: str = "") -> None:
        sent.append(to)

    @tool
    def call_up(to: str, idempotency_key: str = "") -> None:
        sent.append(to)

    @agent
    def main(run: Run, to: str, by_phone: bool) -> None:
        (call_up if by_phone else send)(to, idempotency_key="k")

    hf = home.open()
    hf.run(main, id="one", to="sam", by_phone=False)
    for number, (to, by_phone) in enumerate([("kim", False), ("sam", True)]):
        with pytest.raises(RunFailed, match="a key identifies one action"):
            hf.run(main, id=f"other-{number}", to=to, by_phone=by_phone)
    assert sent == ["sam"]


def test_a_second_run_waits_while_the_holder_of_the_key_is_in_doubt_and_then_gets_its_result(
    home: Any,
) -> None:
    sent: list[str] = []

    @tool(key_ttl=60)
    def send(idempotency_key: str = "") -> str:
        sent.append(idempotency_key)
        return "ok"

    @agent
    def main(run: Run, n: int) -> str:
        return send(idempotency_key="mine")

    home.crash(main, "one", "after send", n=1)
    home.clock.advance(61)
    hf = home.open()
    with pytest.raises(RunWaiting, match="run one to finish send"):
        hf.run(main, id="two", n=2)
    hf.resolve("one", done="it arrived")

    assert hf.run(main, id="two", n=2) == "it arrived"
    assert len(sent) == 1


def test_a_second_run_gets_the_failure_of_the_first_under_the_same_key(home: Any) -> None:
    sent: list[str] = []

    @tool
    def send(idempotency_key: str = "") -> str:
        sent.append(idempotency_key)
        raise PermissionError("no")

    @agent
    def main(run: Run, n: int) -> str:
        return send(idempotency_key="mine")

    hf = home.open()
    for n in range(2):
        with pytest.raises(RunFailed, match="PermissionError: no"):
            hf.run(main, id=f"r{n}", n=n)
    assert len(sent) == 1


def test_the_same_own_key_twice_in_one_run_is_one_action(home: Any) -> None:
    sent: list[str] = []

    @tool
    def send(idempotency_key: str = "") -> int:
        sent.append(idempotency_key)
        return len(sent)

    @agent
    def main(run: Run) -> list[int]:
        return [send(idempotency_key="k"), send(idempotency_key="k")]

    assert home.open().run(main, id="r") == [1, 1]
    assert sent == ["k"]


def test_a_crash_with_an_own_key_sends_again_with_that_key(home: Any) -> None:
    sent: list[str] = []

    @tool
    def send(idempotency_key: str = "") -> int:
        sent.append(idempotency_key)
        return len(sent)

    @agent
    def main(run: Run) -> int:
        return send(idempotency_key="k")

    home.crash(main, "r", "after send")

    assert home.open().run(main, id="r") == 2
    assert sent == ["k", "k"]


@pytest.mark.parametrize("bad", [" ", "x" * 501, 7])
def test_a_blank_or_endless_own_key_is_refused_before_anything_happens(home: Any, bad: Any) -> None:
    sent: list[str] = []

    @tool
    def send(idempotency_key: str = "") -> None:
        sent.append(idempotency_key)

    @agent
    def main(run: Run) -> None:
        send(idempotency_key=bad)

    with pytest.raises(RunFailed, match="idempotency_key must be text"):
        home.open().run(main, id="r")
    assert sent == []


def test_a_key_without_a_default_is_filled_by_the_runtime(home: Any) -> None:
    @tool
    def send(idempotency_key: str, to: str) -> str:
        return idempotency_key.split(":")[2] + to

    @agent
    def main(run: Run) -> str:
        return send(to="sam")  # type: ignore[call-arg]

    assert home.open().run(main, id="r") == "sendsam"


# ── checked ──────────────────────────────────────────────────────────────────────────────────


def checked_agent(check: Any, ran: list[str]) -> Any:
    @tool(check=check)
    def book(room: str, idempotency_key: str = "") -> str | None:
        ran.append(idempotency_key)
        return f"booked {room}"

    @agent
    def main(run: Run) -> str | None:
        return book("blue")

    return main


def test_a_check_that_finds_the_call_returns_its_result_and_nothing_runs_again(home: Any) -> None:
    ran: list[str] = []
    asked: list[str] = []

    def look_up(key: str) -> str:
        asked.append(key)
        return "found it"

    main = checked_agent(look_up, ran)
    home.crash(main, "r", "after book")

    hf = home.open()
    assert hf.run(main, id="r") == "found it"
    assert asked == ran
    (settled,) = of_kind(hf, "r", e.CallResolved)
    assert (settled.how, settled.by) == ("done", "check")
    assert home.open().run(main, id="r") == "found it"


def test_a_check_that_finds_nothing_lets_the_call_run(home: Any) -> None:
    ran: list[str] = []
    main = checked_agent(lambda key: None, ran)
    home.crash(main, "r", "before book")

    hf = home.open()
    assert hf.run(main, id="r") == "booked blue"
    assert len(ran) == 1
    assert [x.how for x in of_kind(hf, "r", e.CallResolved)] == ["retry"]


def test_a_check_can_report_that_a_call_happened_without_a_result(home: Any) -> None:
    ran: list[str] = []
    main = checked_agent(lambda key: Done(None), ran)
    home.crash(main, "r", "after book")

    assert home.open().run(main, id="r") is None
    assert len(ran) == 1


def test_a_check_that_fails_leaves_the_call_in_doubt_and_is_asked_again_later(home: Any) -> None:
    ran: list[str] = []
    down = [True]

    def look_up(key: str) -> str:
        if down:
            raise ConnectionError("no route")
        return "found"

    main = checked_agent(look_up, ran)
    home.crash(main, "r", "after book")
    with pytest.raises(RunWaiting, match="its check failed: ConnectionError: no route"):
        home.open().run(main, id="r")
    assert call_of(home.open(), "r").status == "in_doubt"
    down.clear()

    assert home.open(main).resume("r") == "found"
    assert len(ran) == 1


def test_an_async_check_is_awaited(home: Any) -> None:
    async def look_up(key: str) -> str:
        await asyncio.sleep(0)
        return "found"

    @tool(check=look_up)
    async def book(idempotency_key: str = "") -> str:
        return "booked"

    @agent
    async def main(run: AsyncRun) -> str:
        return await book()

    home.crash(main, "r", "after book")

    assert home.open().run(main, id="r") == "found"


def test_an_async_check_of_a_plain_tool_is_awaited_too(home: Any) -> None:
    ran: list[str] = []

    async def look_up(key: str) -> str:
        await asyncio.sleep(0)
        return "found"

    main = checked_agent(look_up, ran)
    home.crash(main, "r", "after book")

    assert home.open().run(main, id="r") == "found"


# ── transactional ────────────────────────────────────────────────────────────────────────────


@pytest.fixture(params=["sqlite", "postgres"])
def open_store(request: pytest.FixtureRequest, home: Any) -> Any:
    """Opens the same store again and again, of either kind."""
    if request.param == "sqlite":
        return home.store
    from holdfast.store.postgres import PostgresStore

    dsn = request.getfixturevalue("postgres_dsn")
    return lambda: PostgresStore(dsn)


def ledger_agent(inside: Any = None) -> Any:
    mark = "?"  # both databases are asked in their own way below

    @tool
    def enter(amount: int, tx: Any = None) -> int:
        sql = (
            "INSERT INTO account (amount) VALUES (1)"
            if amount == 1
            else "INSERT INTO account (amount) VALUES (2)"
        )
        tx.execute(sql)
        if inside is not None:
            inside(mark)
        return int(tx.execute("SELECT count(*) FROM account")[0][0])

    @agent
    def main(run: Run) -> list[int]:
        return [enter(1), enter(2)]

    return main


def create_account(open_store: Any) -> None:
    @tool
    def make(tx: Any = None) -> None:
        tx.execute("CREATE TABLE account (amount int)")

    @agent
    def prepare(run: Run) -> None:
        make()

    with Holdfast(open_store()) as hf:
        hf.run(prepare, id="prepare")


def amounts(open_store: Any) -> list[int]:
    seen: list[int] = []

    @tool
    def read(tx: Any = None) -> None:
        seen.extend(row[0] for row in tx.execute("SELECT amount FROM account ORDER BY amount"))

    @agent
    def look(run: Run) -> None:
        read()

    with Holdfast(open_store()) as hf:
        hf.run(look)
    return seen


def test_a_transactional_tools_writes_and_its_receipt_commit_together(open_store: Any) -> None:
    create_account(open_store)
    main = ledger_agent()

    with Holdfast(open_store()) as hf:
        assert hf.run(main, id="r") == [1, 2]
        assert [c.status for c in hf.get("r").calls] == ["done", "done"]
    assert amounts(open_store) == [1, 2]


@pytest.mark.parametrize("point", ["before enter", "inside enter", "after enter"])
def test_a_crash_around_a_transactional_tool_leaves_both_or_neither(
    open_store: Any, point: str
) -> None:
    create_account(open_store)
    main = ledger_agent()

    def die(name: str) -> None:
        if name == point:
            raise KeyboardInterrupt

    with (
        Holdfast(open_store(), options=Options(boundary=die)) as hf,
        pytest.raises(KeyboardInterrupt),
    ):
        hf.run(main, id="r")
    with Holdfast(open_store()) as hf:
        receipts = len(of_kind(hf, "r", e.CallSucceeded))
        assert len(amounts(open_store)) == receipts
        assert hf.run(main, id="r") == [1, 2]
    assert amounts(open_store) == [1, 2]


def test_a_transactional_tool_that_fails_leaves_nothing_and_is_recorded_as_failed(
    open_store: Any,
) -> None:
    create_account(open_store)

    def fail(_: str) -> None:
        raise ValueError("no")

    with Holdfast(open_store()) as hf:
        with pytest.raises(RunFailed, match="ValueError: no"):
            hf.run(ledger_agent(fail), id="r")
        assert call_of(hf, "r").status == "failed"
    assert amounts(open_store) == []


def test_a_transactional_tool_whose_result_cannot_be_kept_leaves_nothing(open_store: Any) -> None:
    create_account(open_store)

    @tool
    def enter(tx: Any = None) -> Any:
        tx.execute("INSERT INTO account (amount) VALUES (1)")
        return object()

    @agent
    def main(run: Run) -> Any:
        return enter()

    with Holdfast(open_store()) as hf, pytest.raises(RunFailed, match="cannot be stored"):
        hf.run(main, id="r")
    assert amounts(open_store) == []


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("COMMIT", "must not begin, commit or roll back"),
        ("-- now\nrollback", "must not begin, commit or roll back"),
        ("BEGIN", "must not begin, commit or roll back"),
        ("INSERT INTO no_such_table VALUES (1)", "no_such_table"),
    ],
)
def test_a_transactional_tool_that_commits_or_fails_by_itself_fails_alike_on_both_stores(
    open_store: Any, statement: str, says: str
) -> None:
    create_account(open_store)

    @tool
    def enter(tx: Any = None) -> None:
        tx.execute("INSERT INTO account (amount) VALUES (1)")
        tx.execute(statement)

    @agent
    def main(run: Run) -> None:
        enter()

    with Holdfast(open_store(), agents=[main]) as hf:
        hf.start(main, id="r")
        hf.worker().run(once=True)

        failure = hf.get("r").failure
        assert failure is not None
        assert re.search(says, failure.error.message)
    assert amounts(open_store) == []


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("SELECT 1; SELECT 2", "`tx.execute` takes one statement at a time"),
        ("SELECT 1; COMMIT", "`tx.execute` takes one statement at a time"),
        ("SELECT 'multiple commands' FROM FROM", "syntax error"),
        ("DO $$ BEGIN EXECUTE 'SELECT multiple commands multiple'; END $$", "syntax error"),
    ],
)
def test_on_postgresql_two_statements_in_one_execute_are_refused_whatever_the_servers_language(
    postgres_dsn: str, statement: str, says: str
) -> None:
    """Not by the words of the server's message, which is translated."""

    @tool
    def enter(tx: Any = None) -> None:
        tx.execute(statement)

    @agent
    def main(run: Run) -> None:
        enter()

    with Holdfast(postgres_dsn, agents=[main]) as hf, pytest.raises(RunFailed, match=says):
        hf.run(main, id="r")


@pytest.mark.parametrize("statement", ["COMMIT", "SELECT 1 / 0 FROM no_such_table"])
def test_a_transactional_tool_that_swallows_an_error_of_its_statement_commits_all_or_fails(
    open_store: Any, statement: str
) -> None:
    """PostgreSQL does not commit after a failed statement, SQLite does; no worker abandons the run."""
    create_account(open_store)

    @tool
    def enter(tx: Any = None) -> None:
        tx.execute("INSERT INTO account (amount) VALUES (1)")
        with contextlib.suppress(Exception):
            tx.execute(statement)

    @agent
    def main(run: Run) -> None:
        enter()

    with Holdfast(open_store(), agents=[main]) as hf:
        hf.start(main, id="r")
        hf.worker().run(once=True)

        failure = hf.get("r").failure
        assert amounts(open_store) == ([1] if failure is None else [])
        if failure is not None:
            assert re.search("statement of this tool failed and ended", failure.error.message)


def test_a_signal_that_comes_while_a_transactional_tool_runs_does_not_double_its_writes(
    open_store: Any,
) -> None:
    create_account(open_store)
    with Holdfast(open_store()) as hf, Holdfast(open_store()) as other:
        sent: list[int] = []

        @tool
        def enter(tx: Any = None) -> None:
            tx.execute("INSERT INTO account (amount) VALUES (1)")

        @step
        def meanwhile() -> None:
            if not sent:
                sent.append(1)
                other.signal("r", "hello")

        @agent
        def main(run: Run) -> None:
            meanwhile()
            enter()
            run.wait_for("hello")

        hf.run(main, id="r")
    assert amounts(open_store) == [1]


def test_an_async_tool_cannot_be_transactional() -> None:
    with pytest.raises(InvalidInput, match="must be a plain def"):

        @tool
        async def enter(tx: Any = None) -> None: ...


def test_outside_a_run_a_transactional_tool_takes_the_callers_transaction() -> None:
    @tool
    def enter(tx: Any = None) -> Any:
        return tx

    assert enter(tx="mine") == "mine"


def test_a_cancellation_during_a_transactional_tool_lets_it_commit_or_nothing(home: Any) -> None:
    create_account(home.store)
    other = home.open()

    @tool
    def enter(tx: Any = None) -> None:
        tx.execute("INSERT INTO account (amount) VALUES (1)")

    @agent
    def main(run: Run) -> str:
        enter()
        return "done"

    hf = home.open(boundary=lambda name: other.cancel("r") if name == "before enter" else None)
    with pytest.raises(RunFailed, match="cancelled"):
        hf.run(main, id="r")

    done = [c.status for c in hf.get("r").calls] == ["done"]
    assert amounts(home.store) == ([1] if done else [])


# ── at most once ─────────────────────────────────────────────────────────────────────────────


def paying_agent(ran: list[int], **options: Any) -> Any:
    @tool(**options)
    def pay(amount: int) -> dict[str, int]:
        ran.append(amount)
        return {"paid": amount}

    @agent
    def main(run: Run) -> Any:
        return pay(5)

    return main


@pytest.mark.parametrize(
    "point",
    ["after commit call_started", "before pay", "after pay", "before commit call_succeeded"],
)
def test_by_default_a_call_in_doubt_is_not_repeated_and_a_person_decides(
    home: Any, point: str
) -> None:
    ran: list[int] = []
    main = paying_agent(ran)
    home.crash(main, "r", point)
    before = list(ran)

    hf = home.open()
    assert call_of(hf, "r").status == "in_doubt"  # shown even before anyone resumes it
    for _ in range(2):
        with pytest.raises(
            RunWaiting, match=r"step 1, pay, which may or may not have happened"
        ) as waiting:
            hf.run(main, id="r")
        assert "hf.resolve('r', 1" in waiting.value.how
    assert ran == before
    assert len(of_kind(hf, "r", e.CallDoubted)) == 1
    assert [c.name for c in hf.get("r").in_doubt] == ["pay"]


def test_resolve_done_returns_that_result_to_the_code(home: Any) -> None:
    ran: list[int] = []
    main = paying_agent(ran)
    home.crash(main, "r", "after pay")
    hf = home.open()

    hf.resolve("r", 1, done={"paid": 5}, by="ann", why="seen on the statement")

    assert hf.run(main, id="r") == {"paid": 5}
    assert ran == [5]
    (settled,) = of_kind(hf, "r", e.CallResolved)
    assert (settled.how, settled.by, settled.why) == ("done", "ann", "seen on the statement")
    assert call_of(hf, "r").resolution.how == "done"
    assert call_of(hf, "r").resolution.by == "ann"
    assert call_of(hf, "r").resolution.why == "seen on the statement"


def test_a_resolution_that_the_tool_could_never_give_leaves_the_call_in_doubt(home: Any) -> None:
    @tool
    def count() -> int:
        return 5

    @agent
    def main(run: Run) -> int:
        return count() + 1

    home.crash(main, "r", "after count")
    hf = home.open()
    hf.resolve("r", 1, done="five", by="ann")

    for _ in range(2):
        with pytest.raises(RunWaiting, match=r"the result that ann gave does not fit: .*int.*str"):
            hf.run(main, id="r")
    assert call_of(hf, "r").status == "in_doubt"
    hf.resolve("r", 1, done=5, by="ann")
    assert home.open().run(main, id="r") == 6


def test_resolve_failed_raises_at_the_call_and_resume_tries_it_again(home: Any) -> None:
    ran: list[int] = []
    main = paying_agent(ran)
    home.crash(main, "r", "before pay")
    hf = home.open(main)

    hf.resolve("r", "pay", failed="the bank knows nothing of it", by="ann")

    with pytest.raises(RunFailed, match="the bank knows nothing of it"):
        hf.run(main, id="r")
    assert ran == []
    assert hf.resume("r") == {"paid": 5}


def test_resolve_retry_makes_the_call_again(home: Any) -> None:
    ran: list[int] = []
    main = paying_agent(ran)
    home.crash(main, "r", "before pay")
    hf = home.open()

    hf.resolve("r", retry=True, by="ann", why="not on the statement")

    assert hf.run(main, id="r") == {"paid": 5}
    assert ran == [5]


def test_a_retried_doubt_that_crashes_again_is_in_doubt_again(home: Any) -> None:
    ran: list[int] = []
    main = paying_agent(ran)
    home.crash(main, "r", "before pay")
    home.open().resolve("r", retry=True)
    home.crash(main, "r", "after pay")

    with pytest.raises(RunWaiting, match="may or may not"):
        home.open().run(main, id="r")
    assert ran == [5]


def test_wrong_uses_of_resolve_are_refused(home: Any) -> None:
    ran: list[int] = []
    main = paying_agent(ran)
    hf = home.open()
    home.crash(main, "r", "after pay")

    for wrong in ({}, {"done": 1, "retry": True}, {"failed": "x", "done": None}):
        with pytest.raises(InvalidInput, match="exactly one"):
            hf.resolve("r", 1, **wrong)
    with pytest.raises(NotFound):
        hf.resolve("nobody", 1, retry=True)
    with pytest.raises(NotFound):
        hf.resolve("r", 9, retry=True)
    hf.resolve("r", 1, done={"paid": 5})
    with pytest.raises(NotNow, match="not in doubt"):
        hf.resolve("r", 1, retry=True)
    with pytest.raises(NotNow, match="not in doubt"):
        hf.resolve("r", "pay", failed="x")


def test_a_call_that_its_worker_is_still_making_cannot_be_resolved(home: Any) -> None:
    other = home.open()
    said: list[str] = []

    @tool
    def pay() -> str:
        try:
            other.resolve("r", 1, failed="too slow")
        except NotNow as refused:
            said.append(str(refused))
        assert other.get("r").call(1).status == "running"
        return "paid"

    @agent
    def main(run: Run) -> str:
        return pay()

    assert home.open().run(main, id="r") == "paid"
    assert "being executed" in said[0]


@pytest.mark.parametrize("by_callable", [False, True])
def test_on_doubt_retry_repeats_the_call_and_records_the_policy_as_the_reason(
    home: Any, by_callable: bool
) -> None:
    ran: list[int] = []
    asked: list[str] = []

    def decide(key: str) -> str:
        asked.append(key)
        return "retry"

    main = paying_agent(ran, on_doubt=decide if by_callable else "retry")
    home.crash(main, "r", "after pay")

    hf = home.open()
    assert hf.run(main, id="r") == {"paid": 5}
    assert ran == [5, 5]
    (settled,) = of_kind(hf, "r", e.CallResolved)
    assert (settled.how, settled.by) == ("retry", "policy")
    assert [key.split(":")[:3] for key in asked] == [["r", "1", "pay"]] * by_callable


def test_on_doubt_fail_fails_without_claiming_that_nothing_happened(home: Any) -> None:
    ran: list[int] = []
    main = paying_agent(ran, on_doubt="fail")
    home.crash(main, "r", "after pay")

    hf = home.open()
    with pytest.raises(RunFailed, match="may or may not have happened"):
        hf.run(main, id="r")
    assert ran == [5]
    assert call_of(hf, "r").error.effect == ""


def test_on_doubt_may_decide_to_wait_for_a_person(home: Any) -> None:
    ran: list[int] = []
    main = paying_agent(ran, on_doubt=lambda key: "wait")
    home.crash(main, "r", "after pay")

    with pytest.raises(RunWaiting, match="may or may not"):
        home.open().run(main, id="r")
    assert ran == [5]


def test_an_on_doubt_that_is_not_known_is_refused_when_declared() -> None:
    with pytest.raises(InvalidInput, match="on_doubt"):
        paying_agent([], on_doubt="ignore")


def test_an_unknown_option_is_refused_when_declared() -> None:
    with pytest.raises((InvalidInput, TypeError), match="retries"):
        paying_agent([], retries=3)
    with pytest.raises(InvalidInput, match="risk"):
        paying_agent([], risk="harmless")


@pytest.mark.parametrize(
    ("declare", "says"),
    [
        (lambda: agent(version=3), "version= of body must be text, not 3"),
        (lambda: agent(name=5), "name= of body must be text"),
        (lambda: tool(name=5), "name= of body must be text"),
        (lambda: agent(stages="one"), "stages takes a list"),
        (lambda: agent(stages=[1]), "stages takes a list of names"),
        (lambda: agent(budget={"max_steps": 3}), "budget must be a Budget"),
        (lambda: agent(on_failure="undone"), "on_failure must be 'undo'"),
    ],
)
def test_what_could_not_be_read_from_a_log_is_refused_when_declared(
    declare: Any, says: str
) -> None:
    def body(run: Run) -> None: ...

    with pytest.raises(InvalidInput, match=says):
        declare()(body)


@pytest.mark.parametrize("kind", ["once", "keyed", "checked"])
def test_a_tools_changed_version_puts_an_open_call_in_doubt(home: Any, kind: str) -> None:
    ran: list[str] = []

    def make(version: str) -> Any:
        check = (lambda key: "found") if kind == "checked" else None
        if kind == "once":

            @tool(version=version)
            def send() -> str:
                ran.append(version)
                return "ok"
        else:

            @tool(version=version, check=check)
            def send(idempotency_key: str = "") -> str:  # type: ignore[misc]
                ran.append(version)
                return "ok"

        @agent
        def main(run: Run) -> str:
            return send()

        return main

    home.crash(make("1"), "r", "after send")

    with pytest.raises(RunWaiting, match="version has changed"):
        home.open().run(make("2"), id="r")
    assert ran == ["1"]
    assert home.open().run(make("1"), id="r", wait=False) if kind != "once" else True


def test_a_result_that_cannot_be_stored_is_recorded_as_done_without_result_and_not_run_again(
    home: Any,
) -> None:
    ran: list[int] = []

    @tool
    def connect() -> Any:
        ran.append(1)
        return threading.Lock()

    @agent
    def main(run: Run) -> str:
        try:
            connect()
        except CallFailed as failed:
            return f"{failed.error_type}: {failed.message}"
        return "?"

    hf = home.open()
    said = hf.run(main, id="r")

    assert said.startswith("ResultUnavailable: it was done, but its result could not be stored")
    call = call_of(hf, "r")
    assert (call.status, bool(call.unavailable), ran) == ("done", True, [1])


def test_a_lost_result_is_the_same_on_replay_and_resume(home: Any) -> None:
    ran: list[int] = []

    @tool
    def connect() -> Any:
        ran.append(1)
        return {1, 2}

    @agent
    def main(run: Run) -> Any:
        return connect()

    hf = home.open(main)
    with pytest.raises(RunFailed, match="ResultUnavailable"):
        hf.run(main, id="r")
    with pytest.raises(RunFailed, match="ResultUnavailable"):
        home.open(main).resume("r")
    assert ran == [1]


def test_a_result_of_another_type_than_declared_is_done_without_result(home: Any) -> None:
    @tool
    def count() -> int:
        return "three"  # type: ignore[return-value]

    @agent
    def main(run: Run) -> int:
        return count()

    hf = home.open()
    with pytest.raises(RunFailed, match="ResultUnavailable"):
        hf.run(main, id="r")
    assert call_of(hf, "r").status == "done"


def test_a_tool_that_raises_is_failed_not_in_doubt(home: Any) -> None:
    @tool
    def pay() -> None:
        raise ValueError("insufficient")

    @agent
    def main(run: Run) -> None:
        pay()

    hf = home.open()
    with pytest.raises(RunFailed):
        hf.run(main, id="r")
    call = call_of(hf, "r")
    assert (call.status, call.error.type, call.error.message) == (
        "failed",
        "ValueError",
        "insufficient",
    )
    assert "insufficient" in call.error.traceback


# ── timeouts ─────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def stuck() -> Any:
    """An event that tools hang on, set at the end so that their threads go."""
    event = threading.Event()
    yield event
    event.set()


def test_a_timeout_of_a_once_tool_is_in_doubt(home: Any, stuck: threading.Event) -> None:
    @tool(timeout=0.02)
    def pay() -> None:
        stuck.wait(120)

    @agent
    def main(run: Run) -> None:
        pay()

    hf = home.open()
    with pytest.raises(RunWaiting, match=r"it did not answer within 0\.02 s"):
        hf.run(main, id="r")
    assert call_of(hf, "r").status == "in_doubt"


def test_a_timeout_of_a_keyed_tool_is_a_failure_that_is_retried_with_the_same_key(
    home: Any, stuck: threading.Event
) -> None:
    keys: list[str] = []

    @tool(timeout=0.2, retry=Retry(attempts=50, initial=0, jitter=0))
    def send(idempotency_key: str = "") -> str:
        keys.append(idempotency_key)
        if len(keys) == 1:
            stuck.wait(120)
        return "sent"

    @agent
    def main(run: Run) -> str:
        return send()

    hf = home.open()
    assert hf.run(main, id="r") == "sent"
    failures = of_kind(hf, "r", e.CallFailure)  # more than one, if a thread was slow to start
    assert {"TimeoutError"} == {failed.error.type for failed in failures}
    assert len(keys) >= 2 and {keys[0]} == set(keys)


def test_a_timeout_of_a_checked_tool_asks_the_check_before_it_is_tried_again(
    home: Any, stuck: threading.Event
) -> None:
    """It may have happened: only the check knows."""
    ran: list[str] = []
    began = threading.Event()

    @tool(timeout=0.05, check=lambda key: "found", retry=Retry(attempts=3, initial=0, jitter=0))
    def book(idempotency_key: str = "") -> str:
        ran.append(idempotency_key)
        began.set()
        stuck.wait(120)
        return "booked"

    @agent
    def main(run: Run) -> str:
        return book()

    hf = home.open()
    assert hf.run(main, id="r") == "found"
    assert began.wait(120)
    assert len(ran) == 1


def test_a_timeout_of_a_step_is_a_failure(home: Any, stuck: threading.Event) -> None:
    @step(timeout=0.02)
    def think() -> None:
        stuck.wait(120)

    @agent
    def main(run: Run) -> str:
        try:
            think()
        except TimeoutError as late:
            return str(late)
        return "?"

    assert "no answer within 0.02 s" in home.open().run(main, id="r")


def test_an_async_tool_is_cancelled_at_its_timeout_and_in_doubt_though_it_has_a_key(
    home: Any,
) -> None:
    ended: list[str] = []

    @tool(timeout=0.02)
    async def send(idempotency_key: str = "") -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    @agent
    async def main(run: AsyncRun) -> None:
        await send()

    with pytest.raises(RunWaiting, match=r"did not answer within 0\.02 s"):
        home.open().run(main, id="r")
    assert ended == ["cancelled"]


def test_an_async_once_tool_at_its_timeout_is_in_doubt(home: Any) -> None:
    with pytest.raises(RunWaiting, match="may or may not have happened"):
        home.open().run(Hanging(tool(timeout=0.02)).agent, id="r")


def test_a_timeout_error_that_the_tool_raises_itself_before_its_limit_is_its_own_failure(
    home: Any,
) -> None:
    @tool(timeout=30)
    def pay() -> None:
        raise TimeoutError("the bank is slow")

    @agent
    def main(run: Run) -> None:
        pay()

    hf = home.open()
    with pytest.raises((RunFailed, RunWaiting)):
        hf.run(main, id="r")
    # A time-out inside the tool says no more about its effect than ours does.
    assert call_of(hf, "r").status == "in_doubt"


def test_timeout_zero_and_nonsense_are_refused_when_declared() -> None:
    for bad in (-1, float("nan"), float("inf"), "10", True):
        with pytest.raises(InvalidInput, match="timeout of pay"):
            paying_agent([], timeout=bad)
        with pytest.raises(InvalidInput, match="key_ttl of pay"):
            paying_agent([], key_ttl=bad)


# ── interruptions ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_ctrl_c_inside_a_tool_is_not_recorded_as_failed(
    home: Any, interruption: type[BaseException]
) -> None:
    pressed = [True]

    @tool
    def pay() -> str:
        if pressed:
            raise interruption
        return "paid"

    @agent
    def main(run: Run) -> str:
        return pay()

    hf = home.open()
    with pytest.raises(interruption):
        hf.run(main, id="r")
    pressed.clear()

    assert of_kind(hf, "r", e.CallFailure) == []
    assert call_of(hf, "r").status == "in_doubt"
    with pytest.raises(RunWaiting, match="may or may not"):
        home.open().run(main, id="r")  # and the lease was released


def test_ctrl_c_inside_a_step_lets_it_run_again(home: Any) -> None:
    pressed = [True]

    @step
    def think() -> str:
        if pressed:
            pressed.clear()
            raise KeyboardInterrupt
        return "thought"

    @agent
    def main(run: Run) -> str:
        return think()

    with pytest.raises(KeyboardInterrupt):
        home.open().run(main, id="r")

    assert home.open().run(main, id="r") == "thought"


def test_an_asyncio_cancellation_inside_a_tool_is_in_doubt_not_failed(home: Any) -> None:
    hanging = Hanging(tool)

    async def story() -> None:
        async with AsyncHoldfast(home.store()) as hf:
            task = await hanging.begin(hf)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await hf.get("r")).call(1).status == "in_doubt"
            with pytest.raises(RunWaiting, match="may or may not"):
                await hf.run(hanging.agent, id="r")

    asyncio.run(story())


def test_sigterm_inside_a_tool_is_not_recorded_as_failed(tmp_path: Path) -> None:
    program = textwrap.dedent(
        """
        import signal, sys
        from holdfast import Holdfast, Run, agent, tool

        @tool
        def pay() -> None:
            print("inside", flush=True)
            signal.pause()

        @agent
        def main(run: Run) -> None:
            pay()

        with Holdfast(sys.argv[1]) as hf:
            hf.run(main, id="r")
        """
    )
    path = tmp_path / "h.db"
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "inside\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)

    with Holdfast(path) as hf:
        assert of_kind(hf, "r", e.CallFailure) == []
        # Its lease has not ended yet.
        assert [c.status for c in hf.get("r").calls] in (["in_doubt"], ["running"])


def test_a_lost_lease_stops_before_the_effect_and_leaves_evidence_after_it(home: Any) -> None:
    """A worker that was paused past its lease says what it knows, and decides nothing."""
    ran: list[str] = []

    @tool
    def pay() -> str:
        ran.append("paid")
        home.clock.advance(3600)  # the machine slept
        taken = home.open(main).store.claim("r", worker="another", lease_us=1_000_000)
        assert taken is not None
        return "paid"

    @agent
    def main(run: Run) -> str:
        return pay()

    hf = home.open()
    with pytest.raises(LeaseLost, match="another worker has claimed the run"):
        hf.run(main, id="r")

    (said,) = of_kind(hf, "r", e.CallEvidence)
    assert (said.outcome, said.step) == ("done", 1)
    assert of_kind(hf, "r", e.CallSucceeded) == []
    home.clock.advance(10)
    call = call_of(hf, "r")
    assert call.status == "in_doubt"
    assert call.evidence[0].outcome == "done"
    with pytest.raises(RunWaiting, match="may or may not"):
        home.open().run(main, id="r")
    assert ran == ["paid"]


def test_the_time_of_a_call_is_measured_by_the_stores_clock(home: Any) -> None:
    @step
    def slow() -> None:
        home.clock.advance(2)

    @agent
    def main(run: Run) -> None:
        slow()

    hf = home.open()
    hf.run(main, id="r")

    assert call_of(hf, "r").duration_us == 2_000_000


def test_a_transactional_tool_that_is_too_late_leaves_nothing(
    home: Any, stuck: threading.Event
) -> None:
    """Either its time is up or it commits; never a failure in the log and its writes in the table."""
    create_account(home.store)
    ended = threading.Event()

    @tool(timeout=0.05)
    def enter(tx: Any = None) -> None:
        try:
            tx.execute("INSERT INTO account (amount) VALUES (1)")
            stuck.wait(120)
        finally:
            ended.set()

    @agent
    def main(run: Run) -> None:
        enter()

    def given_up(name: str) -> None:
        if name == "before commit call_failed":
            stuck.set()

    hf = home.open(boundary=given_up)
    with pytest.raises(RunFailed, match="no answer within"):
        hf.run(main, id="r")
    assert ended.wait(120)
    assert call_of(hf, "r").status == "failed"
    assert amounts(home.store) == []
