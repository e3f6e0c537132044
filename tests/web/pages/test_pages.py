"""Every page in a real browser: without errors, accessible, on a phone, and unmoved by hostile text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from holdfast.store.sqlite.store import SQLiteStore
from support import hostile
from support.browser import Tab, picture, serving, tab
from support.waiting import eventually
from support.web import TOKENS

PAGES = {
    "runs": "/runs",
    "runs-search": "/runs?q=status:failed",
    "runs-none": "/runs?q=agent:nobody",
    "run": "/runs/onboard-ada",
    "run-call": "/runs/onboard-ada?call=6",
    "run-zoomed": "/runs/onboard-ada?from=0&to=4000000",
    "run-grouped": "/runs/research-battery",
    "run-failed": "/runs/digest-2026-11-16",
    "run-waiting": "/runs/refund-4711",
    "run-in-doubt": "/runs/payout-march",
    "run-running": "/runs/crawl-docs",
    "call": "/runs/onboard-ada/calls/3",
    "state": "/runs/onboard-ada/state?step=6",
    "dialogue": "/runs/refund-4711/dialogue",
    "decisions": "/runs/refund-4711/decisions",
    "artifacts": "/runs/research-battery/artifacts",
    "usage": "/runs/research-battery/usage",
    "events": "/runs/onboard-ada/events",
    "inbox": "/inbox",
    "inbox-item": "/inbox/refund-4711/%239",
    "inbox-edit": "/inbox/refund-4711/%239/edit",
    "resume": "/runs/digest-2026-11-16/actions/resume",
    "cancel": "/runs/crawl-docs/actions/cancel",
    "fork": "/runs/onboard-ada/actions/fork?step=4",
    "patch": "/runs/digest-2026-11-16/actions/patch",
    "signal": "/runs/refund-4711/actions/signal",
    "undo": "/runs/onboard-ada/actions/undo",
    "bulk": "/bulk?verb=resume&q=status:failed",
    "compare": "/compare",
    "compare-runs": "/compare?a=onboard-ada&b=research-battery",
    "compare-steps": "/compare?a=onboard-ada&from=2&to=6",
    "fleet": "/fleet",
    "doctor": "/doctor?all=1",
}
AXE = (Path(__file__).parent.parent / "axe" / "axe.min.js").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def base(shown: Path) -> Iterator[str]:
    """A server of the gallery's store. Tests here only read it."""
    with serving(str(shown)) as found:
        yield found


def serious(opened: Tab, rules: str = "") -> list[str]:
    """What axe-core finds serious or critical on the page."""
    if not opened.page.evaluate("typeof axe !== 'undefined'"):
        opened.page.evaluate(AXE)
    only = f", runOnly: {json.dumps(rules.split())}" if rules else ""
    found = opened.page.evaluate(f"axe.run({{resultTypes: ['violations']{only}}})")
    return [
        f"{x['id']}: {x['nodes'][0]['target']} {x['nodes'][0]['failureSummary'][:300]}"
        for x in found["violations"]
        if x["impact"] in ("serious", "critical")
    ]


@pytest.mark.nightly
def test_pages_outside_the_signed_in_ones_are_accessible(
    browser, base: str, tmp_path: Path
) -> None:
    """Signing in, an error, what an edit changes, and the pages of an empty store."""
    found: list[str] = []

    def examine(opened: Tab, name: str) -> None:
        picture(opened.page, name)
        found.extend(f"{name}: {x}" for x in serious(opened))

    with tab(browser, base, role="") as opened:
        opened.open("/login")
        examine(opened, "sign-in")
    with tab(browser, base) as opened:
        opened.page.goto(f"{base}/runs/none")
        examine(opened, "error")
        assert "hf." not in opened.page.locator("main").inner_text()
        # The browser reports the status of the page itself.
        opened.complaints = [x for x in opened.complaints if "404" not in x]
        page = opened.open("/inbox/refund-4711/%239/edit")
        page.fill("[name='arg:amount']", "40")
        page.click("text=Show the changes")
        page.wait_for_selector(".changes")
        examine(opened, "inbox-edited")
    SQLiteStore(tmp_path / "h.db").close()
    with serving(str(tmp_path / "h.db")) as empty, tab(browser, empty) as opened:
        for name in ("runs", "inbox", "fleet"):
            opened.open(f"/{name}")
            examine(opened, f"{name}-empty")
    assert [] == found


