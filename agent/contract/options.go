// Package contract is what the operator and its agents say to each other: the command line of the agent, the files that
// it reads, and what it reports.
package contract

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/example/memcached-operator/credentials"
)

// Command is the first argument with which memcached-operator runs as the agent.
const Command = "agent"

// Paths of the mounted volumes.
const (
	TLSPath  = "/etc/memcached/tls"
	AuthPath = "/etc/memcached/auth"
	// ProxyPath has the configuration of a proxy.
	ProxyPath = "/etc/memcached/proxy"
	// DiscoveryPath has the List.
	DiscoveryPath = "/etc/memcached/discovery"
	// PodPath has what the operator asks for by annotations of the pod.
	PodPath = "/etc/memcached/pod"
	// RunPath is a folder that the agent creates. All containers of a pod share /dev/shm, in memory: it belongs to the
	// pod's sandbox and survives a restart of a container, of memcached too. An emptyDir would make `kubectl drain` refuse
	// the pod, and keep the cluster autoscaler from removing the node.
	// https://github.com/containerd/containerd/blob/v2.4.2/internal/cri/server/container_create.go
	RunPath = "/dev/shm/memcached-agent"
)

// PodName is the environment variable with the name of the agent's pod.
const PodName = "POD_NAME"

// HashTableShare is the part of the memory for items, as a divisor, that the hash table needs in addition. The worst
// case is items of 96 bytes, the smallest chunk. A table of 8-byte buckets doubles at 1.5 items a bucket (assoc.c), and
// the old and the new one exist together while items move: 16 bytes an item, a sixth of the memory for items.
const HashTableShare = 6

// MemoryLimit is the default memory limit of the agent's container, in bytes.
const MemoryLimit = 64 << 20

// GoMemoryLimit is the GOMEMLIMIT for a container with a memory limit in bytes. It reserves a part for memory that the
// Go runtime does not manage. limit*85 would overflow with a limit of 97 Pi, and a negative GOMEMLIMIT ends the agent.
func GoMemoryLimit(limit int64) string {
	return fmt.Sprintf("%dMiB", (limit/100*85+limit%100*85/100)>>20)
}

// Files below PodPath, with the values of annotations of the agent's pod.
const (
	// MemoryFile has the value of MemoryAnnotation.
	MemoryFile = "memory"
	// FlushFile has the value of FlushAnnotation.
	FlushFile = "flush"
)

// Options are those of the agent's command line.
type Options struct {
	// Port is that of memcached.
	Port int `json:"port"`
	// MetricsPort is that of the metrics; 0 for none.
	MetricsPort int `json:"metricsPort,omitempty"`
	// TLS says what the Secret at TLSPath must contain; empty for no Secret.
	TLS credentials.Checks `json:"tls,omitempty"`
	// Auth says that a Secret is mounted at AuthPath.
	Auth bool `json:"auth,omitempty"`
	// ReportPort is that of the Report; 0 for none.
	ReportPort int `json:"reportPort,omitempty"`
	// DiscoveryPort is that on which clients discover the List; 0 for none.
	DiscoveryPort int `json:"discoveryPort,omitempty"`
	// Proxy says that memcached is a proxy, which has metrics and a Report of its own.
	Proxy bool `json:"proxy,omitempty"`
	// DrainToken is a secret part of the paths of a drain; empty for no drain. It is not logged.
	DrainToken string `json:"drainToken,omitempty"`
}

// Args is the command line of the agent with these options: one argument in JSON.
func (o Options) Args() []string {
	b, _ := json.Marshal(o) // cannot fail: numbers and strings
	return []string{Command, string(b)}
}

// ParseOptions reads what Args returns, without Command.
func ParseOptions(args []string) (o Options, err error) {
	decoder := json.NewDecoder(strings.NewReader(strings.Join(args, " ")))
	decoder.DisallowUnknownFields()
	err = decoder.Decode(&o)
	return o, err
}
