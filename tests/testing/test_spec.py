"""Specs next to an agent: what the sentences mean, and what is said of a spec that cannot be played."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from holdfast.runtime.declare.mocks import mocks_of
from holdfast.testing.builtin_steps import builtin_sentences
from holdfast.testing.spec import (
    ScenarioResult,
    SpecContext,
    SpecError,
    known_sentences,
    read_spec,
    run_scenario,
    spec_in,
)

AGENT = """
from dataclasses import dataclass
from holdfast import Budget, Retry, Run, agent, step, tool
from holdfast.testing import sentence

@dataclass
class Receipt:
    message_id: str

@step
def draft(notes: str) -> str:
    return notes.upper()

@tool(retry=Retry(attempts=3))
def send_email(to: str, body: str, idempotency_key: str = "") -> Receipt:
    raise AssertionError("executed for real")

@tool
def archive(what: str, idempotency_key: str = "") -> str:
    raise AssertionError("executed for real")

@agent(stages=("drafting", "sending", "complete"), approve=("external_action",), budget=Budget(max_steps=9))
def recap(run: Run, to: str, notes: str = "hi", times: int = 1) -> dict:
    run.stage = "drafting"
    run.state.draft = draft(notes)
    run.decide("route", "email", why="they asked")
    run.stage = "sending"
    for _ in range(times):
        run.state.message_id = send_email(to, run.state.draft).message_id
    if notes == "wait":
        run.state.paid = run.wait_for("payment")
        run.sleep(86_400)
        run.state.colour = run.ask("Which colour?", options=["red", "blue"])
    run.stage = "complete"
    return {"id": run.state.message_id, "n": 5, "list": [1, 2], "on": True, "text": "hello sam"}

@sentence("the recap should be about {topic}")
def about(outcome, topic):
    assert topic.upper() in outcome.state["draft"], outcome.state["draft"]

@sentence("the notes are about {topic}", on="setup")
def notes_about(setup, topic):
    setup.input["notes"] = topic
