import os
import sys
import time

import pylibmc

cache = pylibmc.Client(
    os.environ["MEMCACHED_SERVERS"].split(","),
    behaviors={
        "ketama_weighted": True,  # Consistent hashing, the same as that of PHP below.
        "connect_timeout": 500,  # Milliseconds,
        "receive_timeout": 500_000,  # but microseconds here
        "send_timeout": 500_000,  # and here.
        "retry_timeout": 1,  # A server that is down is tried once a second.
    },
)


def get(key):
    try:
        return cache.get(key)
    except pylibmc.Error:  # What fails is a miss.
        return None


def put(key, value):
    try:
        cache.set(key, value, time=3600)
    except pylibmc.Error:
        pass


for _ in range(60):
    found = 0
    for i in range(100):
        key, value = f"pylibmc-{i}", f"value-{i}"
        if get(key) == value:
            found += 1
        else:
            put(key, value)
    print(found, "of 100 keys found", flush=True)
    time.sleep(1)
sys.exit(found < 100)
