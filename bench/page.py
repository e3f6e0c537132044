"""The figures of docs/speed.md and docs/fleet.md, from the JSON that benchmarks kept: nobody copies numbers by hand.

What stands between the two marks in the page is replaced; everything else in it is written by people.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bench.harness import Series

DOCS: Final = Path(__file__).parent.parent / "docs"
PAGES: Final = {"steps": DOCS / "speed.md", "fleet": DOCS / "fleet.md"}
BEGIN: Final = "<!-- figures: python -m bench page -->"
END: Final = "<!-- end of figures -->"


def main(results: Path) -> None:
    """Write what was kept of each benchmark into its page."""
    kept = {name: results / f"{name}.json" for name in PAGES}
    there = {name: file for name, file in kept.items() if file.exists()}
    if not there:
        names = " and ".join(map(str, kept.values()))
        sys.exit(f"neither {names} is there: run `make bench ARGS=steps` or `ARGS=fleet` first")
    for name, file in there.items():
        write(file, PAGES[name])


def write(source: Path, page: Path) -> None:
    """Put the figures of a result file between the marks of a page."""
    table = "\n".join(lines(json.loads(source.read_text("utf-8"))))
    before, begin, rest = page.read_text("utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        sys.exit(f"{page} has no place for figures: put the lines {BEGIN} and {END} into it")
    page.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{after}", "utf-8")
    sys.stdout.write(f"{table}\n\nwritten into {page}\n\n")


def lines(data: dict[str, Any]) -> Iterator[str]:
    """Two tables in Markdown: what has a ratio, and what is said in words."""
    rounds = "one round" if data["rounds"] == 1 else f"{data['rounds']} rounds"
    yield (
        f"Taken on {data['taken']}: {rounds}, Python {data['python']}, "
        f"{data['machine']}. Medians; ± is half the middle half."
    )
    if data["rows"]:
        yield from ("", "| | Holdfast | beside | | ratio | goal |", "|---|---|---|---|---|---|")
    for row in data["rows"]:
        yield f"| {row['what']} | {_rate(row['ours'])} | {row['beside']} | {_rate(row['theirs'])} | {_ratio(row)} |"
    has_goals = any(fact["ok"] is not None for fact in data["facts"])
    yield from ("", "| | | goal |", "|---|---|---|") if has_goals else ("", "| | |", "|---|---|")
    for fact in data["facts"]:
        yield f"| {fact['what']} | {fact['value']} |" + f" {_said(fact['ok'])} |" * has_goals


def _rate(values: list[float]) -> str:
    return f"{statistics.median(values):,.0f}/s ±{Series('', '', values).spread:.0%}"


def _ratio(row: dict[str, Any]) -> str:
    goal = row["goal"]
    if goal is None:
        return f"{row['ratio']:.2f} | "
    met = row["ratio"] <= goal if row["at_most"] else row["ratio"] >= goal
    return f"{row['ratio']:.2f} | {'≤' if row['at_most'] else '≥'} {goal:g} {_said(met)}"


def _said(met: bool | None) -> str:
    return "" if met is None else "met" if met else "**missed**"
