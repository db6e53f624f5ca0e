// Package ring chooses servers for keys by consistent hashing, as many clients of memcached do.
package ring

import (
	"bytes"
	"crypto/sha256"
	"slices"
)

// Pick chooses the server for a key: the one with the highest hash of its name and the key (rendezvous hashing). A new
// server takes over its share of the keys; all other keys stay on their servers.
func Pick[S any](servers []S, name func(S) string, key string) S {
	return slices.MaxFunc(servers, func(a, b S) int {
		x, y := sha256.Sum256([]byte(name(a)+key)), sha256.Sum256([]byte(name(b)+key))
		return bytes.Compare(x[:], y[:])
	})
}
