-- Mocks that depend on the arguments, with all matchers.
search = Tool { description = "Search.", risk = "read", input = {q = field.string{required = true}}, function() return 0 end }
Mocks { search = {conditional = {
  {when = {q = contains("lua")}, returns = 1},
  {when = {q = equals("c")}, returns = 2},
  {when = {q = matches("^py")}, returns = 3},
  {when = {q = "go"}, returns = 4},
}, returns = 9} }
Procedure {
  function()
    local found = {}
    for i, q in ipairs({"a lua book", "c", "python", "go", "other"}) do found[i] = search({q = q}) end
    return found
  end
}
Specifications([[
Feature: conditions
  Scenario: each
    When the procedure runs
    Then the output should be [1, 2, 3, 4, 9]
]])
