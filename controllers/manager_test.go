package controllers

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/desired"
	"github.com/example/memcached-operator/internal/testing/harness"
)

// TestManager runs the reconciler in a manager, with the real cache, indexes, watches and predicates. The other tests
// simulate the cache.
func TestManager(t *testing.T) {
	f := newFixture(t, onDeployment)
	ctx, stop := context.WithCancel(f.Ctx)
	options := CacheOptions()
	options.DefaultNamespaces = map[string]cache.Config{f.Key.Namespace: {}} // other tests use other namespaces
	mgr, err := ctrl.NewManager(rest.CopyConfig(environment.Config), ctrl.Options{
		Scheme: f.API.Scheme(), Cache: options, Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{MaxConcurrentReconciles: 2},
	})
	f.Must(err)
	r := &MemcachedReconciler{Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(),
		Recorder: mgr.GetEventRecorder("test"), Now: time.Now, AskAgent: AskAgent, StopServer: StopServer,
		Options: desired.Options{DefaultImage: "memcached:1", AgentImage: "operator:1"}}
	f.Must(r.SetupWithManager(mgr))
	stopped := make(chan error)
	go func() { stopped <- mgr.Start(ctx) }()
	defer func() { stop(); f.Must(<-stopped) }()

	wait := func(what string, holds func() bool) {
		t.Helper()
		harness.Eventually(t, what, 30*time.Second, func() error {
			if !holds() {
				return fmt.Errorf("not yet: %+v", f.mc.Status)
			}
			return nil
		})
	}
	isIn := func(phase v1alpha1.Phase) func() bool {
		return func() bool {
			return f.exists("cache", f.mc) && f.mc.Status.Phase == phase && len(f.mc.Status.Nodes) <= 3
		}
	}
	d := &appsv1.Deployment{}
	wait("the Deployment", func() bool { return f.exists("cache", d) })
	for range 3 {
		f.act()
	}
	wait("Ready", isIn(v1alpha1.PhaseReady))
	f.Must(f.API.Create(f.Ctx, &corev1.Secret{ObjectMeta: f.Object("release"), Type: "helm.sh/release.v1"}))
	f.Must(f.API.Create(f.Ctx, &corev1.Secret{ObjectMeta: f.Object("passwords")}))
	secrets := &metav1.PartialObjectMetadataList{}
	secrets.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("SecretList"))
	wait("the Secret that Helm did not create", func() bool {
		f.Must(mgr.GetClient().List(ctx, secrets))
		return len(secrets.Items) > 0
	})
	if got := secrets.Items[0].Name; len(secrets.Items) > 1 || got != "passwords" {
		t.Errorf("the cache holds %d Secrets, the first is %s", len(secrets.Items), got)
	}
	f.overwriteStatus()
	wait("Ready after another manager wrote the status", func() bool {
		return isIn(v1alpha1.PhaseReady)() && !slices.Contains(f.mc.Status.Nodes, "restored")
	})
	f.lose(f.pods("")[0].Name)
	wait("Degraded after a server was lost", isIn(v1alpha1.PhaseDegraded))
	f.Patch(get[appsv1.Deployment](f), `{"metadata":{"labels":null}}`) // so that the informer cache does not show it
	wait("the labels of the Deployment", func() bool { return f.exists("cache", d) && d.Labels != nil })
	for range 3 {
		f.act()
	}
	wait("Ready after the server was replaced", isIn(v1alpha1.PhaseReady))
	f.delete(metav1.DeletePropagationBackground)
	wait("the deletion of the Deployment", func() bool { return f.exists("cache", d) && !d.DeletionTimestamp.IsZero() })
	f.collectGarbage()
	wait("the deletion of the Memcached", func() bool { return !f.exists("cache", f.mc) })
}
