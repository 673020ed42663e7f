-- Keeps tables, strings and functions, and prints how many bytes the collector has counted.
local kept = {}
for i = 1, 40000 do
  kept[i] = { name = "name " .. i, value = function() return i end, [1] = i }
  local dropped = { i, { i } }
end
collectgarbage()
io.stdout:write(string.format("%d\n", collectgarbage("count") * 1024))
io.stdout:flush()
os.exit(0, false)
