"""The tools: what each does to a task, what comes back, and that a retry has no second effect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from holdfast import Holdfast, Run, agent
from holdfast.mcp.reach import Identity
from support.mcp_tasks import (
    MODES,
    asking,
    call,
    connected,
    failing,
    migration,
    refusal,
    run,
    talk,
    waits,
    wordy,
)

ME = Identity("migration")


def test_every_tool_is_described_with_a_title_schemas_and_annotations(hf: Holdfast) -> None:
    """A client shows these to people and models."""

    async def look(client: Client) -> Any:
        return (await client.list_tools()).tools

    tools = talk(hf.store, Identity("migration", may_answer=True), look)

    names = {tool.name for tool in tools}
    assert {
        "start_task",
        "get_task",
        "list_tasks",
        "list_due",
        "wait_for_change",
        "patch_task",
        "append_facts",
        "add_questions",
        "answer_question",
        "signal_task",
        "resume_task",
        "hand_over_task",
    } == names
    for tool in tools:
        assert tool.title and tool.description and tool.annotations
        assert ("object", "object") == (tool.input_schema["type"], tool.output_schema["type"])
        assert tool.annotations.destructive_hint is False


@pytest.mark.parametrize("mode", MODES)
def test_a_task_is_started_once_for_one_key(hf: Holdfast, mode: str) -> None:
    """A client that retries after a lost response starts one task."""
    given = {"input": {"goal": "Move billing"}, "idempotency_key": "order-7"}

    first = call(hf.store, ME, "start_task", mode, **given)
    again = call(hf.store, ME, "start_task", mode, **given)

    assert (True, False) == (first["is_new"], again["is_new"])
    assert [first["task_id"]] == [row.id for row in hf.runs()] == [again["task_id"]]


def test_a_key_in_meta_counts_like_the_argument(hf: Holdfast) -> None:
    """Clients that retry by themselves put it there."""

    async def twice(client: Client) -> list[Any]:
        given: dict[str, Any] = {"input": {"goal": "x"}}
        meta: Any = {"holdfast/idempotency-key": "k"}
        return [
            (await client.call_tool("start_task", given, meta=meta)).structured_content
            for _ in range(2)
        ]

    first, again = talk(hf.store, ME, twice)

    assert first["task_id"] == again["task_id"]
    assert 1 == len(hf.runs())


def test_another_input_under_the_same_key_is_refused(hf: Holdfast) -> None:
    """A key stands for one request."""
    call(hf.store, ME, "start_task", input={"goal": "a"}, idempotency_key="k")

    assert (
        "InputConflict"
        == refusal(hf.store, ME, "start_task", input={"goal": "b"}, idempotency_key="k")["error"]
    )


def test_a_started_task_is_executed_by_a_worker(hf: Holdfast) -> None:
    """The server has none of the agent's code."""
    task = call(hf.store, ME, "start_task", input={"goal": "Move billing"})["task_id"]
    hf.worker(agents=[migration]).run(once=True)

    assert "waiting" == hf.get(task).status


def test_an_agent_that_no_worker_has_registered_is_named(tmp_path: Path) -> None:
    """And no other agent of the store is."""
    with Holdfast(tmp_path / "other.db", agents=[asking]) as other:
        other.worker().run(once=True)
        found = refusal(other.store, ME, "start_task", input={"goal": "x"})

    assert ("NotFound", False) == (found["error"], "asking" in found["message"])


def test_the_state_of_a_task_is_canonical(hf: Holdfast) -> None:
    """MISSION B: goal, plan, known facts, open questions, artifacts, risk flags, budget; and the version."""
    waits(hf, migration, "m", goal="Move billing")
    found = call(hf.store, ME, "get_task", task_id="m")

    assert ("Move billing", "waiting") == (found["goal"], found["status"])
    assert ["Check status", "Collect config", "Apply changes"] == found["plan"]
    assert [("service", "billing runs on the old cluster", "user")] == [
        (x["key"], x["value"], x["source"]) for x in found["known_facts"]
    ]
    assert ["Which namespace?"] == found["open_questions"]
    assert [("status.log", 36)] == [(x["name"], x["bytes"]) for x in found["artifacts"]]
    assert ("finished", "signal") == tuple(
        found["waiting_for"]["requests"][0][k] for k in ("name", "kind")
    )
    assert hf.get("m").seq == found["version"]


