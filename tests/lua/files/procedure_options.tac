-- Options of the runtime in the table of a procedure.
spend = Tool { description = "Spend.", input = {idempotency_key = field.string{}}, timeout = 30, function() return 1 end }
Mocks { spend = {returns = 1} }
Procedure {
  deadline = 600, budget = {max_steps = 20}, approve = {"external_action"}, version = "1",
  function() return spend() end
}
Specifications([[
Feature: options
  Scenario: approved by risk
    Given the approval of spend is granted
    When the procedure runs
    Then the spend tool should be called exactly 1 time
    And the run should use at most 2 steps
]])
