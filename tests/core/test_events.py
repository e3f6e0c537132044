"""Every kind of event has one stored form, which is read back, kept stable, and never skipped."""

import json
import math
from pathlib import Path
from typing import Any, get_args, get_type_hints

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given
from msgspec import Raw

from holdfast import errors
from holdfast.core import events, values
from holdfast.core.events import (
    ChildUsage,
    Divergence,
    ErrorInfo,
    Event,
    InheritedPolicy,
    RecordedToolCall,
    Usage,
    Value,
)
from holdfast.errors import InvalidInput, NotStorable
from holdfast.waiting import WaitingFor, WaitingKind

GOLDEN = Path(__file__).parent / "golden_events.json"

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
PLAIN = st.none() | st.booleans() | st.integers() | TEXT | st.lists(TEXT, max_size=2)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
ANY_OF: dict[Any, st.SearchStrategy[Any]] = {
    type(None): st.none(),
    bool: st.booleans(),
    int: st.integers(-(2**63), 2**63),
    float: NUMBERS,
    str: TEXT,
    tuple[str, ...]: st.lists(TEXT, max_size=3).map(tuple),
    tuple[int, ...]: st.lists(st.integers(0, 2**63), max_size=3).map(tuple),
    tuple[int, ...]: st.lists(st.integers(-(2**63), 2**63), max_size=3).map(tuple),
    dict[str, float]: st.dictionaries(TEXT, NUMBERS, max_size=3),
    Value: st.builds(lambda value: Value(json=Raw(values.encode(value))), PLAIN)
    | st.builds(lambda n: Value(blob=f"{n:032x}", bytes=n), st.integers(1, 2**62)),
    ErrorInfo: st.builds(ErrorInfo, TEXT, TEXT, TEXT, TEXT),
    Usage: st.builds(Usage, st.integers(), st.integers(), NUMBERS),
}
ANY_OF[Divergence] = st.builds(Divergence, TEXT, TEXT, TEXT, st.booleans())
ANY_OF[ChildUsage] = st.builds(ChildUsage, st.integers(), ANY_OF[Usage])
ANY_OF[InheritedPolicy] = st.builds(
    InheritedPolicy, ANY_OF[tuple[str, ...]], st.none() | NUMBERS, ANY_OF[tuple[str, ...]]
)
ANY_OF[tuple[RecordedToolCall, ...]] = st.lists(
    st.builds(
        RecordedToolCall, TEXT, TEXT, ANY_OF[Value], st.none() | ANY_OF[Value], TEXT, NUMBERS
    ),
    max_size=2,
).map(tuple)
WAITS = st.builds(
    WaitingFor,
    st.sampled_from(get_args(WaitingKind)),
    TEXT,
    until=st.none() | st.integers(0, 2**62),
)
ANY_OF[tuple[WaitingFor, ...]] = st.lists(WAITS, max_size=2).map(tuple)
each_kind = pytest.mark.parametrize("cls", events.ALL.values(), ids=events.ALL.keys())


def instances(cls: type[Event]) -> st.SearchStrategy[Event]:
    """Any event of a class, each field by its type."""
    hints = get_type_hints(cls)
    fields = {}
    for name in cls.__struct_fields__:
        kinds = [hints[name]] if hints[name] in ANY_OF else get_args(hints[name])
        fields[name] = st.one_of(*(ANY_OF[kind] for kind in kinds))
    return st.builds(cls, **fields)


def example(cls: type[msgspec.Struct], number: int = 1) -> Any:
    """One instance with every field set to something that is not its default."""
    hints = get_type_hints(cls)
    return cls(
        **{
            name: sample(name, hints[name], number + i)
            for i, name in enumerate(cls.__struct_fields__)
        }
    )


def sample(name: str, hint: Any, number: int) -> Any:
    made = {
        str: f"{name} {number}",
        int: number,
        bool: True,
        float: number + 0.25,
        int | None: number,
        tuple[str, ...]: (name, "é"),
        tuple[int, ...]: (number, number + 1),
        tuple[int, ...]: (number, number + 1),
        dict[str, float]: {"steps": number + 0.0},
        Value: Value(json=Raw(b'{"n":%d}' % number)),
        Value | None: Value(blob="0" * 32, bytes=number),
        str | None: f"{name} {number}",
        float | None: number + 0.25,
    }
    if hint in made:
        return made[hint]
    for struct in (ErrorInfo, Usage, ChildUsage, InheritedPolicy, Divergence):
        if hint in (struct, struct | None):
            return example(struct, number)
    if hint == tuple[WaitingFor, ...]:
        return (WaitingFor("signal", "go"),) if name == "child" else (example(WaitingFor, number),)
    if hint == tuple[RecordedToolCall, ...]:
        return (example(RecordedToolCall, number),)
    raise AssertionError(f"no example for {name}: {hint}")


# -- round trips -------------------------------------------------------------------------------


@each_kind
@given(data=st.data())
def test_an_event_is_read_back_equal(cls: type[Event], data: st.DataObject) -> None:
    """And written again it is the same bytes, so a log can be re-written without changing it."""
    event = data.draw(instances(cls))
    stored = events.to_json(event)
    back = events.from_json(event.stored_as, stored)

    assert event == back
    assert type(event) is type(back)
    assert stored == events.to_json(back)
    assert isinstance(json.loads(stored), dict)


def golden() -> dict[str, list[dict[str, str]]]:
    """The forms in which each kind was ever stored, the newest last."""
    forms: dict[str, list[dict[str, str]]] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return forms


