// Package agent is the sidecar of memcached: it serves metrics, makes memcached reload certificates and passwords
// without a restart, and reports to the operator. Beside a proxy, it also moves items. It has no permissions in the
// cluster: it reads mounted files, connects to memcached, and sends memcached a signal.
package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/memcached_exporter/pkg/exporter"
	"golang.org/x/sync/errgroup"

	"github.com/example/memcached-operator/agent/contract"
)

// Limits of the ports that untrusted clients may reach.
const (
	maxConnections = 256
	maxPerAddress  = 16 // connections from one source address
	maxHeaderBytes = 4 << 10
	requestTimeout = time.Second
	answerTimeout  = 10 * time.Second
)

// Run runs the agent with the arguments after Command, until ctx is done.
func Run(ctx context.Context, args []string) error {
	o, err := contract.ParseOptions(args)
	if err != nil {
		return fmt.Errorf("%s: %w", contract.Command, err)
	}
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	shown := o
	shown.DrainToken = ""
	log.Info("started", "options", shown)
	registry := prometheus.NewRegistry()
	m := &memcached{address: net.JoinHostPort("127.0.0.1", strconv.Itoa(o.Port)), tls: o.TLS != "", signal: signal}
	stats := &statsConn{memcached: m}
	r := newReloader(o, m, log, registry)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return r.run(ctx) })
	if o.MetricsPort != 0 {
		process := collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})
		registry.MustRegister(newCollector(stats, o.Proxy, log), process)
		mux := http.NewServeMux()
		mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
		group.Go(func() error { return serve(ctx, o.MetricsPort, mux) })
	}
	s := &cacheServer{stats: stats, log: log, flushed: contract.RunPath + "/flushed",
		drain: drain{stop: make(chan struct{})}}
	report, do := s.report, s.run
	if o.Proxy {
		p := &proxy{pod: os.Getenv(contract.PodName), log: log, stats: stats}
		report, do = p.report, p.run
	}
	if o.ReportPort != 0 {
		group.Go(func() error { return do(ctx) })
		mux := http.NewServeMux()
		mux.Handle("GET "+contract.ReportPath, reportHandler(report))
		if o.DrainToken != "" {
			mux.HandleFunc("GET "+contract.DrainPath+o.DrainToken, s.drain.wait)
			mux.HandleFunc("POST "+contract.StopPath+o.DrainToken, s.drain.letStop)
		}
		group.Go(func() error { return serve(ctx, o.ReportPort, mux) })
	}
	return group.Wait()
}

// serve serves requests until ctx is done. A connection serves one small request and is closed, so that untrusted
// clients can neither exhaust the agent's memory nor block Prometheus or the operator for long.
func serve(ctx context.Context, port int, handler http.Handler) error {
	limit := &connectionLimit{sources: map[net.Conn]string{}}
	server := &http.Server{Handler: handler, MaxHeaderBytes: maxHeaderBytes, ReadHeaderTimeout: requestTimeout,
		ReadTimeout: requestTimeout, WriteTimeout: answerTimeout, IdleTimeout: requestTimeout, ConnState: limit.follow}
	server.SetKeepAlivesEnabled(false)
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort("", strconv.Itoa(port)))
	if err == nil {
		defer context.AfterFunc(ctx, func() { _ = server.Close() })()
		err = server.Serve(listener)
	}
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("serve port %d: %w", port, err)
}

// connectionLimit closes connections beyond the limits at once: in a queue, the operator and the kubelet would wait
// behind a client that opens many connections.
type connectionLimit struct {
	mu      sync.Mutex
	sources map[net.Conn]string // source addresses of the connections within the limits
}

// follow is called by the server when the state of a connection changes.
func (l *connectionLimit) follow(conn net.Conn, state http.ConnState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch state {
	case http.StateNew:
		source, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
		n := 0
		for _, other := range l.sources {
			if other == source {
				n++
			}
		}
		if n >= maxPerAddress || len(l.sources) >= maxConnections {
			_ = conn.Close()
			return
		}
		l.sources[conn] = source
	case http.StateClosed:
		delete(l.sources, conn)
	}
}

// socket is where the exporter connects.
const socket = contract.RunPath + "/memcached.sock"

// collector collects the metrics of memcached with Prometheus's exporter. The exporter cannot log in, and opens a new
// connection for each collection, which memcached refuses once spec.maxConnections is reached. So the agent keeps one
// connection to memcached open. The exporter connects to a Unix socket of the agent, which relays its requests.
type collector struct {
	*exporter.Exporter
	stats *statsConn
	proxy bool // memcached is a proxy
	log   *slog.Logger

	collecting sync.Mutex // guards the socket, which exists only during Collect
}

func newCollector(stats *statsConn, proxy bool, log *slog.Logger) *collector {
	return &collector{Exporter: exporter.New(socket, timeout, log, nil), stats: stats, proxy: proxy, log: log}
}

var certificateExpires = prometheus.NewDesc("memcached_agent_certificate_expires_in_seconds",
	"Time until memcached's certificate expires; negative afterwards.", nil, nil)

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	c.Exporter.Describe(ch)
	ch <- certificateExpires
	for _, m := range proxyMetrics {
		ch <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	c.collecting.Lock()
	defer c.collecting.Unlock()
	c.collectExported(ch)
	if c.proxy {
		c.collectProxy(ch)
	}
	if certificate := c.stats.memcached.lastCertificate.Load(); certificate != nil {
		ch <- prometheus.MustNewConstMetric(certificateExpires, prometheus.GaugeValue,
			time.Until(certificate.NotAfter).Seconds())
	}
}

// collectExported collects the metrics of the exporter.
func (c *collector) collectExported(ch chan<- prometheus.Metric) {
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
		response, err := c.stats.get(ctx, requests.Text())
		if err == nil {
			_, err = from.Write(response)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// reportHandler sends the Report that a function returns.
func reportHandler(report func(context.Context) (contract.Report, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		report, err := report(r.Context())
		if err != nil {
			http.Error(w, "memcached does not answer", http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(report)
	})
}
