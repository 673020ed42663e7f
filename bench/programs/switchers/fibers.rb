# Fibers and enumerators that allocate, are resumed in turn, and abandoned. Usage: fibers.rb SECONDS
def work(depth, seed)
  return work(depth - 1, seed) if depth > 0
  (0...10).map { |i| "x" * (seed + i) }.sum(&:size)
end

def fiber(seed)
  Fiber.new do
    8.times { |turn| Fiber.yield work(seed % 20, seed + turn) }
    :over
  end
end

finish = Process.clock_gettime(Process::CLOCK_MONOTONIC) + ARGV[0].to_i
rounds = 0
while Process.clock_gettime(Process::CLOCK_MONOTONIC) < finish
  fibers = (0...40).map { |seed| fiber(seed) }
  (rounds.even? ? 9 : 5).times do |turn|
    fibers.each_with_index do |one, seed|
      wanted = turn == 8 ? :over : (0...10).sum { |i| seed + turn + i }
      abort "wrong" if one.resume != wanted
    end
  end
  lazy = Enumerator.new { |out| 1.upto(Float::INFINITY) { |i| out << "y" * i } }
  abort "wrong" if (1..20).sum { lazy.next.size } != 210
  rounds += 1
end
puts "right: #{rounds}"
