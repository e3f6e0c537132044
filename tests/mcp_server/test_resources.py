"""Resources: what there is, what one contains, how large values are cut, and completion."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mcp import Client

from holdfast import AgentState, Holdfast, Run, agent, loop
from holdfast.mcp import cut
from holdfast.mcp.reach import Identity
from support.mcp_tasks import MODES, asking, migration, read, talk, waits

ME = Identity("migration")
TEXT = "é" * 100_000


@agent
def verbose(run: Run) -> str:
    """Knows far more than fits in one document."""
    run.state.essay = TEXT
    run.state.small = "kept"
    for number in range(300):
        run.fact(f"fact {number}", "word " * 100)
    run.artifact("essay.txt", TEXT.encode(), type="text")
    run.artifact("a/b ü.bin", bytes(range(256)) * 1000, type="binary")
    for number in range(150):
        run.messages.add("user", f"message {number}")
    return str(run.wait_for("finished"))


@loop(max_iterations=3)
def looping(run: Run, state: AgentState) -> AgentState:
    known = state.with_plan(["One", "Two"]).with_fact("k", 1, source="here")
    return known.to_done("ok") if run.wait_for("finished") else state


def contents(hf: Holdfast, who: Identity, uri: str) -> Any:
    async def say(client: Client) -> Any:
        return (await client.read_resource(uri)).contents[0]

    return talk(hf.store, who, say)


@pytest.mark.parametrize("mode", MODES)
def test_tasks_are_listed_with_paging_and_templates(hf: Holdfast, mode: str) -> None:
    """In both versions of the protocol."""
    for number in range(60):
        hf.start(migration, id=f"m{number:02}", goal="x")

    async def look(client: Client) -> Any:
        first = await client.list_resources()
        second = await client.list_resources(cursor=first.next_cursor)
        shapes = await client.list_resource_templates()
        return first, second, [x.uri_template for x in shapes.resource_templates]

    first, second, shapes = talk(hf.store, ME, look, mode)

    uris = [str(x.uri) for x in (*first.resources, *second.resources)]
    assert ["state://agents", "state://agents/migration/tasks"] == uris[:2]
    assert [f"state://agents/migration/tasks/m{n:02}" for n in range(59, -1, -1)] == uris[2:]
    assert second.next_cursor is None
    assert "state://agents/{agent_id}/tasks/{task_id}" in shapes
    assert "state://agents/{agent_id}/tasks/{task_id}/events{?after}" in shapes


def test_lists_of_agents_and_tasks_are_resources(hf: Holdfast) -> None:
    """With the URI of the next page."""
    for number in range(60):
        hf.start(migration, id=f"m{number:02}", goal="x")
    agents = read(hf.store, Identity("migration", ("asking",)), "state://agents")
    page = read(hf.store, ME, "state://agents/migration/tasks?status=pending")
    rest = read(hf.store, ME, page["next"])

    assert ["migration", "asking"] == [x["agent_id"] for x in agents["agents"]]
    assert (50, 10, None) == (len(page["tasks"]), len(rest["tasks"]), rest["next"])


def test_a_step_shows_what_was_known_before_and_after(hf: Holdfast) -> None:
    """And the call itself, verbatim."""
    uri = waits(hf, migration, "m", goal="x")
    found = read(hf.store, ME, f"{uri}/steps/1")

    assert ("look", "done") == (found["call"]["tool"], found["call"]["status"])
    assert "billing runs on the old cluster" == found["call"]["result"]
    assert ([], 1) == (found["before"]["known_facts"], len(found["after"]["known_facts"]))
    assert "known_facts[0]" in [change["path"] for change in found["changes"]]


def test_events_after_a_version_are_all_that_was_missed(hf: Holdfast) -> None:
    """A subscriber that reconnects asks by version, and misses nothing."""
    uri = waits(hf, migration, "m", goal="x")
    everything = read(hf.store, ME, f"{uri}/events")
    later = read(hf.store, ME, f"{uri}/events?after=3")

    versions = [event["version"] for event in everything["events"]]
    assert list(range(hf.get("m").seq + 1)) == versions
    assert everything["events"][4:] == later["events"]
    assert [] == read(hf.store, ME, f"{uri}/events?after={versions[-1]}")["events"]


def test_messages_and_artifacts_are_resources(hf: Holdfast) -> None:
    """The dialogue, and a large output by its name."""
    uri = waits(hf, migration, "m", goal="Move billing")
    said = read(hf.store, ME, f"{uri}/messages")["messages"]
    log = contents(hf, ME, f"{uri}/artifacts/status.log")

    assert [("user", "Move billing")] == [(x["role"], x["content"]) for x in said]
    assert "all is well\n" * 3 == log.text
    assert log.meta["holdfast/untrusted"] is True


def test_what_is_too_large_is_cut_with_the_uri_of_the_rest(hf: Holdfast) -> None:
    """Every cut value can be read whole, piece by piece."""
    uri = waits(hf, verbose, "v")
    who = Identity("verbose")
    found = contents(hf, who, uri)
    state = json.loads(found.text)
    essay = state["state"]["essay"]

    assert len(found.text.encode()) < 1.5 * cut.DOCUMENT_BYTES_MAX
    assert "kept" == state["state"]["small"]
    assert (True, 300) == (essay["cut"], state["known_facts"][0]["items"])
    assert "fact 299" == state["known_facts"][-1]["key"]
    assert TEXT == whole(hf, who, essay["rest"])
    facts = json.loads(whole(hf, who, state["known_facts"][0]["rest"]))
    assert [f"fact {n}" for n in range(300)] == [fact["key"] for fact in facts]


def whole(hf: Holdfast, who: Identity, uri: str) -> str:
    """All pieces of a resource, one after the other."""
    pieces = []
    while uri:
        piece = contents(hf, who, uri)
        assert len(piece.text.encode()) <= cut.DOCUMENT_BYTES_MAX
        pieces.append(piece.text)
        uri = piece.meta.get("holdfast/next", "")
    return "".join(pieces)


def test_large_artifacts_come_in_pieces(hf: Holdfast) -> None:
    """Text is cut between characters; what is not text is base64."""
    import base64

    uri = waits(hf, verbose, "v")
    who = Identity("verbose")
    data = b""
    following = f"{uri}/artifacts/a%2Fb%20%C3%BC.bin"
    while following:
        piece = contents(hf, who, following)
        data += base64.b64decode(piece.blob)
        following = piece.meta.get("holdfast/next", "")

    assert TEXT == whole(hf, who, f"{uri}/artifacts/essay.txt")
    assert bytes(range(256)) * 1000 == data


def test_long_logs_and_dialogues_have_pages(hf: Holdfast) -> None:
    """Each page names the next one."""
    uri = waits(hf, verbose, "v")
    who = Identity("verbose")
    for kind, key, expected in (("messages", "number", 150), ("events", "version", None)):
        seen: list[int] = []
        following = f"{uri}/{kind}"
        while following:
            page = read(hf.store, who, following)
            seen += [one[key] for one in page[kind]]
            following = page["next"]
        assert list(range(expected or hf.get("v").seq + 1)) == seen


def test_the_state_of_a_loop_is_canonical_too(hf: Holdfast) -> None:
    """Its own goal, plan and facts, not those of the run around it."""
    uri = waits(hf, looping, "l", goal="Move billing")
    found = read(hf.store, Identity("looping"), uri)

    assert ("Move billing", "looping") == (found["goal"], found["agent_id"])
    assert "planning" == found["phase"]


@pytest.mark.parametrize("mode", MODES)
def test_templates_are_completed(hf: Holdfast, mode: str) -> None:
    """Agents, tasks, statuses, steps and artifacts, each only within reach."""
    waits(hf, migration, "move-1", goal="x")
    hf.start(migration, id="other-2", goal="x")
    hf.start(asking, id="move-3")
    template = "state://agents/{agent_id}/tasks/{task_id}"

    async def look(client: Client) -> list[list[str]]:
        found = []
        for shape, name, begun, known in (
            (template, "agent_id", "", {}),
            (template, "task_id", "mo", {"agent_id": "migration"}),
            ("state://agents/{agent_id}/tasks{?status,cursor}", "status", "p", {}),
            (f"{template}/artifacts/{{name}}{{?offset}}", "name", "", {"task_id": "move-1"}),
            (f"{template}/steps/{{n}}", "n", "", {"task_id": "move-1", "agent_id": "migration"}),
        ):
            ref: Any = {"type": "ref/resource", "uri": shape}
            done = await client.complete(
                ref, {"name": name, "value": begun}, context_arguments=known
            )
            found.append(done.completion.values)
        return found

    expected = [["migration"], ["move-1"], ["pending", "paused"], ["status.log"], ["1"]]
    assert expected == talk(hf.store, ME, look, mode)
