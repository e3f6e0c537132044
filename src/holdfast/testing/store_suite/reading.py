"""What holds when logs and rows are read and listed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.core.events import RunRestarted
from holdfast.core.log import Head, seal
from holdfast.store.base import MICROSECONDS, Append, Filter
from holdfast.testing.store_suite.bench import Bench, expect, same


def a_log_is_read_by_range(bench: Bench) -> None:
    """`after` and `limit` cut it; beyond the end, and of no run, there is nothing."""
    bench.create()
    bench.append(count=9)
    log = bench.log()

    same(log[4:], bench.store.read("run", after=3))
    same(log[4:6], bench.store.read("run", after=3, limit=2))
    same(log[:3], bench.store.read("run", limit=3))
    same([], bench.store.read("run", limit=0))
    same([], bench.store.read("run", after=9))
    same([], bench.store.read("run", after=10**9))
    same([], bench.store.read("absent"))


def what_is_not_there_is_none(bench: Bench) -> None:
    """Unknown runs, keys, blobs and snapshots are absent, not errors."""
    bench.create()
    same(None, bench.store.get("absent"))
    same(None, bench.claim("absent"))
    same(None, bench.store.find_key("no key"))
    same(None, bench.store.snapshots.newest("absent"))
    same(None, bench.store.blob("absent", "aa"))
    same(None, bench.store.blob("run", "aa"))
    same(False, bench.store.release("absent", 1))
    same(False, bench.store.delete("absent"))


def heads_tell_where_each_log_ends(bench: Bench) -> None:
    """One question for many runs; what is not there is left out."""
    for run_id in ("one", "two", "three"):
        bench.create(run_id)
    bench.append("two")
    bench.append("two")

    same({"one": 0, "two": 2}, bench.store.heads(["one", "absent", "two"]))
    same({}, bench.store.heads([]))


def the_last_restart_is_found(bench: Bench) -> None:
    """By its seq, of this run only; -1 if there is none, or no such run."""
    bench.create("run")
    bench.create("other")
    bench.append("run", count=3)
    end = bench.log("run")[-1]
    _, again = seal(Head(end.seq, end.hash, end.time), [RunRestarted()], epoch=0, time=end.time)
    bench.store.append(Append("run", end.seq, again))
    bench.append("run", count=2)
    same(4, bench.store.last_restart("run"))
    same(-1, bench.store.last_restart("other"))
    same(-1, bench.store.last_restart("absent"))


def pages(
    bench: Bench, *filters: Filter, limit: int, between_pages: Callable[[], object] = lambda: None
) -> list[str]:
    """All ids, page by page, with something happening between the pages."""
    found: list[str] = []
    cursor: int | None = None
    while page := bench.store.runs(*filters, limit=limit, cursor=cursor):
        expect(len(page) <= limit, "no page is longer than asked for")
        found += [row.id for row in page]
        expect(len(found) < 1000, "the pages come to an end")
        cursor = page[-1].cursor
        between_pages()
    return found


def runs_are_listed_newest_first_page_by_page(bench: Bench) -> None:
    """Every run once, while others are being added and changed between the pages."""
    ids = [f"run-{i:02}" for i in range(23)]
    for run_id in ids:
        bench.create(run_id)
    added = iter(range(1000))

    def meanwhile() -> None:
        bench.create(f"new-{next(added)}")
        bench.append(ids[next(added) % 23])

    for limit in (1, 5, 23, 100):
        found = pages(bench, limit=limit, between_pages=meanwhile)
        same(ids[::-1], [run_id for run_id in found if run_id in ids], f"pages of {limit}")
        same(len(found), len(set(found)), "runs listed twice")
    same([], bench.store.runs(limit=0))


def runs_are_listed_by_what_they_are(bench: Bench) -> None:
    """By status, agent, parent and time of creation, alone and together."""
    start = bench.clock.now()
    for i in range(12):
        bench.create(f"r{i}", agent=f"agent-{i % 2}", parent=f"p{i % 3}" if i % 3 else "")
        if i % 4 == 0:
            bench.settle(f"r{i}", "completed")
        bench.clock.advance(1)

    def listed(**which: Any) -> list[int]:
        found = pages(bench, Filter(**which), limit=2)
        same(
            found,
            [row.id for row in bench.store.runs(Filter(**which), limit=100)],
            "one page or many",
        )
        return sorted(int(run_id[1:]) for run_id in found)

    second = MICROSECONDS
    same([0, 4, 8], listed(status="completed"))
    same([], listed(status="no such status"))
    same([1, 3, 5, 7, 9, 11], listed(agent="agent-1"))
    same([1, 4, 7, 10], listed(parent="p1"))
    same([4], listed(status="completed", parent="p1"))
    same([0, 4, 8], listed(status="completed", agent="agent-0"))
    same([], listed(status="completed", agent="agent-1"))
    same([1, 7], listed(agent="agent-1", parent="p1"))
    same([9, 10, 11], listed(created_after=start + 9 * second))
    same([0, 1, 2], listed(created_before=start + 3 * second))
    between = {"created_after": start + 2 * second, "created_before": start + 9 * second}
    same([2, 3, 4, 5, 6, 7, 8], listed(**between))
    same([4, 8], listed(status="completed", **between))
    same([3, 5, 7], listed(agent="agent-1", **between))
    same([2, 5, 8], listed(parent="p2", **between))
    same([4], listed(status="completed", agent="agent-0", parent="p1", **between))
