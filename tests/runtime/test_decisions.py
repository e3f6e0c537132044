"""What is decided from outside is checked against what is open, and costs no more the older the run is."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast import (
    AlreadyDecided,
    CallFailed,
    Holdfast,
    InvalidInput,
    NotFound,
    NotNow,
    Rejected,
    Run,
    RunCancelled,
    RunFailed,
    RunWaiting,
    agent,
    control,
    step,
    tool,
)
from holdfast.core import events as e
from holdfast.core import log
from holdfast.errors import LogDamaged, UnknownEvent
from holdfast.store.base import Append, Store
from support.long_runs import write_steps


@step
def look(i: int) -> int:
    return i


@tool
def send(to: str) -> str:
    return f"sent to {to}"


@tool
def ring(number: int) -> int:
    """The process dies while it rings: from then on no one knows whether it rang."""
    raise KeyboardInterrupt


def waits(hf: Holdfast, agent: Any, run_id: str = "r", **input: Any) -> str:
    with pytest.raises(RunWaiting) as waiting:
        hf.run(agent, id=run_id, **input)
    return waiting.value.waiting_for


def kinds(hf: Holdfast, run_id: str = "r") -> list[str]:
    return [event.kind for _, event in hf.events(run_id)]


class Watched:
    """A store that tells what is asked of it, before it answers."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.events_read = 0
        self.appended: list[Append] = []
        self.before: dict[str, Callable[[], None]] = {}
        """What happens right before the next call of this method."""

    def __getattr__(self, name: str) -> Any:
        if happens := self.before.pop(name, None):
            happens()
        return getattr(self.store, name)

    def read(self, *args: Any, **options: Any) -> Any:
        if happens := self.before.pop("read", None):
            happens()
        found = self.store.read(*args, **options)
        self.events_read += len(found)
        return found

    def append(self, work: Append) -> None:
        if happens := self.before.pop("append", None):
            happens()
        self.appended.append(work)
        self.store.append(work)


@pytest.fixture
def watched(home: Any) -> Iterator[Watched]:
    store = Watched(home.store())
    yield store
    store.store.close()


# ── what is over is not in the way of what is open ───────────────────────────────────────────


def test_a_request_that_expired_is_not_in_the_way_of_the_next(home: Any, clock: Any) -> None:
    @agent(approve=("external_action",), approval_ttl=60)
    def main(run: Run) -> str:
        try:
            return send("ann")
        except Rejected:
            return send("bob")

    hf = home.open()
    assert waits(hf, main) == "approval of send"
    clock.advance(61)
    waits(hf, main)

    hf.approve("r")

    assert hf.run(main, id="r") == "sent to bob"


def test_an_approved_step_no_longer_waits(home: Any) -> None:
    @agent(approve=("read",))
    def main(run: Run) -> int:
        look(1)
        return look(2)

    hf = home.open()
    waits(hf, main)
    hf.approve("r")
    waits(hf, main)

    (wait,) = hf.get("r").waits
    assert (wait.index, wait.decided) == (1, False)


def test_a_run_that_was_restarted_can_be_cancelled_again(home: Any) -> None:
    @agent
    def main(run: Run) -> None:
        run.wait_for("never")

    hf = home.open()
    for _ in range(2):
        waits(hf, main)
        hf.cancel("r")
        with pytest.raises(RunCancelled):
            hf.run(main, id="r")
        with pytest.raises(RunWaiting):
            home.open(main).rerun("r")


# ── a decision costs no more the older the run is ────────────────────────────────────────────


@agent
def asks(run: Run, n: int) -> int:
    for i in range(n):
        look(i)
    run.approve("Go on?")
    run.ask("Which one?")
    run.wait_for("more")
    ring(1)
    with contextlib.suppress(CallFailed):
        ring(2)
    return n


def dies(hf: Holdfast) -> None:
    with pytest.raises(KeyboardInterrupt):
        hf.resume("r")


def waits_on(hf: Holdfast) -> None:
    with pytest.raises(RunWaiting):
        hf.resume("r")


