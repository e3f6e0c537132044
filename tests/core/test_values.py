"""What may be kept, what is refused and where it is, and that bytes read from a store stay data."""

import base64
import collections
import copy
import dataclasses
import datetime as dt
import decimal
import enum
import json
import math
import os
import pickle
import random
import struct
import subprocess
import sys
import types
import typing
import uuid
import zoneinfo
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict

import hypothesis.strategies as st
import msgspec
import pydantic
import pytest
from hypothesis import example, given

from holdfast.core import values
from holdfast.core.values import (
    Codec,
    FrozenDict,
    FrozenList,
    canonical,
    decode,
    encode,
    encoding,
    freeze,
    is_plain_json,
    lower,
    thaw,
)
from holdfast.errors import NotStorable

UTC = dt.UTC
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5),
    max_leaves=20,
)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mode(enum.StrEnum):
    FAST = "fast"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.5


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    name: str
    corners: list[Point]
    colour: Colour = Colour.RED
    seen: dt.datetime | None = None
    labels: frozenset[str] = frozenset()
    by_level: dict[Level, decimal.Decimal] = dataclasses.field(default_factory=dict)


class Renamed(msgspec.Struct, rename="camel"):
    first_name: str
    raw_bytes: bytes = b""


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag="woof", tag_field="says"):
    tricks: tuple[str, ...] = ()


class Row(msgspec.Struct, array_like=True, tag="row"):
    a: int
    b: str = "b"


class Sparse(msgspec.Struct):
    here: int
    gone: int | msgspec.UnsetType = msgspec.UNSET


class Pair(NamedTuple):
    left: int
    right: str


class Film(TypedDict):
    title: str
    year: int


class Inner(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True)

    tags: frozenset[str] = frozenset()
    when: dt.datetime | None = None


class Outer(pydantic.BaseModel):
    inner: Inner
    many: list[Inner] = []
    few: set[Inner] = set()
    price: decimal.Decimal = decimal.Decimal("1.10")
    number: float = 0.0
    id: uuid.UUID = uuid.UUID(int=7)
    renamed: int = pydantic.Field(1, alias="reNamed")
    by_name: dict[str, set[int]] = {}


class Root(pydantic.RootModel[list[set[str]]]):
    pass


class Square(pydantic.BaseModel):
    kind: Literal["square"] = "square"
    side: int


class Circle(pydantic.BaseModel):
    kind: Literal["circle"] = "circle"
    radius: int


@dataclasses.dataclass
class Holder:
    """A dataclass that holds pydantic models and bytes: each is read in its own way."""

    model: Inner
    models: dict[str, list[Inner]] = dataclasses.field(default_factory=dict)
    raw: bytes = b""


BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
OLD = dt.datetime(1800, 1, 1, tzinfo=BERLIN)  # +00:53:28, before there were time zones


def short(thing: object) -> str:
    """A test's name: the same in every process, so without addresses and without sets' order."""
    return (
        thing
        if isinstance(thing, str)
        else getattr(thing, "__qualname__", type(thing).__qualname__)
    )


