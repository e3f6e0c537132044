-- A retry loop around a tool; the waits are durable timers.
flaky = Tool { description = "Flaky.", risk = "read", input = {}, function() return 1 end }
Mocks { flaky = {temporal = {{error = "busy"}, {error = "busy"}, {returns = "fine"}}} }
Procedure {
  function()
    local result = Retry.with_backoff(function()
      State.increment("tries")
      return flaky()
    end, {max_attempts = 4, initial_delay = 1, max_delay = 8, backoff_factor = 2})
    return result
  end
}
Specifications([[
Feature: retry
  Scenario: the third time
    When the procedure runs
    Then the state tries should be 3
    And the output should be fine
]])
