"""The crash explorer finds what is wrong with the wrong agents, and lets the right ones pass."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import agents_right as right
import agents_stubs as stubs
import agents_wrong as wrong
import pytest

from holdfast.testing import CrashReport, Outcome
from holdfast.testing.crash_faults import Fault
from holdfast.testing.scenario import Reaction
from support.slim import Slim

MAIL = {"smtp_send": {"returns": "accepted"}}
LOST_BOOKING = {"book": {"returns": "booked"}, "is_there": {"returns": None}}


Explored = Callable[..., CrashReport]


@pytest.fixture
def explored(slim: Slim) -> Explored:
    """Lets the explorer loose on an agent, from a process that forks more cheaply than this one."""

    def explored(
        agent: Callable[..., Any],
        mocks: dict[str, Any] | None = None,
        *,
        answers: tuple[Reaction, ...] = (),
        may_doubt: tuple[str, ...] = (),
        **input: Any,
    ) -> CrashReport:
        found = slim.call(
            "support.slim_crashes:explored",
            module=agent.__module__,
            agent=agent.__name__,
            mocks=mocks or {},
            answers=[[one.kind, one.value, one.about] for one in answers],
            may_doubt=may_doubt,
            input=input,
        )
        faults, looks = (
            [Fault(**fault) for fault in found.pop(what)] for what in ("faults", "looks")
        )
        return CrashReport(**found, faults=tuple(faults), looks=tuple(looks))

    return explored


def line_of(fn: Callable[..., Any], text: str) -> str:
    """`file:line` of the line of a function (or of the agent around it) that holds this text."""
    code = inspect.unwrap(fn)
    lines, first = inspect.getsourcelines(code)
    offset = next(number for number, line in enumerate(lines) if text in line)
    return f"{inspect.getsourcefile(code)}:{first + offset}"


@pytest.mark.parametrize(
    ("agent", "kind", "called_at", "declared_at", "mocks", "remedy"),
    [
        (
            wrong.guard_after_effect,
            "repeats",
            (wrong.notify, "smtp_send("),
            (wrong.smtp_send, "def"),
            MAIL,
            "@tool",
        ),
        (
            wrong.effect_in_plain_code,
            "repeats",
            (wrong.effect_in_plain_code, "smtp_send("),
            (wrong.smtp_send, "def"),
            MAIL,
            "@tool",
        ),
        (
            wrong.chance_decides,
            "diverges",
            (wrong.chance_decides, "send("),
            None,
            {},
            "run.random()",
        ),
        (wrong.time_decides, "diverges", (wrong.time_decides, "send("), None, {}, "run.now()"),
        (
            wrong.makes_its_key_by_chance,
            "diverges",
            (wrong.makes_its_key_by_chance, "send("),
            None,
            {},
            "run.uuid()",
        ),
        (
            wrong.missing_key,
            "in doubt",
            (wrong.missing_key, "charge("),
            (wrong.charge, "@tool"),
            {},
            "idempotency_key",
        ),
        (
            wrong.repeats_blindly,
            "repeats",
            (wrong.repeats_blindly, "charge_blindly("),
            (wrong.charge_blindly, "@tool"),
            {},
            "idempotency_key",
        ),
        (
            wrong.repeats_in_a_child,
            "repeats",
            (wrong.child, "charge_blindly("),
            (wrong.charge_blindly, "@tool"),
            {},
            "idempotency_key",
        ),
        (
            wrong.ignores_its_key,
            "repeats",
            (wrong.ignores_its_key, "send_without_key("),
            (wrong.send_without_key, "@tool"),
            {},
            "pass the key",
        ),
        (
            wrong.check_that_never_finds,
            "repeats",
            (wrong.check_that_never_finds, "book("),
            (wrong.book, "@tool"),
            LOST_BOOKING,
            "check",
        ),
        (wrong.memory_of_the_process_decides, "ends differently", None, None, {}, "run.state"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_fault_is_found_with_its_lines_and_a_remedy(
    agent: Callable[..., Any],
    kind: str,
    called_at: tuple[Callable[..., Any], str] | None,
    declared_at: tuple[Callable[..., Any], str] | None,
    mocks: dict[str, Any],
    remedy: str,
    explored: Explored,
) -> None:
    report = explored(agent, mocks)

    (fault,) = report.faults
    assert kind == fault.kind
    assert remedy in fault.fix
    if called_at is not None:
        assert line_of(*called_at) == fault.where
    if declared_at is not None:
        assert line_of(*declared_at) == fault.declared
    assert not report.ok


@pytest.mark.parametrize(
    ("agent", "body"),
    [
        (wrong.appends_in_a_step, wrong.write_line),
        (wrong.appends_in_plain_code, wrong.appends_in_plain_code),
    ],
    ids=lambda value: value.__name__,
)
def test_an_undeclared_effect_is_reported_where_it_happens(
    agent: Callable[..., Any], body: Callable[..., Any], tmp_path: Path, explored: Explored
) -> None:
    """Without any mock: by what the process does to the world."""
    report = explored(agent, file=str(tmp_path / "lines"))

    (fault,) = report.faults
    assert ("repeats", line_of(body, ".open(")) == (fault.kind, fault.where)
    assert f"appends to {tmp_path / 'lines'}" in fault.says


PEOPLE = (Reaction("approval", True), Reaction("answer", "red"), Reaction("signal", 5, "payment"))


@pytest.mark.parametrize(
    ("agent", "options"),
    [
        (right.guarded, {}),
        (right.checked_and_transactional, {"mocks": {"book": {"returns": "blue b-1"}}}),
        (right.recorded_time_and_chance, {}),
        (right.asks_once, {"answers": PEOPLE}),
        pytest.param(right.with_people, {"answers": PEOPLE}, marks=pytest.mark.nightly),
        (right.in_threads, {}),
        (right.on_a_loop, {}),
        (right.with_a_child, {}),
        (right.accepts_doubt, {"may_doubt": ("charge",)}),
        (right.fails_and_says_so, {"mocks": {"send": {"error": "nobody"}}}),
        (right.taken_back, {}),
        (right.branches_on_chance, {}),
        (right.cancels_what_is_late, {}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_right_agent_passes(
    agent: Callable[..., Any], options: dict[str, Any], explored: Explored
) -> None:
    report = explored(agent, **options)

    assert [] == [fault.says for fault in report.faults]
    assert report.ok
    assert report.boundaries >= 8


def test_a_call_that_differs_is_named_with_its_arguments(explored: Explored) -> None:
    faults = {x.kind: x for x in explored(wrong.memory_of_the_process_is_sent).faults}
    fault = faults["differs"]

    assert (
        'after a crash send({"to": "nobody"}) is called instead of send({"to": "filled"})'
        == fault.says
    )


def test_a_call_that_the_code_cancels_only_after_a_crash_is_for_the_author_to_judge(
    explored: Explored,
) -> None:
    """A race of the code decides that, and a crash is a delay like any other."""
    report = explored(wrong.memory_of_the_process_cancels)

    assert () == report.faults
    assert {'after a crash send_soon({"to": "sam"}) is cancelled instead of done'} == {
        look.says for look in report.looks
    }


def test_the_boundary_of_a_fault_is_described_in_words(explored: Explored) -> None:
    (fault,) = explored(wrong.missing_key).faults

    assert "after the intent of charge is recorded" == fault.killed
    assert fault.crashes == 4  # after the intent, before and after the body, before the receipt


def test_what_must_hold_is_asked_after_every_crash(
    crash_everywhere: Callable[..., CrashReport],
) -> None:
    asked: list[str] = []

    def check(outcome: Outcome) -> None:
        asked.append(outcome.status)
        assert outcome.result == {"sent": True, "tries": 1}

    report = crash_everywhere(right.guarded, mocks={"send": {"returns": "ok"}}, check=check)

    assert ["completed"] * report.boundaries == asked


def test_every_crash_sees_the_same_time_chance_and_ids(
    crash_everywhere: Callable[..., CrashReport],
) -> None:
    """So an agent may branch on them, and what differs after a crash is a fault."""
    results: list[Any] = []

    crash_everywhere(
        right.draws_everything, check=lambda outcome: results.append(dict(outcome.result))
    )

    first = results[0]
    differing = [
        (number, name, found[name], first[name])
        for number, found in enumerate(results)
        for name in first
        if found[name] != first[name]
    ]
    assert differing == []
    drawn = [x for line in first["lines"] for x in (*line[:2], line[3])] + first["numbers"]
    assert len(drawn) == len(set(drawn)) == 12
    assert 602 <= first["passed"] < 603


def test_the_fixture_fails_the_test_and_reports_what_a_crash_would_do(
    crash_everywhere: Callable[..., CrashReport],
) -> None:
    with pytest.raises(
        AssertionError, match=r"(?s)harm missing_key.*IN DOUBT: charge.*agents_wrong.py:\d+"
    ):
        crash_everywhere(wrong.missing_key, mocks={"charge": {"returns": "ok"}}, amount=3)


def test_a_tool_with_an_effect_and_no_mock_is_not_executed(
    crash_everywhere: Callable[..., CrashReport],
) -> None:
    with pytest.raises(AssertionError, match="send has no mock"):
        crash_everywhere(right.guarded)


def test_input_may_be_given_by_position(crash_everywhere: Callable[..., CrashReport]) -> None:
    seen: list[Any] = []

    crash_everywhere(
        stubs.sending,
        "constant",
        "sam",
        mocks={"constant": lambda to: f"to {to}"},
        check=lambda outcome: seen.append(outcome.result),
    )

    assert {"to sam"} == set(seen)


@pytest.mark.parametrize("stub", ["nothing", "constant", "unwritten"])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_stub_that_is_mocked_has_no_fault_whether_it_is_async_or_not(
    stub: str, kind: str, crash_everywhere: Callable[..., CrashReport]
) -> None:
    """A sketch takes a key and does nothing with it: that is not a fault, because it is not the real tool."""
    agent, name = (
        (stubs.sending, stub) if kind == "sync" else (stubs.sending_async, f"{stub}_async")
    )

    assert crash_everywhere(agent, name, "sam", mocks={name: {"returns": "ok"}}).ok


@pytest.mark.parametrize(
    ("stub", "kind"), [("ignores", "repeats"), ("keyless", "in doubt")], ids=lambda x: x
)
def test_the_same_fault_is_found_in_a_plain_tool_and_in_an_async_one(
    stub: str, kind: str, explored: Explored
) -> None:
    plain = explored(stubs.sending, {stub: {"returns": "ok"}}, stub=stub, to="sam")
    on_a_loop = explored(
        stubs.sending_async, {f"{stub}_async": {"returns": "ok"}}, stub=f"{stub}_async", to="sam"
    )

    assert [kind] == [fault.kind for fault in plain.faults]
    assert [fault.says for fault in plain.faults] == [
        fault.says.replace("_async", "") for fault in on_a_loop.faults
    ]
