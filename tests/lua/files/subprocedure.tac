-- A sub-procedure is a child run.
add = Procedure {
  input = {a = field.number{required = true}, b = field.number{required = true}},
  output = {sum = field.number{required = true}},
  function(input) return {sum = input.a + input.b} end
}
Procedure {
  function()
    local three = add({a = 1, b = 2}).sum
    local ten = Procedure.run("add", {a = three, b = 7}).sum
    for _, verb in ipairs({"spawn", "status", "wait", "cancel"}) do
      local ok, message = pcall(Procedure[verb], "add")
      assert(not ok and message:find("Procedure." .. verb .. " is not supported"))
    end
    return ten
  end
}
Specifications([[
Feature: children
  Scenario: two
    When the procedure runs
    Then the output should be 10
]])
