"""The pytest plugin: fixtures `holdfast`, `crash_everywhere` and `manual_clock`.

Installed with Holdfast, loaded by pytest at its start; so nothing of Holdfast is imported before a
test asks for a fixture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.app import Holdfast
    from holdfast.testing.clock import ManualClock
    from holdfast.testing.crash import CrashReport
    from holdfast.testing.step_matcher import Outcome


class CrashEverywhere(Protocol):
    """The type of the fixture `crash_everywhere`."""

    def __call__(
        self,
        agent: Callable[..., Any],
        /,
        *args: Any,
        mocks: Mapping[str, Any] | None = None,
        approve: bool | None = None,
        answer: Any = ...,
        signals: Mapping[str, Any] | None = None,
        may_doubt: Iterable[str] = (),
        check: Callable[[Outcome], None] | None = None,
        real: bool = False,
        **input: Any,
    ) -> CrashReport:
        """Run the agent with this input, killed at every boundary; AssertionError says what a crash
        would do to it. `check` makes assertions about the final run, after every crash."""
        ...


@pytest.fixture
def manual_clock() -> ManualClock:
    """A clock that moves only when the test moves it; the fixture `holdfast` uses it."""
    from holdfast.testing.clock import ManualClock

    return ManualClock()


@pytest.fixture
def holdfast(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Holdfast]:
    """A Holdfast on its own store; on the manual clock if the test asks for that too."""
    from holdfast.app import Holdfast
    from holdfast.runtime.exec.engine import Options
    from holdfast.store.sqlite import SQLiteStore

    if "manual_clock" in request.fixturenames:
        clock = request.getfixturevalue("manual_clock")
        store = SQLiteStore(tmp_path / "holdfast.db", clock=clock.now)
        # Nothing sleeps on a manual clock: short waits move it.
        options = Options(sleep=clock.advance, lease_seconds=3600)
    else:
        store, options = SQLiteStore(tmp_path / "holdfast.db"), Options()
    with Holdfast(store, options=options) as hf:
        yield hf


@pytest.fixture
def crash_everywhere() -> CrashEverywhere:
    """Kill an agent at every boundary of its run, resume it, and fail if a crash would harm it."""
    from holdfast.runtime.declare.mocks import mocks_of
    from holdfast.testing.crash import explore
    from holdfast.testing.scenario import Reaction, ScenarioAction, ScenarioSetup

    def crash(
        agent: Callable[..., Any],
        /,
        *args: Any,
        mocks: Mapping[str, Any] | None = None,
        approve: bool | None = None,
        answer: Any = ...,
        signals: Mapping[str, Any] | None = None,
        may_doubt: Iterable[str] = (),
        check: Callable[[Outcome], None] | None = None,
        real: bool = False,
        **input: Any,
    ) -> CrashReport:
        __tracebackhide__ = True  # what failed is the user's test, not this
        answers = [] if approve is None else [Reaction("approval", approve)]
        answers += [] if answer is ... else [Reaction("answer", answer)]
        answers += [Reaction("signal", value, name) for name, value in (signals or {}).items()]
        setup = ScenarioSetup(
            agent,
            dict(input),
            mocks_of(mocks or {}),
            answers,
            [ScenarioAction("go")],
            set(may_doubt),
            strict=not real,
            args=args,
        )
        report = explore(setup, check=lambda outcome: _asserted(check, outcome))
        if not report.ok:
            raise AssertionError(f"a crash would harm {agent.__name__}:\n{report}")
        return report

    return crash


def _asserted(check: Callable[[Outcome], None] | None, outcome: Outcome) -> str:
    if check is not None:
        try:
            check(outcome)
        except AssertionError as error:
            return f"an assertion fails: {error}"
    return ""
