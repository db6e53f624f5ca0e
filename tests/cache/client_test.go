package cache

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"github.com/example/memcached-operator/tests/ring"
)

const (
	// keys are read one after the other: each key once in keys/rate seconds.
	keys = 2000
	rate = 250
	// inFlight limits the requests that wait for an answer. While one server is unavailable, fewer wait than are sent in a
	// second.
	inFlight = 200
	// idle is the number of idle connections to a server.
	idle    = 8
	timeout = time.Second
)

// Values of keys: what the test wrote before the scenario, and what the client wrote after a miss.
const (
	original = "original"
	refilled = "refilled"
)

type outcome int

const (
	keptValue outcome = iota
	refilledValue
	missed
	refused // missed, and the write was refused
	failed
)

// sample is one request of the load.
type sample struct {
	at      time.Time
	outcome outcome
	err     error
}

// credentials are what servers require of a client, if anything.
type credentials struct {
	tls   *tls.Config
	login string // user and password
}

// reader is a read-through client: it writes each key that the cache does not have. It hashes each key to one of its
// servers, and resolves the name of a server for each connection.
type reader struct {
	*memcache.Client
	servers atomic.Pointer[[]string]
	dialer  net.Dialer
	credentials
}

// address is a host and a port, as in status.servers.
type address string

func (address) Network() string  { return "tcp4" }
func (a address) String() string { return string(a) }

func newReader(resolver *net.Resolver, c credentials) *reader {
	r := &reader{dialer: net.Dialer{Resolver: resolver}, credentials: c}
	r.Client = memcache.NewFromSelector(r)
	r.Timeout, r.MaxIdleConns, r.DialContext = timeout, idle, r.dial
	return r
}

// PickServer and Each implement memcache.ServerSelector.
func (r *reader) PickServer(key string) (net.Addr, error) {
	servers := *r.servers.Load()
	if len(servers) == 0 {
		return nil, memcache.ErrNoServers
	}
	return address(ring.Pick(servers, func(s string) string { return s }, key)), nil
}

func (r *reader) Each(do func(net.Addr) error) error {
	for _, s := range *r.servers.Load() {
		if err := do(address(s)); err != nil {
			return err
		}
	}
	return nil
}

// dial connects to a server, and logs in if the client has a login.
func (r *reader) dial(ctx context.Context, network, to string) (net.Conn, error) {
	conn, err := r.dialer.DialContext(ctx, network, qualified(to))
	if err != nil {
		return nil, err
	}
	if r.tls != nil {
		conn = tls.Client(conn, r.tls)
	}
	if r.login != "" {
		if err := login(ctx, conn, r.login); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
	}
	return conn, nil
}

// qualified returns the fully qualified name, as a pod's resolver would.
func qualified(hostPort string) string {
	if name, port, ok := strings.Cut(hostPort, ".svc:"); ok {
		return name + ".svc.cluster.local.:" + port
	}
	return hostPort
}

func login(ctx context.Context, conn net.Conn, userAndPassword string) error {
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintf(conn, "set login 0 0 %d\r\n%s\r\n", len(userAndPassword), userAndPassword); err != nil {
		return err
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err == nil && answer != "STORED\r\n" {
		err = fmt.Errorf("login: %q", answer)
	}
	return err
}

// read reads a key through the cache. While a server is unavailable, the proxy refuses to store its keys; that is not
// an error.
func (r *reader) read(key string) (outcome, error) {
	item, err := r.Get(key)
	switch {
	case errors.Is(err, memcache.ErrCacheMiss):
		err = r.Set(&memcache.Item{Key: key, Value: []byte(refilled)})
		switch {
		case err == nil:
			return missed, nil
		case strings.Contains(err.Error(), "SERVER_ERROR server unreachable"):
			return refused, nil
		}
		return failed, fmt.Errorf("set %s: %w", key, err)
	case err != nil:
		return failed, fmt.Errorf("get %s: %w", key, err)
	case string(item.Value) == original:
		return keptValue, nil
	}
	return refilledValue, nil
}

// key returns the i-th key of a scenario. Keys differ between scenarios, so that none finds a value that an earlier
// scenario left on a server that lost the key since.
func key(scenario string, i int) string {
	return fmt.Sprintf("%s-%d", strings.ReplaceAll(scenario, " ", "-"), i%keys)
}

// fill writes all keys of a scenario and reads them again.
func (r *reader) fill(scenario string) error {
	for i := range keys {
		if err := r.Set(&memcache.Item{Key: key(scenario, i), Value: []byte(original)}); err != nil {
			return fmt.Errorf("set %s: %w", key(scenario, i), err)
		}
	}
	for i := range keys {
		if outcome, err := r.read(key(scenario, i)); outcome != keptValue {
			return errors.Join(fmt.Errorf("%s was lost at once", key(scenario, i)), err)
		}
	}
	return nil
}

// load reads the keys of a scenario at a constant rate until done is closed, and then each key once more. It returns
// the requests in the order in which they were sent.
func (r *reader) load(scenario string, done <-chan struct{}) []sample {
	var (
		lock    sync.Mutex
		samples []sample
		waiting sync.WaitGroup
		slots   = make(chan struct{}, inFlight)
		tick    = time.NewTicker(time.Second / rate)
	)
	defer tick.Stop()
	for left := math.MaxInt; left > 0; left-- {
		<-tick.C
		select {
		case <-done:
			done, left = nil, keys
		default:
		}
		slots <- struct{}{}
		lock.Lock()
		i := len(samples)
		samples = append(samples, sample{at: time.Now()})
		lock.Unlock()
		waiting.Go(func() {
			outcome, err := r.read(key(scenario, i))
			lock.Lock()
			samples[i].outcome, samples[i].err = outcome, err
			lock.Unlock()
			<-slots
		})
	}
	waiting.Wait()
	return samples
}
