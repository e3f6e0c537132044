-- Files below the project's folder.
Mocks {
  ["File.write"] = {returns = 5}, ["File.read"] = {returns = "hello"},
  ["File.exists"] = {returns = true}, ["File.size"] = {returns = 5},
}
Procedure {
  function()
    File.write("notes/today.txt", "hello")
    return {there = File.exists("notes/today.txt"), size = File.size("notes/today.txt"), text = File.read("notes/today.txt")}
  end
}
Specifications([[
Feature: files
  Scenario: written and read
    When the procedure runs
    Then the output text should be hello
    And the output size should be 5
    And the output should contain there
]])
