"""Acting on the pages, in a real browser, with real runs and a real worker: and what the run's log says of it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from holdfast import Holdfast, Run, agent, step, tool
from holdfast.core import events as e
from support.browser import serving, tab
from support.waiting import eventually


@step
def look(n: int) -> int:
    return n + 1


@tool(risk="external_action")
def refund(order: int, amount: float) -> str:
    return f"refunded {amount}"


@agent(approve=("external_action",))
def support(run: Run, order: int) -> str:
    run.state.seen = look(order)
    run.state.tier = "gold"
    return refund(order, 84.5)


@agent
def quiz(run: Run) -> Any:
    return run.ask("Which one?", options=["a", "b"])


@agent
def patient(run: Run) -> Any:
    run.state.asked = look(1)
    return run.wait_for("go")


@tool(risk="external_action")
def wire(amount: int) -> str:
    raise TimeoutError("the bank did not answer")


@agent
def payout(run: Run) -> str:
    return wire(5)


FAILURES: Final = [ValueError("the limit is too low")]


@step
def probe() -> None:
    """Fails once."""
    if FAILURES:
        raise FAILURES.pop()


@agent
def broken(run: Run) -> int:
    run.state.limit = 0
    probe()
    return look(run.state.limit)


def unbook(room: str) -> None:
    """Nothing is left of it."""


@tool(undo=unbook)
def book(room: str) -> str:
    return f"booked {room}"


@agent
def booking(run: Run) -> str:
    return book("4.12")


AGENTS = [support, quiz, patient, payout, broken, booking]


@pytest.fixture
def hf(tmp_path: Path) -> Iterator[Holdfast]:
    with Holdfast(tmp_path / "h.db", agents=AGENTS) as made:
        made.register()
        yield made


@pytest.fixture
def base(hf: Holdfast) -> Iterator[str]:
    with serving(hf) as found:
        yield found


@contextlib.contextmanager
def working(hf: Holdfast) -> Iterator[None]:
    """A worker, as long as this lasts."""
    worker = hf.worker(concurrency=2)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join()


def settled(hf: Holdfast, run_id: str, status: str) -> None:
    eventually(
        lambda: hf.get(run_id).status == status, lambda: f"{run_id}: {hf.get(run_id).status}"
    )


def said(hf: Holdfast, run_id: str, kind: type) -> list[Any]:
    return [event for _, event in hf.events(run_id) if isinstance(event, kind)]


def test_an_approval_on_the_page_lets_a_waiting_run_continue_on_a_worker(
    browser, hf: Holdfast, base: str
) -> None:
    """The run's page shows it live, without a reload; the log records who approved, and why."""
    hf.start(support, id="refund-1", order=4711)
    with (
        working(hf),
        tab(browser, base, "approver") as opened,
        tab(browser, base, "viewer") as watching,
    ):
        settled(hf, "refund-1", "waiting")
        seen = watching.open("/runs/refund-1")
        seen.wait_for_selector("#live-state[data-state=live]")
        page = opened.open("/inbox")
        shown = page.locator(".exact").inner_text()
        assert "84.5" in shown and "4711" in shown
        page.fill("[name=why]", "seen the photo")
        page.click("button.approve")
        page.wait_for_url("**/inbox?did=*")
        settled(hf, "refund-1", "completed")
        seen.wait_for_selector("#run-head .badge:has-text('completed')")
        seen.wait_for_selector("#call-2:has-text('refund')")
        seen.wait_for_selector("#live-state[data-state=ended]")
        assert watching.page.url.endswith("/runs/refund-1")
    decided = said(hf, "refund-1", e.ApprovalDecided)
    assert [("ann", "seen the photo", True)] == [(x.by, x.why, x.approved) for x in decided]


def test_a_call_is_approved_as_edited_after_its_changes_are_shown(
    browser, hf: Holdfast, base: str
) -> None:
    """Types stay, and nothing is approved before the changes were seen."""
    hf.start(support, id="refund-9", order=4711)
    with working(hf), tab(browser, base, "approver") as opened:
        settled(hf, "refund-9", "waiting")
        page = opened.open("/inbox")
        page.keyboard.press("e")
        page.keyboard.press("Enter")
        page.wait_for_url("**/edit")
        page.fill("[name='arg:amount']", "40")
        page.click("text=Show the changes")
        page.wait_for_selector("h1:has-text('with these changes?')")
        shown = page.locator(".changes").inner_text()
        assert "84.5" in shown and "40" in shown and "4711" not in shown
        assert [] == said(hf, "refund-9", e.ApprovalDecided)
        page.fill("[name=why]", "half of it was used")
        page.click("text=Approve as edited")
        page.wait_for_url("**/runs/refund-9?did=*")
        settled(hf, "refund-9", "completed")
    assert "refunded 40.0" == hf.result("refund-9")
    decided = said(hf, "refund-9", e.ApprovalDecided)
    assert [("ann", "half of it was used")] == [(x.by, x.why) for x in decided]


