"""A log is a chain: whatever is changed, moved, dropped or foreign is found, and named."""

from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from hypothesis import given
from msgspec import Raw

from holdfast.core import events, log, values
from holdfast.core.events import LogWritten, NoteTaken, RunCreated, Value
from holdfast.core.log import Blob, Head, Record, check_run_id, origin, seal, verify
from holdfast.errors import InvalidInput, LogDamaged, UnknownEvent

INT64 = st.integers(-(2**63), 2**63 - 1)


def chain(count: int, run_id: str = "run", *, word: str = "x") -> list[Record]:
    """A log of some events, sealed one by one and in groups."""
    head, records = origin(run_id), []
    for i in range(0, count, 2):
        new = [LogWritten(level="info", text=f"{word} {i + j}") for j in range(min(2, count - i))]
        head, sealed = seal(head, new, epoch=1 + i // 5, time=1000 * i)
        records += sealed
    return records


def damage(records: list[Record], run_id: str = "run") -> tuple[int, str] | None:
    """Where a log is damaged, and how; None if it is whole."""
    try:
        read = list(verify(run_id, origin(run_id), records))
    except LogDamaged as error:
        return error.seq, error.what
    assert records == read
    return None


@given(st.integers(0, 30))
def test_a_whole_log_verifies(count: int) -> None:
    """Every record comes out as it went in, numbered without gap."""
    records = chain(count)

    assert damage(records) is None
    assert list(range(count)) == [record.seq for record in records]


def test_sealing_at_once_and_in_parts_gives_separate_chains() -> None:
    """The hash covers the place, so equal events at other places are other records."""
    notes = [LogWritten(level="info", text="same")] * 3
    _, records = seal(origin("run"), notes, epoch=1, time=5)

    assert 1 == len({record.data for record in records})
    assert 3 == len({record.hash for record in records})


@given(st.data())
def test_a_flipped_bit_is_found_where_it_is(data: st.DataObject) -> None:
    """In any field of any record."""
    records = chain(8)
    at = data.draw(st.integers(0, 7))
    field = data.draw(st.sampled_from(Record._fields))
    old = getattr(records[at], field)
    if isinstance(old, int):
        new: object = old ^ (1 << data.draw(st.integers(0, 62)))
    else:
        raw = bytearray(old.encode() if isinstance(old, str) else old)
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 6))
        new = raw.decode("latin-1") if isinstance(old, str) else bytes(raw)
    records[at] = records[at]._replace(**{field: new})

    found = damage(records)
    assert found is not None
    assert at == found[0]


@given(st.integers(0, 7), st.sampled_from(["time", "epoch", "seq"]), INT64)
def test_another_number_is_found(at: int, field: str, number: int) -> None:
    """Times and epochs are covered like the data."""
    records = chain(8)
    changed = records[at]._replace(**{field: number})
    whole = changed == records[at]
    records[at] = changed

    assert whole == (damage(records) is None)


@given(st.integers(0, 6))
def test_a_missing_record_is_named(at: int) -> None:
    """Anywhere but at the end, where only the store's own count can tell."""
    records = chain(8)
    del records[at]

    assert (at, "it is missing") == damage(records)


@given(st.integers(0, 7), st.integers(0, 7))
def test_swapped_records_are_found(one: int, other: int) -> None:
    """At the first of the two places, also when the numbers are put right again."""
    records = chain(8)
    a, b = records[one], records[other]
    records[one], records[other] = b, a
    renumbered = list(records)
    renumbered[one], renumbered[other] = b._replace(seq=one), a._replace(seq=other)

    for log_ in (records, renumbered):
        found = damage(log_)
        if one == other:
            assert found is None
        else:
            assert found is not None
            assert min(one, other) == found[0]


@given(st.integers(0, 7), st.integers(0, 8))
def test_a_duplicated_record_is_found(which: int, to: int) -> None:
    """Inserted anywhere, with its own number or with the one of its new place."""
    whole = chain(8)
    for copy in (whole[which], whole[which]._replace(seq=to)):
        records = [*whole[:to], copy, *whole[to:]]
        found = damage(records)
        assert found is not None
        # A copy in front of its original is the original; then the second one is the stranger.
        assert found[0] == (to + 1 if copy == whole[which] and to == which else to)


@given(st.integers(1, 7), st.integers(0, 40))
def test_a_truncated_record_in_the_middle_is_found(at: int, kept: int) -> None:
    """However much of its data is left."""
    records = chain(8)
    data = records[at].data
    records[at] = records[at]._replace(data=data[: min(kept, len(data) - 1)])

    assert (at, "its bytes do not match its hash") == damage(records)


@given(st.integers(0, 7))
def test_a_record_of_another_run_is_found(at: int) -> None:
    """The first hash covers the run's id, so equal events of two runs differ from the start."""
    records = chain(8)
    records[at] = chain(8, "other")[at]

    assert (at, "its bytes do not match its hash") == damage(records)
    assert 0 == (damage(chain(8, "other")) or (-1,))[0]


@given(st.integers(0, 6))
def test_another_history_behind_a_common_beginning_is_found(at: int) -> None:
    """A tail that belongs to another beginning, as after a restored backup."""
    records = chain(8)[: at + 1] + chain(8, word="y")[at + 1 :]

    found = damage(records)
    assert found is not None
    assert at + 1 == found[0]


