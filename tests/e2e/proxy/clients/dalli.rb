# Uses the cache through each of its proxies, with keys of its own, until it gets SIGTERM. Because nobody else writes
# these keys, it knows what each answer must be.
require "dalli"

PROXIES = ENV.fetch("PROXIES").split(",").map do |address|
  Dalli::Client.new([address], protocol: :meta, compress: false, socket_timeout: 5)
end
RAW = { raw: true }.freeze # otherwise append and incr do not work
OPERATIONS = %i[set add set replace set cas incr append incr prepend touch gat get get_multi get delete].freeze

# Returns what the cache has for the key by its answer, what it must have, and what it must have from now on. Of
# requests whose answer is no value, it returns whether the cache has the key.
def use(operation, cache, key, want, fresh)
  has = !want.nil?
  case operation
  when :set then [!!cache.set(key, fresh, nil, RAW), true, fresh]
  when :add then [!cache.add(key, fresh, nil, RAW), has, want || fresh]
  when :replace then [!!cache.replace(key, fresh, nil, RAW), has, want && fresh]
  when :cas then [!!cache.cas(key, nil, RAW) { fresh }, has, want && fresh]
  when :append then [cache.append(key, "x"), has, want && (want + "x")]
  when :prepend then [cache.prepend(key, "x"), has, want && ("x" + want)]
  when :touch then [!!cache.touch(key, 3600), has, want]
  when :delete then [cache.delete(key), has, nil]
  when :gat then [cache.gat(key, 3600), want, want]
  when :get_multi then [cache.get_multi(key, "none")[key], want, want]
  when :incr
    return use(:get, cache, key, want, fresh) unless want&.match?(/\A\d+\z/)

    number = want.to_i + 1
    [cache.incr(key, 1), number, number.to_s]
  else [cache.get(key), want, want]
  end
end

stopped = false
trap("TERM") { stopped = true }
keys = Array.new(Integer(ENV.fetch("KEYS"))) { |i| "#{ENV.fetch('NAME')}-#{i}" }
values, operations, count = {}, 0, Hash.new(0)
until stopped
  position = rand(keys.size)
  key, operation, found, want, problem = keys[position], OPERATIONS.sample
  fresh = [operations.to_s, "text-#{operations}"].sample
  operations += 1
  begin
    found, want, values[key] = use(operation, PROXIES.sample, key, values[key], fresh)
    problem = found ? :old : :lost if found != want
  rescue Dalli::DalliError => e
    problem, found = :errors, e.message
  end
  if problem # what the cache has for the key is not known from now on
    count[problem] += 1
    warn "#{problem}: #{operation} #{key}: got #{found.inspect}, want #{want.inspect}"
    keys[position] = "#{key}x"
  end
end
puts "#{operations} operations, #{count[:lost]} lost, #{count[:old]} old, #{count[:errors]} errors"
