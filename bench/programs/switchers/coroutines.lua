-- Coroutines that allocate, fail, and are abandoned. Usage: coroutines.lua SECONDS
local function work(depth, seed)
    if depth > 0 then return 0 + work(depth - 1, seed) end
    local parts = {}
    for i = 1, 10 do parts[i] = string.rep("x", seed + i) end
    return #table.concat(parts)
end

local function coroutine_of(seed)
    return coroutine.create(function()
        for turn = 1, 8 do
            local fine = pcall(function()
                coroutine.yield(work(seed % 20, seed + turn))
                if turn % 3 == 0 then error("three") end
            end)
            assert(fine == (turn % 3 ~= 0))
        end
        return "over"
    end)
end

local finish, rounds = os.time() + tonumber(arg[1]), 0
while os.time() < finish do
    local some = {}
    for seed = 1, 40 do some[seed] = coroutine_of(seed) end
    for turn = 1, rounds % 2 == 0 and 9 or 5 do
        for seed, one in ipairs(some) do
            local fine, got = coroutine.resume(one)
            local wanted = turn == 9 and "over" or 10 * (seed + turn) + 55
            assert(fine and got == wanted, "wrong")
        end
    end
    rounds = rounds + 1
end
print("right: " .. rounds)
