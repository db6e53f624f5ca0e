// Package chaos breaks the operator, the control plane and the children of Memcacheds at random, for as long as asked,
// and tests that all of it recovers and that no status is wrong meanwhile.
package chaos

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/tests/cluster"
	"github.com/example/memcached-operator/tests/e2e/truth"
	"github.com/example/memcached-operator/tests/harness"
	"github.com/example/memcached-operator/tests/manifest"
)

var (
	lasts = flag.Duration("lasts", 10*time.Minute, "how long the faults go on")
	seed  = flag.Uint64("seed", 1, "the seed of the faults")
)

// specs are what users ask for.
var specs = []string{"{size: 2}", "{size: 3, threads: 2}", "{size: 3, metrics: {}}",
	"{size: 2, workload: StatefulSet}",
	"{size: 3, workload: StatefulSet, serverAddresses: ClusterIP, rollout: {maxUnavailable: 2}}",
	"{size: 2, workload: StatefulSet, memory: 32Mi, networkPolicy: {}}"}

// world is the cluster and a namespace of it.
type world struct {
	client.WithWatch
	testing.TB
	ctx      context.Context
	cluster  *cluster.Cluster
	operator *cluster.Operator
	random   *rand.Rand
	ns       string
}

// fault is something that goes wrong for a while.
type fault struct {
	name string
	do   func(w *world) error
}

// faults are what can go wrong. A component is frozen for longer than a lease lasts, sometimes.
var faults = []fault{
	{"the leader is killed", func(w *world) error {
		return w.operator.Kill(w.ctx)
	}},
	{"the operator is frozen", func(w *world) error { return w.freeze("operator-1") }},
	{"the API server is frozen", func(w *world) error { return w.freeze("kube-apiserver") }},
	{"etcd is frozen", func(w *world) error { return w.freeze("etcd") }},
	{"the controllers are frozen", func(w *world) error { return w.freeze("kube-controller-manager") }},
	{"the scheduler is frozen", func(w *world) error { return w.freeze("kube-scheduler") }},
	{"the kubelet is frozen", func(w *world) error { return w.freeze("kubelet") }},
	{"a child is deleted", func(w *world) error { return w.onObject(w.children(), w.delete) }},
	{"a child is changed", func(w *world) error {
		return w.onObject(w.children(), func(obj client.Object) error {
			return w.Patch(w.ctx, obj, client.RawPatch(types.MergePatchType, []byte(`{"metadata": {"labels":
				{"app.kubernetes.io/managed-by": "somebody"}, "annotations": null, "ownerReferences": null}}`)))
		})
	}},
	{"a workload is changed", func(w *world) error {
		return w.onObject([]client.ObjectList{&appsv1.DeploymentList{}, &appsv1.StatefulSetList{}},
			func(obj client.Object) error {
				return w.Patch(w.ctx, obj, client.RawPatch(types.MergePatchType, []byte(`{"spec": {"replicas": 1, "template":
					{"metadata": {"labels": {"somebody": "was-here"}}}}}`)))
			})
	}},
	{"a pod is deleted", func(w *world) error { return w.onObject([]client.ObjectList{&corev1.PodList{}}, w.delete) }},
	{"a pod is evicted", func(w *world) error {
		return w.onObject([]client.ObjectList{&corev1.PodList{}}, func(obj client.Object) error {
			return w.SubResource("eviction").Create(w.ctx, obj, &policyv1.Eviction{})
		})
	}},
	{"a user changes the spec", func(w *world) error {
		return w.onObject([]client.ObjectList{&v1alpha1.MemcachedList{}}, func(obj client.Object) error {
			patch := []string{`{"size": 1}`, `{"size": 4}`, `{"threads": 3}`, `{"memory": "48Mi"}`, `{"metrics": {}}`,
				`{"metrics": null}`, `{"networkPolicy": {}}`, `{"networkPolicy": null}`}[w.random.IntN(8)]
			return w.Patch(w.ctx, obj, client.RawPatch(types.MergePatchType, []byte(`{"spec": `+patch+`}`)))
		})
	}},
	{"a user deletes a Memcached", func(w *world) error {
		return w.onObject([]client.ObjectList{&v1alpha1.MemcachedList{}}, w.delete)
	}},
}

