"""The sentences about the run: its stages, how it ended, how many turns it took and what it used."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import Any

from holdfast.errors import InvalidInput
from holdfast.testing.builtin_steps.compare import (
    as_text,
    at_path,
    expect_contains,
    expect_equal,
    expect_match,
)
from holdfast.testing.step_matcher import Outcome, sentence

# ── Then: stage ──────────────────────────────────────────────────────────────────────────────


@sentence("we are in stage {stage}")
@sentence("the stage is {stage}")
@sentence("the stage should be {stage}")
def stage_should_be(outcome: Outcome, stage: str) -> None:
    _known_stages(outcome, [stage])
    outcome.expect(
        f"the stage to be {stage}", outcome.run.stage or "none", outcome.run.stage == stage
    )


@sentence("the stage should go/transition from {first} to {second}")
def stage_should_go(outcome: Outcome, first: str, second: str) -> None:
    _known_stages(outcome, [first, second])
    history = outcome.run.stage_history
    pairs = list(itertools.pairwise(history))
    outcome.expect(
        f"the stage to go from {first} to {second}",
        " → ".join(history) or "none",
        (first, second) in pairs,
    )


@sentence("the stages should be {stages:value}")
def stages_should_be(outcome: Outcome, stages: Any) -> None:
    wanted = [name.strip() for name in re.split(r",|→|->", str(stages))]
    _known_stages(outcome, wanted)
    history = list(outcome.run.stage_history)
    outcome.expect(
        f"the stages {' → '.join(wanted)}", " → ".join(history) or "none", history == wanted
    )


def _known_stages(outcome: Outcome, names: Iterable[str]) -> None:
    for name in names:
        if name not in outcome.run.stages:
            known = ", ".join(outcome.run.stages) or "none"
            raise InvalidInput(f"unknown stage {name!r}; the agent declares {known}")


# ── Then: the run ────────────────────────────────────────────────────────────────────────────


@sentence("the procedure/agent/run should complete( successfully)")
def should_complete(outcome: Outcome) -> None:
    outcome.expect("the run to complete", _status(outcome), outcome.status == "completed")


@sentence("the procedure/agent/run should fail")
def should_fail(outcome: Outcome) -> None:
    outcome.expect("the run to fail", _status(outcome), outcome.status == "failed")


@sentence("the procedure/agent/run should fail with {message:value}")
def should_fail_with(outcome: Outcome, message: Any) -> None:
    should_fail(outcome)
    outcome.expect(
        f"the failure to say {str(message)!r}", outcome.error, str(message) in outcome.error
    )


@sentence("the run( status) should be {status}")
def status_should_be(outcome: Outcome, status: str) -> None:
    outcome.expect(f"the run to be {status}", _status(outcome), outcome.status == status)


@sentence("the run should wait for {what:value}")
def should_wait_for(outcome: Outcome, what: Any) -> None:
    holds = outcome.status == "waiting" and str(what) in outcome.waiting_for
    outcome.expect(f"the run to wait for {what}", _status(outcome), holds)


def _status(outcome: Outcome) -> str:
    more = outcome.error or (f"for {outcome.waiting_for}" if outcome.waiting_for else "")
    return outcome.status + (f" ({more})" if more else "")


@sentence("the stop reason should be {reason:value}")
def stop_reason_should_be(outcome: Outcome, reason: Any) -> None:
    expect_equal("the stop reason", _stop_reason(outcome), str(reason))


@sentence("the stop reason should contain {text:value}")
def stop_reason_should_contain(outcome: Outcome, text: Any) -> None:
    expect_contains("the stop reason", _stop_reason(outcome), text)


@sentence("the stop reason should match (pattern ){pattern}")
def stop_reason_should_match(outcome: Outcome, pattern: str) -> None:
    expect_match("the stop reason", _stop_reason(outcome), pattern)


def _stop_reason(outcome: Outcome) -> Any:
    """What the run noted under `stop`: {"reason": …}."""
    return at_path(outcome.run.notes, "stop.reason")


@sentence("the total iterations should be less than {limit:int}")
def iterations_less_than(outcome: Outcome, limit: int) -> None:
    count = _iterations(outcome)
    outcome.expect(f"fewer than {limit} iterations", f"{count} iterations", count < limit)


@sentence("the total iterations should be between {least:int} and {most:int}")
def iterations_between(outcome: Outcome, least: int, most: int) -> None:
    count = _iterations(outcome)
    outcome.expect(
        f"between {least} and {most} iterations", f"{count} iterations", least <= count <= most
    )


@sentence("the agent should take at least {least:int} turn(s)")
def turns_at_least(outcome: Outcome, least: int) -> None:
    count = _iterations(outcome)
    outcome.expect(f"at least {least} turns", f"{count} turns", count >= least)


def _iterations(outcome: Outcome) -> int:
    """What the run noted under `iterations`; else a loop's, or how often a model was asked."""
    noted = outcome.run.notes.get("iterations")
    if isinstance(noted, int):
        return noted
    return outcome.run.iteration or sum(call.name == "model" for call in outcome.calls)


@sentence("the agent's context should include {text:value}")
def context_should_include(outcome: Outcome, text: Any) -> None:
    said = [as_text(message.content) for message in outcome.run.messages]
    holds = any(str(text) in one for one in said)
    outcome.expect(f"a message with {str(text)!r}", " | ".join(said) or "no messages", holds)


@sentence("the run should use at most {limit:int} step(s)")
def steps_at_most(outcome: Outcome, limit: int) -> None:
    outcome.expect(
        f"at most {limit} steps", f"{outcome.run.steps} steps", outcome.run.steps <= limit
    )


@sentence("the run should use at most {limit:int} token(s)")
def tokens_at_most(outcome: Outcome, limit: int) -> None:
    used = outcome.run.usage.input_tokens + outcome.run.usage.output_tokens
    outcome.expect(f"at most {limit} tokens", f"{used} tokens", used <= limit)


@sentence("the run should cost at most {limit:number} USD/dollars")
def cost_at_most(outcome: Outcome, limit: float) -> None:
    used = outcome.run.usage.cost_usd
    outcome.expect(f"a cost of at most {limit} USD", f"{used} USD", used <= limit)
