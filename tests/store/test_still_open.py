"""What is open in a run is found from the end of its log, as the fold of all of it says."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from holdfast.core import events as e
from holdfast.core import log, values
from holdfast.core.events import ErrorInfo, Event, Value
from holdfast.core.fold import Draft, fold
from holdfast.core.log import Record
from holdfast.core.state import UNSETTLED, Call, RunState, Waiting
from holdfast.store import pages


def inline(data: Any) -> Value:
    return Value(json=Raw(values.encode(data)))


KEYS = st.sampled_from(["x", "y"])
PLACES = {"branch": st.sampled_from(["", "0-1", "undo"]), "index": st.integers(0, 3)}
RECEIPTS = {"name": st.just("send"), "attempt": st.integers(1, 3)}
AT = st.tuples(*PLACES.values())


def step_of(place: tuple[str, int]) -> dict[str, Any]:
    """As in every real log: a step number belongs to one place."""
    branch, index = place
    return {"branch": branch, "index": index, "step": 1 + 10 * len(branch) + index}


OPENING: st.SearchStrategy[Event] = st.one_of(
    st.builds(e.RunSuspended, waiting_for=KEYS),
    st.builds(e.RunSuspended, waiting_for=KEYS),
    st.builds(e.RunRestarted),
    st.builds(e.RunCompleted, result=st.just(inline(1))),
    st.builds(e.CancelRequested),
    st.builds(
        lambda at, **rest: e.CallStarted(**step_of(at), **rest),
        AT,
        **RECEIPTS,
        key=KEYS,
        digest=KEYS,
        effect=st.sampled_from(["once", "keyed"]),
        args=st.just(inline({})),
    ),
    st.builds(
        lambda at, **rest: e.CallSucceeded(**step_of(at), **rest),
        AT,
        **RECEIPTS,
        result=st.just(inline(1)),
    ),
    st.builds(
        lambda at, **rest: e.CallFailure(**step_of(at), **rest),
        AT,
        **RECEIPTS,
        error=st.just(ErrorInfo("OSError", "no")),
        retry_at=st.none() | st.just(99),
    ),
    st.builds(lambda at: e.CallDoubted(**step_of(at), name="send"), AT),
    st.builds(
        lambda at, how: e.CallResolved(**step_of(at), name="send", how=how),
        AT,
        st.sampled_from(["done", "failed", "retry"]),
    ),
    st.builds(
        e.WaitBegan, **PLACES, wait=st.sampled_from(["timer", "approval", "answer"]), name=KEYS
    ),
    st.builds(e.WaitEnded, **PLACES, wait=st.just("approval"), outcome=KEYS),
    st.builds(e.ApprovalDecided, **PLACES, approved=st.booleans()),
    st.builds(e.AnswerGiven, **PLACES, value=st.just(inline(1))),
    st.builds(e.RunClaimed, worker=KEYS),
    st.builds(e.RunFailure, error=st.just(ErrorInfo("OSError", "no"))),
    st.builds(e.RunReopened),
    st.builds(e.StateChanged, op=st.just("set"), key=KEYS, value=st.just(inline(1))),
)
LOGS = st.lists(st.tuples(OPENING, st.integers(0, 1)), min_size=15, max_size=40)


def written(drawn: list[tuple[Event, int]], *, keep_calls: bool) -> list[Record]:
    """A log as a worker writes it: it doubts only what it has begun, and says what is open when it stops."""
    draft = Draft.of(keep_calls=keep_calls)
    created = e.RunCreated(run_id="r", agent="a", input=inline({}))
    head, records = log.seal(log.origin("r"), [created], epoch=1, time=5)
    draft.apply(0, 5, created)
    for event, passed in drawn:
        if isinstance(event, e.CallDoubted):
            call = draft.open.calls.get((event.branch, event.index))
            if call is None or call.status != "running":
                continue
        said = event
        if isinstance(event, e.RunSuspended):
            said = replace(event, open_since=draft.open_since())
        head, new = log.seal(head, [said], epoch=1, time=head.time + passed)
        records += new
        draft.apply(head.seq, head.time, said)
    return records


def unsettled(state: RunState) -> list[tuple[str, int, str, str]]:
    return [
        (c.id, c.step, c.name, c.status)
        for c in state.calls
        if c.status in UNSETTLED and c.index >= 0
    ]


def undecided(state: RunState) -> dict[str, Waiting]:
    return {wait.id: wait for wait in state.waits}


def call_at(state: RunState, place: str) -> Call | None:
    return next((c for c in state.calls if c.id == place), None)


@settings(max_examples=150)
@given(LOGS, st.booleans())
def test_open_requests_read_from_the_tail_equal_those_of_the_whole_log(
    drawn: list[tuple[Event, int]], keep_calls: bool
) -> None:
    records = written(drawn, keep_calls=keep_calls)

    all_of_it = fold(RunState(), records)
    end = fold(RunState(id="r"), pages.open_tail("r", reversed(records)))

    assert undecided(end) == undecided(all_of_it)
    assert unsettled(end) == unsettled(all_of_it)
    assert end.waiting_for == all_of_it.waiting_for


@settings(max_examples=80)
@given(LOGS)
def test_one_request_looked_up_by_name_equals_that_of_the_whole_log(
    drawn: list[tuple[Event, int]],
) -> None:
    records = written(drawn, keep_calls=True)
    all_of_it = fold(RunState(), records)
    places = {
        f"{x.branch}#{x.index}" for x, _ in drawn if isinstance(x, e.WaitBegan | e.CallStarted)
    }

    for place in places:
        found = pages.begins_request(place)
        end = fold(RunState(id="r"), pages.open_tail("r", reversed(records), found))
        assert undecided(end).get(place) == undecided(all_of_it).get(place)

    for call in (c for c in all_of_it.calls if c.index >= 0):
        for name in (call.id, call.step):
            found = pages.tells_of_call(name)
            end = fold(RunState(id="r"), pages.open_tail("r", reversed(records), found))
            known = call_at(end, call.id)
            if call.status in UNSETTLED or known is not None:
                assert known is not None and known.status == call.status


def test_reading_what_is_open_reads_no_more_than_that() -> None:
    """A hundred calls that are over, one that is open, and what came since."""
    begun = e.CallStarted(
        index=100, step=101, name="s", effect="once", key="k", digest="d", args=inline({})
    )
    done = [e.CallSucceeded(index=i, step=i + 1, name="s", result=inline(i)) for i in range(100)]
    suspended = e.RunSuspended(waiting_for="x")
    records = written(
        [(x, 1) for x in (*done, begun, suspended, e.RunClaimed(worker="w"))], keep_calls=False
    )

    assert [102 - 1, 102, 103] == [r.seq for r in pages.open_tail("r", reversed(records))]