def test_a_person_signs_in_with_a_token_and_comes_back_to_the_page(browser, base: str) -> None:
    """Every other test here is signed in already."""
    with tab(browser, base, role="") as opened:
        page = opened.open("/inbox")
        page.fill("[name=token]", TOKENS["viewer"])
        page.click("main button")
        page.wait_for_url("**/inbox")
        assert "vic" in page.locator(".user").inner_text()


MOST_USED = ("runs", "run-call", "inbox", "patch")


def examined(browser, base: str, names: Iterable[str]) -> dict[str, list[str]]:
    """What is wrong with pages, in both themes. They differ only in their colours, so the second is examined for those."""
    found: dict[str, list[str]] = {}
    with tab(browser, base, color_scheme="light", reduced_motion="reduce") as opened:
        for name in names:
            page = opened.open(PAGES[name])
            picture(page, f"{name}-light")
            problems = serious(opened)
            page.emulate_media(color_scheme="dark")
            picture(page, f"{name}-dark")
            problems += serious(opened, "color-contrast")
            page.emulate_media(color_scheme="light")
            if problems:
                found[name] = problems
    return found


@pytest.mark.parametrize("name", MOST_USED)
def test_a_page_that_is_used_most_is_accessible(browser, base: str, name: str) -> None:
    """axe-core finds nothing serious. All pages are examined at night."""
    assert {} == examined(browser, base, [name])


@pytest.mark.nightly
def test_every_page_is_accessible(browser, base: str) -> None:
    """The same for all pages."""
    assert {} == examined(browser, base, PAGES)


def test_no_page_scrolls_sideways_on_a_phone(browser, base: str) -> None:
    """320 CSS pixels are enough (WCAG 1.4.10)."""
    is_night = hypothesis.settings.get_current_profile_name() == "nightly"
    found = {}
    with tab(browser, base, viewport={"width": 320, "height": 720}) as opened:
        for name, path in PAGES.items():
            # Its style and its scripts are there by then.
            page = opened.open(path, "domcontentloaded")
            width = page.evaluate("document.documentElement.scrollWidth")
            if name in MOST_USED or is_night:
                picture(page, f"{name}-phone")
            if width > 320:
                found[name] = width
    assert {} == found


def test_hostile_text_in_every_field_is_shown_and_never_run(browser, tmp_path: Path) -> None:
    """FAULTS.md G 104: the corpus is in every field that a user, a tool or a model can fill."""
    run_id, count = hostile.fill(tmp_path / "h.db")
    assert count > 20
    paths = [
        f"/runs/{run_id}{end}"
        for end in (
            "",
            "?call=1",
            "?call=2",
            "/calls/3",
            "/state?step=2&all=1",
            "/dialogue",
            "/decisions",
            "/artifacts",
            "/usage",
            "/events",
            "/actions/cancel",
            "/actions/patch",
            "/actions/signal",
        )
    ]
    paths += [
        "/runs",
        "/inbox",
        f"/inbox/{run_id}/%2390",
        f"/inbox/{run_id}/%2391",
        f"/inbox/{run_id}/%2390/edit",
        "/fleet",
        "/doctor?all=1",
        "/bulk?verb=cancel",
        f"/compare?a={run_id}&from=0&to=3",
        f"/compare?a={run_id}&b={run_id}-2",
    ]
    with serving(str(tmp_path / "h.db")) as base, tab(browser, base) as opened:
        for path in paths:
            page = opened.open(path)
            page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
            assert page.evaluate("window.__xss") is None, path
            assert (
                page.evaluate(
                    "document.querySelectorAll('script:not([src]), iframe, object, embed, [onerror], [onload]').length"
                )
                == 0
            ), path
            links = page.evaluate(
                "[...document.querySelectorAll('a[href], form[action], button[formaction]')].map((a) => a.href || a.formAction || a.action)"
            )
            assert [] == [x for x in links if not str(x).startswith(base)], path
            assert hostile.BIDI not in page.content(), path


def test_a_search_from_the_address_bar_cannot_inject(browser, base: str) -> None:
    """Reflected text is escaped, too."""
    with tab(browser, base) as opened:
        page = opened.page
        page.goto(f"{base}/runs?q=%22%3E%3Cscript%3Ewindow.__xss=1%3C/script%3E")
        assert page.evaluate("window.__xss") is None
        page.goto(f"{base}/runs/onboard-ada?did=%3Cimg%20src=x%20onerror=window.__xss=1%3E")
        assert page.evaluate("window.__xss") is None
        assert page.locator(".notice").inner_text().startswith("<img")