// TestChaos lets faults happen, up to three at a time. After them, every Memcached becomes Ready, and none is Ready too
// early. When all Memcacheds are deleted, nothing is left.
func TestChaos(t *testing.T) {
	kind := os.Getenv("CLUSTER")
	if kind == "" {
		t.Skip("make chaos runs it on a cluster")
	}
	w := newWorld(t, kind)
	start, count, rounds, claims, before := time.Now(), map[string]int{}, 0, 0, w.resources()
	slowest, failover := time.Duration(0), time.Duration(0)
	for ; time.Since(start) < *lasts; rounds++ {
		w.createMissing()
		for range 1 + w.random.IntN(3) {
			f := faults[w.random.IntN(len(faults))]
			if err := f.do(w); err != nil {
				if !errors.Is(err, errNone) {
					t.Logf("%s: %v", f.name, err) // as while the API server does not answer
				}
				continue
			}
			count[f.name]++
		}
		began := time.Now()
		w.eventually("find a leader", func() error {
			err := w.operator.Start(w.ctx, 2) // a leader that lost its lease exits
			if err == nil {
				_, err = w.operator.Leader(w.ctx)
			}
			return err
		})
		failover = max(failover, time.Since(began))
		w.createMissing()
		claims += w.converge()
		slowest = max(slowest, time.Since(began))
	}
	require.NoError(t, w.DeleteAllOf(w.ctx, &v1alpha1.Memcached{}, client.InNamespace(w.ns)))
	w.eventually("delete everything", w.empty)
	lines := []string{
		fmt.Sprintf("%.0f minutes, %d rounds of faults, %d times Ready, lies: 0", time.Since(start).Minutes(), rounds,
			claims),
		fmt.Sprintf("at most %.0f s until an operator leads, and %.0f s until everything is as desired",
			failover.Seconds(), slowest.Seconds()),
		fmt.Sprintf("the leader has %s before, and %s after", before, w.resources())}
	for _, f := range faults {
		lines = append(lines, fmt.Sprintf("%4d times %s", count[f.name], f.name))
	}
	t.Log(strings.Join(lines, "\n"))
}

// newWorld starts the cluster and two replicas of the operator, and creates a namespace.
func newWorld(t *testing.T, kind string) *world {
	t.Helper()
	ctrl.SetLogger(log.Log)
	root, err := harness.Repository()
	require.NoError(t, err)
	t.Setenv("PATH", filepath.Join(root, "bin")+":"+os.Getenv("PATH"))
	c, err := cluster.New(kind)
	require.NoError(t, err)
	w := &world{TB: t, ctx: context.Background(), cluster: c, operator: c.Operator(os.Getenv("IMG")),
		random: rand.New(rand.NewPCG(*seed, 0))}
	_, err = c.Create(w.ctx)
	require.NoError(t, errors.Join(err, v1alpha1.AddToScheme(clientgoscheme.Scheme), w.operator.Install(w.ctx),
		w.operator.Stop(w.ctx), w.operator.Start(w.ctx, 2)))
	w.WithWatch, err = client.NewWithWatch(c.KubernetesRestConfig(), client.Options{Scheme: clientgoscheme.Scheme})
	require.NoError(t, err)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "chaos-"}}
	require.NoError(t, w.Create(w.ctx, ns))
	w.ns = ns.Name
	t.Cleanup(func() {
		_ = w.operator.Start(w.ctx, 1)
		_ = w.Delete(w.ctx, ns)
	})
	return w
}

func (w *world) eventually(what string, try func() error) {
	w.Helper()
	harness.Eventually(w, what, 2*harness.Patience, try)
}

// errNone says that there is nothing that the fault could happen to.
var errNone = errors.New("there is none")

// freeze stops a component for up to 20 seconds, without which the leader loses its lease.
func (w *world) freeze(component string) error {
	continues, err := w.cluster.Freeze(component)
	if errors.Is(err, os.ErrNotExist) {
		return errNone
	}
	if err != nil {
		return err
	}
	time.Sleep(time.Duration(w.random.IntN(20)) * time.Second)
	return continues()
}

func (w *world) children() []client.ObjectList {
	return []client.ObjectList{&appsv1.DeploymentList{}, &appsv1.StatefulSetList{}, &corev1.ServiceList{},
		&policyv1.PodDisruptionBudgetList{}}
}

