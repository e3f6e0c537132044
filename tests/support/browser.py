"""A real server and a real browser, for tests of the pages. Without Chromium these tests are skipped."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
import uvicorn

from holdfast.web.app import create_app
from holdfast.web.context import ClientLimits
from support.waiting import eventually
from support.web import TOKENS, credentials

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

BUILD = Path(__file__).parent.parent.parent / "build" / "pages"
NAMES = ("chromium", "chromium-browser", "google-chrome")
MISSING = "no Chromium: install it with `apt-get install chromium` (or set HOLDFAST_TEST_CHROMIUM to its path)"
WATCH = """
window.__violations = [];
document.addEventListener("securitypolicyviolation", (e) => window.__violations.push(e.violatedDirective + " " + e.blockedURI));
"""


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """The browser; skips if there is none."""
    found = os.environ.get("HOLDFAST_TEST_CHROMIUM") or next(
        filter(None, map(shutil.which, NAMES)), None
    )
    if found is None:
        pytest.skip(MISSING)
    sync_api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def serving(store: Any, **options: Any) -> Iterator[str]:
    """The pages of a store, at the address that is yielded. A fast machine signs in more often than a person may."""
    limits = ClientLimits(requests_per_second=100_000, signins_per_minute=100_000)
    app = create_app(store, credentials=credentials(), **{"limits": limits, **options})
    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, log_config=None, ws="none", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, name="pages")
    thread.start()
    try:
        eventually(lambda: server.started, "the server's start")
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


class Tab:
    """A page of the browser that is signed in. `complaints` are console errors, script errors and policy violations."""

    def __init__(self, browser: Browser, base: str, role: str = "admin", **context: Any) -> None:
        self.base = base
        self.context = browser.new_context(
            **{"viewport": {"width": 1360, "height": 850}, **context}
        )
        self.context.add_init_script(WATCH)
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(30_000)
        self.complaints: list[str] = []
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.complaints.append(f"script: {error}"))
        self.page.on(
            "dialog", lambda dialog: (self.complaints.append("a dialog opened"), dialog.dismiss())
        )
        if role:
            self._sign_in(role)

    def _sign_in(self, role: str) -> None:
        """As the form does, but without loading its page: most tests are not about that."""
        found = self.context.request.post(
            f"{self.base}/login", form={"token": TOKENS[role]}, max_redirects=0
        )
        assert found.status == 303, found.status

    def _hear(self, message: Any) -> None:
        if message.type == "error":
            self.complaints.append(f"console: {message.text}")

    def open(self, path: str, until: Literal["load", "domcontentloaded"] = "load") -> Page:
        """Go there; what its policy refused is noted."""
        self.note()
        answer = self.page.goto(self.base + path, wait_until=until)
        assert answer is not None
        assert answer.status == 200, f"{path}: {answer.status}"
        return self.page

    def note(self) -> None:
        self.complaints += [f"policy: {x}" for x in self.page.evaluate("window.__violations || []")]

    def close(self) -> None:
        self.context.close()


@contextlib.contextmanager
def tab(browser: Browser, base: str, role: str = "admin", **context: Any) -> Iterator[Tab]:
    """A signed-in tab that must have nothing to complain about at its end."""
    opened = Tab(browser, base, role, **context)
    try:
        yield opened
        opened.note()
    finally:
        opened.close()
    assert not opened.complaints, opened.complaints


def picture(page: Page, name: str) -> None:
    """A screenshot as build output."""
    BUILD.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=BUILD / f"{name}.png")
