"""What may be kept in the log, and its JSON form.

Everything a run records passes through here before anything happens: a value is *lowered* to plain
JSON, or refused with the path to what cannot be kept. What comes back is `decode(encode(x))`, so a
run and its replay see the same value. Nothing is ever imported, constructed or called by a name
found in stored bytes: the type to decode to comes from the code that asks.

This module does not know events, files or sizes of pages; it knows values.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import enum
import functools
import hashlib
import math
import re
import sys
import typing
import uuid
from collections.abc import Callable, Iterable, Mapping, Sized
from threading import Lock
from typing import Any, Final, NoReturn

import msgspec
import msgspec.inspect

from holdfast.errors import NotStorable

DEPTH_MAX: Final = 100
BYTES_MAX: Final = 64 * 1024 * 1024
INTEGER_BITS_MAX: Final = 4096
REDACTED: Final = "[redacted]"
"""What is recorded in the place of a secret."""

_encode: Final = msgspec.json.Encoder().encode
_encode_sorted: Final = msgspec.json.Encoder(order="deterministic").encode
_decode: Final = msgspec.json.Decoder().decode
sha256: Final = hashlib.sha256().copy
"""A fresh SHA-256. (OpenSSL takes longer to look the algorithm up than to hash a short text with it.)"""


class FrozenDict(dict[str, Any]):
    """A dict that was read from a run's state. Change the state through `run.state`, not in place."""

    __slots__ = ()

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError(
            "this dict comes from the run's state and cannot be changed in place; "
            "assign a new value (run.state.key = {**old, 'x': 1}) so that the change is recorded"
        )

    __setitem__ = __delitem__ = __ior__ = _refuse
    update = setdefault = pop = popitem = clear = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)  # a copy is an ordinary dict


class FrozenList(list[Any]):
    """A list that was read from a run's state. Use `run.state.append(key, value)` to grow it."""

    __slots__ = ()

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError(
            "this list comes from the run's state and cannot be changed in place; "
            "use run.state.append(key, value), or assign a new list, so that the change is recorded"
        )

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = extend = insert = remove = pop = clear = sort = reverse = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)  # a copy is an ordinary list


def freeze(value: Any) -> Any:
    """Plain JSON with its lists and dicts made read-only, all the way down."""
    kind = type(value)
    if kind is dict:
        return FrozenDict((k, freeze(v)) for k, v in value.items())
    if kind is list:
        return FrozenList(map(freeze, value))
    return value


def thaw(value: Any) -> Any:
    """An ordinary, changeable copy of a frozen value."""
    if isinstance(value, dict):
        return {k: thaw(v) for k, v in value.items()}
    if isinstance(value, list):
        return [thaw(v) for v in value]
    return value


# ── encoding ─────────────────────────────────────────────────────────────────────────────────


def encode(value: Any, *, typed: bool = False) -> bytes:
    """The JSON bytes of a value, or NotStorable with the path to what cannot be kept.

    `typed` says that the reader will decode to a declared type, so that dates, decimals, dataclasses
    and the like come back as they were (where the declared type says Any, they come back as JSON).
    Without it only plain JSON is accepted (tuples become lists).
    """
    lowered = value if type(value) is str else lower(value, typed=typed)
    try:
        data = _encode(lowered)
    except UnicodeEncodeError:
        _find_surrogate(lowered)
        raise
    if len(data) > BYTES_MAX:
        raise NotStorable(
            f"it takes {len(data):,} bytes and the limit is {BYTES_MAX:,}; "
            "keep it in a file or bucket and store its address"
        )
    return data


def decode(data: bytes | msgspec.Raw) -> Any:
    """Plain JSON values from stored bytes."""
    try:
        return _decode(data)
    except (ValueError, RecursionError) as error:
        raise NotStorable(f"the stored bytes are not JSON: {error}") from None


def encode_struct(value: msgspec.Struct) -> bytes:
    """The bytes of one of our own structs, whose user values are already encoded."""
    try:
        return _encode(value)
    except UnicodeEncodeError as error:
        raise NotStorable(
            f"its text {error.object[:60]!r} contains a lone surrogate, which is not valid Unicode",
            what=type(value).__name__,
        ) from None
    except TypeError as error:  # a caller gave something else where text or a number belongs
        raise NotStorable(str(error), what=type(value).__name__) from None


