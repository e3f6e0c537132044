-- A tool whose input has the field idempotency_key is given a key by the runtime.
charge = Tool {
  description = "Charge a card.",
  input = {amount = field.integer{required = true}, idempotency_key = field.string{}},
  risk = "external_action", retry = {attempts = 2}, key_ttl = 3600, on_doubt = "wait", redact = {"card"}, version = "1",
  function(args) return {charged = args.amount, keyed = args.idempotency_key ~= nil} end
}
Mocks { charge = {returns = {charged = 5, keyed = true}} }
Procedure {
  input = {amount = field.integer{default = 5}},
  function(input) return charge({amount = input.amount}).charged end
}
Specifications([[
Feature: keys
  Scenario: once
    When the procedure runs
    Then the charge tool should be called exactly 1 time
    And the output should be 5
]])
