-- The guard of the chapter: entering the send step again does not send again.
send = Tool { description = "Send.", input = {idempotency_key = field.string{}}, function() return {id = "m"} end }
Mocks { send = {returns = {id = "m-1"}} }
local function send_once()
  if state.message_id then return state.message_id end
  State.increment("send_attempts")
  state.message_id = send().id
  return state.message_id
end
Procedure {
  function()
    send_once()
    Human.approve{message = "Reviewed?"}
    send_once()
    for _ = 1, 3 do send_once() end
    return state.message_id
  end
}
Specifications([[
Feature: the guard
  Scenario: after a review
    Given the approval is granted
    When the procedure runs
    Then the send tool should be called exactly 1 time
    And the state send_attempts should be 1
  Scenario: rerun
    Given the approval is granted
    When the procedure runs
    And the run is rerun
    Then the send tool should be called exactly 1 time
]])
