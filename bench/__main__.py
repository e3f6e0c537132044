"""`python -m bench [name …]`: run benchmarks, print tables, keep the figures in bench/results.

`python -m bench page` runs none: it writes the figures that were kept into the docs.
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from bench import page
from bench.harness import RESULTS

NAMES = ("append", "cli", "steps", "loop", "decide", "long", "fleet", "mcp", "lua", "web")
DATABASES = ("sqlite", "postgres")


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument(
        "names", nargs="*", default=list(NAMES), help=f"which of {', '.join(NAMES)}"
    )
    parser.add_argument("--rounds", type=int, help="how often each figure is taken (5; quick: 1)")
    parser.add_argument(
        "--quick", action="store_true", help="a moment's work: to see that it runs, not to compare"
    )
    parser.add_argument("--database", choices=DATABASES, help="only this one")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where to keep the figures")
    options = parser.parse_args()
    if options.names == ["page"]:
        page.main(options.results)
        return
    rounds = options.rounds or (1 if options.quick else 5)
    databases = (options.database,) if options.database else DATABASES
    for name in options.names:
        if name not in NAMES:
            parser.error(f"unknown benchmark {name!r}; known benchmarks: {', '.join(NAMES)}")
        importlib.import_module(f"bench.{name}").main(
            rounds=rounds, quick=options.quick, databases=databases, results=options.results
        )


if __name__ == "__main__":
    main()
