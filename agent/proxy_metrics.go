package agent

import (
	"bytes"
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// proxyMetric is a metric of a proxy. The exporter reads no answer to the stats commands that only proxies have.
type proxyMetric struct {
	request string // the stats command
	// key is the name of the value; a last letter * stands for the value of the metric's label.
	key  string
	kind prometheus.ValueType
	desc *prometheus.Desc
}

func newProxyMetric(request, key string, kind prometheus.ValueType, name, help string, labels ...string) proxyMetric {
	return proxyMetric{request, key, kind, prometheus.NewDesc("memcached_proxy_"+name, help, labels, nil)}
}

// https://docs.memcached.org/features/proxy/metrics/
var proxyMetrics = []proxyMetric{
	newProxyMetric("stats proxy", "cmd_*", prometheus.CounterValue, "requests_total",
		"Requests of clients, by command.", "command"),
	newProxyMetric("stats proxy", "buffer_memory_used", prometheus.GaugeValue, "buffer_bytes",
		"Memory of answers that clients have not read yet."),
	newProxyMetric("stats proxy", "buffer_memory_limit", prometheus.GaugeValue, "buffer_limit_bytes",
		"Limit of that memory; beyond it, reads are misses."),
	newProxyMetric("stats proxybe", "bad_*", prometheus.GaugeValue, "server_unreachable_threads",
		"Threads of the proxy that cannot reach a server; absent if all can.", "server"),
}

// collectProxy collects the metrics that only proxies have.
func (c *collector) collectProxy(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	responses := map[string][]byte{}
	for _, m := range proxyMetrics {
		if _, ok := responses[m.request]; !ok {
			response, err := c.stats.get(ctx, m.request)
			if err != nil {
				c.log.Error("cannot read the metrics of the proxy", "error", err)
				return
			}
			responses[m.request] = response
		}
		if err := m.collect(responses[m.request], ch); err != nil {
			c.log.Error("cannot read the metrics of the proxy", "error", err)
		}
	}
}

// collect finds the values of the metric in a response, whose lines are "STAT key value".
func (m proxyMetric) collect(response []byte, ch chan<- prometheus.Metric) (err error) {
	prefix, labelled := strings.CutSuffix(m.key, "*")
	for line := range bytes.Lines(response) {
		fields := strings.Fields(string(line))
		if len(fields) != 3 || !strings.HasPrefix(fields[1], prefix) || !labelled && fields[1] != m.key {
			continue
		}
		var labels []string
		if labelled {
			labels = []string{strings.TrimPrefix(fields[1], prefix)}
		}
		value, valueErr := strconv.ParseFloat(fields[2], 64)
		metric, labelErr := prometheus.NewConstMetric(m.desc, m.kind, value, labels...) // fails unless labels are UTF-8
		err = errors.Join(err, valueErr, labelErr)
		if valueErr == nil && labelErr == nil {
			ch <- metric
		}
	}
	return err
}
