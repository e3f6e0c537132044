-- check says whether a call happened; undo takes it back.
reserve = Tool {
  description = "Reserve a seat.",
  input = {seat = field.string{required = true}},
  check = function(key) return nil end,
  undo = function(result) return true end,
  function(args) return {seat = args.seat} end
}
Mocks { reserve = {returns = {seat = "4A"}} }
Procedure { function() return reserve({seat = "4A"}).seat end }
Specifications([[
Feature: check
  Scenario: found by its key
    When the procedure runs
    Then the output should be 4A
    And the reserve tool should be called with seat matching pattern "^4"
]])
