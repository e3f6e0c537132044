"""Watch async runs that await something for long: were they cancelled, has their deadline passed, is their loop blocked?

A run notices the first two at its next call; one that awaits something is cancelled there. A child that is due
and that no worker executes is executed by its parent, if that is in memory.

A loop that is blocked by code that runs on it is reported, with whose code it is. Nothing is lost by it, but no other run
on that loop continues, and the reason would be invisible. A loop is asked regularly to call back; while it does not, the
stack of its thread shows what it is doing. This costs one callback per loop and check, and nothing per call.

All this is done by one thread, over the connections that all threads use: when those are busy, a cancellation is
noticed later, and no lease is lost (`lease.py` has its own thread).
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Collection
from types import FrameType
from typing import TYPE_CHECKING, Final

from holdfast.errors import Stop, StoreError, Unwind
from holdfast.runtime.call.gate import cancellation, is_overdue, overdue
from holdfast.runtime.log.branches import CURRENT, Branch, Inside
from holdfast.runtime.log.clock import elapsed
from holdfast.store.base import MICROSECONDS, Store

if TYPE_CHECKING:
    import asyncio
    import logging

    from holdfast.runtime.lines.line import Line
    from holdfast.runtime.lines.lines import Lines


# ── loops that are blocked ───────────────────────────────────────────────────────────────────


STALLED_SHARE: Final = 1 / 3
"""The share of a lease for which a loop may stand still without a word: a loop that renewed leases by
itself would have missed to do so."""


class _Question:
    """Are you there? A loop that is answers as soon as what it is doing lets it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.asked_at = elapsed()
        self.answered = False
        self.warned = False
        with contextlib.suppress(RuntimeError):  # it is closed, and its runs are as good as removed
            loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        self.answered = True
        if self.warned:
            seconds = elapsed() - self.asked_at
            extra = {"blocked_seconds": seconds}
            _stall_log().warning("the event loop continues after %.3g s", seconds, extra=extra)


class Stalls:
    """Which loops answer. Used by one thread."""

    def __init__(self, lease_seconds: float) -> None:
        self._max_seconds = lease_seconds * STALLED_SHARE
        self._questions: dict[asyncio.AbstractEventLoop, _Question] = {}

    def look(self, roots: Collection[Branch]) -> None:
        """Ask the loops on which these runs execute; warn, once, of one that has not answered for long."""
        by_loop: dict[asyncio.AbstractEventLoop, list[Branch]] = {}
        for root in roots:
            if root.session.lines is not None:
                by_loop.setdefault(root.session.lines.loop, []).append(root)
        for loop in [loop for loop in self._questions if loop not in by_loop]:
            del self._questions[loop]
        for loop, here in by_loop.items():
            question = self._questions.get(loop)
            if question is None or question.answered:
                self._questions[loop] = _Question(loop)
            elif not question.warned and elapsed() - question.asked_at > self._max_seconds:
                question.warned = True
                _warn(question, here)


def _warn(question: _Question, roots: Collection[Branch]) -> None:
    """What is in the way, as far as it can be seen from outside: the run whose task is being
    executed, the step or tool whose body it is in, and the line."""
    import asyncio
    import traceback

    lines = next(root.session.lines for root in roots if root.session.lines is not None)
    frame = sys._current_frames().get(lines.thread)
    task = asyncio.current_task(lines.loop)
    run_id = next((root.session.run_id for root in roots if _is_of(task, root.session.lines)), "")
    call, within = _call_under_way(task)
    seconds = elapsed() - question.asked_at
    where = "" if frame is None else f", at {_place(frame)}"
    _stall_log().warning(
        "the event loop has been blocked for %.3g s by %s of run %s%s. Runs affected: %d; "
        "await slow work, or run it in a thread (asyncio.to_thread in an async step)",
        seconds,
        call or "code",
        within or run_id or "(unknown)",
        where,
        len(roots) - 1,
        extra={
            "run_id": within or run_id,
            "call": call,
            "blocked_seconds": seconds,
            "stack": "" if frame is None else "".join(traceback.format_stack(frame)),
        },
    )


