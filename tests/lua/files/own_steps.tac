-- Sentences of the file's own.
Procedure { function() state.total = 7; return {total = 7} end }
Step("the total should be over {limit:number}", function(outcome, limit)
  assert(outcome.state.total > limit, "the total is " .. outcome.state.total)
  return outcome.output.total > limit and outcome.status == "completed"
end)
Specification([[
Feature: own sentences
  Scenario: over
    When the procedure runs
    Then the total should be over 5
]])
