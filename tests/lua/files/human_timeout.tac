-- Nobody answers in time: the default counts.
Procedure {
  function()
    local name = Human.input{message = "Name?", timeout = 60, default = "nobody"}
    return name
  end
}
Specifications([[
Feature: time
  Scenario: it is up
    When the procedure runs
    And 61 seconds pass
    And the run is resumed
    Then the output should be nobody
]])
