package e2e

import (
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/internal/testing/harness"
	"github.com/example/memcached-operator/tests/cluster"
)

// quiet returns how long nothing may happen.
func quiet() time.Duration {
	if testing.Short() {
		return 4 * time.Second
	}
	return 15 * time.Second
}

// TestNoWritesWithoutChanges: after a restart, the operator applies each child at most once, which changes no object.
// Otherwise it sends no request while nothing changes.
func TestNoWritesWithoutChanges(t *testing.T) {
	needMoreTime(t)
	var before map[string]string
	restart := func(w world) {
		w.must(operator.Stop(w.ctx))
		w.must(operator.Start(w.ctx, 1))
	}
	testEnv.Test(t, features.New("the operator writes nothing").
		Setup(step(func(w world) {
			restart(w)
			w.create("cache", 2)
			w.create("paused", 0)
			w.passwords("passwords", "user:"+password)
			w.createSpec("set", `{size: 2, workload: StatefulSet, serverAddresses: ClusterIP, auth: {secretName: passwords},
				networkPolicy: {}}`)
			w.createSpec("proxied", `{workload: StatefulSet, proxy: {size: 1}}`)
			w.awaitReady("cache", "paused", "set", "proxied")
			w.merge("paused", `{"paused":true}`)
			w.awaitReady("paused")
			before = w.awaitIdle()
		})).
		Assess("while nothing changes", step(func(w world) { w.mustBeIdle(before) })).
		Assess("after a restart", step(func(w world) {
			restart(w)
			w.mustBeIdle(before)
			if writes := w.requests("PATCH") + w.requests("DELETE"); writes > len(before) {
				w.Errorf("%d writes since the start, more than one for each of %d objects", writes, len(before))
			}
		})).Feature())
}

// TestMemoryLimit: GOMEMLIMIT is somewhat lower than the memory limit of the container.
func TestMemoryLimit(t *testing.T) {
	if testCluster.Kind == "kwok" {
		t.Skip("on kwok the operator does not run in a container")
	}
	testEnv.Test(t, features.New("the memory of the operator").
		Assess("has a limit", step(func(w world) {
			limit := w.mustKubectl("-n", cluster.OperatorNamespace, "get", "deployment/"+cluster.OperatorDeployment,
				"-o", "jsonpath={.spec.template.spec.containers[0].resources.limits.memory}")
			most := resource.MustParse(limit)
			if got := int64(w.metric("go_gc_gomemlimit_bytes")); got < most.Value()*8/10 || got >= most.Value() {
				w.Errorf("GOMEMLIMIT is %d bytes, and the limit of the container is %s", got, limit)
			}
		})).Feature())
}

// awaitIdle waits until no pod is terminating and nothing has been written for two seconds. The Deployment controller
// counts terminating pods; the disruption controller writes last. It returns the resource versions.
func (w world) awaitIdle() (before map[string]string) {
	w.Helper()
	w.eventually("become idle", func() error {
		var pods corev1.PodList
		w.must(w.List(w.ctx, &pods, client.InNamespace(w.ns)))
		for i := range pods.Items {
			if pods.Items[i].DeletionTimestamp != nil {
				return fmt.Errorf("%s is terminating", pods.Items[i].Name)
			}
		}
		before = w.versions()
		time.Sleep(2 * time.Second)
		return differ(before, w.versions())
	})
	return before
}

// mustBeIdle fails if the operator writes or reads anything from the API server while nothing changes.
func (w world) mustBeIdle(before map[string]string) {
	w.Helper()
	w.eventually("wait for the first reconciles", func() error {
		if w.metric(`controller_runtime_reconcile_total\{.*result="success"\}`) < 2 {
			return errors.New("fewer than 2 successful reconciles")
		}
		return nil
	})
	// POST requests create events, which versions include; PUT requests renew the lease.
	var reads, writes int
	w.eventually("become idle", func() error {
		reads, writes = w.requests("GET"), w.requests("PATCH")+w.requests("DELETE")
		time.Sleep(time.Second)
		if reads != w.requests("GET") || writes != w.requests("PATCH")+w.requests("DELETE") {
			return errors.New("the operator sends requests")
		}
		return nil
	})
	time.Sleep(quiet())
	if n := w.requests("GET") - reads; n != 0 {
		w.Errorf("%d reads in %s", n, quiet())
	}
	if n := w.requests("PATCH") + w.requests("DELETE") - writes; n != 0 {
		w.Errorf("%d writes in %s", n, quiet())
	}
	if err := differ(before, w.versions()); err != nil {
		w.Error(err)
	}
}

// versions returns the resource versions of everything that the operator writes.
func (w world) versions() map[string]string {
	w.Helper()
	versions := map[string]string{}
	for _, list := range append(children(), &v1alpha1.MemcachedList{}, &eventsv1.EventList{}) {
		w.must(w.List(w.ctx, list, client.InNamespace(w.ns)))
		for _, object := range listItems(list) {
			versions[fmt.Sprintf("%T %s", object, object.GetName())] = object.GetResourceVersion()
		}
	}
	return versions
}

func differ(before, after map[string]string) error {
	if !maps.Equal(before, after) {
		return fmt.Errorf("something was written: before %v, after %v", before, after)
	}
	return nil
}

// requests returns the number of requests with this method since the operator started, which has sent some: it renews
// its lease.
func (w world) requests(method string) int {
	w.Helper()
	if w.metric(`rest_client_requests_total\{.*\}`) == 0 {
		w.Fatal("the metrics of the operator count no requests")
	}
	return w.metric(`rest_client_requests_total\{.*method="` + method + `"\}`)
}

// metric returns the sum of all samples of a series in the operator's metrics.
func (w world) metric(series string) int {
	w.Helper()
	var metrics string
	w.eventually("read metrics", func() (err error) { metrics, err = operator.Metrics(w.ctx); return err })
	return int(harness.Sum(metrics, series))
}

// listItems returns the objects of a list.
func listItems(list client.ObjectList) (objects []client.Object) {
	_ = meta.EachListItem(list, func(o runtime.Object) error { objects = append(objects, o.(client.Object)); return nil })
	return objects
}
