Procedure {
  function()
    assert(not Stop.requested() and Stop.reason() == nil)
    Stop.request("budget is used", false)
    return {reason = Stop.reason(), success = Stop.success()}
  end
}
Specifications([[
Feature: stop
  Scenario: requested
    When the procedure runs
    Then the stop reason should be budget is used
    And the output success should be false
]])
