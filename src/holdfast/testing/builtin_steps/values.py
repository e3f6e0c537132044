"""The sentences about values: the run's state, its output and its decisions."""

from __future__ import annotations

from typing import Any

from holdfast.testing.builtin_steps.blocks import mapping_of, rows_of
from holdfast.testing.builtin_steps.compare import (
    NOWHERE,
    SIMILAR_PERCENT,
    at_path,
    expect_bounds,
    expect_contains,
    expect_equal,
    expect_match,
    expect_similar,
    is_same,
    shown_or_nothing,
)
from holdfast.testing.step_matcher import Outcome, sentence, shown


@sentence("the state {key} should be {value:value}")
def state_should_be(outcome: Outcome, key: str, value: Any) -> None:
    expect_equal(f"state {key}", at_path(outcome.state, key), value)


@sentence("the state {key} should be:")
def state_should_be_block(outcome: Outcome, key: str, block: Any) -> None:
    expect_equal(f"state {key}", at_path(outcome.state, key), block)


@sentence("the state {key} should not be {value:value}")
def state_should_not_be(outcome: Outcome, key: str, value: Any) -> None:
    actual = at_path(outcome.state, key)
    outcome.expect(
        f"state {key} not to be {shown(value)}",
        shown_or_nothing(actual),
        not is_same(actual, value),
    )


@sentence("the state {key} should contain {value:value}")
def state_should_contain(outcome: Outcome, key: str, value: Any) -> None:
    expect_contains(f"state {key}", at_path(outcome.state, key), value)


@sentence("the state {key} should be at least {limit:number}")
def state_at_least(outcome: Outcome, key: str, limit: float) -> None:
    expect_bounds(f"state {key}", at_path(outcome.state, key), limit, None)


@sentence("the state {key} should be at most {limit:number}")
def state_at_most(outcome: Outcome, key: str, limit: float) -> None:
    expect_bounds(f"state {key}", at_path(outcome.state, key), None, limit)


@sentence("the state {key} should exist")
def state_should_exist(outcome: Outcome, key: str) -> None:
    found = at_path(outcome.state, key)
    outcome.expect(
        f"state {key} to exist",
        f"state has {', '.join(outcome.state) or 'nothing'}",
        found is not NOWHERE and found is not None,
    )


@sentence("the state should contain {key}")
def state_should_contain_key(outcome: Outcome, key: str) -> None:
    state_should_exist(outcome, key)


@sentence("the state {key} should match pattern {pattern}")
def state_should_match(outcome: Outcome, key: str, pattern: str) -> None:
    expect_match(f"state {key}", at_path(outcome.state, key), pattern)


@sentence("the state {key} should be similar to {text} with {percent:number}% similarity")
@sentence("the state {key} should be similar to {text}")
def state_should_be_similar(
    outcome: Outcome, key: str, text: str, percent: float = SIMILAR_PERCENT
) -> None:
    expect_similar(f"state {key}", at_path(outcome.state, key), text, percent)


@sentence("the state {key} should not exist")
def state_should_not_exist(outcome: Outcome, key: str) -> None:
    found = at_path(outcome.state, key)
    outcome.expect(
        f"state {key} not to exist", shown_or_nothing(found), found is NOWHERE or found is None
    )


@sentence("the output should be {value:value}")
def output_should_be(outcome: Outcome, value: Any) -> None:
    expect_equal("the output", outcome.result, value)


@sentence("the output should be:")
def output_should_be_block(outcome: Outcome, block: Any) -> None:
    expect_equal(
        "the output", outcome.result, mapping_of("the output", block) if rows_of(block) else block
    )


@sentence("the output should contain {value:value}")
def output_should_contain(outcome: Outcome, value: Any) -> None:
    expect_contains("the output", outcome.result, value)


@sentence("the output {field} should be {value:value}")
def output_field_should_be(outcome: Outcome, field: str, value: Any) -> None:
    expect_equal(f"output {field}", at_path(outcome.result, field), value)


@sentence("the output {field} should not be {value:value}")
def output_field_should_not_be(outcome: Outcome, field: str, value: Any) -> None:
    actual = at_path(outcome.result, field)
    outcome.expect(
        f"output {field} not to be {shown(value)}",
        shown_or_nothing(actual),
        not is_same(actual, value),
    )


@sentence("the output {field} should match pattern {pattern}")
def output_field_should_match(outcome: Outcome, field: str, pattern: str) -> None:
    expect_match(f"output {field}", at_path(outcome.result, field), pattern)


@sentence("the output should match pattern {pattern}")
def output_should_match(outcome: Outcome, pattern: str) -> None:
    expect_match("the output", outcome.result, pattern)


@sentence("the output should be similar to {text} with {percent:number}% similarity")
@sentence("the output should be similar to {text}")
def output_should_be_similar(outcome: Outcome, text: str, percent: float = SIMILAR_PERCENT) -> None:
    expect_similar("output", outcome.result, text, percent)


@sentence("the output {field} should be similar to {text} with {percent:number}% similarity")
@sentence("the output {field} should be similar to {text}")
def output_field_should_be_similar(
    outcome: Outcome, field: str, text: str, percent: float = SIMILAR_PERCENT
) -> None:
    expect_similar(f"output {field}", at_path(outcome.result, field), text, percent)


@sentence("the output {field} should contain {value:value}")
def output_field_should_contain(outcome: Outcome, field: str, value: Any) -> None:
    expect_contains(f"output {field}", at_path(outcome.result, field), value)


@sentence("the output {field} should exist")
def output_field_should_exist(outcome: Outcome, field: str) -> None:
    found = at_path(outcome.result, field)
    outcome.expect(
        f"output {field} to exist", outcome.result, found is not NOWHERE and found is not None
    )


@sentence("the output {field} should not exist")
def output_field_should_not_exist(outcome: Outcome, field: str) -> None:
    found = at_path(outcome.result, field)
    outcome.expect(
        f"output {field} not to exist", shown_or_nothing(found), found is NOWHERE or found is None
    )


@sentence("the decision {name} should be {value:value}")
def decision_should_be(outcome: Outcome, name: str, value: Any) -> None:
    made = outcome.decisions.get(name, (NOWHERE, ""))[0]
    expect_equal(f"decision {name}", made, value)


@sentence("the decision {name} should be made")
def decision_should_be_made(outcome: Outcome, name: str) -> None:
    outcome.expect(
        f"decision {name} to be made",
        f"made: {', '.join(outcome.decisions) or 'none'}",
        name in outcome.decisions,
    )
