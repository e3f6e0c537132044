Procedure { function() return Human.escalate{message = "Look at this", context = {level = 3}} end }
Specifications([[
Feature: escalation
  Scenario: dealt with
    Given the approval is given
    When the procedure runs
    Then the output should be true
]])
