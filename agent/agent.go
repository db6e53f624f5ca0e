// Package agent is the sidecar of memcached: it serves metrics, makes memcached reload certificates and passwords
// without a restart, and reports to the operator. Beside a proxy, it also moves items. It has no permissions in the
// cluster: it reads mounted files, connects to memcached, and sends memcached a signal.
package agent

import (
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
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/agent/memcached"
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
	c := &client{address: net.JoinHostPort("127.0.0.1", strconv.Itoa(o.Port)), tls: o.TLS != "", signal: signal}
	_ = os.MkdirAll(contract.RunPath, 0o700) // what needs the folder reports an error
	r := newReloader(o, c, log, registry)
	group, ctx := errgroup.WithContext(ctx)
	background := func(run func(context.Context)) {
		group.Go(func() error {
			run(ctx)
			return nil
		})
	}
	background(r.run)
	if o.MetricsPort != 0 {
		registry.MustRegister(exporter.New(socket, memcached.Timeout, log, nil),
			collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
		if o.Proxy {
			registry.MustRegister(proxyMetrics{c, log})
		}
		mux := http.NewServeMux()
		mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
		background(func(ctx context.Context) {
			wait.UntilWithContext(ctx, func(ctx context.Context) { relayExporter(ctx, c, log) }, readInterval)
		})
		group.Go(func() error { return serve(ctx, o.MetricsPort, mux) })
	}
	if o.ReportPort != 0 {
		mux := http.NewServeMux()
		if o.Proxy {
			p := &proxy{pod: os.Getenv(contract.PodName), log: log, client: c}
			background(p.run)
			mux.Handle("GET "+contract.ReportPath, reportHandler(p.report))
		} else {
			s := &cacheServer{client: c, log: log, flushed: contract.RunPath + "/flushed",
				drain: drain{stop: make(chan struct{})}}
			background(s.run)
			mux.Handle("GET "+contract.ReportPath, reportHandler(s.report))
			if o.DrainToken != "" {
				mux.HandleFunc("GET "+contract.DrainPath+o.DrainToken, s.drain.wait)
				mux.HandleFunc("POST "+contract.StopPath+o.DrainToken, s.drain.letStop)
			}
		}
		group.Go(func() error { return serve(ctx, o.ReportPort, mux) })
	}
	if o.DiscoveryPort != 0 {
		d := &discovery{}
		d.publish(contract.List{})
		background(d.run)
		group.Go(func() error { return d.serve(ctx, o.DiscoveryPort) })
	}
	return group.Wait()
}

// serve serves requests until ctx is done. A connection serves one small request and is closed, so that untrusted
// clients can neither exhaust the agent's memory nor block Prometheus or the operator for long.
func serve(ctx context.Context, port int, handler http.Handler) error {
	limit := newConnectionLimit(maxPerAddress)
	server := &http.Server{Addr: net.JoinHostPort("", strconv.Itoa(port)), Handler: handler,
		MaxHeaderBytes: maxHeaderBytes, ReadHeaderTimeout: requestTimeout, ReadTimeout: requestTimeout,
		WriteTimeout: answerTimeout, IdleTimeout: requestTimeout, ConnState: limit.follow}
	server.SetKeepAlivesEnabled(false)
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.ListenAndServe(); ctx.Err() == nil {
		return fmt.Errorf("serve port %d: %w", port, err)
	}
	return nil
}

// connectionLimit closes connections beyond the limits at once: in a queue, the operator and the kubelet would wait
// behind a client that opens many connections.
type connectionLimit struct {
	perAddress int
	mu         sync.Mutex
	sources    map[net.Conn]string // source addresses of the connections within the limits
}

func newConnectionLimit(perAddress int) *connectionLimit {
	return &connectionLimit{perAddress: perAddress, sources: map[net.Conn]string{}}
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
		if n >= l.perAddress || len(l.sources) >= maxConnections {
			_ = conn.Close()
			return
		}
		l.sources[conn] = source
	case http.StateClosed:
		delete(l.sources, conn)
	}
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
