"""`holdfast serve` and `holdfast token` as their users use them, and the command line against a server."""

from __future__ import annotations

import json
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from click.testing import CliRunner

from holdfast import Holdfast, RunWaiting
from holdfast.cli.verbs import cli
from holdfast.web.app import create_app
from support.waiting import eventually
from support.web import AGENTS, TOKENS, credentials, doubtful, mail, patient, quiz, serving

HOLDFAST = Path(sys.executable).parent / "holdfast"
CODE = """
from holdfast import Run, agent

@agent
def job(run: Run, n: int = 1) -> int:
    return n + 1
"""


@dataclass(frozen=True)
class Done:
    """What a command printed, and its exit code."""

    returncode: int
    stdout: str
    stderr: str


def holdfast(*words: object, **env: str) -> Done:
    """A command, in this process: most of these tests are about what it does, not how it starts."""
    found = CliRunner().invoke(cli, [str(word) for word in words], env=env)
    return Done(found.exit_code, found.stdout, found.stderr)


@contextmanager
def server(folder: Path, *words: object) -> Iterator[tuple[str, str, subprocess.Popen[str]]]:
    """The address, the link and the process of a server that is started in a folder."""
    command = [HOLDFAST, "serve", "--port", "0", "--json", *map(str, words)]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line.startswith("{"), line + process.stderr.read()
        said = json.loads(line)
        try:
            yield said["url"].rstrip("/"), said["link"], process
        finally:
            process.terminate()
            process.stderr.read()


def test_credentials_are_created_listed_and_revoked(tmp_path: Path) -> None:
    file = tmp_path / "a b" / "credentials.json"
    made = holdfast("token", "create", "ann", "--role", "approver", "--credentials", file)
    token = made.stdout.strip()
    assert token.startswith("hf_")
    assert token not in file.read_text("utf-8")
    assert 0o600 == stat.S_IMODE(file.stat().st_mode)
    listed = holdfast("token", "list", "--json", "--credentials", file)
    assert [("ann", "approver")] == [
        (c["name"], c["role"]) for c in json.loads(listed.stdout)["credentials"]
    ]
    again = holdfast("token", "create", "ann", "--role", "viewer", "--credentials", file)
    assert (1, True) == (again.returncode, "revoke it first" in again.stderr)
    assert 0 == holdfast("token", "revoke", "ann", "--credentials", file).returncode
    gone = holdfast("token", "revoke", "ann", "--credentials", file)
    assert (1, True) == (gone.returncode, "no credential" in gone.stderr)
    wrong = holdfast("token", "create", "a b", "--role", "viewer", "--credentials", file)
    assert (1, True) == (wrong.returncode, "is not a name" in wrong.stderr)


def test_the_link_signs_in_once_mcp_has_the_same_tokens_and_a_revoked_one_stops_working(
    tmp_path: Path,
) -> None:
    words = ["token", "create", "ann", "--role", "operator", "--db", tmp_path / "h.db"]
    token = holdfast(*words, "--allow-agent", "migration", "--allow-agent", "recap")
    headers = {"authorization": f"Bearer {token.stdout.strip()}"}
    weak = holdfast("token", "create", "vic", "--role", "viewer", "--db", tmp_path / "h.db")
    viewer = {"authorization": f"Bearer {weak.stdout.strip()}"}
    with server(tmp_path, "--db", "h.db") as (url, link, _), httpx2.Client() as browser:
        eventually(lambda: _answers(url), "an answer")
        assert 303 == browser.get(link).status_code
        assert 200 == browser.get(url + "/runs").status_code
        assert 401 == httpx2.get(link).status_code
        assert 200 == httpx2.get(url + "/api/v1/whoami", headers=headers).status_code
        listed = holdfast("token", "list", "--db", tmp_path / "h.db").stdout
        assert "migration, recap" in listed
        assert [200, 403, 401] == [_mcp(url, given) for given in (headers, viewer, {})]
        holdfast("token", "revoke", "ann", "--db", tmp_path / "h.db")
        assert 401 == httpx2.get(url + "/api/v1/whoami", headers=headers).status_code
        assert 200 == browser.get(url + "/runs").status_code


def _mcp(url: str, headers: dict[str, str]) -> int:
    """The status of the answer to an MCP client that connects."""
    client = {"name": "x", "version": "1"}
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    accepts = {"accept": "application/json, text/event-stream"}
    return httpx2.post(
        url + "/mcp", json=body, headers={**accepts, **headers}, timeout=60
    ).status_code


def _answers(url: str) -> bool:
    try:
        return httpx2.get(url + "/healthz").status_code == 200
    except httpx2.TransportError:
        return False


