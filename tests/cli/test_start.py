"""The command itself: its verbs, where it finds its store, what it does not import."""

import importlib
import json
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast import __version__
from holdfast.cli.verbs import VERBS, cli
from support.shell import HOLDFAST, Shell, copy_world, real


def test_every_command_loads_and_has_help() -> None:
    """A verb that is listed exists, under its own name, with a sentence of help."""
    for verb in VERBS:
        result = CliRunner().invoke(cli, [verb, "--help"])

        assert 0 == result.exit_code, verb
        assert f" {verb} " in result.stdout.splitlines()[0]


def test_without_a_command_it_lists_all_and_a_typing_error_gets_a_suggestion() -> None:
    bare = CliRunner().invoke(cli, [])
    assert bare.output.startswith("Usage: ")
    assert "Error" not in bare.output

    slip = CliRunner().invoke(cli, ["shw", "r1"])
    assert (2, True) == (slip.exit_code, "Did you mean 'show'?" in slip.output)


BARE = """
import click

@click.group()
@click.version_option("1", prog_name="bare")
def cli(): pass

cli()
"""


def imported_by(folder: Path, script: str, *words: str) -> set[str]:
    """What a program imports, from the start of its process to its end."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", script, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert 0 == done.returncode, done.stderr
    return set(re.findall(r"^import time:.*\|\s+(\S+)$", done.stderr, re.M)) - {"package"}


def test_the_version_costs_what_a_bare_click_program_costs(tmp_path: Path) -> None:
    """Five small modules of our own, a built-in one, and nothing else that a program that does nothing does not import."""
    (tmp_path / "bare.py").write_text(BARE)

    ours = imported_by(tmp_path, HOLDFAST, "--version")
    bare = imported_by(tmp_path, "bare.py", "--version")

    own = {"holdfast", "holdfast.cli", "holdfast.cli.verbs", "holdfast.errors", "holdfast.lazy"}
    assert own | {"gc"} == ours - bare
    assert not ours & {"asyncio", "msgspec", "apsw", "psycopg", "rich", "json", "sqlite3"}


PROCEDURE = """
send = Tool { description = "x", input = {}, function(args) return {id = "m-1"} end }
Mocks { send = {returns = {id = "m-1"}} }
Procedure { function(input) return {id = send({}).id} end }
Specifications([[
Feature: it
  Scenario: it sends
    When the procedure runs
    Then the send tool should be called exactly 1 time
]])
"""
NOT_FOR_ONE_RUN = (
    "asyncio",
    "ssl",
    "socket",
    "subprocess",
    "email",
    "http",
    "xml",
    "zoneinfo",
    "psycopg",
    "rich",
    "starlette",
    "mcp",
    "pydantic",
    "holdfast.agents",
    "holdfast.aio",
    "holdfast.bundle",
    "holdfast.check",
    "holdfast.client",
    "holdfast.dry_fork",
    "holdfast.gc",
    "holdfast.mcp",
    "holdfast.web",
    "holdfast.runtime.exec.worker",
    "holdfast.runtime.lines",
    "holdfast.runtime.exec.schedules",
    "holdfast.testing.crash",
    "holdfast.testing.fork_server",
    "concurrent",
    "logging",
    "queue",
    "random",
    "shutil",
    "string",
    "tempfile",
    "traceback",
    "base64",
    "holdfast.core.agent_state",
    "holdfast.core.canonical_state",
    "holdfast.core.context",
    "holdfast.core.dialogue",
    "holdfast.core.jsonpatch",
    "holdfast.lua.agents",
    "holdfast.lua.people",
    "holdfast.lua.templates",
    "holdfast.runtime.api.context",
    "holdfast.runtime.api.parallel",
    "holdfast.runtime.api.templates",
    "holdfast.runtime.call.checkpoints",
    "holdfast.runtime.exec.dry_run",
    "holdfast.runtime.exec.undo",
    "holdfast.control.forks",
    "holdfast.control.patches",
    "holdfast.views.open_requests",
    "holdfast.views.search_result",
    "holdfast.views.timelines",
)


NOT_FOR_A_SCENARIO = (
    "copy",
    "dataclasses",
    "encodings.ascii",
    "heapq",
    "importlib.util",
    "unicodedata",
    "holdfast.core.snapshot",
    "holdfast.store.brief",
    "holdfast.words.timeline",
)
"""`run` prints a timeline."""


@pytest.mark.parametrize(
    "words",
    [("test", "it.tac", "--mock"), ("run", "it.tac", "--id", "r1", "--db", "runs.db")],
    ids=("test", "run"),
)
def test_a_procedure_that_asks_no_model_loads_no_event_loop_and_no_models(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    """Imports are most of the time that a small file takes: what a plain run does not use is not loaded."""
    pytest.importorskip("lupa")
    (tmp_path / "it.tac").write_text(PROCEDURE)

    ours = imported_by(tmp_path, HOLDFAST, *words)

    assert {"lupa", "holdfast.lua.program", "holdfast.runtime.exec.engine"} <= ours
    assert [] == sorted(
        n for n in ours if f"{n}.".startswith(tuple(f"{m}." for m in NOT_FOR_ONE_RUN))
    )


def test_a_scenario_of_a_procedure_loads_nothing_that_only_long_or_printed_runs_need(
    tmp_path: Path,
) -> None:
    """`bench lua` measures this process from its start to its end; here it is counted what it loads."""
    pytest.importorskip("lupa")
    (tmp_path / "it.tac").write_text(PROCEDURE)

    ours = imported_by(tmp_path, HOLDFAST, "test", "it.tac", "--mock")

    assert set() == ours & set(NOT_FOR_A_SCENARIO)
    assert 150 >= sum(name.split(".")[0] == "holdfast" for name in ours)


def test_a_plain_agent_loads_no_event_loop(tmp_path: Path) -> None:
    """The same for an agent in Python."""
    (tmp_path / "plain.py").write_text(
        "from holdfast import agent\n@agent\ndef plain(run):\n    return 1\n"
    )

    ours = imported_by(tmp_path, HOLDFAST, "run", "plain.py", "--id", "r1", "--db", "runs.db")

    assert [] == sorted(
        n for n in ours if f"{n}.".startswith(tuple(f"{m}." for m in NOT_FOR_ONE_RUN))
    )


def test_commands_that_only_read_do_not_import_the_runtime(world: Path) -> None:
    """`list` reads a store: no event loop, no runtime, no other database, no tables for terminals."""
    ours = imported_by(world, HOLDFAST, "list", "--db", "runs.db")

    assert {"apsw", "msgspec", "holdfast.views"} <= ours
    assert set() == {
        name
        for name in ours
        if name.split(".")[0] in ("asyncio", "psycopg", "rich", "ssl")
        or name.startswith(("holdfast.runtime", "holdfast.app", "holdfast.control"))
    }


def test_people_decide_where_none_of_the_agents_code_is(world: Path, tmp_path: Path) -> None:
    """A store is enough: to look, to approve, to answer, to settle a doubt. The runtime stays out."""
    copy_world(world, tmp_path)
    for file in tmp_path.glob("*.py"):
        file.unlink()

    ours = imported_by(tmp_path, HOLDFAST, "approve", "approval", "--yes", "--db", "runs.db")
    for words in (
        ["show", "approval"],
        ["trace", "doubt"],
        ["answer", "question", "red", "--yes"],
        ["resolve", "doubt", "2", "--retry", "--yes"],
        ["signal", "signal", "payment"],
        ["pause", "question"],
        ["fork", "done", "1"],
        ["cancel", "signal", "--yes"],
    ):
        assert 0 == real(tmp_path, *words, "--db", "runs.db").returncode, words

    assert set() == {name for name in ours if name.startswith(("holdfast.runtime", "holdfast.app"))}


def test_the_version_is_that_of_the_package(tmp_path: Path) -> None:
    done = real(tmp_path, "--version")

    assert (0, f"holdfast, version {__version__}\n") == (done.returncode, done.stdout)
    assert __version__ == version("holdfast")


def test_help_names_every_verb_the_exit_codes_and_completion(tmp_path: Path) -> None:
    done = real(tmp_path, "--help")

    assert [] == [verb for verb in VERBS if f"\n  {verb} " not in done.stdout]
    for said in (
        "  0    done",
        "  1    refused",
        "  2    wrong usage",
        "  130  interrupted",
        "_HOLDFAST_COMPLETE",
    ):
        assert said in done.stdout


def test_every_verb_takes_json(tmp_path: Path) -> None:
    """And every verb that works on a store takes --db."""
    options = {verb: set() for verb in VERBS}
    for verb in VERBS:
        module, name, _ = VERBS[verb]
        command = getattr(importlib.import_module(f"holdfast.cli.{module}"), name)
        options[verb] = {option for param in command.params for option in param.opts}

    assert [] == [verb for verb in VERBS if "--json" not in options[verb]]
    assert {"demo", "test", "validate"} == {verb for verb in VERBS if "--db" not in options[verb]}


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("holdfast tr", {"trace"}),
        ("holdfast show do", {"done", "doubt"}),
        ("holdfast approve app", {"approval"}),
        ("holdfast list --st", {"--status"}),
        ("holdfast list --status wa", {"waiting"}),
        ("holdfast run ag", {"file:ag"}),
    ],
)
def test_a_shell_completes_verbs_options_files_and_run_ids(
    world: Path, words: str, completed: set[str]
) -> None:
    """As bash asks for it: the installed command, told so by its environment."""
    place = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    done = real(
        world, _HOLDFAST_COMPLETE="bash_complete", HOLDFAST_URL=str(world / "runs.db"), **place
    )

    found = {line.removeprefix("plain,").replace("file,", "file:") for line in done.stdout.split()}
    assert (0, completed) == (done.returncode, found)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_takes_the_completion_and_has_a_function_for_holdfast(tmp_path: Path) -> None:
    line = 'eval "$(_HOLDFAST_COMPLETE=bash_source "$0")" && complete -p holdfast'
    done = subprocess.run(
        ["bash", "-c", line, HOLDFAST], cwd=tmp_path, capture_output=True, text=True, timeout=240
    )

    assert (0, True) == (done.returncode, "holdfast" in done.stdout), done.stderr


def test_completion_without_a_store_prints_nothing_and_creates_none(tmp_path: Path) -> None:
    done = real(
        tmp_path, _HOLDFAST_COMPLETE="bash_complete", COMP_WORDS="holdfast show d", COMP_CWORD="2"
    )

    assert ("", "", []) == (done.stdout.strip(), done.stderr, list(tmp_path.iterdir()))


def test_an_unknown_verb_is_a_usage_error() -> None:
    result = CliRunner().invoke(cli, ["frobnicate"])

    assert 2 == result.exit_code
    assert "frobnicate" in result.stderr


def test_a_url_of_an_unknown_kind_is_refused(shell: Shell) -> None:
    result = CliRunner().invoke(cli, ["list", "--url", "mongodb://x"])

    assert 1 == result.exit_code
    assert "not a known kind of store" in result.stderr


def test_a_file_that_is_not_a_store_is_refused_and_left_unchanged(shell: Shell) -> None:
    shell.db.write_text("my shopping list, which is much longer than a hundred bytes " * 10)
    before = shell.db.read_bytes()

    assert "is not a SQLite database" in shell("list", code=1).stderr
    assert before == shell.db.read_bytes()
    shell.db = shell.folder
    assert shell("list", code=1).stderr.startswith("error: ")


def test_the_store_comes_from_the_environment(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.run("recap", "r1", "to=sam")
    monkeypatch.setenv("HOLDFAST_URL", str(shell.db))

    result = CliRunner().invoke(cli, ["list", "--json"])

    assert ["r1"] == [run["id"] for run in json.loads(result.stdout)["runs"]]
