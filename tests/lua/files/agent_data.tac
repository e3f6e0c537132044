-- An agent with an output schema, and prepare.
extract = Agent {
  provider = "anthropic", model = "claude-sonnet", system_prompt = "Extract the total.", initial_message = "From: {prepared.text}",
  prepare = function() return {text = "total 5"} end,
  output = {total = field.number{required = true}},
}
Mocks { extract = {data = {total = 5}} }
Procedure { function() return extract().data.total end }
Specifications([[
Feature: data
  Scenario: parsed
    When the extract agent takes a turn
    Then the output should be 5
    And the agent's context should include From: total 5
]])
