# Two churn sites, a bounded cache and a leak, whose bytes are known. The protocol is in bench/matrix/version.py.
#
# libgc adds a byte to small blocks, and rounds up to 16.

ROUNDS = 100_000
CACHED =   2_000

@[NoInline]
def churn_small
  Bytes.new(95)
end

@[NoInline]
def churn_large
  Bytes.new(5008)
end

@[NoInline]
def fill_cache
  Bytes.new(895)
end

@[NoInline]
def leak_session
  Bytes.new(991)
end

def site(name, line, each, count, live)
  %("#{name}": {"bytes": #{each * count}, "live_bytes": #{each * live}, "line": #{line}})
end

unless ARGV.empty?
  puts "ready"
  STDOUT.flush
  gets
end
cache = Array(Bytes).new(CACHED) { Bytes.empty }
leaked = Array(Bytes).new(ROUNDS)
sink = Bytes.empty
ROUNDS.times do |i|
  10.times { sink = churn_small }
  sink = churn_large if i % 20 == 0
  cache[i % CACHED] = fill_cache
  leaked << leak_session
  # It takes some seconds to tell a leak from a cache that fills.
  sleep Time::Span.new(nanoseconds: 3_000_000) if i % 100 == 0
end
sink = Bytes.empty
GC.collect
sites = [
  site("churn_small", 10, 96, 10_i64 * ROUNDS, 0),
  site("churn_large", 15, 5008, ROUNDS // 20, 0),
  site("fill_cache", 20, 896, ROUNDS, CACHED),
  site("leak_session", 25, 992, ROUNDS, ROUNDS),
]
puts %({"sites": {#{sites.join(", ")}}, "leak": "leak_session", "cache": "fill_cache"})
STDOUT.flush
# What is kept is alive at the end.
exit 7 if cache.size + leaked.size > 0
