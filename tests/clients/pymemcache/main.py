import os
import sys
import time

from pymemcache.client.hash import HashClient

cache = HashClient(
    os.environ["MEMCACHED_SERVERS"].split(","),
    connect_timeout=0.5,
    timeout=0.5,
    ignore_exc=True,  # What fails is a miss.
    retry_timeout=1,  # A server that is down is tried once a second,
    retry_attempts=sys.maxsize,  # and keeps its keys.
)

for _ in range(60):
    found = 0
    for i in range(100):
        key, value = f"pymemcache-{i}", f"value-{i}".encode()
        if cache.get(key) == value:
            found += 1
        else:
            cache.set(key, value, expire=3600)
    print(found, "of 100 keys found", flush=True)
    time.sleep(1)
sys.exit(found < 100)
