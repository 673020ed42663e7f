-- Allocates blocks of every kind in functions of known names, the same in every version of Lua, and prints the truth as JSON.
--
-- A long string of n bytes is a block of n + 25, and from Lua 5.5 on of n + 33. Equal strings are one block in Lua 5.1: these are not.

local TIMES, BYTES = 20000, 200
local body, suffix = string.rep("a", BYTES - 8), {}
for i = 1, TIMES do
  suffix[i] = string.format("%08d", i)
end

function make_string(i)
  return suffix[i] .. body
end

function make_table()
  return {}
end

function make_closure(i)
  return function() return i end
end

function make_thread()
  return coroutine.create(make_table)
end

function make_prototype()
  return (loadstring or load)("return function() end")
end

for i = 1, TIMES do
  local string = make_string(i)
  local table = make_table()
  local closure = make_closure(i)
  local thread = make_thread()
  local prototype = make_prototype()
end
local bytes = TIMES * (BYTES + (_VERSION == "Lua 5.5" and 33 or 25))
print(string.format('{"make_string": {"bytes": %d, "allocations": %d, "live_bytes": 0, "live_blocks": 0}}', bytes, TIMES))
