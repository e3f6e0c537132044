-- MessageHistory, and Session, which is the same.
Procedure {
  function()
    MessageHistory.append({role = "user", content = "one"})
    MessageHistory.append(Message{role = "assistant", content = "two"})
    Session.append(user("three"))
    Session.append(assistant("four"))
    MessageHistory.inject_system("rules")
    Session.append(system("more rules"))
    assert(#MessageHistory.get() == 6 and #Session.history() == 6)
    assert(MessageHistory.head(1)[1].content == "one" and MessageHistory.tail(1)[1].content == "more rules")
    assert(MessageHistory.slice(2, 3)[2].content == "three")
    assert(MessageHistory.checkpoint() == 6)
    MessageHistory.rewind(2)
    assert(#MessageHistory.get() == 4)
    MessageHistory.keep_tail_tokens(1000)
    for _, message in ipairs(History{{role = "user", content = "five"}}) do MessageHistory.append(message) end
    local count = #MessageHistory.get()
    MessageHistory.clear()
    return {count = count, left = #MessageHistory.get()}
  end
}
Specifications([[
Feature: messages
  Scenario: kept and hidden
    When the procedure runs
    Then the output count should be 5
    And the output left should be 0
    And the agent's context should include three
]])