def test_a_rejection_and_an_answer_are_recorded_under_who_was_signed_in(
    browser, hf: Holdfast, base: str
) -> None:
    """The name of a form field cannot change it."""
    hf.start(support, id="refund-2", order=1)
    hf.start(quiz, id="quiz-1")
    with working(hf), tab(browser, base, "approver") as opened:
        settled(hf, "refund-2", "waiting")
        settled(hf, "quiz-1", "waiting")
        page = opened.open("/inbox")
        page.click("article:has-text('quiz-1') button:has-text('b')")
        page.wait_for_url("**/inbox?did=Answered*")
        page.click("article:has-text('refund-2') button:has-text('Reject')")
        page.wait_for_url("**/inbox?did=Rejected*")
        settled(hf, "quiz-1", "completed")
        settled(hf, "refund-2", "failed")
    assert "b" == hf.result("quiz-1")
    assert ["ann"] == [x.by for x in said(hf, "quiz-1", e.AnswerGiven)]
    assert [("ann", False)] == [(x.by, x.approved) for x in said(hf, "refund-2", e.ApprovalDecided)]


def test_a_call_in_doubt_is_resolved_with_its_result(browser, hf: Holdfast, base: str) -> None:
    """The run continues with what the person found out."""
    hf.start(payout, id="payout-1")
    with working(hf), tab(browser, base, "approver") as opened:
        settled(hf, "payout-1", "waiting")
        page = opened.open("/runs/payout-1")
        page.click("text=Decide")
        page.wait_for_url("**/inbox/payout-1/step-1")
        page.fill("[name=why]", "on the statement")
        page.fill("[name=result]", '"tx-9"')
        page.click("text=It happened")
        page.wait_for_url("**/runs/payout-1?did=*")
        settled(hf, "payout-1", "completed")
    assert "tx-9" == hf.result("payout-1")
    assert [("done", "ann", "on the statement")] == [
        (x.how, x.by, x.why) for x in said(hf, "payout-1", e.CallResolved)
    ]


def test_edit_state_and_continue_lets_a_failed_run_complete(
    browser, hf: Holdfast, base: str
) -> None:
    """What fails is shown with what the agent knew; the edit and the resume are recorded."""
    hf.start(broken, id="broken-1")
    with working(hf), tab(browser, base, "operator") as opened:
        settled(hf, "broken-1", "failed")
        page = opened.open("/runs/broken-1")
        assert "the limit is too low" in page.locator(".bad-edge").first.inner_text()
        page.click("text=More")
        page.click("text=Edit state")
        page.fill("textarea[name=state]", '{"limit": 7}')
        page.fill("[name=why]", "raised")
        page.click("button:has-text('Edit state')")
        page.wait_for_url("**/runs/broken-1?did=*")
        settled(hf, "broken-1", "completed")
    assert 8 == hf.result("broken-1")
    assert ["olga"] == [x.by for x in said(hf, "broken-1", e.StatePatched)]
    assert ["olga"] == [x.by for x in said(hf, "broken-1", e.RunReopened)]


def test_undo_names_the_calls_that_it_will_undo_and_a_worker_undoes_them(
    browser, hf: Holdfast, base: str
) -> None:
    hf.run(booking, id="trip-1")
    with working(hf), tab(browser, base, "operator") as opened:
        page = opened.open("/runs/trip-1/actions/undo")
        assert "step 1, book" in page.locator(".says").inner_text()
        page.fill("[name=why]", "the trip is off")
        page.click("main form button")
        page.wait_for_url("**/runs/trip-1?did=*")
        page.wait_for_selector("text=undo book")
    assert ["olga"] == [x.by for x in said(hf, "trip-1", e.UndoRequested)]


