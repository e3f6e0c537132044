-- Session has every function of MessageHistory; what is not supported of Procedure and Lua is refused by name.
Procedure {
  function()
    local function refused(what, fn)
      local ok, message = pcall(fn)
      assert(not ok and message:find(what .. " is not supported", 1, true), tostring(message))
    end
    for _, verb in ipairs({"wait_any", "wait_all", "inject", "is_complete", "all_complete"}) do
      refused("Procedure." .. verb, Procedure[verb])
    end
    refused("load", function() load("return 1") end)
    refused("loadstring", function() loadstring("return 1") end)
    refused("loadfile", function() loadfile("x.lua") end)
    refused("dofile", function() dofile("x.lua") end)
    refused("package", function() return package.path end)
    refused("python", function() return python.eval end)
    refused("collectgarbage", function() collectgarbage() end)
    Session.inject_system("rules")
    Session.append("user", "one")
    Session.append("assistant", "two")
    Session.append("user", "three")
    assert(Session.checkpoint() == 4 and #MessageHistory.history() == 4)
    assert(Session.head(1)[1].content == "rules" and Session.tail(1)[1].content == "three")
    assert(#Session.slice(2, 3) == 2)
    Session.rewind(1)
    Session.keep_tail_tokens(1000)
    local count = #Session.get()
    Session.clear()
    return {count = count, left = #Session.get()}
  end
}
Specification([[
Feature: Session
  Scenario: the same messages
    When the procedure runs
    Then the output count should be 3
    And the output left should be 0
]])