def test_a_page_is_live_although_a_script_loads_late(browser, base: str) -> None:
    """htmx reads the page before its extension for streams is there."""
    with tab(browser, base) as opened:
        page, held = opened.page, []

        def hold(route: Any) -> None:
            held.append(route)

        page.route("**/hx-sse*", hold)
        page.goto(f"{base}/runs", wait_until="commit")
        eventually(lambda: page.evaluate("typeof htmx !== 'undefined'"), "htmx")
        page.evaluate("new Promise((done) => setTimeout(done))")
        held[0].continue_()
        page.wait_for_selector("#live-state[data-state=live]")


def test_the_slider_shows_state_before_and_after_each_step(browser, base: str) -> None:
    """By the mouse's events and by the keys [ and ]; the step is in the URL."""
    with tab(browser, base) as opened:
        page = opened.open("/runs/onboard-ada/state?step=4")
        assert "room-4.12" in page.locator(".changes").inner_text()
        page.locator("body").press("]")
        page.wait_for_selector("#moment[data-step='5']")
        page.locator("#slider").fill("6")
        page.wait_for_selector("#moment[data-step='6']")
        assert "state.invite" in page.locator(".changes").inner_text()
        assert page.url.endswith("step=6")
        page.locator("body").press("[")
        page.wait_for_selector("#moment[data-step='5']")


def test_a_row_of_the_timeline_opens_the_call_next_to_it(browser, base: str) -> None:
    """Its number is in the URL, and a reload shows the same."""
    with tab(browser, base) as opened:
        page = opened.open("/runs/onboard-ada")
        page.click("#call-3 a")
        page.wait_for_selector("#panel .call[data-step='3']")
        assert "503 Service Unavailable" in page.locator("#panel .attempts").inner_text()
        assert "call=3" in page.url
        page.locator("body").press("]")
        page.wait_for_selector("#panel .call[data-step='4']")
        page.reload()
        assert "book_room" in page.locator("#panel h2").inner_text()


def test_a_row_has_its_number_name_status_and_duration_as_its_accessible_name(
    browser, base: str
) -> None:
    """What a screen reader says of a row."""
    with tab(browser, base) as opened:
        page = opened.open("/runs/onboard-ada")
        said = page.get_by_role(
            "link", name="Call 3 , find_slot ada@example.com , done, 2 attempts, 1.8 s"
        )
        assert said.count() == 1, page.locator("#call-3 a").aria_snapshot()


def test_keys_move_through_rows_and_pages(browser, base: str) -> None:
    """j, k, Enter, g i, /, ?, t; and none of them inside a field."""
    with tab(browser, base) as opened:
        page = opened.open("/runs")
        page.keyboard.press("j")
        page.keyboard.press("j")
        focused = page.evaluate("document.activeElement.textContent")
        assert focused == page.locator(".main-link").nth(1).inner_text()
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/runs/{focused}")
        page.keyboard.press("g")
        page.keyboard.press("i")
        page.wait_for_url("**/inbox")
        page.keyboard.press("a")
        assert page.evaluate("document.activeElement.textContent") == "Approve"
        page.keyboard.press("/")
        page.keyboard.type("gtj")
        assert page.input_value("#search") == "gtj"
        page.locator("#search").blur()
        before = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.keyboard.press("t")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
        page.keyboard.press("?")
        assert page.locator("#help").is_visible()


def test_dragging_over_the_overview_zooms(browser, base: str) -> None:
    """The zoom is in the URL, and Fit takes it back."""
    with tab(browser, base) as opened:
        page = opened.open("/runs/onboard-ada")
        box = page.locator("#strip svg").bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 100, box["y"] + 10)
        page.mouse.down()
        page.mouse.move(box["x"] + 400, box["y"] + 10)
        page.mouse.up()
        page.wait_for_url("**from=*")
        assert page.locator(".brush").count() == 1
        page.click("#zoom-fit")
        page.wait_for_url("**/runs/onboard-ada")


def test_what_the_browser_stores_of_a_run_is_only_settings(browser, base: str) -> None:
    """Themes and shortcuts may be kept; data of runs may not."""
    with tab(browser, base) as opened:
        opened.open("/runs/refund-4711")
        kept = opened.page.evaluate("JSON.stringify({...localStorage, ...sessionStorage})")
        assert "refund" not in json.dumps(kept)


def test_the_calls_of_a_child_run_are_shown_in_place(browser, base: str) -> None:
    """On the same scale, when its row is opened."""
    with tab(browser, base) as opened:
        page = opened.open("/runs/research-battery")
        page.click(".child-box summary")
        page.wait_for_selector(".child-rows a.tl-row")
        assert "/runs/research-battery~17" in str(
            page.locator(".child-rows a.tl-row").first.get_attribute("href")
        )
        picture(page, "run-child")
