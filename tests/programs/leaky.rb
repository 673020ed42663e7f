# A server in miniature: a table from the start, requests whose data is dropped, and a session that is kept for each. No string
# fits into its object.

SESSIONS = []

def build_table
  Array.new(4_000) { "t" * 1_999 }
end

def open_session
  SESSIONS << "s" * 1_099
end

def serve_request
  "r" * 1_199
end

table = build_table
ARGV[0].to_i.times do
  serve_request
  open_session
end
puts table.size + SESSIONS.size
