"""The process that `holdfast test --crash-everywhere` forks lives from; not for people."""

from __future__ import annotations

import sys

from holdfast.cli.test import find_tests
from holdfast.testing.fork_server import serve
from holdfast.testing.spec import setup_of


def main() -> None:
    """`python -m holdfast.cli.fork_server FD TARGET mock|real NAME=VALUE…`."""
    fd, target, mocked, *params = sys.argv[1:]
    file = find_tests(target, mocked == "mock", params)
    plays = [setup_of(scenario, file.context) for scenario in file.scenarios]
    serve(int(fd), plays.__getitem__)


if __name__ == "__main__":
    main()
