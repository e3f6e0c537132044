"""The client passes the same tests as `Holdfast`, through a real server: each test runs on all three."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from holdfast import Budget, Holdfast, RunWaiting, control
from holdfast.client import Client
from holdfast.core.patch import StatePatch
from holdfast.errors import (
    AccessDenied,
    AlreadyDecided,
    BudgetExceeded,
    Conflict,
    InputConflict,
    InvalidInput,
    NoSuchRun,
    NotFound,
    NotNow,
    NotStorable,
    RunBusy,
    RunCancelled,
    RunFailed,
    StoreUnavailable,
)
from holdfast.web.app import create_app
from holdfast.words.advice import refusal
from support.web import (
    AGENTS,
    TOKENS,
    Blocking,
    credentials,
    doubtful,
    job,
    mail,
    patient,
    quiz,
    serving,
    talker,
)


@pytest.fixture
def url(hf: Holdfast) -> Iterator[str]:
    with serving(create_app(hf, credentials=credentials())) as found:
        yield found


@pytest.fixture(params=["Holdfast", "Client", "AsyncClient"])
def outside(request: pytest.FixtureRequest, hf: Holdfast) -> Iterator[Any]:
    """The same methods on the store itself and through a server."""
    if request.param == "Holdfast":
        yield hf
        return
    url = request.getfixturevalue("url")
    made = Client if request.param == "Client" else Blocking
    client = made(url, token=TOKENS["admin"])
    yield client
    client.close()


def suspend(hf: Holdfast, agent: Any, run_id: str, **input: Any) -> None:
    with pytest.raises(RunWaiting):
        hf.run(agent, id=run_id, **input)


def work(hf: Holdfast) -> None:
    hf.worker(agents=AGENTS).run(once=True)


def test_a_run_is_started_by_name_and_its_result_awaited(hf: Holdfast, outside: Any) -> None:
    made = outside.start("job", id="a", n=4)
    assert ("a", "pending") == (made.id, made.status)
    assert "a" == outside.start("job", id="a", n=4).id
    with pytest.raises(InputConflict, match="different input"):
        outside.start("job", id="a", n=5)
    with pytest.raises(NotFound, match="not registered"):
        outside.start("nobody")
    with pytest.raises(InvalidInput, match="m"):
        outside.start("job", m=1)
    with pytest.raises(RunBusy):
        outside.result("a", timeout=0)
    work(hf)
    assert (5, "completed") == (made.result(timeout=60), made.status)


def test_client_and_library_read_the_same_values(hf: Holdfast, outside: Any) -> None:
    """Every part of a state, whatever it contains."""
    hf.run(talker, id="t", text="héllo \x00 \u202e")
    suspend(hf, mail, "m", to="sam@example.com")
    suspend(hf, doubtful, "d")
    for run_id in ("t", "m", "d"):
        state = outside.get(run_id)
        assert hf.get(run_id) == state
        assert hf.get(run_id, brief=True) == outside.get(run_id, brief=True)
        assert hf.value(run_id, state.state) == outside.value(run_id, state.state)
        assert hf.events(run_id) == outside.events(run_id)
        assert hf.events(run_id, after=1, limit=1) == outside.events(run_id, after=1, limit=1)
        assert hf.timeline(run_id) == outside.timeline(run_id)
        assert hf.verify(run_id) == outside.verify(run_id)
        assert hf.export(run_id) == outside.export(run_id)
    assert hf.at("t", 1, "before") == outside.at("t", 1, "before")
    assert hf.diff("t", 0, 1) == outside.diff("t", 0, 1)
    assert hf.result("t") == outside.result("t")
    assert list(hf.stream("t")) == list(outside.stream("t"))
    assert list(hf.stream("t", after=2)) == list(outside.stream("t", after=2))
    assert hf.runs() == outside.runs()
    assert hf.runs(status="waiting", limit=1) == outside.runs(status="waiting", limit=1)
    assert hf.runs(cursor=hf.runs()[0].cursor) == outside.runs(cursor=hf.runs()[0].cursor)
    assert hf.agents() == outside.agents()
    assert hf.schedules() == outside.schedules()
    assert hf.doctor().ok == outside.doctor().ok


def test_client_and_library_find_the_same_runs(hf: Holdfast, outside: Any) -> None:
    """Also one that reads logs; a page that is cut is continued."""
    for n in range(3):
        hf.run(job, id=f"job-{n}", n=n)
    for text in ("job-", "status:completed -job-1", "input.n:2", "state:seen", '"nothing"'):
        assert hf.search(text) == outside.search(text), text
    first = outside.search("agent:job", limit=2)
    rest = outside.search("agent:job", limit=2, cursor=first.next)
    assert ["job-2", "job-1", "job-0"] == [row.id for row in (*first.runs, *rest.runs)]
    with pytest.raises(InvalidInput, match="unknown key 'colour'"):
        outside.search("colour:red")


def test_many_runs_are_cancelled_and_resumed_after_a_preview(hf: Holdfast, outside: Any) -> None:
    suspend(hf, patient, "p-1")
    hf.run(job, id="p-2")
    plan = outside.bulk("cancel", "p-", dry_run=True)
    suspend(hf, patient, "p-3")
    assert [("p-2", False), ("p-1", True)] == [(o.run_id, o.acts) for o in plan.outcomes]
    assert not hf.get("p-1").cancel_requested
    done = outside.bulk("cancel", "p-", newest=plan.newest, why="enough")
    assert plan.outcomes == done.outcomes
    assert [True, False] == [hf.get(one).cancel_requested for one in ("p-1", "p-3")]
    outside.pause("p-3")
    with pytest.raises(NotFound, match="no such run: 'none', 'nor-this'; nothing was done"):
        outside.bulk("resume", runs=["p-3", "none", "nor-this"])
    assert "paused" == hf.get("p-3").status
    assert 1 == outside.bulk("resume", runs=["p-3", "p-2"]).acting
    assert "paused" != hf.get("p-3").status
    with pytest.raises(InvalidInput, match="choose which runs"):
        outside.bulk("cancel")


def test_client_and_library_raise_the_same_error_for_what_does_not_exist(outside: Any) -> None:
    for look in (
        outside.get,
        outside.verify,
        outside.events,
        outside.timeline,
        outside.result,
        outside.export,
    ):
        with pytest.raises(NoSuchRun, match="no run 'none'"):
            look("none")
    for act in (outside.approve, outside.cancel, outside.pause, outside.undo):
        with pytest.raises(NoSuchRun):
            act("none")
    with pytest.raises(NoSuchRun):
        list(outside.stream("none"))
    with pytest.raises(NotFound):
        outside.artifact("none", "x")
    with pytest.raises(InvalidInput, match="unknown status"):
        outside.runs(status="sleepy")


def test_a_request_is_decided_once(hf: Holdfast, outside: Any) -> None:
    suspend(hf, mail, "m", to="sam@example.com")
    asked = outside.get("m").waits[0]
    with pytest.raises(NotNow, match="different request"):
        outside.approve("m", digest="0" * 64)
    outside.approve("m", asked.id, why="fine", digest=asked.digest)
    with pytest.raises(AlreadyDecided):
        outside.reject("m", asked.id)
    work(hf)
    assert "sent to sam@example.com" == outside.result("m")
    with pytest.raises(NotNow, match="already completed"):
        outside.approve("m")


def test_a_call_is_approved_with_edited_arguments(hf: Holdfast, outside: Any) -> None:
    suspend(hf, mail, "m", to="sam@example.com")
    with pytest.raises(InvalidInput, match="'to' must be a string, not a number"):
        outside.approve("m", args={"to": 5})
    with pytest.raises(InvalidInput, match="exactly these"):
        outside.approve("m", args={})
    outside.approve("m", args={"to": "ann@example.com"}, why="Sam has left")
    work(hf)
    assert "sent to ann@example.com" == outside.result("m")
    assert "with edited arguments" in outside.get("m").lines[0].text


BIG = "x" * 100_000


@pytest.mark.parametrize(
    "value", [None, 0, "text", {"b": [1, 2.5]}, b"", b"\0\xff", BIG, BIG.encode()]
)
def test_an_item_is_found_as_it_was_put(outside: Any, value: Any) -> None:
    outside.record("graph", id="t", thread="t")
    assert outside.put_item("t", "notes", "a/b ü?&", value)
    assert not outside.put_item("t", "notes", "a/b ü?&", value)
    found = outside.item("t", "notes", "a/b ü?&")
    assert (value, 1) == (found.value, found.version)
    assert type(value) is type(found.value)


def test_items_are_listed_deleted_and_end_with_their_run(hf: Holdfast, outside: Any) -> None:
    """As on the store: the last one first, whichever versions they have had."""
    assert "t" == outside.record("graph", id="t", thread="t").id
    assert "t" == outside.record("graph", id="t", thread="t").id
    with pytest.raises(InputConflict):
        outside.record("graph", id="t", thread="u")
    for n in range(5):
        outside.put_item("t", "notes", f"k-{n}", n)
    outside.put_item("t", "notes", "k-1", "again")
    outside.put_item("t", "other", "k-9", 9)
    assert outside.delete_item("t", "notes", "k-3")
    assert not outside.delete_item("t", "notes", "k-3")
    for how in (
        {},
        {"collection": "notes"},
        {"prefix": "k-1"},
        {"limit": 2},
        {"limit": 0},
        {"after": 4},
    ):
        assert hf.items("t", **how) == outside.items("t", **how)
    assert ["k-1", "k-4", "k-2", "k-0"] == [x.key for x in outside.items("t", "notes")]
    assert outside.item("t", "notes", "k-3") is None
    with pytest.raises(NoSuchRun):
        outside.item("none", "notes", "k")
    with pytest.raises(InvalidInput, match="not the name of a collection"):
        outside.put_item("t", "no spaces", "k", 1)
    outside.finish("t", {"answer": 7})
    assert {"answer": 7} == outside.result("t")
    with pytest.raises(NotNow):
        outside.put_item("t", "notes", "k", 1)
    outside.delete("t")
    with pytest.raises(NoSuchRun):
        outside.items("t")


def test_pages_of_items_do_not_repeat_older_versions(
    hf: Holdfast, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf.record("graph", id="t")
    for n in range(7):
        hf.put_item("t", "notes", f"k-{n % 4}", n)
    monkeypatch.setattr("holdfast.client.calls.PAGE", 2)
    with Client(url, token=TOKENS["viewer"]) as client:
        assert hf.items("t") == client.items("t")
        assert hf.items("t", limit=3) == client.items("t", limit=3)


def test_a_rejected_run_fails_with_the_same_error(hf: Holdfast, outside: Any) -> None:
    suspend(hf, mail, "m", to="sam@example.com")
    outside.reject("m", why="wrong address")
    work(hf)
    with pytest.raises(RunFailed) as found:
        outside.result("m")
    assert ("m", "Rejected", "error") == (
        found.value.run_id,
        found.value.error_type,
        found.value.reason,
    )
    assert "holdfast show m" in str(found.value)


def test_questions_and_signals_are_answered(hf: Holdfast, outside: Any) -> None:
    suspend(hf, quiz, "q")
    with pytest.raises(InvalidInput, match="not one of the options"):
        outside.answer("q", "z")
    outside.answer("q", "b")
    suspend(hf, patient, "p")
    with pytest.raises(NotStorable, match=r"\$"):
        outside.signal("p", "go", object())
    with pytest.raises(InvalidInput, match="name"):
        outside.signal("p", " ")
    outside.signal("p", "go", {"n": [1, None, "x"]}, signal_id="1")
    outside.signal("p", "go", "again", signal_id="1")
    work(hf)
    assert ("b", {"n": [1, None, "x"]}) == (outside.result("q"), outside.result("p"))
    assert b"0123456789" * 10 == outside.artifact("p", "report.txt")


@pytest.mark.parametrize("way", [{"done": 7}, {"failed": "no"}, {"retry": True}])
def test_a_call_in_doubt_is_resolved(hf: Holdfast, outside: Any, way: dict[str, Any]) -> None:
    suspend(hf, doubtful, "d")
    with pytest.raises(InvalidInput, match="exactly one"):
        outside.resolve("d", done=1, retry=True)
    outside.resolve("d", 2, why="looked", **way)
    assert "looked" in [e.why for _, e in hf.events("d") if e.kind == "call_resolved"]  # type: ignore[attr-defined]
    if "done" in way:
        work(hf)
        assert 7 == outside.result("d")


def test_a_patch_is_bound_to_a_version_and_a_key(hf: Holdfast, outside: Any) -> None:
    suspend(hf, patient, "p")
    seq = outside.get("p").seq
    patch = partial(control.patch, hf.store) if outside is hf else outside.patch
    assert patch("p", {"a": 1}, delete=["asked"], expected=seq, key="k")
    assert not patch("p", {"a": 1}, delete=["asked"], expected=seq, key="k")
    with pytest.raises(Conflict, match="expected its log to end"):
        patch("p", {"a": 2}, expected=seq)
    patch("p", [{"op": "add", "path": "/state/b", "value": [1]}])
    patch("p", StatePatch(facts={"x": 1}, flags=["odd"]))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        patch("p", [{"op": "remove", "path": "/state/nothing"}])
    state = outside.get("p")
    assert {"a": 1, "b": [1]} == state.state
    assert (["x"], ("odd",)) == ([fact.key for fact in state.facts], state.flags)


def test_runs_are_paused_cancelled_and_forked(hf: Holdfast, outside: Any) -> None:
    suspend(hf, patient, "p")
    outside.pause("p", why="later")
    assert "paused" == outside.get("p").status
    with pytest.raises(NotNow, match="already paused"):
        outside.pause("p")
    outside.cancel("p", why="enough")
    work(hf)
    with pytest.raises(RunCancelled, match="enough"):
        outside.result("p")
    with pytest.raises(NotNow, match="nothing to undo"):
        outside.undo("p")
    hf.run(job, id="a", n=1)
    forked = outside.fork("a", 1, id="b", state={"seen": 9})
    assert ("b", "pending") == (forked.id, forked.status)
    with pytest.raises(InvalidInput, match="already exists"):
        outside.fork("a", 1, id="b")
    with pytest.raises(NotFound, match="no step 9"):
        outside.fork("a", 9)
    work(hf)
    assert 2 == forked.result(timeout=60)


def test_the_remedies_of_a_refusal_are_data_through_a_server_too(
    hf: Holdfast, outside: Any
) -> None:
    suspend(hf, patient, "p")

    with pytest.raises(NotNow, match="has nothing to undo") as refused:
        outside.undo("p")

    (remedy,) = refused.value.remedies
    assert ("hf.cancel('p')", ("cancel", "p")) == (remedy.call, remedy.words)
    assert "holdfast cancel p --db http://h" in refusal(refused.value, "http://h")


def test_limits_hold_and_can_be_raised(hf: Holdfast, outside: Any) -> None:
    outside.start("job", id="a", n=1, budget=Budget(max_steps=0), deadline=600)
    work(hf)
    with pytest.raises(BudgetExceeded, match="budget"):
        outside.result("a")
    if outside is hf:
        assert 2 == outside.resume("a", budget=Budget(max_steps=5))
        return
    outside.resume("a", budget=Budget(max_steps=5), why="more")
    work(hf)
    assert 2 == outside.result("a")


def test_runs_are_deleted_and_imported(hf: Holdfast, outside: Any) -> None:
    hf.run(job, id="a")
    lines = outside.export("a")
    assert ("a",) == outside.gc(keep=0, dry_run=True).runs
    assert ("a",) == outside.gc(keep=0).runs
    assert "completed" == outside.import_run(lines).status
    outside.delete("a")
    with pytest.raises(NoSuchRun):
        outside.delete("a")
    suspend(hf, patient, "p")
    with pytest.raises(NotNow, match="only a run that has ended"):
        outside.delete("p")
    with pytest.raises(InvalidInput, match="holdfast export"):
        outside.import_run(["nonsense"])
    with pytest.raises(NotFound):
        outside.unschedule("none")


# ── only clients ─────────────────────────────────────────────────────────────────────────────


def test_a_stream_follows_a_run_that_is_executed_meanwhile(hf: Holdfast, url: str) -> None:
    with Client(url, token=TOKENS["operator"]) as client:
        made = client.start("job", id="a")
        following = made.stream()
        assert "run_created" == next(following)[1].kind
        work(hf)
        assert "run_completed" == list(following)[-1][1].kind


def test_a_weak_or_wrong_token_is_an_error(hf: Holdfast, url: str) -> None:
    hf.run(job, id="a")
    with Client(url, token=TOKENS["viewer"]) as client:
        assert ("vic", "viewer") == (client.whoami().name, client.whoami().role)
        with pytest.raises(AccessDenied, match="needs the role operator"):
            client.cancel("a")
    with Client(url, token="hf_wrong") as client, pytest.raises(AccessDenied, match="credential"):
        client.get("a")


def test_a_server_that_cannot_be_reached_raises_store_unavailable() -> None:
    unreachable = pytest.raises(StoreUnavailable, match="cannot reach the server")
    with Client("http://127.0.0.1:9", token="x") as client, unreachable:
        client.runs()
    for wrong in ("h.db", "postgresql://u:secret@h/d"):
        with pytest.raises(InvalidInput, match="needs the URL of a server") as found:
            Client(wrong, token="x")
        assert "secret" not in str(found.value)


def test_ids_are_escaped_in_the_url(url: str) -> None:
    """Path traversal by a run id (FAULTS 107)."""
    with Client(url, token=TOKENS["viewer"]) as client:
        for wrong in ("../agents", "a/b", "", "a?x=1"):
            with pytest.raises(InvalidInput, match="not a run id"):
                client.get(wrong)
        with pytest.raises(NotFound):
            client.artifact("a", "../../../agents")
