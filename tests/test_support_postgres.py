"""The tests' own ground: the server really dies and recovers, the network really loses answers."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import psycopg
import pytest

from support.postgres import PostgresServer
from support.proxy import Proxy, says
from support.waiting import eventually


@pytest.fixture
def dsn(postgres_dsn: str) -> str:
    """A fresh database with one empty table."""
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute("CREATE TABLE notes (text text)")
    return postgres_dsn


@pytest.fixture
def proxy(dsn: str) -> Iterator[Proxy]:
    with Proxy(dsn) as proxy:
        yield proxy


def notes(dsn: str) -> list[str]:
    with psycopg.connect(dsn) as connection:
        return [text for (text,) in connection.execute("SELECT text FROM notes ORDER BY text")]


def connect(dsn: str) -> "contextlib.closing[psycopg.Connection]":
    """A connection that is only closed at the end: psycopg's own `with` would commit as well."""
    return contextlib.closing(psycopg.connect(dsn))


def add(connection: psycopg.Connection, text: str) -> None:
    connection.execute("INSERT INTO notes VALUES (%s)", [text])


# -- the server --------------------------------------------------------------------------------


def test_a_fresh_database_is_empty(postgres_dsn: str) -> None:
    """Every test gets a database of its own."""
    with psycopg.connect(postgres_dsn) as connection:
        tables = connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'")

        assert (0,) == tables.fetchone()


def test_it_syncs_its_commits(killable_postgres: PostgresServer) -> None:
    """Speed is not bought with durability: what is tested is what users run."""
    with psycopg.connect(killable_postgres.dsn()) as connection:
        assert ("on",) == connection.execute("SHOW fsync").fetchone()
        assert ("on",) == connection.execute("SHOW synchronous_commit").fetchone()


def test_it_answers_on_tcp_and_on_its_unix_socket(killable_postgres: PostgresServer) -> None:
    """Both ways lead to the same server."""
    starts = set()
    for unix_socket in (False, True):
        with psycopg.connect(killable_postgres.dsn(unix_socket=unix_socket)) as connection:
            starts.add(connection.execute("SELECT pg_postmaster_start_time()").fetchone())

    assert 1 == len(starts)


def test_its_tcp_port_is_closed_to_strangers(killable_postgres: PostgresServer) -> None:
    """Other users of the machine can reach the port, but do not know the password."""
    stranger = f"postgresql://postgres:guess@127.0.0.1:{killable_postgres.port}/postgres"

    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(stranger)


def test_kill_9_keeps_what_was_committed_and_drops_what_was_not(
    killable_postgres: PostgresServer,
) -> None:
    """After kill -9 of every process, recovery brings back exactly the committed row."""
    dsn = killable_postgres.dsn(killable_postgres.create_database())
    with connect(dsn) as connection:
        connection.execute("CREATE TABLE notes (text text)")
        add(connection, "committed")
        connection.commit()
        add(connection, "uncommitted")

        killable_postgres.kill9()

        with pytest.raises(psycopg.OperationalError):
            connection.commit()
    assert not killable_postgres.running
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(dsn)

    killable_postgres.restart()

    assert ["committed"] == notes(dsn)
    assert "automatic recovery in progress" in killable_postgres.log()


def test_kill_9_also_ends_a_backend_in_the_middle_of_a_statement(
    killable_postgres: PostgresServer,
) -> None:
    """A busy backend does not outlive the postmaster, so nothing of it commits later."""
    with connect(killable_postgres.dsn()) as connection:
        connection.pgconn.send_query(b"SELECT pg_sleep(600)")
        connection.pgconn.flush()
        with psycopg.connect(killable_postgres.dsn()) as other:
            busy = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%'"
            other.autocommit = True  # the statistics are fixed within a transaction
            eventually(lambda: other.execute(busy).fetchone() == (1,), "a busy backend")

        killable_postgres.kill9()
        killable_postgres.restart()

    with psycopg.connect(killable_postgres.dsn()) as connection:
        assert (1,) == connection.execute("SELECT 1").fetchone()


def test_shared_memory_is_in_the_servers_own_folder(killable_postgres: PostgresServer) -> None:
    """So that it goes with it: of a server that is killed the system would keep it."""
    killable_postgres.kill9()
    killable_postgres.restart()

    assert list((killable_postgres._data / "pg_dynshmem").iterdir())


def test_a_restart_in_order_keeps_the_address(killable_postgres: PostgresServer) -> None:
    """stop() and start() again: same DSN, no recovery needed."""
    before = killable_postgres.dsn()

    killable_postgres.restart()

    assert before == killable_postgres.dsn()
    psycopg.connect(before).close()


# -- the network -------------------------------------------------------------------------------


def test_a_good_network_changes_nothing(dsn: str, proxy: Proxy) -> None:
    """Without a fault the proxy is not to be noticed, also with messages larger than its reads."""
    with psycopg.connect(proxy.dsn) as connection:
        add(connection, "x" * 1_000_000)

    assert ["x" * 1_000_000] == notes(dsn)


