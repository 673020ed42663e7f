# Text and collections in Ruby: words counted, sorted, joined and split. No random, no clock.
rounds = Integer(ARGV[0])
counts = Hash.new(0)
total = 0
rounds.times do |turn|
  words = Array.new(4000) { |i| "word#{(i * 7919 + turn) % 1009}" }
  words.each { |word| counts[word] += 1 }
  pairs = words.first(300).zip(words[300, 300]).map { |a, b| { key: a, value: b, text: (a + b) * 12 } }
  total += pairs.sum { |pair| pair[:text].size } + words.uniq.sort.size + words.join(" ").split("1").size
end
puts "#{counts.size} #{total}"
