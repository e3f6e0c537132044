-- Host.call reaches tools that Python gives; without one it is an error that says so.
Procedure {
  function()
    local ok, message = pcall(Host.call, "send", {to = "sam"})
    assert(not ok and message:find("unknown Python tool 'send'"))
    return debug.getinfo(1).currentline
  end
}
Specification([[
Feature: the host
  Scenario: none
    When the procedure runs
    Then the output should be 6
]])
