"""The pages without a browser: who may do what, what is vendored, what templates may contain, and the pure parts."""

from __future__ import annotations

import hashlib
import html
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from holdfast import Holdfast, Run, agent, control, tool, views
from holdfast.core.log import Record
from holdfast.errors import InvalidInput, NotNow, RunCancelled, RunFailed, RunWaiting
from holdfast.store.sqlite.store import SQLiteStore
from holdfast.views.fleet import fleet, tally
from holdfast.views.search_result import parse, search
from holdfast.views.spans import Spans, grouped
from holdfast.views.state import Checkpoints, around
from holdfast.web.app import create_app
from holdfast.web.pages.chart import Gap, Scale, Strip, idle_gaps
from holdfast.web.pages.json_html import json_html
from holdfast.web.pages.render import STATIC
from holdfast.web.reader import RunReader
from support import gallery
from support.web import TOKENS, credentials, job, mail, patient, quiz

TEMPLATES = STATIC.parent / "templates"
VENDORED = {
    "htmx.min.js": "e484d9171a9db30a39c8f16e3d709d4137f3211c659f8e6125816635033d593f",  # htmx.org 4.0.0
    "hx-sse.min.js": "8a834680c4000a9034d79228872372a92e140c810a075cb6d4a76690dfc13085",  # the same
}


@pytest.mark.parametrize("name", VENDORED)
def test_a_vendored_file_is_the_published_one(name: str) -> None:
    """Its checksum is that of the package; the licence is next to it."""
    assert VENDORED[name] == hashlib.sha256((STATIC / name).read_bytes()).hexdigest()
    assert (STATIC / "htmx-LICENSE").read_text().startswith("Zero-Clause BSD")


@pytest.mark.parametrize("path", sorted(TEMPLATES.rglob("*.html")), ids=lambda p: p.name)
def test_a_template_needs_no_inline_script_or_style_and_escapes_everything(path: Path) -> None:
    """The content security policy forbids them, and `|safe` would undo the escaping."""
    text = path.read_text(encoding="utf-8")
    found = re.findall(
        r'\son[a-z]+="|\sstyle=|<script(?! src=)|<style|hx-on|js:|\|\s*safe|autoescape false|https?://',
        text,
    )
    assert [] == found


def test_what_a_page_loads_is_small() -> None:
    """PAGE.md 9: script up to 60 KB, style up to 34."""
    script = sum(
        (STATIC / name).stat().st_size
        for name in ("htmx.min.js", "hx-sse.min.js", "holdfast.js", "theme.js")
    )
    assert script < 60 * 1024
    assert (STATIC / "holdfast.css").stat().st_size < 34 * 1024


# ── who may ──────────────────────────────────────────────────────────────────────────────────

POSTS = {
    "/runs/mail-1/actions/cancel": ("operator", "admin"),
    "/runs/mail-1/actions/pause": ("operator", "admin"),
    "/runs/mail-1/actions/resume": ("operator", "admin"),
    "/runs/mail-1/actions/undo": ("operator", "admin"),
    "/runs/mail-1/actions/rerun": ("operator", "admin"),
    "/runs/mail-1/actions/signal": ("operator", "admin"),
    "/runs/mail-1/actions/fork": ("operator", "admin"),
    "/runs/mail-1/actions/patch": ("operator", "admin"),
    "/bulk": ("operator", "admin"),
    "/inbox/mail-1/none/approve": ("approver", "admin"),
    "/inbox/mail-1/none/edit": ("approver", "admin"),
    "/inbox/mail-1/none/reject": ("approver", "admin"),
    "/inbox/mail-1/none/answer": ("approver", "admin"),
    "/inbox/mail-1/step-1/resolve": ("approver", "admin"),
}


@pytest.mark.parametrize("path", POSTS)
def test_an_action_is_refused_by_the_server_for_too_weak_a_role(hf: Holdfast, path: str) -> None:
    """Templates only disable buttons; the check is here."""
    hf.start(mail, id="mail-1", to="sam")
    before = hf.get("mail-1").seq
    with TestClient(
        create_app(hf, credentials=credentials()), base_url="http://127.0.0.1"
    ) as client:
        assert client.post(path, data={}).status_code == 401
        for role in TOKENS:
            if role not in POSTS[path]:
                answer = client.post(
                    path,
                    data={"verb": "cancel"},
                    headers={"authorization": f"Bearer {TOKENS[role]}"},
                )
                assert (role, 403) == (role, answer.status_code)
    assert before == hf.get("mail-1").seq