def encode_parts(value: Any) -> bytes:
    """The bytes of lists and dicts of our own structs, whose user values are plain JSON already."""
    try:
        return _encode(value)
    except UnicodeEncodeError as error:
        raise NotStorable(
            f"its text {error.object[:60]!r} contains a lone surrogate, which is not valid Unicode"
        ) from None


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
            raise error.below(_step(name)) from None
    return lowered


def _lower_key(key: Any, typed: bool) -> str:
    lowered = lower(key, typed=True) if typed or _is_text(key) else key
    if type(lowered) is str:
        return lowered
    if typed and type(lowered) in (int, float):
        return _encode(lowered).decode()
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
            if isinstance(value, base):  # a subclass: its plain value is kept
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
        return base64.b64encode(value).decode("ascii")
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
    # The type's own conversion, whatever a subclass makes of str() or int().
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
        if offset % datetime.timedelta(minutes=1):  # as before there were time zones
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
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
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


def _step(key: str) -> str:
    return f".{key}" if key.isidentifier() else f"[{key!r}]"


def _find_surrogate(value: Any, path: tuple[str, ...] = ()) -> None:
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
            _find_surrogate(key, (*path, _step(key)))
            _find_surrogate(item, (*path, _step(key)))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            _find_surrogate(item, (*path, f"[{i}]"))


# ── canonical form and digests ───────────────────────────────────────────────────────────────


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
        _find_surrogate(value)
        raise


def canonical_flat(fields: dict[str, Any]) -> bytes | None:
    """The same for texts, truth values and ordinary integers under ASCII names; None for others.

    Nearly all arguments are such, and this takes a third of the time: nothing is walked or copied.
    """
    for value in fields.values():
        kind = type(value)
        if kind is int:
            if not -(2**63) <= value < 2**63:
                return None
        elif kind is not str and kind is not bool and value is not None:
            return None
    try:
        return _encode_sorted(fields)
    except UnicodeEncodeError:
        return None


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
            write(_quote(key))
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
    elif isinstance(value, str):
        write(_quote(value))
    else:
        write(_encode(value).decode())


def _quote(text: str) -> str:
    return _encode(text).decode()


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


def digest(data: bytes) -> str:
    """A short name for exact bytes: the first 128 bits of SHA-256, in hex."""
    h = sha256()
    h.update(data)
    return h.hexdigest()[:32]


# ── declared types ───────────────────────────────────────────────────────────────────────────


class Codec:
    """Encodes and decodes values of one declared type (a return annotation, a state model)."""

    __slots__ = ("_decode", "_takes_text", "declared", "typed")

    def __init__(self, declared: Any = Any) -> None:
        self.declared = declared
        self._takes_text = declared is str or declared is Any
        self.typed = not is_plain_json(declared)
        self._decode = _decoder(declared) if self.typed else decode

    def encode(self, value: Any) -> bytes:
        """JSON bytes for `decode`, or NotStorable. Only `decode` tells whether the type is right."""
        return encode(value, typed=self.typed)

    def kept(self, value: Any) -> tuple[bytes, Any]:
        """The bytes of a value, and what they read back as: what code is to see, the first time too."""
        data = encode(value, typed=self.typed)
        if self._takes_text and type(value) is str:  # it cannot read back as anything else
            return data, value
        return data, self.decode(data)

    def decode(self, data: bytes | msgspec.Raw) -> Any:
        """The value as its declared type."""
        try:
            return self._decode(data)
        except NotStorable:
            raise
        except (ValueError, RecursionError, NotImplementedError) as error:  # msgspec's
            raise NotStorable(
                f"it cannot be decoded as the declared type {_type_name(self.declared)}: {_said(error)}",
                path=_path_in(error),
            ) from None


@functools.lru_cache(maxsize=1024)
def _kept_codec(declared: Any) -> Codec:
    return Codec(declared)


def codec_of(declared: Any) -> Codec:
    """The codec of a declared type; the same one each time, where the type can be looked up."""
    try:
        return _kept_codec(declared)
    except TypeError:  # it has no hash
        return Codec(declared)


