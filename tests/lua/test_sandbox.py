"""Attempts to leave the sandbox, or its limits, all refused; and the errors that a file causes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast import Holdfast, RunFailed
from holdfast.lua import load_program
from holdfast.lua.vm import LuaLimits

SMALL = LuaLimits(instructions=3_000_000, memory=16 << 20, seconds=5.0)

# Each is an expression; it must be false or nil, or raise an error that can be caught.
CLOSED = """
io.open("/etc/passwd")
os.execute
os.getenv
os.exit
os.remove
os.tmpname
package.loaded
python.eval
collectgarbage("count")
loadfile("a.tac")
dofile("a.tac")
load("return 1")
loadstring("return 1")
debug.sethook
debug.getupvalue
debug.setupvalue
debug.getregistry
debug.getlocal
debug.setmetatable
debug.getmetatable
debug.traceback
string.dump
getmetatable("")
getmetatable("").__index
getmetatable(state)
getmetatable(_G)
getmetatable(Human)
getmetatable(t)
debug.getinfo(1).func
debug.getinfo(print).func
(""):dump()
("x").dump
coroutine.create(print).x
require("os")
require("io")
require("/etc/passwd")
require("../x")
require("..")
require("lib..x")
_G.io.open
_ENV.io.open
rawget(_G, "io")
rawset(state, "x", 1)
setmetatable({}, {__gc = function() end})
setmetatable({}, {__mode = "k"})
setmetatable(state, {})
setmetatable(_G, {})
setmetatable(t, {})
string.format("%p", {})
table.move({}, 1, 1 << 60, 2)
table.concat(setmetatable({}, {__len = function() return 1 << 60 end}))
table.insert(setmetatable({}, {__len = function() return 1 << 60 end}), 1, 1)
table.unpack({}, 1, 1 << 60)
table.sort(setmetatable({}, {__len = function() return 1 << 60 end}))
t.__class__
t.last_call.__globals__
Stage.set.__closure__
input.__class__
state.__class__
tostring(Sleep).x.y
Json.encode(t)
Json.encode(function() end)
Json.decode("[" .. ("["):rep(100000))
File.read("/etc/passwd")
File.read("../../etc/passwd")
File.read("link/passwd")
File.write("evil.py", "import os")
File.write("evil.lua", "x")
File.write("/tmp/evil.txt", "x")
File.write(".holdfast/x.txt", "x")
pairs({[{}] = 1, [{}] = 2})
select(2, pcall(t, {})).__traceback__
select(2, pcall(Stage.set, "nowhere")).args
pcall(string.rep)
state[t]
(function() state.x = print return 1 end)()
(function() local c = {} c.c = c state.x = c return 1 end)()
(function() state.x = "\\255" return 1 end)()
(function() local s, t = ("x"):rep(4000000), {} for i = 1, 5000 do t[i] = s end state.x = t return 1 end)()
(function() local s, t = ("x"):rep(4000000), {} for i = 1, 5000 do t[i] = s end return Json.encode(t) end)()
(function() local s, t = ("x"):rep(4000000), {} for i = 1, 5000 do t["k" .. i] = s end return Json.encode(t) end)()
(function() local s, t = ("x"):rep(4000000), {} for i = 1, 5000 do t[i] = s end State.set(table.unpack(t)) return 1 end)()
(function() local s, t = ("x"):rep(4000000), {} for i = 1, 5000 do t[i] = s end MessageHistory.append(table.unpack(t)) return 1 end)()
Json.decode("[" .. ("[],"):rep(2000000) .. "[]]")
string.format("%99999d", 1)
string.format("%.99999f", 1)
string.format("%" .. ("0"):rep(100000) .. "d", 1)
string.format("%s")
string.pack("!99", 1)
("x").y.z
(function() ("x").y = 1 return 1 end)()
setmetatable("x", {})
setmetatable(print, {})
setmetatable(coroutine.running(), {})
getmetatable(coroutine.running())
getmetatable(print)
getmetatable(setmetatable({}, {__metatable = false}))
debug.getinfo(1, "f").func
debug.getinfo(error).func
select(2, pcall(error, t)).__call
select(2, pcall(Json.decode, "{")).__cause__
select(2, pcall(Sleep, "x")).args
select(2, pcall(os.date, "%Y", 1e300)).args
select(2, pcall(os.date, "a\\0b")).args
select(2, pcall(MessageHistory.tail, "x")).args
select(2, pcall(State.increment, "x", {})).args
select(2, pcall(File.write)).args
os.time.__self__
Json.decode("{}").__class__
Log.info.__globals__
File.read.__func__
coroutine.wrap(print).__self__
table.unpack(setmetatable({}, {__len = function() return 1 << 62 end}))
utf8.char(1 << 40)
string.char(256)
_G._G._G.package.loaded
_ENV._ENV
require("tactus.tools.done").__class__
require("lib\\0x")
require("link/passwd")
require("/etc/hosts.lua")
File.read("")
File.read("fifo")
File.exists("../a.tac") and 1
File.size("/etc/passwd")
File.write("a.tac", "x")
File.write("x.TAC", "x")
File.write("link/x.txt", "x")
File.write("x.txt/../../y.txt", "x")
(function() state.x = 0/0 return 1 end)()
""".strip().splitlines()

# Each is a body that never ends, or takes all memory, unless a limit ends it.
ENDLESS = {
    "loop": "while true do end",
    "pcall": "while true do pcall(function() while true do end end) end",
    "xpcall": "xpcall(function() while true do end end, function() while true do end end) while true do end",
    "coroutine": "coroutine.wrap(function() while true do end end)()",
    "resume": "while true do coroutine.resume(coroutine.create(function() while true do end end)) end",
    "nested": "local function f() coroutine.wrap(function() pcall(f) while true do end end)() end f()",
    "close": "local c <close> = setmetatable({}, {__close = function() while true do end end}) error('x')",
    "coroutine.close": """local co = coroutine.create(function()
        local c <close> = setmetatable({}, {__close = function() while true do end end}) coroutine.yield() end)
        coroutine.resume(co) coroutine.close(co)""",
    "index": "local t = setmetatable({}, {__index = function() while true do end end}) return t.x",
    "tostring": "tostring(setmetatable({}, {__tostring = function() while true do end end}))",
    "error object": "error(setmetatable({}, {__tostring = function() while true do end end}))",
    "gsub": "('x'):gsub('x', function() while true do end end)",
    "sort": "table.sort({3, 2, 1}, function() while true do end end)",
    "pattern": "return (('a'):rep(30000)):find('.-.-.-.-b')",
    "pattern of options": "return (('a'):rep(40)):find(('a?'):rep(40) .. ('a'):rep(40))",
    "goto": "::top:: goto top",
    "recursion": "local function f() return 1 + f() end while true do pcall(f) end",
    "string.rep": "return ('x'):rep(1 << 30)",
    "string.rep caught": "while true do pcall(string.rep, 'x', 1 << 30) end",
    "doubling": "local s = 'x' while true do s = s .. s end",
    "table": "local t = {} while true do t[#t + 1] = {} end",
    "concat": "local t = {} for i = 1, 1000 do t[i] = ('x'):rep(100000) end return table.concat(t)",
    "closures": "local t = {} while true do t[#t + 1] = function() return t end end",
    "memory caught": "local t = {} while true do pcall(function() while true do t[#t + 1] = ('x'):rep(9999) end end) end",
    "rep of nothing": "while true do local s = (''):rep(1 << 60) end",
    "rep with nothing between": "while true do local s = ('').rep('', 1 << 60, '') end",
    "balanced pattern": "return (('('):rep(3000000)):find('%b()')",
    "balanced pattern in gsub": "return (('('):rep(3000000)):gsub('%b()', '')",
    "back reference": "return (('a'):rep(20000)):find('(.-)%1%1%1b')",
    "gsub that backtracks": "return (('a'):rep(30000)):gsub('(.-)(.-)(.-)b', '%1')",
    "gmatch that backtracks": "for x in (('a'):rep(30000)):gmatch('.-.-.-b') do end",
    "wrap in pcall": "while true do pcall(coroutine.wrap(function() while true do end end)) end",
    "short coroutines": "while true do coroutine.wrap(function() for i = 1, 150 do end end)() end",
    "coroutines in coroutines": """local function deep(n) coroutine.wrap(function() if n > 0 then pcall(deep, n - 1) end
        while true do end end)() end while true do pcall(deep, 100) end""",
    "memory in a coroutine": "coroutine.wrap(function() local t = {} while true do t[#t + 1] = ('x'):rep(999) .. #t end end)()",
    "memory in suspended coroutines": """local all = {} while true do local co = coroutine.wrap(function()
        local s = ('x'):rep(9999) coroutine.yield() return s end) co() all[#all + 1] = co end""",
    "chain of rep": "local s = 'x' for i = 1, 60 do s = s:rep(8) end return #s",
    "table.pack": "local t = {} for i = 1, 100000 do t[i] = i end local all = {} while true do all[#all + 1] = table.pack(table.unpack(t)) end",
    "table.move": "while true do table.move({}, 1, 9999999, 2) end",
    "concat of a range": "while true do pcall(table.concat, {}, '', 1, 9999999) end",
    "concat of one text": "local t, s = {}, ('x'):rep(1000000) for i = 1, 1000 do t[i] = s end return #table.concat(t)",
    "sort without order": "local t = {} for i = 1, 100000 do t[i] = i end while true do table.sort(t, function() return true end) end",
    "equal": "local m = {__eq = function() while true do end end} return setmetatable({}, m) == setmetatable({}, m)",
    "length": "return #setmetatable({}, {__len = function() while true do end end})",
    "handler": "xpcall(error, function() while true do end end, 'x')",
    "handler that fails": "while true do xpcall(error, function() error('x') end, 'x') end",
    "close in a coroutine": """coroutine.wrap(function() local c <close> = setmetatable({}, {__close = function() while true do end end})
        error('x') end)()""",
    "close that catches": "local c <close> = setmetatable({}, {__close = function() while true do pcall(function() while true do end end) end end}) while true do end",
    "goto in pcall": "::top:: pcall(function() ::inner:: goto inner end) goto top",
    "pairs": "for _ in pairs(setmetatable({}, {__pairs = function() return function() return 1 end end})) do end",
    "checkpoint": "Step.checkpoint(function() while true do end end)",
    "checkpoint in a coroutine": "coroutine.wrap(function() Step.checkpoint(function() while true do end end) end)()",
    "close that opens two": """local m = {}
        m.__close = function() local a <close> = setmetatable({}, m) local b <close> = setmetatable({}, m) error("x") end
        local c <close> = setmetatable({}, m) while true do end""",
    "close that opens two in a loop": """local m = {}
        m.__close = function()
          for _ in function() end, nil, nil, setmetatable({}, m) do end
          local a <close> = setmetatable({}, m) local b <close> = setmetatable({}, m) error("x")
        end
        for _ in function() return 1 end, nil, nil, setmetatable({}, m) do end""",
    "close that opens two in a coroutine": """local m = {}
        m.__close = function() coroutine.wrap(function()
          local a <close> = setmetatable({}, m) local b <close> = setmetatable({}, m) error("x") end)() end
        coroutine.wrap(function() local c <close> = setmetatable({}, m) while true do end end)()""",
    "close that yields": """local co = coroutine.create(function()
        local c <close> = setmetatable({}, {__close = coroutine.yield}) while true do end end)
        coroutine.resume(co) while true do end""",
    "operations": "while true do local now = Json.encode(1) end",
    "format": "local s = ('%99d'):rep(10000) while true do pcall(string.format, s, 1) end",
}