COMING_BACK: list[tuple[Any, Any]] = [
    (str, ""),
    (str, "nul \0 and \u2028 and \U0001f600 and \ufeff"),
    (int, 2**63),
    (int, -(2**4000)),
    (bool, True),
    (float, 1e308),
    (float, 5e-324),
    (float | None, None),
    (bytes, bytes(range(256))),
    (bytearray, bytearray(b"\0\xff")),
    (dt.datetime, dt.datetime(2024, 2, 29, 23, 59, 59, 999999, UTC)),
    (dt.datetime, dt.datetime(1, 1, 1, tzinfo=UTC)),
    (dt.datetime, dt.datetime(9999, 12, 31, tzinfo=dt.timezone(dt.timedelta(hours=-5)))),
    (dt.datetime, OLD),
    (dt.date, dt.date(2024, 2, 29)),
    (dt.time, dt.time(23, 59, 59, 5)),
    (dt.time, dt.time(1, 2, tzinfo=UTC)),
    (dt.timedelta, dt.timedelta(days=-3, microseconds=1)),
    (dt.timedelta, dt.timedelta.max),
    (decimal.Decimal, decimal.Decimal("1.10")),
    (decimal.Decimal, decimal.Decimal("-1E+400")),
    (uuid.UUID, uuid.UUID(int=2**127 + 1)),
    (Colour, Colour.BLUE),
    (Level, Level.HIGH),
    (Mode, Mode.FAST),
    (Access, Access.READ | Access.WRITE),
    (set[int], {3, 1, 2}),
    (frozenset[Colour], frozenset(Colour)),
    (tuple[int, str], (1, "a")),
    (tuple[int, ...], (1, 2, 3)),
    (list[tuple[int, dt.date]], [(1, dt.date(2024, 1, 1))]),
    (dict[int, str], {1: "a", -2: "b"}),
    (dict[float, int], {0.5: 1}),
    (dict[uuid.UUID, int], {uuid.UUID(int=1): 1}),
    (dict[dt.date, int], {dt.date(2024, 1, 1): 1}),
    (dict[dt.datetime, int], {dt.datetime(2024, 1, 1, tzinfo=UTC): 1}),
    (dict[decimal.Decimal, int], {decimal.Decimal("1.50"): 1}),
    (dict[Colour, Level], {Colour.RED: Level.LOW}),
    (dict[Level, int], {Level.LOW: 1}),
    (dict[str, list[set[int]]], {"a": [{1}, set()]}),
    (int | str, "5"),
    (list[int] | None, None),
    (Literal["a", "b"], "a"),
    (Pair, Pair(1, "r")),
    (list[Pair], [Pair(1, "r")]),
    (Film, {"title": "M", "year": 1931}),
    (Point, Point(1, 2.0)),
    (Shape, Shape("empty", [])),
    (
        Shape,
        Shape(
            "full",
            [Point(1), Point(2, -0.0)],
            Colour.BLUE,
            dt.datetime(2024, 1, 1, tzinfo=UTC),
            frozenset("xyz"),
            {Level.HIGH: decimal.Decimal("0.30")},
        ),
    ),
    (dict[str, Shape | None], {"a": None, "b": Shape("s", [])}),
    (Renamed, Renamed("Ada", b"\xff\0")),
    (Cat, Cat(9)),
    (list[Dog], [Dog(("sit",)), Dog()]),
    (Row, Row(1)),
    (Sparse, Sparse(1)),
    (Inner, Inner(tags=frozenset("abc"), when=dt.datetime(2024, 1, 1, tzinfo=UTC))),
    (Inner | None, None),
    (
        Outer,
        Outer(
            inner=Inner(),
            many=[Inner(tags=frozenset("ab"))],
            few={Inner(tags=frozenset("ab")), Inner()},
            reNamed=3,
            by_name={"a": {3, 1, 2}},
        ),
    ),
    (list[Outer], [Outer(inner=Inner())]),
    (Root, Root([{"b", "a"}, set()])),
    (Square | Circle, Circle(radius=2)),
    (list[Square | Circle], [Circle(radius=2), Square(side=1)]),
    (Holder, Holder(Inner(), {"a": [Inner(tags=frozenset("q"))]}, b"\xff\0")),
    (list[Holder], [Holder(Inner())]),
]


def type_name(value: object) -> str:
    """A name for a case that is the same in every process: addresses and set orders are not."""
    return (
        ascii(value) if isinstance(value, str) and value.startswith("$") else type(value).__name__
    )


@pytest.mark.parametrize(("declared", "value"), COMING_BACK, ids=type_name)
def test_a_declared_type_comes_back_as_what_it_was(declared: Any, value: Any) -> None:
    """And once more encoded it is the same bytes, so run and replay see the same."""
    codec = Codec(declared)
    data = codec.encode(value)
    back = codec.decode(data)

    assert value == back
    assert type(value) is type(back)
    assert data == codec.encode(back)
    assert json.loads(data) == decode(data)


def test_a_moment_keeps_its_instant_whatever_its_offset() -> None:
    """Offsets with seconds, as local mean time has; both halves of the hour that happens twice."""
    twice = dt.datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN)
    for value in (OLD, twice, twice.replace(fold=1)):
        back = Codec(dt.datetime).decode(Codec(dt.datetime).encode(value))
        assert value.timestamp() == back.timestamp()


@given(JSON)
@example({"": {"\0": ["\u2028"]}})
def test_plain_json_comes_back_equal(value: Any) -> None:
    """Without any declared type: decode(encode(x)) is x, and encoding it again changes nothing."""
    data = encode(value)

    assert value == decode(data)
    assert data == encode(decode(data))
    assert data == encode(value, typed=True)


TYPED = {
    dt.datetime: st.datetimes(timezones=st.timezones() | st.just(UTC)),
    dt.date: st.dates(),
    dt.time: st.times(),
    dt.timedelta: st.timedeltas(),
    decimal.Decimal: st.decimals(allow_nan=False, allow_infinity=False),
    uuid.UUID: st.uuids(),
    bytes: st.binary(),
    set[str]: st.sets(TEXT),
    dict[int, Point]: st.dictionaries(
        st.integers(),
        st.builds(Point, st.integers(), st.floats(allow_nan=False, allow_infinity=False)),
    ),
    Inner: st.builds(Inner, tags=st.frozensets(TEXT), when=st.none()),
}


