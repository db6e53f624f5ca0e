import os
import ssl
import sys

from pymemcache.client.base import Client
from pymemcache.client.hash import HashClient
from pymemcache.exceptions import MemcacheError


class LoginClient(Client):
    """Sends what memcached takes for a password: a set, the first command of a connection, of any key."""

    def _connect(self):
        super()._connect()
        login = f"{os.environ['MEMCACHED_USER']} {os.environ['MEMCACHED_PASSWORD']}".encode()
        self.sock.sendall(b"set login 0 0 %d\r\n%s\r\n" % (len(login), login))
        if self.sock.recv(64) != b"STORED\r\n":
            self.close()
            raise MemcacheError("login refused")


class Cache(HashClient):
    client_class = LoginClient


cache = Cache(
    os.environ["MEMCACHED_SERVERS"].split(","),
    connect_timeout=1,
    timeout=1,
    tls_context=ssl.create_default_context(cafile=os.environ["MEMCACHED_CA"]),
)

for i in range(100):
    key, value = f"pymemcache-{i}", f"value-{i}".encode()
    cache.set(key, value, expire=3600)
    if cache.get(key) != value:
        sys.exit(f"{key} is not found")
