# Two churn sites, a bounded cache and a leak, whose bytes are known. The protocol is in bench/matrix/version.py.
#
# No string fits into its object, of which malloc and therefore the profile see nothing: objects have up to 1024 bytes in Ruby 4.1, and
# 640 before. A string of n bytes asks malloc for n + 1.

require "json"

ROUNDS = 50_000
CACHED = 1_000
$stdout.sync = true

def churn_small
  "a" * 1599
end

def churn_large
  "b" * 4999
end

def fill_cache
  "c" * 1799
end

def leak_session
  "d" * 1999
end

def site(name, each, count, live)
  { bytes: each * count, live_bytes: each * live, line: method(name).source_location[1] + 1 }
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
    churn_large if i % 20 == 0
    cache[i % CACHED] = fill_cache
    leaked[i] = leak_session
    GC.start if i % 5_000 == 0
    # It takes some seconds to tell a leak from a cache that fills.
    sleep 0.003 if i % 50 == 0
  end
  # The stack may still refer to the last strings. Other calls overwrite them.
  clear = ->(depth) { depth == 0 ? nil : clear.(depth - 1) }
  clear.(50)
  2.times { GC.start }
  sites = {
    churn_small: site(:churn_small, 1600, ROUNDS, 0),
    churn_large: site(:churn_large, 5000, ROUNDS / 20, 0),
    fill_cache: site(:fill_cache, 1800, ROUNDS, CACHED),
    leak_session: site(:leak_session, 2000, ROUNDS, ROUNDS)
  }
  puts JSON.generate({ sites: sites, leak: "leak_session", cache: "fill_cache" })
  # What is kept is alive at the end.
  exit!(7)
end

main
