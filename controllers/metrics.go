package controllers

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/example/memcached-operator/api/v1alpha1"
)

var outdatedDesc = prometheus.NewDesc("memcached_operator_outdated",
	"1 for each Memcached and image of it, image or agentImage, that is not what the operator gives new servers.",
	[]string{"namespace", "memcached", "image"}, nil)

// outdatedCollector reports status.outdated of all Memcacheds in the informer cache.
type outdatedCollector struct{ client.Reader }

// Start implements manager.Runnable. Only the leader reports, because only the leader writes the status.
func (c outdatedCollector) Start(ctx context.Context) error {
	if err := metrics.Registry.Register(c); err != nil {
		return err
	}
	<-ctx.Done()
	metrics.Registry.Unregister(c)
	return nil
}

// Describe implements prometheus.Collector.
func (c outdatedCollector) Describe(ch chan<- *prometheus.Desc) { ch <- outdatedDesc }

// Collect implements prometheus.Collector.
func (c outdatedCollector) Collect(ch chan<- prometheus.Metric) {
	var list v1alpha1.MemcachedList
	if err := c.List(context.Background(), &list, client.UnsafeDisableDeepCopy); err != nil {
		log.Log.Error(err, "list Memcacheds for the metrics")
		return
	}
	for i := range list.Items {
		mc := &list.Items[i]
		for _, image := range mc.Status.Outdated {
			ch <- prometheus.MustNewConstMetric(outdatedDesc, prometheus.GaugeValue, 1, mc.Namespace, mc.Name, image)
		}
	}
}
