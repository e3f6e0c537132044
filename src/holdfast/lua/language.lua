-- The names of the language: declarations, run-time globals and helpers, on top of the sandbox.
--
-- What touches the run is done by Python (`ops.py`), through `bridge`. Kept here is what follows from the code alone
-- and is the same on every replay: which tools were called, the iterations, whether a stop was requested.
local S = ...

local G, bridge, protect, text_of, pairs, pcall = S.globals, S.bridge, S.protect, S.text_of, S.pairs, S.pcall
local here = S.here
local error, ipairs, rawget, type, select, next = error, ipairs, rawget, type, select, next
local pack, unpack, concat = table.pack, table.unpack, table.concat

local function fail(message)
  local line, file = here()
  error((line and file .. ":" .. line .. ": " or "") .. message, 0)
end

local function check_number(value, what, least)
  if type(value) ~= "number" or value < least then fail(what .. " must be a number of at least " .. least) end
end

-- ── declarations ──────────────────────────────────────────────────────────────────────────────
local declarations, by_handle = {}, {}
local is_loaded = false

S.naming[1] = function(name, value)
  local declared = type(value) == "table" and by_handle[value]
  if declared and not declared.name and type(name) == "string" then declared.name = name end
end

local function declare(kind, handle, name, spec)
  if is_loaded then fail(kind .. " must be declared at the top of the file, not while it runs") end
  if spec == nil and type(name) ~= "string" then
    name, spec = nil, name
  end
  if type(spec) ~= "table" then fail(kind .. " takes a table, not " .. type(spec)) end
  local line, file = here()
  if name == nil then name = rawget(spec, "name") end
  if name ~= nil and (type(name) ~= "string" or name == "") then fail(kind .. ": name must be a string") end
  local declared = { kind = kind, name = name, spec = spec, line = line, file = file }
  declarations[#declarations + 1] = declared
  if handle then by_handle[handle] = declared end
  return declared
end

local function name_of(declared)
  if not declared.name then
    fail("this " .. declared.kind .. " (line " .. declared.line .. ") has no name; assign it to a global, or write name=")
  end
  return declared.name
end

-- ── tools ─────────────────────────────────────────────────────────────────────────────────────
local calls = {} -- by the tool's name, a list of {name, args, result}
local note_progress = bridge("note_progress")
local stop = { requested = false, reason = nil, success = true }
local iterations = 0
local tool_call, agent_turn, child_call = bridge("tool_call", 3), bridge("agent_turn", 3), bridge("child_call", 3)

local function remember(name, args)
  local call = { name = name, args = args or {} }
  calls[name] = calls[name] or {}
  calls[name][#calls[name] + 1] = call
  if name == "done" then
    stop.requested = true
    stop.reason = call.args.reason
    stop.success = call.args.success ~= false
  end
  return call
end

local function tool_methods(handle, declared)
  local function invoke(args)
    local name = name_of(declared)
    if args ~= nil and type(args) ~= "table" then fail(name .. " takes a table of arguments, not " .. type(args)) end
    local call = remember(name, args)
    call.result = tool_call(name, args)
    return call.result
  end
  handle.call = invoke
  function handle.called() return calls[declared.name] ~= nil end
  function handle.last_call()
    local made = calls[declared.name]
    return made and made[#made] or nil
  end
  function handle.last_result()
    local last = handle.last_call()
    return last and last.result
  end
  function handle.call_count() return #(calls[declared.name] or {}) end
  function handle.reset() calls[declared.name] = nil end
  return invoke
end

local function make_tool(name, spec)
  local handle = {}
  local declared = declare("Tool", handle, name, spec)
  local invoke = tool_methods(handle, declared)
  return protect(handle, { __call = function(_, args) return invoke(args) end, __name = "tool" })
end

G.Tool = make_tool

-- ── agents ────────────────────────────────────────────────────────────────────────────────────
function G.Agent(name, spec)
  local handle = {}
  local declared = declare("Agent", handle, name, spec)
  return protect(handle, {
    __name = "agent",
    __call = function(self, options)
      if type(options) == "string" then options = { message = options } end
      local agent = name_of(declared)
      local prepare = rawget(declared.spec, "prepare")
      local prepared = prepare and prepare() or nil
      local result, made = agent_turn(agent, options, prepared)
      iterations = iterations + 1
      for _, call in ipairs(made) do remember(call.name, call.args).result = call.result end
      self.output = result.response
      note_progress(iterations, stop.requested, stop.reason, stop.success)
      return result
    end,
  })
end

function G.Toolset(name, spec)
  if type(name) == "table" then name, spec = nil, name end
  if type(spec) ~= "table" or rawget(spec, "use") ~= nil or rawget(spec, "tools") == nil then
    fail("Toolset takes tools={…}, a list of tools; others (use=, MCP servers, plugins) are not supported")
  end
  for k in pairs(spec) do
    if k ~= "tools" and k ~= "name" and k ~= "description" then
      fail("Toolset has no option " .. text_of(k) .. "; it takes tools, name, description")
    end
  end
  return rawget(spec, "tools")
end

-- ── procedures ────────────────────────────────────────────────────────────────────────────────
local procedure_meta = {
  __call = function(_, name, spec)
    local handle = {}
    local declared = declare("Procedure", handle, name, spec)
    return protect(handle, {
      __name = "procedure",
      __call = function(_, args)
        return (child_call(name_of(declared), args))
      end,
    })
  end,
}
G.Procedure = protect({
  run = function(name, args)
    local declared = type(name) == "table" and by_handle[name]
    return (child_call(declared and declared.name or name, args))
  end,
}, procedure_meta)
for _, verb in ipairs({ "spawn", "status", "wait", "cancel", "wait_any", "wait_all", "inject", "is_complete", "all_complete" }) do
  G.Procedure[verb] = function()
    fail("Procedure." .. verb .. " is not supported; call the procedure, or Procedure.run, which waits for its result")
  end
end

-- ── other declarations ────────────────────────────────────────────────────────────────────────
function G.Stages(names, ...)
  if type(names) == "string" then names = { names, ... } end
  declare("Stages", nil, nil, names)
end

function G.Mocks(spec) declare("Mocks", nil, nil, spec) end

local function specification(given)
  declare("Specification", nil, nil, type(given) == "table" and given or { text = given })
end
G.Specification, G.Specifications = specification, specification

local checkpoint_results = {}
local checkpoint_call = bridge("checkpoint", 3)
local function checkpoint(name, fn)
  if fn == nil then name, fn = "checkpoint", name end
  if type(fn) ~= "function" then fail("checkpoint takes a function") end
  local result = checkpoint_call(name, fn)
  checkpoint_results[#checkpoint_results + 1] = { result }
  return result
end
G.checkpoint = checkpoint
G.Step = protect({ checkpoint = checkpoint }, {
  __call = function(_, text, fn)
    if type(text) ~= "string" or type(fn) ~= "function" then fail("Step takes a sentence and a function") end
    declare("Step", nil, nil, { text = text, fn = fn })
  end,
})
G.Checkpoint = {
  next_position = function() return #checkpoint_results + 1 end,
  exists = function(i) return checkpoint_results[i] ~= nil end,
  get = function(i) return checkpoint_results[i] and checkpoint_results[i][1] end,
  clear_all = function()
    fail("Checkpoint.clear_all is not supported: a run's log is never changed; use `holdfast rerun` or `holdfast fork`")
  end,
  clear_after = function()
    fail("Checkpoint.clear_after is not supported: a run's log is never changed; use `holdfast fork`")
  end,
}

G.field = {}
for _, kind in ipairs({ "string", "number", "boolean", "array", "object", "integer" }) do
  G.field[kind] = function(options)
    local made = { type = kind }
    if options ~= nil and type(options) ~= "table" then fail("field." .. kind .. " takes a table, not " .. type(options)) end
    for k, v in pairs(options or {}) do
      if k ~= "required" and k ~= "default" and k ~= "description" and k ~= "enum" and k ~= "items" then
        fail("field." .. kind .. " has no option " .. text_of(k) .. "; it takes required, default, description, enum, items")
      end
      made[k] = v
    end
    made.__field = true
    made.__line = here()
    return made
  end
end

for _, matcher in ipairs({ "contains", "equals", "matches" }) do
  G[matcher] = function(value) return { __matcher = matcher, value = value } end
end

local function text_in(given, what)
  if type(given) == "table" then given = rawget(given, "text") or rawget(given, "content") or rawget(given, 1) end
  if type(given) ~= "string" then fail(what .. " takes a string") end
  return given
end

function G.Prompt(given) return text_in(given, "Prompt") end
function G.template(given) return text_in(given, "template") end
function G.Model(given)
  if type(given) == "string" then given = { name = given } end
  if type(given) ~= "table" then fail("Model takes a name or a table") end
  return given
end
function G.Message(given)
  if type(given) ~= "table" then fail("Message takes a table with role and content") end
  return { role = given.role or "user", content = text_in(given, "Message") }
end
function G.History(given)
  local list = {}
  if given ~= nil and type(given) ~= "table" then fail("History takes a list of messages, not " .. type(given)) end
  for i, message in ipairs(given or {}) do list[i] = G.Message(message) end
  return list
end
for _, role in ipairs({ "system", "user", "assistant" }) do
  G[role] = function(given) return { role = role, content = text_in(given, role) } end
end

-- ── what is not supported is refused, by name and line ────────────────────────────────────────
local function refuse(name, instead)
  local function refused() fail(name .. " is not supported; " .. instead) end
  G[name] = protect({}, { __call = refused, __index = refused, __newindex = refused })
end
for _, name in ipairs({ "Evaluation", "Evaluations" }) do
  refuse(name, "test with Specifications, or evaluate recorded runs from Python")
end
refuse("Hitl", "use Human.approve, Human.input or Human.review")
refuse("Signature", "declare output= in the Agent")
refuse("Module", "declare an Agent, or a Python tool (see docs/lua.md)")
refuse("mcp", "declare a Python tool that calls the server (see docs/lua.md)")
refuse("filters", "use MessageHistory.keep_tail_tokens")
refuse("Task", "declare a Procedure")
refuse("IncludeTasks", "use require")
refuse("Context", "put the text into the agent's message")
for _, name in ipairs({ "io", "load", "loadstring", "loadfile", "dofile", "package", "python", "collectgarbage" }) do
  refuse(name, "a file runs in a sandbox; use File, Json and require")
end

-- ── state ─────────────────────────────────────────────────────────────────────────────────────
local state_get, state_set = bridge("state_get", 3), bridge("state_set", 3)
local state_all = bridge("state_all")
G.state = protect({}, {
  __index = function(_, k) return (state_get(k)) end,
  __newindex = function(_, k, v) state_set(k, v) end,
  __pairs = function() return pairs(state_all()) end,
  __name = "state",
})
G.State = {
  get = function(k, default)
    local value = state_get(k)
    if value == nil then return default end
    return value
  end,
  set = bridge("state_set"), increment = bridge("state_increment"), append = bridge("state_append"),
  all = state_all, clear = bridge("state_clear"),
}

-- ── stages, log, iterations, stop ─────────────────────────────────────────────────────────────
G.Stage = {
  set = bridge("stage_set"), advance = bridge("stage_advance"), current = bridge("stage_current"),
  is = bridge("stage_is"), history = bridge("stage_history"),
}
local log = bridge("log")
G.Log = {}
for _, level in ipairs({ "debug", "info", "warn", "error" }) do
  G.Log[level] = function(message, data) log(level, text_of(message), data) end
end
function G.print(...)
  local parts = pack(...)
  for i = 1, parts.n do parts[i] = text_of(parts[i]) end
  log("info", concat(parts, "\t", 1, parts.n))
end
G.Iterations = {
  current = function() return iterations end,
  exceeded = function(n)
    check_number(n, "Iterations.exceeded: the limit", 0)
    return iterations >= n
  end,
}
G.Stop = {
  requested = function() return stop.requested end,
  reason = function() return stop.reason end,
  success = function() return stop.success end,
  request = function(reason, success)
    stop.requested, stop.reason, stop.success = true, reason, success ~= false
    note_progress(iterations, true, stop.reason, stop.success)
  end,
}

-- ── people, time, files ───────────────────────────────────────────────────────────────────────
G.Human = {}
for _, verb in ipairs({ "approve", "input", "review", "notify", "escalate", "select", "multiple", "inputs" }) do
  local ask = bridge("human_" .. verb, 3)
  G.Human[verb] = function(options)
    if type(options) == "string" then options = { message = options } end
    if type(options) ~= "table" then fail("Human." .. verb .. " takes a table with message=") end
    return (ask(options)) -- not a tail call: errors name the caller's line
  end
end
for _, verb in ipairs({ "upload", "custom" }) do
  G.Human[verb] = function() fail("Human." .. verb .. " is not supported; use Human.input") end
end
G.System = { alert = bridge("system_alert") }

local sleep = bridge("sleep", 2)
G.Sleep = sleep
G.Retry = {
  with_backoff = function(fn, options)
    if type(fn) ~= "function" then fail("Retry.with_backoff takes a function") end
    if options ~= nil and type(options) ~= "table" then fail("Retry.with_backoff takes a table of options, not " .. type(options)) end
    options = options or {}
    for k in pairs(options) do
      if k ~= "max_attempts" and k ~= "initial_delay" and k ~= "max_delay" and k ~= "backoff_factor" then
        fail("Retry.with_backoff has no option " .. text_of(k)
          .. "; it takes max_attempts, initial_delay, max_delay, backoff_factor")
      end
    end
    local attempts, delay = options.max_attempts or 3, options.initial_delay or 1
    local longest, factor = options.max_delay or 60, options.backoff_factor or 2
    check_number(attempts, "Retry.with_backoff: max_attempts", 1)
    attempts = attempts // 1
    check_number(delay, "Retry.with_backoff: initial_delay", 0)
    check_number(longest, "Retry.with_backoff: max_delay", 0)
    check_number(factor, "Retry.with_backoff: backoff_factor", 0)
    for attempt = 1, attempts do
      local got = pack(pcall(fn))
      if got[1] then return unpack(got, 2, got.n) end
      if attempt == attempts then error(got[2], 0) end
      log("warn", "attempt " .. attempt .. " of " .. attempts .. " failed: " .. text_of(got[2]))
      sleep(delay < longest and delay or longest)
      delay = delay * factor
    end
  end,
}
G.File = {
  read = bridge("file_read"), write = bridge("file_write"), exists = bridge("file_exists"), size = bridge("file_size"),
}
G.Json = { encode = bridge("json_encode"), decode = bridge("json_decode") }
G.Host = { call = bridge("host_call") }

local message_op = bridge("messages", 3)
local history = {}
for _, verb in ipairs({
  "append", "inject_system", "clear", "get", "history", "head", "tail", "slice", "keep_tail_tokens", "rewind", "checkpoint",
}) do
  history[verb] = function(...) return (message_op(verb, ...)) end
end
G.MessageHistory, G.Session = history, history

-- ── require ───────────────────────────────────────────────────────────────────────────────────
local loaded, loading = {}, {}
local module_source = bridge("module_source", 3)

local function standard_done()
  local handle = {}
  local declared = declare("Tool", handle, "done", {
    name = "done", description = "Say that the task is done, and why.", risk = "read",
    input = { reason = { type = "string", required = false }, success = { type = "boolean", required = false } },
    function(args) return { reason = args.reason, success = args.success ~= false } end,
  })
  local invoke = tool_methods(handle, declared)
  return protect(handle, { __call = function(_, args) return invoke(args) end, __name = "tool" })
end

function G.require(name)
  if type(name) ~= "string" then fail("require takes the name of a module") end
  if loaded[name] ~= nil then return loaded[name] end
  if name == "tactus.tools.done" or name == "holdfast.tools.done" then
    loaded[name] = standard_done()
    return loaded[name]
  end
  local source, chunk_name = module_source(name)
  if loaded[chunk_name] ~= nil then return loaded[chunk_name] end
  if loading[chunk_name] then fail("require: module " .. name .. " requires itself") end
  local chunk, wrong = S.compile(source, chunk_name)
  if not chunk then error(wrong, 0) end
  loading[chunk_name] = true
  local result = chunk()
  loading[chunk_name] = nil
  if result == nil then result = true end
  if type(result) == "table" then
    for k, v in pairs(result) do S.naming[1](k, v) end
  end
  loaded[name], loaded[chunk_name] = result, result
  return result
end

-- ── for Python ────────────────────────────────────────────────────────────────────────────────
return {
  declarations = declarations,
  declared_by = function(handle) return by_handle[handle] end,
  set_loaded = function() is_loaded = true end,
  set_input = function(value) G.input = value end,
  names = function()
    local found = {}
    for k in next, G do found[#found + 1] = k end
    return found
  end,
  find = function(kind, name)
    for _, declared in ipairs(declarations) do
      if declared.kind == kind and (declared.name or "main") == name then return declared.spec end
    end
  end,
}
