"""A store with many kinds of runs, for pictures and tests of the pages: `python tests/support/gallery.py STORE`.

The runs are written as logs with times of their choice, so that a timeline shows hours that no one has to wait for. The
logs are real ones: chained, and folded by the same code as any other.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Raw

from holdfast.core import events as e
from holdfast.core import log, values
from holdfast.core.events import ErrorInfo, Event, Usage, Value
from holdfast.core.log import Blob
from holdfast.store.base import Append, Creation, NewRun, RowChange, Schedule
from holdfast.store.sqlite.store import SQLiteStore
from holdfast.waiting import WaitingFor, kinds_of

SECOND = 1_000_000
MINUTE, HOUR = 60 * SECOND, 3600 * SECOND


def value(x: Any) -> Value:
    return Value(json=Raw(values.encode(x)))


class Clock:
    """The store's clock, which is moved while a run is written."""

    def __init__(self) -> None:
        self.now = time.time_ns() // 1000

    def __call__(self) -> int:
        return self.now


class Writer:
    """One run's log, written event by event; `after` moves the time."""

    def __init__(
        self,
        store: SQLiteStore,
        clock: Clock,
        run_id: str,
        agent: str,
        input: Any,
        ago: int,
        **options: Any,
    ) -> None:
        self.store, self.clock, self.id, self.agent = store, clock, run_id, agent
        self.real, self.time = clock.now, clock.now - ago
        self.epoch = 0
        self.head = log.origin(run_id)
        self.records: list[log.Record] = []
        self.blobs: list[Blob] = []
        self.step = 0
        self.index = 0
        self.input = value(input)
        self.add(e.RunCreated(run_id=run_id, agent=agent, input=self.input, **options))

    def after(self, us: float) -> Writer:
        self.time += int(us)
        return self

    def add(self, *new: Event) -> Writer:
        self.head, records = log.seal(self.head, new, epoch=self.epoch, time=self.time)
        self.records += records
        return self

    def claim(self, worker: str) -> Writer:
        self.epoch += 1
        return self.add(e.RunClaimed(worker=worker))

    def state(self, **new: Any) -> Writer:
        return self.add(
            *(
                e.StateChanged(op="set", key=k, value=value(v), after=self.index)
                for k, v in new.items()
            )
        )

    def begin(
        self,
        name: str,
        args: Any,
        *,
        effect: str = "keyed",
        attempt: int = 1,
        is_repeated: bool = False,
        branch: str = "",
        child: str = "",
        index: int | None = None,
    ) -> Writer:
        if not is_repeated:
            self.step += 1
            self.index += 1
        data = values.encode(args)
        digest = values.digest(data)
        return self.add(
            e.CallStarted(
                index=self.index if index is None else index,
                step=self.step,
                name=name,
                effect=effect,
                key=f"{self.id}:{self.step}:{name}:{digest[:8]}",
                digest=digest,
                args=Value(json=Raw(data)),
                attempt=attempt,
                risk="external_action",
                branch=branch,
                child=child,
                undoable=name.startswith("book"),
            )
        )

    def done(
        self,
        name: str,
        result: Any,
        us: float,
        *,
        attempt: int = 1,
        usage: Usage | None = None,
        args: Any = None,
        index: int | None = None,
        step: int | None = None,
        branch: str = "",
    ) -> Writer:
        self.after(us)
        return self.add(
            e.CallSucceeded(
                index=self.index if index is None else index,
                step=step or self.step,
                name=name,
                result=value(result),
                duration_us=int(us),
                attempt=attempt,
                usage=usage,
                branch=branch,
                args=None if args is None else value(args),
            )
        )

    def do(
        self, name: str, args: Any, result: Any, us: float, usage: Usage | None = None
    ) -> Writer:
        """A step: only a receipt."""
        self.step += 1
        self.index += 1
        return self.done(name, result, us, usage=usage, args=args)

    def fail(
        self,
        name: str,
        kind: str,
        text: str,
        us: float,
        *,
        attempt: int = 1,
        retry_in: int | None = None,
    ) -> Writer:
        self.after(us)
        error = ErrorInfo(
            kind,
            text,
            traceback=f'Traceback (most recent call last):\n  File "agent.py", line 42, in {name}\n    return call("POST", path, body)\n{kind}: {text}',
        )
        at = None if retry_in is None else self.time + retry_in
        return self.add(
            e.CallFailure(
                index=self.index,
                step=self.step,
                name=name,
                error=error,
                attempt=attempt,
                retry_at=at,
                duration_us=int(us),
            )
        )

    def save(
        self,
        status: str,
        waiting_for: str = "",
        due_in: int | None = None,
        worker: str = "w-1",
        lease: int = 0,
    ) -> None:
        """Write it. The row gets the times of the log."""
        self.clock.now = self.records[0].time
        digest = values.digest(bytes(memoryview(self.input.json)))
        run = NewRun(self.id, self.agent, digest)
        new = Creation(run, self.records[:-1], self.blobs, worker, 60 * SECOND)
        row, _ = self.store.create(new).wait().made
        self.clock.now = self.records[-1].time
        due = None if due_in is None else self.real + due_in
        last = e.from_json(self.records[-1].kind, self.records[-1].data)
        kinds = kinds_of(last.waits) if isinstance(last, e.RunSuspended) else ""
        change = RowChange(status, due, waiting_for, waiting_kinds=kinds)
        self.store.append(
            Append(
                self.id,
                self.records[-2].seq,
                self.records[-1:],
                row.epoch,
                None if status == "running" else change,
            )
        )
        self.clock.now = self.real
        if status == "running" and lease:
            self.store.claim(self.id, worker=worker, lease_us=lease) or self.store.renew(
                [(self.id, row.epoch)], lease_us=lease
            )


