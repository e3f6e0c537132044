-- A multi-turn loop that ends with the tool done.
local done = require("tactus.tools.done")
worker = Agent { provider = "openai", model = "gpt-5", system_prompt = "Work.", tools = {done} }
Mocks { worker = {tool_calls = {{tool = "done", args = {reason = "all is written", success = true}}}, message = "Done."} }
Procedure {
  function()
    repeat
      worker()
    until done.called() or Iterations.exceeded(5)
    assert(Stop.requested() and Stop.reason() == "all is written" and Stop.success())
    return done.last_call().args.reason
  end
}
Specifications([[
Feature: a loop
  Scenario: done
    When the worker agent takes turns
    Then the done tool should be called
    And the stop reason should be all is written
    And the stop reason should contain written
    And the stop reason should match "^all"
    And the output should be all is written
]])
