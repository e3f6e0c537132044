-- What a tool's handle knows of its calls.
double = Tool {
  description = "Twice a number.",
  input = {n = field.number{required = true, description = "the number"}},
  risk = "read",
  function(args) return {n = args.n * 2} end
}
Mocks { double = {temporal = {{n = 2}, {n = 4}, {n = 8}}} }
Procedure {
  function()
    assert(not double.called() and double.last_call() == nil and double.call_count() == 0)
    local two = double({n = 1})
    local four = double.call({n = two.n})
    assert(double.called() and double.call_count() == 2)
    assert(double.last_call().name == "double" and double.last_call().args.n == 2)
    assert(double.last_result().n == 4)
    double.reset()
    assert(not double.called())
    return double({n = four.n}).n
  end
}
Specifications([[
Feature: handles
  Scenario: calls are counted
    When the procedure runs
    Then the double tool should be called
    And the double tool should be called exactly 3 times
    And the double tool should be called at least 1 time
    And the double tool should be called with n=1
    And the output should be 8
]])
