fetch = Tool { description = "Fetch.", risk = "read", input = {}, function() error("no network") end }
Mocks { fetch = {error = "no network"} }
Procedure { function() return fetch() end }
Specifications([[
Feature: errors
  Scenario: not caught
    When the procedure runs
    Then the procedure should fail
    And the procedure should fail with no network
]])
