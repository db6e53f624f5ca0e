// Command thanos reads keys through the memcached client of Thanos, which Cortex uses too, and which discovers the
// servers. It runs until its pod is deleted.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	kitlog "github.com/go-kit/log"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/thanos-io/thanos/pkg/cacheutil"
)

func main() {
	config := cacheutil.MemcachedClientConfig{Addresses: []string{os.Getenv("MEMCACHED_DISCOVERY")}, AutoDiscovery: true,
		DNSProviderUpdateInterval: 10 * time.Second, Timeout: 500 * time.Millisecond, MaxIdleConnections: 100,
		MaxAsyncConcurrency: 20, MaxAsyncBufferSize: 10000, MaxGetMultiConcurrency: 100}
	registry := prometheus.NewRegistry()
	cache, err := cacheutil.NewMemcachedClientWithConfig(kitlog.NewLogfmtLogger(os.Stderr), "test", config, registry)
	if err != nil {
		log.Fatal(err)
	}
	keys := make([]string, 1000)
	for i := range keys {
		keys[i] = fmt.Sprint("thanos-", i)
	}
	for ; ; time.Sleep(200 * time.Millisecond) {
		found := cache.GetMulti(context.Background(), keys)
		for _, key := range keys {
			if found[key] == nil {
				_ = cache.SetAsync(key, []byte("value of "+key), time.Hour)
			}
		}
		metrics, err := registry.Gather()
		if err != nil {
			log.Fatal(err)
		}
		sum := func(suffix string) (n float64) {
			for _, family := range metrics {
				for _, m := range family.Metric {
					if strings.HasSuffix(family.GetName(), suffix) {
						n += m.GetCounter().GetValue() + m.GetGauge().GetValue()
					}
				}
			}
			return n
		}
		fmt.Printf(`{"found":%d,"servers":%g,"errors":%g}`+"\n", len(found), sum("auto_discovery_resolved_addresses"),
			sum("failures_total"))
	}
}
