Procedure {
  function()
    state.a, state.b = 1, 2
    State.clear()
    state.c = 3
    return State.all()
  end
}
Specification([[
Feature: clear
  Scenario: only what came after
    When the procedure runs
    Then the state a should not exist
    And the state c should be 3
    And the output should contain c
]])