# ── the runs ─────────────────────────────────────────────────────────────────────────────────


def onboarding(make: Callable[..., Writer]) -> None:
    """Killed between effect and receipt; another worker resumes with the same key."""
    w = make(
        "onboard-ada",
        "onboard",
        {"name": "Ada Lovelace"},
        6 * HOUR,
        stages=("research", "booking", "welcome", "complete"),
    )
    w.after(0.3 * SECOND).claim("w-1@build-7").add(e.StageEntered(stage="research"))
    w.do(
        "read_profile",
        {"name": "Ada Lovelace"},
        {"name": "Ada Lovelace", "team": "search", "email": "ada@example.com"},
        0.21 * SECOND,
    )
    w.do("choose_buddy", {"team": "search"}, "Grace Hopper", 1.4 * SECOND, Usage(812, 96, 0.0041))
    w.add(
        e.DecisionMade(
            name="buddy",
            choice=value("Grace Hopper"),
            why="knows the search team best, and has time this week",
            options=("Grace Hopper", "Alan Turing", "Barbara Liskov"),
            after=2,
        )
    )
    w.add(
        e.StageEntered(stage="booking"),
        e.FactLearned(key="time zone", value=value("Europe/London"), source="profile"),
    )
    w.begin("find_slot", {"person": "ada@example.com"}, effect="repeatable")
    w.fail(
        "find_slot",
        "ConnectionError",
        "the calendar answers 503 Service Unavailable",
        0.4 * SECOND,
        retry_in=900_000,
    )
    w.after(0.9 * SECOND).begin(
        "find_slot", {"person": "ada@example.com"}, effect="repeatable", attempt=2, is_repeated=True
    )
    w.done("find_slot", "Tue 10:00", 0.5 * SECOND, attempt=2).state(slot="Tue 10:00")
    w.begin("book_room", {"slot": "Tue 10:00", "people": 2}).done(
        "book_room", "room-4.12", 0.7 * SECOND
    ).state(room="room-4.12")
    w.do(
        "draft_agenda",
        {"name": "Ada Lovelace", "buddy": "Grace Hopper"},
        "Welcome Ada. First coffee with Grace, then accounts, then the first small fix.",
        2.2 * SECOND,
        Usage(1490, 310, 0.0092),
    )
    w.begin("send_invite", {"to": "ada@example.com", "slot": "Tue 10:00", "room": "room-4.12"})
    w.after(41 * SECOND).claim("w-2@build-9")
    w.after(0.1 * SECOND).begin(
        "send_invite",
        {"to": "ada@example.com", "slot": "Tue 10:00", "room": "room-4.12"},
        attempt=2,
        is_repeated=True,
    )
    w.done("send_invite", "invite-881", 0.6 * SECOND, attempt=2).state(invite="invite-881").add(
        e.StageEntered(stage="welcome")
    )
    w.do(
        "draft_welcome",
        {"name": "Ada Lovelace"},
        "Please say hello to Ada! Grace will show her the way.",
        1.9 * SECOND,
        Usage(1210, 180, 0.0066),
    )
    w.begin("post_welcome", {"text": "Please say hello to Ada!"}).done(
        "post_welcome", "post-17", 0.4 * SECOND
    ).state(post="post-17")
    w.do(
        "write_summary",
        {"invite": "invite-881"},
        "Ada is on board: invite-881, post-17",
        0.8 * SECOND,
        Usage(640, 70, 0.0028),
    )
    w.add(e.StageEntered(stage="complete")).after(0.1 * SECOND).add(
        e.RunCompleted(result=value("Ada is on board: invite-881, post-17"))
    )
    w.save("completed")


