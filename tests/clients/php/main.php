<?php
$cache = new Memcached();
$cache->setOptions([
    Memcached::OPT_LIBKETAMA_COMPATIBLE => true, // Consistent hashing.
    Memcached::OPT_CONNECT_TIMEOUT => 500,       // Milliseconds,
    Memcached::OPT_RECV_TIMEOUT => 500_000,      // but microseconds here
    Memcached::OPT_SEND_TIMEOUT => 500_000,      // and here.
    Memcached::OPT_RETRY_TIMEOUT => 1,           // A server that is down is tried once a second.
]);
foreach (explode(',', getenv('MEMCACHED_SERVERS')) as $server) {
    $colon = strrpos($server, ':'); // The last one: an IPv6 address has others, and brackets.
    $cache->addServer(trim(substr($server, 0, $colon), '[]'), (int) substr($server, $colon + 1));
}

for ($round = 0; $round < 60; $round++) {
    $found = 0;
    for ($i = 0; $i < 100; $i++) {
        if ($cache->get("php-$i") === "value-$i") { // false where anything fails, as for a miss
            $found++;
        } else {
            $cache->set("php-$i", "value-$i", 3600);
        }
    }
    echo "$found of 100 keys found\n";
    sleep(1);
}
exit($found === 100 ? 0 : 1);
