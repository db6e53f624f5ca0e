require "dalli"

cache = Dalli::Client.new(
  ENV.fetch("MEMCACHED_SERVERS").split(","),
  protocol: :meta,      # The default before Dalli 5 is one that a proxy does not speak.
  socket_timeout: 0.5,
  failover: false,      # A server that is down keeps its keys,
  down_retry_delay: 1,  # and is tried once a second.
  expires_in: 3600
)

# What fails is a miss.
def miss
  yield
rescue Dalli::DalliError
  nil
end

found = 0
60.times do
  found = 0
  100.times do |i|
    key, value = "dalli-#{i}", "value-#{i}"
    if miss { cache.get(key) } == value
      found += 1
    else
      miss { cache.set(key, value) }
    end
  end
  puts "#{found} of 100 keys found"
  $stdout.flush
  sleep 1
end
exit found == 100