"""
MOCKS = {"send_email": {"returns": {"message_id": "m-1"}}, "archive": {"returns": "kept"}}


def module_of(source: str) -> dict[str, Any]:
    module = ModuleType("spec_agent")
    exec(compile(source, "spec_agent.py", "exec"), vars(module))
    return vars(module)


NAMES = module_of(AGENT)
CAST = SpecContext({"recap": NAMES["recap"]}, NAMES["recap"], NAMES, mocks_of(MOCKS), strict=True)


def played(body: str, context: SpecContext = CAST) -> list[ScenarioResult]:
    scenarios = read_spec(f"Feature: recap\n{body}", "recap.feature", known_sentences(NAMES))
    return [run_scenario(scenario, context) for scenario in scenarios]


def one(body: str) -> ScenarioResult:
    (verdict,) = played(
        "  Scenario: one\n    Given the input to is sam\n    And the approval is granted\n" + body
    )
    return verdict


@pytest.mark.parametrize(
    ("true", "false"),
    [
        ("the send_email tool should be called", "the archive tool should be called"),
        ("the archive tool should not be called", "the send_email tool should not be called"),
        (
            "the send_email tool should be called exactly 1 time",
            "the send_email tool should be called exactly 2 times",
        ),
        (
            "the send_email tool should be called at least 1 time",
            "the send_email tool should be called at least 2 times",
        ),
        (
            "the send_email tool should be called at most 1 time",
            "the draft step should be called at most 0 times",
        ),
        (
            'the send_email tool should be called with to="sam" body="HI"',
            'the send_email tool should be called with to="sue"',
        ),
        (
            'the send_email tool should be called with {"body": "HI"}',
            'the send_email tool should be called with {"body": "hi"}',
        ),
        (
            "the tools should be called in order: draft, send_email",
            "the tools should be called in order: send_email, draft",
        ),
        (
            "the draft step should be called before the send_email tool",
            "the send_email tool should be called before the draft step",
        ),
        (
            "the send_email tool should be tried 1 time",
            "the send_email tool should be tried 2 times",
        ),
        ('the state message_id should be "m-1"', "the state message_id should be 5"),
        ("the state message_id should exist", "the state nothing should exist"),
        ("the state nothing should not exist", "the state draft should not exist"),
        ("the state draft should contain H", "the state draft should contain X"),
        ("the state draft should not be X", 'the state draft should not be "HI"'),
        ("the stage should be complete", "the stage should be sending"),
        (
            "the stages should be drafting, sending, complete",
            "the stages should be drafting, complete",
        ),
        (
            "the stage should go from drafting to sending",
            "the stage should go from drafting to complete",
        ),
        ("the output n should be 5", 'the output n should be "5"'),
        ("the output on should be true", "the output on should be 1"),
        ("the output list.1 should be 2", "the output list.2 should be 2"),
        ("the output list should contain 2", "the output list should contain 3"),
        ("the output text should contain sam", "the output text should contain sue"),
        ("the output id should exist", "the output name should exist"),
        ("the output name should not exist", "the output id should not exist"),
        ("the decision route should be email", "the decision route should be letter"),
        ("the decision route should be made", "the decision way should be made"),
        ("the procedure should complete successfully", "the run should fail"),
        ("the run status should be completed", "the run status should be waiting"),
        ("the run should use at most 2 steps", "the run should use at most 1 step"),
        ("the run should use at most 0 tokens", "the output n should be 6"),
        ("the run should cost at most 0.5 USD", "the run should wait for approval"),
        ("the recap should be about hi", "the recap should be about money"),
    ],
)
def test_a_step_passes_or_reports_what_was_expected_and_what_was_found(
    true: str, false: str
) -> None:
    holds = one(f"    When the procedure runs\n    Then {true}\n")
    fails = one(f"    When the procedure runs\n    Then {false}\n")

    assert (True, "") == (holds.ok, holds.actual + holds.problem)
    assert not fails.ok
    assert fails.failed is not None
    assert (false, "recap.feature:6") == (fails.failed.text, fails.failed.place)
    assert fails.expected
    assert fails.actual


def test_backgrounds_outlines_tables_and_texts_work() -> None:
    verdicts = played('''
  Background:
    Given the input is:
      | name  | value |
      | to    | sam   |
    And the approval of send_email is granted
    And the send_email tool returns:
      """
      {"message_id": "m-7"}
      """
  Scenario Outline: <times> mails
    Given the input times is <times>
    When the agent runs
    Then the send_email tool should be called <times> times
    And the state message_id should be "m-7"
    And the output should be:
      """
      {"id": "m-7", "n": 5, "list": [1, 2], "on": true, "text": "hello sam"}
      """
    And the send_email tool should be called with:
      | to | sam |
    And the tools should be called in this order:
      | draft      |
      | send_email |
    Examples:
      | times |
      | 1     |
      | 2     |
''')

    assert [("1 mails", True, ""), ("2 mails", True, "")] == [
        (v.scenario.name, v.ok, v.problem + v.actual) for v in verdicts
    ]


def test_tools_can_fail_answer_in_turn_and_be_retried() -> None:
    fails = one(
        "    Given the send_email tool fails with boom\n    When the agent runs\n"
        "    Then the run should fail with boom\n    And the send_email tool should fail\n"
        "    And the send_email tool should be tried 3 times\n"
    )
    recovers = one(
        '    Given the send_email tool fails 2 times, then returns {"message_id": "m-3"}\n'
        "    When the agent runs\n    Then the output id should be m-3\n"
    )
    in_turn = one(
        "    Given the input times is 2\n    And the send_email tool returns in turn:\n"
        '      | {"message_id": "a"} |\n      | {"message_id": "b"} |\n'
        "    When the agent runs\n    Then the output id should be b\n"
    )

    assert [(True, "")] * 3 == [(v.ok, v.problem + v.actual) for v in (fails, recovers, in_turn)]


def test_people_signals_and_time_are_supplied_while_it_runs() -> None:
    verdict = one(
        "    Given the notes are about wait\n    And the signal payment comes with 50\n"
        '    And the answer to "Which colour?" is red\n    When the agent runs\n'
        "    Then the state paid should be 50\n    And the state colour should be red\n"
        "    And the procedure should complete\n"
    )

    assert (True, "") == (verdict.ok, verdict.problem + verdict.actual)


def test_a_run_without_a_decision_waits_and_can_be_decided_later() -> None:
    waits, rejected = played(
        "  Background:\n    Given the input to is sam\n    When the agent runs\n"
        "  Scenario: waits\n    Then the run should wait for approval of send_email\n"
        "  Scenario: rejected\n    When the request is rejected\n    And the agent runs again\n"
        "    Then the run should fail with somebody\n"
    )

    assert (True, "") == (waits.ok, waits.problem + waits.actual)
    assert "Rejected" in rejected.actual  # the sentence is false, and says how it failed


def test_a_rerun_keeps_the_state() -> None:
    verdict = one(
        "    When the agent runs\n    And the run is rerun\n    Then the state message_id should be m-1\n"
        "    And the stages should be drafting, sending, complete, drafting, sending, complete\n"
    )

    assert (True, "") == (verdict.ok, verdict.problem + verdict.actual)


# ── specs that cannot be played ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (
            "Feature: x\n  Scenario: y\n    When the agent rns\n",
            ["f.feature:3: unknown sentence: the agent rns", "the procedure/agent/run runs"],
        ),
        (
            "Feature: x\n  Scenario: y\n    When zzz\n",
            [
                "f.feature:3: unknown sentence: zzz",
                "the known ones:",
                "the procedure/agent/run runs",
            ],
        ),
        (
            "Feature: x\n  Scenario: y\n    When the agent runs\n    Then the send_email tool shuld be called\n",
            ["f.feature:4", "the {tool} tool/step should be called"],
        ),
        (
            "Feature: x\n  Scenario: y\n    Gven the input to is sam\n    When the agent runs\n",
            ["f.feature:3", "'Gven' does not start a sentence"],
        ),
        (
            "Scenario: y\n  When the agent runs\n",
            ["f.feature:1: not Gherkin", "starts with `Feature:"],
        ),
        ("Feature: x\n  Scenario: y\n", ["f.feature:2", "has no steps"]),
        (
            "Feature: x\n  Scenario: y\n    When the agent runs\n    Then the run should fail\n    When the agent runs\n",
            ["f.feature:5", "a separate scenario"],
        ),
        (
            "Feature: x\n  Scenario: y\n    Given the input is:\n",
            ["f.feature:3", "needs a table or a text"],
        ),
        (
            "Feature: x\n  Scenario: y\n    When the agent runs\n      | a |\n",
            ["f.feature:3", "takes no table"],
        ),
    ],
)
def test_a_spec_with_an_unknown_step_is_refused_with_its_line(spec: str, says: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        read_spec(spec, "f.feature", builtin_sentences())

    for part in says:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("Then the run should fail\n", "nothing runs in this scenario"),
        ("Given the input two is 5\n    When the agent runs\n", "wrong input"),
        ("Given the input times is many\n    When the agent runs\n", "recap.feature:2"),
        (
            "Given the send_mail tool returns 5\n    When the agent runs\n",
            "did you mean 'send_email'?",
        ),
        (
            "Given the send_email tool returns 5\n    When the agent runs\n    Then the procedure should complete\n",
            "what the mock of send_email returns cannot be stored",
        ),
        (
            "When the agent runs\n    Then the send_mail tool should be called\n",
            "unknown tool 'send_mail'",
        ),
        ("When the agent runs\n    Then the stage should be ready\n", "unknown stage 'ready'"),
    ],
)
def test_a_scenario_about_something_that_does_not_exist_fails_with_the_reason(
    body: str, says: str
) -> None:
    verdict = one(f"    {body}")

    assert not verdict.ok
    assert says in verdict.problem + verdict.actual


def test_a_tool_with_an_effect_and_no_mock_ends_the_scenario_and_is_named() -> None:
    context = SpecContext(CAST.agents, CAST.chosen, NAMES, {}, strict=True)

    (verdict,) = played(
        "  Scenario: x\n    Given the input to is sam\n    And the approval is granted\n"
        "    When the agent runs\n    Then the run should fail\n",
        context,
    )

    assert "send_email has no mock" in verdict.problem


def test_the_line_of_a_sentence_in_a_python_file_is_that_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "agent.py"
    file.write_text('x = 1\nSPEC = """\nFeature: x\n  Scenario: y\n    When nothing\n"""\n')
    found = spec_in(file, {"SPEC": "\nFeature: x\n  Scenario: y\n    When nothing\n"})

    assert found is not None
    with pytest.raises(SpecError, match=r"agent\.py:5: unknown sentence"):
        read_spec(found[0], "agent.py", builtin_sentences(), first_line=found[1])


MODEL_AGENT = """
import json
import msgspec
from holdfast import Run, agent, step, tool

