package agent

import (
	"bufio"
	"context"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/agent/memcached"
)

// socket is where Prometheus's exporter connects. The exporter cannot log in, and opens a new connection for each
// collection, which memcached refuses once spec.maxConnections is reached. So the agent relays its requests to the
// connection that stays open.
const socket = contract.RunPath + "/memcached.sock"

// relayExporter relays the requests of the exporter until ctx is done, or until it cannot accept connections.
func relayExporter(ctx context.Context, c *client, log *slog.Logger) {
	_ = os.Remove(socket) // left behind by an agent that was killed
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", socket)
	if err != nil {
		log.Error("the exporter cannot reach memcached", "error", err)
		return
	}
	defer func() { _ = listener.Close() }()
	defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
	for {
		conn, err := listener.Accept()
		if err != nil {
			return // ctx is done, or the agent has no file descriptor left
		}
		go func() {
			if err := relay(ctx, c, conn); err != nil {
				log.Error("the exporter cannot reach memcached", "error", err)
			}
		}()
	}
}

// relay responds to the exporter's requests for some time: the exporter never closes its connections.
func relay(ctx context.Context, c *client, from net.Conn) error {
	defer func() { _ = from.Close() }()
	if err := from.SetDeadline(time.Now().Add(memcached.Timeout)); err != nil {
		return err
	}
	requests := bufio.NewScanner(from)
	for requests.Scan() {
		var response []byte
		err := c.do(ctx, func(conn *memcached.Conn) (err error) {
			response, err = conn.Request(requests.Text())
			return err
		})
		if err == nil {
			_, err = from.Write(response)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// proxyMetrics collects the metrics that only proxies have: the exporter does not read them.
type proxyMetrics struct {
	client *client
	log    *slog.Logger
}

// proxyMetric is a metric of a proxy. https://docs.memcached.org/features/proxy/metrics/
type proxyMetric struct {
	request string // the stats command
	name    string // of the value; the value of the metric's label follows, if it has one
	kind    prometheus.ValueType
	desc    *prometheus.Desc
}

var allProxyMetrics = []proxyMetric{
	{"stats proxy", "cmd_", prometheus.CounterValue,
		proxyDesc("requests_total", "Requests of clients, by command.", "command")},
	{"stats proxy", "buffer_memory_used", prometheus.GaugeValue,
		proxyDesc("buffer_bytes", "Memory of answers that clients have not read yet.")},
	{"stats proxy", "buffer_memory_limit", prometheus.GaugeValue,
		proxyDesc("buffer_limit_bytes", "Limit of that memory; beyond it, reads are misses.")},
	{"stats proxybe", "bad_", prometheus.GaugeValue, proxyDesc("server_unreachable_threads",
		"Threads of the proxy that cannot reach a server; absent if all can.", "server")},
}

func proxyDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("memcached_proxy_"+name, help, labels, nil)
}

// Describe implements prometheus.Collector.
func (p proxyMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range allProxyMetrics {
		ch <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (p proxyMetrics) Collect(ch chan<- prometheus.Metric) {
	for _, m := range allProxyMetrics {
		stats, err := p.client.stats(context.Background(), m.request)
		if err != nil {
			p.log.Error("cannot read the metrics of the proxy", "error", err)
			return
		}
		m.collect(stats, ch)
	}
}

// collect sends the values of the metric. Others, and names that are no values of a label, are left out.
func (m proxyMetric) collect(stats memcached.Stats, ch chan<- prometheus.Metric) {
	for name, text := range stats {
		label, ok := strings.CutPrefix(name, m.name)
		value, err := strconv.ParseFloat(text, 64)
		if !ok || err != nil {
			continue
		}
		var labels []string
		if label != "" {
			labels = append(labels, label)
		}
		if metric, err := prometheus.NewConstMetric(m.desc, m.kind, value, labels...); err == nil {
			ch <- metric
		}
	}
}
