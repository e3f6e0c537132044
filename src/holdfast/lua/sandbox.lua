-- The sandbox: what a file may use of Lua, within limits that it cannot escape.
--
-- A file runs in an environment of its own (`env`), never with the real globals. Three rules keep it in there:
--   1. No value of Python reaches the file. Python functions are called by wrappers here, and return plain values.
--   2. What must end the run (a limit, a suspension, a cancellation) sets `fatal`. From then on every protected call,
--      coroutine and Python call raises FATAL again, so no `pcall` can continue.
--   3. Whatever differs between two processes (time, chance, order of keys, addresses) is recorded or made equal.
--
-- This file must not call methods of strings (`s:sub()`) or read globals when it is called by a file: it keeps its own
-- references, because the file may replace everything in its environment.
--
-- Not here: names of values and order of keys (`stable.lua`), patterns that the C library might not end
-- (`patterns.lua`), the names of the language (`language.lua`).
local py, slow, stable = ...

local assert, error, getmetatable, ipairs, load, next = assert, error, getmetatable, ipairs, load, next
local pcall, rawequal, rawget, rawlen, rawset, select = pcall, rawequal, rawget, rawlen, rawset, select
local setmetatable, tonumber, tostring, type, xpcall = setmetatable, tonumber, tostring, type, xpcall
local math, string, table, utf8, coroutine, debug = math, string, table, utf8, coroutine, debug
local find, format, gsub, rep, sub = string.find, string.format, string.gsub, string.rep, string.sub
local concat, insert, move, pack, remove, unpack = table.concat, table.insert, table.move, table.pack, table.remove, table.unpack
local co_create, co_resume, co_status, co_close = coroutine.create, coroutine.resume, coroutine.status, coroutine.close
local getinfo, sethook, traceback = debug.getinfo, debug.sethook, debug.traceback
local random, randomseed = math.random, math.randomseed

local HOOK_EVERY = 1000
local C_STEPS_MAX = 10000000 -- what a single call of the C library may take
local C_STEPS_PER_INSTRUCTION = 10
local PLAIN_MAX = 1000000000
local RANGE_MAX = 10000000
local ARGUMENTS_MAX = 8
local MEMORY = "not enough memory"
local OWN = "holdfast" -- the name of our own files

-- ── what ends a run ───────────────────────────────────────────────────────────────────────────
local FATAL = {}
local fatal = false
local hook

-- From here on a function of the file ends at its first instruction: what Lua still calls (`__close`) can do nothing.
local function unwind()
  sethook(hook, "", 1)
  error(FATAL, 0)
end

local function die()
  fatal = true
  unwind()
end

local function check()
  if fatal then unwind() end
end

local function charge(instructions)
  check()
  if py.exhausted(instructions) then die() end
end

function hook()
  if not fatal then
    charge(HOOK_EVERY)
  elseif getinfo(2, "S").short_src ~= OWN then
    error(FATAL, 0)
  end
end

-- The line and file that is being executed; nothing in a tail call, which has no frame.
local function here()
  local level = 2
  while true do
    local info = getinfo(level, "Sl")
    if not info then return nil end
    if info.what ~= "C" and info.short_src ~= OWN then return info.currentline, info.short_src end
    level = level + 1
  end
end

-- An error of our own code, as one of the line that called it.
local function placed(e)
  if type(e) ~= "string" then return e end
  local _, last = find(e, "^holdfast:%d+: ")
  if not last then return e end
  local line, file = here()
  return (line and file .. ":" .. line .. ": " or "") .. sub(e, last + 1)
end

