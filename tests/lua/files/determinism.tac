-- Time, chance, order and addresses are the same on every replay.
note = Tool { description = "Note.", risk = "read", input = {text = field.string{required = true}}, function(args) return args.text end }
Mocks { note = {returns = "noted"} }
Procedure {
  function()
    local parts = {os.time(), os.date("%Y-%m-%d %H:%M:%S"), os.date("*t").year, math.random(), math.random(1, 1000)}
    parts[#parts + 1] = os.time({year = 2026, month = 1, day = 2, hour = 3})
    parts[#parts + 1] = tostring({}) .. tostring(print) .. tostring(coroutine.create(function() end)) .. string.format("%s", {})
    for k, v in pairs({z = 1, y = 2, x = 3, [10] = 4, [2] = 5, [1.5] = 6, [true] = 7}) do parts[#parts + 1] = tostring(k) .. "=" .. v end
    local t, k = {b = 1, a = 2}, nil
    repeat k = next(t, k); parts[#parts + 1] = tostring(k) until k == nil
    local words = {}
    for i = 1, 300 do words[i] = {n = i % 7, i = i} end
    table.sort(words, function(a, b) return a.n < b.n end)
    parts[#parts + 1] = words[1].i .. "," .. words[300].i .. "," .. os.clock() .. "," .. os.difftime(5, 3)
    local text = {}
    for i, part in ipairs(parts) do text[i] = tostring(part) end
    note({text = table.concat(text, " ")})
    return "same"
  end
}
Specifications([[
Feature: determinism
  Scenario: a replay takes the same path
    When the procedure runs
    Then the output should be same
]])
