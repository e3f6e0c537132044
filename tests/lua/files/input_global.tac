-- `input` is a global too, and `main` may have a name.
local function greet() return "Hello " .. input.name end
main = Procedure {
  input = {name = field.string{required = true}},
  function(given)
    assert(given.name == input.name)
    return greet()
  end
}
Specifications([[
Feature: input
  Scenario: global
    Given the name parameter is Sam
    When the procedure runs
    Then the output should be Hello Sam
]])
