# Makes known numbers of small objects in methods of known names, and prints the truth as JSON. Each fits into a slot of Ruby's heap,
# so malloc has none of them. Compaction moves many of them: some are dropped after that, others are kept.

require "objspace"

class Point
  def initialize(x, y)
    @x = x
    @y = y
  end
end
Pair = Struct.new(:left, :right)

def dropped_arrays(at)
  [at, at + 1]
end

def dropped_after_compaction(at)
  Pair.new(at, at)
end

def kept_points(at)
  Point.new(at, at)
end

def kept_of_a_thread(at)
  [at]
end

def kept_of_a_fiber(at)
  Object.new
end

TRUTH = {}

def site(name, type, count, keeps)
  kept = Array.new(keeps ? count : 1)
  count.times { |at| kept[keeps ? at : 0] = send(name, at) }
  TRUTH[name] = { type: type, bytes: count * ObjectSpace.memsize_of(kept[0]), live_bytes: count * ObjectSpace.memsize_of(kept[0]) }
  TRUTH[name][:live_bytes] = 0 unless keeps
  kept
end

# Leaves holes in every page, so that the next compaction moves what is left.
def thin_out(name, kept)
  kept.each_index { |at| kept[at] = nil if at.even? }
  TRUTH[name][:live_bytes] /= 2
end

def main(count)
  kept = {
    kept_points: site(:kept_points, "Point", count, true),
    dropped_after_compaction: site(:dropped_after_compaction, "Pair", count, true),
    kept_of_a_thread: Thread.new { site(:kept_of_a_thread, "Array", count, true) }.value,
    kept_of_a_fiber: Fiber.new { site(:kept_of_a_fiber, "Object", count, true) }.resume
  }
  kept.each { |name, objects| thin_out(name, objects) }
  GC.start
  GC.compact
  kept.delete(:dropped_after_compaction)
  TRUTH[:dropped_after_compaction][:live_bytes] = 0
  # These take the places that moved objects have left.
  site(:dropped_arrays, "Array", count, false)
  # The stack may still refer to some. Other calls overwrite them.
  clear = ->(depth) { depth == 0 ? nil : clear.(depth - 1) }
  clear.(50)
  3.times { GC.start }
  kept
end

KEPT = main(ARGV[0].to_i)
2.times { GC.start }
sites = TRUTH.map do |name, truth|
  "\"#{name}\": {\"type\": \"#{truth[:type]}\", \"bytes\": #{truth[:bytes]}, \"live_bytes\": #{truth[:live_bytes]}}"
end
puts "{#{sites.join(", ")}}"
STDOUT.flush
# What is kept is alive at the end.
exit!(0)
