// Package ring chooses servers for keys as a client of memcached does that hashes consistently.
package ring

import (
	"bytes"
	"crypto/sha256"
	"slices"
)

// Pick chooses the server whose name, hashed together with the key, gives the highest value (rendezvous hashing, a form
// of consistent hashing): a new server takes over its share of the keys, and all other keys stay where they are.
func Pick[S any](servers []S, name func(S) string, key string) S {
	return slices.MaxFunc(servers, func(a, b S) int {
		x, y := sha256.Sum256([]byte(name(a)+key)), sha256.Sum256([]byte(name(b)+key))
		return bytes.Compare(x[:], y[:])
	})
}
