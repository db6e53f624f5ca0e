package olm

import (
	"bufio"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

// keys is the number of keys on each server.
const keys = 1000

// cache is a Memcached with keys on its servers.
type cache struct {
	test
	namespace, name string
	pods            string // state of the servers when they were filled
	servers         map[string]*memcache.Client
}

// fill creates the sample Memcached and writes keys to each of its servers.
func fill(t test, namespace, name string) *cache {
	t.Helper()
	c := &cache{test: t, namespace: namespace, name: name, servers: map[string]*memcache.Client{}}
	if _, err := kubectl("create", "namespace", namespace); err != nil && !strings.Contains(err.Error(), "AlreadyExists") {
		t.Fatal(err)
	}
	t.kubectl("apply", "--namespace", namespace, "-f", "config/samples/cache_v1alpha1_memcached.yaml")
	c.ready()
	c.pods = c.state()
	for pod := range strings.FieldsSeq(c.field("{.status.nodes[*]}", "memcached", name, "--namespace", namespace)) {
		c.servers[pod] = c.connect(pod)
		for i := range keys {
			t.must(c.servers[pod].Set(&memcache.Item{Key: key(i), Value: []byte(pod)}))
		}
	}
	c.intact()
	return c
}

func key(i int) string { return fmt.Sprintf("key-%d", i) }

func (c *cache) ready() {
	c.Helper()
	c.kubectl("wait", "--for=condition=Ready", "--timeout=90s", "--namespace", c.namespace, "memcached/"+c.name)
}

// state returns everything about the servers that must not change while nobody changes the Memcached.
func (c *cache) state() string {
	return c.kubectl("get", "pods", "--namespace", c.namespace, "--selector", "cache.example.com/name="+c.name,
		"--sort-by=.metadata.name", "--output",
		`jsonpath={range .items[*]}{.metadata.name} {.metadata.uid} `+
			`restarts={.status.containerStatuses[*].restartCount} {.metadata.deletionTimestamp}{"\n"}{end}`)
}

// intact fails if a server was replaced or restarted, or lost a key.
func (c *cache) intact() {
	c.Helper()
	now := c.state()
	for server := range strings.Lines(c.pods) {
		if !strings.Contains(now, server) {
			c.Fatalf("servers before:\n%s\nand now:\n%s", c.pods, now)
		}
	}
	for pod, server := range c.servers {
		for i := range keys {
			item, err := server.Get(key(i))
			if err != nil || string(item.Value) != pod {
				c.Fatalf("server %s, %s: %v", pod, key(i), err)
			}
		}
	}
}

// connect forwards a port to a server until the test ends.
func (c *cache) connect(pod string) *memcache.Client {
	c.Helper()
	cmd := exec.Command("kubectl", "port-forward", "--namespace", c.namespace, "pod/"+pod, ":11211")
	out, err := cmd.StdoutPipe()
	c.must(errors.Join(err, cmd.Start()))
	c.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	c.must(err)
	address := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(line)
	client := memcache.New(address)
	client.Timeout = 10 * time.Second
	c.Cleanup(func() { _ = client.Close() })
	return client
}

// startReading reads keys from all servers until the returned function is called, which returns the number of reads. A
// miss or a broken connection fails the test.
func (c *cache) startReading() (stop func() int) {
	var reads atomic.Int64
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for i := 0; ; i++ {
			for pod, server := range c.servers {
				if _, err := server.Get(key(i % keys)); err != nil {
					c.Errorf("read %d: server %s, %s: %v", reads.Load(), pod, key(i%keys), err)
					return
				}
				reads.Add(1)
			}
			select {
			case <-done:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	stop = sync.OnceValue(func() int { close(done); <-ended; return int(reads.Load()) })
	c.Cleanup(func() { stop() }) // if the test fails earlier
	return stop
}
