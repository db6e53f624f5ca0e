package mover

import "github.com/zeebo/xxh3"

// Position returns the position of the server that memcached's proxy selects by default for a key, in a list of this
// many servers; 0 if there is none. The proxy hashes keys by XXH3, and chooses among servers by the jump hash of
// Lamping and Veach (https://arxiv.org/abs/1406.2294), so that few keys move when the number changes.
func Position(key string, servers int) int { return jump(xxh3.HashString(key), servers) }

// jump follows a key from one server on to all: with one more server, it jumps there with the right probability.
func jump(key uint64, servers int) int {
	position, next := 0, 0
	for next < servers {
		position = next
		key = key*2862933555777941757 + 1
		next = int(float64(position+1) * (float64(1<<31) / float64(key>>33+1)))
	}
	return position
}