def is_plain_json(declared: Any) -> bool:
    """Whether plain JSON already is the declared type, so that no conversion is needed."""
    if any(declared is plain for plain in (Any, object, None, type(None), dict, list)):
        return True
    origin, args = typing.get_origin(declared), typing.get_args(declared)
    if origin is list:
        return all(map(is_plain_json, args))
    if origin is dict:
        return not args or (args[0] is str and is_plain_json(args[1]))
    return False


def is_pydantic_model(declared: Any) -> bool:
    """Whether it is a pydantic model class (without importing pydantic)."""
    pydantic = sys.modules.get("pydantic")
    return (
        pydantic is not None
        and isinstance(declared, type)
        and issubclass(declared, pydantic.BaseModel)
    )


def is_path(declared: Any) -> bool:
    """Whether it is one of pathlib's classes (which does I/O, and is not imported here)."""
    return isinstance(declared, type) and any(
        base.__module__.partition(".")[0] == "pathlib" for base in declared.__mro__
    )


_BUILDING: Final = Lock()
"""Held while msgspec examines a type. It keeps what it finds with the class before that is complete, and a decoder that
another thread builds from it then crashes the interpreter (msgspec 0.22)."""


def check_storable(declared: Any) -> None:
    """NotStorable if values of a declared type, or a part of it, can never be read back from JSON."""
    if is_plain_json(declared) or has_pydantic_metadata(declared) or mentions_pydantic(declared):
        return
    try:
        with _BUILDING:
            found = msgspec.inspect.type_info(declared)
    except (TypeError, NotImplementedError, NameError):  # `Codec` reports it
        return
    kind = _foreign(found, [])
    if kind is not None:
        raise NotStorable(
            f"{kind.__qualname__} is not a dataclass, msgspec Struct, pydantic model or JSON type; return "
            "what identifies it (an id, a path, a URL), or the data in it"
        )


def _foreign(info: Any, seen: list[Any]) -> type[Any] | None:
    """The first type in a description of msgspec's that nothing here can read."""
    if isinstance(info, list | tuple):
        return next((kind for x in info if (kind := _foreign(x, seen)) is not None), None)
    if not isinstance(info, msgspec.inspect.Type | msgspec.inspect.Field) or any(
        info is x for x in seen
    ):
        return None
    seen.append(info)
    if isinstance(info, msgspec.inspect.CustomType):
        known = is_pydantic_model(info.cls) or is_path(info.cls)
        return None if known else info.cls
    parts = [
        getattr(info, name)
        for name in info.__struct_fields__
        if name not in ("default", "default_factory")
    ]
    return _foreign(parts, seen)


def _decoder(declared: Any) -> Callable[[bytes | msgspec.Raw], Any]:
    if not has_pydantic_metadata(declared):
        return _msgspec_decoder(declared)
    by_pydantic = _pydantic_decoder(declared)
    if not has_msgspec_metadata(declared):
        return by_pydantic
    by_msgspec = _msgspec_decoder(declared)  # neither knows the other's constraints

    def decode_and_check(data: bytes | msgspec.Raw) -> Any:
        by_msgspec(data)
        return by_pydantic(data)

    return decode_and_check


def _msgspec_decoder(declared: Any) -> Callable[[bytes | msgspec.Raw], Any]:
    try:
        with _BUILDING:
            return msgspec.json.Decoder(declared, dec_hook=_read_foreign).decode
    except (TypeError, NotImplementedError, NameError) as error:  # msgspec, of types it cannot read
        if mentions_pydantic(declared):  # a union of models, which only pydantic can tell apart
            adapter = sys.modules["pydantic"].TypeAdapter(declared)
            return lambda data: adapter.validate_json(bytes(data))
        raise NotStorable(
            f"the declared type {_type_name(declared)} cannot be decoded from JSON ({error}); "
            "declare a simpler type"
        ) from None


def _pydantic_decoder(declared: Any) -> Callable[[bytes | msgspec.Raw], Any]:
    """For constraints that only pydantic knows. Strict: a text is not taken for a number."""
    pydantic = sys.modules.get("pydantic")
    if pydantic is None:
        raise NotStorable(
            f"the declared type {_type_name(declared)} has constraints that pydantic checks, which is not "
            "installed; use msgspec.Meta instead"
        )
    try:
        adapter = pydantic.TypeAdapter(declared)
    except (TypeError, NameError, RuntimeError) as error:  # pydantic, of types it cannot read
        raise NotStorable(
            f"pydantic cannot read the declared type {_type_name(declared)}: {error}"
        ) from None
    strict = None if mentions_pydantic(declared) else True  # a model has its own configuration
    return lambda data: adapter.validate_json(bytes(data), strict=strict)


