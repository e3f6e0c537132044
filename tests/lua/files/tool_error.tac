-- An error of a tool is caught by pcall, and recorded.
fetch = Tool { description = "Fetch.", risk = "read", input = {url = field.string{required = true}}, function() error("no network") end }
Mocks { fetch = {error = "no network"} }
Procedure {
  function()
    local ok, message = pcall(fetch, {url = "x"})
    state.failed = not ok
    return message
  end
}
Specifications([[
Feature: errors
  Scenario: caught
    When the procedure runs
    Then the fetch tool should fail
    And the state failed should be true
    And the output should contain no network
]])
