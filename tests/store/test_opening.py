"""Which store a URL, a path or a connection string names, and what is refused."""

import shlex
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from holdfast import Holdfast
from holdfast.cli.verbs import cli
from holdfast.errors import HoldfastError, InvalidInput, StoreUnavailable
from holdfast.store.opening import open_store, sqlite_file
from holdfast.store.postgres import PostgresStore
from holdfast.words.advice import command
from support.shell import real

if TYPE_CHECKING:
    from holdfast.store.base import Store

SECRET = "s3cr3t-canary"


def keywords(dsn: str) -> str:
    """The same as a libpq connection string."""
    url = urlsplit(dsn)
    return (
        f"host={url.hostname} port={url.port} dbname={url.path[1:]} user={url.username} "
        f"password='{url.password}'"
    )


def test_a_connection_string_of_keywords_opens_postgresql(
    postgres_dsn: str, tmp_path: Path
) -> None:
    given = keywords(postgres_dsn)
    assert sqlite_file(given) is None
    store: Store = open_store(given)
    store.close()

    password = urlsplit(postgres_dsn).password
    listed = real(tmp_path, "list", "--db", given)

    assert (0, "") == (listed.returncode, listed.stderr)
    assert "dbname" in store.url and str(password) not in store.url
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "given",
    [
        f"host=127.0.0.1 port=1 dbname=x user=u password={SECRET}",
        f"password={SECRET}",
        f"password = '{SECRET} more' host=127.0.0.1 port=1",
        f"hots=127.0.0.1 password={SECRET}",
        f"user=u passwort host=127.0.0.1 password={SECRET}",
        f"postgresql://u:{SECRET}@127.0.0.1:1/x",
        f"postgresql://u@127.0.0.1:1/x?password={SECRET}",
        f"postgresql://u:{SECRET}@127.0.0.1:bad/x",
        f"mysql://u:{SECRET}@127.0.0.1/x",
    ],
)
def test_no_password_of_a_connection_string_is_repeated_or_becomes_a_file(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULTS 106."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "1")  # how long the first connection is retried
    with pytest.raises(HoldfastError) as caught:
        Holdfast(given)
    done = real(tmp_path, "list", "--db", given)

    said = "".join(traceback.format_exception(caught.value)).replace(repr(given), "")
    assert SECRET not in said
    assert 0 != done.returncode
    assert SECRET not in done.stderr + done.stdout + command(given, "show", "r")
    assert [] == list(tmp_path.iterdir())


@pytest.fixture
def _never_give_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that retries hangs."""
    monkeypatch.setitem(PostgresStore.__init__.__kwdefaults__, "patience", 3600.0)


@pytest.mark.usefixtures("_never_give_up")
@pytest.mark.parametrize("command", [("list",), ("show", "r"), ("approve", "r", "--yes")])
def test_a_command_does_not_wait_for_a_server_that_does_not_answer(
    command: tuple[str, ...],
) -> None:
    done = CliRunner().invoke(cli, [*command, "--db", "postgresql://u:p@127.0.0.1:1/x"])

    assert (1, True) == (done.exit_code, "refused" in done.output), done.output


@pytest.mark.usefixtures("_never_give_up")
def test_the_first_connection_is_retried_for_as_long_as_connect_timeout_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(StoreUnavailable, match="refused"):
        open_store("postgresql://u:p@127.0.0.1:1/x?connect_timeout=1")
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "1")
    with pytest.raises(StoreUnavailable, match="refused"):
        open_store("postgresql://u:p@127.0.0.1:1/x")


@pytest.mark.parametrize("given", ["a=b.db", "key=value/host=1.db", "my notes.db"])
def test_a_path_with_an_equals_sign_is_a_path(given: str) -> None:
    assert Path(given) == sqlite_file(given)


@pytest.mark.parametrize("given", [5, b"bytes.db", object(), ["a.db"], "nul\0.db", "x\udcff.db"])
def test_what_cannot_be_a_store_is_refused_with_advice(
    given: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match="path"):
        Holdfast(given)
    assert [] == list(tmp_path.iterdir())


def test_a_suggested_command_masks_a_password_and_can_still_be_pasted() -> None:
    shown = command(f"host=h user=u password={SECRET}", "show", "r")

    assert ["holdfast", "show", "r", "--db", "host=h user=u password=***"] == shlex.split(shown)