def events_read_by_each(home: Any, clock: Any, n: int) -> dict[str, int]:
    """Everything that is done to a run from outside, in a life with an approval, a question, a signal, a
    crash in a call, a pause, an end, and a new beginning; and how many events were read for it."""
    home.path = home.path.with_name(f"after-{n}.db")
    store = Watched(home.store())
    hf = Holdfast(store, agents=[asks])
    write_steps(store.store, asks, "r", n, look, n=n)
    clock.advance(1)
    waits_on(hf)
    read: dict[str, int] = {}

    def does(name: str, act: Callable[[], Any], refused: type[Exception] | None = None) -> None:
        clock.advance(1)
        store.events_read = 0
        if refused is None:
            act()
        else:
            with pytest.raises(refused):
                act()
        read[name] = store.events_read

    does("signal", lambda: hf.signal("r", "aside", 1))
    does("signal with an id", lambda: hf.signal("r", "more", 2, signal_id="one"))
    does("signal again", lambda: hf.signal("r", "more", 2, signal_id="one"))
    does("patch", lambda: hf.patch("r", {"k": 1}))
    does("accept", lambda: control.accept_new_steps(store, "r"))
    does("pause", lambda: hf.pause("r"))
    does("reopen", lambda: control.reopen(store, "r"))
    does("answer too early", lambda: hf.answer("r", "x"), NotNow)
    does("approve", lambda: hf.approve("r"))
    does("approve again", lambda: hf.reject("r"), AlreadyDecided)
    waits_on(hf)
    does("answer", lambda: hf.answer("r", "this one", f"#{n + 1}"))
    dies(hf)  # it takes the signal that came before, and rings
    clock.advance(60)
    does("resolve by its step", lambda: hf.resolve("r", n + 1, done=1))
    does("resolve again", lambda: hf.resolve("r", n + 1, done=1), NotNow)
    dies(hf)
    clock.advance(60)
    waits_on(hf)
    does("resolve", lambda: hf.resolve("r", retry=True))
    dies(hf)
    clock.advance(60)
    waits_on(hf)
    does("resolve by its name", lambda: hf.resolve("r", "ring", failed="no"))
    hf.resume("r")
    does("result", lambda: hf.result("r"))
    does("signal after the end", lambda: hf.signal("r", "more"), NotNow)
    does("rerun", lambda: control.rerun(store, "r"))
    does("cancel", lambda: hf.cancel("r"))
    does("cancel again", lambda: hf.cancel("r"))
    hf.close()
    return read


def test_no_more_events_are_read_for_a_decision_the_older_the_run_is(home: Any, clock: Any) -> None:
    young, old = (events_read_by_each(home, clock, n) for n in (200, 2000))

    assert old == young
    assert max(old.values()) <= 101


def test_a_call_in_doubt_is_found_by_its_step_though_the_run_never_waited(
    watched: Watched, clock: Any
) -> None:
    @agent
    def main(run: Run, n: int) -> int:
        for i in range(n):
            look(i)
        return ring(1)

    with Holdfast(watched, agents=[main]) as hf:
        write_steps(watched.store, main, "r", 2000, look, n=2000)
        dies(hf)
        clock.advance(60)
        watched.events_read = 0
        hf.resolve("r", 2001, done=7)
        assert watched.events_read <= 40
        assert hf.resume("r") == 7


def test_a_run_that_never_waited_is_cancelled_once_however_long_it_is(
    watched: Watched, clock: Any
) -> None:
    with Holdfast(watched, agents=[asks]) as hf:
        write_steps(watched.store, asks, "r", 2000, look, n=2000)
        for _ in range(3):
            hf.cancel("r")
        assert watched.events_read <= 3 * 101 + 1  # its first event says who executes it
        assert kinds(hf).count("cancel_requested") == 1
        with pytest.raises(RunCancelled):
            hf.resume("r")


# ── and is checked as it was ─────────────────────────────────────────────────────────────────


