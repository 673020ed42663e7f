-- Four functions allocate and drop, one fills a bounded cache in a coroutine, one leaks, and their bytes are known. The protocol is in
-- bench/matrix/version.py.
--
-- A string of n bytes that is longer than 40 is a block of n + 25, in Lua 5.5 of n + 33, if n + 1 is divisible by 4. Lua 5.1 and
-- LuaJIT have one block for equal strings: all are made different by a prefix that exists before. Their hashes leave most bytes of a
-- long string out, so that there are several bodies. Lua 5.5 does not count what string.rep makes, which is copied here. LuaJIT's
-- header depends on the size of its pointers, and is measured. What it compiles is charged to the function in which compiled code
-- begins, so that it has no sites unless its compiler is off.

local ROUNDS, CACHED, SMALL, LARGE, OBJECTS = 4000, 200, 40, 2, 20
-- It takes a second or two to tell a leak from a cache that fills.
local SECONDS = 2
local BODIES = 50
local function bodies(bytes)
  local all = {}
  for i = 0, BODIES - 1 do all[i] = string.rep(string.char(65 + i), bytes - 1) .. "." end
  return all
end

local A, B, C, D = bodies(311), bodies(17991), bodies(3991), bodies(4991)
local prefix = {}
for i = 1, SMALL * ROUNDS do
  prefix[i] = string.format("%08d", i)
end

function churn_small(i)
  return prefix[i] .. A[i % BODIES]
end

function churn_large(i)
  return prefix[i] .. B[i % BODIES]
end

function churn_table()
  return {}
end

function churn_closure(i)
  return function() return i end
end

function fill_cache(i)
  return prefix[i] .. C[i % BODIES]
end

function open_session(i)
  return prefix[i] .. D[i % BODIES]
end

-- By Lua's own count.
local function bytes_of(make)
  local made = {}
  for i = 1, 1000 do made[i] = false end
  collectgarbage()
  collectgarbage("stop")
  local before = collectgarbage("count")
  for i = 1, 1000 do made[i] = make(i) end
  local bytes = (collectgarbage("count") - before) * 1024 / 1000
  collectgarbage("restart")
  return math.floor(bytes + 0.5)
end

local line = {}
do
  local number = 0
  for text in io.lines(arg[0]) do
    number = number + 1
    local name = text:match("^function ([%w_]+)")
    if name then line[name] = number + 1 end
  end
end

if arg[1] == "wait" then
  print("ready")
  io.stdout:flush()
  io.read()
end

local cache, sessions = {}, {}

-- A function's name is the one that it is called by.
local function serve()
  local step = coroutine.wrap(function()
    while true do
      for i = 1, ROUNDS do
        local entry = fill_cache(i)
        cache[i % CACHED + 1] = entry
        coroutine.yield()
      end
    end
  end)
  local begin = os.clock()
  for i = 1, ROUNDS do
    for k = 1, SMALL do local small = churn_small((i - 1) * SMALL + k) end
    for k = 1, LARGE do local large = churn_large((i - 1) * LARGE + k) end
    for k = 1, OBJECTS do
      local table = churn_table()
      local closure = churn_closure(k)
    end
    step()
    local session = open_session(i)
    sessions[i] = session
    while os.clock() - begin < i * SECONDS / ROUNDS do end
  end
end

serve()
-- Twice: the first one finds objects that have finalizers.
collectgarbage()
collectgarbage()

if os.getenv("KNOWN_TRUTH_OWN") then
  print(string.format('{"own_live_bytes": %d}', collectgarbage("count") * 1024))
elseif jit and jit.status() then
  print('{"sites": {}, "leak": null, "cache": null}')
else
  local header = jit and bytes_of(churn_small) - 320 or _VERSION == "Lua 5.5" and 32 or 24
  local typed = _VERSION ~= "Lua 5.1"
  -- Where these make a table, and Lua 5.1 a function, they do not record.
  if _VERSION ~= "Lua 5.2" and _VERSION ~= "Lua 5.3" and not jit then line.churn_table = nil end
  if _VERSION == "Lua 5.1" and not jit then line.churn_closure = nil end
  local truth = {}
  local function site(name, each, count, live, type)
    truth[#truth + 1] = string.format('"%s": {"bytes": %d, "live_bytes": %d%s%s}', name, each * count, each * live,
                                      line[name] and string.format(', "line": %d', line[name]) or "",
                                      typed and type and string.format(', "type": "%s"', type) or "")
  end
  site("churn_small", header + 320, SMALL * ROUNDS, 0, "string")
  site("churn_large", header + 18000, LARGE * ROUNDS, 0, "string")
  site("churn_table", bytes_of(churn_table), OBJECTS * ROUNDS, 0, "table")
  -- A function, and a block of another type for what it captures.
  site("churn_closure", bytes_of(churn_closure), OBJECTS * ROUNDS, 0, nil)
  site("fill_cache", header + 4000, ROUNDS, CACHED, "string")
  site("open_session", header + 5000, ROUNDS, ROUNDS, "string")
  print('{"sites": {' .. table.concat(truth, ", ") .. '}, "leak": "open_session", "cache": "fill_cache"}')
end
io.stdout:flush()
-- What is kept is alive at the end.
os.exit(7)