def test_a_server_that_other_machines_reach_needs_credentials_and_host_names(
    tmp_path: Path,
) -> None:
    words = ["serve", "--host", "0.0.0.0", "--port", "0", "--db", tmp_path / "h.db"]
    without = holdfast(*words)
    assert (1, True) == (without.returncode, "holdfast token create" in without.stderr)
    holdfast("token", "create", "ann", "--role", "admin", "--db", tmp_path / "h.db")
    unnamed = holdfast(*words)
    assert (1, True) == (unnamed.returncode, "--allow-host" in unnamed.stderr)


def test_a_worker_next_to_the_server_executes_runs_and_ends_with_it(tmp_path: Path) -> None:
    (tmp_path / "agents.py").write_text(CODE, "utf-8")
    token = holdfast("token", "create", "ann", "--role", "operator", "--db", tmp_path / "h.db")
    env = {"HOLDFAST_TOKEN": token.stdout.strip()}
    with server(tmp_path, "--db", "h.db", "--worker", "agents.py") as (url, _, process):
        env["HOLDFAST_URL"] = url
        eventually(lambda: "job" in holdfast("agents", **env).stdout, "the worker")
        assert 0 == holdfast("start", "job", "-p", "n=4", "--id", "a", **env).returncode
        eventually(lambda: "completed" in holdfast("show", "a", **env).stdout, "the end of the run")
        process.send_signal(signal.SIGTERM)
        assert 0 == process.wait(60)
    with Holdfast(tmp_path / "h.db") as hf:
        assert (5, "ann") == (hf.result("a"), hf.events("a")[0][1].by)  # type: ignore[attr-defined]


def test_the_command_line_uses_a_server_as_it_uses_a_store(hf: Holdfast, tmp_path: Path) -> None:
    file = tmp_path / "agents.py"
    file.write_text(CODE, "utf-8")
    for agent, run_id, given in (
        (mail, "m", {"to": "x"}),
        (quiz, "q", {}),
        (patient, "p", {}),
        (doubtful, "d", {}),
    ):
        with pytest.raises(RunWaiting):
            hf.run(agent, id=run_id, **given)  # type: ignore[call-overload]
    with serving(create_app(hf, credentials=credentials())) as url:
        env = {"HOLDFAST_URL": url, "HOLDFAST_TOKEN": TOKENS["admin"]}
        store = {"HOLDFAST_URL": str(hf.store.url)}

        def done(*words: object) -> str:
            found = holdfast(*words, **env)
            assert 0 == found.returncode, found.stderr
            return found.stdout

        for words in (
            ["list", "--json"],
            ["show", "p", "--json"],
            ["trace", "p"],
            ["events", "p", "--json"],
            ["diff", "p", "0", "1"],
            ["verify", "p"],
            ["agents", "--json"],
            ["schedules"],
        ):
            here, there = holdfast(*words, **store), holdfast(*words, **env)
            assert (here.returncode, _steady(here.stdout)) == (
                there.returncode,
                _steady(there.stdout),
            ), words
        assert "approved" in done("approve", "m", "--yes", "--why", "fine")
        done("answer", "q", "a", "--yes")
        done("signal", "p", "go", "1")
        done("patch", "p", "--state", "x=1", "--yes")
        done("pause", "p")
        done("resume", "p")
        done("resolve", "d", "2", "--done", "7", "--yes")
        done("start", "job", "-p", "n=2", "--id", "j")
        done("cancel", "j", "--yes")
        hf.worker(agents=AGENTS).run(once=True)
        assert ["sent to x", "a", 1, 7] == [hf.result(one) for one in ("m", "q", "p", "d")]
        decided = [e for _, e in hf.events("m") if e.kind == "approval_decided"]
        assert [("ada", "fine")] == [(e.by, e.why) for e in decided]  # type: ignore[attr-defined]
        forged = holdfast("cancel", "m", "--by", "boss", "--yes", **env)
        assert (2, True) == (forged.returncode, "whose token" in forged.stderr)
        for words, said in (
            (["run", file], "holdfast start NAME"),
            (["worker", file, "--once"], "To execute agents, use the URL of the database"),
            (["gc", "--keep", "1", "--yes"], "where the database is"),
        ):
            refused = holdfast(*words, **env)
            assert (1, True) == (refused.returncode, said in refused.stderr), refused.stderr


def _steady(said: str) -> str:
    """Without what depends on the moment, or names the store."""
    return re.sub(r"\d+(\.\d+)? (µs|ms|s|min|h)\b|--db \S+", "…", said)


def test_starting_up_imports_neither_a_server_nor_an_http_library() -> None:
    code = "import sys, holdfast.cli.decisions, holdfast.cli.inspect, holdfast.cli.token, holdfast.cli.serve; print([m for m in ('starlette', 'uvicorn', 'httpx2', 'jinja2') if m in sys.modules])"
    assert "[]" == subprocess.check_output([sys.executable, "-c", code], text=True).strip()
