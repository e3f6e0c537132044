-- Lua patterns in Lua: slower than the C library, but counted by the instruction limit.
--
-- The C library cannot be interrupted, and a pattern with several repetitions can take it hours on a text of a few
-- thousand characters. `sandbox.lua` uses these functions for every pattern that might.
local byte, find, string_char, sub = string.byte, string.find, string.char, string.sub
local concat, pack, unpack = table.concat, table.pack, table.unpack
local error, type, tostring = error, type, tostring

local MAX_CAPTURES = 32
local PERCENT, DOT, STAR, PLUS, MINUS, QUESTION = 37, 46, 42, 43, 45, 63
local OPEN, CLOSE, DOLLAR, CARET, LEFT, RIGHT = 40, 41, 36, 94, 91, 93
local LOWER_B, LOWER_F, ZERO, NINE = 98, 102, 48, 57

-- The classes by letter, each as a table of bytes, made with the C library on single characters when first used.
local LETTERS = "acdglpsuwxACDGLPSUWX"
local classes = {}

local function class_of(letter)
  local set = classes[letter]
  if set == nil then
    local name = string_char(letter)
    set = find(LETTERS, name, 1, true) ~= nil and {}
    if set then
      for c = 0, 255 do set[c] = find(string_char(c), "^%" .. name) ~= nil end
    end
    classes[letter] = set
  end
  return set
end

local function class_end(p, i)
  local c = byte(p, i)
  if c == PERCENT then
    if i + 1 > #p then error("malformed pattern (ends with '%')", 0) end
    return i + 2
  end
  if c ~= LEFT then return i + 1 end
  i = i + 1
  if byte(p, i) == CARET then i = i + 1 end
  repeat
    if i > #p then error("malformed pattern (missing ']')", 0) end
    if byte(p, i) == PERCENT then i = i + 2 else i = i + 1 end
  until byte(p, i) == RIGHT
  return i + 1
end

local function in_class(c, letter)
  local set = class_of(letter)
  if set then return set[c] end
  return letter == c
end

local function in_set(c, p, i, last)
  local wanted = true
  if byte(p, i + 1) == CARET then
    wanted = false
    i = i + 1
  end
  i = i + 1
  while i < last do
    local x = byte(p, i)
    if x == PERCENT then
      i = i + 1
      if in_class(c, byte(p, i)) then return wanted end
      i = i + 1
    elseif byte(p, i + 1) == MINUS and i + 2 < last then
      if x <= c and c <= byte(p, i + 2) then return wanted end
      i = i + 3
    else
      if x == c then return wanted end
      i = i + 1
    end
  end
  return not wanted
end

local function single(s, si, p, pi, ep)
  local c = byte(s, si)
  if not c then return false end
  local x = byte(p, pi)
  if x == DOT then return true end
  if x == PERCENT then return in_class(c, byte(p, pi + 1)) end
  if x == LEFT then return in_set(c, p, pi, ep - 1) end
  return x == c
end

local do_match

local function balance(s, si, p, pi)
  if pi + 1 > #p then error("missing arguments to '%b'", 0) end
  local open, close = byte(p, pi), byte(p, pi + 1)
  if byte(s, si) ~= open then return nil end
  local depth = 1
  for i = si + 1, #s do
    local c = byte(s, i)
    if c == close then
      depth = depth - 1
      if depth == 0 then return i + 1 end
    elseif c == open then
      depth = depth + 1
    end
  end
  return nil
end

local function max_expand(m, s, si, p, pi, ep)
  local i = 0
  while single(s, si + i, p, pi, ep) do i = i + 1 end
  while i >= 0 do
    local found = do_match(m, s, si + i, p, ep + 1)
    if found then return found end
    i = i - 1
  end
  return nil
end

local function min_expand(m, s, si, p, pi, ep)
  while true do
    local found = do_match(m, s, si, p, ep + 1)
    if found then return found end
    if not single(s, si, p, pi, ep) then return nil end
    si = si + 1
  end
end

local function start_capture(m, s, si, p, pi, what)
  if m.level >= MAX_CAPTURES then error("too many captures", 0) end
  m.level = m.level + 1
  m[m.level] = { si, what }
  local found = do_match(m, s, si, p, pi)
  if not found then m.level = m.level - 1 end
  return found
end

local function end_capture(m, s, si, p, pi)
  for level = m.level, 1, -1 do
    if m[level][2] == "open" then
      local old = m[level]
      m[level] = { old[1], si - old[1] }
      local found = do_match(m, s, si, p, pi)
      if not found then m[level] = old end
      return found
    end
  end
  error("invalid pattern capture", 0)
end

local function back_reference(m, s, si, digit)
  local capture = m[digit - ZERO]
  if digit - ZERO > m.level or not capture or capture[2] == "open" or digit == ZERO then
    error("invalid capture index", 0)
  end
  local length = capture[2] == "position" and 0 or capture[2]
  if sub(s, capture[1], capture[1] + length - 1) == sub(s, si, si + length - 1) then
    return si + length
  end
  return nil
end

local function frontier(s, si, p, pi)
  if byte(p, pi) ~= LEFT then error("missing '[' after '%f' in pattern", 0) end
  local ep = class_end(p, pi)
  local before = si == 1 and 0 or byte(s, si - 1)
  local now = byte(s, si) or 0
  if not in_set(before, p, pi, ep - 1) and in_set(now, p, pi, ep - 1) then return ep end
  return nil
end