-- The C library is not interrupted by the hook. What may take it long is refused, or charged before it starts.
local function charge_steps(steps)
  if steps > HOOK_EVERY then charge(steps // C_STEPS_PER_INSTRUCTION) end
end

-- A Python function as one of Lua. It returns true and values; false and a message, which becomes an error of the
-- caller; or nil, if Python keeps an exception that must pass through everything.
local function bridge(name, level)
  local fn = py[name]
  level = level or 2
  return function(...)
    check()
    if select("#", ...) > ARGUMENTS_MAX then error("too many arguments", level) end -- each is copied to Python
    local ok, a, b = fn(...)
    if ok then return a, b end
    if ok == nil then die() end
    error(a, level)
  end
end

local function is_memory_error(e)
  return e == MEMORY
end

-- An exception that Python raised outside of an operation: an interrupt. It must end the run.
local function is_exception(e)
  return type(e) == "userdata"
end

-- What a failed call gives to the file: never a value of Python, and never FATAL.
local function caught(ok, e, ...)
  check()
  if ok then return true, e, ... end
  if is_memory_error(e) then
    py.out_of_memory()
    die()
  end
  if is_exception(e) then
    py.escaped(e)
    die()
  end
  return false, e
end

local env = {}
local safe = {}

function safe.pcall(f, ...)
  check()
  return caught(xpcall(f, placed, ...))
end

function safe.xpcall(f, handler, ...)
  check()
  return caught(xpcall(f, function(e)
    if fatal or is_memory_error(e) or is_exception(e) then return e end
    return handler(placed(e))
  end, ...))
end

-- ── coroutines ────────────────────────────────────────────────────────────────────────────────
local function create(f)
  charge(HOOK_EVERY // 10) -- what a short one executes is not counted by its hook
  local co = co_create(f)
  sethook(co, hook, "", HOOK_EVERY)
  return co
end

local safe_coroutine = {
  create = create,
  status = co_status,
  isyieldable = coroutine.isyieldable,
  running = coroutine.running,
  yield = coroutine.yield,
}

function safe_coroutine.resume(co, ...)
  check()
  return caught(co_resume(co, ...))
end

function safe_coroutine.close(co)
  check()
  return caught(co_close(co))
end

local function resumed(co, ok, ...)
  if ok then return ... end
  local e = ...
  if co_status(co) == "suspended" or co_status(co) == "dead" then pcall(co_close, co) end
  check()
  error(e, 0)
end

function safe_coroutine.wrap(f)
  local co = create(f)
  return function(...)
    check()
    return resumed(co, caught(co_resume(co, ...)))
  end
end

-- ── names of values and order of keys, the same in every process ──────────────────────────────
local text_of, merge_sort = stable.text_of, stable.merge_sort
safe.next, safe.pairs = stable.next, stable.pairs

-- ── metatables ────────────────────────────────────────────────────────────────────────────────
local protected = setmetatable({}, { __mode = "k" })

local function protect(t, meta)
  meta.__metatable = false
  protected[t] = true
  return setmetatable(t, meta)
end

function safe.setmetatable(t, meta)
  if type(meta) == "table" then
    if rawget(meta, "__gc") ~= nil then error("setmetatable: __gc is not allowed", 2) end
    if rawget(meta, "__mode") ~= nil then
      error("setmetatable: __mode is not allowed, because what is collected differs between two processes", 2)
    end
  end
  return setmetatable(t, meta)
end

function safe.getmetatable(t)
  if type(t) ~= "table" then return nil end
  return getmetatable(t)
end

function safe.rawset(t, k, v)
  if protected[t] then error("rawset: this table belongs to Holdfast", 2) end
  return rawset(t, k, v)
end

-- ── strings ───────────────────────────────────────────────────────────────────────────────────
local function text_argument(value, n, name)
  if type(value) == "string" then return value end
  if type(value) == "number" then return tostring(value) end
  error(format("bad argument #%d to '%s' (string expected, got %s)", n, name, value == nil and "no value" or type(value)), 3)
end

-- Whether the C library takes at most C_STEPS_MAX steps for it, whatever the text.
local function is_cheap(s, p)
  local n = #s + 1
  local _, repeats = gsub(p, "[%*%+%-%?]", "")
  local _, balances = gsub(p, "%%b", "") -- each reads to the end of the text
  local steps = n * (#p + 1)
  for _ = 1, repeats + balances do
    steps = steps * n
    if steps > C_STEPS_MAX then return false end
  end
  return steps <= C_STEPS_MAX
end

local function with_patterns(name)
  local fast, slowly = string[name], slow[name]
  return function(s, p, ...)
    s, p = text_argument(s, 1, name), text_argument(p, 2, name)
    charge_steps(#s + #p)
    if is_cheap(s, p) then return fast(s, p, ...) end
    return slowly(s, p, ...)
  end
end

local safe_string = {
  byte = string.byte, char = string.char, len = string.len, lower = string.lower, upper = string.upper,
  reverse = string.reverse, sub = string.sub, pack = string.pack, unpack = string.unpack,
  packsize = string.packsize,
  match = with_patterns("match"), gmatch = with_patterns("gmatch"), gsub = with_patterns("gsub"),
}

function safe_string.rep(s, n, separator)
  s = text_argument(s, 1, "rep")
  separator = separator == nil and "" or text_argument(separator, 3, "rep")
  if s == "" and separator == "" then return "" end -- the C library would count to n
  if type(n) == "number" and n > 0 and n <= PLAIN_MAX then charge_steps((#s + #separator) * n) end
  return rep(s, n, separator)
end

local find_pattern = with_patterns("find")

function safe_string.find(s, p, init, plain)
  s, p = text_argument(s, 1, "find"), text_argument(p, 2, "find")
  if plain or not find(p, "[%^%$%*%+%?%.%(%)%[%]%%%-]") then
    charge_steps(#s + #p)
    if #s * #p > PLAIN_MAX then
      error("string.find: the texts are too long for each other (" .. #s .. " and " .. #p .. " bytes)", 2)
    end
    return find(s, p, init, true)
  end
  return find_pattern(s, p, init)
end

function safe_string.format(template, ...)
  template = text_argument(template, 1, "format")
  if find(template, "%%[%-%+ #0%d%.]*p") then error("string.format: %p is not allowed, because addresses differ between two processes", 2) end
  local values = pack(...)
  local number = 0
  gsub(template, "%%[%-%+ #0%d%.]*(.)", function(kind)
    if kind ~= "%" then
      number = number + 1
      if kind == "s" then values[number] = text_of(values[number]) end
    end
  end)
  if number > values.n then
    error(format("bad argument #%d to 'format' (no value)", values.n + 2), 2)
  end
  return format(template, unpack(values, 1, values.n))
end

-- ── tables ────────────────────────────────────────────────────────────────────────────────────
local function check_range(name, count)
  if count > RANGE_MAX then error("table." .. name .. ": more than " .. RANGE_MAX .. " elements", 3) end
  charge_steps(count)
end

local safe_table = { pack = table.pack }

function safe_table.unpack(t, i, j)
  check_range("unpack", (j or #t) - (i or 1))
  return unpack(t, i, j)
end

function safe_table.concat(t, separator, i, j)
  check_range("concat", (j or #t) - (i or 1))
  return concat(t, separator, i, j)
end

function safe_table.move(a, first, last, to, b)
  check_range("move", last - first)
  if protected[b or a] then error("table.move: this table belongs to Holdfast", 2) end
  return move(a, first, last, to, b)
end

function safe_table.insert(t, ...)
  check_range("insert", #t)
  return insert(t, ...)
end

function safe_table.remove(t, ...)
  check_range("remove", #t)
  return remove(t, ...)
end

function safe_table.sort(t, less)
  local n = #t
  check_range("sort", n)
  local list = {}
  for i = 1, n do list[i] = t[i] end
  list = merge_sort(list, n, less or function(a, b) return a < b end)
  for i = 1, n do t[i] = list[i] end
end

-- ── numbers, time ─────────────────────────────────────────────────────────────────────────────
local safe_math = {}
for name, value in next, math do safe_math[name] = value end

local is_seeded = false
local draw_seed = bridge("seed")

local function seed()
  is_seeded = true
  randomseed(draw_seed(), 0)
end

function safe_math.random(...)
  check()
  if not is_seeded then seed() end
  return random(...)
end

function safe_math.randomseed(...)
  check()
  if select("#", ...) == 0 then return seed() end
  is_seeded = true
  randomseed(...)
end

local safe_os = {
  time = bridge("os_time"), date = bridge("os_date"), clock = bridge("os_clock"),
  difftime = function(a, b) return a - b end,
}

local safe_debug = {}

function safe_debug.getinfo(level)
  local info = type(level) == "function" and getinfo(level, "S") or getinfo((tonumber(level) or 1) + 1, "Sl")
  if not info then return nil end
  return {
    short_src = info.short_src, source = info.source, what = info.what,
    currentline = info.currentline, linedefined = info.linedefined,
  }
end

-- ── the environment ───────────────────────────────────────────────────────────────────────────
local globals = {
  assert = assert, error = error, ipairs = ipairs, rawequal = rawequal, rawget = rawget, rawlen = rawlen,
  select = select, tonumber = tonumber, tostring = text_of, type = type, _VERSION = "Lua 5.4",
  pcall = safe.pcall, xpcall = safe.xpcall, next = safe.next, pairs = safe.pairs,
  setmetatable = safe.setmetatable, getmetatable = safe.getmetatable, rawset = safe.rawset,
  coroutine = safe_coroutine, string = safe_string, table = safe_table, math = safe_math, os = safe_os,
  debug = safe_debug,
  utf8 = {
    char = utf8.char, charpattern = utf8.charpattern, codepoint = utf8.codepoint, codes = utf8.codes,
    len = utf8.len, offset = utf8.offset,
  },
}

-- Strings find their methods in the safe table, and no file sees the metatable.
local string_meta = getmetatable("")
string_meta.__index = safe_string
string_meta.__metatable = false

local naming = {}

protect(env, {
  __index = globals,
  __newindex = function(_, k, v)
    local name = naming[1]
    if name then name(k, v) end
    globals[k] = v
  end,
})
globals._G = env

-- ── running ───────────────────────────────────────────────────────────────────────────────────
local function report(e)
  if fatal then return FATAL end
  if is_memory_error(e) or is_exception(e) then return e end
  local ok, text = pcall(text_of, placed(e))
  if not ok then text = "an error whose __tostring fails" end
  return { text, traceback(nil, 2), here() }
end

local function finished(fn, ok, first, ...)
  if ok then return true, first, ... end
  if fatal then return nil end
  if is_memory_error(first) or is_exception(first) then
    if is_exception(first) then py.escaped(first) else py.out_of_memory() end
    fatal = true
    return nil
  end
  if type(first) == "table" then
    local text, stack, line = first[1], first[2], first[3]
    if not line and not find(text, "^[^\n:]+:%d+: ") then -- only tail calls: the line where the function begins is the nearest that is known
      local info = getinfo(fn, "S")
      text = info.short_src .. ":" .. info.linedefined .. ": " .. text
    end
    return false, text, stack
  end
  return false, "error in an error handler", ""
end

local function call(fn, ...)
  if fatal then return nil end
  sethook(hook, "", HOOK_EVERY)
  return finished(fn, xpcall(fn, report, ...))
end

local function compile(source, name)
  return load(source, name, "t", env)
end

return {
  env = env, globals = globals, bridge = bridge, protect = protect, text_of = text_of, pairs = safe.pairs,
  pcall = safe.pcall, naming = naming, call = call, compile = compile, here = here,
}