def _read_foreign(kind: type[Any], data: Any) -> Any:
    """For msgspec: a value of a type that it does not know, from plain JSON."""
    if is_pydantic_model(kind):
        return kind.model_validate_json(_encode(data))
    if is_path(kind):
        if not isinstance(data, str):
            raise ValueError(f"Expected a path as text, got {data!r}")
        return kind(data)
    raise NotImplementedError(  # what msgspec asks its hooks to raise; `Codec.decode` says it in our words
        f"{kind.__qualname__} is not a dataclass, msgspec Struct or pydantic model"
    )


def mentions_pydantic(declared: Any) -> bool:
    """Whether a pydantic model is, or is inside, the declared type."""
    return is_pydantic_model(declared) or any(map(mentions_pydantic, typing.get_args(declared)))


_PYDANTIC: Final = ("pydantic", "pydantic_core", "annotated_types")


def has_pydantic_metadata(declared: Any) -> bool:
    """Whether `Annotated` metadata that pydantic checks is somewhere in the declared type."""
    return any(
        type(found).__module__.partition(".")[0] in _PYDANTIC
        or hasattr(found, "__get_pydantic_core_schema__")
        for found in metadata_in(declared)
    )


def is_constrained(declared: Any) -> bool:
    """Whether the declared type demands more of a value than to be of a type."""
    return has_pydantic_metadata(declared) or has_msgspec_metadata(declared)


def has_msgspec_metadata(declared: Any) -> bool:
    """Whether there is a `msgspec.Meta` somewhere in the declared type."""
    return any(isinstance(found, msgspec.Meta) for found in metadata_in(declared))


def metadata_in(declared: Any, seen: tuple[Any, ...] = ()) -> list[Any]:
    """The `Annotated` metadata in a declared type, also of the fields of records and behind other names.

    Not of pydantic models: they check themselves when they are made.
    """
    if any(declared is known for known in seen):
        return []
    seen = (*seen, declared)
    found = list(getattr(declared, "__metadata__", ())) if _is_annotated(declared) else []
    for part in (*typing.get_args(declared)[: 1 if found else None], *_parts(declared)):
        found += metadata_in(part, seen)
    return found


def _is_annotated(declared: Any) -> bool:
    return typing.get_origin(declared) is typing.Annotated


def _parts(declared: Any) -> list[Any]:
    """What a name stands for (`NewType`, `type X = …`), or the types of a record's fields."""
    for name in ("__supertype__", "__value__"):
        if not isinstance(declared, type) and hasattr(declared, name):
            return [getattr(declared, name)]
    kind = typing.get_origin(declared) or declared
    if not isinstance(kind, type) or not _is_record(kind):
        return []
    try:
        return list(typing.get_type_hints(kind, include_extras=True).values())
    except (NameError, TypeError):  # what cannot be resolved is refused when it is read
        return []


def _is_record(kind: type[Any]) -> bool:
    is_named_tuple = issubclass(kind, tuple) and hasattr(kind, "_fields")
    is_struct = dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct)
    return is_struct or is_named_tuple or typing.is_typeddict(kind)


def _said(error: BaseException) -> str:
    """What a validation error says, without the value, which may be a secret (pydantic shows it)."""
    if isinstance(error, ValueError) and hasattr(error, "errors"):
        return "; ".join(str(found["msg"]) for found in error.errors())
    return str(error)


def _path_in(error: BaseException) -> tuple[str, ...]:
    """Where in the value a validation error is, by what msgspec or pydantic says of it."""
    if found := re.search(r"`\$([^`]+)`$", str(error)):
        return (found[1],)
    if isinstance(error, ValueError) and hasattr(error, "errors"):
        where = error.errors()[0]["loc"]
        return tuple(f"[{step}]" if isinstance(step, int) else _step(step) for step in where)
    return ()


def _type_name(declared: Any) -> str:
    return getattr(declared, "__qualname__", None) or str(declared)
