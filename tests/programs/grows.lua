-- Blocks that grow: arrays of tables, buffers of C functions, also in a coroutine. With the argument `deep` stacks grow as well.

function fill(n)
  local t = {}
  for i = 1, n do t[i] = i end
  return #t
end

function insert(n)
  local t = {}
  for i = 1, n do table.insert(t, i) end
  return #t
end

function substitute(n)
  local s = string.rep("x", n):gsub("x", "yy")
  return #s
end

function descend(n)
  if n == 0 then return 0 end
  return 1 + descend(n - 1)
end

local function in_coroutine()
  for _ = 1, 3 do
    local filled = fill(5000)
    if arg[1] == "deep" then filled = filled + descend(500) end
    coroutine.yield(filled)
  end
end

local sum = 0
for _ = 1, 20 do
  local filled, inserted, substituted = fill(20000), insert(20000), substitute(100000)
  sum = sum + filled + inserted + substituted
  if arg[1] == "deep" then sum = sum + descend(3000) end
  local resume = coroutine.wrap(in_coroutine)
  for _ = 1, 3 do sum = sum + resume() end
end
print(sum)
