// Package agent runs beside memcached, in the same pod: it serves metrics, and puts changed certificates and passwords
// in force without a restart. It has no rights on the cluster: it reads what the kubelet mounts, talks to memcached on
// loopback, and sends memcached a signal.
package agent

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"
	"golang.org/x/sync/errgroup"
)

// Command is the first argument of memcached-operator that makes it the agent.
const Command = "agent"

// Where the agent finds what the kubelet mounts.
const (
	TLSPath  = "/etc/memcached/tls"
	AuthPath = "/etc/memcached/auth"
	// WantedPath is a file with the digests of the Secrets that the operator read.
	WantedPath = "/etc/memcached/wanted/secrets"
	// RunPath is a folder that only the agent has.
	RunPath = "/run/memcached-agent"
)

// MemoryLimit is that of the agent's container, in bytes.
const MemoryLimit = 64 << 20

// GoMemoryLimit is the GOMEMLIMIT of the container. It leaves a part to what the Go runtime does not manage.
var GoMemoryLimit = fmt.Sprintf("%dMiB", MemoryLimit*85/100>>20)

// Limits of the metrics port, which strangers may reach.
const (
	maxConnections = 256
	maxHeaderBytes = 4 << 10
	requestTimeout = time.Second
	answerTimeout  = 10 * time.Second
)

// Options are those of the agent's command line.
type Options struct {
	// Port is that of memcached.
	Port int
	// MetricsPort is that of the metrics; 0 for none.
	MetricsPort int
	// Namespace is that of the pod.
	Namespace string
	// TLSSecret names the Secret that is mounted at TLSPath; empty for none.
	TLSSecret string
	// ClientAuth says that clients may or must show a certificate by ca.crt.
	ClientAuth bool
	// AuthSecret names the Secret that is mounted at AuthPath; empty for none.
	AuthSecret string
}

// Args is the command line of the agent with these options.
func (o Options) Args() []string {
	args := []string{Command, "--port=" + strconv.Itoa(o.Port), "--metrics-port=" + strconv.Itoa(o.MetricsPort),
		"--namespace=" + o.Namespace}
	if o.TLSSecret != "" {
		args = append(args, "--tls-secret="+o.TLSSecret, "--client-auth="+strconv.FormatBool(o.ClientAuth))
	}
	if o.AuthSecret != "" {
		args = append(args, "--auth-secret="+o.AuthSecret)
	}
	return args
}

func parse(args []string) (o Options, err error) {
	fs := flag.NewFlagSet(Command, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.IntVar(&o.Port, "port", 11211, "port of memcached")
	fs.IntVar(&o.MetricsPort, "metrics-port", 0, "port of the metrics; 0 for none")
	fs.StringVar(&o.Namespace, "namespace", "", "namespace of the pod")
	fs.StringVar(&o.TLSSecret, "tls-secret", "", "name of the Secret at "+TLSPath)
	fs.BoolVar(&o.ClientAuth, "client-auth", false, "clients may or must show a certificate by ca.crt")
	fs.StringVar(&o.AuthSecret, "auth-secret", "", "name of the Secret at "+AuthPath)
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if fs.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	return o, nil
}

// Run runs the agent with the arguments behind Command, until ctx ends.
func Run(ctx context.Context, args []string) error {
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	o, err := parse(args)
	if err != nil {
		return fmt.Errorf("%s: %w", Command, err)
	}
	log.Info("started", "options", o)
	registry := prometheus.NewRegistry()
	m := &memcached{address: net.JoinHostPort("127.0.0.1", strconv.Itoa(o.Port)), tls: o.TLSSecret != ""}
	r := newReloader(o, m, log, registry)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return r.run(ctx) })
	if o.MetricsPort != 0 {
		registry.MustRegister(newCollector(m, log), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
		group.Go(func() error { return serveMetrics(ctx, o.MetricsPort, registry) })
	}
	return group.Wait()
}

// serveMetrics serves metrics until ctx ends. A connection serves one small request and is closed, so that strangers can
// neither use up the agent's memory nor keep Prometheus out for long.
func serveMetrics(ctx context.Context, port int, registry *prometheus.Registry) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	server := &http.Server{Handler: mux, MaxHeaderBytes: maxHeaderBytes, ReadHeaderTimeout: requestTimeout,
		ReadTimeout: requestTimeout, WriteTimeout: answerTimeout, IdleTimeout: requestTimeout}
	server.SetKeepAlivesEnabled(false)
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort("", strconv.Itoa(port)))
	if err == nil {
		defer context.AfterFunc(ctx, func() { _ = server.Close() })()
		err = server.Serve(netutil.LimitListener(listener, maxConnections))
	}
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("serve metrics: %w", err)
}
