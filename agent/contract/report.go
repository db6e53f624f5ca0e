package contract

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// ReportPath is the path of the Report.
const ReportPath = "/report"

// Paths of a drain, on the port of the Report. A token follows, which only the kubelet and the operator know: anybody
// else could stop a server with its items.
const (
	// DrainPath is requested by the kubelet before it stops a server. The answer comes once the server may stop.
	DrainPath = "/drain/"
	// StopPath is requested by the operator once no proxy uses the server. It fails while the kubelet does not wait.
	StopPath = "/stop/"
)

// Report is what an agent tells the operator about its memcached.
type Report struct {
	// Items is the number of items that a server holds, and Memory the memory for items in bytes.
	Items  int64 `json:"items,omitempty"`
	Memory int64 `json:"memory,omitempty"`
	// Applied is the value of the annotation MemoryAnnotation with which memcached got this memory; empty for none.
	// Problem says why memcached has no other memory; empty for nothing.
	Applied string `json:"applied,omitempty"`
	Problem string `json:"problem,omitempty"`
	// Flushed is the value of FlushAnnotation for which memcached has dropped its items; empty for none. FlushProblem says
	// why memcached has not dropped them for another value; empty for nothing.
	Flushed      string `json:"flushed,omitempty"`
	FlushProblem string `json:"flushProblem,omitempty"`
	// Draining says that the kubelet waits until the server may stop.
	Draining bool `json:"draining,omitempty"`
	// Unreachable names the first servers that a proxy does not reach.
	Unreachable []string `json:"unreachable,omitempty"`
	// ListHash names the list that all threads of a proxy use, as Servers.Hash does; empty while they change it, until
	// the last request that began with the list before has ended.
	ListHash string `json:"list,omitempty"`
	// MovedHash names the list for which the agent of a proxy has deleted or moved all items.
	MovedHash string `json:"done,omitempty"`
	// Percent says how much of that work is done.
	Percent int `json:"percent,omitempty"`
}

// ParseMemory returns the memory for items in MiB that a value of MemoryAnnotation asks for: its first word.
func ParseMemory(annotation string) (megabytes int64, err error) {
	number, _, _ := strings.Cut(annotation, " ")
	megabytes, err = strconv.ParseInt(number, 10, 64)
	if err != nil || megabytes <= 0 || megabytes > math.MaxInt64>>20 {
		return 0, fmt.Errorf("the annotation of the pod has no memory in MiB: %q", annotation)
	}
	return megabytes, nil
}
