"""The HTTP API: what each operation does, its problems, idempotency, versions, pages, streams and ranges."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from holdfast import Holdfast, RunWaiting
from holdfast.api.operations import OPERATIONS
from holdfast.web.api.handlers import HANDLERS
from support.web import AGENTS, TOKENS, job, mail, patient, quiz

API = "/api/v1"


def suspend(hf: Holdfast, agent: Any, run_id: str, **input: Any) -> None:
    with pytest.raises(RunWaiting):
        hf.run(agent, id=run_id, **input)


def work(hf: Holdfast) -> None:
    hf.worker(agents=AGENTS).run(once=True)


def as_(role: str) -> dict[str, str]:
    return {"authorization": f"Bearer {TOKENS[role]}"}


def test_every_operation_has_a_handler() -> None:
    assert {op.verb for op in OPERATIONS} == {*HANDLERS, "stream"}


def test_a_run_is_started_executed_and_read(hf: Holdfast, client: TestClient) -> None:
    made = client.post(f"{API}/runs", json={"agent": "job", "input": {"n": 4}, "id": "a"})
    assert (201, f"{API}/runs/a") == (made.status_code, made.headers["location"])
    again = client.post(f"{API}/runs", json={"agent": "job", "input": {"n": 4}, "id": "a"})
    assert (200, False) == (again.status_code, again.json()["is_new"])
    work(hf)
    state = client.get(f"{API}/runs/a").json()
    assert ("completed", {"seen": 5}) == (state["status"], state["state"])
    outcome = client.get(f"{API}/runs/a/result").json()
    assert {"json": 5} == outcome["result"]
    assert "ada" == hf.events("a")[0][1].by  # type: ignore[attr-defined]


def test_a_decision_is_recorded_with_the_person_who_is_signed_in(
    hf: Holdfast, client: TestClient
) -> None:
    """A name in the body is refused, not ignored."""
    suspend(hf, mail, "m", to="sam@example.com")
    forged = client.post(f"{API}/runs/m/approve", json={"by": "the boss"}, headers=as_("approver"))
    assert 422 == forged.status_code
    asked = client.get(f"{API}/inbox").json()["items"][0]["requests"][0]
    body = {"digest": asked["digest"], "why": "fine"}
    assert (
        200 == client.post(f"{API}/runs/m/approve", json=body, headers=as_("approver")).status_code
    )
    decided = [e for _, e in hf.events("m") if e.kind == "approval_decided"]
    assert [("ann", "fine")] == [(e.by, e.why) for e in decided]  # type: ignore[attr-defined]
    second = client.post(f"{API}/runs/m/reject", json={})
    assert (409, "urn:holdfast:problem:already-decided") == (
        second.status_code,
        second.json()["type"],
    )
    assert "ann" in second.json()["detail"]


def test_an_approval_of_other_bytes_than_shown_is_refused(hf: Holdfast, client: TestClient) -> None:
    suspend(hf, mail, "m", to="sam@example.com")
    found = client.post(f"{API}/runs/m/approve", json={"digest": "0" * 64})
    assert (409, "urn:holdfast:problem:not-now") == (found.status_code, found.json()["type"])


def test_answers_signals_and_lifecycle(hf: Holdfast, client: TestClient) -> None:
    suspend(hf, quiz, "q")
    wrong = client.post(f"{API}/runs/q/answer", json={"value": "z"})
    assert 422 == wrong.status_code
    assert 200 == client.post(f"{API}/runs/q/answer", json={"value": "b"}).status_code
    suspend(hf, patient, "p")
    sent = {"name": "go", "value": {"x": 1}, "signal_id": "1"}
    assert 200 == client.post(f"{API}/runs/p/signal", json=sent).status_code
    assert 200 == client.post(f"{API}/runs/p/pause", json={"why": "later"}).status_code
    assert "paused" == client.get(f"{API}/runs/p/row").json()["status"]
    assert "pending" == client.post(f"{API}/runs/p/resume", json={}).json()["status"]
    work(hf)
    assert "b" == hf.result("q")
    assert {"x": 1} == hf.result("p")
    forked = client.post(f"{API}/runs/nothing/fork", json={"step": 1})
    assert (404, "urn:holdfast:problem:no-such-run") == (forked.status_code, forked.json()["type"])


def test_idempotency_keys_belong_to_a_credential_and_a_request(
    hf: Holdfast, client: TestClient
) -> None:
    def start(role: str, n: int) -> Any:
        headers = {**as_(role), "idempotency-key": "k-1"}
        body = {"agent": "job", "input": {"n": n}}
        return client.post(f"{API}/runs", json=body, headers=headers)

    first, replayed, other = start("operator", 1), start("operator", 1), start("operator", 2)
    assert [201, 200, 422] == [x.status_code for x in (first, replayed, other)]
    assert first.json()["run"]["id"] == replayed.json()["run"]["id"]
    assert "true" == replayed.headers["idempotency-replayed"]
    assert "urn:holdfast:problem:key-reused" == other.json()["type"]
    assert first.json()["run"]["id"] != start("admin", 1).json()["run"]["id"]
    assert 2 == len(hf.runs())


def test_limits_are_set_at_the_start(hf: Holdfast, client: TestClient) -> None:
    body = {"agent": "job", "id": "a", "deadline": 60, "budget": {"max_steps": 0}}
    assert 201 == client.post(f"{API}/runs", json=body).status_code
    state = hf.get("a")
    assert {"max_steps": 0} == state.budget
    assert state.deadline_at is not None


def test_a_patch_needs_the_version_that_was_read(hf: Holdfast, client: TestClient) -> None:
    suspend(hf, patient, "p")
    url = f"{API}/runs/p/state"
    etag = client.get(f"{API}/runs/p").headers["etag"]
    assert 304 == client.get(f"{API}/runs/p", headers={"if-none-match": etag}).status_code
    assert 428 == client.patch(url, json={"set": {"a": 1}}).status_code
    good = client.patch(url, json={"set": {"a": 1}}, headers={"if-match": etag})
    assert 200 == good.status_code, good.text
    stale = client.patch(url, json={"set": {"a": 2}}, headers={"if-match": etag})
    problem = stale.json()
    assert (412, "urn:holdfast:problem:version-conflict") == (stale.status_code, problem["type"])
    assert {"path": "state.a", "after": 1, "before": None} in problem["context"]["since"]
    assert 200 == client.patch(url, json={"delete": ["a"]}, headers={"if-match": "*"}).status_code
    ops = [{"op": "add", "path": "/state/b", "value": 3}]
    assert 200 == client.patch(url, json={"operations": ops}, headers={"if-match": "*"}).status_code
    assert {"asked": True, "b": 3} == hf.get("p").state


def test_lists_are_paged_by_cursor(hf: Holdfast, client: TestClient) -> None:
    for n in range(5):
        hf.run(job, id=f"r{n}")
    seen, after = [], ""
    while after is not None:
        page = client.get(f"{API}/runs", params={"limit": 2, "after": after}).json()
        seen += [row["id"] for row in page["items"]]
        after = page["next"]
    assert ["r4", "r3", "r2", "r1", "r0"] == seen
    events = client.get(f"{API}/runs/r0/events", params={"limit": 1}).json()
    rest = client.get(f"{API}/runs/r0/events", params={"after": events["next"]}).json()
    assert [0, 1] == [events["items"][0]["seq"], rest["items"][0]["seq"]]
    assert (False, True) == (events["has_ended"], rest["has_ended"])


@pytest.mark.parametrize(
    ("path", "params", "status"),
    [
        ("runs", {"limit": "0"}, 422),
        ("runs", {"limit": "1001"}, 422),
        ("runs", {"limit": "x"}, 422),
        ("runs", {"nonsense": "1"}, 422),
        ("runs", {"status": "sleepy"}, 422),
        ("runs", {"after": "9" * 30}, 422),
        ("runs/none", {}, 404),
        ("runs/none/events", {}, 404),
        ("runs/none/stream", {}, 404),
        ("runs/%2e%2e%2fx", {}, 404),
        ("nothing", {}, 404),
    ],
)
def test_invalid_requests_are_answered_with_a_problem_document(
    client: TestClient, path: str, params: dict[str, str], status: int
) -> None:
    found = client.get(f"{API}/{path}", params=params)
    assert (status, "application/problem+json") == (
        found.status_code,
        found.headers["content-type"],
    )
    assert found.json()["detail"]


@pytest.mark.parametrize(
    ("content", "type_", "status", "pointer"),
    [
        (b"{", "application/json", 400, None),
        (b"[]", "application/json", 422, ""),
        (b'{"agent": 1}', "application/json", 422, "/agent"),
        (b'{"agent": "job", "priority": "5"}', "application/json", 422, "/priority"),
        (
            b'{"agent": "job", "budget": {"max_steps": -1}}',
            "application/json",
            422,
            "/budget/max_steps",
        ),
        (b'{"agent": "job", "extra": 1}', "application/json", 422, ""),
        (b'{"agent": "job"}', "text/plain", 415, None),
        (b"agent=job", "application/x-www-form-urlencoded", 415, None),
        (b'{"agent": "job", "input": {"m": 1}}', "application/json; charset=utf-8", 422, None),
        (b'{"agent": "nobody"}', "application/json", 404, None),
        (b'{"agent": "job", "input": {"n": ' + b"[" * 100_000, "application/json", 400, None),
        (b"\xff\xfe", "application/json", 400, None),
    ],
)
def test_an_invalid_body_is_refused_with_the_path_to_the_error(
    client: TestClient, content: bytes, type_: str, status: int, pointer: str | None
) -> None:
    found = client.post(f"{API}/runs", content=content, headers={"content-type": type_})
    assert status == found.status_code, found.text
    if pointer is not None:
        assert pointer == found.json()["errors"][0].get("pointer", "")


def messages(text: str) -> list[dict[str, str]]:
    """Server-sent events, parsed."""
    found = []
    for block in text.split("\n\n"):
        lines = [line.partition(": ")[::2] for line in block.splitlines() if ": " in line]
        found.append(dict(lines))
    return [one for one in found if "event" in one]


def test_a_stream_resumes_after_the_last_event_and_ends_with_the_run(
    hf: Holdfast, client: TestClient
) -> None:
    hf.run(job, id="a")
    known = [r.seq for r, _ in hf.events("a")]
    whole = client.get(f"{API}/runs/a/stream")
    assert "text/event-stream" in whole.headers["content-type"]
    *sent, end = messages(whole.text)
    assert known == [int(one["id"]) for one in sent]
    assert ("end", True) == (end["event"], "retry: 2000" in whole.text)
    rest = client.get(f"{API}/runs/a/stream?after=0", headers={"last-event-id": "1"})
    assert known[2:] == [int(one["id"]) for one in messages(rest.text)[:-1]]
    first = json.loads(sent[0]["data"])
    assert ("run_created", "job") == (first["kind"], first["data"]["agent"])
    assert 422 == client.get(f"{API}/runs/a/stream", headers={"last-event-id": "x"}).status_code
    assert 422 == client.get(f"{API}/runs/a/stream?after={2**63}").status_code


def test_artifacts_are_downloads_with_ranges(hf: Holdfast, client: TestClient) -> None:
    suspend(hf, patient, "p")
    url = f"{API}/runs/p/artifacts/report.txt"
    whole = client.get(url)
    assert b"0123456789" * 10 == whole.content
    assert whole.headers["content-disposition"].startswith("attachment")
    assert "application/octet-stream" == whole.headers["content-type"]

    def part(wanted: str, **more: str) -> tuple[int, bytes]:
        found = client.get(url, headers={"range": wanted, **more})
        return found.status_code, found.content

    assert (206, b"234") == part("bytes=2-4")
    assert (206, b"89") == part("bytes=-2")
    assert (206, b"9") == part("bytes=99-")
    assert 416 == part("bytes=100-")[0]
    assert 416 == part("bytes=-0")[0]
    for ignored in ("bytes=4-2", "bytes=0-1,3-4", "lines=1-2", "bytes=-", "bytes=a-b"):
        assert (200, whole.content) == part(ignored)
    assert 200 == part("bytes=0-1", **{"if-range": '"other"'})[0]
    assert 304 == client.get(url, headers={"if-none-match": whole.headers["etag"]}).status_code
    hash_ = whole.headers["etag"].strip('"')
    by_hash = client.get(f"{API}/runs/p/blobs/{hash_}")
    assert (whole.content, True) == (
        by_hash.content,
        "immutable" in by_hash.headers["cache-control"],
    )
    assert 404 == client.get(f"{API}/runs/p/blobs/{'0' * 64}").status_code


def test_a_run_is_exported_and_imported(hf: Holdfast, client: TestClient) -> None:
    suspend(hf, patient, "p")
    lines = client.get(f"{API}/runs/p/export").text
    assert hf.export("p") == lines.splitlines()
    hf.cancel("p")
    hf.worker(agents=AGENTS).run(once=True)
    assert 200 == client.post(f"{API}/gc", json={"keep": 0}).status_code
    made = client.post(f"{API}/imports", content=lines)
    assert (201, "paused") == (made.status_code, made.json()["status"])
    assert 422 == client.post(f"{API}/imports", content="nonsense").status_code


def test_a_start_can_wait_for_the_end(hf: Holdfast, client: TestClient) -> None:
    suspend(hf, patient, "p")
    hf.signal("p", "go", 7)
    work(hf)
    waited = client.get(f"{API}/runs/p/result?wait=60").json()
    assert ("completed", {"json": 7}) == (waited["status"], waited["result"])
    made = client.post(f"{API}/runs?wait=0.01", json={"agent": "job"}).json()
    assert not made.get("has_ended", False)


def test_the_openapi_document_is_valid_and_complete(client: TestClient) -> None:
    from openapi_spec_validator import validate

    document = client.get(f"{API}/openapi.json").json()
    validate(document)
    described = {m["operationId"] for path in document["paths"].values() for m in path.values()}
    assert {op.verb for op in OPERATIONS} == described
    assert "Reject a request." in client.get(API).text


def test_calls_are_paged_and_current_even_if_the_run_is_replaced(
    hf: Holdfast, client: TestClient
) -> None:
    """What the server keeps of a log is never older than the log."""
    hf.run(job, id="a", n=1)
    suspend(hf, patient, "p")

    def calls(run_id: str, **params: int) -> Any:
        return client.get(f"{API}/runs/{run_id}/calls", params=params).json()

    assert [("look", 1, {"n": 1})] == [
        (c["name"], c["step"], c["args"]["json"]) for c in calls("a")["items"]
    ]
    assert ([], None) == (calls("a", after=1)["items"], calls("a", after=1)["next"])
    hf.delete("a")
    assert 404 == client.get(f"{API}/runs/a/calls").status_code
    hf.run(job, id="a", n=5)
    assert [{"n": 5}] == [c["args"]["json"] for c in calls("a")["items"]]
    before = calls("p")["seq"]
    hf.signal("p", "go")
    assert before < calls("p")["seq"]
