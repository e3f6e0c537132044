"""Fixtures and habits for all tests: a PostgreSQL where one is asked for, how hard chance tries,
and a short list at the end of what the house rules want someone to look at.

`postgres_dsn` is what most tests want. Nothing here starts before a test asks for it.
"""

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from support.leaks import _leaks_are_found_here  # noqa: F401 - a fixture of every test

# psycopg costs a third of a second to import: only tests that ask for PostgreSQL pay for it.
if TYPE_CHECKING:
    from support.ledger import Ledger
    from support.postgres import Postgres, PostgresServer
    from support.slim import Slim

POSTGRES_FIXTURES = {"postgres_server", "killable_postgres", "postgres_dsn"}
FOREIGN_SERVER = "HOLDFAST_TEST_PG_DSN"
MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 4 << 30

# The same commit gives the same answer, on every machine; searching is what the night is for.
# (And how long it takes to draw an example says something of the machine, nothing of the commit.)
hypothesis.settings.register_profile(
    "default",
    deadline=None,
    max_examples=50,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile(
    "nightly", hypothesis.settings.get_profile("default"), max_examples=2000, derandomize=False
)
hypothesis.settings.load_profile("default")


def keep_bytecode() -> None:
    """Let hundreds of processes not compile the same source again: bytecode is kept as where Holdfast is
    installed, also if the environment says not to, but out of the checkout."""
    cache = Path(tempfile.gettempdir()) / f"holdfast-tests-{os.getuid()}-bytecode"
    cache.mkdir(mode=0o700, exist_ok=True)
    if cache.stat().st_uid != os.getuid():
        return  # someone else's: what lies there is not executed
    temporary = [Path(tempfile.gettempdir()), MEMORY]
    for folder in (*temporary, *(f for one in temporary for f in one.glob("pytest-of-*"))):
        for kept in (cache / folder.relative_to("/")).glob("*"):
            if not (folder / kept.name).exists():  # of a test of long ago
                shutil.rmtree(kept, ignore_errors=True)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(cache)
    sys.dont_write_bytecode = False


def work_in_memory() -> None:
    """Put temporary folders where syncing costs nothing, if there is such a place with room for servers.

    A process that is killed loses nothing there; power cuts are played from traces, on any file system.
    With TMPDIR set, as `make nightly` does, all this happens on a disk."""
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK | os.X_OK):
        return
    found = os.statvfs(MEMORY)
    may_execute = not found.f_flag & os.ST_NOEXEC
    if may_execute and found.f_bavail * found.f_frsize >= MEMORY_BYTES_MIN:
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)


if "PYTEST_XDIST_WORKER" not in os.environ:  # a worker has it from the process that started it
    keep_bytecode()
    work_in_memory()


def pytest_configure() -> None:
    """Tests press Ctrl-C. A process that a shell starts in the background ignores it, and so
    do its children, unless they say otherwise."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def postgres_server() -> "Iterator[Postgres]":
    """This worker's server: our own, or the one that HOLDFAST_TEST_PG_DSN names."""
    from support.postgres import ForeignPostgres, PostgresServer

    if dsn := os.environ.get(FOREIGN_SERVER):
        yield ForeignPostgres(dsn)
        return
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def _own_postgres(request: pytest.FixtureRequest) -> "Iterator[PostgresServer]":
    """A server that may be killed: this worker's, or a second one when that is borrowed."""
    from support.postgres import PostgresServer

    if not os.environ.get(FOREIGN_SERVER):
        yield request.getfixturevalue("postgres_server")
        return
    with PostgresServer() as server:
        yield server


@pytest.fixture
def killable_postgres(_own_postgres: "PostgresServer") -> "Iterator[PostgresServer]":
    """A running server that the test may stop, kill and restart; it runs again afterwards."""
    _own_postgres.start()
    yield _own_postgres
    _own_postgres.start()


@pytest.fixture
def postgres_dsn(postgres_server: "Postgres") -> Iterator[str]:
    """The URL of an empty database that only this test knows."""
    name = postgres_server.create_database()
    yield postgres_server.dsn(name)
    postgres_server.drop_database(name)


@pytest.fixture(scope="session")
def slim() -> "Iterator[Slim]":
    """A process in which forking is cheap; one for all tests of this worker."""
    from support.slim import Slim

    process = Slim()
    yield process
    process.close()


@pytest.fixture(scope="module")
def ledger() -> "Iterator[Ledger]":
    """A process outside that remembers every effect; the scenarios' tools write to it."""
    from support import scenarios
    from support.ledger import Ledger

    server = Ledger().start()
    scenarios.use(server)
    yield server
    server.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs PostgreSQL, so that `-m "not postgres"` works without anyone's care."""
    for item in items:
        if POSTGRES_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.postgres)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what tests counted and found. It comes as properties, as only those cross xdist."""
    told = [
        (name, value)
        for report in terminalreporter.getreports("passed")
        for name, value in report.user_properties
    ]
    findings = [value for name, value in told if name == "worth a look"]
    if findings:
        terminalreporter.section("worth a look (figures, not faults)")
        for finding in findings:
            terminalreporter.line(str(finding))
    schedules = sum(int(str(value)) for name, value in told if name == "kill schedules")
    if schedules:
        terminalreporter.line(f"{schedules:,} kill schedules without a violation")
