-- All types of fields, both ways of writing them.
Procedure {
  input = {
    s = field.string{default = "x", description = "a text"}, n = field.number{default = 1.5}, b = field.boolean{default = true},
    a = field.array{default = {1}}, o = field.object{default = {k = 1}}, i = field.integer{default = 2},
    e = field.string{default = "one", enum = {"one", "two"}}, plain = {type = "string", required = false}, short = "string",
  },
  output = {o = field.object{}, a = field.array{}},
  function(input)
    assert(input.s == "x" and input.n == 1.5 and input.b == true and input.a[1] == 1 and input.o.k == 1 and input.i == 2)
    assert(input.plain == nil and input.short == nil)
    return {o = {}, a = {}, extra = input.e}
  end
}
Specification([[
Feature: fields
  Scenario: defaults
    When the procedure runs
    Then the output o should be {}
    And the output a should be []
    And the output extra should be one
  Scenario: given
    Given the input s is "y"
    And the s parameter is x
    And the input a is [1]
    And the input n is 1.5
    When the procedure runs
    Then the procedure should complete successfully
]])
