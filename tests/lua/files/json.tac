Procedure {
  function()
    local text = Json.encode({b = {1, 2}, a = "x", n = 6 / 2})
    local back = Json.decode('{"list": [1, {"deep": true}], "nothing": null}')
    assert(back.list[2].deep and back.nothing == nil)
    assert(not pcall(Json.decode, "{") and not pcall(Json.encode, print))
    return text
  end
}
Specifications([[
Feature: json
  Scenario: both ways
    When the procedure runs
    Then the output should match pattern "n.: 3}"
]])
