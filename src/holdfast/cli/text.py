"""Values, times and tables as text for people.

Data comes from agents, models and the internet: whatever in it could steer a terminal or hide text
(control, bidirectional and invisible characters) is written as an escape that can be seen.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Final

import click

from holdfast import views

# Control and format characters (these hold the bidirectional ones), surrogates, line separators,
# private use and unassigned.
_UNSAFE: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_NAMED: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}

STATUS_COLOURS: Final = {
    "completed": "green", "done": "green", "ok": "green", "running": "cyan", "pending": "cyan",
    "retrying": "yellow", "waiting": "yellow", "paused": "yellow", "interrupted": "yellow",
    "in doubt": "magenta", "failed": "red", "cancelled": "red", "quarantined": "red", "WEAK": "red",
}  # fmt: skip


def visible(text: str, *, lines: bool = False) -> str:
    """The text with everything that could fool a reader or a terminal made visible.

    With `lines` its line breaks and tabs stay what they are.
    """
    if text.isascii() and text.isprintable():
        return text
    kept = "\n\t" if lines else ""
    return "".join(c if c in kept or not _is_unsafe(c) else _escape(c) for c in text)


def indented(text: str) -> str:
    """The text made visible, its further lines set in: data with line breaks cannot pass for ours."""
    return visible(text, lines=True).replace("\n", "\n  ")


def _is_unsafe(char: str) -> bool:
    return unicodedata.category(char) in _UNSAFE


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
    text = visible(json.dumps(views.to_plain(value), ensure_ascii=False, default=str))
    return cut(text, limit)


def cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def pretty(value: Any) -> str:
    """A value as indented JSON, all of it."""
    text = json.dumps(views.to_plain(value), ensure_ascii=False, indent=2, default=str)
    return visible(text, lines=True)


def one_line(fields: Mapping[str, Any], limit: int = 100) -> str:
    """`a=1 b="x"`: arguments in a table."""
    return cut(" ".join(f"{visible(k)}={compact(v, 60)}" for k, v in fields.items()), limit)


def as_json(value: Any) -> str:
    """For programs. Only ASCII, so that it is harmless on a terminal too."""
    return json.dumps(views.to_plain(value), ensure_ascii=True, indent=2, default=str)


def as_json_line(value: Any) -> str:
    """The same on one line, for programs that read line by line."""
    return json.dumps(views.to_plain(value), ensure_ascii=True, default=str)


def from_json(data: bytes) -> Any:
    """Stored JSON as plain values."""
    return json.loads(data)


def count(number: int, what: str) -> str:
    """1 run, 2 runs, 3,000 runs."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


# ── times ────────────────────────────────────────────────────────────────────────────────────


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


def seconds_of(text: str) -> float:
    """`90`, `30s`, `15m`, `12h`, `30d`, `4w` in seconds; ValueError for anything else."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhdw]?)\s*", text)
    if found is None:
        raise ValueError(f"{text!r} is not an age; write 90, 30s, 15m, 12h, 30d or 4w")
    return (
        float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}[found[2]]
    )


# ── tables ───────────────────────────────────────────────────────────────────────────────────


def status(word: str) -> str:
    """A status in its colour; click takes the colour away where nobody can see it."""
    return click.style(word, fg=STATUS_COLOURS.get(word))


def heading(text: str) -> None:
    click.echo()
    click.secho(text, bold=True)


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, indent: int = 0) -> None:
    """Rows in columns: by rich on a terminal that has it, else plain and aligned. Cells are made
    visible(); a column called "status" is coloured."""
    cells = [[visible(cell) for cell in row] for row in rows]
    if sys.stdout.isatty() and find_spec("rich") is not None:
        _rich_table(headers, cells, indent)
        return
    columns = [[head, *(row[i] for row in cells)] for i, head in enumerate(headers)]
    widths = [max(map(_width, column)) for column in columns]
    for number, row in enumerate([list(headers), *cells]):
        line = "  ".join(_padded(cell, width) for cell, width in zip(row, widths, strict=True))
        click.echo(
            " " * indent + (click.style(line.rstrip(), dim=True) if not number else line.rstrip())
        )


def _rich_table(headers: Sequence[str], rows: list[list[str]], indent: int) -> None:
    from rich import box
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for head in headers:
        shown.add_column(
            Text(head), overflow="fold", no_wrap=head in ("step", "id", "status", "seq")
        )
    for row in rows:
        # Text, never markup: square brackets in data mean nothing.
        shown.add_row(*(
            Text(cell, style=(STATUS_COLOURS.get(cell) or "") if head == "status" else "")
            for head, cell in zip(headers, row, strict=True)
        ))  # fmt: skip
    Console(color_system=None if os.environ.get("NO_COLOR") else "auto").print(
        Padding(shown, (0, 0, 0, indent))
    )


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 0 if unicodedata.combining(c) else 1
               for c in text)  # fmt: skip


def _padded(text: str, width: int) -> str:
    return text + " " * (width - _width(text))
