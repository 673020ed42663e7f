# Allocates known numbers of bytes in methods of known names, and prints the truth as JSON.
#
# A string of n bytes that does not fit into its object asks malloc for n + 1. Objects have room for 23 bytes before Ruby 3.2,
# and for several hundred from then on.

MORE = RUBY_VERSION < "3.2" ? 0 : 1000
TRUTH = {}
KEPT = []

def small_and_freed
  "a" * (MORE + 149)
end

def small_and_kept
  "b" * (MORE + 59)
end

def large_and_freed
  "c" * 4999
end

def large_and_kept
  "d" * 2999
end

def of_a_thread
  "e" * (MORE + 199)
end

def site(name, count, size, keep)
  kept = keep ? Array.new(count) : nil
  count.times do |at|
    string = send(name)
    kept[at] = string if keep
  end
  KEPT << kept
  TRUTH[name] = [count * size, count, keep ? count * size : 0, keep ? count : 0]
end

# Ruby manages its pages of slots with memory of malloc, 2 KiB for each in 4.1, which would be charged to whoever needs another page.
# It keeps a page that is not empty.
def make_pages
  strings = Array.new(30_000) { "p" * (MORE + 99) }
  KEPT << strings.each_slice(400).map(&:first)
end

def main(times)
  make_pages
  site(:small_and_freed, 50_000 * times, MORE + 150, false)
  site(:small_and_kept, 20_000 * times, MORE + 60, true)
  site(:large_and_freed, 4_000 * times, 5000, false)
  site(:large_and_kept, 1_000 * times, 3000, true)
  Thread.new { site(:of_a_thread, 30_000 * times, MORE + 200, false) }.join
  # What was dropped is swept, but for what a register still holds.
  2.times { GC.start }
  sites = TRUTH.map do |name, (bytes, allocations, live_bytes, live_blocks)|
    figures = { bytes: bytes, allocations: allocations, live_bytes: live_bytes, live_blocks: live_blocks }
    "\"#{name}\": {" + figures.map { |key, figure| "\"#{key}\": #{figure}" }.join(", ") + "}"
  end
  puts "{#{sites.join(", ")}}"
  STDOUT.flush
  # What is kept is alive at the end.
  exit!(0)
end

main(ARGV[0].to_i)
