-- A tool with an effect and no key: a call in doubt waits for a person.
announce = Tool { description = "Announce.", input = {text = field.string{required = true}}, function(args) return "said " .. args.text end }
Mocks { announce = {returns = "said it"} }
Procedure { function() return announce({text = "hello"}) end }
Specifications([[
Feature: doubt
  Scenario: a person settles it
    Given a person settles doubts about announce
    When the procedure runs
    Then the announce tool should be called exactly 1 time
    And the output should be said it
]])
