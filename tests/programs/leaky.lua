-- A server in miniature: a table from the start, requests whose data is dropped, and a session that is kept for each.

local sessions, blank = {}, string.rep("x", 90)

function build_table()
  local rows = {}
  for i = 1, 4000 do
    rows[i] = string.rep("t", 900) .. i
  end
  return rows
end

function open_session(i)
  local session = blank .. i
  return session
end

function serve_request(i)
  local answer = string.rep("r", 400) .. i
  return #answer
end

local rows, served = build_table(), 0
for i = 1, tonumber(arg[1]) do
  served = served + serve_request(i)
  sessions[i] = open_session(i)
end
print(#rows + #sessions, served)
io.stdout:flush()
-- What is kept is alive at the end.
os.exit(0, false)
