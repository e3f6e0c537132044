-- Coroutines, closures, metatables and goto work as in Lua; durable calls inside a coroutine too.
step_tool = Tool { description = "A step.", risk = "read", input = {n = field.number{}}, function(args) return args.n end }
Mocks { step_tool = {temporal = {1, 2, 3}} }
Procedure {
  function()
    local producer = coroutine.wrap(function()
      for i = 1, 3 do coroutine.yield(step_tool({n = i})) end
    end)
    local sum = producer() + producer() + producer()
    local Vector = {}
    Vector.__index = Vector
    Vector.__add = function(a, b) return setmetatable({x = a.x + b.x}, Vector) end
    Vector.__tostring = function(v) return "v" .. v.x end
    local v = setmetatable({x = 1}, Vector) + setmetatable({x = 2}, Vector)
    do
      local closed <close> = setmetatable({}, {__close = function() state.closed = true end})
    end
    local ok, kind = pcall(error, {code = 7})
    assert(not ok and kind.code == 7)
    local handled = select(2, xpcall(function() error("x", 0) end, function(e) return e .. "!" end))
    return {sum = sum, v = tostring(v), handled = handled, status = coroutine.status(coroutine.create(print))}
  end
}
Specifications([[
Feature: Lua
  Scenario: as usual
    When the procedure runs
    Then the output sum should be 6
    And the output v should be v3
    And the output handled should be x!
    And the state closed should be true
]])