def test_a_form_without_its_token_is_refused(hf: Holdfast) -> None:
    """Another site cannot make a signed-in browser act."""
    hf.start(mail, id="mail-2", to="sam")
    with TestClient(
        create_app(hf, credentials=credentials()), base_url="http://127.0.0.1"
    ) as client:
        client.post("/login", data={"token": TOKENS["admin"]})
        assert client.post("/runs/mail-2/actions/cancel", data={}).status_code == 403
        assert not hf.get("mail-2").cancel_requested
        page = client.get("/runs/mail-2/actions/cancel").text
        csrf = re.search(r'name="csrf" value="([^"]+)"', page)
        assert csrf is not None
        done = client.post(
            "/runs/mail-2/actions/cancel",
            data={"csrf": csrf[1], "why": "x"},
            follow_redirects=False,
        )
        assert (303, True) == (done.status_code, hf.get("mail-2").cancel_requested)


def test_a_form_with_too_many_fields_or_an_old_token_is_refused_with_a_page(hf: Holdfast) -> None:
    """Not with an error of the server, nor with JSON."""
    hf.start(mail, id="mail-3", to="sam")
    many = "&".join(f"f{n}=1" for n in range(20_000))
    form = {"content-type": "application/x-www-form-urlencoded"}
    with TestClient(
        create_app(hf, credentials=credentials()), base_url="http://127.0.0.1"
    ) as client:
        client.post("/login", data={"token": TOKENS["admin"]})
        expired = client.post("/runs/mail-3/actions/cancel", data={"csrf": "old"})
        flooded = client.post("/runs/mail-3/actions/cancel", content=many, headers=form)
        assert [403, 403] == [expired.status_code, flooded.status_code]
        assert "<h1>" in expired.text and "load the page again" in expired.text
        signed = {**form, "authorization": f"Bearer {TOKENS['admin']}"}
        assert (
            422
            == client.post("/runs/mail-3/actions/cancel", content=many, headers=signed).status_code
        )


