"""Python values as plain JSON values (`lower`), and as canonical bytes (`canonical`, RFC 8785): what is hashed, compared and approved.

What cannot be stored is refused, with the path to it.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import math
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sized
from typing import Any, Final

import msgspec

from holdfast.core.values.declared_types import dataclass_fields, is_pydantic_model
from holdfast.core.values.frozen import FrozenDict, FrozenList
from holdfast.errors import NotStorable

# ── where in a value the problem is, for the messages of `NotStorable` ───────────────────────


def key_step(key: str) -> str:
    """One step of a path: from a dict to the value of a key."""
    return f".{key}" if key.isidentifier() else f"[{key!r}]"


def find_surrogate(value: Any, path: tuple[str, ...] = ()) -> None:
    """Raise NotStorable at the text that is not valid Unicode (only called when one exists)."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise NotStorable(
                f"the text contains a lone surrogate at position {error.start}, which is not valid "
                "Unicode; decode the bytes it came from with errors='replace'",
                path=path,
            ) from None
    elif isinstance(value, dict):
        for key, item in value.items():
            find_surrogate(key, (*path, key_step(key)))
            find_surrogate(item, (*path, key_step(key)))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            find_surrogate(item, (*path, f"[{i}]"))


def message_of(error: BaseException) -> str:
    """What a validation error says, without the value, which may be a secret (pydantic shows it)."""
    if isinstance(error, ValueError) and hasattr(error, "errors"):
        return "; ".join(str(found["msg"]) for found in error.errors())
    return str(error)


def path_of(error: BaseException) -> tuple[str, ...]:
    """Where in the value a validation error is, by what msgspec or pydantic says of it."""
    if found := re.search(r"`\$([^`]+)`$", str(error)):
        return (found[1],)
    if isinstance(error, ValueError) and hasattr(error, "errors"):
        where = error.errors()[0]["loc"]
        return tuple(f"[{step}]" if isinstance(step, int) else key_step(step) for step in where)
    return ()


# ── canonical bytes ──────────────────────────────────────────────────────────────────────────


_encode: Final = msgspec.json.Encoder().encode
_encode_sorted: Final = msgspec.json.Encoder(order="deterministic").encode


def canonical(value: Any) -> bytes:
    """RFC 8785 bytes of a plain JSON value: the same value gives the same bytes everywhere.

    Integers beyond 2**53 are written exactly, where the RFC would round them to a double.
    """
    try:
        if _plain_for_msgspec(value):
            return _encode_sorted(value)
        out: list[str] = []
        _write_canonical(value, out.append)
        return "".join(out).encode()
    except UnicodeEncodeError:
        find_surrogate(value)
        raise


def _plain_for_msgspec(value: Any) -> bool:
    """Whether msgspec's own sorted output is canonical: no floats, and keys that sort alike.

    Its escapes are those of the RFC for every character (a test compares them all).
    """
    if isinstance(value, dict):
        return all(k.isascii() and _plain_for_msgspec(v) for k, v in value.items())
    if isinstance(value, list):
        return all(map(_plain_for_msgspec, value))
    return not isinstance(value, float)


def _write_canonical(value: Any, write: Callable[[str], None]) -> None:
    if isinstance(value, dict):
        write("{")
        # RFC 8785 sorts by UTF-16 code units, which is not Python's order above U+FFFF.
        for i, key in enumerate(sorted(value, key=lambda k: k.encode("utf-16-be"))):
            write("," if i else "")
            write(_encode(key).decode())
            write(":")
            _write_canonical(value[key], write)
        write("}")
    elif isinstance(value, list):
        write("[")
        for i, item in enumerate(value):
            write("," if i else "")
            _write_canonical(item, write)
        write("]")
    elif isinstance(value, float):
        write(_ecmascript_number(value))
    else:
        write(_encode(value).decode())


def _ecmascript_number(value: float) -> str:
    """A double as ECMAScript writes it (shortest digits, exponent only outside 1e-7 … 1e21)."""
    if value == 0:
        return "0"
    digits_text, _, exponent_text = f"{abs(value)!r}".lower().partition("e")
    whole, _, fraction = digits_text.partition(".")
    fraction = "" if fraction == "0" else fraction
    point = len(whole) + int(exponent_text or 0)
    digits = (whole + fraction).lstrip("0")
    point -= len(whole + fraction) - len(digits)
    digits = digits.rstrip("0") or "0"
    sign = "-" if value < 0 else ""
    if len(digits) <= point <= 21:
        return sign + digits + "0" * (point - len(digits))
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    mantissa = digits[0] + (f".{digits[1:]}" if len(digits) > 1 else "")
    return f"{sign}{mantissa}e{'+' if point > 0 else '-'}{abs(point - 1)}"


