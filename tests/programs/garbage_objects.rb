# Makes 10,000 small objects and drops them. Prints the process's number, and is at work until its input ends.
def make_garbage
  at = 0
  while at < 10_000
    Object.new
    at += 1
  end
end

def work
  100.times { |i| 'w' * 500 + i.to_s }
end

'begins' * 100_000
work
make_garbage
puts Process.pid
STDOUT.flush
work until IO.select([STDIN], nil, nil, 0.001)