def _is_of(task: asyncio.Task[object] | None, lines: Lines | None) -> bool:
    return lines is not None and task is not None and lines.owns(task)


def _call_under_way(task: asyncio.Task[object] | None) -> tuple[str, str]:
    """The step or tool whose body this task is executing, and its run."""
    line: Line | None = getattr(task, "line", None)
    here = None if line is None or line.context is None else line.context.get(CURRENT)
    return (here.name, here.run_id) if isinstance(here, Inside) else ("", "")


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def _stall_log() -> logging.Logger:
    import logging  # here, as most processes never have a reason to log

    return logging.getLogger("holdfast.stall")


# ── the thread that checks ───────────────────────────────────────────────────────────────────


CHECK_SECONDS: Final = 1.0


class CancelWatcher:
    """Knows the async runs that execute in this process. Its thread sleeps while there are none."""

    def __init__(self, store: Store, lease_seconds: float) -> None:
        self._store = store
        self._stalls = Stalls(lease_seconds)
        self._awaiting: dict[str, Branch] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, root: Branch) -> None:
        """This run executes here from now on."""
        with self._changed:
            self._awaiting[root.session.run_id] = root
            if self._thread is None or not self._thread.is_alive():  # as after a fork
                self._thread = threading.Thread(
                    target=self._serve, name="holdfast-cancel-watcher", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def remove(self, root: Branch) -> None:
        """This run no longer executes here."""
        self._awaiting.pop(root.session.run_id, None)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def notice_cancel_of_tree(self, run_id: str) -> None:
        """The same for a run and its children; those below first, so that each ends by itself."""
        below = [found for found in list(self._awaiting) if found.startswith(f"{run_id}~")]
        for found in (*sorted(below, key=len, reverse=True), run_id):
            self.notice_cancel(found)

    def notice_cancel(self, run_id: str) -> None:
        """If this run executes here and was cancelled, end what it awaits."""
        root = self._awaiting.get(run_id)
        if root is None or root.session.lines is None:
            return
        session = root.session
        try:
            session.catch_up()
        except Unwind as signal:  # another worker has the run, or its log is damaged
            session.lose(signal)
            return
        if session.journal.life.cancel is not None:
            _cancel(root, cancellation(session))

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._awaiting)
                if self._changed.wait_for(lambda: self._closed, timeout=CHECK_SECONDS):
                    return
            try:
                self._stalls.look(list(self._awaiting.values()))
                self._check()
            except StoreError as error:
                _log().warning("could not check for cancellations: %s", error)
            except Exception:  # noqa: BLE001 - whatever it is: the next check may succeed
                _log().exception("could not check for cancellations")

    def _check(self) -> None:
        awaiting = dict(self._awaiting)
        if not awaiting:
            return
        for run_id, end in self._store.heads(list(awaiting)).items():
            # Compared with what is known by now: the run itself has probably written since.
            if end > awaiting[run_id].session.read_to:
                self.notice_cancel(run_id)
        for root in awaiting.values():
            session = root.session
            if is_overdue(session) and session.lines is not None:
                _cancel(root, overdue())
            elif session.lines is not None and session.waits:
                since = self._store.now() - round(CHECK_SECONDS * MICROSECONDS)
                children = session.children.ended() | session.children.unclaimed(since)
                if children:
                    session.lines.parking.look_again_soon(tuple(children))


def _cancel(root: Branch, signal: Stop) -> None:
    root.session.stop(signal)
    assert root.session.lines is not None
    root.session.lines.supervisor.cancel()


def _log() -> logging.Logger:
    import logging  # here, as most processes never have a reason to log

    return logging.getLogger("holdfast.cancel_watcher")
