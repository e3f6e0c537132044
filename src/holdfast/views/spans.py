"""A run's log as spans of time: a row for each call and wait, who executed the run, and what happened between.

`Spans` takes in events one by one, so that a reader of a live run continues where it stopped. It keeps times and names,
no payloads but the arguments that name a row. Not here: how it is drawn (`web/pages/chart.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.core import events as e
from holdfast.core.events import Event, Value
from holdfast.core.log import Record


@dataclass(slots=True)
class Span:
    """A part of a row. `end` is None while it lasts.

    `kind` is done, failed, cut, running or lost (an attempt, by its outcome), doubt, backoff, or what was waited for:
    approval, answer, signal, timer, child.
    """

    kind: str
    start: int
    end: int | None = None
    text: str = ""
    attempt: int = 0

    @property
    def is_attempt(self) -> bool:
        return self.kind in _ATTEMPTS


_ATTEMPTS: Final = frozenset({"done", "failed", "cut", "running", "lost"})


@dataclass(slots=True)
class SpanRow:
    """A call, or something that the code waited for. `status` is a key of `words.signs.CALL_SIGNS`."""

    seq: int
    """The event with which it starts: the order of rows, and their name."""
    name: str
    status: str
    step: int = 0
    """0 for a wait."""
    branch: str = ""
    args: Value | None = None
    child: str = ""
    effect: str = ""
    undoes: int = 0
    is_past: bool = False
    """The code has started over since."""
    spans: list[Span] = field(default_factory=list)

    @property
    def id(self) -> str:
        """Its name within the run: `call-17`, `wait-204`."""
        return f"call-{self.step}" if self.step else f"wait-{self.seq}"

    @property
    def start(self) -> int:
        return self.spans[0].start if self.spans else 0

    def end(self, now: int) -> int:
        return max((now if s.end is None else s.end for s in self.spans), default=now)

    @property
    def attempts(self) -> int:
        return sum(span.is_attempt for span in self.spans)

    @property
    def is_open(self) -> bool:
        return self.status in ("running", "retrying", "waiting", "in_doubt")


@dataclass(slots=True)
class Holder:
    """A process that executed the run. `end` is None while it does; `died` if it stopped without a word."""

    worker: str
    epoch: int
    start: int
    end: int | None = None
    died: bool = False


@dataclass(slots=True)
class Mark:
    """Something that happened at one moment. `kind` is a key of `words.signs.MARK_SIGNS`."""

    seq: int
    time: int
    kind: str
    text: str


class Spans:
    """The rows, holders and marks of one run, up to the last event that was taken in."""

    def __init__(self) -> None:
        self.rows: list[SpanRow] = []
        self.holders: list[Holder] = []
        self.marks: list[Mark] = []
        self.start = self.end = 0
        self.deadline_at: int | None = None
        self._open: dict[tuple[str, int], SpanRow] = {}
        self._by_step: dict[int, SpanRow] = {}

    @property
    def calls(self) -> int:
        """How many of the rows are calls."""
        return len(self._by_step)

    def apply(self, record: Record, event: Event) -> None:
        """Take one event in."""
        if not self.start:
            self.start = record.time
        self._notice_holder(record, event)
        take = _TAKE.get(type(event))
        if take is not None:
            take(self, record.seq, record.time, event)
        elif type(event) in _MARKS:
            self._mark(record.seq, record.time, event)
        self.end = max(self.end, record.time)

    def row(self, step: int) -> SpanRow | None:
        """The row of a call."""
        return self._by_step.get(step)

    # ── who executes ─────────────────────────────────────────────────────────────────────

    def _notice_holder(self, record: Record, event: Event) -> None:
        """Who creates a run and executes it at once does not record a claim; the epoch tells."""
        if isinstance(event, e.RunClaimed):
            self._leave(self.end, died=True)
            for row in self._open.values():
                self._lose(row, self.end)
            self.holders.append(Holder(event.worker, record.epoch, record.time))
        elif not self.holders and record.epoch:
            self.holders.append(Holder("", record.epoch, self.start))
        if isinstance(event, _LEAVES):
            self._leave(record.time)

    def _leave(self, time: int, *, died: bool = False) -> None:
        if self.holders and self.holders[-1].end is None:
            self.holders[-1].end, self.holders[-1].died = time, died

    # ── calls ────────────────────────────────────────────────────────────────────────────

    def _row(self, seq: int, branch: str, index: int, name: str) -> SpanRow:
        found = self._open.get((branch, index))
        if found is None:
            found = self._open[branch, index] = SpanRow(seq, name, "running", branch=branch)
            self.rows.append(found)
        return found

    def _call(self, seq: int, x: e.CallStarted | e.CallSucceeded | e.CallFailure) -> SpanRow:
        row = self._row(seq, x.branch, x.index, x.name)
        row.step, row.name = x.step, x.name
        row.args = x.args if x.args is not None else row.args
        self._by_step[x.step] = row
        return row

    def _started(self, seq: int, time: int, x: e.CallStarted) -> None:
        row = self._call(seq, x)
        row.effect, row.child, row.undoes, row.status = x.effect, x.child, x.undoes, "running"
        self._lose(row, time)
        self._close(row, time)
        kind = "child" if x.child else "running"
        row.spans.append(Span(kind, time, attempt=x.attempt))

    def _succeeded(self, seq: int, time: int, x: e.CallSucceeded) -> None:
        self._finished(self._call(seq, x), "done", time, x.duration_us, x.attempt)

    def _failed(self, seq: int, time: int, x: e.CallFailure) -> None:
        row = self._call(seq, x)
        kind = "cut" if x.cut else "failed"
        self._finished(
            row, kind, time, x.duration_us, x.attempt, f"{x.error.type}: {x.error.message}"
        )
        row.status = "cancelled" if x.cut else "failed"
        if x.retry_at is not None:
            row.status = "retrying"
            row.spans.append(Span("backoff", time, x.retry_at, attempt=x.attempt + 1))

    def _finished(
        self, row: SpanRow, kind: str, time: int, duration_us: int, attempt: int, text: str = ""
    ) -> None:
        last = row.spans[-1] if row.spans else None
        if last is None or last.end is not None or last.kind not in ("running", "child"):
            self._close(row, time - duration_us)
            last = Span(kind, time - duration_us, attempt=attempt)
            row.spans.append(last)
        last.end, last.text, row.status = time, text, "done"
        last.kind = kind if last.kind != "child" or kind != "done" else "child"

    def _close(self, row: SpanRow, time: int) -> None:
        for span in row.spans:
            if span.end is None or (span.kind == "backoff" and span.end > time):
                span.end = max(time, span.start)

    def _lose(self, row: SpanRow, time: int) -> None:
        """Its process ended without a receipt."""
        for span in row.spans:
            if span.kind == "running" and span.end is None:
                span.kind, span.end = "lost", max(time, span.start)

    def _doubted(self, _seq: int, time: int, x: e.CallDoubted) -> None:
        row = self._open.get((x.branch, x.index))
        if row is not None:
            row.status = "in_doubt"
            if x.error is not None and row.spans and row.spans[-1].end is None:
                row.spans[-1].kind, row.spans[-1].text = "doubt", x.because
                return
            self._lose(row, time)
            row.spans.append(
                Span("doubt", row.spans[-1].end or time if row.spans else time, text=x.because)
            )

    def _resolved(self, _seq: int, time: int, x: e.CallResolved) -> None:
        row = self._open.get((x.branch, x.index))
        if row is not None:
            self._close(row, time)
            row.status = {"done": "done", "failed": "failed"}.get(x.how, "retrying")

    # ── waits ────────────────────────────────────────────────────────────────────────────

    def _wait_began(self, seq: int, time: int, x: e.WaitBegan) -> None:
        row = self._row(seq, x.branch, x.index, x.tool or x.name or x.wait)
        row.status = "waiting"
        row.spans.append(Span(x.wait, time, text=x.name))

    def _wait_ended(self, _seq: int, time: int, x: e.WaitEnded) -> None:
        row = self._open.get((x.branch, x.index))
        if row is not None:
            self._close(row, time)
            row.status = "cancelled" if x.is_over("cut") or x.is_over("lost") else "done"

    def _decided(self, seq: int, time: int, x: e.ApprovalDecided | e.AnswerGiven) -> None:
        row = self._open.get((x.branch, x.index))
        if row is not None and not row.step:
            self._close(row, time)
            row.status = "done"
        said = (
            "answered" if isinstance(x, e.AnswerGiven) else "approved" if x.approved else "rejected"
        )
        self.marks.append(Mark(seq, time, "person", f"{said} by {x.by}" if x.by else said))

    # ── the run ──────────────────────────────────────────────────────────────────────────

    def _created(self, _seq: int, _time: int, x: e.RunCreated) -> None:
        self.deadline_at = x.deadline_at

    def _limits(self, _seq: int, _time: int, x: e.LimitsChanged) -> None:
        self.deadline_at = x.deadline_at if x.deadline_at is not None else self.deadline_at

    def _restarted(self, seq: int, time: int, x: e.RunRestarted) -> None:
        for row in self._open.values():
            self._close(row, time)
            row.is_past = True
        self._open.clear()
        self.marks.append(
            Mark(seq, time, "person", f"started over by {x.by}" if x.by else "started over")
        )

    def _ended(self, _seq: int, time: int, _x: Event) -> None:
        """What the code was still waiting for does not come any more."""
        for row in self._open.values():
            if row.status in ("running", "waiting"):
                self._close(row, time)
                row.status = "cancelled"

    def _mark(self, seq: int, time: int, event: Event) -> None:
        kind, words = _MARKS[type(event)]
        said = [str(getattr(event, word, "")) for word in words]
        by = getattr(event, "by", "")
        if kind in ("person", "patch", "signal"):
            said = [event.kind.replace("_", " "), *said] + ([f"by {by}"] if by else [])
        self.marks.append(Mark(seq, time, kind, " ".join(filter(None, said))))


_LEAVES: Final = (e.RunSuspended, e.RunCompleted, e.RunFailure, e.RunCancellation, e.RunQuarantined)

_TAKE: Final[dict[type[Event], Callable[[Spans, int, int, Any], None]]] = {
    e.RunCreated: Spans._created,
    e.LimitsChanged: Spans._limits,
    e.CallStarted: Spans._started,
    e.CallSucceeded: Spans._succeeded,
    e.CallFailure: Spans._failed,
    e.CallDoubted: Spans._doubted,
    e.CallResolved: Spans._resolved,
    e.WaitBegan: Spans._wait_began,
    e.WaitEnded: Spans._wait_ended,
    e.ApprovalDecided: Spans._decided,
    e.AnswerGiven: Spans._decided,
    e.RunRestarted: Spans._restarted,
    e.RunCompleted: Spans._ended,
    e.RunCancellation: Spans._ended,
}

_MARKS: Final[dict[type[Event], tuple[str, tuple[str, ...]]]] = {
    e.DecisionMade: ("decision", ("name",)),
    e.FactLearned: ("fact", ("key",)),
    e.StageEntered: ("stage", ("stage",)),
    e.ArtifactSaved: ("artifact", ("name",)),
    e.StatePatched: ("patch", ()),
    e.SignalReceived: ("signal", ("name",)),
    e.CancelRequested: ("person", ()),
    e.RunPaused: ("person", ()),
    e.RunReopened: ("person", ()),
    e.StepsAccepted: ("person", ()),
    e.UndoRequested: ("person", ()),
    e.LimitsChanged: ("person", ()),
}


TOGETHER: Final = 5
"""So many calls of one name in a row are shown as one."""


def grouped(rows: list[SpanRow]) -> Iterator[list[SpanRow]]:
    """The rows in order; those of one name in a row, if at least `TOGETHER`, together. What is open stays alone."""
    together: list[SpanRow] = []
    for row in rows:
        if together and (row.name != together[-1].name or row.is_open or not row.step):
            yield from _group(together)
            together = []
        if row.is_open or not row.step:
            yield [row]
        else:
            together.append(row)
    yield from _group(together)


def _group(rows: list[SpanRow]) -> Iterator[list[SpanRow]]:
    if len(rows) >= TOGETHER:
        yield rows
    else:
        yield from ([row] for row in rows)
