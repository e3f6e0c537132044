-- Two agents have a dialogue each.
writer = Agent { provider = "openai", model = "gpt-5", system_prompt = "Write.", initial_message = "Write a draft." }
critic = Agent { provider = "openai", model = "gpt-5", system_prompt = "Criticise." }
Mocks { writer = {message = "A draft."}, critic = {message = "Too short."} }
Procedure {
  function()
    local draft = writer().response
    state.last_issues = critic({message = "Review: " .. draft}).response
    return writer("Fix this: {state.last_issues}").response
  end
}
Specifications([[
Feature: two
  Scenario: both
    When the procedure runs
    Then the writer step should be called exactly 2 times
    And the critic step should be called exactly 1 time
    And the agent's context should include Fix this: Too short.
]])
