-- For wrk: ends it at an answer that is not the file's content, which is the script's first argument after "--".
local expected

function init(arguments)
    local file = assert(io.open(arguments[1]))
    expected = file:read("a") or file:read("*a")
    file:close()
end

function response(status, _, body)
    if status ~= 200 or body ~= expected then
        io.write("wrong answer: status " .. status .. ", " .. #body .. " bytes\n")
        wrk.thread:stop()
    end
end
