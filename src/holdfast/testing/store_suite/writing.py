"""What holds of a tool that writes into the store's own database."""

from __future__ import annotations

from holdfast.core.log import Blob, Head
from holdfast.errors import Conflict, InvalidInput, KeyTaken, LeaseLost, NotFound, StoreError
from holdfast.store.base import Append, RowChange
from holdfast.testing.store_suite.bench import Bench, refused, same, sealed


def effects(bench: Bench, run_id: str = "run", epoch: int = 1) -> list[int]:
    """What tools have written, read inside a transaction that is then given up."""

    class GiveUp(Exception):
        pass

    found: list[int] = []
    try:
        with bench.store.open_append(run_id, epoch) as opened:
            rows = opened.tx.execute("SELECT n FROM suite_effects ORDER BY n")
            found = [int(n) for (n,) in rows]
            raise GiveUp
    except GiveUp:
        return found


def _make_effect_table(bench: Bench) -> None:
    """A claimed run, and an empty table for tools to write to, made by a tool."""
    bench.create(worker="w")
    with bench.store.open_append("run", 1) as opened:
        opened.tx.execute("CREATE TABLE IF NOT EXISTS suite_effects (n INTEGER NOT NULL UNIQUE)")
        opened.tx.execute("DELETE FROM suite_effects")
        opened.commit(bench.work(epoch=1))


def a_tools_writes_commit_with_its_receipt(bench: Bench) -> None:
    """Effect and receipt, with blobs, row and key, in one transaction."""
    _make_effect_table(bench)
    change = RowChange(status="completed")
    work = bench.work(
        epoch=1, count=2, blobs=[Blob("aa", b"data")], change=change, claims_key="key"
    )
    with bench.store.open_append("run", 1) as opened:
        same([], opened.tx.execute("INSERT INTO suite_effects VALUES (1)"))
        same([(1,)], [tuple(row) for row in opened.tx.execute("SELECT n FROM suite_effects")])
        opened.commit(work)

    same(([1], 4, b"data"), (effects(bench), bench.length(), bench.store.blob("run", "aa")))
    same(("completed", ("run", 3)), (bench.row().status, bench.store.find_key("key")))


def a_tool_that_fails_leaves_nothing(bench: Bench) -> None:
    """Its error comes out as it is; its writes are gone."""
    _make_effect_table(bench)

    def fail() -> None:
        with bench.store.open_append("run", 1) as opened:
            opened.tx.execute("INSERT INTO suite_effects VALUES (1)")
            raise ZeroDivisionError

    refused(ZeroDivisionError, fail)
    same(([], 2), (effects(bench), bench.length()))
    bench.append(epoch=1)


def a_receipt_is_durable_when_it_is_acknowledged(bench: Bench) -> None:
    """What happens in the tool's block afterwards cannot undo it, nor add to it."""
    _make_effect_table(bench)
    work = bench.work(epoch=1)

    def fail_late() -> None:
        with bench.store.open_append("run", 1) as opened:
            opened.tx.execute("INSERT INTO suite_effects VALUES (1)")
            opened.commit(work)
            refused(StoreError, opened.tx.execute, "INSERT INTO suite_effects VALUES (2)")
            raise ZeroDivisionError

    refused(ZeroDivisionError, fail_late)
    same(([1], 3), (effects(bench), bench.length()))


def a_statement_that_fails_leaves_the_store_well(bench: Bench) -> None:
    """Wrong SQL, or a broken constraint, ends the tool's transaction and nothing else."""
    _make_effect_table(bench)

    def fail(statement: str) -> None:
        with bench.store.open_append("run", 1) as opened:
            opened.tx.execute("INSERT INTO suite_effects VALUES (1)")
            opened.tx.execute(statement)

    for statement in ("NO SUCH STATEMENT", "INSERT INTO suite_effects VALUES (1)"):
        refused(Exception, fail, statement)
    same(([], 2), (effects(bench), bench.length()))
    bench.append(epoch=1)


def a_tool_without_a_receipt_leaves_nothing(bench: Bench) -> None:
    """Effect present, receipt present: one is never without the other."""
    _make_effect_table(bench)

    def forget() -> None:
        with bench.store.open_append("run", 1) as opened:
            opened.tx.execute("INSERT INTO suite_effects VALUES (1)")

    refused(StoreError, forget)
    same(([], 2), (effects(bench), bench.length()))


def a_tool_cannot_end_its_transaction(bench: Bench) -> None:
    """COMMIT and ROLLBACK are not the tool's: they are refused, and effect and receipt stay one."""
    _make_effect_table(bench)
    work = bench.work(epoch=1)

    def meddle(statement: str) -> None:
        with bench.store.open_append("run", 1) as opened:
            opened.tx.execute("INSERT INTO suite_effects VALUES (1)")
            opened.tx.execute(statement)
            opened.commit(work)

    for statement in ("COMMIT", "ROLLBACK", "BEGIN", "END", "/* x */ commit", "SELECT 1; COMMIT"):
        refused(InvalidInput, meddle, statement)
        same(([], 2), (effects(bench), bench.length()), f"after {statement}")


def a_tool_whose_lease_is_lost_leaves_nothing(bench: Bench) -> None:
    """Lost before it starts, or a receipt that does not fit: LeaseLost, Conflict, KeyTaken, NotFound."""
    _make_effect_table(bench)
    bench.create("other", worker="w")
    bench.append("other", epoch=1, claims_key="taken")
    begun: list[object] = []

    def attempt(work: Append, run_id: str = "run", epoch: int = 1) -> None:
        with bench.store.open_append(run_id, epoch) as opened:
            begun.append(opened)
            opened.tx.execute("INSERT INTO suite_effects VALUES (1)")
            opened.commit(work)

    work = bench.work(epoch=1)
    refused(LeaseLost, attempt, work, epoch=2)
    refused(LeaseLost, attempt, work, epoch=0)
    refused(NotFound, attempt, work, run_id="absent")
    same([], begun, "tools begun without a lease")

    refused(LeaseLost, attempt, bench.work(epoch=2))
    refused(Conflict, attempt, Append("run", 0, sealed(_head_at(bench, 0), 1), 1))
    refused(KeyTaken, attempt, bench.work(epoch=1, claims_key="taken"))
    refused(InvalidInput, attempt, Append("run", 1, sealed(_head_at(bench, 0), 1), 1))
    same(([], 2), (effects(bench), bench.length()))

    attempt(work)
    same(([1], 3), (effects(bench), bench.length()))


def _head_at(bench: Bench, seq: int) -> Head:
    record = bench.log()[seq]
    return Head(record.seq, record.hash, record.time)
