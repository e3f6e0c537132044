-- Recap
Stages({"drafting", "sending", "complete"})

send_email = Tool {
  description = "Send an e-mail (a stub).",
  input = {
    to = field.string{required = true},
    subject = field.string{required = true},
    body = field.string{required = true},
    idempotency_key = field.string{},
  },
  function(args)
    return {message_id = "msg-" .. args.to}
  end
}

Mocks { send_email = {returns = {message_id = "m-1"}} }

Procedure {
  input = {
    recipient_name = field.string{required = true},
    recipient_email = field.string{required = true},
    raw_notes = field.string{},
  },
  output = { message_id = field.string{required = true} },
  function(input)
    local function send_once()
      if state.message_id then
        Log.info("Skipping send (already sent)", {message_id = state.message_id})
        return state.message_id
      end
      Stage.set("sending")
      State.increment("send_attempts")
      state.idempotency_key = state.idempotency_key or ("recap:" .. input.recipient_email .. ":" .. (input.raw_notes or ""))
      local result = send_email({to = input.recipient_email, subject = state.draft_subject, body = state.draft_body,
        idempotency_key = state.idempotency_key})
      state.message_id = result.message_id
      return state.message_id
    end
    Stage.set("drafting")
    state.draft_subject = "Recap"
    state.draft_body = "Hi " .. input.recipient_name .. ", " .. (input.raw_notes or "")
    send_once()
    Stage.set("complete")
    return {message_id = state.message_id}
  end
}

Specifications([[
Feature: Recap
  Scenario: it sends once
    Given the recipient_name parameter is "Sam"
    And the recipient_email parameter is "sam@example.com"
    When the procedure runs
    Then the procedure should complete successfully
    And the send_email tool should be called exactly 1 time
    And the state send_attempts should be 1
    And the stage should be complete
]])