@each_kind
def test_the_stored_form_of_an_event_is_the_one_we_promised(cls: type[Event]) -> None:
    """The golden file holds an example of each kind, with every field set.

    If this fails, events are stored in another form than before. For a new kind, or a new field with
    a default, that is fine: `python tests/core/test_events.py` adds the new form. For anything else
    give the class a new `version` and keep reading the old one.
    """
    event = example(cls)

    assert {"label": event.stored_as, "data": events.to_json(event).decode()} == golden()[cls.kind][
        -1
    ]


def test_every_form_that_was_ever_stored_can_still_be_read() -> None:
    """And is written back as it was: nothing of an old event is lost."""
    forms = golden()

    assert sorted(events.ALL) == sorted(forms)
    for form in (form for kind in forms.values() for form in kind):
        event = events.from_json(form["label"], form["data"].encode())
        assert form["data"] == events.to_json(event).decode()


@each_kind
def test_defaults_are_not_written(cls: type[Event]) -> None:
    """So that a new field with a default leaves the stored form of old events as it was."""
    hints = get_type_hints(cls)
    required = [field.name for field in msgspec.structs.fields(cls) if field.required]
    event = cls(**{name: sample(name, hints[name], 1) for name in required})

    assert set(required) == set(json.loads(events.to_json(event)))


@each_kind
def test_an_event_cannot_be_changed(cls: type[Event]) -> None:
    """Facts are facts."""
    with pytest.raises(AttributeError):
        setattr(example(cls), cls.__struct_fields__[0], "other")


def test_every_kind_has_a_name_of_its_own() -> None:
    """In snake case, without the dot that separates a version."""
    kinds = list(events.ALL)

    assert len(kinds) == len(set(kinds))
    assert [] == [
        kind for kind in kinds if not kind.replace("_", "").isalpha() or not kind.islower()
    ]
    assert "noted" not in kinds


def test_no_event_has_the_name_of_an_error() -> None:
    """One name for two things: `except CallFailed` must not be possible with the wrong one."""
    named = {cls.__name__ for cls in events.ALL.values()}

    assert set() == named & set(vars(errors))


# -- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "",
        "unknown",
        "noted",
        "event",
        "RunCreated",
        "run_created ",
        "run created",
        "os.system",
        "\0",
        "__class__",
        "holdfast.core.events.RunCreated",
    ],
)
def test_an_unknown_kind_is_refused(name: str) -> None:
    """Never skipped, never looked up anywhere else."""
    with pytest.raises(events.Unreadable, match="unknown event kind"):
        events.from_json(name, b"{}")


@each_kind
def test_another_version_is_refused(cls: type[Event]) -> None:
    """A newer one, and every spelling that this Holdfast would not write."""
    data = events.to_json(example(cls))
    for version in ("2", "99", "0", "-1", "", "1", "1.0", " 2", "x"):
        if f"{cls.kind}.{version}" == cls.stored_as:
            continue
        with pytest.raises(events.Unreadable, match=r"has version .*, this Holdfast reads"):
            events.from_json(f"{cls.kind}.{version}", data)


@each_kind
def test_a_field_that_is_not_known_is_refused(cls: type[Event]) -> None:
    """It was written by a newer Holdfast, and dropping it would change what the event says."""
    fields = json.loads(events.to_json(example(cls)))
    with pytest.raises(events.Unreadable, match="unknown field"):
        events.from_json(cls.stored_as, json.dumps({**fields, "newer": 1}).encode())


@each_kind
def test_a_malformed_event_is_refused(cls: type[Event]) -> None:
    """Cut short, of another shape, with a field of another type, or too deep."""
    data = events.to_json(example(cls))
    field = msgspec.structs.fields(cls)[0].encode_name
    deep = b'{"%s":%s' % (field.encode(), b"[" * 100_000)
    for bad in (data[:-1], data + b"}", b"[]", b"null", b"", b"\xff", deep):
        with pytest.raises(events.Unreadable):
            events.from_json(cls.stored_as, bad)
    fields = json.loads(data)
    for name in fields:
        for wrong in ({"x": {}}, [[1]]):
            with pytest.raises(events.Unreadable):
                events.from_json(cls.stored_as, json.dumps({**fields, name: wrong}).encode())


def test_text_that_is_not_unicode_is_refused_when_written() -> None:
    """As an error of ours that names the event, not as one of the encoder."""
    with pytest.raises(NotStorable, match=r"LogWritten cannot be stored: .* lone surrogate"):
        events.to_json(events.LogWritten(level="info", text="file \udcff"))


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_without_a_json_form_are_not_made_into_events(number: float) -> None:
    """They would be stored as null and never be read again."""
    with pytest.raises(InvalidInput, match="cost_usd"):
        Usage(cost_usd=number)
    with pytest.raises(InvalidInput, match="max_cost_usd"):
        events.RunCreated("run", "agent", events.NULL, budget={"max_cost_usd": number})


# -- values ------------------------------------------------------------------------------------


def test_values_are_compared_by_their_bytes_or_their_hash() -> None:
    """Whatever buffer they lie in."""
    long = Raw(b'[1,{"a":2}]')
    part = msgspec.json.decode(b'{"json":{"a":2}}', type=Value)

    assert Value(json=Raw(b'{"a":2}')) == part
    assert hash(Value(json=Raw(b'{"a":2}'))) == hash(part)
    assert Value(json=long) != part
    assert Value(json=Raw(b"1")) != 1
    assert Value(blob="a") == Value(blob="a")
    assert Value(blob="a") != Value(blob="b")
    assert 'Value({"a":2})' == repr(part)
    assert "Value(blob='a')" == repr(Value(blob="a"))


if __name__ == "__main__":
    forms = golden() if GOLDEN.exists() else {}
    for kind, cls in events.ALL.items():
        now = {"label": cls.stored_as, "data": events.to_json(example(cls)).decode()}
        if now not in forms.setdefault(kind, []):
            forms[kind].append(now)
    GOLDEN.write_text(json.dumps(forms, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
