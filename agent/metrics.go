package agent

import (
	"bufio"
	"context"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/memcached_exporter/pkg/exporter"
)

// socket is where the exporter connects.
const socket = RunPath + "/memcached.sock"

// collector collects the metrics of memcached with Prometheus's exporter. The exporter cannot log in, and opens a new
// connection each time, which memcached refuses once maxConnections is reached. So the exporter connects to a socket
// that only the agent can open, and the agent keeps one connection to memcached open.
type collector struct {
	*exporter.Exporter
	memcached *memcached
	log       *slog.Logger
	expires   *prometheus.Desc

	collecting sync.Mutex  // guards conn, and the socket, which exists only during Collect
	conn       *connection // to memcached; nil for none
}

func newCollector(m *memcached, log *slog.Logger) *collector {
	return &collector{Exporter: exporter.New(socket, timeout, log, nil), memcached: m, log: log,
		expires: prometheus.NewDesc("memcached_agent_certificate_expires_in_seconds",
			"Time until memcached's certificate expires; negative afterwards.", nil, nil)}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	c.Exporter.Describe(ch)
	ch <- c.expires
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	c.collecting.Lock()
	defer c.collecting.Unlock()
	_ = os.Remove(socket) // left behind by an agent that was killed
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	var relay sync.WaitGroup
	defer relay.Wait()
	defer cancel()
	if listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", socket); err != nil {
		c.log.Error("the exporter cannot reach memcached", "error", err)
	} else {
		defer func() { _ = listener.Close() }()
		relay.Go(func() { c.serve(ctx, listener) })
	}
	c.Exporter.Collect(ch)
	if certificate := c.memcached.lastCertificate.Load(); certificate != nil {
		ch <- prometheus.MustNewConstMetric(c.expires, prometheus.GaugeValue, time.Until(certificate.NotAfter).Seconds())
	}
}

// serve relays the exporter's connections to memcached, one after the other, until the listener is closed.
func (c *collector) serve(ctx context.Context, listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		if err := c.relay(ctx, conn); err != nil {
			c.log.Error("the exporter cannot reach memcached", "error", err)
		}
	}
}

// relay responds to the exporter's requests until the collection is done: the exporter never closes its connections.
func (c *collector) relay(ctx context.Context, from net.Conn) error {
	defer func() { _ = from.Close() }()
	defer context.AfterFunc(ctx, func() { _ = from.Close() })()
	requests := bufio.NewScanner(from)
	for requests.Scan() {
		response, err := c.stats(ctx, requests.Text())
		if err == nil {
			_, err = from.Write(response)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// stats returns memcached's response to one of the stats commands. It tries twice, because memcached may have closed
// the connection when it was idle or when memcached stopped.
func (c *collector) stats(ctx context.Context, request string) (response []byte, err error) {
	for range 2 {
		if c.conn == nil {
			conn, err := c.memcached.connect(ctx)
			if err != nil {
				return nil, err
			}
			c.conn = &conn
		}
		if response, err = c.conn.stats(request); err == nil {
			return response, nil
		}
		_ = c.conn.Close()
		c.conn = nil
	}
	return nil, err
}
