"""The process that `holdfast test --crash-everywhere` forks lives from; not for people."""

from __future__ import annotations

import sys

from holdfast.cli.test import found
from holdfast.testing.fork_server import serve
from holdfast.testing.spec import play_of


def main() -> None:
    """`python -m holdfast.cli.fork_server FD TARGET mock|real NAME=VALUE…`."""
    fd, target, mocked, *params = sys.argv[1:]
    file = found(target, mocked == "mock", params)
    plays = [play_of(scenario, file.cast) for scenario in file.scenarios]
    serve(int(fd), plays.__getitem__)


if __name__ == "__main__":
    main()
