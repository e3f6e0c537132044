"""One pure function matches calls, waits and the ends of iterations with what the log contains."""

from __future__ import annotations

import copy
import json
import lzma
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from holdfast.core import events as e
from holdfast.core.entry import Entry
from holdfast.core.events import Value
from holdfast.core.journal import Journal
from holdfast.core.journal_feed import feed
from holdfast.core.match import (
    Differs,
    Moved,
    New,
    Open,
    Recorded,
    Request,
    is_same_call,
    is_same_wait,
    match,
)
from holdfast.core.values import digest

LOGS = Path(__file__).parent.parent / "runtime" / "logs_0_1"
ARGS = b'{"x":1}'


def _request(path: str, index: int, count: int, name: str, is_same: Any) -> Any:
    return SimpleNamespace(
        branch=SimpleNamespace(path=path),
        index=index,
        count=count,
        name=name,
        is_insertable=True,
        is_recorded_in=is_same,
    )


def call(index: int, name: str, args: bytes = ARGS, path: str = "") -> Request:
    known: Any = SimpleNamespace(name=name, args=args, digest=digest(args), read=bytes)
    made: Request = _request(path, index, 1, name, partial(is_same_call, known))
    return made


def waits(index: int, *names: str) -> Request:
    return _request(
        "",
        index,
        len(names),
        names[0],
        lambda entry, n, lineage: is_same_wait("signal", names[n], entry, lineage),
    )


def done(index: int, name: str, path: str = "", **more: Any) -> e.CallSucceeded:
    args = Value(json=msgspec.Raw(ARGS))
    return e.CallSucceeded(
        branch=path, index=index, step=index + 1, name=name, args=args, result=e.NULL, **more
    )


def started(index: int, name: str) -> e.CallStarted:
    return e.CallStarted(
        branch="",
        index=index,
        step=index + 1,
        name=name,
        effect="once",
        key="k",
        digest=digest(ARGS),
        args=Value(json=msgspec.Raw(ARGS)),
    )


def failed(index: int, name: str) -> e.CallFailure:
    error = e.ErrorInfo("ValueError", "no")
    return e.CallFailure(branch="", index=index, step=index + 1, name=name, error=error)


def began(index: int, name: str) -> e.WaitBegan:
    return e.WaitBegan(branch="", index=index, wait="signal", name=name, of=(name,))


def journal_of(*events: e.Event) -> Journal:
    made = Journal()
    feed(made, 0, 1, e.RunCreated(run_id="r", agent="a", input=e.NULL))
    for seq, event in enumerate(events, 1):
        feed(made, seq, seq, event)
    return made


def test_a_call_with_a_receipt_is_recorded_and_one_with_an_intent_only_is_open() -> None:
    journal = journal_of(done(0, "look"), started(1, "send"))

    assert isinstance(match(journal, call(0, "look")), Recorded)
    assert isinstance(match(journal, call(1, "send")), Open)
    assert isinstance(match(journal, call(2, "send")), New)


@pytest.mark.parametrize("asked", [call(0, "other"), call(0, "look", b'{"x":2}'), waits(0, "look")])
def test_another_request_at_a_recorded_place_differs(asked: Request) -> None:
    journal = journal_of(done(0, "look"))

    found = match(journal, asked)

    assert isinstance(found, Differs)
    assert ("", 0) == found.place
    assert journal.entries["", 0] is found.entry


def test_half_of_a_choice_differs_at_the_wait_that_is_missing() -> None:
    journal = journal_of(began(0, "yes"))

    assert isinstance(match(journal, waits(0, "yes")), Open)
    found = match(journal, waits(0, "yes", "no"))
    assert isinstance(found, Differs)
    assert (("", 1), None) == (found.place, found.entry)


def test_after_a_retried_call_the_code_moves_beyond_the_path_that_it_had_taken() -> None:
    journal = journal_of(
        failed(0, "pay"),
        done(1, "clean_up"),
        e.RunFailure(error=e.ErrorInfo("ValueError", "no"), step=1),
        e.RunReopened(),
    )
    retried = match(journal, call(0, "pay", b""))
    assert isinstance(retried, Open)
    journal.forget("", 0)

    assert Moved(("", 2)) == match(journal, call(1, "ship"))
    journal.retries.leave("", journal.entries)
    assert isinstance(match(journal, call(2, "ship")), New)
    finished = match(journal, call(2, "clean_up"))
    assert isinstance(finished, Recorded)
    assert ("", 1) == finished.place


def test_accepted_steps_are_inserted_before_what_is_recorded() -> None:
    journal = journal_of(done(0, "look"), e.StepsAccepted())

    assert Moved(("0+", 0), is_inserted=True) == match(journal, call(0, "added"))
    assert isinstance(match(journal, call(0, "added", path="0+")), New)
    again = match(journal, call(0, "look", path="0+"))
    assert isinstance(again, Differs)
    assert not again.adds


def test_a_branch_that_the_log_does_not_know_differs() -> None:
    journal = journal_of(done(0, "look"), done(1, "look", forks=1), done(0, "branched", path="1-1"))

    assert isinstance(match(journal, call(0, "branched", path="1-1")), Recorded)
    assert isinstance(match(journal, call(1, "branched", path="1-1")), New)
    for path in ("0-1", "1-2"):
        assert isinstance(match(journal, call(0, "more", path=path)), Differs)


def _journals() -> Iterator[Journal]:
    """Of every log of a scenario of 0.1 that was not killed: its journal after every event."""
    for file in sorted(LOGS.iterdir()):
        line = lzma.decompress(file.read_bytes()).splitlines()[0]
        for run in json.loads(line)["runs"]:
            journal = Journal()
            for seq, (time, _, kind, data, _) in enumerate(run["log"]):
                feed(journal, seq, time, e.from_json(kind, data.encode()))
                yield journal


def _as_asked(place: tuple[str, int], entry: Entry) -> Request:
    def is_same(other: Entry, _number: int, _lineage: object) -> bool:
        return other is entry

    made: Request = _request(*place, 1, entry.name, is_same)
    return made


def test_at_every_prefix_of_every_log_what_is_recorded_is_found_and_nothing_is_changed() -> None:
    looked_at = 0
    for journal in _journals():
        before = {place: (id(x), copy.copy(x)) for place, x in journal.entries.items()}
        for place, entry in list(journal.entries.items()):
            if place[1] < 0:
                continue  # a timeout: code does not ask for it
            found = match(journal, _as_asked(place, entry))
            assert isinstance(found, Recorded if entry.final else Open)
            assert (place, entry) == (found.place, found.entry)
            assert not isinstance(
                match(journal, call(place[1], "x", path=place[0])), Recorded | Open
            )
            looked_at += 1
        after = {place: (id(x), copy.copy(x)) for place, x in journal.entries.items()}
        assert [msgspec.structs.asdict(x) for _, x in before.values()] == [
            msgspec.structs.asdict(x) for _, x in after.values()
        ]
        assert {p: i for p, (i, _) in before.items()} == {p: i for p, (i, _) in after.items()}
    assert looked_at > 500
