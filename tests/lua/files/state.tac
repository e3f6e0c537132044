-- Every function of State, and the live tables of state.
Procedure {
  state = {count = field.number{default = 10}, label = field.string{}},
  function()
    assert(state.count == 10 and state.label == nil and State.get("label", "none") == "none")
    State.set("label", "x")
    assert(State.increment("count") == 11 and State.increment("count", 5) == 16)
    State.append("events", "a")
    State.append("events", "b")
    state.scalar = 1
    State.append("scalar", 2)
    state.items = {}
    table.insert(state.items, "kept")
    state.nested = {list = {1, 2}}
    state.nested.list[3] = 3
    local all = State.all()
    assert(all.items[1] == "kept" and all.nested.list[3] == 3 and all.scalar[2] == 2)
    state.gone = true
    state.gone = nil
    local seen = {}
    for k in pairs(state) do seen[#seen + 1] = k end
    return table.concat(seen, ",")
  end
}
Specifications([[
Feature: state
  Scenario: all of it
    When the procedure runs
    Then the procedure should complete successfully
    And the state count should be 16
    And the state label should exist
    And the state should contain items
    And the state label should match pattern "^x$"
    And the state label should be similar to "x"
    And the state gone should not exist
    And the output should be count,events,items,label,nested,scalar
]])
