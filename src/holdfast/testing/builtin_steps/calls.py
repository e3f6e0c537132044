"""The sentences about calls: which tools were called, how often, with what and in which order."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from holdfast.errors import InvalidInput
from holdfast.testing.builtin_steps.blocks import items_of, mapping_of
from holdfast.testing.builtin_steps.compare import (
    at_path,
    is_found,
    is_same,
    shown_or_nothing,
)
from holdfast.testing.step_matcher import Outcome, json_or_text, sentence, shown


@sentence("the {tool} tool/step should be called")
def should_be_called(outcome: Outcome, tool: str) -> None:
    outcome.expect(
        f"{tool} to be called", f"called: {outcome.named_calls()}", bool(outcome.calls_of(tool))
    )


@sentence("the {tool} tool/step should not be called")
def should_not_be_called(outcome: Outcome, tool: str) -> None:
    calls = outcome.calls_of(tool)
    outcome.expect(f"{tool} not to be called", f"called {len(calls)} times", not calls)


@sentence("the {tool} tool/step should be called (exactly ){times:int} time(s)")
def should_be_called_times(outcome: Outcome, tool: str, times: int) -> None:
    count = len(outcome.calls_of(tool))
    outcome.expect(
        f"{tool} to be called {_times(times)}", f"called {_times(count)}", count == times
    )


@sentence("the {tool} tool/step should be called at least {times:int} time(s)")
def should_be_called_at_least(outcome: Outcome, tool: str, times: int) -> None:
    count = len(outcome.calls_of(tool))
    outcome.expect(
        f"{tool} to be called at least {_times(times)}", f"called {_times(count)}", count >= times
    )


@sentence("the {tool} tool/step should be called at most {times:int} time(s)")
def should_be_called_at_most(outcome: Outcome, tool: str, times: int) -> None:
    count = len(outcome.calls_of(tool))
    outcome.expect(
        f"{tool} to be called at most {_times(times)}", f"called {_times(count)}", count <= times
    )


@sentence("the {tool} tool/step should be tried {times:int} time(s)")
def should_be_tried(outcome: Outcome, tool: str, times: int) -> None:
    count = sum(call.attempts for call in outcome.calls_of(tool))
    outcome.expect(f"{tool} to be tried {_times(times)}", f"tried {_times(count)}", count == times)


def _times(count: int) -> str:
    return f"{count} time" if count == 1 else f"{count} times"


@sentence("the {tool} tool/step should be called with {args:value}")
def should_be_called_with(outcome: Outcome, tool: str, args: Any) -> None:
    """`{"to": "sam"}`, or `to="sam" n=5`."""
    _called_with(outcome, tool, args if isinstance(args, Mapping) else _pairs(str(args)))


@sentence("the {tool} tool/step should be called with:")
def should_be_called_with_block(outcome: Outcome, tool: str, block: Any) -> None:
    _called_with(outcome, tool, mapping_of("the arguments", block))


def _pairs(text: str) -> dict[str, Any]:
    found = re.findall(
        r'(\w+)\s*=\s*("(?:[^"\\]|\\.)*"|\S+?)(?=,?\s+(?:and\s+)?\w+\s*=|,?\s*$)', text
    )
    if not found:
        raise InvalidInput(
            f'{text} is neither name=value nor a JSON object; write: called with to="sam" n=5'
        )
    return {name: json_or_text(value) for name, value in found}


def _called_with(outcome: Outcome, tool: str, expected: Mapping[str, Any]) -> None:
    calls = outcome.calls_of(tool)
    fits = any(
        all(is_same(at_path(call.args, key), value) for key, value in expected.items())
        for call in calls
    )
    actual = " and ".join(shown(call.args) for call in calls) or "it was not called"
    outcome.expect(f"{tool} to be called with {shown(dict(expected))}", actual, fits)


@sentence("the {tool} tool/step should be called with {name} matching (pattern ){pattern}")
def should_be_called_matching(outcome: Outcome, tool: str, name: str, pattern: str) -> None:
    given = [at_path(call.args, name) for call in outcome.calls_of(tool)]
    holds = any(isinstance(x, str) and is_found(pattern, x) for x in given)
    actual = " and ".join(map(shown_or_nothing, given)) or "it was not called"
    outcome.expect(f"{tool} to be called with {name} matching {pattern!r}", actual, holds)


@sentence("the tools should be called in (this )order: {tools:value}")
def should_be_called_in_order(outcome: Outcome, tools: Any) -> None:
    _in_order(outcome, [name.strip() for name in str(tools).split(",")])


@sentence("the tools should be called in (this )order:")
def should_be_called_in_order_block(outcome: Outcome, block: Any) -> None:
    _in_order(outcome, [str(name) for name in items_of("the order", block)])


@sentence("the {tool} tool/step should be called before the {other} tool/step")
def should_be_called_before(outcome: Outcome, tool: str, other: str) -> None:
    _in_order(outcome, [tool, other])


def _in_order(outcome: Outcome, names: list[str]) -> None:
    for name in names:
        outcome.calls_of(name)
    calls = iter([call.name for call in outcome.calls])
    outcome.expect(
        f"calls in the order {', '.join(names)}",
        outcome.named_calls(),
        all(name in calls for name in names),
    )


@sentence("the {tool} tool/step should fail")
def tool_should_fail(outcome: Outcome, tool: str) -> None:
    calls = outcome.calls_of(tool)
    outcome.expect(
        f"{tool} to fail",
        ", ".join(c.status for c in calls) or "it was not called",
        any(c.status == "failed" for c in calls),
    )
