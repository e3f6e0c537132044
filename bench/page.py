"""The figures of the docs, from the JSON that benchmarks kept: no one copies numbers by hand.

What stands between the two marks in the page is replaced; everything else in it is written by people.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from bench.harness import Series

DOCS: Final = Path(__file__).parent.parent / "docs"
PAGES: Final = {
    "steps": DOCS / "speed.md",
    "loop": DOCS / "loops.md",
    "decide": DOCS / "people.md",
    "fleet": DOCS / "fleet.md",
    "mcp": DOCS / "mcp.md",
    "web": DOCS / "server.md",
}
BEGIN: Final = "<!-- figures: python -m bench page -->"
END: Final = "<!-- end of figures -->"


def main(results: Path, pages: Mapping[str, Path] = PAGES) -> None:
    """Write what was kept of each benchmark into its page; those that were not run stay as they are."""
    kept = {name: results / f"{name}.json" for name in pages}
    there = [name for name, source in kept.items() if source.exists()]
    if not there:
        sys.exit(
            f"{results} has no figures: run `make bench ARGS=steps` first (or `loop`, `decide`, `fleet`)"
        )
    for name in there:
        table = "\n".join(lines(json.loads(kept[name].read_text("utf-8"))))
        _write(pages[name], table)


def _write(page: Path, table: str) -> None:
    before, begin, rest = page.read_text("utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        sys.exit(f"{page} has no place for figures: put the lines {BEGIN} and {END} into it")
    page.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{after}", "utf-8")
    sys.stdout.write(f"{table}\n\nwritten into {page}\n\n")


def lines(data: dict[str, Any]) -> Iterator[str]:
    """Two tables in Markdown: figures with a ratio, and other figures."""
    rounds = "one round" if data["rounds"] == 1 else f"{data['rounds']} rounds"
    medians = " Medians; ± is half the interquartile range." if data["rows"] else ""
    yield (
        f"Taken on {data['taken']}: {rounds}, Python {data['python']}, {data['machine']}.{medians}"
    )
    yield ""
    if data["rows"]:
        yield "| | Holdfast | compared with | | ratio | goal |"
        yield "|---|---|---|---|---|---|"
    for row in data["rows"]:
        yield f"| {row['what']} | {_rate(row['ours'])} | {row['compared_with']} | {_rate(row['theirs'])} | {_ratio(row)} |"
    if data["rows"]:
        yield ""
    has_goals = any(fact["ok"] is not None for fact in data["facts"])
    yield from ("| | | goal |", "|---|---|---|") if has_goals else ("| | |", "|---|---|")
    for fact in data["facts"]:
        yield f"| {fact['what']} | {fact['value']} |" + f" {_verdict(fact['ok'])} |" * has_goals


def _rate(values: list[float]) -> str:
    return f"{statistics.median(values):,.0f}/s ±{Series('', '', values).spread:.0%}"


def _ratio(row: dict[str, Any]) -> str:
    goal = row["goal"]
    if goal is None:
        return f"{row['ratio']:.2f} | "
    met = row["ratio"] <= goal if row["at_most"] else row["ratio"] >= goal
    return f"{row['ratio']:.2f} | {'≤' if row['at_most'] else '≥'} {goal:g} {_verdict(met)}"


def _verdict(met: bool | None) -> str:
    return "" if met is None else "met" if met else "**missed**"
