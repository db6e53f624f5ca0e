# Uses the cache through each of its proxies, with keys of its own, until it gets SIGTERM. Because nobody else writes
# these keys, it knows what each answer must be.
import collections
import os
import random
import signal
import sys

if os.environ["LIBRARY"] == "pylibmc":
    import pylibmc

    def connect(address):
        return pylibmc.Client([address], binary=False, behaviors={"cas": True, "tcp_nodelay": True})

    def cas(cache, key, value):
        found, token = cache.gets(key)
        return found is not None and cache.cas(key, value, token)

    missing, failures = pylibmc.NotFound, pylibmc.Error
else:
    import pymemcache

    def connect(address):
        return pymemcache.Client(address, connect_timeout=5, timeout=5, no_delay=True, default_noreply=False)

    def cas(cache, key, value):
        found, token = cache.gets(key)
        return found is not None and bool(cache.cas(key, value, token))

    missing, failures = (), (pymemcache.exceptions.MemcacheError, OSError)


def use(operation, cache, key, want, new):
    """Returns what the cache has for the key by its answer, what it must have, and what it must have from now on.

    Of requests whose answer is no value, it returns whether the cache has the key."""
    has = want is not None
    match operation:
        case "set":
            return cache.set(key, new), True, new
        case "add":
            return not cache.add(key, new), has, want or new
        case "replace":
            return cache.replace(key, new), has, want and new
        case "cas":
            return cas(cache, key, new), has, want and new
        case "append":
            return cache.append(key, b"x"), has, want and want + b"x"
        case "prepend":
            return cache.prepend(key, b"x"), has, want and b"x" + want
        case "touch":
            return cache.touch(key, 3600), has, want
        case "delete":
            return cache.delete(key), has, None
        case "get_multi":
            return cache.get_multi([key, "none"]).get(key), want, want
        case "incr" if has and want.isdigit():
            number = int(want) + 1
            try:
                return cache.incr(key, 1), number, str(number).encode()
            except missing:
                return None, number, None
        case _:
            return cache.get(key), want, want


stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
proxies = [connect(address) for address in os.environ["PROXIES"].split(",")]
keys = [f"{os.environ['NAME']}-{i}" for i in range(int(os.environ["KEYS"]))]
choices = "set add set replace set cas incr append incr prepend touch get get_multi get delete".split()
values, operations, count = {}, 0, collections.Counter()
while not stopped:
    position, operation = random.randrange(len(keys)), random.choice(choices)
    key, found, want, problem = keys[position], None, None, None
    new = random.choice(["%d", "text-%d"]) % operations
    operations += 1
    try:
        found, want, values[key] = use(operation, random.choice(proxies), key, values.get(key), new.encode())
        if found != want:
            problem = "old" if found else "lost"
    except failures as error:
        problem, found = "errors", error
    if problem:  # what the cache has for the key is not known from now on
        count[problem] += 1
        print(f"{problem}: {operation} {key}: got {found!r}, want {want!r}", file=sys.stderr)
        keys[position] += "x"
print(f"{operations} operations, {count['lost']} lost, {count['old']} old, {count['errors']} errors")
