# Objects in slots of Ruby's heap: two churn sites, a bounded cache and a leak, whose bytes are known. The protocol is in
# bench/matrix/version.py.
#
# Every object fits into its slot, so malloc serves none of them.

require "json"
require "objspace"

ROUNDS = 300_000
CACHED = 6_000
$stdout.sync = true

class Session
  def initialize(number)
    @number = number
    @seen = false
  end
end

Page = Struct.new(:path, :age, :size)

def churn_small
  Object.new
end

# Ruby 3.1 with YJIT names the line of the next instruction here.
def churn_large
  made = [1, 2, 3]; made
end

def fill_cache
  Page.new(nil, 1, 2)
end

def leak_session(number)
  Session.new(number)
end

def site(name, type, example, count, live)
  each = ObjectSpace.memsize_of(example)
  { bytes: each * count, live_bytes: each * live, type: type, line: method(name).source_location[1] + 1 }
end

# Bytes of all slots that are in use.
def used_bytes
  return GC.stat(:heap_live_slots) * GC::INTERNAL_CONSTANTS[:RVALUE_SIZE] if RUBY_VERSION < "3.2"

  GC.stat_heap.values.sum { |heap| heap[:slot_size] * (heap[:total_allocated_objects] - heap[:total_freed_objects]) }
end

def main
  if ARGV.include?("wait")
    puts "ready"
    STDIN.gets
  end
  cache = Array.new(CACHED)
  leaked = Array.new(ROUNDS)
  ROUNDS.times do |i|
    churn_small
    churn_large if i % 5 == 0
    cache[i % CACHED] = fill_cache
    leaked[i] = leak_session(i)
    GC.start if i % 30_000 == 0
    GC.compact if i == 150_000
    # It takes some seconds to tell a leak from a cache that fills.
    sleep 0.003 if i % 300 == 0
  end
  # The stack may still refer to the last objects. Other calls overwrite them.
  clear = ->(depth) { depth == 0 ? nil : clear.(depth - 1) }
  clear.(50)
  2.times { GC.start }
  own = used_bytes
  sites = {
    churn_small: site(:churn_small, "Object", Object.new, ROUNDS, 0),
    churn_large: site(:churn_large, "Array", [1, 2, 3], ROUNDS / 5, 0),
    fill_cache: site(:fill_cache, "Page", cache[0], ROUNDS, CACHED),
    leak_session: site(:leak_session, "Session", leaked[0], ROUNDS, ROUNDS)
  }
  truth = { sites: sites, leak: "leak_session", cache: "fill_cache" }
  truth[:own_live_bytes] = own if ENV["KNOWN_TRUTH_OWN"]
  puts JSON.generate(truth)
  # What is kept is alive at the end.
  exit!(7)
end

main
