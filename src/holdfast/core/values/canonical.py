"""The canonical bytes of a plain JSON value (RFC 8785): what is hashed, compared and approved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from holdfast.core.values.location import find_surrogate

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
