-- Questions to people.
Procedure {
  function()
    Human.notify{message = "Started", level = "info"}
    System.alert{message = "Disk is full", level = "warn", source = "test"}
    local name = Human.input{message = "Your name?", placeholder = "Sam"}
    local colour = Human.select{message = "Which colour?", options = {"red", "blue"}}
    local many = Human.multiple{message = "Which sizes?", options = {"S", "M", "L"}}
    local both = Human.inputs{items = {{id = "street", message = "Street?"}, {id = "town", message = "Town?"}}}
    local review = Human.review{message = "Is it good?", artifact = "draft", artifact_type = "text", options = {"approve", "reject"}}
    for _, verb in ipairs({"upload", "custom"}) do
      local ok, message = pcall(Human[verb], {message = "x"})
      assert(not ok and message:find("Human." .. verb .. " is not supported"))
    end
    return {name = name, colour = colour, many = #many, town = both.town, decision = review.decision, feedback = review.feedback}
  end
}
Specifications([[
Feature: people
  Scenario: answers
    Given the answer to "Your name? (Sam)" is Ann
    And the answer to "Which colour?" is blue
    And the answer to "Which sizes? [S, M, L]" is S, M
    And the answer to "Street?" is Main
    And the answer to "Town?" is Bath
    And the answer is {"decision": "approve", "feedback": "fine"}
    When the procedure runs
    Then the output name should be Ann
    And the output many should be 2
    And the output town should be Bath
    And the output colour should not be red
    And the output decision should exist
    And the output feedback should match pattern "f.ne"
    And the output feedback should be similar to "fine" with 90% similarity
]])