def run(folder: Path, body: str, limits: LuaLimits = SMALL) -> object:
    """The result of a procedure with this body, in a project of its own."""
    (folder / "link").symlink_to("/etc")
    os.mkfifo(folder / "fifo")
    file = folder / "a.tac"
    file.write_text(
        't = Tool { description = "x", risk = "read", input = {}, function() error("no") end }\n'
        "Procedure { input = {}, function(input)\n" + body + "\nend }\n"
    )
    program = load_program(file, limits=limits)
    with Holdfast(folder / "h.db") as hf:
        return hf.run(program.main, id="r")


def test_there_are_enough_escape_attempts() -> None:
    assert len(CLOSED) + len(ENDLESS) >= 60


@pytest.mark.parametrize("attempt", CLOSED)
def test_every_escape_from_the_sandbox_is_refused(attempt: str, tmp_path: Path) -> None:
    body = (
        f"local ok, got = pcall(function() return {attempt} end)\nreturn not ok or not got or nil"
    )

    assert run(tmp_path, body) is True
    assert not (tmp_path / "evil.py").exists()


@pytest.mark.parametrize("body", ENDLESS.values(), ids=ENDLESS)
def test_code_that_does_not_end_is_stopped_by_a_limit(body: str, tmp_path: Path) -> None:
    with pytest.raises(RunFailed) as caught:
        run(tmp_path, body)

    assert "LuaLimit" in str(caught.value) or "not enough memory" in str(caught.value)


