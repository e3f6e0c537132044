Procedure {
  function()
    Log.debug("d")
    Log.info("i", {a = 1})
    Log.warn("w", {list = {1, 2}})
    Log.error("failed", {state = State.all()})
    print("printed", 1, true, nil)
    return "logged"
  end
}
Specifications([[
Feature: log
  Scenario: lines
    When the procedure runs
    Then the output should be logged
    And the output should be similar to "loged"
    And the output should be similar to "log" with 60% similarity
]])
