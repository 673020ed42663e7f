# Makes 1,000 strings of 3,000 bytes and drops them. Prints the process's number, and is at work until its input ends.
def make_garbage
  1000.times { |i| 'g' * 2999 + i.to_s }
end

def work
  100.times { |i| 'w' * 500 + i.to_s }
end

make_garbage
puts Process.pid
STDOUT.flush
work until IO.select([STDIN], nil, nil, 0.001)
