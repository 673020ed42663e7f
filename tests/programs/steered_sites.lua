-- Three functions that allocate the same, with a line on standard input before each of the last two. Prints its process
-- number before it reads.
--
-- In Lua 5.4 a string of 150 bytes is a block of 175.

local TEXT = string.rep("a", 149)

function first()
  return TEXT .. "a"
end

function second()
  return TEXT .. "b"
end

function third()
  return TEXT .. "c"
end

-- A function's name is the one that it is called by.
local CALL = {
  function() local s = first() return s end,
  function() local s = second() return s end,
  function() local s = third() return s end,
}

local function wait()
  local status = io.open("/proc/self/stat")
  print(status:read("n"))
  status:close()
  io.stdout:flush()
  io.read()
end

for number, call in ipairs(CALL) do
  if number > 1 then wait() end
  for _ = 1, tonumber(arg[1]) do
    call()
  end
end