def test_the_oldest_due_run_is_shown_although_newer_ones_hide_it(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are looked at up to a limit, newest first; then counts say so, and what is due first is still found."""
    monkeypatch.setattr("holdfast.views.fleet.MOST", 2)
    hf.start(job, id="old")
    for n in range(3):
        hf.start(mail, id=f"new-{n}", to="sam")
    queues = {q.agent: q for q in fleet(hf.store).queues}
    assert ["job", "mail"] == sorted(queues)
    due_at = hf.store.get("old").due_at
    assert (due_at, True) == (queues["job"].oldest_due, queues["job"].is_more)
    assert (2, True) == (queues["mail"].due, queues["mail"].is_more)


@pytest.mark.parametrize(("size", "is_shown"), [(5_000, True), (300_000, True), (1_500_000, False)])
def test_approve_is_disabled_unless_every_argument_is_shown(
    hf: Holdfast, client: TestClient, size: int, is_shown: bool
) -> None:
    """Nothing that is approved is cut: not a long text, not one that is stored outside the log."""
    with pytest.raises(RunWaiting):
        hf.run(mail, id="mail-4", to="a " * (size // 2) + "THE END")
    page = client.get("/inbox").text
    button = re.search(r'<button class="button primary approve"[^>]*>', page)
    assert button is not None
    assert (is_shown, is_shown) == ("THE END" in page, "disabled" not in button[0])


@tool
def post(text: str, size: float, tags: list[str], token: str) -> str:
    return f"{text!r} {size} {tags} {token}"


@agent(approve=("external_action",), redact=("token",))
def poster(run: Run, text: str) -> str:
    return post(text, 1.5, ["a"], "s3cret-of-mine")


@pytest.mark.parametrize("text", ["two\nlines \U0001f600", "a \u202e b \r\n\x00", "  \n\n x\t"])
def test_arguments_that_were_not_edited_stay_as_they_are(
    hf: Holdfast, client: TestClient, text: str
) -> None:
    """Whatever is in them; a browser sends the ends of lines as two characters."""
    with pytest.raises(RunWaiting):
        hf.run(poster, id="post-1", text=text)
    (wait,) = hf.get("post-1").waits
    path = f"/inbox/post-1/{quote(wait.id, safe='')}/edit"
    form = dict(
        re.findall(
            r'<textarea name="(arg:\w+)"[^>]*>\n(.*?)</textarea>', client.get(path).text, re.S
        )
    )
    sent = {name: html.unescape(typed).replace("\n", "\r\n") for name, typed in form.items()}
    assert ["arg:size", "arg:tags", "arg:text"] == sorted(sent)
    assert "Nothing was changed" in client.post(path, data=sent).text
    shown = client.post(path, data={**sent, "arg:size": "2"}).text
    (args,) = re.findall(r'name="args" value="([^"]*)"', shown)
    decided = client.post(
        path.removesuffix("edit") + "approve",
        data={"args": html.unescape(args)},
        follow_redirects=False,
    )
    assert 303 == decided.status_code
    assert f"{text!r} 2.0 ['a'] s3cret-of-mine" == hf.run(poster, id="post-1", text=text).replace(
        "[redacted]", "s3cret-of-mine"
    )


def test_an_edit_that_is_wrong_is_shown_with_what_was_typed(
    hf: Holdfast, client: TestClient
) -> None:
    with pytest.raises(RunWaiting):
        hf.run(poster, id="post-1", text="x")
    (wait,) = hf.get("post-1").waits
    path = f"/inbox/post-1/{quote(wait.id, safe='')}"
    wrong = client.post(path + "/edit", data={"arg:text": "new", "arg:tags": "[1"})
    assert (422, True) == (wrong.status_code, "tags is not JSON" in wrong.text)
    assert ">\nnew</textarea>" in wrong.text and ">\n[1</textarea>" in wrong.text
    refused = client.post(path + "/approve", data={"args": '{"text": 5}'})
    assert (422, True) == (refused.status_code, "exactly these" in refused.text)
    assert 422 == client.post(path + "/approve", data={"args": "[]"}).status_code
    assert not hf.get("post-1").waits[0].decided


def test_a_refusal_offers_the_action_and_the_command(hf: Holdfast, client: TestClient) -> None:
    """Not calls of Python: who reads a page has no program."""
    with pytest.raises(RunWaiting):
        hf.run(patient, id="p-1")
    refused = client.post("/runs/p-1/actions/undo", data={})
    assert 409 == refused.status_code
    assert "hf.cancel" not in refused.text
    assert 'href="/runs/p-1/actions/cancel"' in refused.text
    assert "holdfast cancel p-1 --db" in refused.text
    hf.cancel("p-1")
    with pytest.raises(RunCancelled):
        hf.run(patient, id="p-1")
    ended = client.post("/runs/p-1/actions/resume", data={})
    assert (409, False) == (ended.status_code, "hf.rerun" in ended.text)
    assert 'href="/runs/p-1/actions/rerun"' in ended.text
    missing = client.get("/runs/none")
    assert (404, False) == (missing.status_code, "hf." in missing.text)


def test_a_patch_lets_a_failed_run_continue_in_one_append(hf: Holdfast) -> None:
    """No worker can claim it between the resume and the patch."""
    with pytest.raises(RunFailed):
        hf.run(breaking, id="breaking-1")
    seen = hf.get("breaking-1").seq
    with pytest.raises(NotNow, match="already failed"):
        control.patch(hf.store, "breaking-1", {"x": 1})
    control.patch(hf.store, "breaking-1", {"x": 1}, expected=seen, resume=True, by="olga")
    new = [event.kind for _, event in hf.events("breaking-1", after=seen)]
    assert (["run_reopened", "state_patched"], "pending", {"x": 1}) == (
        new,
        hf.get("breaking-1").status,
        dict(hf.get("breaking-1").state),
    )


@agent
def breaking(run: Run) -> None:
    raise ValueError("no")


def test_a_patch_of_a_state_that_has_changed_since_is_refused(
    hf: Holdfast, client: TestClient
) -> None:
    """412, with the form and what was typed still there."""
    hf.start(job, id="job-1")
    seen = hf.get("job-1").seq
    hf.patch("job-1", {"other": 1})
    answer = client.post(
        "/runs/job-1/actions/patch", data={"state": '{"mine": 2}', "seq": str(seen)}
    )
    assert 412 == answer.status_code
    assert "mine" in answer.text
    assert {"other": 1} == dict(hf.get("job-1").state)


def test_an_artifact_is_a_download_that_cannot_run(
    hf: Holdfast, client: TestClient, shown: Path
) -> None:
    """attachment, nosniff, sandbox."""
    with TestClient(
        create_app(str(shown), credentials=credentials()), base_url="http://127.0.0.1"
    ) as other:
        answer = other.get(
            "/runs/research-battery/artifacts/notes.md",
            headers={"authorization": f"Bearer {TOKENS['viewer']}"},
        )
    assert answer.content.startswith(b"# Battery notes")
    assert "attachment" == answer.headers["content-disposition"]
    assert "nosniff" == answer.headers["x-content-type-options"]
    assert "application/octet-stream" == answer.headers["content-type"]


def test_the_pages_work_below_a_mount(hf: Holdfast) -> None:
    """Every link and form starts with the mount's path."""
    from starlette.applications import Starlette
    from starlette.routing import Mount

    hf.start(mail, id="mail-3", to="sam")
    outer = Starlette(routes=[Mount("/tools/holdfast", create_app(hf, credentials=credentials()))])
    with TestClient(
        outer, base_url="http://127.0.0.1", headers={"authorization": f"Bearer {TOKENS['admin']}"}
    ) as client:
        page = client.get("/tools/holdfast/runs/mail-3")
    assert 200 == page.status_code
    links = re.findall(r'(?:href|src|action|hx-get|data-live)="(/[^"]*)"', page.text)
    assert links
    assert [] == [x for x in links if not x.startswith("/tools/holdfast/")]


# ── the pure parts ───────────────────────────────────────────────────────────────────────────


def test_a_search_finds_by_status_agent_age_and_the_beginning_of_an_id(shown: Path) -> None:
    """AND between terms, a comma is OR, a minus excludes."""
    store = SQLiteStore(shown)
    try:

        def ids(text: str) -> list[str]:
            return [row.id for row in search(store, text, limit=100).runs]

        assert ["refund-4711"] == ids("refund")
        assert ["travel-oslo", "refund-4711", "payout-march"] == ids(
            "status:waiting waiting:people"
        )
        assert ["digest-2026-11-16"] == ids("status:failed,cancelled digest-2026")
        assert "crawl-docs" not in ids("-status:running")
        assert ids("") == ids("since:2d")
        first = search(store, "agent:recap", limit=2)
        assert first.next is not None
        assert ids("agent:recap")[2:4] == [
            r.id for r in search(store, "agent:recap", limit=2, cursor=first.next).runs
        ]
    finally:
        store.close()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("colour:red", "unknown key 'colour' at position 1"),
        ("agent:a status:fine", "unknown status 'fine' at position 9"),
        ("since:soon", "takes an age such as"),
    ],
)
def test_an_invalid_search_is_refused_with_the_position_of_the_error(text: str, says: str) -> None:
    """The place, and what is known."""
    with pytest.raises(InvalidInput, match=re.escape(says)):
        parse(text)


