# Objects, fibers, threads, garbage collection, big integers. One line per turn.
require 'digest'
$stdout.sync = true
turns = (ARGV[0] || 45).to_i
queue = Queue.new
answers = Queue.new
worker = Thread.new { while (n = queue.pop) do answers << n * n end }
fiber = Fiber.new { n = 1; loop { Fiber.yield n; n = n * 3 + 1 } }
table = {}
turns.times do |turn|
  30000.times { |i| table[(turn * 7919 + i * 104729) % 50021] = (turn ^ i).to_s }
  queue << turn
  number = fiber.resume
  GC.start if turn % 10 == 0
  text = table.sort.each_slice(13).map { |s| s[0].join(':') }.join(',')
  puts "#{turn} #{table.size} #{answers.pop} #{number % 1000003} #{Digest::SHA256.hexdigest(text)}"
end
queue << nil
worker.join
puts 'PASS'