@pytest.mark.parametrize("declared", TYPED, ids=short)
@given(data=st.data())
def test_any_value_of_a_type_comes_back_equal(declared: Any, data: st.DataObject) -> None:
    """The same as above, for whatever hypothesis finds."""
    value = data.draw(TYPED[declared])
    codec = Codec(declared)
    encoded = codec.encode(value)

    assert value == codec.decode(encoded)
    assert encoded == codec.encode(codec.decode(encoded))


@given(st.datetimes(timezones=st.just(UTC)) | st.times() | st.dates() | st.timedeltas())
def test_times_are_written_as_msgspec_writes_them(value: Any) -> None:
    """So that our own structs and users' values look alike in a log."""
    assert msgspec.json.encode(value) == encode(value, typed=True)


def test_subclasses_of_json_types_are_kept_as_their_plain_value() -> None:
    """Whatever they make of str() or int()."""

    class Loud(str):
        def __str__(self) -> str:
            return "LOUD"

    class Odd(int):
        def __int__(self) -> int:
            return 7

    counted = collections.Counter("aab")
    value = {Loud("a"): Loud("b"), "n": Odd(1), "c": counted, "o": collections.OrderedDict(z=1)}

    assert {"a": "b", "n": 1, "c": {"a": 2, "b": 1}, "o": {"z": 1}} == decode(encode(value))


def test_tuples_without_a_declared_type_become_lists() -> None:
    """On the first execution too, because what the agent gets is what was decoded."""
    assert [1, [2, []]] == decode(encode((1, (2, ()))))


def test_a_mapping_or_view_is_kept_where_a_type_is_declared() -> None:
    """Read-only mappings and memory views are what they look like."""
    assert {"a": 1} == Codec(dict[str, int]).decode(
        Codec(dict[str, int]).encode(types.MappingProxyType({"a": 1}))
    )
    assert b"ab" == Codec(bytes).decode(Codec(bytes).encode(memoryview(b"ab")))


# -- what is refused, and where ----------------------------------------------------------------

REFUSED_PLAIN: list[tuple[Any, str]] = [
    (math.nan, "$"),
    (math.inf, "$"),
    ({"hits": [{"score": -math.inf}]}, "$.hits[0].score"),
    ({"a b": [1, (2, math.nan)]}, "$['a b'][1][1]"),
    ("\ud800", "$"),
    (["ok", {"deep": "x\udfff"}], "$[1].deep"),
    ({"\udc00": 1}, "$['\\udc00']"),
    ({"a": {1: "a", "1": "b"}}, "$.a"),
    ({1: "a"}, "$"),
    ({None: 1}, "$"),
    ({True: 1}, "$"),
    ({(1, 2): 1}, "$"),
    ({b"k": 1}, "$"),
    ({Colour.RED: 1}, "$"),
    ({Mode.FAST: 1}, "$"),
    ([2**4097], "$[0]"),
    ({"x": b"bytes"}, "$.x"),
    ({"x": {1, 2}}, "$.x"),
    ([dt.datetime(2024, 1, 1, tzinfo=UTC)], "$[0]"),
    ([dt.date(2024, 1, 1)], "$[0]"),
    ([dt.timedelta(1)], "$[0]"),
    ([decimal.Decimal(1)], "$[0]"),
    ([uuid.UUID(int=1)], "$[0]"),
    ([Colour.RED], "$[0]"),
    ([Level.LOW], "$[0]"),
    ([Point(1)], "$[0]"),
    ([Pair(1, "r")], "$[0]"),
    ([Cat(9)], "$[0]"),
    ([Inner()], "$[0]"),
    ([object()], "$[0]"),
    ([len], "$[0]"),
    ([Point], "$[0]"),
    ([1j], "$[0]"),
    ([range(3)], "$[0]"),
    ([iter([1])], "$[0]"),
    ([msgspec.Raw(b"1")], "$[0]"),
    ([msgspec.UNSET], "$[0]"),
]


@pytest.mark.parametrize(("value", "path"), REFUSED_PLAIN, ids=type_name)
def test_what_would_not_come_back_is_refused_with_its_path(value: Any, path: str) -> None:
    """Before anything happens, and saying what to do instead."""
    with pytest.raises(NotStorable) as refused:
        encode(value)

    assert path == refused.value.path
    assert f"at {path}, " in str(refused.value)