def test_a_question_is_named_once_in_its_row(hf: Holdfast, client: TestClient) -> None:
    """Its text is the name of the row: nothing has to be added."""
    hf.start(quiz, id="quiz-1")
    hf.worker().run(once=True)
    (row,) = re.findall(
        r'<span class="tl-name">(.*?)</span></span>', client.get("/runs/quiz-1").text
    )
    assert 1 == row.count("Which one?")


def test_counts_and_the_fleet_are_read_from_rows(shown: Path) -> None:
    """No log is read for them."""
    store = SQLiteStore(shown)
    try:
        found, seen = tally(store), fleet(store)
    finally:
        store.close()
    assert (3, 1, 1) == (found.counts["people"], found.counts["doubt"], found.counts["running"])
    assert ["w-5@build-7"] == [w.name for w in seen.workers]


def test_spans_show_attempts_backoff_waits_and_who_executed(shown: Path) -> None:
    """From the log alone: a retry, a process that died, a wait, a doubt."""
    store = SQLiteStore(shown)
    try:
        reader = RunReader()
        ada = reader.read(store, "onboard-ada").spans
        payout = reader.read(store, "payout-march").spans
        research = reader.read(store, "research-battery").spans
    finally:
        store.close()
    assert ["failed", "backoff", "done"] == [s.kind for s in _row(ada, 3).spans]
    assert ["lost", "done"] == [s.kind for s in _row(ada, 6).spans]
    assert [("w-1@build-7", True), ("w-2@build-9", False)] == [
        (h.worker, h.died) for h in ada.holders
    ]
    assert ("in_doubt", ["doubt"]) == (
        _row(payout, 2).status,
        [s.kind for s in _row(payout, 2).spans],
    )
    assert [("lab_results", "done", ["signal"])] == [
        (r.name, r.status, [s.kind for s in r.spans]) for r in research.rows if not r.step
    ]
    assert [14, 1, 1, 1, 6] == [len(group) for group in grouped(research.rows)]


