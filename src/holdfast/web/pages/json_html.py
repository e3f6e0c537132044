"""A JSON value as HTML: nested `<details>` that open and close without a script.

Two levels are open. What is long is cut, with its size; the whole is a download away. Everything is escaped here.
"""

from __future__ import annotations

import re
from typing import Any, Final

from markupsafe import Markup, escape

from holdfast.core.events import Value, bytes_of
from holdfast.core.state import to_plain
from holdfast.words.text import count, pretty, visible

OPEN_LEVELS: Final = 2
FLAT_ITEMS: Final = 50
"""A value with no more parts than this is not a tree that closes, only its parts are."""
MAX_DEPTH: Final = 40
MAX_ITEMS: Final = 500
MAX_TEXT: Final = 4000
LONG_TEXT: Final = 120
INLINE_BYTES: Final = 256 * 1024
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]{200,}={0,2}")


def json_html(value: Any, open_levels: int = OPEN_LEVELS) -> Markup:
    """The value as a tree. A `Value` whose bytes are too many is described, not shown."""
    if isinstance(value, Value):
        if value.blob:
            return Markup('<span class="j-note">{}, stored as {}…</span>').format(
                count(value.bytes, "byte"), value.blob[:12]
            )
        if len(bytes_of(value.json)) > INLINE_BYTES:
            head = bytes_of(value.json)[:MAX_TEXT].decode("utf-8", "replace")
            note = count(len(bytes_of(value.json)), "byte")
            return Markup('<p class="j-note">{}; the first 4 KB:</p><pre>{}</pre>').format(
                note, visible(head, lines=True)
            )
    return Markup('<div class="json" hx-ignore>{}</div>').format(
        _node(to_plain(value), open_levels)
    )


EXACT_LEVELS: Final = 9


def exact_html(value: Any) -> Markup:
    """The value with nothing hidden, for decisions: as a tree if that shows all of it, else as JSON text."""
    plain = to_plain(value)
    if _is_short(plain):
        return json_html(plain, EXACT_LEVELS)
    return Markup('<pre class="whole" tabindex="0">{}</pre>').format(pretty(plain))


def _is_short(value: Any, levels: int = EXACT_LEVELS) -> bool:
    """Whether `json_html` shows all of it, open."""
    if isinstance(value, str):
        return len(value) <= MAX_TEXT and not _BASE64.fullmatch(value)
    if not isinstance(value, dict | list):
        return True
    inside = value.values() if isinstance(value, dict) else value
    return levels > 0 and len(value) <= MAX_ITEMS and all(_is_short(x, levels - 1) for x in inside)


def _node(value: Any, levels: int, depth: int = 0) -> Markup:
    if isinstance(value, dict):
        return _branch([(str(k), v) for k, v in value.items()], "{", "}", levels, depth)
    if isinstance(value, list | tuple):
        return _branch([(None, v) for v in value], "[", "]", levels, depth)
    return _leaf(value)


def _branch(
    items: list[tuple[str | None, Any]], start: str, end: str, levels: int, depth: int
) -> Markup:
    if depth == 0 and 0 < len(items) <= FLAT_ITEMS:
        return Markup("<ul>{}</ul>").format(_rows(items, levels, depth))
    if not items:
        return Markup('<span class="j-empty">{}</span>').format(start + end)
    if depth >= MAX_DEPTH:
        return Markup('<span class="j-note">{} deeper</span>').format(count(len(items), "value"))
    is_open = Markup(" open") if levels > 0 else ""
    what = count(len(items), "key" if start == "{" else "item")
    form = '<details{}><summary><span class="j-sum">{}</span></summary><ul>{}</ul></details>'
    return Markup(form).format(  # noqa: S704  (a constant)
        is_open, f"{start} {what} {end}", _rows(items, levels, depth)
    )


def _rows(items: list[tuple[str | None, Any]], levels: int, depth: int) -> Markup:
    rows = Markup("").join(
        Markup("<li>{}{}</li>").format(_key(key, number), _node(value, levels - 1, depth + 1))
        for number, (key, value) in enumerate(items[:MAX_ITEMS])
    )
    if len(items) > MAX_ITEMS:
        rows += Markup('<li class="j-note">{} more</li>').format(f"{len(items) - MAX_ITEMS:,}")
    return rows


def _key(key: str | None, number: int) -> Markup:
    if key is None:
        return Markup('<span class="j-index">{}</span> ').format(number)
    return Markup('<span class="j-key">{}</span> ').format(visible(key))


def _leaf(value: Any) -> Markup:
    if isinstance(value, str):
        return _text(value)
    kind = "null" if value is None else "bool" if isinstance(value, bool) else "number"
    word = (
        {None: "null", True: "true", False: "false"}.get(value, value)
        if kind != "number"
        else value
    )
    return Markup('<span class="j-{}">{}</span>').format(kind, word)


def _text(text: str) -> Markup:
    if text == "[redacted]":
        return Markup(
            '<span class="j-redacted" title="redacted before it was stored">redacted</span>'
        )
    if _BASE64.fullmatch(text):
        return Markup('<span class="j-note">base64, {}</span>').format(
            count(len(text) * 3 // 4, "byte")
        )
    shown = visible(text[:MAX_TEXT], lines=True)
    more = (
        Markup(' <span class="j-note">… {} more characters</span>').format(
            f"{len(text) - MAX_TEXT:,}"
        )
        if len(text) > MAX_TEXT
        else ""
    )
    if "\n" in text or len(text) > LONG_TEXT:
        return Markup('<span class="j-text">{}</span>{}').format(shown, more)
    return Markup('<span class="j-string">{}{}{}</span>{}').format(
        Markup('<span class="j-quote">"</span>'),
        escape(shown),
        Markup('<span class="j-quote">"</span>'),
        more,
    )