REFUSED_TYPED: list[tuple[Any, str]] = [
    (dt.datetime(2024, 1, 1), "$"),  # noqa: DTZ001 - naive, which is the point
    ({dt.datetime(2024, 1, 1): 1}, "$"),  # noqa: DTZ001
    (Shape("s", [], seen=dt.datetime(2024, 1, 1)), "$.seen"),  # noqa: DTZ001
    ([dt.time(1, tzinfo=BERLIN)], "$[0]"),
    ([dt.time(1, tzinfo=dt.timezone(dt.timedelta(seconds=5)))], "$[0]"),
    ([decimal.Decimal("NaN")], "$[0]"),
    ([decimal.Decimal("sNaN")], "$[0]"),
    ([decimal.Decimal("Infinity")], "$[0]"),
    (Shape("s", [Point(1, math.nan)]), "$.corners[0].y"),
    (Shape("s", [Point(1), Point("\ud800")]), "$.corners[1].x"),  # type: ignore[arg-type]
    (Renamed("\ud800"), "$.firstName"),
    (Row(1, math.nan), "$[2]"),  # type: ignore[arg-type]
    (Outer(inner=Inner(), number=math.nan), "$.number"),
    (Outer(inner=Inner(tags=frozenset({"\ud800"}))), None),  # type: ignore[list-item]
    ({1: "a", "1": "b"}, "$"),
    ({"x": {True: 1}}, "$.x"),
    ({(1, 2): 1}, "$"),
    ({frozenset({1}): 1}, "$"),
    ({"\ud800"}, "$"),
    ([object()], "$[0]"),
    ([len], "$[0]"),
    ([Point], "$[0]"),
    ([msgspec.UNSET], "$[0]"),
    (collections.deque([1]), "$"),
]


@pytest.mark.parametrize(("value", "path"), REFUSED_TYPED, ids=type_name)
def test_what_has_no_json_form_is_refused_though_a_type_is_declared(
    value: Any, path: str | None
) -> None:
    """A declared type widens what may be kept; it does not open the door."""
    with pytest.raises(NotStorable) as refused:
        encode(value, typed=True)

    if path is not None:
        assert path == refused.value.path


@pytest.mark.parametrize(
    ("declared", "value", "path"),
    [
        (int, "x", "$"),
        (list[int], [1, "x"], "$[1]"),
        (dict[str, Point], {"a": {"x": 1}, "b": {"x": None}}, None),
        (Point, {"y": 1.0}, "$"),
        (Shape, {"name": "s", "corners": [{"x": 1}, {"x": "?"}]}, "$.corners[1].x"),
        (Colour, "green", "$"),
        (dt.datetime, "yesterday", "$"),
        (Inner, {"tags": 5}, "$"),
        (list[Holder], [{"model": {"when": "?"}}], "$[0].model"),
        (Square | Circle, {"kind": "circle", "radius": "?"}, None),
        (dict[int, int], {"x": 1}, "$"),
    ],
)
def test_what_does_not_fit_the_declared_type_is_refused_on_reading(
    declared: Any, value: Any, path: str | None
) -> None:
    """The message names the type; the path leads to the place."""
    codec = Codec(declared)
    with pytest.raises(NotStorable, match="cannot be decoded as the declared type") as refused:
        codec.decode(encode(value))

    if path is not None:
        assert path == refused.value.path


class Opaque:
    """A class that no one knows how to read."""


@pytest.mark.parametrize(
    "declared",
    [int | str | dt.date, "Unresolved", Cat | Point, enum.Enum("C", {"X": 1.5})],
)
def test_a_type_that_cannot_be_read_back_is_refused_when_it_is_declared(declared: Any) -> None:
    """At decoration, long before there is a value of it."""
    with pytest.raises(NotStorable, match="declare a simpler type"):
        Codec(declared)


def test_an_unknown_class_is_refused_on_both_sides() -> None:
    """Neither written by its attributes nor built from a dict."""
    with pytest.raises(NotStorable, match="Opaque"):
        Codec(Opaque).encode(Opaque())
    with pytest.raises(NotStorable, match="Opaque"):
        Codec(list[Opaque]).decode(b"[{}]")


def nested(depth: int) -> Any:
    value: Any = 1
    for i in range(depth):
        value = [value] if i % 2 else {"k": value}
    return value


def test_nesting_has_a_limit() -> None:
    """The limit itself passes; one more, a thousand more and a circle are refused."""
    assert nested(values.DEPTH_MAX) == decode(encode(nested(values.DEPTH_MAX)))
    circle: list[Any] = []
    circle.append(circle)
    for value in (nested(values.DEPTH_MAX + 1), nested(5000), circle):
        for typed in (False, True):
            with pytest.raises(NotStorable, match="nested deeper than 100 levels"):
                encode(value, typed=typed)


def test_depth_is_counted_alike_for_records_and_leaves() -> None:
    """Leaves that need conversion cost no level, and records cost one like dicts."""
    value: Any = dt.date(2024, 1, 1)
    for _ in range(values.DEPTH_MAX):
        value = (value,)

    assert encode(value, typed=True)
    with pytest.raises(NotStorable, match="nested deeper"):
        encode(Point(value), typed=True)  # type: ignore[arg-type]


