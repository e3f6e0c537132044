"""Searches of what runs contain: input, result, errors and state. Searches by rows are in tests/web/pages."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Holdfast,
    InDoubt,
    InvalidInput,
    Question,
    Run,
    RunFailed,
    RunWaiting,
    agent,
    step,
    tool,
)
from holdfast.web.pages.runs import VIEWS


@step
def order(customer: dict[str, Any]) -> str:
    return "ok"


@agent
def shop(run: Run, customer: dict[str, Any]) -> Any:
    run.state.tier = customer.get("tier", "silver")
    run.state.tags = [{"name": "new"}]
    order(customer)
    if customer.get("broken"):
        raise ValueError('the gateway said "timeout"')
    return {"invoice": f"INV-{customer['id']}"}


@pytest.fixture
def hf(tmp_path: Path) -> Iterator[Holdfast]:
    with Holdfast(tmp_path / "h.db", agents=[shop]) as made:
        made.run(shop, id="a", customer={"id": 42, "tier": "gold", "name": "Ünal"})
        made.run(shop, id="b", customer={"id": 7})
        with pytest.raises(RunFailed):
            made.run(shop, id="c", customer={"id": 421, "broken": True})
        yield made


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("input.customer.id:42", "a"),
        ("input.customer.id:42,7", "ba"),
        ("-input.customer.id:42", "cb"),
        ("input.customer.broken:true", "c"),
        ("state.tier:gold", "a"),
        ("state.tags.name:new state.tier:silver", "cb"),
        ("state.tags.0.name:new", "cba"),
        ("state.tags.9.name:new", ""),
        ("state:GOLD", "a"),
        ("state:tags", "cba"),
        ("result:inv-7", "b"),
        ("result.invoice:INV-42", "a"),
        ("error:timeout", "c"),
        ("error:ValueError status:failed", "c"),
        ('error:"said \\"', "c"),
        ("text:ünal", "a"),
        ('"gateway said"', "c"),
        ('"inv-"', "ba"),
        ('"no such text"', ""),
        ("text:order", ""),
    ],
)
def test_a_search_finds_what_runs_contain(hf: Holdfast, query: str, expected: str) -> None:
    """Newest first. A path compares whole values, a word is found anywhere in a part."""
    query = query.replace('\\"', "")
    assert list(expected) == [row.id for row in hf.search(query).runs]


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("agent.name:x", "'agent' at position 1 of the search has no parts"),
        ("a error.type:x", "'error' at position 3"),
        ("output:x", "unknown key 'output' at position 1"),
    ],
)
def test_a_path_where_none_can_be_is_refused(hf: Holdfast, query: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        hf.search(query)


def test_a_search_that_takes_too_long_stops_early_reports_it_and_can_be_continued(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each page looks at one run at least, so it ends."""
    module = import_module("holdfast.views.search_result")
    monkeypatch.setattr(module, "READ_SECONDS", 0.0)
    monkeypatch.setattr(module, "READ_MIN", 1)
    found, cursor, pages = [], None, []
    while not pages or cursor is not None:
        page = hf.search("result:inv", cursor=cursor)
        pages.append((page.stopped, page.looked))
        found += [row.id for row in page.runs]
        cursor = page.next
    assert ["b", "a"] == found
    assert [(True, 1), (True, 1), (False, 1)] == pages
    assert not hf.search("status:completed").stopped  # the store selects by this itself
    assert ["a"] == [row.id for row in hf.search("a").runs]  # an id is found however old it is
    plan = hf.bulk("cancel", "result:inv", dry_run=True)  # continues until it has found all
    assert (["b", "a"], False) == ([o.run_id for o in plan.outcomes], plan.has_more)


def test_a_long_run_is_searched_by_its_state(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a long log not every event is compared."""
    monkeypatch.setattr("holdfast.views.search_result.SHORT", 1)
    assert ["a"] == [row.id for row in hf.search("input.customer.id:42 result:inv").runs]
    assert [] == hf.search("text:nothing").runs


def test_a_damaged_run_does_not_stop_a_search(hf: Holdfast) -> None:
    """`holdfast doctor` reports it."""
    import apsw

    db = apsw.Connection(str(hf.store.url.removeprefix("sqlite:///")))
    db.execute(
        "UPDATE events SET data = x'7b7d' WHERE seq = 1 AND run = (SELECT key FROM runs WHERE id = 'b')"
    )
    db.close()
    assert ["a"] == [row.id for row in hf.search("result:inv").runs]


@agent
def either(run: Run) -> Any:
    return run.wait_any("go", Question("Which?"))


@agent
def signal(run: Run) -> Any:
    return run.wait_for("an answer: 42")


def test_a_run_that_is_waiting_for_a_person_among_others_is_found(tmp_path: Path) -> None:
    """By the kinds in its row, whatever the sentence about it starts with."""
    with Holdfast(tmp_path / "h.db", agents=[either, signal]) as hf:
        for made in (either, signal):
            for id_ in ("1", "2"):
                with pytest.raises(RunWaiting):
                    hf.run(made, id=f"{made.__name__}-{id_}")
        hf.pause("signal-2")

        assert {"either-1", "either-2", "signal-2"} == {
            row.id for row in hf.search("waiting:people").runs
        }
        assert [] == hf.search("waiting:people signal-1").runs


@tool
def pay() -> None:
    raise InDoubt("no response")


@agent
def doubtful(run: Run) -> None:
    pay()


@agent
def council(run: Run) -> Any:
    return run.wait_for("a decision about doubt")


def test_a_run_with_a_call_in_doubt_is_found_by_what_it_is_waiting_for(tmp_path: Path) -> None:
    """And not a run whose sentence sounds like it. The page's view is this search."""
    with Holdfast(tmp_path / "h.db", agents=[doubtful, council]) as hf:
        for made in (doubtful, council):
            with pytest.raises(RunWaiting):
                hf.run(made, id=made.__name__)

        assert ["doubtful"] == [row.id for row in hf.search("waiting:doubt").runs]
        (view,) = [search for name, search, _ in VIEWS if name == "In doubt"]
        assert ["doubtful"] == [row.id for row in hf.search(view).runs]
