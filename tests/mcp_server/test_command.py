"""`holdfast mcp` and `holdfast mcp config`: what people type, and what they get."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from holdfast.cli.verbs import cli
from holdfast.mcp.clients import CLIENTS


def typed(*words: str, **env: str) -> Result:
    return CliRunner().invoke(cli, ["mcp", *words], env=env)


@pytest.mark.parametrize("client", [client.name for client in CLIENTS])
def test_the_configuration_of_every_client_starts_the_server(client: str, tmp_path: Path) -> None:
    """Absolute paths: clients start it in another folder."""
    db = tmp_path / "my runs" / "h.db"
    done = typed(
        "config",
        client,
        "--as",
        "writer",
        "--allow-agent",
        "migration",
        "--allow-answers",
        "--db",
        str(db),
        "--json",
    )
    found = json.loads(done.stdout)
    (servers,) = found.values()
    server = servers["holdfast"]

    assert {"vscode": ["servers"]}.get(client, ["mcpServers"]) == list(found)
    assert Path(server["command"]).is_absolute()
    assert [
        "mcp",
        "--as",
        "writer",
        "--allow-agent",
        "migration",
        "--allow-answers",
        "--db",
        str(db),
    ] == server["args"]
    shown = typed("config", client, "--as", "writer", "--db", str(db)).stdout
    assert json.dumps(str(db)) in shown


def test_a_password_is_not_printed_into_a_configuration() -> None:
    """It says what to put in its place."""
    done = typed("config", "--as", "w", "--db", "postgresql://sam:hunter2@db/runs")

    assert "hunter2" not in done.output
    assert "postgresql://sam:***@db/runs" in done.output
    assert "Replace ***" in done.output


def test_a_missing_or_wrong_option_is_reported_with_advice(tmp_path: Path) -> None:
    """Before anything is served."""
    db = ["--db", str(tmp_path / "none.db")]
    readable = tmp_path / "token"
    readable.write_text("x" * 30)
    readable.chmod(0o644)
    for words, expected, code in (
        (db, "Missing option '--as'", 2),
        (["--as", "a b", *db], "is not an agent name", 1),
        (["--as", "a", *db], "no store at", 1),
        (["--as", "a", "--token-file", str(readable), *db], "need --http", 2),
        (["--as", "a", "--http", "8080", *db], "HOST:PORT", 2),
        (
            ["--as", "a", "--http", "127.0.0.1:1", "--token-file", str(readable), *db],
            "chmod 600",
            1,
        ),
        (["config", "emacs", "--as", "a", *db], "unknown client 'emacs'", 1),
        (["config", *db], "Missing option '--as'", 2),
    ):
        done = typed(*words)
        assert (code, True) == (done.exit_code, expected in done.output), done.output


def test_without_the_extra_the_command_prints_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An optional package."""
    monkeypatch.setattr("holdfast.cli.mcp.find_spec", lambda _: None)

    assert "pip install 'holdfast[mcp]'" in typed("--as", "a").output
