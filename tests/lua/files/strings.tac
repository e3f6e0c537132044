-- The string library, also where patterns are too costly for C.
Procedure {
  function()
    local long = (" "):rep(3000) .. "x" .. (" "):rep(3000)
    assert(long:match("^%s*(.-)%s*$") == "x")
    assert(("a,b,,c"):gsub(",", ";") == "a;b;;c")
    local n = 0
    for word in ("the quick  brown"):gmatch("%a+") do n = n + #word end
    local swapped = ("hello world from Lua"):rep(200, "\n"):gsub("(%w+) (%w+)", "%2 %1", 1)
    assert(swapped:sub(1, 11) == "world hello")
    assert(("f(a(b)c)"):match("%b()") == "(a(b)c)" and ("THE (quick) fox"):find("%((%a+)%)") == 5)
    assert(string.format("%5.1f|%d|%s|%q", 3.14159, 3.0, {1} and "t", "q") == '  3.1|3|t|"q"')
    assert(("x"):rep(3, "-") == "x-x-x" and utf8.len("äö") == 2 and ("abc"):byte(-1) == 99)
    assert(tostring(1.0) == "1" and tostring(2^53) == "9007199254740992" and 7 // 2 == 3)
    return n
  end
}
Specifications([[
Feature: strings
  Scenario: all
    When the procedure runs
    Then the output should be 13
]])
