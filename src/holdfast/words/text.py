"""Values and times as text for people.

Data comes from agents, models and the internet: any character in it that could control a terminal or hide text
(control, bidirectional and invisible characters) is printed as a visible escape.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from typing import Any, Final

from holdfast.core.state import to_plain

# Control and format characters (these hold the bidirectional ones), surrogates, line separators,
# private use and unassigned.
_UNSAFE: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_NAMED: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def visible(text: str, *, lines: bool = False) -> str:
    """The text with everything that could fool a reader or a terminal made visible.

    With `lines` its line breaks and tabs stay what they are.
    """
    if text.isascii() and text.isprintable():
        return text
    from unicodedata import category  # here, as most text is plain

    kept = "\n\t" if lines else ""
    return "".join(c if c in kept or category(c) not in _UNSAFE else _escape(c) for c in text)


def indented(text: str) -> str:
    """The text made visible, its further lines set in: data with line breaks cannot pass for ours."""
    return visible(text, lines=True).replace("\n", "\n  ")


def _escape(char: str) -> str:
    code = ord(char)
    if char in _NAMED:
        return _NAMED[char]
    return (
        f"\\x{code:02x}"
        if code < 0x100
        else f"\\u{code:04x}"
        if code < 0x10000
        else f"\\U{code:08x}"
    )


def compact(value: Any, limit: int = 100) -> str:
    """A value as JSON on one line, cut to a readable length."""
    text = visible(json.dumps(to_plain(value), ensure_ascii=False, default=str))
    return cut(text, limit)


def cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def pretty(value: Any) -> str:
    """A value as indented JSON, all of it."""
    text = json.dumps(to_plain(value), ensure_ascii=False, indent=2, default=str)
    return visible(text, lines=True)


def one_line(fields: Mapping[str, Any], limit: int = 100) -> str:
    """`a=1 b="x"`: arguments in a table."""
    return cut(" ".join(f"{visible(k)}={compact(v, 60)}" for k, v in fields.items()), limit)


def count(number: int, what: str) -> str:
    """1 run, 2 runs, 3,000 runs."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def clock(us: int) -> str:
    """A time of the store, in this machine's time zone."""
    try:
        at = datetime.datetime.fromtimestamp(us / 1_000_000, datetime.UTC).astimezone()
    except (OverflowError, ValueError, OSError):  # no calendar goes that far
        return f"{us:,} µs after 1970"
    return at.strftime("%Y-%m-%d %H:%M:%S")


def span(us: int) -> str:
    """A duration: 12 ms, 3.4 s, 5 min, 3 h, 2 days."""
    seconds = us / 1_000_000
    if seconds < 1:
        return f"{us / 1000:.0f} ms"
    for limit, size, unit in ((60, 1, "s"), (3600, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{seconds / 86_400:.0f} days"
