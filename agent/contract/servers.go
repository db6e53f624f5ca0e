package contract

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

// Server is a server behind proxies.
type Server struct {
	// Name is that of its pod.
	Name string `json:"name"`
	// Address is an IP address with a port.
	Address string `json:"-"`
}

// Servers are the servers behind proxies, or a change of them. They are the content of two files: servers, which the
// proxies read, and mover. The JSON form has neither the program nor addresses.
type Servers struct {
	// Program identifies the program of the proxies that reads the files; empty for any.
	Program string `json:"-"`
	Phase   Phase  `json:"phase,omitempty"`
	// Before are the servers before a change; none without a change.
	Before []Server `json:"before,omitempty"`
	// After are the servers; during a change, those after it.
	After []Server `json:"after"`
	// Mover is the proxy's pod whose agent deletes or moves items now; empty for none.
	Mover string `json:"mover,omitempty"`
}

// ParseServers reads the content of files, by their names.
func ParseServers(files map[string]string) (s Servers) {
	s.Mover = strings.TrimSpace(files["mover"])
	for line := range strings.Lines(files["servers"]) {
		switch fields := strings.Fields(line); {
		case len(fields) == 2 && fields[0] == "program":
			s.Program = fields[1]
		case len(fields) == 2 && fields[0] == "phase":
			s.Phase = Phase(fields[1])
		case len(fields) == 2:
			s.After = append(s.After, Server{fields[0], fields[1]})
		case len(fields) == 3 && fields[0] == "old":
			s.Before = append(s.Before, Server{fields[1], fields[2]})
		}
	}
	return s
}

// Files returns the content of the files, by their names.
func (s Servers) Files() map[string]string {
	var lines []string
	if s.Program != "" {
		lines = append(lines, "program "+s.Program)
	}
	if s.Phase != NoChange {
		lines = append(lines, "phase "+string(s.Phase))
	}
	for _, server := range s.Before {
		lines = append(lines, "old "+server.Name+" "+server.Address)
	}
	for _, server := range s.After {
		lines = append(lines, server.Name+" "+server.Address)
	}
	return map[string]string{"servers": strings.Join(lines, "\n") + "\n", "mover": s.Mover}
}

// Hash names the content of the file servers as proxy.lua does: "stats proxyfuncs" of a proxy says which threads use
// it.
func (s Servers) Hash() string {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(s.Files()["servers"])) // never fails
	return fmt.Sprintf("%016x", hash.Sum64())
}

// Equal reports whether two Servers are the same.
func (s Servers) Equal(other Servers) bool {
	return maps.Equal(s.Files(), other.Files())
}