# ── plain JSON ───────────────────────────────────────────────────────────────────────────────


DEPTH_MAX: Final = 100
REDACTED: Final = "[redacted]"
"""What is recorded in the place of a secret."""
INTEGER_BITS_MAX: Final = 4096


def lower(value: Any, *, typed: bool = False, depth: int = DEPTH_MAX) -> Any:
    """The value as plain JSON builtins, containers at most `depth` levels deep."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return value
    if kind is int:
        if -(2**63) <= value < 2**63 or value.bit_length() <= INTEGER_BITS_MAX:
            return value
        raise NotStorable(f"an integer of {value.bit_length()} bits is too long; store it as text")
    if kind is float:
        if math.isfinite(value):
            return value
        raise NotStorable(
            f"{value} cannot be stored as JSON; use None, or text, for a missing number"
        )
    if kind is dict or kind is FrozenDict:
        return _lower_dict(value, typed, depth)
    if kind is list or kind is tuple or kind is FrozenList:
        return _lower_items(value, typed, depth)
    return _lower_other(value, typed, depth)


def _lower_items(items: Iterable[Any], typed: bool, depth: int) -> list[Any]:
    inner = _one_level_down(depth)
    lowered: list[Any] = []
    for i, item in enumerate(items):
        try:
            lowered.append(lower(item, typed=typed, depth=inner))
        except NotStorable as error:
            raise error.below(f"[{i}]") from None
    return lowered


def _lower_dict(value: Mapping[Any, Any], typed: bool, depth: int) -> dict[str, Any]:
    inner = _one_level_down(depth)
    lowered: dict[str, Any] = {}
    for key, item in value.items():
        name = key if type(key) is str else _lower_key(key, typed)
        if name in lowered:
            raise NotStorable(f"two keys become {name!r} in JSON; use keys that differ as text")
        try:
            lowered[name] = lower(item, typed=typed, depth=inner)
        except NotStorable as error:
            raise error.below(key_step(name)) from None
    return lowered


def _lower_key(key: Any, typed: bool) -> str:
    lowered = lower(key, typed=True) if typed or _is_text(key) else key
    if type(lowered) is str:
        return lowered
    if typed and type(lowered) in (int, float):
        return msgspec.json.encode(lowered).decode()
    raise NotStorable(
        f"the key {key!r} is of type {type(key).__name__}; JSON keys are text. Use str keys, "
        "or declare the type (for example -> dict[int, str]) so that they can be decoded"
    )


def _one_level_down(depth: int) -> int:
    if depth == 0:
        raise NotStorable(f"nested deeper than {DEPTH_MAX} levels; flatten it, or store it as text")
    return depth - 1


def _is_text(value: object) -> bool:
    return isinstance(value, str) and not isinstance(value, enum.Enum)


def _lower_other(value: Any, typed: bool, depth: int) -> Any:
    """Everything that is not exactly a JSON builtin."""
    if not isinstance(value, enum.Enum):
        for base, plain in _PLAIN:
            if isinstance(value, base):  # a subclass: its plain value is stored
                return lower(plain(value), typed=typed, depth=depth)
    if isinstance(value, tuple) and (typed or not hasattr(value, "_fields")):
        return _lower_items(value, typed, depth)
    if not typed:
        raise NotStorable(
            f"{_name(value)} would not be decoded to the same type; declare the type (a return "
            "annotation, or @agent(state=Model)), or convert it to text, numbers, lists and dicts"
        )
    if isinstance(value, enum.Enum):
        return lower(value.value, typed=True, depth=depth)
    if isinstance(value, set | frozenset):
        # Sorted, because a set's own order changes from process to process.
        return sorted(_lower_items(value, True, depth), key=canonical)
    if isinstance(value, Mapping):
        return _lower_dict(value, True, depth)
    if isinstance(value, bytes | bytearray | memoryview):
        from base64 import b64encode  # here, as few values are bytes

        return b64encode(value).decode("ascii")
    if isinstance(value, decimal.Decimal):
        return _lower_decimal(value)
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, datetime.date | datetime.time | datetime.timedelta):
        return _lower_time(value)
    if hasattr(value, "__fspath__"):
        return _lower_path(value)
    return _lower_record(value, depth)


_PLAIN: Final[tuple[tuple[type, Callable[[Any], Any]], ...]] = (
    # The type's own conversion, which a subclass cannot override.
    (str, str.__str__),
    (int, int.__int__),
    (float, float.__float__),
    (dict, dict),
    (list, list),
)


def _lower_decimal(value: decimal.Decimal) -> str:
    if not value.is_finite():
        raise NotStorable(
            f"{value} cannot be stored as JSON; use None, or text, for a missing number"
        )
    return str(value)


def _lower_path(value: Any) -> Any:
    path = value.__fspath__()
    if not isinstance(path, str):
        raise NotStorable(
            f"{_name(value)} is a path of bytes; use pathlib.Path, whose path is text"
        )
    return path


def _lower_time(value: datetime.date | datetime.time | datetime.timedelta) -> str:
    """ISO 8601, as msgspec and pydantic read it. A moment needs its time zone."""
    if isinstance(value, datetime.timedelta):
        return str(
            msgspec.to_builtins(datetime.timedelta(value.days, value.seconds, value.microseconds))
        )
    if isinstance(value, datetime.datetime):
        offset = value.utcoffset()
        if offset is None:
            raise NotStorable(f"{value!r} has no time zone; use datetime.now(timezone.utc)")
        if offset % datetime.timedelta(minutes=1):  # such as local times before time zones existed
            value = value.astimezone(datetime.UTC)
    elif isinstance(value, datetime.time) and value.tzinfo is not None:
        offset = value.utcoffset()
        if offset is None or offset % datetime.timedelta(minutes=1):
            raise NotStorable(
                f"{value!r} has a time zone whose offset depends on the day; use a datetime"
            )
    return value.isoformat().replace("+00:00", "Z")


def _lower_record(value: Any, depth: int) -> Any:
    """Dataclasses, msgspec structs and pydantic models, field by field, so that paths are known."""
    if isinstance(value, msgspec.Struct):
        return _lower_struct(value, depth)
    fields = dataclass_fields(value)
    if fields is not None:
        return _lower_dict(fields, True, depth)
    if is_pydantic_model(type(value)):
        return _lower_model(value, depth)
    raise NotStorable(
        f"{_name(value)} cannot be stored as JSON; return plain values, a dataclass, a msgspec Struct or a "
        "pydantic model"
    )


def _lower_struct(value: msgspec.Struct, depth: int) -> Any:
    config = value.__struct_config__
    tag = {} if config.tag is None else {config.tag_field: config.tag}
    names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
    fields = tag | {wire: getattr(value, name) for wire, name in names}
    if config.array_like:
        return _lower_items(fields.values(), True, depth)
    return _lower_dict({k: v for k, v in fields.items() if v is not msgspec.UNSET}, True, depth)


def _lower_model(value: Any, depth: int) -> Any:
    try:
        dumped = value.model_dump(mode="json", by_alias=True)
    except ValueError as error:
        raise NotStorable(f"pydantic cannot serialise {_name(value)}: {error}") from None
    return lower(_with_sets_sorted(value, dumped), typed=True, depth=depth)


def _with_sets_sorted(value: Any, dumped: Any) -> Any:
    """pydantic's dump of a value. It writes a set in the set's own order; here it has one order."""
    if isinstance(value, set | frozenset | list | tuple) and _are_alike(value, dumped, list):
        items = list(map(_with_sets_sorted, value, dumped))
        return items if isinstance(value, list | tuple) else sorted(items, key=canonical)
    if isinstance(value, Mapping) and _are_alike(value, dumped, dict):
        return dict(
            zip(dumped, map(_with_sets_sorted, value.values(), dumped.values()), strict=True)
        )
    if is_pydantic_model(type(value)):
        fields = type(value).model_fields
        if not isinstance(dumped, dict):
            return _with_sets_sorted(value.root, dumped) if "root" in fields else dumped
        for name, field in fields.items():
            wire = field.serialization_alias or name
            if wire in dumped:
                dumped[wire] = _with_sets_sorted(getattr(value, name), dumped[wire])
    return dumped


def _are_alike(value: Sized, dumped: Any, kind: type[list[Any] | dict[str, Any]]) -> bool:
    """Whether pydantic dumped it item by item (and not as a serializer of the user's likes)."""
    return isinstance(dumped, kind) and len(value) == len(dumped)


def _name(value: object) -> str:
    kind = type(value)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return f"a value of type {module}{kind.__qualname__}"