def test_size_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in encoded bytes; the message says how many there are and how many may be."""
    monkeypatch.setattr(encoding, "BYTES_MAX", 1000)

    assert 1000 == len(encode("x" * 998))
    for value in ("x" * 999, "\0" * 200, ["é" * 500]):
        with pytest.raises(NotStorable, match=r"it takes 1,\d{3} bytes and the limit is 1,000"):
            encode(value)


def test_long_integers_have_a_limit() -> None:
    """Below the number of digits at which Python itself gives up."""
    assert 2**4096 - 1 == decode(encode(2**4096 - 1))
    with pytest.raises(NotStorable, match="4097 bits"):
        encode(-(2**4096))


def test_a_pydantic_model_without_a_json_form_is_refused() -> None:
    """Bytes that are not text, and fields that hold anything."""

    class Loose(pydantic.BaseModel):
        raw: bytes = b""
        thing: Any = None

    for value in (Loose(raw=b"\xff"), Loose(thing=object())):
        with pytest.raises(NotStorable, match="pydantic cannot serialise"):
            Codec(Loose).encode(value)


# -- declared types ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declared", "plain"),
    [
        (Any, True),
        (object, True),
        (None, True),
        (type(None), True),
        (dict, True),
        (list, True),
        (typing.Dict, True),  # noqa: UP006 - as older code writes it
        (typing.List, True),  # noqa: UP006
        (dict[str, Any], True),
        (dict[str, object], True),
        (list[Any], True),
        (list[dict[str, Any]], True),
        (dict[str, list[dict[str, Any]]], True),
        (str, False),
        (int, False),
        (float, False),
        (bool, False),
        (dict[int, Any], False),
        (dict[str, int], False),
        (list[int], False),
        (list[Point], False),
        (dict[str, dict[int, Any]], False),
        (tuple[Any, ...], False),
        (dict[str, Any] | None, False),
        (Point, False),
        (Inner, False),
    ],
)
def test_types_that_are_already_plain_json_need_no_conversion(declared: Any, plain: bool) -> None:
    """Only for those an undeclared datetime would come back as text, so it is refused there."""
    assert plain == is_plain_json(declared)
    assert plain == (not Codec(declared).typed)


def test_a_date_in_a_plain_dict_is_refused_rather_than_turned_into_text() -> None:
    """`-> dict[str, Any]` does not say that there is a date in it."""
    with pytest.raises(NotStorable, match=r"at \$\.when, "):
        Codec(dict[str, Any]).encode({"when": dt.date(2024, 1, 1)})


# -- canonical form ----------------------------------------------------------------------------

# RFC 8785, appendix B: IEEE 754 bits and how ECMAScript writes them.
RFC_NUMBERS = {
    "0000000000000000": "0",
    "8000000000000000": "0",
    "0000000000000001": "5e-324",
    "8000000000000001": "-5e-324",
    "7fefffffffffffff": "1.7976931348623157e+308",
    "ffefffffffffffff": "-1.7976931348623157e+308",
    "4340000000000000": "9007199254740992",
    "c340000000000000": "-9007199254740992",
    "4430000000000000": "295147905179352830000",
    "44b52d02c7e14af5": "9.999999999999997e+22",
    "44b52d02c7e14af6": "1e+23",
    "44b52d02c7e14af7": "1.0000000000000001e+23",
    "444b1ae4d6e2ef4e": "999999999999999700000",
    "444b1ae4d6e2ef4f": "999999999999999900000",
    "444b1ae4d6e2ef50": "1e+21",
    "3eb0c6f7a0b5ed8c": "9.999999999999997e-7",
    "3eb0c6f7a0b5ed8d": "0.000001",
    "41b3de4355555553": "333333333.3333332",
    "41b3de4355555554": "333333333.33333325",
    "41b3de4355555555": "333333333.3333333",
    "41b3de4355555556": "333333333.3333334",
    "41b3de4355555557": "333333333.33333343",
    "becbf647612f3696": "-0.0000033333333333333333",
    "43143ff3c1cb0959": "1424953923781206.2",
}


@pytest.mark.parametrize(("bits", "text"), RFC_NUMBERS.items())
def test_numbers_are_written_as_rfc_8785_lists_them(bits: str, text: str) -> None:
    """The table of its appendix B."""
    (number,) = struct.unpack(">d", bytes.fromhex(bits))

    assert text.encode() == canonical(number)


def test_keys_are_sorted_as_rfc_8785_sorts_them() -> None:
    """By UTF-16 code units, so an emoji comes before U+FB33 (the example of its section 3.2.3)."""
    value = {
        "\u20ac": "Euro Sign",
        "\r": "Carriage Return",
        "\ufb33": "Hebrew Letter Dalet With Dagesh",
        "1": "One",
        "\U0001f600": "Emoji: Grinning Face",
        "\u0080": "Control",
        "\u00f6": "Latin Small Letter O With Diaeresis",
    }

    expected = ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]
    assert expected == list(json.loads(canonical(value)))


def test_text_is_escaped_as_rfc_8785_escapes_it() -> None:
    """The example of its section 3.2.2: the fewest escapes, lower case, and numbers normalised."""
    value = {
        "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000f\nA'\u0042\u0022\u005c\\\"/",
        "literals": [None, True, False],
    }
    expected = (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )

    assert expected.encode() == canonical(value)


def reference(value: Any) -> str:
    """RFC 8785 for everything but floats, the slow and obvious way."""
    if isinstance(value, dict):
        pairs = sorted(value.items(), key=lambda pair: pair[0].encode("utf-16-be"))
        return "{" + ",".join(f"{reference(k)}:{reference(v)}" for k, v in pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(reference, value)) + "]"
    if isinstance(value, str):
        short = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 34: '"', 92: "\\"}
        letters = (
            f"\\{short[ord(c)]}" if ord(c) in short else f"\\u{ord(c):04x}" if c < " " else c
            for c in value
        )
        return '"' + "".join(letters) + '"'
    if isinstance(value, float):
        return canonical(value).decode()
    return json.dumps(value)


@given(JSON)
@example("".join(map(chr, range(0x300))))
@example({chr(i): i for i in range(0x80)})
@example([{"z": 1, "a": {"c": [], "b": {}}}])
@example(freeze({"b": [1.0, {"y": 1e21, "x": -0.0}], "a": 2**64}))
def test_the_fast_canonical_form_is_the_slow_one(value: Any) -> None:
    """Whichever way a value takes, the bytes are those of the rule."""
    assert reference(value).encode() == canonical(value)


@given(JSON)
def test_the_canonical_form_is_the_same_value(value: Any) -> None:
    """As ECMAScript sees it, where every number is a double; doing it again changes nothing."""
    ours, theirs = (json.loads(data, parse_int=float) for data in (canonical(value), encode(value)))

    assert theirs == ours
    assert canonical(value) == canonical(decode(canonical(value)))
    assert canonical(value) == canonical(freeze(value))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_canonical_number_is_the_same_number(number: float) -> None:
    """Shortest digits, all of them."""
    assert number == float(canonical(number))


def test_text_that_is_not_unicode_has_no_canonical_form() -> None:
    """Refused with its path, on either way."""
    for value in ({"a": ["\ud800"]}, {"a": ["\ud800", 1.5]}):
        with pytest.raises(NotStorable, match=r"at \$\.a\[0\], "):
            canonical(value)


HASH_SEED_SCRIPT = """
import dataclasses, sys
import pydantic
from holdfast.core.values import canonical, encode, lower

