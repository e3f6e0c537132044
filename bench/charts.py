"""A chart of a benchmark's ratios, as one SVG file next to its JSON. No library: bars are rectangles."""

from __future__ import annotations

import json
import math
from html import escape
from pathlib import Path
from typing import Any, Final

ROW: Final = 22
LABELS: Final = 380
WIDTH: Final = 420


def chart(source: Path) -> Path:
    """Draw the rows of a result file: how many times as fast as what is next to it (log scale)."""
    data = json.loads(source.read_text("utf-8"))
    rows = [row for row in data["rows"] if row["ratio"] > 0]
    out = source.with_suffix(".svg")
    out.write_text(_svg(data["benchmark"], rows), "utf-8")
    return out


def _svg(title: str, rows: list[dict[str, Any]]) -> str:
    marks = [x for row in rows for x in (row["ratio"], row["goal"]) if x] or [1.0]
    low, high = min(0.1, *marks), max(10.0, *marks)
    span = math.log10(high / low)

    def at(ratio: float) -> float:
        return LABELS + WIDTH * math.log10(ratio / low) / span

    height = ROW * (len(rows) + 2)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LABELS + WIDTH + 90}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<text x="8" y="15" font-weight="bold">{escape(title)}: times as fast as …</text>',
    ]
    for n, row in enumerate(rows, 1):
        y, label = n * ROW + 4, f"{row['what']}, {row['compared_with']}"
        good = row["goal"] is None or row["ratio"] >= row["goal"]
        start, end = sorted((at(1.0), at(row["ratio"])))
        parts += [
            f'<text x="{LABELS - 8}" y="{y + 12}" text-anchor="end">{escape(label)}</text>',
            f'<rect x="{start:.1f}" y="{y}" width="{max(1.0, end - start):.1f}" height="{ROW - 7}" '
            f'fill="{"#2f7d5d" if good else "#c0562f"}"/>',
            f'<text x="{end + 6:.1f}" y="{y + 12}">{row["ratio"]:.3g}×</text>',
        ]
        if row["goal"] is not None:
            x = at(row["goal"])
            parts.append(f'<path d="M{x:.1f} {y - 2}v{ROW - 3}" stroke="#222" stroke-width="2"/>')
    parts.append(f'<path d="M{at(1.0):.1f} {ROW}V{height - ROW + 4}" stroke="#999"/></svg>')
    return "\n".join(parts)