def test_of_several_requests_all_are_found_however_far_apart_they_began(
    home: Any, clock: Any
) -> None:
    """One branch asks and waits, while another one continues for long and then asks, too."""

    def ask(item: int) -> Any:
        for i in range(100 * item):
            clock.advance(1)
            look(i)
        return ring_or_ask(item)

    @agent
    def main(run: Run) -> list[Any]:
        nonlocal ring_or_ask
        ring_or_ask = lambda item: run.ask(f"question {item}")  # noqa: E731
        return run.map(ask, [0, 1, 2])

    ring_or_ask: Callable[[int], Any] = lambda _: None  # noqa: E731
    hf = home.open(main)
    waits(hf, main)
    with pytest.raises(InvalidInput) as raised:
        hf.answer("r", "which?")
    asked = re.findall(r"question \d", str(raised.value))
    assert ["question 0", "question 1", "question 2"] == sorted(asked)  # threads have no order
    for wait in hf.get("r").waits:
        hf.answer("r", wait.name, wait.id)
        with pytest.raises(NotNow):
            hf.answer("r", "again", wait.id)

    assert hf.resume("r") == ["question 0", "question 1", "question 2"]


def test_with_several_calls_in_doubt_a_decision_must_name_one(home: Any, clock: Any) -> None:
    both = threading.Barrier(2)

    @tool
    def ring_together(number: int) -> int:
        both.wait(120)
        raise KeyboardInterrupt

    @agent
    def main(run: Run) -> list[int]:
        return run.map(ring_together, [1, 2])

    hf = home.open(main)
    with pytest.raises(KeyboardInterrupt):
        hf.run(main, id="r")
    clock.advance(60)
    with pytest.raises(InvalidInput, match="choose a step"):
        hf.resolve("r", "ring_together", done=1)
    with pytest.raises(InvalidInput, match="choose a step"):
        hf.resolve("r", done=1)
    waits(hf, main)
    with pytest.raises(InvalidInput, match="choose a step"):
        hf.resolve("r", done=1)
    for call in hf.get("r").in_doubt:
        hf.resolve("r", call.step, done=call.step)

    assert sorted(hf.resume("r")) == [1, 2]


def test_a_late_decision_about_a_finished_call_gets_the_same_error(home: Any, clock: Any) -> None:
    hf = home.open(asks)
    write_steps(hf.store, asks, "r", 300, look, n=300)
    clock.advance(1)
    waits_on(hf)

    with pytest.raises(NotNow, match="step 3, look, is done, not in doubt"):
        hf.resolve("r", 3, done=1)
    with pytest.raises(NotNow, match="step 1, look, is done"):
        hf.resolve("r", "look", done=1)
    with pytest.raises(NotFound, match="no call in doubt named 'nothing'"):
        hf.resolve("r", "nothing", done=1)


@pytest.mark.parametrize("moment", ["head", "read", "get", "now", "append"])
def test_a_run_that_ends_during_a_decision_stays_ended(watched: Watched, moment: str) -> None:
    """Whenever in the decision that is: nothing is written behind its end."""

    @agent
    def main(run: Run) -> Any:
        return run.wait_for("go")

    with Holdfast(watched, agents=[main]) as hf, Holdfast(watched.store, agents=[main]) as other:
        waits(hf, main)
        other.signal("r", "go", 1)
        watched.before[moment] = lambda: other.resume("r")

        with pytest.raises(NotNow, match="completed"):
            hf.signal("r", "go", 2)

        assert moment not in watched.before
        assert kinds(other)[-1] == "run_completed"


def test_a_decision_directly_follows_the_event_it_was_based_on(watched: Watched) -> None:
    with Holdfast(watched, agents=[asks]) as hf:
        waits(hf, asks, n=0)
        watched.appended.clear()
        hf.approve("r")

        (work,) = watched.appended
        before = hf.events("r")[-2][0]
        assert (work.after, work.before) == (before.seq, before.hash)


def flip(path: Path, seq: int) -> None:
    with apsw.Connection(str(path)) as db:
        db.execute("UPDATE events SET data = CAST('{}' AS BLOB) WHERE seq = ?", (seq,))