@dataclasses.dataclass
class D:
    names: set[str]
    pairs: frozenset[tuple[str, int]]

class Leaf(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True)
    names: frozenset[str]

class M(pydantic.BaseModel):
    leaves: set[Leaf]
    by_key: dict[str, list[set[str]]]

words = [f"word {i}" for i in range(50)]
d = D(set(words), frozenset((w, i) for i, w in enumerate(words)))
m = M(leaves={Leaf(names=frozenset(words[i:])) for i in range(40)}, by_key={"k": [set(words)]})
value = {"d": d, "m": m, **{w: i for i, w in enumerate(words)}}
sys.stdout.buffer.write(encode(value, typed=True) + canonical(lower(value, typed=True)))
"""


def test_bytes_do_not_depend_on_the_hash_seed() -> None:
    """Sets have another order in every process; what is stored and digested has not."""
    outputs = {
        subprocess.run(
            [sys.executable, "-c", HASH_SEED_SCRIPT],
            env={
                **os.environ,
                "PYTHONHASHSEED": str(seed),
                "PYTHONPATH": os.pathsep.join(sys.path),
            },
            check=True,
            capture_output=True,
        ).stdout
        for seed in (0, 1, 2)
    }

    assert 1 == len(outputs)
    assert len(outputs.pop()) > 10_000


# -- frozen values -----------------------------------------------------------------------------

DICT_CHANGES: list[Callable[[Any], Any]] = [
    lambda d: d.__setitem__("a", 2),
    lambda d: d.__delitem__("a"),
    lambda d: d.__ior__({"b": 1}),
    lambda d: d.update(a=2),
    lambda d: d.setdefault("b", 1),
    lambda d: d.pop("a"),
    lambda d: d.popitem(),
    lambda d: d.clear(),
]
LIST_CHANGES: list[Callable[[Any], Any]] = [
    lambda x: x.__setitem__(0, 2),
    lambda x: x.__setitem__(slice(0, 1), []),
    lambda x: x.__delitem__(0),
    lambda x: x.__iadd__([1]),
    lambda x: x.__imul__(2),
    lambda x: x.append(1),
    lambda x: x.extend([1]),
    lambda x: x.insert(0, 1),
    lambda x: x.remove(1),
    lambda x: x.pop(),
    lambda x: x.clear(),
    lambda x: x.sort(),
    lambda x: x.reverse(),
]


@pytest.mark.parametrize("change", DICT_CHANGES)
def test_a_frozen_dict_cannot_be_changed(change: Callable[[Any], Any]) -> None:
    """The error says how a change is made, so that it is recorded."""
    frozen = freeze({"a": 1})
    with pytest.raises(TypeError, match="so that the change is recorded"):
        change(frozen)

    assert {"a": 1} == frozen


@pytest.mark.parametrize("change", LIST_CHANGES)
def test_a_frozen_list_cannot_be_changed(change: Callable[[Any], Any]) -> None:
    """The same for lists."""
    frozen = freeze([1])
    with pytest.raises(TypeError, match="so that the change is recorded"):
        change(frozen)

    assert [1] == frozen


def test_every_method_that_changes_a_container_is_refused() -> None:
    """The lists above are complete: what is not refused leaves the value as it was."""
    harmless_dict = {"copy", "fromkeys", "get", "items", "keys", "values"}
    harmless_list = {"copy", "count", "index"}

    def own(kind: type, base: type) -> set[str]:
        return {
            name
            for name in dir(base)
            if not name.startswith("__") and getattr(kind, name) is not kind.__dict__.get("_refuse")
        }

    assert harmless_dict == own(FrozenDict, dict)
    assert harmless_list == own(FrozenList, list)


@given(JSON)
def test_freezing_is_deep_and_thawing_reverses_it(value: Any) -> None:
    """A frozen value is equal to the plain one and is stored as the same bytes."""
    frozen = freeze(value)

    def kinds(part: Any) -> set[type]:
        inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
        return {type(part)}.union(*map(kinds, inner))

    assert value == frozen
    assert encode(value) == encode(frozen)
    assert not {dict, list} & kinds(frozen)
    assert not {FrozenDict, FrozenList} & kinds(thaw(frozen))
    assert value == thaw(frozen)


@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x)), lambda x: x.copy()],
)
def test_a_copy_of_a_frozen_value_is_an_ordinary_one(copied: Callable[[Any], Any]) -> None:
    """Users copy what they want to change."""
    for value in ({"a": [1]}, [{"a": 1}]):
        ours = copied(freeze(value))
        assert (value, type(value)) == (ours, type(ours))
    deep = copy.deepcopy(freeze({"a": [1]}))
    deep["a"].append(2)

    assert {"a": [1, 2]} == deep


# -- reading is inert --------------------------------------------------------------------------

HOSTILE_BYTES = [
    json.dumps(value).encode()
    for value in (
        {"py/object": "os.system", "py/reduce": [{"py/type": "os.system"}, ["true"]]},
        {"py/object/apply:os.system": ["true"]},
        {"lc": 1, "type": "constructor", "id": ["os", "system"], "kwargs": {"command": "true"}},
        {"lc": 2, "type": "constructor", "id": ["subprocess", "Popen"], "method": "parse_raw"},
        {"lc": 1, "type": "secret", "id": ["PATH"]},
        {"__class__": "subprocess.Popen", "__module__": "subprocess", "args": ["true"]},
        {"$type": "System.Diagnostics.Process", "@type": "builtins.eval", "!python/object": "os"},
        {"__reduce__": ["os.system", ["true"]], "__builtins__": "exec('1')"},
        base64.b64encode(pickle.dumps(print)).decode(),
        {"x": base64.b64encode(b"cos\nsystem\n(S'true'\ntR.").decode()},
        "${jndi:ldap://x}",
        "{{''.__class__.__mro__}}",
        "__import__('os').system('true')",
    )
] + [
    b"\x80\x04\x95.",
    b"cos\nsystem\n(S'true'\ntR.",
    b"!!python/object/apply:os.system ['true']",
    b"\xc7\x10\x05" + b"x" * 16,
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b"1" * 100_000,
    b"\xff\xfe",
    b"",
]

INERT_SCRIPT = """
import dataclasses, json, sys
import msgspec, pydantic
from holdfast.core import events, log, values
from holdfast.errors import HoldfastError

