-- Step.checkpoint and checkpoint record what a function returned.
Procedure {
  function()
    assert(Checkpoint.next_position() == 1)
    local a = Step.checkpoint(function() return {n = 1} end)
    local b = checkpoint(function() return a.n + 1 end)
    assert(Checkpoint.exists(1) and not Checkpoint.exists(3) and Checkpoint.get(2) == 2 and Checkpoint.next_position() == 3)
    for _, verb in ipairs({"clear_all", "clear_after"}) do
      local ok, message = pcall(Checkpoint[verb], 1)
      assert(not ok and message:find("Checkpoint." .. verb .. " is not supported"))
    end
    return b
  end
}
Specifications([[
Feature: checkpoints
  Scenario: two
    When the procedure runs
    Then the checkpoint step should be called exactly 2 times
    And the output should be 2
]])
