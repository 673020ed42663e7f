-- Allocates known numbers of bytes in functions of known names, where LuaJIT's stack is not the usual one, and prints the truth as
-- JSON. A function's name is the one that it is called by.
--
-- LuaJIT has one block for equal strings, so that all are made different by a prefix that exists before. What a string has besides
-- its characters is measured.

local COUNT = tonumber(arg[1])
local prefix, truth, kept = {}, {}, {}
for i = 1, 100 do kept[i] = false end
for i = 1, COUNT do prefix[i] = string.format("%08d", i) end
local bodies = {}
for i = 1, 50 do bodies[i] = string.char(64 + i):rep(390) end

-- The table of all strings may grow meanwhile: the least difference is a string's.
local bytes = math.huge
collectgarbage("stop")
for i = 1, 100 do
  local before = collectgarbage("count")
  kept[i] = prefix[i] .. bodies[i % 50 + 1] .. "."
  bytes = math.min(bytes, (collectgarbage("count") - before) * 1024)
end
kept = nil
collectgarbage("restart")

local last = ""
-- Each has its own characters at the end.
function plain(i) last = prefix[i] .. bodies[i % 50 + 1] .. "a" end
function of_a_coroutine(i) last = prefix[i] .. bodies[i % 50 + 1] .. "b" end
function of_a_wrapped_one(i) last = prefix[i] .. bodies[i % 50 + 1] .. "c" end
function protected(i) last = prefix[i] .. bodies[i % 50 + 1] .. "d" end
function of_a_handler(i) last = prefix[i] .. bodies[i % 50 + 1] .. "e" end
function of_a_metamethod(i) last = prefix[i] .. bodies[i % 50 + 1] .. "f" end
function of_a_hook(i) last = prefix[i] .. bodies[i % 50 + 1] .. "g" end
function of_a_callback(i) last = prefix[i] .. bodies[i % 50 + 1] .. "h" end
function of_an_iterator(i) last = prefix[i] .. bodies[i % 50 + 1] .. "i" end

local function site(name, count)
  truth[#truth + 1] = string.format('"%s": {"bytes": %d, "allocations": %d, "live_bytes": 0, "live_blocks": 0}', name,
                                    bytes * (count or COUNT), count or COUNT)
end

function main()
  for i = 1, COUNT do plain(i) end
  site("plain")

  local outer = coroutine.create(function()
    for i = 1, COUNT do
      of_a_coroutine(i)
      if i % 100 == 0 then coroutine.yield() end
    end
    local step = coroutine.wrap(function()
      for i = 1, COUNT do
        of_a_wrapped_one(i)
        if i % 100 == 0 then coroutine.yield() end
      end
      coroutine.yield("end")
    end)
    repeat until step() == "end"
  end)
  repeat assert(coroutine.resume(outer)) until coroutine.status(outer) == "dead"
  site("of_a_coroutine")
  site("of_a_wrapped_one")

  for i = 1, COUNT do pcall(function() protected(i) end) end
  site("protected")
  for i = 1, COUNT do xpcall(error, function() of_a_handler(i) end) end
  site("of_a_handler")
  local object = setmetatable({}, {__index = function(_, i) of_a_metamethod(i) return i end})
  for i = 1, COUNT do last = object[i] end
  site("of_a_metamethod")
  local function iterate(count, i)
    if i < count then of_an_iterator(i + 1) return i + 1 end
  end
  for i in iterate, COUNT, 0 do last = i end
  site("of_an_iterator")

  local hooked = 0
  debug.sethook(function()
    if hooked < COUNT then hooked = hooked + 1 of_a_hook(hooked) end
  end, "", 1)
  for i = 1, COUNT do last = i end
  debug.sethook()
  while hooked < COUNT do hooked = hooked + 1 of_a_hook(hooked) end
  site("of_a_hook")

  local ffi = require("ffi")
  ffi.cdef("void qsort(void *, size_t, size_t, int (*)(const int *, const int *));")
  local called = 0
  local compare = ffi.cast("int (*)(const int *, const int *)", function(a, b)
    if called < COUNT then called = called + 1 of_a_callback(called) end
    return a[0] - b[0]
  end)
  local numbers = ffi.new("int[100]")
  local sort = function() ffi.C.qsort(numbers, 100, 4, compare) end
  jit.off(sort)
  while called < COUNT do
    for i = 0, 99 do numbers[i] = (i * 37) % 100 end
    sort()
  end
  site("of_a_callback")

  last = ""
  collectgarbage()
  collectgarbage()
  print("{" .. table.concat(truth, ", ") .. "}")
  os.exit(0, false)
end

main()