def refund(make: Callable[..., Writer]) -> None:
    """Waits for a person, with exact arguments."""
    w = make(
        "refund-4711",
        "support",
        {"ticket": 4711, "text": "The lamp arrived broken."},
        38 * MINUTE,
        budget={"max_cost_usd": 0.5, "max_steps": 40.0},
        stages=("triage", "refund", "done"),
    )
    w.claim("w-1@build-7").add(e.StageEntered(stage="triage"))
    w.add(
        e.MessageAdded(
            role="system", content=value("You are a support agent. Refund broken goods up to $200.")
        )
    )
    w.add(
        e.MessageAdded(
            role="user", content=value("Order 4711: the lamp arrived broken. I want my money back.")
        )
    )
    w.do(
        "ask_model",
        {"model": "gpt-5-mini"},
        {"tool": "find_order"},
        3.1 * SECOND,
        Usage(1204, 88, 0.0031),
    )
    call = e.RecordedToolCall(
        id="call_1",
        name="find_order",
        arguments=value({"order": 4711}),
        result=value({"total": 84.5, "item": "Lamp, brass"}),
    )
    w.add(
        e.MessageAdded(
            role="assistant",
            content=value("Let me look at the order."),
            tool_calls=(call,),
            after=1,
        )
    )
    w.do(
        "find_order",
        {"order": 4711},
        {"total": 84.5, "item": "Lamp, brass", "card": "[redacted]", "paid": True},
        0.35 * SECOND,
    )
    w.state(order={"total": 84.5, "item": "Lamp, brass", "paid": True}, tier="gold")
    w.do(
        "ask_model",
        {"model": "gpt-5-mini"},
        {"tool": "refund"},
        4.4 * SECOND,
        Usage(1980, 140, 0.0048),
    )
    w.add(
        e.MessageAdded(
            role="assistant",
            content=value("The order is paid and the item broke on the way. I will refund $84.50."),
            after=3,
        )
    )
    w.add(
        e.DecisionMade(
            name="route",
            choice=value("refund"),
            why="Broken on arrival, gold customer, below the limit of $200.",
            options=("refund", "replace", "reject"),
            after=3,
        )
    )
    w.add(e.StageEntered(stage="refund"), e.QuestionRaised(question="Was the parcel insured?"))
    args = {"order": 4711, "amount": 84.5, "currency": "USD", "note": "Broken on arrival"}
    w.add(
        e.WaitBegan(
            index=9,
            wait="approval",
            name="refund",
            tool="refund",
            show=value(args),
            digest=values.digest(values.encode(args)),
            until=w.time + 4 * HOUR,
        )
    )
    w.add(
        e.RunSuspended(
            waiting_for="approval of refund",
            waits=(WaitingFor("approval", "refund", tool="refund", request_id="#9"),),
            open_since=w.time,
        )
    )
    w.save("waiting", "approval of refund")


def doubt(make: Callable[..., Writer]) -> None:
    """A payment of which no one knows whether it happened."""
    w = make("payout-march", "payout", {"month": "2026-03"}, 3 * HOUR)
    w.claim("w-3@build-9").do(
        "read_ledger", {"month": "2026-03"}, {"rows": 214, "sum": 48210.4}, 2.1 * SECOND
    )
    w.state(total=48210.4, paid=0)
    w.begin(
        "wire_transfer",
        {"to": "DE89 3704 0044 0532 0130 00", "amount": 48210.4, "reference": "March payout"},
        effect="once",
    )
    w.after(30 * SECOND).add(
        e.CallDoubted(
            index=w.index,
            step=w.step,
            name="wire_transfer",
            because="read timeout after 30 s",
            error=ErrorInfo("ReadTimeout", "the bank did not answer within 30 s", effect="unknown"),
        )
    )
    waits = (
        WaitingFor("decision", "wire_transfer", step=w.step, reason="read timeout after 30 s"),
    )
    w.add(
        e.RunSuspended(
            waiting_for="a decision about step 2, wire_transfer, which may or may not have happened",
            waits=waits,
            open_since=w.time - 30 * SECOND,
        )
    )
    w.save("waiting", "a decision about step 2, wire_transfer, which may or may not have happened")