def test_pause_resume_signal_cancel_fork_and_start_over_announce_their_effect_and_have_it(
    browser, hf: Holdfast, base: str
) -> None:
    """Each from its button, through its own page, to the run's log."""
    hf.start(patient, id="patient-1")
    with working(hf), tab(browser, base, "operator") as opened:
        settled(hf, "patient-1", "waiting")
        page = opened.open("/runs/patient-1")

        def act(button: str, says: str, **fields: str) -> None:
            if not page.locator(f".actions > :text-is('{button}')").is_visible():
                page.click("text=More")
            page.click(f".actions >> text={button}")
            page.wait_for_url("**/actions/**")
            assert says in page.locator(".says").inner_text()
            for name, value in fields.items():
                page.fill(f"[name={name}]", value)
            page.click("main form button")
            page.wait_for_url("**did=*")

        act("Pause", "stops at its next call", why="lunch")
        settled(hf, "patient-1", "paused")
        act("Resume", "Step 1 is recorded and is not executed again")
        settled(hf, "patient-1", "waiting")
        act("Fork from a step", "The first call that will execute", step="1", id="patient-2")
        assert page.url.split("?")[0].endswith("/runs/patient-2")
        settled(hf, "patient-2", "waiting")
        act("Cancel", "ends at its next call", why="only a test")
        settled(hf, "patient-2", "cancelled")
        act("Start over", "starts at its first line again", why="once more")
        settled(hf, "patient-2", "waiting")
        page = opened.open("/runs/patient-1")
        act("Send a signal", "is waiting for: go", name="go", value='{"ok": true}')
        settled(hf, "patient-1", "completed")
    assert {"ok": True} == hf.result("patient-1")
    assert [("olga", "lunch")] == [(x.by, x.why) for x in said(hf, "patient-1", e.RunPaused)]


def test_the_list_announces_new_runs_and_does_not_move(browser, hf: Holdfast, base: str) -> None:
    """A bar with their number; the counts are live."""
    hf.start(patient, id="old-1")
    with tab(browser, base, "viewer") as opened:
        page = opened.open("/runs")
        page.wait_for_selector("#live-state[data-state=live]")
        hf.start(patient, id="new-1")
        page.wait_for_selector("#new-runs:has-text('1 new run')")
        assert ["old-1"] == page.locator("td.c-run a.main-link").all_inner_texts()
        page.click("#new-runs a")
        page.wait_for_selector("td.c-run:has-text('new-1')")


def test_the_inbox_announces_what_is_new_and_does_not_move(
    browser, hf: Holdfast, base: str
) -> None:
    """What is typed there stays; the number in the head is live."""
    with working(hf), tab(browser, base, "approver") as opened:
        page = opened.open("/inbox")
        page.wait_for_selector("#live-state[data-state=live]")
        hf.start(support, id="refund-8", order=1)
        page.click("#inbox-changed a:has-text('1 run is waiting for people now')")
        page.wait_for_selector("article:has-text('refund-8')")
        assert "1" == page.locator("#inbox-count").inner_text()


def test_an_opened_section_stays_open_after_an_update(browser, hf: Holdfast, base: str) -> None:
    """Morphing keeps open details, the panel and the focus."""
    hf.start(patient, id="patient-3")
    with working(hf), tab(browser, base, "viewer") as opened:
        settled(hf, "patient-3", "waiting")
        page = opened.open("/runs/patient-3?call=1")
        page.wait_for_selector("#live-state[data-state=live]")
        page.click(".commands summary")
        page.focus("#call-1 a")
        hf.patch("patient-3", {"colour": "blue"}, by="olga")
        # Not `wait_for_function`: where it has to wait, the page's own policy forbids what it does.
        page.wait_for_selector(f"#run-head:has-text('{hf.get('patient-3').seq}')")
        assert page.locator(".commands").get_attribute("open") is not None
        assert page.evaluate("document.activeElement.closest('li').id") == "call-1"
        assert page.locator("#panel .call").is_visible()


def test_many_runs_are_cancelled_after_a_preview(browser, hf: Holdfast, base: str) -> None:
    """The preview counts what will be skipped, and each run's log says who did it."""
    for n in range(3):
        hf.start(patient, id=f"many-{n}")
    hf.run(quiz_free, id="many-done")
    with tab(browser, base, "operator") as opened:
        page = opened.open("/runs?q=many-")
        page.click("button[value=cancel]")
        page.wait_for_url("**/bulk?*")
        told = page.locator("main").inner_text()
        assert "3 to cancel" in told and "1 skipped, already completed" in told
        page.fill("[name=why]", "not needed")
        page.click("button:has-text('Cancel 3 runs')")
        page.wait_for_selector("h1:has-text('Runs cancelled')")
    assert [["olga"]] * 3 == [
        [x.by for x in said(hf, f"many-{n}", e.CancelRequested)] for n in range(3)
    ]


@agent
def quiz_free(run: Run) -> int:
    return look(1)


def test_a_viewer_sees_why_a_button_is_disabled(browser, hf: Holdfast, base: str) -> None:
    """The role that is needed is named; the server refuses the form in any case (test_refusals)."""
    hf.start(support, id="refund-9", order=1)
    with working(hf), tab(browser, base, "viewer") as opened:
        settled(hf, "refund-9", "waiting")
        page = opened.open("/inbox")
        assert page.locator("button.approve").is_disabled()
        assert "needs the role approver" in page.locator("article").inner_text()
        page = opened.open("/runs/refund-9")
        assert "needs the role operator" in (
            page.locator(".actions [aria-disabled]").first.get_attribute("title") or ""
        )
