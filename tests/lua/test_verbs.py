"""Every verb works on a `.tac` file as on a Python agent: run, show, trace, diff, approve, resume, worker, fork,
replay, rerun, test, validate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast.cli.verbs import cli

PAYMENT = """
Stages({"asking", "paying", "paid"})
pay = Tool {
  description = "Pay an amount.",
  input = {amount = field.number{required = true}, idempotency_key = field.string{}},
  function(args) return {amount = args.amount, key = args.idempotency_key} end
}
Mocks { pay = {returns = {amount = 1, key = "mocked"}} }
Procedure {
  description = "Pay after an approval.",
  input = {amount = field.number{required = true}, currency = field.string{default = "EUR"}},
  function(input)
    Stage.set("asking")
    if not Human.approve{message = "Pay " .. input.amount .. " " .. input.currency .. "?"} then
      return {paid = false}
    end
    Stage.set("paying")
    state.receipt = pay({amount = input.amount})
    Stage.set("paid")
    return {paid = true, amount = state.receipt.amount}
  end
}
Specifications([[
Feature: Payment
  Scenario: it pays once
    Given the approval is granted
    When the procedure runs
    Then the procedure should complete successfully
    And the pay tool should be called exactly 1 time
    And the pay tool should be called with amount=7
]])
"""


class Terminal:
    """The command line in a folder with the file."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "payment.tac"
        self.file.write_text(PAYMENT)
        self._url = str(folder / "h.db")

    def invoke(self, *words: str, store: bool = True, code: int | None = 0) -> Result:
        given = [str(self.file) if word == "FILE" else word for word in words]
        result = CliRunner().invoke(cli, [*given, *(["--db", self._url] if store else [])])
        assert code is None or result.exit_code == code, result.output
        return result

    def json(self, *words: str, **options: Any) -> Any:
        return json.loads(self.invoke(*words, "--json", **options).stdout)


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    return Terminal(tmp_path)


@pytest.fixture
def waiting(terminal: Terminal) -> Terminal:
    """With a run p that is waiting for its approval."""
    terminal.invoke("run", "FILE", "--id", "p", "--param", "amount=7", code=None)
    return terminal


@pytest.fixture
def paid(waiting: Terminal) -> Terminal:
    """With a run p that was approved and is completed."""
    waiting.invoke("approve", "p", "--yes")
    waiting.invoke("resume", "FILE", "p")
    return waiting


def test_a_waiting_run_is_shown_with_what_it_is_waiting_for(waiting: Terminal) -> None:
    shown = waiting.invoke("show", "p").output

    assert "waiting for  approval: Pay 7 EUR?" in shown
    assert "[asking] → paying → paid" in shown


def test_an_approved_run_is_executed_by_a_worker(waiting: Terminal) -> None:
    waiting.invoke("approve", "p", "--yes")
    waiting.invoke("worker", "FILE", "--once", "--quiet")

    run = waiting.json("show", "p")
    assert ("completed", {"amount": 7, "paid": True}) == (run["status"], run["result"])
    assert run["state"]["receipt"]["key"].startswith("p:1:pay:")


def test_a_rejected_run_does_not_pay(waiting: Terminal) -> None:
    waiting.invoke("reject", "p", "--yes")
    waiting.invoke("resume", "FILE", "p")

    run = waiting.json("show", "p")
    assert ({"paid": False}, []) == (run["result"], run["calls"])


def test_an_approval_belongs_to_its_run_only(paid: Terminal) -> None:
    paid.invoke("run", "FILE", "--id", "q", "--param", "amount=7", code=None)

    assert "waiting" == paid.json("show", "q")["status"]


def test_a_run_started_without_its_file_is_executed_by_a_worker(waiting: Terminal) -> None:
    """The registered schema of the procedure is enough to start it."""
    waiting.invoke("worker", "FILE", "--once", "--quiet")
    waiting.invoke("start", "payment", "--id", "s", "--param", "amount=3")
    waiting.invoke("worker", "FILE", "--once", "--quiet")

    assert "approval: Pay 3 EUR?" in waiting.invoke("show", "s").output


def test_trace_and_diff_show_its_calls_and_state(paid: Terminal) -> None:
    traced = paid.invoke("trace", "p").output

    assert "step 1 pay" in traced
    assert "stage                 paid" in traced
    assert "paid" in paid.invoke("diff", "p", "0", "1").output


def test_a_fork_continues_with_the_recorded_payment(paid: Terminal) -> None:
    paid.invoke("fork", "p", "1", "--id", "f", "--yes")
    paid.invoke("worker", "FILE", "--once", "--quiet")

    run = paid.json("show", "f")
    assert "completed" == run["status"]
    assert paid.json("show", "p")["state"]["receipt"] == run["state"]["receipt"]


def test_a_dry_fork_uses_the_mocks_of_the_file(paid: Terminal) -> None:
    said = paid.invoke("fork", "p", "1", "--dry", "FILE").output

    assert '"key": "mocked"' in said
    assert "run p is unchanged" in said


def test_replay_notices_changed_code(paid: Terminal) -> None:
    assert "agrees with the log" in paid.invoke("replay", "FILE", "p").output

    paid.file.write_text(PAYMENT.replace("amount = input.amount})", "amount = input.amount + 1})"))

    assert "pay" in paid.invoke("replay", "FILE", "p", code=1).output


def test_a_completed_run_is_not_executed_again(paid: Terminal) -> None:
    again = paid.json("run", "FILE", "--id", "p", "--param", "amount=7")

    assert 1 == len(paid.json("show", "p")["calls"])
    assert {"amount": 7, "paid": True} == again["result"]


def test_its_specs_run_with_parameters_from_the_command_line(terminal: Terminal) -> None:
    words = ("test", "FILE", "--mock", "--param", "amount=7")

    assert terminal.json(*words, store=False)["ok"]
    assert terminal.json(*words, "--crash-everywhere", store=False)["ok"]


def test_a_wrong_parameter_of_a_test_is_refused(terminal: Terminal) -> None:
    refused = terminal.invoke("test", "FILE", "--mock", "--param", "amont=7", store=False, code=2)

    assert "amont is not a parameter" in refused.output
    assert "amount: int | float" in refused.output


def test_a_wrong_parameter_of_a_run_is_refused_with_the_declared_parameters(
    terminal: Terminal,
) -> None:
    refused = terminal.invoke("run", "FILE", "--param", "amount=much", code=2)

    assert "amount='much' is not int | float" in refused.output
    assert "currency: str = 'EUR'" in refused.output


def test_validate_finds_nothing_wrong(terminal: Terminal) -> None:
    assert {"ok": True, "problems": []} == terminal.json("validate", "FILE", store=False)
