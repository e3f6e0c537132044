-- Model, Prompt, template and Toolset, of the newer dialect.
local fast = Model{provider = "openai", name = "gpt-5-mini"}
local text = Prompt("Answer {input.question}")
a_tool = Tool { description = "A.", risk = "read", input = {}, function() return 1 end }
helper = Agent { model = fast, system_prompt = text, initial_message = template("Now: {input.question}"), tools = Toolset{tools = {a_tool}} }
Mocks { helper = {message = "42"}, a_tool = {returns = 1} }
Procedure {
  input = {question = field.string{default = "what?"}},
  function() return helper().response end
}
Specification([[
Feature: newer names
  Scenario: resolved
    When the helper agent takes a turn
    Then the agent's context should include Answer what?
    And the agent's context should include Now: what?
    And the a_tool tool should not be called
    And the output should be "42"
]])
