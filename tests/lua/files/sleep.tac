-- A durable timer.
Procedure {
  function()
    state.before = true
    Sleep(3600)
    state.after = true
    return "slept"
  end
}
Specifications([[
Feature: sleep
  Scenario: an hour
    When the procedure runs
    Then the output should be slept
    And the state after should be true
]])
