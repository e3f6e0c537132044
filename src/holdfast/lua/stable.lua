-- What must be the same in every process: the names of values, without addresses, and the order of keys.
--
-- Lua's own `tostring` prints addresses, and its `next` follows hashes that differ from process to process; with them
-- a replay would take another path.
local error, next, rawget, setmetatable, tostring, type = error, next, rawget, setmetatable, tostring, type
local metatable, floor, format, math_type = debug.getmetatable, math.floor, string.format, math.type
local stable = {}

-- ── names of values, without addresses ────────────────────────────────────────────────────────
local ids = setmetatable({}, { __mode = "k" })
local id_count = 0

local function id_of(value)
  local id = ids[value]
  if not id then
    id_count = id_count + 1
    id = id_count
    ids[value] = id
  end
  return id
end

local function number_text(value)
  if math_type(value) == "float" and value == floor(value) and value >= -9007199254740992 and value <= 9007199254740992 then
    return format("%d", value)
  end
  return tostring(value)
end

local function text_of(value)
  local kind = type(value)
  if kind == "string" then return value end
  if kind == "number" then return number_text(value) end
  if kind ~= "table" then
    if kind == "nil" or kind == "boolean" then return tostring(value) end
    return kind .. ": " .. id_of(value)
  end
  local meta = metatable(value)
  if type(meta) == "table" then
    local own = rawget(meta, "__tostring")
    if own then
      local text = own(value)
      if type(text) ~= "string" then error("'__tostring' must return a string", 2) end
      return text
    end
    local name = rawget(meta, "__name")
    if type(name) == "string" then return name .. ": " .. id_of(value) end
  end
  return "table: " .. id_of(value)
end

-- ── tables in a fixed order ───────────────────────────────────────────────────────────────────
local function merge_sort(list, n, less)
  local from, to, width = list, {}, 1
  while width < n do
    local i = 1
    while i <= n do
      local middle, last = i + width, i + 2 * width
      if middle > n + 1 then middle = n + 1 end
      if last > n + 1 then last = n + 1 end
      local a, b, k = i, middle, i
      while k < last do
        if a < middle and (b >= last or not less(from[b], from[a])) then
          to[k] = from[a]
          a = a + 1
        else
          to[k] = from[b]
          b = b + 1
        end
        k = k + 1
      end
      i = last
    end
    from, to = to, from
    width = width * 2
  end
  return from
end

local function key_less(a, b)
  local x, y = type(a), type(b)
  if x ~= y then return x < y end -- boolean, number, string
  if x == "boolean" then return a and not b end
  return a < b
end

-- The keys of a table: numbers, then texts, each sorted. Keys of other types have no order that two processes share.
local function keys_of(t)
  local keys, n, other = {}, 0, nil
  for k in next, t do
    local kind = type(k)
    if kind == "string" or kind == "number" or kind == "boolean" then
      n = n + 1
      keys[n] = k
    elseif other == nil then
      other = k
    else
      error("pairs: keys that are tables or functions have no fixed order; use texts or numbers as keys", 3)
    end
  end
  keys = merge_sort(keys, n, key_less)
  if other ~= nil then
    n = n + 1
    keys[n] = other
  end
  return keys, n
end

local orders = setmetatable({}, { __mode = "k" })

local function order_of(t)
  local keys, n = keys_of(t)
  local place = {}
  for i = 1, n do place[keys[i]] = i end
  local order = { keys = keys, n = n, place = place }
  orders[t] = order
  return order
end

function stable.next(t, key)
  if type(t) ~= "table" then error("bad argument #1 to 'next' (table expected, got " .. type(t) .. ")", 2) end
  local order
  if key == nil then
    if next(t) == nil then return nil end
    order = order_of(t)
  else
    order = orders[t]
    if not order or not order.place[key] then order = order_of(t) end
    if not order.place[key] then error("invalid key to 'next'", 2) end
  end
  for i = (key == nil and 0 or order.place[key]) + 1, order.n do
    local k = order.keys[i]
    local v = rawget(t, k)
    if v ~= nil then return k, v end
  end
  return nil
end

function stable.pairs(t)
  local meta = metatable(t)
  if type(meta) == "table" and rawget(meta, "__pairs") then
    local a, b, c = rawget(meta, "__pairs")(t)
    return a, b, c
  end
  if type(t) ~= "table" then error("bad argument #1 to 'pairs' (table expected, got " .. type(t) .. ")", 2) end
  local keys, n = keys_of(t)
  local i = 0
  return function()
    while i < n do
      i = i + 1
      local k = keys[i]
      local v = rawget(t, k)
      if v ~= nil then return k, v end
    end
    return nil
  end, t, nil
end

stable.text_of, stable.merge_sort = text_of, merge_sort
return stable