def question(make: Callable[..., Writer]) -> None:
    w = make("travel-oslo", "travel", {"to": "Oslo"}, 12 * MINUTE)
    w.claim("w-1@build-7").do(
        "search_hotels", {"city": "Oslo"}, ["Grand", "Amerikalinjen", "Sentrum"], 1.2 * SECOND
    )
    w.add(
        e.WaitBegan(
            index=5,
            wait="answer",
            name="Which hotel?",
            options=("Grand", "Amerikalinjen", "Sentrum"),
        )
    )
    w.add(
        e.RunSuspended(
            waiting_for="an answer: Which hotel?",
            waits=(
                WaitingFor(
                    "answer",
                    "Which hotel?",
                    request_id="#5",
                    options=("Grand", "Amerikalinjen", "Sentrum"),
                ),
            ),
            open_since=w.time,
        )
    )
    w.save("waiting", "an answer: Which hotel?")


def failed(make: Callable[..., Writer]) -> None:
    w = make("digest-2026-11-16", "digest", {"day": "2026-11-16"}, 9 * HOUR, deadline_at=None)
    w.claim("w-2@build-9").do("fetch_feeds", {"n": 12}, {"items": 340}, 6.2 * SECOND).state(
        items=340
    )
    for attempt, wait in ((1, 2), (2, 4), (3, 8), (4, 16)):
        w.begin(
            "publish", {"channel": "#news", "items": 12}, attempt=attempt, is_repeated=attempt > 1
        )
        w.fail(
            "publish",
            "HTTPStatusError",
            "502 Bad Gateway from api.example.com/v2/posts",
            0.9 * SECOND,
            attempt=attempt,
            retry_in=wait * SECOND,
        )
        w.after(wait * SECOND)
    w.begin("publish", {"channel": "#news", "items": 12}, attempt=5, is_repeated=True)
    w.fail(
        "publish",
        "HTTPStatusError",
        "502 Bad Gateway from api.example.com/v2/posts",
        1.1 * SECOND,
        attempt=5,
    )
    w.add(
        e.RunFailure(
            error=ErrorInfo(
                "HTTPStatusError",
                "502 Bad Gateway from api.example.com/v2/posts",
                traceback='Traceback (most recent call last):\n  File "digest.py", line 31, in digest\n    publish("#news", items)\nHTTPStatusError: 502 Bad Gateway from api.example.com/v2/posts',
            ),
            step=2,
        )
    )
    w.save("failed")


def research(make: Callable[..., Writer]) -> None:
    """Many calls of one tool, a long wait, a child run, artifacts, costs."""
    pick = random.Random(7)
    w = make(
        "research-battery",
        "research",
        {"question": "Which battery chemistry fits a 10-year sensor?"},
        26 * HOUR,
        budget={"max_cost_usd": 2.0},
    )
    w.claim("w-1@build-7")
    for n in range(14):
        w.do(
            "search",
            {
                "query": f"{pick.choice(['lithium', 'sodium', 'zinc', 'LiSOCl2', 'hybrid'])} cell shelf life {n}"
            },
            {"hits": pick.randrange(3, 60)},
            pick.uniform(0.3, 1.9) * SECOND,
        )
    w.do("ask_model", {"model": "claude"}, {"plan": 3}, 8 * SECOND, Usage(9120, 810, 0.062))
    w.add(
        e.DecisionMade(
            name="chemistry",
            choice=value("LiSOCl2"),
            why="Lowest self-discharge; the load is 20 µA.",
            options=("LiSOCl2", "LiMnO2", "Zn-air"),
            after=w.index,
        )
    )
    data = b"# Battery notes\n\n- LiSOCl2: 1 % per year\n- LiMnO2: 2 % per year\n"
    blob = Blob(values.digest(data), data)
    w.blobs.append(blob)
    w.add(
        e.ArtifactSaved(
            name="notes.md",
            type="text/markdown",
            blob=blob.hash,
            bytes=len(data),
            summary="Self-discharge by chemistry",
            after=w.index,
        )
    )
    w.index += 1
    w.add(e.WaitBegan(index=w.index, wait="signal", name="lab_results"))
    w.add(
        e.RunSuspended(
            waiting_for="the signal 'lab_results'",
            waits=(WaitingFor("signal", "lab_results"),),
            open_since=w.time,
        )
    )
    w.after(19.5 * HOUR).add(
        e.SignalReceived(
            id="s1", name="lab_results", value=value({"ok": True, "mAh": 2390}), by="lab"
        )
    )
    w.after(2 * SECOND).claim("w-4@build-9").add(
        e.WaitEnded(
            index=w.index,
            wait="signal",
            outcome="lab_results",
            value=value({"ok": True}),
            source=w.head.seq - 1,
        )
    )
    w.begin("write_report", {"for": "sensors"}, effect="child", child="research-battery~17")
    _report(make, w.real - w.time)
    w.done("write_report", {"pages": 6}, 31 * SECOND)
    for _ in range(6):
        w.do(
            "check_claim",
            {"n": pick.randrange(40)},
            {"ok": True},
            pick.uniform(0.8, 2.5) * SECOND,
            Usage(
                pick.randrange(800, 4000),
                pick.randrange(60, 300),
                round(pick.uniform(0.004, 0.03), 4),
            ),
        )
    w.add(e.RunCompleted(result=value({"answer": "LiSOCl2", "pages": 6})))
    w.save("completed")