function do_match(m, s, si, p, pi)
  while pi <= #p do
    local x = byte(p, pi)
    local next_x = byte(p, pi + 1)
    if x == OPEN then
      if next_x == CLOSE then return start_capture(m, s, si, p, pi + 2, "position") end
      return start_capture(m, s, si, p, pi + 1, "open")
    elseif x == CLOSE then
      return end_capture(m, s, si, p, pi + 1)
    elseif x == DOLLAR and pi == #p then
      return si == #s + 1 and si or nil
    elseif x == PERCENT and next_x == LOWER_B then
      si = balance(s, si, p, pi + 2)
      if not si then return nil end
      pi = pi + 4
    elseif x == PERCENT and next_x == LOWER_F then
      local ep = frontier(s, si, p, pi + 2)
      if not ep then return nil end
      pi = ep
    elseif x == PERCENT and next_x and next_x >= ZERO and next_x <= NINE then
      si = back_reference(m, s, si, next_x)
      if not si then return nil end
      pi = pi + 2
    else
      local ep = class_end(p, pi)
      local suffix = byte(p, ep)
      if suffix == QUESTION then
        if single(s, si, p, pi, ep) then
          local found = do_match(m, s, si + 1, p, ep + 1)
          if found then return found end
        end
        pi = ep + 1
      elseif suffix == PLUS then
        if not single(s, si, p, pi, ep) then return nil end
        return max_expand(m, s, si + 1, p, pi, ep)
      elseif suffix == STAR then
        return max_expand(m, s, si, p, pi, ep)
      elseif suffix == MINUS then
        return min_expand(m, s, si, p, pi, ep)
      else
        if not single(s, si, p, pi, ep) then return nil end
        si = si + 1
        pi = ep
      end
    end
  end
  return si
end

local function captured(m, s, level)
  local capture = m[level]
  if capture[2] == "position" then return capture[1] end
  if capture[2] == "open" then error("unfinished capture", 0) end
  return sub(s, capture[1], capture[1] + capture[2] - 1)
end

local function captures(m, s, first, past, whole)
  if m.level == 0 then
    if whole then return 1, { sub(s, first, past - 1) } end
    return 0, {}
  end
  local found = {}
  for level = 1, m.level do found[level] = captured(m, s, level) end
  return m.level, found
end

local function start_of(s, init)
  init = init or 1
  if init < 0 then init = #s + init + 1 end
  return init < 1 and 1 or init
end

-- The first match at or after `from`: its start, the place after it, and its captures.
local function search(s, p, from)
  local anchored = byte(p, 1) == CARET
  local pi = anchored and 2 or 1
  for si = from, anchored and from or #s + 1 do
    local m = { level = 0 }
    local past = do_match(m, s, si, p, pi)
    if past then return si, past, m end
  end
  return nil
end

local slow = {}

function slow.find(s, p, init)
  local from = start_of(s, init)
  if from > #s + 1 then return nil end
  local first, past, m = search(s, p, from)
  if not first then return nil end
  local n, found = captures(m, s, first, past, false)
  return first, past - 1, unpack(found, 1, n)
end

function slow.match(s, p, init)
  local from = start_of(s, init)
  if from > #s + 1 then return nil end
  local first, past, m = search(s, p, from)
  if not first then return nil end
  local n, found = captures(m, s, first, past, true)
  return unpack(found, 1, n)
end

function slow.gmatch(s, p)
  local at, last = 1, nil
  return function()
    for si = at, #s + 1 do
      local m = { level = 0 }
      local past = do_match(m, s, si, p, 1)
      if past and past ~= last then
        at, last = past, past
        local n, found = captures(m, s, si, past, true)
        return unpack(found, 1, n)
      end
    end
    at = #s + 2
    return nil
  end
end

local function expanded(repl, found, whole)
  local parts, i = {}, 1
  while i <= #repl do
    local c = byte(repl, i)
    if c == PERCENT then
      i = i + 1
      local digit = byte(repl, i)
      if digit == PERCENT then
        parts[#parts + 1] = "%"
      elseif digit == ZERO then
        parts[#parts + 1] = whole
      elseif digit and digit > ZERO and digit <= NINE then
        local value = found[digit - ZERO]
        if value == nil then error("invalid capture index %" .. (digit - ZERO) .. " in replacement string", 0) end
        parts[#parts + 1] = tostring(value)
      else
        error("invalid use of '%' in replacement string", 0)
      end
      i = i + 1
    else
      local next_percent = find(repl, "%", i, true) or #repl + 1
      parts[#parts + 1] = sub(repl, i, next_percent - 1)
      i = next_percent
    end
  end
  return concat(parts)
end

local function replacement(repl, kind, n, found, whole)
  local value
  if kind == "string" then
    return expanded(repl, found, whole)
  elseif kind == "table" then
    value = repl[found[1]]
  else
    value = repl(unpack(found, 1, n))
  end
  if not value then return whole end
  if type(value) ~= "string" and type(value) ~= "number" then
    error("invalid replacement value (a " .. type(value) .. ")", 0)
  end
  return tostring(value)
end

function slow.gsub(s, p, repl, limit)
  local kind = type(repl)
  if kind == "number" then
    repl, kind = tostring(repl), "string"
  end
  local anchored = byte(p, 1) == CARET
  local pi = anchored and 2 or 1
  local parts, count, si, last = {}, 0, 1, nil
  limit = limit or #s + 1
  while count < limit do
    local m = { level = 0 }
    local past = do_match(m, s, si, p, pi)
    if past and past ~= last then
      count = count + 1
      local n, found = captures(m, s, si, past, true)
      parts[#parts + 1] = replacement(repl, kind, n, found, sub(s, si, past - 1))
      si, last = past, past
    elseif si <= #s then
      parts[#parts + 1] = sub(s, si, si)
      si = si + 1
    else
      break
    end
    if si > #s + 1 or anchored then break end
  end
  parts[#parts + 1] = sub(s, si)
  return concat(parts), count
end

return slow
