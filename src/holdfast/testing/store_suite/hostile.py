"""What holds when ids and texts are meant to mislead."""

from __future__ import annotations

from typing import Final

from holdfast.core.log import origin
from holdfast.errors import InvalidInput, NotFound
from holdfast.store.base import Append, ClaimFilter, Filter, NewRun, RowChange
from holdfast.testing.store_suite.bench import Bench, refused, same, sealed

UNLIKE_IDS: Final = (
    "'; DROP TABLE runs; --",
    '" OR "1"="1',
    "100%",
    "back\\slash",
    "$1 %s ? :name {0}",
    "tab\tnew\nline\r",
    "\x1b[31mred\x7f",
    "ünïcödé 統一碼 \U0001f600 \u202e\u200b\ufeff\ufb33",
    "e\u0301 is not \u00e9",
    "a" * 2000,
    '["a", "b"]',
    " ",
)
HOSTILE: Final = (*UNLIKE_IDS, "NULL", "under_score", "undersscore")
UNKEEPABLE: Final = ("nul\0", "\0", "lone \ud800 surrogate", "\udcff")


def ids_that_could_mislead_are_refused(bench: Bench) -> None:
    """Ids become parts of keys, paths and URLs: nothing but a plain pattern."""
    for run_id in (
        *UNLIKE_IDS,
        *UNKEEPABLE,
        "",
        "../x",
        "a/b",
        ".hidden",
        "-x",
        "a b",
        "é",
        "a" * 201,
    ):
        run = NewRun(run_id, "agent", "digest")
        refused(InvalidInput, bench.make, run, sealed(origin("x"), 1))
    same([], bench.store.runs())


def hostile_ids_find_nothing(bench: Bench) -> None:
    """Asking for an id that no run can have is like asking for any other that is not there."""
    bench.create()
    for run_id in UNLIKE_IDS:
        same((None, []), (bench.store.get(run_id), bench.store.read(run_id)))
        same((None, False), (bench.claim(run_id), bench.store.delete(run_id)))
        refused(NotFound, bench.store.append, Append(run_id, -1, sealed(origin("x"), 1)))
    same(("pending", 1), (bench.row().status, bench.length()))


def hostile_text_is_only_text(bench: Bench) -> None:
    """Quotes, wildcards and statements in names, keys and filters mean themselves."""
    for i, text in enumerate(HOSTILE):
        row = bench.create(f"r{i}", agent=text, parent=text, code_version=text)
        same((text, text, text), (row.agent, row.parent, row.code_version))
        bench.append(f"r{i}", claims_key=text)
        bench.settle(f"r{i}", "waiting", waiting_for=text, due_at=0)

    for i, text in enumerate(HOSTILE):
        run_id = f"r{i}"
        same((f"r{i}", 1), bench.store.find_key(text))
        for which in (
            Filter(agent=text),
            Filter(parent=text),
            Filter(status="waiting", agent=text),
        ):
            same([run_id], [row.id for row in bench.store.runs(which)])
        same([], bench.store.runs(Filter(status=text)))
        same([run_id], bench.due(ClaimFilter(text, text)))
        same(text, bench.row(run_id).agent)
        same(True, bench.store.release(run_id, 1))
        same(text, bench.store.claim(run_id, worker=text, lease_us=1) and bench.row(run_id).owner)


def text_that_no_database_keeps_alike_is_refused(bench: Bench) -> None:
    """NUL and lone surrogates: InvalidInput everywhere, before anything happens."""
    bench.create()
    before = bench.row()
    one = bench.work().records
    for text in UNKEEPABLE:
        for run in (
            NewRun("new", text, "digest"),
            NewRun("new", "agent", text),
            NewRun("new", "agent", "digest", code_version=text),
            NewRun("new", "agent", "digest", parent=text),
        ):
            refused(InvalidInput, bench.make, run, sealed(origin("new"), 1))
        for work in (
            Append("run", 0, one, claims_key=text),
            Append("run", 0, one, change=RowChange(status="waiting", waiting_for=text)),
            Append("run", 0, one, change=RowChange(wakes=(text,))),
            Append(text, 0, one),
        ):
            refused(InvalidInput, bench.store.append, work)
        for which in (Filter(status=text), Filter(agent=text), Filter(parent=text)):
            refused(InvalidInput, bench.store.runs, which)
        refused(InvalidInput, bench.due, text)
        refused(InvalidInput, bench.due, ClaimFilter("agent", text))
        refused(InvalidInput, bench.store.find_key, text)
    same((before, 1, 1), (bench.row(), bench.length(), len(bench.store.runs())))