def test_a_patch_changes_all_parts_in_one_event(hf: Holdfast) -> None:
    """State keys and knowledge are recorded together."""
    waits(hf, migration, "m", goal="x")
    before = hf.get("m").seq
    done = call(
        hf.store,
        ME,
        "patch_task",
        task_id="m",
        expected_version=before,
        state={"namespace": "b"},
        facts=[{"key": "f", "value": [1]}],
        add_flags=["slow"],
        close_questions=["Which namespace?"],
        notes={"n": 1},
        plan=["One"],
        why="found out",
    )
    state = hf.get("m")

    assert before + 1 == done["version"] == state.seq
    assert {"namespace": "b"} == state.state
    assert ("f", [1], "mcp:migration") == tuple(
        getattr(state.facts[-1], k) for k in ("key", "value", "source")
    )
    assert (("slow",), (), {"n": 1}, ["One"]) == (
        state.flags,
        state.questions,
        state.notes,
        [s.name for s in state.plan],
    )


def test_a_patch_of_an_old_version_writes_nothing_and_shows_both_sides(hf: Holdfast) -> None:
    """Optimistic concurrency."""
    waits(hf, migration, "m", goal="x")
    before = hf.get("m").seq
    call(hf.store, ME, "patch_task", task_id="m", expected_version=before, state={"a": "theirs"})
    found = refusal(
        hf.store, ME, "patch_task", task_id="m", expected_version=before, state={"a": "mine"}
    )

    assert ("VersionConflict", before, before + 1) == tuple(
        found[k] for k in ("error", "expected_version", "current_version")
    )
    assert {"a": "mine"} == found["yours"]["state"]
    assert [{"path": "state.a", "before": None, "after": "theirs"}] == found["theirs"]
    assert {"a": "theirs"} == found["current"]["state"] == hf.get("m").state


def test_a_patch_that_is_sent_twice_with_a_key_is_recorded_once(hf: Holdfast) -> None:
    """Also though the first one has changed the version."""
    waits(hf, migration, "m", goal="x")
    given = {
        "task_id": "m",
        "expected_version": hf.get("m").seq,
        "idempotency_key": "p",
        "state": {"a": 1},
    }
    first = call(hf.store, ME, "patch_task", **given)
    again = call(hf.store, ME, "patch_task", **given)

    assert (True, False) == (first["is_new"], again["is_new"])
    assert first["version"] == again["version"] == hf.get("m").seq
    other = refusal(hf.store, ME, "patch_task", **{**given, "state": {"a": 2}})
    assert "InvalidInput" == other["error"]


def test_facts_of_two_agents_are_both_kept(hf: Holdfast) -> None:
    """Appending needs no version; the source names who said it."""
    waits(hf, migration, "m", goal="x")
    other = Identity("writer", ("migration",))
    call(hf.store, ME, "append_facts", task_id="m", facts=[{"key": "a", "value": 1}])
    call(
        hf.store,
        other,
        "append_facts",
        task_id="m",
        facts=[{"key": "b", "value": 2, "source": "web"}],
    )
    call(hf.store, other, "add_questions", task_id="m", questions=["Why?"])
    state = hf.get("m")

    assert [("a", "mcp:migration"), ("b", "mcp:writer (web)")] == [
        (fact.key, fact.source) for fact in state.facts[-2:]
    ]
    assert "Why?" in state.questions


def test_a_signal_with_a_key_is_received_once(hf: Holdfast) -> None:
    """A retry does not send a second one."""
    waits(hf, migration, "m", goal="x")
    for _ in range(2):
        call(hf.store, ME, "signal_task", task_id="m", name="other", value=1, idempotency_key="s")

    kinds = [record.kind for record, _ in hf.events("m")]
    assert 1 == kinds.count("signal_received")


def test_a_failed_task_is_resumed(hf: Holdfast, tmp_path: Path) -> None:
    """From its failed step, by a worker."""
    file = tmp_path / "there"
    waits(hf, failing, "f", file=str(file))
    file.touch()
    who = Identity("failing")

    assert "pending" == call(hf.store, who, "resume_task", task_id="f")["status"]
    hf.worker(agents=[failing]).run(once=True)
    assert "found" == hf.result("f")


