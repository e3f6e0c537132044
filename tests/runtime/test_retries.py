"""Retries live in the log: attempts, errors and waits survive a restart."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import (
    AsyncRun,
    CallFailed,
    Holdfast,
    InvalidInput,
    Retry,
    Run,
    RunFailed,
    RunWaiting,
    agent,
    step,
    tool,
)
from holdfast.core import events as e

SECOND = 1_000_000
patient = Retry(attempts=3, initial=600, max_delay=3600, jitter=0)


def failures(hf: Holdfast, run_id: str = "r") -> list[e.CallFailure]:
    return [x for _, x in hf.events(run_id) if isinstance(x, e.CallFailure)]


def flaky_agent(
    times: list[int], clock: Any, retry: Retry, *, fails: int = 100, kind: str = "tool"
) -> Any:
    """An agent whose one call fails so often; `times` gets the clock at each attempt."""

    def call(idempotency_key: str = "") -> str:
        times.append(clock.now())
        if len(times) <= fails:
            raise ConnectionError(f"try {len(times)}")
        return "ok"

    if kind == "tool":
        flaky = tool(name="flaky", retry=retry)(call)
    else:

        def plain() -> str:
            return call()

        flaky = step(name="flaky", retry=retry)(plain)

    @agent
    def main(run: Run) -> str:
        return flaky()

    return main


@pytest.mark.parametrize("kind", ["tool", "step"])
def test_each_attempt_is_an_event_with_its_error_and_waits_double(
    home: Any, clock: Any, kind: str
) -> None:
    times: list[int] = []
    main = flaky_agent(times, clock, Retry(attempts=4, jitter=0), fails=3, kind=kind)
    start = clock.now()
    hf = home.open()

    assert hf.run(main, id="r") == "ok"

    assert [(t - start) // SECOND for t in times] == [0, 1, 3, 7]
    assert [(x.attempt, x.error.type, x.error.message) for x in failures(hf)] == [
        (1, "ConnectionError", "try 1"),
        (2, "ConnectionError", "try 2"),
        (3, "ConnectionError", "try 3"),
    ]
    assert [(x.retry_at - start) // SECOND for x in failures(hf)] == [1, 3, 7]
    call = hf.get("r").call(1)
    assert [a.number for a in call.attempts] == [1, 2, 3, 4]
    assert [a.error.message for a in call.attempts[:3]] == ["try 1", "try 2", "try 3"]
    assert call.attempts[3].error is None


def test_the_last_attempt_is_not_followed_by_a_wait(home: Any, clock: Any) -> None:
    times: list[int] = []
    main = flaky_agent(times, clock, Retry(attempts=2, initial=3, jitter=0))
    hf = home.open()

    with pytest.raises(RunFailed, match="try 2"):
        hf.run(main, id="r")

    assert clock.now() == times[-1]
    assert [x.retry_at is None for x in failures(hf)] == [False, True]


def test_the_failure_contains_the_number_of_attempts(home: Any, clock: Any) -> None:
    @step(retry=Retry(attempts=3, initial=0))
    def bad() -> None:
        raise ValueError("no")

    @agent
    def main(run: Run) -> list[Any]:
        try:
            bad()
        except CallFailed as failed:
            return [failed.attempts, str(failed)]
        return []

    assert home.open().run(main, id="r") == [3, "bad failed after 3 attempts: ValueError: no"]


def test_without_a_retry_a_call_is_tried_once(home: Any) -> None:
    tried: list[int] = []

    @step
    def bad() -> None:
        tried.append(1)
        raise ValueError("no")

    @agent
    def main(run: Run) -> None:
        bad()

    with pytest.raises(RunFailed):
        home.open().run(main, id="r")
    assert tried == [1]


@pytest.mark.parametrize("kind", ["tool", "step"])
def test_a_long_wait_suspends_the_run_and_a_worker_resumes_it_when_due(
    home: Any, clock: Any, kind: str
) -> None:
    times: list[int] = []
    main = flaky_agent(times, clock, patient, fails=1, kind=kind)
    hf = home.open(main)

    with pytest.raises(RunWaiting, match="next attempt of flaky"):
        hf.run(main, id="r")
    assert hf.handle("r").status == "waiting"
    assert hf.worker().run(once=True) == 0  # not due yet
    clock.advance(600)

    assert hf.worker().run(once=True) == 1
    assert hf.handle("r").result() == "ok"
    assert times[1] - times[0] == 600 * SECOND


def test_a_restart_neither_forgets_attempts_nor_shortens_the_wait(home: Any, clock: Any) -> None:
    times: list[int] = []
    main = flaky_agent(times, clock, patient)
    with pytest.raises(RunWaiting):
        home.open().run(main, id="r")
    for _ in range(3):  # a caller meanwhile gets RunWaiting
        clock.advance(100)
        with pytest.raises(RunWaiting):
            home.open().run(main, id="r")
    assert len(times) == 1
    clock.advance(300)
    with pytest.raises(RunWaiting):
        home.open().run(main, id="r")
    clock.advance(1200)

    with pytest.raises(RunFailed, match="try 3"):
        home.open().run(main, id="r")

    assert [(t - times[0]) // SECOND for t in times] == [0, 600, 1800]
    assert [x.attempt for x in failures(home.open())] == [1, 2, 3]


def test_a_crash_during_the_wait_does_not_make_the_next_attempt_early(
    home: Any, clock: Any
) -> None:
    times: list[int] = []
    main = flaky_agent(times, clock, Retry(attempts=3, initial=4, jitter=0), fails=1)

    def dies(_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        home.open(sleep=dies).run(main, id="r")
    clock.advance(1)

    assert home.open().run(main, id="r") == "ok"
    assert times[1] - times[0] == 4 * SECOND


def test_a_crashed_attempt_counts(home: Any, clock: Any) -> None:
    times: list[int] = []
    main = flaky_agent(times, clock, Retry(attempts=2, initial=0, jitter=0))
    home.crash(main, "r", "before call")  # attempt 1: begun, no one knows

    with pytest.raises(RunFailed):
        home.open().run(main, id="r")
    assert len(times) == 1
    assert [x.attempt for x in failures(home.open())] == [2]


def test_retry_on_limits_and_give_up_on_ends_at_once(home: Any) -> None:
    tried: list[str] = []

    def agent_that_raises(error: Exception, retry: Retry) -> Any:
        @step(retry=retry)
        def bad() -> None:
            tried.append(type(error).__name__)
            raise error

        @agent
        def main(run: Run) -> None:
            bad()

        return main

    only_network = Retry(attempts=3, initial=0, retry_on=(OSError,))
    but_not_denied = Retry(attempts=3, initial=0, give_up_on=(PermissionError,))
    cases = [
        (ConnectionError("x"), only_network, 3),  # a subclass counts
        (ValueError("x"), only_network, 1),
        (PermissionError("x"), but_not_denied, 1),
        (ValueError("x"), but_not_denied, 3),
    ]
    for number, (error, retry, expected) in enumerate(cases):
        tried.clear()
        with pytest.raises(RunFailed):
            home.open().run(agent_that_raises(error, retry), id=f"r{number}")
        assert len(tried) == expected, error


def test_async_calls_are_retried_the_same_way(home: Any, clock: Any) -> None:
    times: list[int] = []

    @tool(retry=Retry(attempts=3, jitter=0))
    async def flaky(idempotency_key: str = "") -> str:
        times.append(clock.now())
        await asyncio.sleep(0)
        if len(times) < 3:
            raise ConnectionError("no")
        return "ok"

    @agent
    async def main(run: AsyncRun) -> str:
        return await flaky()

    assert home.open().run(main, id="r") == "ok"
    assert [(t - times[0]) // SECOND for t in times] == [0, 1, 3]


def test_the_retry_context_is_there_as_data_while_it_waits(home: Any, clock: Any) -> None:
    main = flaky_agent([], clock, patient)
    hf = home.open()
    with pytest.raises(RunWaiting):
        hf.run(main, id="r")

    call = hf.get("r").call(1)

    assert call.status == "retrying"
    assert call.attempts[-1].retry_at == clock.now() + 600 * SECOND
    assert call.attempts[-1].error.type == "ConnectionError"


def test_a_cancel_during_the_wait_ends_the_run_without_another_attempt(
    home: Any, clock: Any
) -> None:
    times: list[int] = []
    main = flaky_agent(times, clock, patient)
    hf = home.open(main)
    with pytest.raises(RunWaiting):
        hf.run(main, id="r")

    hf.cancel("r", by="ann")
    hf.worker().run(once=True)

    assert hf.handle("r").status == "cancelled"
    assert len(times) == 1


# ── the schedule itself ──────────────────────────────────────────────────────────────────────

retries = st.builds(
    Retry,
    attempts=st.integers(1, 50),
    initial=st.floats(0, 1000),
    factor=st.floats(1, 10),
    max_delay=st.floats(0, 10_000),
    jitter=st.floats(0, 1),
)


@given(retries, st.integers(1, 10_000), st.text(max_size=20))
def test_a_wait_is_the_same_for_the_same_seed_and_bounded_by_its_jitter(
    retry: Retry, attempt: int, seed: str
) -> None:
    delay = retry.delay_us(attempt, seed)

    assert delay == retry.delay_us(attempt, seed)
    assert 0 <= delay <= round(retry.max_delay * (1 + retry.jitter) * SECOND) + 1


@given(retries, st.integers(1, 100))
def test_without_jitter_waits_never_shrink(retry: Retry, attempt: int) -> None:
    plain = Retry(
        attempts=retry.attempts,
        initial=retry.initial,
        factor=retry.factor,
        max_delay=retry.max_delay,
        jitter=0,
    )

    assert plain.delay_us(attempt, "") <= plain.delay_us(attempt + 1, "")
    assert plain.delay_us(attempt, "") <= retry.delay_us(attempt, "seed") + 1


@given(retries, st.integers(1, 100))
def test_nothing_is_wanted_beyond_the_last_attempt(retry: Retry, attempt: int) -> None:
    assert retry.wants(ValueError(), attempt) == (attempt < retry.attempts)


def test_jitter_spreads_runs_apart() -> None:
    retry = Retry(jitter=0.5)

    delays = {retry.delay_us(1, f"run-{n}:1") for n in range(100)}

    assert len(delays) > 90
    assert min(delays) >= 1 * SECOND
    assert max(delays) <= 1.5 * SECOND


@pytest.mark.parametrize(
    "bad",
    [
        {"attempts": 0},
        {"attempts": -1},
        {"attempts": 1.5},
        {"attempts": 10**6},
        {"initial": -1},
        {"initial": float("nan")},
        {"initial": float("inf")},
        {"factor": 0.5},
        {"factor": float("nan")},
        {"max_delay": -1},
        {"max_delay": 1e12},
        {"jitter": -0.1},
        {"jitter": 2},
        {"jitter": float("nan")},
    ],
)
def test_a_retry_that_makes_no_sense_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="Retry"):
        Retry(**bad)


def test_a_checkpoint_follows_a_retried_call_where_clean_up_after_its_failure_is_recorded(
    home: Any,
) -> None:
    works: list[bool] = []

    @tool
    def pay() -> str:
        if not works:
            raise ValueError("declined")
        return "paid"

    @step
    def clean_up() -> None: ...

    @step
    def ship() -> str:
        return "shipped"

    @agent
    def main(run: Run) -> str:
        try:
            pay()
        except CallFailed:
            clean_up()
            raise
        run.checkpoint()
        return ship()

    with home.open() as hf:
        with pytest.raises(RunFailed):
            hf.run(main, id="r")
        works.append(True)
        assert "shipped" == hf.resume("r")
        assert "shipped" == hf.replay("r").result