def test_a_decision_detects_a_damaged_tail_and_a_resume_detects_damage_anywhere(
    home: Any, clock: Any
) -> None:
    hf = home.open(asks)
    write_steps(hf.store, asks, "r", 300, look, n=300)
    clock.advance(1)
    waits_on(hf)
    last = hf.events("r")[-1][0].seq

    flip(home.path, 5)
    hf.signal("r", "more")
    assert not hf.verify("r").ok
    with pytest.raises(LogDamaged, match="event 5"):
        hf.resume("r")
    flip(home.path, last)
    for decide in (lambda: hf.approve("r"), lambda: hf.cancel("r")):
        with pytest.raises(LogDamaged, match=f"event {last}"):
            decide()


def test_a_decision_on_a_log_of_a_newer_version_is_refused(home: Any) -> None:
    hf = home.open(asks)
    waits(hf, asks, n=0)
    store = home.store()
    last = store.read("r")[-1]
    data, seq = b"{}", last.seq + 1
    hash_ = log.chain_hash(last.hash, seq, last.time, last.epoch, "run_dreamt", data)
    store.append(
        Append("r", last.seq, [log.Record(seq, last.time, last.epoch, "run_dreamt", data, hash_)])
    )

    for decide in (lambda: hf.signal("r", "go"), lambda: hf.approve("r"), lambda: hf.pause("r")):
        with pytest.raises(UnknownEvent, match="run_dreamt"):
            decide()
    store.close()


# ── a signal counts once ─────────────────────────────────────────────────────────────────────


@agent
def hears(run: Run) -> list[Any]:
    first = run.wait_for("go")
    look(1)
    return [first, run.wait_for("go", timeout=60)]


def signals(hf: Holdfast, run_id: str) -> list[str]:
    return [x.id for _, x in hf.events(run_id) if isinstance(x, e.SignalReceived)]


def test_a_signal_that_was_sent_by_many_at_once_is_received_once(home: Any) -> None:
    hf = home.open(hears)
    waits(hf, hears)
    senders = [
        threading.Thread(target=lambda: hf.signal("r", "go", 1, signal_id="x")) for _ in range(8)
    ]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()

    assert signals(hf, "r") == ["x"]


def test_a_signal_id_belongs_to_its_run(home: Any) -> None:
    hf = home.open(hears)
    for run_id in ("r", "s"):
        waits(hf, hears, run_id)
        for _ in range(2):
            hf.signal(run_id, "go", 1, signal_id="x" * 10_000)

    assert [["x" * 10_000]] * 2 == [signals(hf, run_id) for run_id in ("r", "s")]


def test_a_fork_has_received_what_it_inherits(home: Any) -> None:
    hf = home.open(hears)
    waits(hf, hears)
    hf.signal("r", "go", 1, signal_id="x")
    waits(hf, hears)
    hf.signal("r", "go", 2, signal_id="y")
    hf.fork("r", 1, id="f")
    for signal_id in ("x", "y", "y"):
        hf.signal("f", "go", signal_id, signal_id=signal_id)

    assert signals(hf, "f") == ["x", "y"]
    assert hf.resume("f") == [1, "y"]


def test_a_run_that_begins_after_another_of_its_id_was_deleted_has_received_nothing(
    home: Any,
) -> None:
    hf = home.open(hears)
    for _ in range(2):
        waits(hf, hears)
        hf.signal("r", "go", 1, signal_id="x")
        assert signals(hf, "r") == ["x"]
        hf.cancel("r")
        with pytest.raises(RunCancelled):
            hf.resume("r")
        assert hf.store.delete("r")


def test_no_callers_key_can_pose_as_a_signal(home: Any) -> None:
    @tool
    def pay(idempotency_key: str = "") -> int:
        return 1

    @agent
    def main(run: Run) -> int:
        return pay(idempotency_key="\x1fsignal r 1")

    with pytest.raises(RunFailed, match="idempotency_key must be"):
        home.open().run(main, id="r")
