<?php
// Uses the cache through each of its proxies, with keys of its own, until it gets SIGTERM. Because nobody else writes
// these keys, it knows what each answer must be.

function connect(string $address): Memcached
{
    $cache = new Memcached();
    $cache->setOptions([
        Memcached::OPT_BINARY_PROTOCOL => false,
        Memcached::OPT_COMPRESSION => false,
        Memcached::OPT_TCP_NODELAY => true,
    ]);
    [$host, $port] = explode(':', $address);
    $cache->addServer($host, (int) $port);
    return $cache;
}

// Returns what the cache has for the key by its answer, what it must have, and what it must have from now on. Of
// requests whose answer is no value, it returns whether the cache has the key.
function operate(string $operation, Memcached $cache, string $key, ?string $want, string $new): array
{
    $has = $want !== null;
    if ($operation === 'incr' && $has && is_numeric($want)) {
        $number = (string) ((int) $want + 1);
        $found = $cache->increment($key);
        return [$found === false ? null : (string) $found, $number, $number];
    }
    return match ($operation) {
        'set' => [$cache->set($key, $new), true, $new],
        'add' => [!$cache->add($key, $new), $has, $want ?? $new],
        'replace' => [$cache->replace($key, $new), $has, $has ? $new : null],
        'cas' => [swap($cache, $key, $new), $has, $has ? $new : null],
        'append' => [$cache->append($key, 'x'), $has, $has ? $want . 'x' : null],
        'prepend' => [$cache->prepend($key, 'x'), $has, $has ? 'x' . $want : null],
        'touch' => [$cache->touch($key, 3600), $has, $want],
        'delete' => [$cache->delete($key), $has, null],
        'get_multi' => [($cache->getMulti([$key, 'none']) ?: [])[$key] ?? null, $want, $want],
        default => [($found = $cache->get($key)) === false ? null : $found, $want, $want],
    };
}

function swap(Memcached $cache, string $key, string $new): bool
{
    $item = $cache->get($key, null, Memcached::GET_EXTENDED);
    return $item !== false && $cache->cas($item['cas'], $key, $new);
}

const ANSWERS = [Memcached::RES_SUCCESS, Memcached::RES_NOTFOUND, Memcached::RES_NOTSTORED, Memcached::RES_DATA_EXISTS];
$stopped = false;
pcntl_async_signals(true);
pcntl_signal(SIGTERM, function () use (&$stopped) { $stopped = true; });
$proxies = array_map('connect', explode(',', getenv('PROXIES')));
$keys = array_map(fn ($i) => getenv('NAME') . "-$i", range(1, (int) getenv('KEYS')));
$choices = explode(' ', 'set add set replace set cas incr append incr prepend touch get get_multi get delete');
[$values, $operations, $count] = [[], 0, ['lost' => 0, 'old' => 0, 'errors' => 0]];
while (!$stopped) {
    [$position, $operation] = [array_rand($keys), $choices[array_rand($choices)]];
    [$key, $cache] = [$keys[$position], $proxies[array_rand($proxies)]];
    $new = (rand(0, 1) ? 'text-' : '') . $operations++;
    [$found, $want, $values[$key]] = operate($operation, $cache, $key, $values[$key] ?? null, $new);
    $problem = null;
    if (!in_array($cache->getResultCode(), ANSWERS)) {
        [$problem, $found] = ['errors', $cache->getResultMessage()];
    } elseif ($found !== $want) {
        $problem = $found === null || $found === false ? 'lost' : 'old';
    }
    if ($problem) { // what the cache has for the key is not known from now on
        $count[$problem]++;
        fprintf(STDERR, "%s: %s %s: got %s, want %s\n", $problem, $operation, $key, json_encode($found),
            json_encode($want));
        $keys[$position] .= 'x';
    }
}
echo "$operations operations, {$count['lost']} lost, {$count['old']} old, {$count['errors']} errors\n";
