-- Text and tables in Lua: words counted, sorted, joined and split. No random, no clock.
local rounds, counts, total = tonumber(arg[1]), {}, 0
for turn = 0, rounds - 1 do
  local words, unique = {}, {}
  for i = 0, 3999 do words[#words + 1] = "word" .. (i * 7919 + turn) % 1009 end
  for _, word in ipairs(words) do
    if not counts[word] then unique[#unique + 1] = word end
    counts[word] = (counts[word] or 0) + 1
  end
  table.sort(unique)
  for i = 1, 300 do
    local pair = {key = words[i], value = words[i + 300], text = (words[i] .. words[i + 300]):rep(12)}
    total = total + #pair.text
  end
  for part in table.concat(words, " "):gmatch("[^1]+") do total = total + #part end
end
local size = 0
for _ in pairs(counts) do size = size + 1 end
print(size, total)
