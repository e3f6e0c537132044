"""Drawings: the rows and the overview of a timeline, sparklines and the chart of tokens, as SVG.

Only attributes and classes, no `style=`: the content security policy forbids it. Horizontal positions are per cent, so a
row fits any width. Idle time is shortened: a gap in which nothing happens gets a fixed width.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup, escape

from holdfast.views.spans import Span, SpanRow, Spans
from holdfast.words.signs import MARK_SIGNS, SPAN_SIGNS
from holdfast.words.text import clock, span, visible

GAP_SHARE: Final = 0.12
"""Idle time of more than this part of what is left is shortened."""
GAP_LEAST_US: Final = 1_000_000
GAP_PERCENT: Final = 3.0
MAX_GAPS: Final = 12
BINS: Final = 240
ROW_HEIGHT: Final = 24


@dataclass(frozen=True, slots=True)
class Gap:
    """Idle time that is shortened."""

    start: int
    end: int
    x: float = 0.0
    """Where its middle is, in per cent."""

    @property
    def text(self) -> str:
        return span(self.end - self.start)


class Scale:
    """Times to per cent of the width, with gaps shortened."""

    def __init__(self, start: int, end: int, gaps: Sequence[Gap] = ()) -> None:
        self.start, self.end = start, max(end, start + 1)
        inside = [g for g in gaps if g.start >= self.start and g.end <= self.end]
        idle = sum(g.end - g.start for g in inside)
        self._per_us = (100.0 - GAP_PERCENT * len(inside)) / max(1, self.end - self.start - idle)
        self._gaps = inside
        self.gaps = [Gap(g.start, g.end, self.x(g.start) + GAP_PERCENT / 2) for g in inside]

    def x(self, time: int) -> float:
        """Where a time is, in per cent, from 0 to 100."""
        time = min(max(time, self.start), self.end)
        found, at = 0.0, self.start
        for gap in self._gaps:
            if time <= gap.start:
                break
            found += (gap.start - at) * self._per_us
            part = (min(time, gap.end) - gap.start) / (gap.end - gap.start)
            found, at = found + part * GAP_PERCENT, min(time, gap.end)
        return round(min(100.0, found + (time - at) * self._per_us), 3)

    def edges(self, count: int) -> list[float]:
        """The times that divide the width into this many equal parts."""
        found: list[float] = []
        at, x = self.start, 0.0
        for gap in [*self._gaps, Gap(self.end, self.end)]:
            for until, per_us in (
                (gap.start, self._per_us),
                (gap.end, GAP_PERCENT / max(1, gap.end - gap.start)),
            ):
                right = x + (until - at) * per_us
                while len(found) < count - 1 and (edge := 100 * (len(found) + 1) / count) <= right:
                    found.append(at + (edge - x) / per_us)
                at, x = until, right
        return found

    def ticks(self) -> list[tuple[float, str]]:
        """Labels of the axis: times since the start, at places that are far enough apart."""
        busy = self.end - self.start - sum(g.end - g.start for g in self._gaps)
        step = _round_step(busy / 6)
        ends = [g.end for g in self._gaps]
        places = {self.start, *ends}
        for a, b in zip(
            [self.start, *ends], [*(g.start for g in self._gaps), self.end], strict=True
        ):
            first = a - (a - self.start) % step + step
            places.update(range(first, b, step))
        found: list[tuple[float, str]] = []
        for time in sorted(places):
            x = self.x(time)
            if (not found or x - found[-1][0] > 8 or time in ends) and x <= 94:
                if found and x - found[-1][0] <= 8:
                    found.pop()
                text = "0" if time == self.start else "+" + span(time - self.start)
                found.append((x, "" if found and found[-1][1] == text else text))
        return found


def _round_step(rough: float) -> int:
    for unit in (1_000, 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000):
        for factor in (1, 2, 5, 10, 20, 30, 100, 200, 500):
            if unit * factor >= rough:
                return unit * factor
    return max(1, int(rough))


def idle_gaps(spans: Spans, start: int, end: int) -> list[Gap]:
    """Where nothing but waiting happens, for a good part of what is left when longer gaps are shortened."""
    idle: list[tuple[int, int]] = []
    at = start
    for a, b in [*sorted(_busy(spans, end)), (end, end)]:
        if a > at:
            idle.append((at, a))
        at = max(at, b)
    found: list[Gap] = []
    left = end - start
    for a, b in sorted(idle, key=lambda gap: gap[0] - gap[1])[:MAX_GAPS]:
        if b - a < max(GAP_LEAST_US, left * GAP_SHARE):
            break
        left -= b - a
        found.append(Gap(a, b))
    room = left // 60  # what starts or ends a wait stays visible
    shorter = [Gap(g.start + room, g.end - room) for g in found if g.end - g.start > 4 * room]
    return sorted(shorter, key=lambda gap: gap.start)


def _busy(spans: Spans, end: int) -> Iterable[tuple[int, int]]:
    """Times that must not be shortened."""
    for row in spans.rows:
        for part in row.spans:
            if part.is_attempt and part.kind != "lost":
                yield part.start, end if part.end is None else part.end
            else:  # where a wait starts and ends
                yield part.start, part.start
                if part.end is not None:
                    yield part.end, part.end
    for mark in spans.marks:
        yield mark.time, mark.time


# ── rows ─────────────────────────────────────────────────────────────────────────────────────


def row_svg(rows: Sequence[SpanRow], scale: Scale, spans: Spans, now: int) -> Markup:
    """The bars of one row, or of a group of rows."""
    parts = [_lines(spans, scale)]
    parts += [_bar(part, scale, now, row) for row in rows for part in row.spans]
    return _svg("row", ROW_HEIGHT, "".join(parts))


def _svg(kind: str, height: int, inside: str) -> Markup:
    form = '<svg class="{}" width="100%" height="{}" aria-hidden="true">{}</svg>'
    return Markup(form).format(kind, height, Markup(inside))  # noqa: S704  (made below, escaped there)


def _bar(part: Span, scale: Scale, now: int, row: SpanRow) -> str:
    end = now if part.end is None else part.end
    if end < scale.start or part.start > scale.end:
        return ""
    x, right = scale.x(part.start), scale.x(end)
    width = max(right - x, 0.0)
    sign = SPAN_SIGNS.get(part.kind, SPAN_SIGNS["signal"])
    title = f"<title>{escape(_title(part, row, now))}</title>"
    if part.kind == "backoff":
        line = f'<line class="backoff" x1="{x}%" x2="{right}%" y1="12" y2="12"/>'
        return f"<g>{title}{line}</g>"
    if not part.is_attempt and part.kind not in ("doubt", "child"):
        box = f'<rect class="wait" x="{x}%" width="{width}%" y="8" height="8" rx="4"/>'
        glyph = (
            f'<text class="t-wait" x="{x}%" dx="4" y="16">{sign.glyph}</text>' if width > 4 else ""
        )
        return f"<g>{title}{box}{glyph}</g>"
    classes = f"bar {part.kind} s-{sign.tone}" + (" open" if part.end is None else "")
    box = f'<rect class="{classes}" x="{x}%" width="{width}%" y="6" height="12" rx="2"/>'
    tick = f'<rect class="tick s-{sign.tone}" x="{x}%" y="4" width="2" height="16"/>'
    near_end = right > 97
    anchor, shift = ("end", -6) if near_end else ("start", 5)
    glyph = (
        f'<text class="g-{sign.tone}" x="{right}%" dx="{shift}" y="16" text-anchor="{anchor}">{sign.glyph}</text>'
        if part.kind in ("failed", "cut", "lost", "doubt") or part.end is None
        else ""
    )
    return f"<g>{title}{box}{tick}{glyph}</g>"


def _title(part: Span, row: SpanRow, now: int) -> str:
    sign = SPAN_SIGNS.get(part.kind, SPAN_SIGNS["signal"])
    took = span((now if part.end is None else part.end) - part.start)
    number = f" (attempt {part.attempt})" if part.attempt > 1 else ""
    text = f": {visible(part.text)[:200]}" if part.text else ""
    return f"{visible(row.name)}, {sign.word}{number}, {took}{text}"


def _lines(spans: Spans, scale: Scale) -> str:
    """Vertical lines: shortened gaps, where another process resumed, and the deadline."""
    found = [
        f'<rect class="gap" x="{round(gap.x - GAP_PERCENT / 2, 3)}%" width="{GAP_PERCENT}%" y="0" height="100%"/>'
        for gap in scale.gaps
    ]
    for holder in spans.holders[1:]:
        if scale.start <= holder.start <= scale.end:
            x = scale.x(holder.start)
            found.append(f'<line class="resume" x1="{x}%" x2="{x}%" y1="0" y2="100%"/>')
    if spans.deadline_at is not None and scale.start <= spans.deadline_at <= scale.end:
        x = scale.x(spans.deadline_at)
        found.append(f'<line class="deadline" x1="{x}%" x2="{x}%" y1="0" y2="100%"/>')
    return "".join(found)


# ── lanes above the rows ─────────────────────────────────────────────────────────────────────


def axis_svg(scale: Scale) -> Markup:
    """The axis: time since the start, and how long each gap is."""
    parts = [
        f'<rect class="gap" x="{round(gap.x - GAP_PERCENT / 2, 3)}%" width="{GAP_PERCENT}%" y="0" height="100%"/>'
        for gap in scale.gaps
    ]
    for x, text in scale.ticks():
        parts.append(f'<line class="grid" x1="{x}%" x2="{x}%" y1="16" y2="22"/>')
        parts.append(f'<text x="{x}%" dx="{0 if x < 1 else 3}" y="14">{escape(text)}</text>')
    return _svg("axis", 22, "".join(parts))


def holders_svg(spans: Spans, scale: Scale, now: int, live: bool) -> Markup:
    """Who executed the run, and when."""
    parts = [_lines(spans, scale)]
    for number, holder in enumerate(spans.holders):
        end = holder.end if holder.end is not None else (now if live else spans.end)
        if end < scale.start or holder.start > scale.end:
            continue
        x, right = scale.x(holder.start), scale.x(end)
        name = visible(holder.worker) or "the process that started it"
        how = (
            "died"
            if holder.died
            else "until now"
            if holder.end is None and live
            else "released the run"
        )
        title = f"{name}, epoch {holder.epoch}, {span(end - holder.start)}, {how}"
        tone = f"holder-{number % 2}"
        cross = f'<text class="g-bad" x="{right}%" dx="3" y="16">✕</text>' if holder.died else ""
        parts.append(
            f"<g><title>{escape(title)}</title>"
            f'<rect class="holder {tone}" x="{x}%" width="{max(right - x, 0.2)}%" y="7" height="10" rx="2"/>{cross}</g>'
        )
    return _svg("lane", ROW_HEIGHT, "".join(parts))


def marks_svg(spans: Spans, scale: Scale) -> Markup:
    """What happened at one moment: decisions, facts, actions of people."""
    parts = [_lines(spans, scale)]
    last = -2.0
    for mark in spans.marks:
        if not scale.start <= mark.time <= scale.end:
            continue
        sign, x = MARK_SIGNS[mark.kind], scale.x(mark.time)
        shown = sign.glyph if x - last > 0.9 else ""
        last = x if shown else last
        title = f"{sign.word}: {visible(mark.text)[:200]}, {clock(mark.time)}"
        body = (
            f'<text class="g-{sign.tone}" x="{x}%" y="16" text-anchor="{"start" if x < 1 else "end" if x > 99 else "middle"}">{shown}</text>'
            if shown
            else ""
        )
        parts.append(f"<g><title>{escape(title)}</title>{body}</g>")
    return _svg("lane", ROW_HEIGHT, "".join(parts))


# ── overview ─────────────────────────────────────────────────────────────────────────────────

_RANK: Final = ("", "wait", "done", "running", "lost", "failed", "doubt")
_RANKS: Final = {kind: rank for rank, kind in enumerate(_RANK)}


class Strip:
    """The overview of a run: what is worst in each of 240 parts, and how much there is.

    It grows with the run. Rows that are over are counted once, because a long run has many of them, and a page of it is
    drawn several times a second.
    """

    def __init__(self, scale: Scale) -> None:
        self.scale = scale
        self._edges = scale.edges(BINS)
        self._worst, self._many = [0] * BINS, [0] * BINS
        self._seen = 0
        self._open: list[SpanRow] = []

    def parts(self, rows: Sequence[SpanRow], now: int) -> tuple[list[int], list[int]]:
        """The rank of what is worst in each part, and the number of attempts in it."""
        still_open = []
        for row in (*self._open, *rows[self._seen :]):
            if row.is_open:
                still_open.append(row)
            else:
                self._count(row, now, self._worst, self._many)
        self._open, self._seen = still_open, len(rows)
        worst, many = list(self._worst), list(self._many)
        for row in still_open:
            self._count(row, now, worst, many)
        return worst, many

    def _count(self, row: SpanRow, now: int, worst: list[int], many: list[int]) -> None:
        edges = self._edges
        for part in row.spans:
            rank = _RANKS.get(part.kind, 1)
            first = bisect.bisect_right(edges, part.start)
            last = bisect.bisect_right(edges, now if part.end is None else part.end)
            for at in range(first, last + 1):
                worst[at] = max(worst[at], rank)
                if rank > 1:
                    many[at] += 1


def overview_svg(spans: Spans, strip: Strip, now: int, zoom: tuple[int, int] | None) -> Markup:
    """The whole run in one strip."""
    scale = strip.scale
    worst, many = strip.parts(spans.rows, now)
    most = max([*many, 1])
    parts = [
        f'<rect class="bin b-{_RANK[rank]}" x="{first * 100 / BINS:.3f}%" width="{length * 100 / BINS:.3f}%" '
        f'y="{28 - height:.1f}" height="{height}"/>'
        for first, length, rank, height in _alike(worst, many, most)
    ]
    if zoom is not None:
        x, right = scale.x(zoom[0]), scale.x(zoom[1])
        parts.append(
            f'<rect class="brush" x="{x}%" width="{max(right - x, 0.4)}%" y="1" height="28" rx="3"/>'
        )
    form = '<svg class="strip" width="100%" height="30" role="img" aria-label="{}"><title>{}</title>{}</svg>'
    about = f"Overview: {spans.calls} calls in {span(scale.end - scale.start)}"
    return Markup(form).format(about, about, Markup("".join(parts)))  # noqa: S704


def _alike(
    worst: list[int], many: list[int], highest: int
) -> Iterable[tuple[int, int, int, float]]:
    """Neighbouring parts that are drawn alike, as one: first, length, rank, height."""
    heights = [
        4.0 if w == 1 else round(8 + 16 * n / highest, 1) for w, n in zip(worst, many, strict=True)
    ]
    at = 0
    for (rank, height), group in itertools.groupby(zip(worst, heights, strict=True)):
        length = len(list(group))
        if rank:
            yield at, length, rank, height
        at += length


# ── small charts ─────────────────────────────────────────────────────────────────────────────


def spark_svg(counts: Sequence[int], label: str, tone: str) -> Markup:
    """Bars without an axis."""
    most, wide = max([*counts, 1]), 100 / max(1, len(counts))
    bars = "".join(
        f'<rect class="s-{tone}" x="{number * wide:.2f}%" width="{wide * 0.8:.2f}%" '
        f'y="{24 - 22 * x / most:.1f}" height="{22 * x / most:.1f}"/>'
        for number, x in enumerate(counts)
        if x
    )
    form = '<svg class="spark" width="100%" height="24" role="img" aria-label="{}"><title>{}</title>{}<line class="base" x1="0" x2="100%" y1="23.5" y2="23.5"/></svg>'
    return Markup(form).format(label, label, Markup(bars))  # noqa: S704


def steps_svg(points: Sequence[tuple[float, float]], label: str, tone: str) -> Markup:
    """A rising line of (x, y), both from 0 to 1: what had been used, over the run."""
    path, y_before = ["M0 100"], 100.0
    for x, y in points:
        path.append(f"H{x * 1000:.1f}V{100 - y * 96:.2f}")
        y_before = 100 - y * 96
    path.append(f"H1000V{y_before:.2f}")
    line = "".join(path)
    form = (
        '<svg class="steps" width="100%" height="120" viewBox="0 0 1000 101" preserveAspectRatio="none" role="img" '
        'aria-label="{}"><title>{}</title><path class="area s-{}" d="{}V100Z"/><path class="line l-{}" d="{}"/></svg>'
    )
    return Markup(form).format(label, label, tone, line, tone, line)  # noqa: S704
