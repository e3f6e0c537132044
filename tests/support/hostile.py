"""A run whose every field holds text that tries to run as script, to break out of its place, or to hide."""

from __future__ import annotations

from pathlib import Path

from holdfast.core import events as e
from holdfast.core import values
from holdfast.core.events import ErrorInfo, Usage
from holdfast.core.log import Blob
from holdfast.store.sqlite.store import SQLiteStore
from holdfast.waiting import WaitingFor
from support.gallery import HOUR, SECOND, Clock, Writer, value

BIDI = "\u202e"
CORPUS = (
    "<script>window.__xss=1</script>",
    "<img src=x onerror=window.__xss=1>",
    '"><svg onload=window.__xss=1>',
    "'><iframe src=javascript:window.__xss=1>",
    "javascript:window.__xss=1",
    "</textarea><script>window.__xss=1</script>",
    "</pre></details></main><script>window.__xss=1</script>",
    "{{ 7*7 }}{% raw %}${window.__xss=1}",
    f"refund{BIDI}000,1\u2066 to \u200bme\x1b[31m\x00",
    '<div hx-get="/runs" hx-trigger="load">',
    '<hx-partial hx-target="#run-head"><b>gone</b></hx-partial>',
    "]]><!--<a href=javascript:window.__xss=1>",
)


class _Next:
    """One after the other; how many were used."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> str:
        self.count += 1
        return f"{CORPUS[self.count % len(CORPUS)]} {self.count}"


def fill(path: str | Path) -> tuple[str, int]:
    """Write the runs; the id of the first, and how many fields were filled."""
    clock, x = Clock(), _Next()
    store = SQLiteStore(path, clock=clock)
    try:
        for run_id in ("hostile", "hostile-2"):
            _write(
                Writer(
                    store,
                    clock,
                    run_id,
                    x(),
                    {x(): x(), "nested": [x(), {x(): x()}]},
                    HOUR,
                    stages=(x(),),
                ),
                x,
            )
    finally:
        store.close()
    return "hostile", x.count


def _write(w: Writer, x: _Next) -> None:
    w.claim(x()).add(
        e.StageEntered(stage=x()), e.PlanMade(steps=(x(), x())), e.PlanStepBegan(step=x())
    )
    w.do(x(), {x(): x()}, {x(): [x()]}, SECOND, Usage(5, 5, 0.1))
    w.state(**{x(): x()})
    w.begin(x(), {x(): x()})
    w.fail(w.records[-1].kind, x(), x(), SECOND, retry_in=SECOND)
    w.after(SECOND).begin(x(), {x(): x()}, effect="once", attempt=2, is_repeated=True)
    w.add(e.LogWritten(level=x(), text=x()))
    w.add(
        e.CallDoubted(
            index=w.index,
            step=w.step,
            name=x(),
            because=x(),
            error=ErrorInfo(x(), x(), traceback=x()),
        )
    )
    w.begin(x(), {x(): x()}, effect="child", child="hostile-2")
    w.add(e.DecisionMade(name=x(), choice=value(x()), why=x(), options=(x(), x())))
    w.add(
        e.FactLearned(key=x(), value=value({x(): x()}), source=x()),
        e.QuestionRaised(question=x()),
        e.NoteTaken(key=x(), value=value(x())),
    )
    asked = e.RecordedToolCall(
        id=x(), name=x(), arguments=value({x(): x()}), result=value(x()), error=x()
    )
    w.add(e.MessageAdded(role=x(), content=value(x()), tool_calls=(asked,), tool_call_id=x()))
    w.add(e.MessageAdded(role="user", content=value({x(): x()})))
    data = x().encode()
    for kind in ("text/html", "image/svg+xml", "text/plain", x()):
        w.blobs.append(Blob(values.digest(data), data))
        w.add(
            e.ArtifactSaved(
                name=x(), type=kind, blob=values.digest(data), bytes=len(data), summary=x()
            )
        )
    w.add(
        e.ContextShown(slice=value({x(): x()})), e.StatePatched(changes=value([]), by=x(), why=x())
    )
    w.add(e.SignalReceived(id=x(), name=x(), value=value(x()), by=x(), why=x()))
    w.add(
        e.WaitBegan(
            index=90, wait="approval", name=x(), tool=x(), show=value({x(): x()}), digest=x()
        )
    )
    w.add(e.WaitBegan(index=91, wait="answer", name=x(), options=(x(), x())))
    w.add(e.WaitBegan(index=92, wait="signal", name=x(), of=(x(),)))
    said = x()
    w.add(
        e.RunSuspended(
            waiting_for=said,
            waits=(WaitingFor("approval", x(), tool=x(), request_id="#90"),),
            open_since=w.records[0].time,
        )
    )
    w.save("waiting", said)
