"""`python -m bench [name …]`: run benchmarks, print tables, keep the figures in bench/results."""

from __future__ import annotations

import argparse
import importlib

NAMES = ("append", "cli", "steps", "loop", "fleet")


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument(
        "names", nargs="*", default=list(NAMES), help=f"which of {', '.join(NAMES)}"
    )
    parser.add_argument("--rounds", type=int, default=5, help="how often each figure is taken")
    parser.add_argument("--quick", action="store_true", help="less work: to see that it runs")
    options = parser.parse_args()
    for name in options.names:
        if name not in NAMES:
            parser.error(f"there is no benchmark {name!r}; there are {', '.join(NAMES)}")
        importlib.import_module(f"bench.{name}").main(rounds=options.rounds, quick=options.quick)


if __name__ == "__main__":
    main()
