-- Without input= every parameter is taken.
Procedure { function(input) return (input.a or 0) + (input.b or 0) end }
Specifications([[
Feature: any input
  Scenario: two
    Given the a parameter is 1
    And the b parameter is 2
    When the procedure runs
    Then the output should be 3
]])
