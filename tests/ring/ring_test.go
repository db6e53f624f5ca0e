package ring

import (
	"fmt"
	"testing"
)

// TestPick: a new server takes over its share of the keys, and no other key moves.
func TestPick(t *testing.T) {
	const keys = 10000
	same := func(s string) string { return s }
	moved := 0
	for i := range keys {
		key := fmt.Sprint("key-", i)
		before, after := Pick([]string{"a", "b", "c"}, same, key), Pick([]string{"d", "c", "b", "a"}, same, key)
		if before != after {
			moved++
			if after != "d" {
				t.Fatalf("%s moved from %s to %s", key, before, after)
			}
		}
	}
	if moved < keys*23/100 || moved > keys*27/100 {
		t.Errorf("%d of %d keys moved, want a quarter", moved, keys)
	}
}
