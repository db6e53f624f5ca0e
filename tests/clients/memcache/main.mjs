// Reads keys through the memcached client of npm, which discovers the servers. It runs until its pod is deleted.
import {Memcache} from 'memcache';

let errors = 0;
const count = () => { errors++; };
const cache = new Memcache({
  nodes: [],
  timeout: 500,
  autoDiscover: {enabled: true, configEndpoint: process.env.MEMCACHED_DISCOVERY, pollingInterval: 10000},
});
cache.on('error', count);
cache.on('autoDiscoverError', count);
await cache.connect();
const keys = Array.from({length: 1000}, (_, i) => `memcache-${i}`);
for (;;) {
  const found = await cache.gets(keys);
  for (const key of keys) {
    if (!found.has(key)) await cache.set(key, `value of ${key}`, 3600);
  }
  console.log(JSON.stringify({found: found.size, servers: cache.nodeIds.length, errors}));
  await new Promise((resolve) => setTimeout(resolve, 200));
}
