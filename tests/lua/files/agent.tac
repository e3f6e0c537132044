-- An agent that calls a tool and answers. {state.k} and {input.k} resolve in all its texts.
look_up = Tool { description = "Look a city up.", risk = "read", input = {city = field.string{required = true}}, function(args) return args.city .. ": rainy" end }
weather = Agent {
  provider = "openai", model = {name = "gpt-5-mini", temperature = 0.2},
  system_prompt = "Speak as {state.tone}. Answer as JSON like {\"a\": 1}.",
  initial_message = "The weather in {input.city} for {params.who}?",
  tools = {look_up}, tool_choice = "auto",
}
Mocks {
  look_up = {returns = "Rome: sunny"},
  weather = {tool_calls = {{tool = "look_up", args = {city = "Rome"}}}, message = "Sunny.", usage = {prompt_tokens = 7, completion_tokens = 3}},
}
Procedure {
  input = {city = field.string{default = "Rome"}, who = field.string{default = "Sam"}},
  function()
    state.tone = "a pirate"
    local answer = weather()
    assert(answer.response == "Sunny." and answer.message == "Sunny." and answer.output == "Sunny.")
    assert(weather.output == "Sunny." and answer.usage.total_tokens == 20)
    assert(look_up.called() and look_up.last_call().args.city == "Rome")
    assert(Iterations.current() == 1 and not Iterations.exceeded(2) and Iterations.exceeded(1))
    return weather({message = "And in {state.tone} words?", temperature = 0.9, tools = {}}).response
  end
}
Specifications([[
Feature: an agent
  Scenario: it looks the weather up
    When the weather agent takes turns
    Then the look_up tool should be called exactly 1 time
    And the agent's context should include Speak as a pirate
    And the agent's context should include The weather in Rome for Sam
    And the agent's context should include And in a pirate words
    And the agent should take at least 2 turns
    And the total iterations should be less than 3
    And the total iterations should be between 1 and 2
]])
