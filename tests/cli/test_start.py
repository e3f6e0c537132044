"""The command itself: its verbs, where it finds its store, what it does not import."""

import json
import re
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from holdfast import cli
from holdfast.cli import VERBS
from support.shell import Shell

# -- the command itself --------------------------------------------------------------------------


def test_every_verb_loads_and_says_what_it_does() -> None:
    """A verb that is listed exists, under its own name, with a sentence of help."""
    for verb in VERBS:
        result = CliRunner().invoke(cli.cli, [verb, "--help"])

        assert 0 == result.exit_code, verb
        assert f" {verb} " in result.stdout.splitlines()[0]


def test_the_version_comes_without_loading_holdfast() -> None:
    """Nothing heavy is imported at start: that is what makes `holdfast --version` fast."""
    code = (
        "import sys\nfrom holdfast.cli import cli\n"
        "try:\n    cli(['--version'])\nfinally:\n"
        "    print([m for m in ('apsw', 'msgspec', 'holdfast.app', 'holdfast.core.events', 'rich', 'asyncio')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert ["[]"] == done.stdout.splitlines()[1:]
    assert re.search(r"version \d", done.stdout)


def test_an_unknown_verb_is_a_usage_error() -> None:
    result = CliRunner().invoke(cli.cli, ["frobnicate"])

    assert 2 == result.exit_code
    assert "frobnicate" in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["list"], ["show", "x"], ["trace", "x"], ["events", "x"], ["diff", "x", "1", "2"], ["verify", "x"],
        ["resume", "agents.py", "x"], ["replay", "agents.py", "x"], ["approve", "x", "--yes"],
        ["reject", "x", "--yes"], ["answer", "x", "y", "--yes"], ["signal", "x", "y"],
        ["resolve", "x", "--retry", "--yes"], ["pause", "x"], ["cancel", "x", "--yes"],
        ["undo", "x", "--yes"], ["fork", "x", "1"], ["doctor"], ["gc", "--keep", "0", "--yes"], ["export", "x"],
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_a_store_that_is_not_there_is_not_made(shell: Shell, words: list[str]) -> None:
    """Looking somewhere wrong says so, and leaves nothing behind."""
    result = shell(*words, code=1)

    assert f"there is no store at {shell.db}" in result.stderr
    assert "" == result.stdout
    assert ["agents.py"] == [
        path.name for path in shell.folder.iterdir() if path.name != "__pycache__"
    ]


@pytest.mark.parametrize(
    "words",
    [
        ["show", "no-such"], ["trace", "no-such"], ["events", "no-such"], ["diff", "no-such", "1", "2"],
        ["verify", "no-such"], ["resume", "agents.py", "no-such"], ["replay", "agents.py", "no-such"],
        ["approve", "no-such", "--yes"], ["reject", "no-such", "--yes"], ["answer", "no-such", "y", "--yes"],
        ["signal", "no-such", "y"], ["resolve", "no-such", "--retry", "--yes"], ["pause", "no-such"],
        ["cancel", "no-such", "--yes"], ["undo", "no-such", "--yes"], ["fork", "no-such", "1"],
        ["export", "no-such"],
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_an_unknown_run_is_one_message_and_exit_code_1(shell: Shell, words: list[str]) -> None:
    shell.run("recap", "r1", "to=sam")

    result = shell(*words, code=1)

    assert "error: there is no run 'no-such' in this store; `holdfast list`" in result.stderr
    assert "" == result.stdout


def test_a_url_of_an_unknown_kind_is_refused(shell: Shell) -> None:
    result = CliRunner().invoke(cli.cli, ["list", "--url", "mongodb://x"])

    assert 1 == result.exit_code
    assert "not a kind of store" in result.stderr


def test_a_file_that_is_no_store_is_refused_and_left_alone(shell: Shell) -> None:
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

    result = CliRunner().invoke(cli.cli, ["list", "--json"])

    assert ["r1"] == [run["id"] for run in json.loads(result.stdout)["runs"]]


def test_help_is_click_s_own_for_completion() -> None:
    """Shells complete the verbs through click; nothing of ours stands in the way."""
    from click.shell_completion import ShellComplete

    found = ShellComplete(cli.cli, {}, "holdfast", "_HOLDFAST_COMPLETE").get_completions([], "tr")

    assert ["trace"] == [item.value for item in found]
    assert isinstance(cli.cli, click.Group)
