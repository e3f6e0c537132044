"""With `--mock` nothing is contacted that is not mocked: tools, models, steps, and the agent's own code."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast.cli.verbs import cli

AGENTS = """
import asyncio, socket
from holdfast import AsyncRun, LLMAgent, OpenAIModel, Run, agent, step, tool
from holdfast.testing import ScriptedModel

PORT = {port}

def contact() -> str:
    with socket.create_connection(("127.0.0.1", PORT), timeout=5):
        return "contacted"

@tool(risk="read")
def look_up(name: str) -> str:
    return contact()

@step(outside=True)
def draft(name: str) -> str:
    return contact()

@step
def fetch(name: str) -> str:
    return contact()

@step
async def fetch_later(name: str) -> str:
    await asyncio.open_connection("127.0.0.1", PORT)
    return "contacted"

@step
def nesting(name: str) -> str:
    return look_up(name)

@agent
def reads(run: Run) -> str:
    return look_up("sam")

@agent
def drafts(run: Run) -> str:
    return draft("sam")

@agent
def fetches(run: Run) -> str:
    try:
        return fetch("sam")
    except Exception:
        return "not told"

@agent
async def fetches_async(run: AsyncRun) -> str:
    return await fetch_later("sam")

@agent
def nests(run: Run) -> str:
    return nesting("sam")

@agent
def plain(run: Run) -> str:
    return contact()

writes = LLMAgent("writes", model=OpenAIModel("m", api_key="none", base_url=f"http://127.0.0.1:{{PORT}}"))
scripted = LLMAgent("scripted", model=ScriptedModel("a poem"))

MOCKS = {mocks}
SPEC = \"\"\"
Feature: contacts
  Scenario: it runs
    {given}
    When the agent runs
    Then the procedure should complete
\"\"\"
"""


class Receiver:
    """Something that listens, and knows whether it was contacted."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]

    @property
    def was_contacted(self) -> bool:
        try:
            self._socket.accept()[0].close()
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def tested(tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def tested(agent: str, mocks: dict[str, Any] | None = None) -> dict[str, Any]:
        given = 'Given the input goal is "write"' if agent in ("writes", "scripted") else ""
        text = AGENTS.format(port=receiver.port, mocks=repr(mocks or {}), given=given)
        (tmp_path / "agents.py").write_text(text)
        result = CliRunner().invoke(cli, ["test", f"agents.py:{agent}", "--mock", "--json"])
        (scenario,) = json.loads(result.stdout)["scenarios"]
        assert isinstance(scenario, dict)
        return scenario

    return tested


@pytest.mark.parametrize(
    ("agent", "named"),
    [
        ("reads", "look_up has no mock"),
        ("drafts", "draft has no mock"),
        ("nests", "look_up has no mock"),
        ("writes", "model has no mock"),
        ("fetches", "fetch contacts 127.0.0.1,"),
        ("fetches_async", "fetch_later contacts 127.0.0.1,"),
        ("plain", "the agent's own code contacts 127.0.0.1,"),
    ],
)
def test_what_is_not_mocked_is_named_and_not_contacted(
    agent: str, named: str, tested: Any, receiver: Receiver
) -> None:
    scenario = tested(agent)

    assert named in scenario["problem"]
    assert not scenario["ok"]
    assert not receiver.was_contacted


@pytest.mark.parametrize(
    ("agent", "mocks"),
    [
        ("reads", {"look_up": {"returns": "sam"}}),
        ("drafts", {"draft": {"returns": "text"}}),
        ("fetches", {"fetch": {"returns": "text"}}),
        ("fetches_async", {"fetch_later": {"returns": "text"}}),
        ("nests", {"look_up": {"returns": "sam"}}),
        ("plain", {"contact": {"returns": "text"}}),
        ("writes", {"model": {"returns": "a poem"}}),
        ("scripted", {}),
    ],
)
def test_what_is_mocked_or_contacts_nothing_runs(
    agent: str, mocks: dict[str, Any], tested: Any, receiver: Receiver
) -> None:
    scenario = tested(agent, mocks)

    assert scenario["ok"], scenario
    assert not receiver.was_contacted
