"""What the verbs print: tables and colours for people, JSON for programs; ages as people type them.

Values and times as text are `holdfast.words.text`, which every interface shares; its names are here too.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

import click

from holdfast.core.state import to_plain
from holdfast.words.text import (
    clock,
    compact,
    count,
    cut,
    indented,
    one_line,
    pretty,
    span,
    visible,
)

__all__ = [
    "as_json",
    "as_json_line",
    "clock",
    "compact",
    "count",
    "cut",
    "from_json",
    "heading",
    "indented",
    "one_line",
    "pretty",
    "seconds_of",
    "span",
    "status",
    "table",
    "visible",
]

STATUS_COLOURS: Final = {
    "completed": "green",
    "done": "green",
    "ok": "green",
    "running": "cyan",
    "pending": "cyan",
    "retrying": "yellow",
    "waiting": "yellow",
    "paused": "yellow",
    "interrupted": "yellow",
    "in doubt": "magenta",
    "failed": "red",
    "cancelled": "red",
    "quarantined": "red",
    "WEAK": "red",
}


def as_json(value: Any) -> str:
    """For programs. Only ASCII, so that it is harmless on a terminal too."""
    return json.dumps(to_plain(value), ensure_ascii=True, indent=2, default=str)


def as_json_line(value: Any) -> str:
    """The same on one line, for programs that read line by line."""
    return json.dumps(to_plain(value), ensure_ascii=True, default=str)


def from_json(data: bytes) -> Any:
    """Stored JSON as plain values."""
    return json.loads(data)


# ── times ──


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
    """A status in its colour; click removes the colour if the output is not a terminal."""
    return click.style(word, fg=STATUS_COLOURS.get(word))


def heading(text: str) -> None:
    click.echo()
    click.secho(text, bold=True)


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, indent: int = 0) -> None:
    """Rows in columns: by rich on a terminal that has it, else plain and aligned. Cells are made
    visible(); a column called "status" is coloured."""
    cells = [[visible(cell) for cell in row] for row in rows]
    if sys.stdout.isatty() and _has_rich():
        _rich_table(headers, cells, indent)
        return
    columns = [[head, *(row[i] for row in cells)] for i, head in enumerate(headers)]
    widths = [max(map(_width, column)) for column in columns]
    for number, row in enumerate([list(headers), *cells]):
        line = "  ".join(_padded(cell, width) for cell, width in zip(row, widths, strict=True))
        click.echo(
            " " * indent + (click.style(line.rstrip(), dim=True) if not number else line.rstrip())
        )


def _has_rich() -> bool:
    from importlib.util import find_spec  # here, as most output is not a table

    return find_spec("rich") is not None


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
        shown.add_row(
            *(
                Text(cell, style=(STATUS_COLOURS.get(cell) or "") if head == "status" else "")
                for head, cell in zip(headers, row, strict=True)
            )
        )
    Console(color_system=None if os.environ.get("NO_COLOR") else "auto").print(
        Padding(shown, (0, 0, 0, indent))
    )


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width  # here, as most text is ASCII

    return sum(2 if east_asian_width(c) in "WF" else 0 if combining(c) else 1 for c in text)


def _padded(text: str, width: int) -> str:
    return text + " " * (width - _width(text))