func (w *world) delete(obj client.Object) error { return w.Delete(w.ctx, obj) }

// objects returns the objects of these kinds in the namespace.
func (w *world) objects(kinds ...client.ObjectList) (all []client.Object, err error) {
	for _, list := range kinds {
		if err := w.List(w.ctx, list, client.InNamespace(w.ns)); err != nil {
			return nil, err
		}
		_ = meta.EachListItem(list, func(obj runtime.Object) error {
			all = append(all, obj.(client.Object))
			return nil
		})
	}
	return all, nil
}

// onObject calls do with an object of these kinds.
func (w *world) onObject(kinds []client.ObjectList, do func(client.Object) error) error {
	all, err := w.objects(kinds...)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return errNone
	}
	return do(all[w.random.IntN(len(all))])
}

// createMissing creates the Memcacheds that there are not.
func (w *world) createMissing() {
	w.Helper()
	for i, spec := range specs {
		w.eventually("create a Memcached", func() error {
			mc := manifest.Parse(w.TB, manifest.Named(fmt.Sprintf("cache-%d", i), spec))
			mc.Namespace = w.ns
			return client.IgnoreAlreadyExists(w.Create(w.ctx, mc))
		})
	}
}

// converge waits until every Memcached is Ready and as its workload is. It returns how often one became Ready.
func (w *world) converge() int {
	w.Helper()
	w.eventually("let the operator reconcile every Memcached", w.idle) // what it could not do while faults went on
	sampler, err := truth.Start(w.ctx, w.cluster.KubernetesRestConfig())
	require.NoError(w, err)
	w.eventually("become Ready", func() error {
		all, err := w.objects(&v1alpha1.MemcachedList{})
		for _, obj := range all {
			mc := obj.(*v1alpha1.Memcached)
			if !meta.IsStatusConditionTrue(mc.Status.Conditions, v1alpha1.ConditionReady) ||
				mc.Status.ObservedGeneration != mc.Generation || mc.DeletionTimestamp != nil {
				err = errors.Join(err, fmt.Errorf("%s: %+v", mc.Name, mc.Status))
			}
		}
		return err
	})
	verdict, err := sampler.Stop(w.ctx)
	require.NoError(w, err)
	require.Empty(w, verdict.Lies, "the status lied")
	return verdict.Claims
}

// idle returns an error unless no Memcached waits for a reconcile.
func (w *world) idle() error {
	metrics, err := w.operator.Metrics(w.ctx)
	if err != nil {
		return err
	}
	depths := regexp.MustCompile(`workqueue_depth{controller="memcached".*} (\d+)`).FindAllStringSubmatch(metrics, -1)
	if len(depths) == 0 || slices.ContainsFunc(depths, func(depth []string) bool { return depth[1] != "0" }) {
		return fmt.Errorf("the leader has work to do: %q", depths)
	}
	return nil
}

// empty returns an error unless nothing is left in the namespace.
func (w *world) empty() error {
	all, err := w.objects(append(w.children(), &v1alpha1.MemcachedList{}, &corev1.PodList{}, &appsv1.ReplicaSetList{},
		&appsv1.ControllerRevisionList{}, &corev1.ConfigMapList{})...)
	all = slices.DeleteFunc(all, func(obj client.Object) bool { return obj.GetName() == "kube-root-ca.crt" })
	if len(all) > 0 {
		err = errors.Join(err, fmt.Errorf("%d objects are left, such as %T %s", len(all), all[0], all[0].GetName()))
	}
	return err
}

// resources returns what the leader uses.
func (w *world) resources() string {
	var text string
	w.eventually("read the metrics of the leader", func() error {
		metrics, err := w.operator.Metrics(w.ctx)
		text = fmt.Sprintf("%s goroutines, %s bytes", value(metrics, "go_goroutines"),
			value(metrics, "process_resident_memory_bytes"))
		return err
	})
	return text
}

// value returns the value of a metric.
func value(metrics, name string) string {
	if match := regexp.MustCompile(`(?m)^` + name + ` (.+)$`).FindStringSubmatch(metrics); match != nil {
		return match[1]
	}
	return "no"
}