def test_no_call_is_made_after_a_limit(tmp_path: Path) -> None:
    body = "local c <close> = setmetatable({}, {__close = function() state.late = true end}) while true do end"
    with pytest.raises(RunFailed):
        run(tmp_path, body)

    with Holdfast(tmp_path / "h.db") as hf:
        assert {} == hf.get("r").state


def test_a_call_of_python_counts_as_a_hundred_instructions(tmp_path: Path) -> None:
    """Its time is not counted, so that a slow tool costs a file nothing; a loop of them still ends."""
    with pytest.raises(RunFailed, match="3,000,000 Lua instructions"):
        run(tmp_path, "for i = 1, 40000 do local text = Json.encode(1) end")


def test_operations_do_not_reset_the_cpu_time_of_a_file(tmp_path: Path) -> None:
    """Searching for a pattern is one instruction, whatever time it takes."""
    body = 'local s = ("a"):rep(1500) for i = 1, 300 do Json.encode(1) s:match(".-b") end'
    with pytest.raises(RunFailed, match=r"0\.05 s of CPU time"):
        run(tmp_path, body, LuaLimits(seconds=0.05))


def test_an_error_of_a_tail_call_names_the_line_where_the_function_begins(tmp_path: Path) -> None:
    """Lua keeps no frame of `return f()`, so the line itself is not known."""
    with pytest.raises(RunFailed, match=r"LuaError: a\.tac:2: t takes a table of arguments"):
        run(tmp_path, "return t(5)")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("table.unpack(nil)", "attempt to get length of a nil value"),
        ("for k in pairs(5) do end", "bad argument #1 to 'pairs'"),
        ("local s = os.difftime(1)", "attempt to perform arithmetic on a nil value"),
    ],
)
@pytest.mark.parametrize("is_caught", [False, True])
def test_an_error_inside_the_sandbox_names_the_line_that_called_it(
    body: str, says: str, is_caught: bool, tmp_path: Path
) -> None:
    if is_caught:
        said = run(
            tmp_path,
            f"local ok, e = pcall(function()\n{body}\nend)\nreturn e",
        )
        assert str(said).startswith(f"a.tac:4: {says}")
    else:
        with pytest.raises(RunFailed) as caught:
            run(tmp_path, f"\n{body}")
        assert f"LuaError: a.tac:4: {says}" in str(caught.value)


def test_a_caught_error_of_a_tool_has_no_traceback(tmp_path: Path) -> None:
    """A file that looks at the message should not meet the lines of Lua's stack."""
    said = run(tmp_path, "local ok, e = pcall(t, {})\nreturn e")

    assert "t failed: LuaError: a.tac:1: no" == said


def test_an_error_names_its_file_and_line_and_has_a_lua_traceback(tmp_path: Path) -> None:
    with pytest.raises(RunFailed) as caught:
        run(
            tmp_path,
            "local function inner() local x = nil; return x.y end\nlocal v = inner()\nreturn v",
        )

    said = str(caught.value)
    assert "a.tac:3: attempt to index a nil value (local 'x')" in said
    assert "stack traceback" in said
    assert "a.tac:4: in function" in said
    assert "holdfast:" not in said
