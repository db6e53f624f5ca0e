package controllers

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/desired"
)

// TestManager runs the reconciler in a manager, with the real cache, indexes, watches and predicates. The other tests
// simulate the cache.
func TestManager(t *testing.T) {
	f := newFixture(t)
	ctx, stop := context.WithCancel(f.ctx)
	options := CacheOptions()
	options.DefaultNamespaces = map[string]cache.Config{f.mc.Namespace: {}} // other tests use other namespaces
	mgr, err := ctrl.NewManager(rest.CopyConfig(environment.Config), ctrl.Options{
		Scheme: f.api.Scheme(), Cache: options, Metrics: metricsserver.Options{BindAddress: "0"},
	})
	f.must(err)
	r := &MemcachedReconciler{Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(),
		Recorder: mgr.GetEventRecorder("test"),
		Options:  desired.Options{DefaultImage: "memcached:1", AgentImage: "operator:1"}}
	f.must(r.SetupWithManager(mgr, 2))
	stopped := make(chan error)
	go func() { stopped <- mgr.Start(ctx) }()
	defer func() { stop(); f.must(<-stopped) }()

	f.eventually("the Deployment", func() error { return f.api.Get(f.ctx, f.key("cache"), &appsv1.Deployment{}) })
	f.setServersReady(3)
	f.eventually("Ready", func() error { return f.checkPhase(v1alpha1.PhaseReady) })
	f.overwriteStatus()
	f.eventually("Ready after another manager wrote the status", func() error { return f.checkPhase(v1alpha1.PhaseReady) })
	f.must(f.api.Delete(f.ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "cache-1", Namespace: f.mc.Namespace}},
		client.GracePeriodSeconds(0)))
	f.eventually("Degraded after a server was lost", func() error { return f.checkPhase(v1alpha1.PhaseDegraded) })
	d := get[appsv1.Deployment](f)
	d.Labels = nil // so that the informer cache does not show the Deployment
	f.must(f.api.Update(f.ctx, d, client.FieldOwner("somebody")))
	f.eventually("the labels of the Deployment", func() error {
		if get[appsv1.Deployment](f).Labels == nil {
			return errors.New("there are none")
		}
		return nil
	})
	f.setServersReady(3)
	f.eventually("Ready after the server was replaced", func() error { return f.checkPhase(v1alpha1.PhaseReady) })
	f.must(f.api.Delete(f.ctx, f.mc))
	f.eventually("the deletion of the Deployment", func() error {
		if d := get[appsv1.Deployment](f); d.DeletionTimestamp.IsZero() {
			return errors.New("not deleted")
		}
		return nil
	})
	f.collectGarbage()
	f.eventually("the deletion of the Memcached", func() error {
		if err := f.api.Get(f.ctx, client.ObjectKeyFromObject(f.mc), f.mc); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it still exists: %w", err)
		}
		return nil
	})
}

// checkPhase returns an error unless the Memcached is in a phase, with at most three servers.
func (f *fixture) checkPhase(want v1alpha1.Phase) error {
	f.must(f.api.Get(f.ctx, client.ObjectKeyFromObject(f.mc), f.mc))
	if f.mc.Status.Phase != want || len(f.mc.Status.Nodes) > 3 {
		return fmt.Errorf("got phase %s and servers %q, want %s", f.mc.Status.Phase, f.mc.Status.Nodes, want)
	}
	return nil
}

// eventually calls try until it returns no error.
func (f *fixture) eventually(what string, try func() error) {
	f.Helper()
	var last error
	err := wait.PollUntilContextTimeout(f.ctx, 20*time.Millisecond, 30*time.Second, true,
		func(context.Context) (bool, error) {
			last = try()
			return last == nil, nil
		})
	if err != nil {
		f.Fatalf("waiting for %s: %v: %v, %+v", what, err, last, f.mc.Status)
	}
}
