# A server in miniature: a table from the start, requests whose data is dropped, and a session that is kept for each. Every object
# fits into a slot of Ruby's heap.

class Session
  def initialize(number)
    @number = number
  end
end
SESSIONS = {}

def build_table
  table = []
  table << Object.new while table.size < 20_000
  table
end

def open_session(number)
  SESSIONS[number] = Session.new(number)
end

def serve_request
  [1, 2, 3]
end

table = build_table
ARGV[0].to_i.times do |number|
  serve_request
  open_session(number)
end
puts table.size + SESSIONS.size