class Struct(msgspec.Struct):
    x: str = ""

@dataclasses.dataclass
class Data:
    x: str = ""

class Model(pydantic.BaseModel):
    x: str = ""

codecs = [values.Codec(t) for t in (dict, Struct, Data, Model, bytes, list[Model], dict[str, Data], int)]
hostile = [bytes.fromhex(line) for line in json.load(sys.stdin)]
for codec in codecs:  # everything that a first use may load is loaded
    for data in (b"{}", b"[]", b"1", b'"AA=="'):
        try:
            codec.decode(data)
        except HoldfastError:
            pass

heard = []
sys.addaudithook(lambda name, args: heard.append((name, args)) if loading else None)
loading = True
for data in hostile:
    readers = [values.decode] + [codec.decode for codec in codecs]
    readers += [lambda data, kind=kind: events.from_json(kind, data) for kind in events.ALL]
    readers += [lambda data: events.from_json(data.decode("latin-1"), b"{}")]
    readers += [lambda data: events.from_json("state_changed", b'{"op":"set","key":"k","value":{"json":' + data + b"}}")]
    for read in readers:
        try:
            read(data)
        except (HoldfastError, events.Unreadable):
            pass
loading = False
sys.stdout.write(json.dumps([len(hostile), sorted({name for name, _ in heard})]))
"""


def test_reading_hostile_bytes_runs_nothing() -> None:
    """No import, exec, open or process, whatever a stored value calls itself (audit hook)."""
    done = subprocess.run(
        [sys.executable, "-c", INERT_SCRIPT],
        input=json.dumps([data.hex() for data in HOSTILE_BYTES]),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert "" == done.stderr
    read, heard = json.loads(done.stdout)

    assert len(HOSTILE_BYTES) == read
    assert [] == heard


@given(st.binary())
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """Never another kind of error, for plain and for declared types."""
    for read in (decode, Codec(Shape).decode, Codec(Outer).decode, Codec(Square | Circle).decode):
        try:
            read(data)
        except NotStorable:
            continue


@pytest.mark.parametrize("data", HOSTILE_BYTES, ids=lambda data: ascii(data)[:30])
def test_hostile_bytes_are_read_as_data_or_refused(data: bytes) -> None:
    """A dict that looks like someone's tag is a dict."""
    try:
        value = decode(data)
    except NotStorable:
        return

    assert json.loads(data) == value
    assert value == decode(encode(value))