class Request(msgspec.Struct, frozen=True):
    id: str
    name: str
    arguments: str

class Reply(msgspec.Struct, frozen=True):
    text: str = ""
    tool_calls: tuple[Request, ...] = ()

@step(name="model")
def ask(turn: int) -> Reply:
    raise AssertionError("asked for real")

@tool
def clean(path: str, idempotency_key: str = "") -> str:
    return f"{path} {idempotency_key}"

@agent
def devops(run: Run) -> str:
    for turn in range(5):
        reply = ask(turn)
        if not reply.tool_calls:
            return reply.text
        for call in reply.tool_calls:
            clean(**json.loads(call.arguments))
    return "gave up"
"""


def test_a_mocked_model_replies_with_the_texts_and_tool_calls_of_the_spec() -> None:
    names = module_of(MODEL_AGENT)
    context = SpecContext(
        {"devops": names["devops"]},
        names["devops"],
        names,
        mocks_of({"clean": {"returns": "ok"}}),
        strict=True,
    )
    scenarios = read_spec(
        """Feature: devops
  Scenario: it cleans up
    Given the model answers in turn:
      | {"tool": "clean", "with": {"path": "/tmp"}} |
      | The disk is fine now.                       |
    When the agent runs
    Then the clean tool should be called with path="/tmp"
    And the output should be "The disk is fine now."
  Scenario: it only talks
    Given the model answers hello
    When the agent runs
    Then the output should be hello
    And the clean tool should not be called
""",
        "devops.feature",
        known_sentences(names),
    )

    assert [(True, "")] * 2 == [
        (v.ok, v.problem + v.actual) for v in (run_scenario(s, context) for s in scenarios)
    ]
