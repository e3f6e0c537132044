-- A person approves; nobody else's approval counts.
publish = Tool { description = "Publish.", input = {text = field.string{}, idempotency_key = field.string{}}, function() return "ok" end }
Mocks { publish = {returns = "ok"} }
Procedure {
  function()
    local ok = Human.approve{message = "Publish it?", context = {text = "hello"}, timeout = 3600, default = false}
    state.approved = ok
    if ok then publish({text = "hello"}) end
    return ok
  end
}
Specifications([[
Feature: approval
  Scenario: granted
    Given the approval is granted
    When the procedure runs
    Then the publish tool should be called exactly 1 time
    And the output should be true
  Scenario: rejected
    Given the approval is rejected
    When the procedure runs
    Then the publish tool should not be called
    And the state approved should be false
]])
