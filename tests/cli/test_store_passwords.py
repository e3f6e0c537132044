"""Printed commands for a store whose URL has a password: none is shown, and the commands work when they are pasted."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import psycopg
import pytest
from psycopg import conninfo

from holdfast import Holdfast, Run, RunFailed, agent
from holdfast.store.passwords import MASK, has_masked_password, with_password, without_password
from support.shell import HOLDFAST, Terminal, commands, environment

pytestmark = pytest.mark.postgres

AGENTS = """
from holdfast import Run, agent


@agent
def several(run: Run) -> object:
    return run.map(lambda n: run.approve(f"Send {n}?"), [1, 2])
"""
PASSWORD = "p w'*&?/@:%\\#ä"


@pytest.fixture
def store(postgres_dsn: str) -> Iterator[str]:
    """The URL of a database whose owner has a password full of special characters."""
    url = urlsplit(postgres_dsn)
    role = f"owner_of_{url.path[1:]}"
    with psycopg.connect(postgres_dsn, autocommit=True) as admin:
        secret = psycopg.sql.Literal(PASSWORD).as_string(admin)
        admin.execute(f"CREATE ROLE {role} SUPERUSER LOGIN PASSWORD {secret}")
        try:
            yield f"postgresql://{role}:{quote(PASSWORD, safe='')}@{url.hostname}:{url.port}{url.path}"
        finally:
            admin.execute(f"REASSIGN OWNED BY {role} TO CURRENT_USER; DROP OWNED BY {role}")
            admin.execute(f"DROP ROLE {role}")


def holdfast(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [HOLDFAST, *words],
        cwd=folder,
        env=environment(**env),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )


def pasted(folder: Path, line: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A printed line as a shell without a terminal executes it."""
    path = f"{Path(HOLDFAST).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["sh", "-c", line.replace("FILE", "agents.py")],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        env=environment(PATH=path, **env),
        capture_output=True,
        text=True,
    )


def waiting_run(folder: Path, store: list[str], **env: str) -> list[str]:
    """The commands that are printed for a run that is waiting for two approvals."""
    (folder / "agents.py").write_text(AGENTS)
    first = holdfast(folder, "run", "agents.py:several", "--id", "r-1", *store, **env)
    shown = holdfast(folder, "show", "r-1", *store, **env)
    assert 0 == shown.returncode, shown.stderr
    everything = first.stdout + first.stderr + shown.stdout + shown.stderr
    for written in (PASSWORD, quote(PASSWORD, safe="")):
        assert written not in everything
    return list(dict.fromkeys([*commands(first.stderr), *commands(shown.stdout)]))


def approvals(printed: list[str]) -> list[str]:
    found = [line for line in printed if line.startswith("holdfast approve")]
    assert 2 == len(found), printed
    return found


def test_with_the_url_in_the_environment_commands_need_no_store(store: str, tmp_path: Path) -> None:
    for line in approvals(waiting_run(tmp_path, [], HOLDFAST_URL=store)):
        assert "--db" not in line
        done = pasted(tmp_path, f"{line} --yes", HOLDFAST_URL=store)
        assert 0 == done.returncode, done.stderr
    (resume,) = commands(holdfast(tmp_path, "show", "r-1", HOLDFAST_URL=store).stdout)[:1]

    assert 0 == pasted(tmp_path, resume, HOLDFAST_URL=store).returncode


def test_a_pasted_command_takes_the_password_from_pgpassword_or_pgpass(
    store: str, tmp_path: Path
) -> None:
    """As libpq does, for scripts: nothing is asked for."""
    file = tmp_path / "pgpass"
    file.write_text(
        f"*:*:*:*:{PASSWORD.replace(chr(92), chr(92) * 2).replace(':', chr(92) + ':')}\n"
    )
    file.chmod(0o600)
    first, second = approvals(waiting_run(tmp_path, ["--db", store]))

    by_variable = pasted(tmp_path, f"{first} --yes", PGPASSWORD=PASSWORD)
    by_file = pasted(tmp_path, f"{second} --yes", PGPASSFILE=str(file))

    assert (0, 0) == (by_variable.returncode, by_file.returncode), (
        by_variable.stderr + by_file.stderr
    )


def test_a_command_pasted_into_a_terminal_asks_for_the_password(store: str, tmp_path: Path) -> None:
    for line in approvals(waiting_run(tmp_path, ["--db", store])):
        path = f"{Path(HOLDFAST).parent}{os.pathsep}{os.environ['PATH']}"
        with contextlib.closing(
            Terminal(tmp_path, "/bin/sh", "-c", f"{line} --yes", PATH=path)
        ) as session:
            session.expect("Password of the store")
            session.type(PASSWORD + "\n")

            assert 0 == session.end(), session.said
            assert PASSWORD not in session.said


def test_without_the_password_the_error_names_its_possible_sources(
    store: str, tmp_path: Path
) -> None:
    line = approvals(waiting_run(tmp_path, ["--db", store]))[0]

    done = pasted(tmp_path, f"{line} --yes")

    assert (1, True) == (done.returncode, "PGPASSWORD" in done.stderr), done.stderr


FORMS = {
    "url": f"postgresql://sam:{quote(PASSWORD, safe='')}@db.example:5/runs?sslmode=require",
    "query": f"postgresql://db.example/runs?user=sam&password={quote(PASSWORD, safe='')}&port=5",
    "words": conninfo.make_conninfo(
        host="db.example", user="sam", password=PASSWORD, dbname="runs"
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_masked_password_is_replaced_in_any_form_of_url(form: str) -> None:
    url = FORMS[form]
    masked = without_password(url)

    assert (False, True) == (has_masked_password(url), has_masked_password(masked))
    assert MASK in masked
    made = with_password(masked, PASSWORD)
    assert conninfo.conninfo_to_dict(url) == conninfo.conninfo_to_dict(made)


@agent
def failing(run: Run) -> None:
    raise ValueError("no")


@pytest.mark.parametrize("as_keywords", [False, True], ids=["url", "keywords"])
def test_a_command_in_an_error_of_python_has_all_of_the_url_but_the_password(
    store: str, as_keywords: bool, tmp_path: Path
) -> None:
    """The user and the options too, or it would connect as someone else."""
    given = f"{store}?application_name=a%20b"
    if as_keywords:
        given = conninfo.make_conninfo(given)
    with Holdfast(given) as hf, pytest.raises(RunFailed) as failed:
        hf.run(failing, id="r-1")

    (line,) = commands(str(failed.value))
    assert PASSWORD not in line
    assert without_password(given) in shlex.split(line)
    shown = pasted(tmp_path, line, PGPASSWORD=PASSWORD)
    assert 0 == shown.returncode, shown.stderr


def test_a_store_from_the_environment_is_not_named_in_a_command(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", store)
    with Holdfast() as hf, pytest.raises(RunFailed) as failed:
        hf.run(failing, id="r-1")

    assert ["holdfast show r-1"] == commands(str(failed.value))