def test_digests_name_exact_bytes() -> None:
    """128 bits of SHA-256 in hex; one bit more or less is another name."""
    rng = random.Random(1)
    names = {values.digest(rng.randbytes(i)) for i in range(1, 500)}

    assert 499 == len(names)
    assert {32} == {len(name) for name in names}
    assert "e3b0c44298fc1c149afbf4c8996fb924" == values.digest(b"")


def test_the_core_uses_pydantic_only_if_it_is_already_imported() -> None:
    """It is not imported for values that have nothing to do with it."""
    script = (
        "import sys; from holdfast.core.values import Codec; "
        "Codec(dict[str, int]).decode(Codec(dict[str, int]).encode({'a': 1})); "
        "sys.exit('pydantic' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=Path(__file__).parent,
    )

    assert 0 == done.returncode


def test_lowering_gives_builtins_only() -> None:
    """Nothing of the original objects remains in what is encoded."""
    lowered = lower(Shape("s", [Point(1)], by_level={Level.LOW: decimal.Decimal(1)}), typed=True)

    assert {
        "name": "s",
        "corners": [{"x": 1, "y": 0.5}],
        "colour": "red",
        "seen": None,
        "labels": [],
        "by_level": {"1": "1"},
    } == lowered
    assert int is type(lowered["corners"][0]["x"])


BUILT_AT_ONCE = """
import dataclasses, sys, threading
from holdfast.core.values import Codec

sys.setswitchinterval(1e-6)

def build(declared, go):
    go.wait()
    Codec(declared).decode(b'{"text":"x","inner":[{"n":1}]}')

for _ in range(300):
    Inner = dataclasses.make_dataclass("Inner", [("n", int), ("name", str, "")])
    Outer = dataclasses.make_dataclass("Outer", [("text", str), ("inner", tuple[Inner, ...], ())])
    go = threading.Barrier(4)
    threads = [threading.Thread(target=build, args=(Outer, go)) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
"""


def test_threads_that_declare_the_same_type_at_once_do_not_crash_the_interpreter() -> None:
    """Found by the fuzzer: msgspec crashes if two threads examine a class at the same time."""
    done = subprocess.run(
        [sys.executable, "-c", BUILT_AT_ONCE],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
    )

    assert (0, "") == (done.returncode, done.stderr)