def test_a_log_is_verified_from_any_trusted_place() -> None:
    """From a snapshot's head: the tail fits, and a head of elsewhere does not."""
    records = chain(8)
    at = records[4]

    assert records[5:] == list(verify("run", Head(4, at.hash, at.time), records[5:]))
    with pytest.raises(LogDamaged) as error:
        list(verify("run", Head(4, b"elsewhere", 0), records[5:]))
    assert 5 == error.value.seq


def test_damage_is_reported_after_the_records_before_it() -> None:
    """A reader gets what still verifies, and then the error."""
    records = chain(6)
    records[4] = records[4]._replace(time=-1)
    read: list[Record] = []
    with pytest.raises(LogDamaged, match="'run' is damaged at event 4"):
        read.extend(verify("run", origin("run"), records))

    checked = verify("run", origin("run"), records)
    assert records[:4] == [next(checked) for _ in range(4)]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2**62)), max_size=20))
def test_time_never_runs_backwards_within_a_run(batches: list[tuple[int, int]]) -> None:
    """A clock that steps back repeats the last time instead; the head remembers it."""
    head, times = origin("run"), []
    for count, time in batches:
        head, records = seal(head, [LogWritten(level="i", text="x")] * count, epoch=1, time=time)
        times += [record.time for record in records]
        assert head.time >= time

    assert sorted(times) == times


def test_an_unknown_event_is_an_error_that_names_its_place() -> None:
    """It is never skipped: what it says may matter."""
    for kind, data in (
        ("never_heard_of", b"{}"),
        ("run_created.2", b"{}"),
        ("run_created", b"{"),
        ("run_created", b"{}"),
    ):
        record = Record(7, 0, 1, kind, data, b"")
        with pytest.raises(UnknownEvent, match="'run' is damaged at event 7"):
            log.read_event("run", record)


def test_a_record_reads_as_its_event() -> None:
    """Sealed and read back, it is equal."""
    event = RunCreated("run", "agent", Value(json=Raw(b'{"a":1}')), stages=("one", "two"))
    _, (record,) = seal(origin("run"), [event], epoch=1, time=1)

    assert event == log.read_event("run", record) == record.event


@given(st.binary(min_size=1, max_size=200))
def test_small_values_stay_in_their_event(data: bytes) -> None:
    """They come back as the same bytes, and need no blob."""
    encoded = values.encode(data.hex())
    value, blobs = log.wrap(encoded)
    event = NoteTaken(key="k", value=value)
    back = events.from_json(event.stored_as, events.to_json(event))

    assert () == blobs
    assert isinstance(back, NoteTaken)
    assert encoded == events.bytes_of(back.value.json)


def test_large_values_are_stored_outside_their_event_by_their_hash() -> None:
    """The limit itself stays inside; one byte more goes out."""
    inside, outside = b" " * log.SPILL_BYTES, b" " * (log.SPILL_BYTES + 1)

    assert () == log.wrap(inside)[1]
    value, blobs = log.wrap(outside)
    assert (Blob(values.digest(outside), outside),) == blobs
    assert (values.digest(outside), len(outside)) == (value.blob, value.bytes)
    assert b"" == events.bytes_of(value.json)


# -- run ids -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "run_id",
    ["a", "7", "recap-sam", "A.b_c:d@e~f=g+h-i", "x" * 200, "0001", "sam@example.com", "run..1"],
)
def test_a_plain_id_is_a_run_id(run_id: str) -> None:
    """Letters, digits and a few marks that need no quoting anywhere."""
    assert run_id == check_run_id(run_id)


NO_IDS: list[object] = [
    "",
    " ",
    "a b",
    " a",
    "a ",
    "a\n",
    "\na",
    "a\tb",
    "a\0",
    "\x1b[0m",
    "a\x7f",
    "\u202ea",
    "..",
    ".",
    "../x",
    "a/../b",
    "a/b",
    "/a",
    "a\\b",
    "C:\\x",
    "%2e%2e",
    "a%2fb",
    "~root",
    ".a",
    "-rf",
    "--help",
    "_a",
    ":a",
    "@a",
    "a?b",
    "a#b",
    "a&b",
    "a;b",
    "a|b",
    "a$b",
    "a`b",
    "a'b",
    'a"b',
    "a<b",
    "a*b",
    "a,b",
    "a(b)",
    "a[b]",
    "a{b}",
    "é",
    "\u0430",
    "\uff11",
    "\u0661",
    "\ud800",
    "x" * 201,
    None,
    7,
    b"a",
    ["a"],
]


@pytest.mark.parametrize("run_id", NO_IDS, ids=ascii)
def test_an_id_that_could_mislead_a_path_a_url_or_a_reader_is_refused(run_id: object) -> None:
    """The error shows it, and says what is allowed."""
    with pytest.raises(InvalidInput, match="is not a run id: use 1 to 200 letters"):
        check_run_id(run_id)


@given(st.text(max_size=20))
def test_a_run_id_holds_nothing_but_the_allowed_characters(text: str) -> None:
    """Whatever text is tried: accepted means harmless."""
    allowed: Callable[[str], bool] = lambda c: c.isascii() and (c.isalnum() or c in "._:@~=+-")  # noqa: E731
    harmless = bool(text) and all(map(allowed, text)) and text[0].isalnum()
    try:
        check_run_id(text)
    except InvalidInput:
        assert not harmless
    else:
        assert harmless
