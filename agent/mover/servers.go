package mover

import (
	"fmt"
	"hash/fnv"
	"maps"
	"strings"
)

// Phase is the phase of a change of servers; proxy.lua says what proxies do in each.
type Phase string

// Phases, in their order.
const (
	// NoChange: the servers do not change.
	NoChange Phase = ""
	// Purge: proxies use the servers before the change. The mover deletes items that do not belong to their server.
	Purge Phase = "0"
	// PreferBefore: proxies prefer the servers before the change, and know of those after it.
	PreferBefore Phase = "1"
	// PreferAfter: proxies prefer the servers after the change. Once all of them do, the mover moves items.
	PreferAfter Phase = "2"
)

// Servers are the servers behind proxies, each an address with a port, or a change of them. They are the content of two
// files: servers, which the proxies read, and mover.
type Servers struct {
	Phase Phase
	// Before are the servers before a change; none without a change.
	Before []string
	// After are the servers; during a change, those after it.
	After []string
	// Mover is the proxy's pod whose agent deletes or moves items now; empty for none.
	Mover string
}

// Parse reads the content of files, by their names.
func Parse(files map[string]string) (s Servers) {
	s.Mover = strings.TrimSpace(files["mover"])
	for line := range strings.Lines(files["servers"]) {
		line = strings.TrimSpace(line)
		if phase, ok := strings.CutPrefix(line, "phase "); ok {
			s.Phase = Phase(phase)
		} else if server, ok := strings.CutPrefix(line, "old "); ok {
			s.Before = append(s.Before, server)
		} else if line != "" {
			s.After = append(s.After, line)
		}
	}
	return s
}

// Files returns the content of the files, by their names.
func (s Servers) Files() map[string]string {
	var lines []string
	if s.Phase != NoChange {
		lines = append(lines, "phase "+string(s.Phase))
	}
	for _, server := range s.Before {
		lines = append(lines, "old "+server)
	}
	return map[string]string{"servers": strings.Join(append(lines, s.After...), "\n") + "\n", "mover": s.Mover}
}

// List names the content of the file servers as proxy.lua does: "stats proxyfuncs" of a proxy says which threads use
// it.
func (s Servers) List() string {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(s.Files()["servers"])) // never fails
	return fmt.Sprintf("%016x", hash.Sum64())
}

// Equal reports whether two Servers are the same.
func (s Servers) Equal(other Servers) bool {
	return maps.Equal(s.Files(), other.Files())
}