@pytest.mark.parametrize(
    "run_id", ["onboard-ada", "research-battery", "digest-2026-11-16", "refund-4711"]
)
def test_the_slider_shows_what_at_gives_wherever_it_starts_from(shown: Path, run_id: str) -> None:
    """Before and after every step, with and without states that were kept on the way."""
    store, marks = SQLiteStore(shown), Checkpoints(every=3)
    try:
        calls = views.get(store, run_id).calls
        for call in [*calls, *reversed(calls)]:
            expected = [
                views.knowledge_of(views.at(store, run_id, call.step, when))
                for when in ("before", "after")
            ]
            assert expected == [views.knowledge_of(state) for state in around(store, run_id, call)]
            assert expected == [
                views.knowledge_of(state) for state in around(store, run_id, call, marks)
            ]
    finally:
        store.close()


def _row(spans: Spans, step: int):
    found = spans.row(step)
    assert found is not None
    return found


def test_idle_time_is_shortened_and_order_is_kept(shown: Path) -> None:
    """Later is never to the left of earlier, and all is within the width."""
    store = SQLiteStore(shown)
    try:
        spans = RunReader().read(store, "research-battery").spans
    finally:
        store.close()
    gaps = idle_gaps(spans, spans.start, spans.end)
    assert any(gap.end - gap.start > 19 * gallery.HOUR for gap in gaps)
    scale = Scale(spans.start, spans.end, gaps)
    times = [spans.start + (spans.end - spans.start) * n // 500 for n in range(501)]
    places = [scale.x(t) for t in times]
    assert places == sorted(places)
    assert (0.0, 100.0) == (places[0], places[-1])
    assert scale.x(gaps[0].end) - scale.x(gaps[0].start) < 4


@pytest.mark.parametrize(
    "run_id", ["onboard-ada", "research-battery", "digest-2026-11-16", "payout-march"]
)
def test_an_overview_that_grows_with_the_run_is_the_one_of_the_whole_run(
    shown: Path, run_id: str
) -> None:
    """Rows that are over are counted once; a row that is open is counted again each time."""
    store = SQLiteStore(shown)
    records = views.records(store, run_id)
    store.close()
    whole = Spans()
    for record in records:
        whole.apply(record, record.event)
    end = whole.end + 1000
    scale = Scale(whole.start, end, idle_gaps(whole, whole.start, end))
    grown, spans = Strip(scale), Spans()
    for record in records:
        spans.apply(record, record.event)
        grown.parts(spans.rows, record.time)
    assert Strip(scale).parts(whole.rows, end) == grown.parts(spans.rows, end)
    assert [0] * 240 != grown.parts(spans.rows, end)[0]


def test_the_edges_of_equal_parts_are_where_the_scale_puts_them() -> None:
    scale = Scale(0, 10_000, [Gap(1000, 4000), Gap(9000, 10_000)])
    edges = scale.edges(20)
    assert [5.0 * n for n in range(1, 20)] == pytest.approx(
        [scale.x(round(t)) for t in edges], abs=0.2
    )
    assert [2500.0, 5000.0, 7500.0] == Scale(0, 10_000).edges(4)


def test_a_scale_survives_gaps_at_its_ends() -> None:
    """A run that only waits."""
    scale = Scale(0, 100, [Gap(0, 100)])
    assert 0.0 <= scale.x(50) <= 100.0


def test_json_is_escaped_cut_and_made_visible() -> None:
    """Text that would steer a page or hide is shown as what it is."""
    found = str(
        json_html(
            {
                "<b>": "a\u202eb",
                "n": [1, None, True],
                "secret": "[redacted]",
                "deep": [[[[1]]]],
                "pic": "A" * 400,
            }
        )
    )
    assert "<b>" not in found
    assert "&lt;b&gt;" in found
    assert "\\u202e" in found
    assert "redacted before it was stored" in found
    assert "base64, 300 bytes" in found
    assert len(str(json_html({"x": "y" * 100_000}))) < 10_000
    assert len(str(json_html(list(range(100_000))))) < 100_000


def test_a_reader_continues_where_it_stopped_and_forgets_old_runs(hf: Holdfast) -> None:
    """A second look reads only what is new; memory is limited by events."""
    hf.run(job, id="job-2")
    reader, store = RunReader(max_events=1), hf.store
    first = reader.read(store, "job-2")
    reads: list[int] = []
    real = store.read

    def counted(run_id: str, *, after: int = -1, limit: int | None = None) -> list[Record]:
        reads.append(after)
        return real(run_id, after=after, limit=limit)

    store.read = counted  # type: ignore[method-assign]
    try:
        again = reader.read(store, "job-2")
    finally:
        del store.read
    assert [
        first.state.seq - 1,
        first.state.seq,
    ] == reads  # what was read last is still there, and what is new
    assert first.state == again.state == hf.get("job-2")
    hf.run(job, id="job-3")
    reader.read(store, "job-3")
    assert list(reader._kept) == ["job-3"]


def test_a_run_that_changes_while_it_is_read_is_not_taken_for_damaged(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row may be newer than the log that was read: then both are read again."""
    with pytest.raises(RunWaiting):
        hf.run(patient, id="p")
    real, once = hf.store.read, [True]

    def completed_meanwhile(run_id: str, **given: Any) -> list[Record]:
        found = real(run_id, **given)
        if once and once.pop():
            hf.signal("p", "go", 1)
            hf.worker().run(once=True)
        return found

    monkeypatch.setattr(hf.store, "read", completed_meanwhile)
    reader = RunReader()
    assert ["waiting", "completed"] == [reader.read(hf.store, "p").status for _ in range(2)]


NUMBERS = (
    "/runs?after=",
    "/inbox?after=",
    "/runs/onboard-ada?call=",
    "/runs/onboard-ada?from=0&to=",
    "/runs/onboard-ada?after=",
    "/runs/onboard-ada/state?step=",
    "/runs/onboard-ada/events?after=",
    "/runs/refund-4711/dialogue?from=",
    "/compare?a=onboard-ada&from=1&to=",
    "/runs/onboard-ada/actions/fork?step=",
    "/bulk?verb=cancel&q=since:",
)


@pytest.mark.parametrize("path", NUMBERS)
def test_a_number_that_no_page_has_is_refused(shown: Path, path: str) -> None:
    """It never reaches the store: 64 bits are not enough for it."""
    headers = {"authorization": f"Bearer {TOKENS['operator']}"}
    app = create_app(str(shown), credentials=credentials())
    with TestClient(app, base_url="http://127.0.0.1", headers=headers) as client:
        for wrong in ("9" * 20, "-" + "9" * 20, "9" * 5000, "x"):
            assert 422 == client.get(path + wrong).status_code, wrong


def test_a_stream_of_a_page_continues_only_after_an_event(shown: Path) -> None:
    headers = {"authorization": f"Bearer {TOKENS['viewer']}"}
    app = create_app(str(shown), credentials=credentials())
    with TestClient(app, base_url="http://127.0.0.1", headers=headers) as client:
        for wrong in ("9" * 5000, "-1", "x"):
            found = client.get("/runs/onboard-ada/live", headers={"last-event-id": wrong})
            assert 422 == found.status_code, wrong
