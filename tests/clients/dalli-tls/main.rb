require "dalli"
require "openssl"

context = OpenSSL::SSL::SSLContext.new
context.set_params(ca_file: ENV.fetch("MEMCACHED_CA")) # With the verification of peer and name.

cache = Dalli::Client.new(ENV.fetch("MEMCACHED_SERVERS").split(","), protocol: :meta, ssl_context: context)

100.times do |i|
  key, value = "dalli-#{i}", "value-#{i}"
  cache.set(key, value, 3600)
  abort "#{key} is not found" unless cache.get(key) == value
end
