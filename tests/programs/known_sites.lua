-- Allocates known numbers of bytes in functions of known names, and prints the truth as JSON.
--
-- In Lua 5.4 a string of n bytes that is longer than 40 is a block of n + 25.

local TRUTH, KEPT = {}, {}
local OVERHEAD = 25
-- Not string.rep, which needs a buffer besides.
local A, B, C = string.rep("a", 149), string.rep("b", 59), string.rep("c", 4999)
local D, E, F = string.rep("d", 2999), string.rep("e", 199), string.rep("f", 299)

function small_and_freed()
  return A .. "a"
end

function small_and_kept()
  return B .. "b"
end

function large_and_freed()
  return C .. "c"
end

function large_and_kept()
  return D .. "d"
end

function of_a_coroutine()
  return E .. "e"
end

function of_a_wrapped_one()
  return F .. "f"
end

-- A function's name is the one that it is called by.
local CALL = {
  small_and_freed = function() local s = small_and_freed() return s end,
  small_and_kept = function() local s = small_and_kept() return s end,
  large_and_freed = function() local s = large_and_freed() return s end,
  large_and_kept = function() local s = large_and_kept() return s end,
  of_a_coroutine = function() local s = of_a_coroutine() return s end,
  of_a_wrapped_one = function() local s = of_a_wrapped_one() return s end,
}

local function site(name, count, size, keep)
  local call, kept = CALL[name], {}
  for i = 1, count do
    local string = call()
    if keep then kept[i] = string end
  end
  KEPT[#KEPT + 1] = kept
  local bytes = count * (size + OVERHEAD)
  TRUTH[#TRUTH + 1] = string.format(
    '"%s": {"bytes": %d, "allocations": %d, "live_bytes": %d, "live_blocks": %d}',
    name, bytes, count, keep and bytes or 0, keep and count or 0)
end

function main(times)
  site("small_and_freed", 50000 * times, 150, false)
  site("small_and_kept", 20000 * times, 60, true)
  site("large_and_freed", 4000 * times, 5000, false)
  site("large_and_kept", 1000 * times, 3000, true)
  local outer = coroutine.create(function()
    site("of_a_coroutine", 30000 * times, 200, false)
    coroutine.wrap(function() site("of_a_wrapped_one", 20000 * times, 300, false) end)()
  end)
  assert(coroutine.resume(outer))
  collectgarbage()
  collectgarbage()
  print("{" .. table.concat(TRUTH, ", ") .. "}")
  -- What is kept is alive at the end.
  os.exit(0, false)
end

main(tonumber(arg[1]))
