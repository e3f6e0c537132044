"""The table of types in docs/functions.md is what is stored, row by row."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import pathlib
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Literal, NamedTuple, NewType, TypedDict, TypeVar

import msgspec
import pydantic
import pytest

from holdfast import InvalidInput, Run, RunFailed, agent, step
from holdfast.agents.schemas import tool_use
from support.pages import ROOT

T = TypeVar("T")


class Color(enum.Enum):
    RED = "red"


class Number(enum.IntEnum):
    ONE = 1


class Bits(enum.Flag):
    A = 1
    B = 2


class Pair(NamedTuple):
    a: int
    b: str


class Item(TypedDict):
    item: int


@dataclasses.dataclass
class Box(Generic[T]):
    item: T


class Crate(msgspec.Struct, Generic[T]):
    item: T


@dataclasses.dataclass
class Plain:
    item: int


class Struct(msgspec.Struct):
    item: int


class Model(pydantic.BaseModel):
    item: int


UserId = NewType("UserId", int)

EXAMPLES: dict[str, list[tuple[Any, Any, str]]] = {
    "`None`, `bool`, `int`, `str`": [
        (None, None, "null"),
        (bool, True, "true"),
        (int, 12345678901234567890, "12345678901234567890"),
        (str, "a", '"a"'),
    ],
    "`float`": [(float, 1.5, "1.5")],
    "`list[int]`, `dict[str, int]`, `Sequence[int]`, `Mapping[str, int]`": [
        (list[int], [1], "[1]"),
        (dict[str, int], {"a": 1}, '{"a":1}'),
        (Sequence[int], [1], "[1]"),
        (Mapping[str, int], {"a": 1}, '{"a":1}'),
    ],
    "`dict[int, str]`": [(dict[int, str], {1: "a"}, '{"1":"a"}')],
    "`tuple[int, str]`, `tuple[int, ...]`, `NamedTuple`": [
        (tuple[int, str], (1, "a"), '[1,"a"]'),
        (tuple[int, ...], (1, 2), "[1,2]"),
        (Pair, Pair(1, "a"), '[1,"a"]'),
    ],
    "`set[int]`, `frozenset[str]`": [
        (set[int], {3, 1}, "[1,3]"),
        (frozenset[str], frozenset("ba"), '["a","b"]'),
    ],
    '`Literal["a", "b"]`, `int \\| None`': [
        (Literal["a", "b"], "a", '"a"'),
        (int | None, None, "null"),
    ],
    '`NewType("UserId", int)`': [(UserId, UserId(5), "5")],
    "`Enum`, `IntEnum`, `Flag`": [
        (Color, Color.RED, '"red"'),
        (Number, Number.ONE, "1"),
        (Bits, Bits.A | Bits.B, "3"),
    ],
    "`Decimal`": [(decimal.Decimal, decimal.Decimal("1.50"), '"1.50"')],
    "`datetime`": [
        (dt.datetime, dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC), '"2026-01-02T03:04:05Z"')
    ],
    "`date`, `time`": [
        (dt.date, dt.date(2026, 1, 2), '"2026-01-02"'),
        (dt.time, dt.time(3, 4, 5), '"03:04:05"'),
    ],
    "`timedelta`": [(dt.timedelta, dt.timedelta(seconds=90), '"PT90S"')],
    "`UUID`": [(uuid.UUID, uuid.UUID(int=5), '"00000000-0000-0000-0000-000000000005"')],
    "`bytes`, `bytearray`": [
        (bytes, b"\x00\xff", '"AP8="'),
        (bytearray, bytearray(b"\x00\xff"), '"AP8="'),
    ],
    "`pathlib.Path`": [
        (pathlib.Path, pathlib.Path("/tmp/a.txt"), '"/tmp/a.txt"'),
        (pathlib.PurePosixPath, pathlib.PurePosixPath("a"), '"a"'),
    ],
    "`TypedDict`, dataclasses, `msgspec.Struct`, pydantic models": [
        (Item, {"item": 1}, '{"item":1}'),
        (Plain, Plain(1), '{"item":1}'),
        (Struct, Struct(1), '{"item":1}'),
        (Model, Model(item=1), '{"item":1}'),
    ],
    "`Box[int]` (a generic dataclass or struct)": [
        (Box[int], Box(1), '{"item":1}'),
        (Crate[int], Crate(1), '{"item":1}'),
    ],
}
ARGUMENTS_ONLY = {
    "`SecretStr`": [(pydantic.SecretStr, pydantic.SecretStr("x"), '"[redacted]"')],
}


def rows() -> dict[str, str]:
    """The rows of the table: the declared type, and the example."""
    page = (ROOT / "docs" / "functions.md").read_text("utf-8")
    table = page.partition("| declared type |")[2].partition("\n\n")[0].splitlines()[2:]
    cells = [re.split(r" (?<!\\)\| ", row.strip("| ")) for row in table]
    return {cell[0]: cell[2].strip("`") for cell in cells}


def test_every_row_of_the_table_has_its_examples() -> None:
    known = EXAMPLES | ARGUMENTS_ONLY
    assert list(rows()) == list(known)
    for declared, shown in rows().items():
        assert shown in [stored for _, _, stored in known[declared]], declared


def returning(kind: Any) -> Any:
    def same(value: Any) -> Any:
        return value

    same.__annotations__ = {"value": kind, "return": kind}
    return step(same)


@pytest.mark.parametrize(
    ("kind", "value", "stored"), [x for found in EXAMPLES.values() for x in found], ids=lambda _: ""
)
def test_a_value_is_stored_as_the_table_shows_and_is_read_back_equal(
    kind: Any, value: Any, stored: str, home: Any
) -> None:
    same = returning(kind)
    seen: list[Any] = []

    @agent
    def main(run: Run) -> None:
        seen.append(same(value))

    hf = home.open(main)
    hf.run(main, id="r")
    hf.replay("r")
    [made] = hf.get("r").calls

    assert (stored, f'{{"value":{stored}}}') == (
        bytes(made.result.json).decode(),
        bytes(made.args.json).decode(),
    )
    assert [(value, type(value))] * 2 == [(x, type(x)) for x in seen]


@pytest.mark.parametrize(("kind", "value", "stored"), ARGUMENTS_ONLY["`SecretStr`"])
def test_a_secret_is_stored_as_nothing_that_could_be_read(
    kind: Any, value: Any, stored: str, home: Any
) -> None:
    @step
    def use(secret: pydantic.SecretStr) -> int:
        return len(secret.get_secret_value())

    @agent
    def main(run: Run) -> int:
        return use(value)

    hf = home.open(main)
    assert 1 == hf.run(main, id="r")
    assert f'{{"secret":{stored}}}' == bytes(hf.get("r").calls[0].args.json).decode()


@pytest.mark.parametrize(
    "value",
    [
        1 + 2j,
        range(3),
        collections.deque([1]),
        dt.datetime(2026, 1, 2),  # noqa: DTZ001 (this is the point)
        float("nan"),
        object(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_anything_else_is_refused_before_anything_happens(value: Any, home: Any) -> None:
    called: list[Any] = []

    @step
    def use(value: Any) -> None:
        called.append(value)

    @agent
    def main(run: Run) -> None:
        use(value)

    with pytest.raises(RunFailed, match=r"NotStorable: the arguments of use .* at \$\.value"):
        home.open(main).run(main, id="r")
    assert [] == called


def test_a_path_is_a_string_in_the_schema_for_the_model() -> None:
    use = tool_use(returning(pathlib.Path))
    assert {"type": "string", "format": "path"} == use.schema.parameters["properties"]["value"]
    assert {"value": pathlib.Path("a/b")} == use.read('{"value": "a/b"}')


def test_a_path_as_input_is_a_path(home: Any) -> None:
    @agent
    def main(run: Run, folder: pathlib.Path) -> str:
        return folder.name

    hf = home.open(main)
    assert "b" == hf.run(main, id="r", folder="a/b")
    assert "b" == hf.run(main, id="r2", folder=pathlib.Path("a/b"))
    with pytest.raises(InvalidInput, match=r"\$\.folder"):
        hf.run(main, id="r3", folder=5)
