package gitops

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/argoproj/gitops-engine/pkg/cache"
	"github.com/argoproj/gitops-engine/pkg/diff"
	"github.com/argoproj/gitops-engine/pkg/health"
	"github.com/argoproj/gitops-engine/pkg/sync"
	"github.com/argoproj/gitops-engine/pkg/sync/common"
	"github.com/argoproj/gitops-engine/pkg/utils/kube"
	"github.com/argoproj/gitops-engine/pkg/utils/tracing"
	"github.com/go-logr/logr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

const trackingID = "argocd.argoproj.io/tracking-id"

// argo is an Application of Argo CD. gitops-engine syncs it, as Argo CD's application controller would make it do, with
// the health checks of Argo CD and of the argocd-cm patch.
type argo struct {
	*env
	*repository
	cache      cache.ClusterCache
	serverSide bool // the sync option ServerSideApply=true
}

func newArgo(t *testing.T, serverSide bool) *argo {
	t.Helper()
	return newEnv(t).argo(serverSide)
}

// argo returns an Application in the test's namespace and in these.
func (e *env) argo(serverSide bool, namespaces ...string) *argo {
	e.Helper()
	a := &argo{env: e, repository: e.newRepository(), serverSide: serverSide}
	a.cache = cache.NewClusterCache(e.config, cache.SetLogr(logr.Discard()), cache.SetClusterResources(true),
		cache.SetNamespaces(append(namespaces, e.namespace)),
		cache.SetPopulateResourceInfoHandler(func(u *unstructured.Unstructured, _ bool) (any, bool) {
			id := u.GetAnnotations()[trackingID]
			return id, id != ""
		}))
	require.NoError(e, a.cache.EnsureSynced())
	e.Cleanup(func() { a.cache.Invalidate() })
	return a
}

// targets returns the manifests of the repository, with the annotation by which Argo CD tracks them.
func (a *argo) targets() (targets []*unstructured.Unstructured) {
	a.Helper()
	files, err := filepath.Glob(a.dir + "/*/*.yaml")
	require.NoError(a, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(a, err)
		objects, err := kube.SplitYAML(text)
		require.NoError(a, err)
		targets = append(targets, objects...)
	}
	for _, target := range targets {
		annotations := target.GetAnnotations()
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[trackingID] = a.namespace
		target.SetAnnotations(annotations)
		if namespaced, err := a.cache.IsNamespaced(target.GroupVersionKind().GroupKind()); err == nil && namespaced &&
			target.GetNamespace() == "" {
			target.SetNamespace(a.namespace)
		}
	}
	return targets
}

// operation is a running or completed sync.
type operation struct {
	phase   common.OperationPhase
	message string
	results []common.ResourceSyncResult
	started metav1.Time
}

// reconcile continues a sync by one step, as each refresh of an Application does.
func (a *argo) reconcile(op *operation) {
	a.Helper()
	targets := a.targets()
	live, err := a.cache.GetManagedLiveObjs(targets, func(r *cache.Resource) bool { return r.Info == a.namespace })
	require.NoError(a, err)
	state := sync.Reconcile(targets, live, a.namespace, a.cache)
	foreground := metav1.DeletePropagationForeground
	ctx, cleanup, err := sync.NewSyncContext(a.git("rev-parse", "HEAD"), state, a.config, a.config,
		&kube.KubectlCmd{Log: logr.Discard(), Tracer: tracing.NopTracer{}}, a.namespace, a.cache.GetOpenAPISchema(),
		sync.WithLogr(logr.Discard()), sync.WithHealthOverride(overrides(a.T)), sync.WithOperationSettings(false, true, false,
			false),
		sync.WithInitialState(op.phase, op.message, op.results,
			op.started), sync.WithPrunePropagationPolicy(&foreground), sync.WithPruneLast(true),
		sync.WithServerSideApply(a.serverSide), sync.WithServerSideApplyManager("argocd-controller"),
		sync.WithSkipDryRunOnMissingResource(true))
	require.NoError(a, err)
	defer cleanup()
	ctx.Sync()
	op.phase, op.message, op.results = ctx.GetState()
}

// refreshed waits until Argo CD would refresh the Application: when an object changes, or after 200 ms.
func (a *argo) refreshed(ctx context.Context) {
	changed := make(chan struct{}, 1)
	defer a.cache.OnResourceUpdated(func(_, _ *cache.Resource, _ map[kube.ResourceKey]*cache.Resource) {
		select {
		case changed <- struct{}{}:
		default:
		}
	})()
	select {
	case <-changed:
	case <-time.After(200 * time.Millisecond):
	case <-ctx.Done():
	}
}

