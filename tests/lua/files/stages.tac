-- Old dialect: stages, set one by one and advanced.
Stages({"first", "second", "third"})
Procedure {
  output = {history = field.array{required = true}, ended = field.boolean{}},
  function()
    assert(Stage.current() == nil)
    Stage.set("first")
    assert(Stage.is("first") and not Stage.is("second"))
    assert(Stage.advance() == "second")
    Stage.advance("third")
    local ended = Stage.advance() == nil
    local ok, message = pcall(Stage.set, "fourth")
    assert(not ok and message:find("fourth"))
    return {history = Stage.history(), ended = ended}
  end
}
Specifications([[
Feature: stages
  Scenario: in order
    Given the procedure has started
    When the procedure runs
    Then the stage should be third
    And we are in stage third
    And the stage is third
    And the stage should transition from first to second
    And the output ended should be true
]])