def test_a_swallowed_commit_is_committed_while_the_client_sees_an_error(
    dsn: str, proxy: Proxy
) -> None:
    """The server carries out the COMMIT, its answer is lost, the connection with it."""
    with connect(proxy.dsn) as connection:
        add(connection, "in doubt")
        swallowed = proxy.swallow_answer()

        with pytest.raises(psycopg.OperationalError):
            connection.commit()

    assert swallowed.is_set()
    assert ["in doubt"] == notes(dsn)


def test_a_swallowed_commit_works_in_pipeline_mode(dsn: str, proxy: Proxy) -> None:
    """There a COMMIT is a parsed statement, carried out only with the Sync after it."""
    with connect(proxy.dsn) as connection:
        swallowed = proxy.swallow_answer()

        # PT012 wants one statement, but leaving the pipeline is where answers are read.
        with pytest.raises(psycopg.OperationalError), connection.pipeline():  # noqa: PT012
            add(connection, "in doubt")
            connection.commit()

    assert swallowed.is_set()
    assert ["in doubt"] == notes(dsn)


def test_a_swallowed_commit_works_after_copy(dsn: str, proxy: Proxy) -> None:
    """Rows that are copied in may even contain the word without setting off the trap."""
    with connect(proxy.dsn) as connection:
        swallowed = proxy.swallow_answer()
        with connection.cursor().copy("COPY notes FROM STDIN") as copy:
            copy.write_row(["please COMMIT"])

        with pytest.raises(psycopg.OperationalError):
            connection.commit()

    assert swallowed.is_set()
    assert ["please COMMIT"] == notes(dsn)


def test_only_the_chosen_message_loses_its_answer(dsn: str, proxy: Proxy) -> None:
    """The second insert is lost to the client; the first and other statements are not."""
    proxy.swallow_answer(says("insert into notes"), occurrence=2)
    with contextlib.closing(psycopg.connect(proxy.dsn, autocommit=True)) as connection:
        add(connection, "1 answered")
        connection.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError):
            add(connection, "2 lost")

    assert ["1 answered", "2 lost"] == notes(dsn)


def test_the_network_is_good_again_after_one_swallowed_answer(dsn: str, proxy: Proxy) -> None:
    """A trap catches once: the client's next attempt gets through."""
    proxy.swallow_answer()
    with connect(proxy.dsn) as connection:
        add(connection, "1 in doubt")
        with pytest.raises(psycopg.OperationalError):
            connection.commit()

    with psycopg.connect(proxy.dsn) as connection:
        add(connection, "2 after")

    assert ["1 in doubt", "2 after"] == notes(dsn)


def test_a_cut_rolls_back_what_was_not_committed(dsn: str, proxy: Proxy) -> None:
    """Both sides lose the connection; a new one works at once."""
    with connect(proxy.dsn) as connection:
        add(connection, "lost")
        proxy.cut()

        with pytest.raises(psycopg.OperationalError):
            connection.commit()

    with psycopg.connect(proxy.dsn) as connection:
        add(connection, "kept")
    assert ["kept"] == notes(dsn)


def test_a_refusing_network_accepts_no_connection_until_it_heals(proxy: Proxy) -> None:
    """As after a failover: connections break and new ones fail, then all is well."""
    proxy.refuse()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(proxy.dsn)

    proxy.heal()

    psycopg.connect(proxy.dsn).close()


def test_a_black_hole_is_silent_and_delivers_after_it_heals(dsn: str, proxy: Proxy) -> None:
    """No error and no progress while it lasts; then the client continues as if nothing had been."""
    dark, committed = threading.Event(), threading.Event()

    def write() -> None:
        with psycopg.connect(proxy.dsn) as connection:
            add(connection, "late")
            proxy.black_hole()
            dark.set()
        committed.set()

    writer = threading.Thread(target=write)
    writer.start()
    assert dark.wait(120)
    assert not committed.wait(0.2)
    assert [] == notes(dsn)

    proxy.heal()
    writer.join()

    assert committed.is_set()
    assert ["late"] == notes(dsn)


def test_a_delay_is_paid_in_each_direction(proxy: Proxy) -> None:
    """One question and its answer take at least twice the delay."""
    with contextlib.closing(psycopg.connect(proxy.dsn, autocommit=True)) as connection:
        proxy.delay(0.1)
        connection.pgconn.send_query(b"SELECT 1")
        connection.pgconn.flush()
        watched = socket.socket(fileno=socket.dup(connection.pgconn.socket))
        with watched:
            watched.settimeout(0.15)
            with pytest.raises(TimeoutError):
                watched.recv(1, socket.MSG_PEEK)
            watched.settimeout(30)

            assert watched.recv(1, socket.MSG_PEEK)