// try syncs until the operation completes or the time is up.
func (a *argo) try(patience time.Duration) operation {
	a.Helper()
	ctx, cancel := context.WithTimeout(a.Context(), patience)
	defer cancel()
	op := operation{phase: common.OperationRunning, started: metav1.Now()}
	for a.reconcile(&op); !op.phase.Completed() && ctx.Err() == nil; a.reconcile(&op) {
		a.refreshed(ctx)
	}
	return op
}

// sync syncs, and returns when everything is healthy and in sync.
func (a *argo) sync() {
	a.Helper()
	op := a.try(patience)
	require.Equal(a, common.OperationSucceeded, op.phase, "%s: %v", op.message, op.results)
	ctx, cancel := context.WithTimeout(a.Context(), patience)
	defer cancel()
	for wrong := a.unhealthy(); wrong != ""; wrong = a.unhealthy() {
		require.NoError(a, ctx.Err(), wrong)
		a.refreshed(ctx)
	}
}

// unhealthy returns which object of the Application is not healthy or differs from git; "" if there is none.
func (a *argo) unhealthy() string {
	a.Helper()
	for _, target := range a.targets() {
		live := a.get(target)
		status, err := health.GetResourceHealth(live, overrides(a.T))
		require.NoError(a, err)
		if status != nil && status.Status != health.HealthStatusHealthy {
			return fmt.Sprintf("%s %s is %s: %s", target.GetKind(), target.GetName(), status.Status, status.Message)
		}
		result, err := diff.Diff(target, live, diff.WithLogr(logr.Discard()))
		require.NoError(a, err)
		if result.Modified {
			return fmt.Sprintf("%s %s is out of sync: %s\nlive: %s", target.GetKind(), target.GetName(), result.PredictedLive,
				result.NormalizedLive)
		}
	}
	return ""
}

func (a *argo) push(files map[string]string) {
	a.Helper()
	a.commit(files)
	a.sync()
}

// TestArgo creates a cache from git, changes it, reverts drift, prunes it and creates it again.
func TestArgo(t *testing.T) {
	for name, serverSide := range map[string]bool{"client-side apply": false, "server-side apply": true} {
		t.Run(name, func(t *testing.T) {
			a := newArgo(t, serverSide)
			deployments := a.observe(deploymentKind, a.namespace)
			memcacheds := a.observe(memcachedKind, a.namespace)
			// push syncs, and runs health.lua on every event meanwhile: the Memcached must not be healthy before its servers are
			// available.
			push := func(what string, replicas int64, spec string) {
				t.Helper()
				start, from, before := time.Now(), len(memcacheds.all("cache")), map[types.UID]int64{}
				for _, old := range a.list(memcachedKind) {
					before[old.GetUID()] = old.GetGeneration()
				}
				a.push(map[string]string{"caches/cache.yaml": cacheYAML + spec})
				done := time.Since(start)
				servers := deployments.until("cache", complete(replicas))
				for _, got := range memcacheds.all("cache")[from:] {
					if got.GetGeneration() <= before[got.GetUID()] {
						continue // an event of what was there before may be late
					}
					status, err := health.GetResourceHealth(got.Unstructured, overrides(t))
					require.NoError(t, err)
					assert.NotEqual(t, health.HealthStatusDegraded, status.Status, "%s: %s", what, status.Message)
					if status.Status == health.HealthStatusHealthy {
						assert.Less(t, version(servers.Unstructured), version(got.Unstructured),
							"%s: healthy before the servers were ready", what)
					}
				}
				a.measured("%-8s commit to healthy: servers %.2f s, Application %.2f s", what, servers.at.Sub(start).Seconds(),
					done.Seconds())
			}
			sample := a.object(memcachedKind, "cache")

			push("create", 3, "  size: 3\n")
			push("change", 5, "  size: 5\n  memory: 128Mi\n")

			generation := a.get(sample).GetGeneration()
			a.patch(sample, "kubectl-edit", `{"spec": {"memory": "256Mi"}}`)
			a.sync()
			memory, _, _ := unstructured.NestedString(a.get(sample).Object, "spec", "memory")
			assert.Equal(t, "128Mi", memory)
			assert.Equal(t, generation+2, a.get(sample).GetGeneration(),
				"one by the person, one by Argo CD, none by the operator")
			a.drift("cache", 5)
			a.sync()
			a.trackingStaysOnTheCR("cache")

			a.pruned(func() { a.push(nil) })
			push("recreate", 2, "  size: 2\n")
			a.pruned(func() { a.delete(sample, metav1.DeletePropagationForeground) })
		})
	}
}

func TestArgoAutoscaled(t *testing.T) {
	a := newArgo(t, true)
	a.autoscaledOutsideOfGit(a)
}

// TestArgoHandOver starts with client-side apply, Argo CD's default, which has no field owners.
func TestArgoHandOver(t *testing.T) {
	a := newArgo(t, false)
	a.push(map[string]string{"caches/cache.yaml": cacheYAML + "  size: 3\n"})
	a.serverSide = true
	a.sync()
	a.handedOver(a)
}