def test_a_question_is_answered_if_the_operator_allows_it(hf: Holdfast) -> None:
    """Else there is no such tool."""
    waits(hf, asking, "q")
    call(hf.store, Identity("asking", may_answer=True), "answer_question", task_id="q", value="red")

    hf.worker(agents=[asking]).run(once=True)
    assert "red" == hf.result("q")


@agent(name="asks twice")
def asking_twice(run: Run) -> list[str]:
    return [str(run.ask(f"Question {n}", options=["yes", "no"])) for n in range(2)]


def test_an_answer_that_is_sent_again_does_not_answer_the_next_question(hf: Holdfast) -> None:
    waits(hf, asking_twice, "q")
    who = Identity("asker", ("*",), may_answer=True)

    def answers() -> None:
        call(hf.store, who, "answer_question", task_id="q", value="yes", idempotency_key="first")

    answers()
    hf.worker(agents=[asking_twice]).run(once=True)
    answers()

    assert ["Question 1"] == [wait.name for wait in hf.get("q").waits if not wait.decided]
    found = refusal(
        hf.store, who, "answer_question", task_id="q", value="no", idempotency_key="first"
    )
    assert "another request" in found["message"]


def test_a_resume_that_is_sent_again_lets_a_task_try_once(hf: Holdfast, tmp_path: Path) -> None:
    waits(hf, failing, "f", file=str(tmp_path / "missing"))
    for _ in range(2):
        call(hf.store, Identity("failing"), "resume_task", task_id="f", idempotency_key="k")
        hf.worker(agents=[failing]).run(once=True)

    assert 1 == sum(event.kind == "run_reopened" for _, event in hf.events("f"))


def test_a_key_starts_a_task_of_an_agent_whose_name_is_not_an_id(hf: Holdfast) -> None:
    hf.worker(agents=[asking_twice]).run(once=True)
    who = Identity("asker", ("asks twice",))
    started = [
        call(hf.store, who, "start_task", agent_id="asks twice", idempotency_key="k")
        for _ in range(2)
    ]

    assert [True, False] == [found["is_new"] for found in started]
    assert started[0]["task_id"].startswith("asks-twice-")


def test_long_texts_are_cut_in_lists(hf: Holdfast) -> None:
    """The URI of each entry has all of it."""
    waits(hf, wordy, "w")
    call(hf.store, Identity("wordy"), "hand_over_task", task_id="w", to_agent="b", note="n" * 8000)
    for tool in ("list_tasks", "list_due"):
        assert len(str(call(hf.store, Identity("wordy"), tool))) < 1500


def test_a_wait_for_a_change_ends_with_it(hf: Holdfast) -> None:
    """Made by any process; at once if it happened before."""
    waits(hf, migration, "m", goal="x")
    before = hf.get("m").seq

    async def main() -> tuple[Any, Any, Any]:
        import asyncio

        async with connected(hf.store, ME) as client, connected(hf.store, ME) as other:
            args = {"task_id": "m", "after_version": before, "timeout_seconds": 60}
            waiting = asyncio.create_task(client.call_tool("wait_for_change", args))
            await other.call_tool(
                "append_facts", {"task_id": "m", "facts": [{"key": "a", "value": 1}]}
            )
            first = (await waiting).structured_content
            at_once = await client.call_tool("wait_for_change", args)
            late = {**args, "after_version": before + 1, "timeout_seconds": 0}
            over = await client.call_tool("wait_for_change", late)
            return first, at_once.structured_content, over.structured_content

    first, at_once, over = run(main())

    assert (True, before + 1) == (first["changed"], first["version"])
    assert first == at_once
    assert over["changed"] is False


def test_lists_have_pages(hf: Holdfast) -> None:
    """Over several agents, each newest first."""
    for number in range(5):
        hf.start(migration, id=f"m{number}", goal="x")
        hf.start(asking, id=f"a{number}")
    who = Identity("migration", ("asking",))
    seen: list[str] = []
    cursor = ""
    while True:
        page = call(hf.store, who, "list_tasks", limit=3, cursor=cursor)
        seen += [task["task_id"] for task in page["tasks"]]
        if page["next"] is None:
            break
        cursor = page["next"]

    assert [f"{kind}{number}" for kind in "ma" for number in range(4, -1, -1)] == seen
    due = call(hf.store, who, "list_due", limit=100)
    assert 10 == len(due["tasks"])