def _report(make: Callable[..., Writer], ago: int) -> None:
    """The child run of the research."""
    w = make(
        "research-battery~17", "write_report", {"for": "sensors"}, ago, parent="research-battery"
    )
    w.claim("w-4@build-9")
    w.do("outline", {"for": "sensors"}, {"parts": 4}, 6 * SECOND, Usage(2100, 240, 0.011))
    w.do("write", {"part": 1}, {"pages": 6}, 21 * SECOND, Usage(6100, 2900, 0.084))
    w.add(e.RunCompleted(result=value({"pages": 6})))
    w.save("completed")


def running(make: Callable[..., Writer]) -> None:
    w = make("crawl-docs", "crawl", {"site": "docs.example.com"}, 95 * SECOND)
    w.claim("w-5@build-7")
    for n in range(8):
        w.do(
            "fetch",
            {"url": f"https://docs.example.com/page/{n}"},
            {"bytes": 18_000 + 731 * n},
            (2 + n % 3) * SECOND,
        )
    w.state(pages=8)
    w.begin("summarise", {"pages": 8}, effect="repeatable")
    w.save("running", worker="w-5@build-7", lease=12 * HOUR)


def others(make: Callable[..., Writer]) -> None:
    pick = random.Random(3)
    for n in range(46):
        agent = pick.choice(["recap", "digest", "onboard", "triage"])
        w = make(
            f"{agent}-{1000 + n}",
            agent,
            {"n": n},
            pick.randrange(1, 23) * HOUR + pick.randrange(HOUR),
        )
        w.claim(f"w-{pick.randrange(1, 5)}@build-{pick.choice([7, 9])}")
        for k in range(pick.randrange(1, 7)):
            w.do(
                pick.choice(["read", "draft", "classify"]),
                {"k": k},
                {"ok": True},
                pick.uniform(0.05, 4) * SECOND,
                Usage(300 + k, 40, 0.001),
            )
        if n % 9 == 4:
            w.add(e.RunFailure(error=ErrorInfo("ValueError", f"unknown customer {n}"), step=1))
            w.save("failed")
        elif n % 17 == 6:
            w.add(e.RunCancellation(by="olga", why="not needed any more"))
            w.save("cancelled")
        else:
            w.add(e.RunCompleted(result=value({"n": n})))
            w.save("completed")
    for n in range(3):
        w = make(f"recap-later-{n}", "recap", {"n": n}, 5 * MINUTE)
        w.claim("w-2@build-9").add(
            e.WaitBegan(index=1, wait="timer", name="", until=w.time + 2 * HOUR)
        )
        w.add(
            e.RunSuspended(
                waiting_for="a timer",
                wake_at=w.time + 2 * HOUR,
                waits=(WaitingFor("timer", until=w.time + 2 * HOUR),),
                open_since=w.time,
            )
        )
        w.save("waiting", "a timer", due_in=2 * HOUR)


def fill(path: str | Path) -> None:
    """Write all of them."""
    clock = Clock()
    store = SQLiteStore(path, clock=clock)

    def make(run_id: str, agent: str, input: Any, ago: int, **options: Any) -> Writer:
        return Writer(store, clock, run_id, agent, input, ago, **options)

    try:
        for write in (others, research, onboarding, failed, doubt, refund, question, running):
            write(make)
        next_at = clock.now // HOUR * HOUR + 7 * HOUR
        store.schedules.put(
            Schedule(
                "digest-daily",
                "digest",
                "0 7 * * *",
                "Europe/Berlin",
                b"{}",
                0,
                "latest",
                clock.now,
                next_at,
                next_at - 24 * HOUR,
            )
        )
    finally:
        store.close()


if __name__ == "__main__":
    fill(sys.argv[1])
