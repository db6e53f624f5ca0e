package chaos

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/internal/testing/harness"
	"github.com/example/memcached-operator/internal/testing/manifest"
	"github.com/example/memcached-operator/internal/testing/testca"
	"github.com/example/memcached-operator/tests/cluster"
	"github.com/example/memcached-operator/tests/e2e/truth"
)

// specs are what users ask for, and withProxies what they ask for where agents answer.
var specs = []string{"{size: 2}", "{size: 3, threads: 2}", "{size: 3, metrics: {}}",
	"{size: 2, workload: StatefulSet}",
	"{size: 3, workload: StatefulSet, serverAddresses: ClusterIP, rollout: {maxUnavailable: 2}}",
	"{size: 2, workload: StatefulSet, memory: 32Mi, networkPolicy: {}}",
	"{size: 2, workload: StatefulSet, auth: {secretName: passwords}, tls: {secretName: certificate}, metrics: {}}"}

const withProxies = "{size: 2, workload: StatefulSet, metrics: {}, proxy: {size: 2, threads: 1, memory: 68Mi}}"

// Kinds of objects in the namespace.
var (
	memcacheds = []client.ObjectList{&v1alpha1.MemcachedList{}}
	pods       = []client.ObjectList{&corev1.PodList{}}
	workloads  = []client.ObjectList{&appsv1.DeploymentList{}, &appsv1.StatefulSetList{}}
	children   = append(slices.Clone(workloads), &corev1.ServiceList{}, &corev1.ConfigMapList{},
		&networkingv1.NetworkPolicyList{}, &policyv1.PodDisruptionBudgetList{})
)

// world is the cluster and a namespace with Memcacheds.
type world struct {
	client.WithWatch
	testing.TB
	ctx      context.Context
	core     rest.Interface // of the API group of pods
	cluster  *cluster.Cluster
	operator *cluster.Operator
	random   *mathrand.Rand
	ca       *testca.CA
	ns       string
	specs    []string         // of the Memcacheds
	happened map[string]int   // how often each fault has happened, by its name
	failed   map[string]error // the last error of faults that were tried and have never happened
	replaced int              // servers that were replaced as they should
	judged   int              // rounds in which each status was judged
	rejected float64          // requests of one leader that were answered with 429, at most
	deaths   int              // of leaders that were killed
	calm     resources        // of the leader before the faults
	most     resources        // of a leader after a round, at most
	// failovers are the times from the death of a leader until a standby led. After some deaths no standby runs, or the
	// API server is down too.
	failovers []time.Duration
}

// newWorld starts the cluster and two replicas of the operator, and creates a namespace.
func newWorld(t *testing.T, specs []string) *world {
	t.Helper()
	kind := cluster.Need(t, "chaos")
	ctrl.SetLogger(log.Log)
	t.Logf("seed %d", *seed)
	root, err := harness.Repository()
	require.NoError(t, err)
	t.Setenv("PATH", filepath.Join(root, "bin")+":"+os.Getenv("PATH"))
	c, err := cluster.New(kind)
	require.NoError(t, err)
	w := &world{TB: t, ctx: context.Background(), cluster: c, operator: c.Operator(os.Getenv("IMG")),
		happened: map[string]int{}, failed: map[string]error{},
		random: mathrand.New(mathrand.NewPCG(*seed, 0)), specs: specs}
	w.ca, err = testca.New()
	require.NoError(t, err)
	_, err = c.Create(w.ctx)
	require.NoError(t, errors.Join(err, v1alpha1.AddToScheme(clientgoscheme.Scheme), w.operator.Install(w.ctx),
		w.operator.Stop(w.ctx), w.operator.Start(w.ctx, 2)))
	config := c.KubernetesRestConfig()
	config.QPS = -1
	clientset, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	w.core = clientset.CoreV1().RESTClient()
	config = rest.CopyConfig(config)
	config.Timeout = 20 * time.Second // the API server may be frozen
	w.WithWatch, err = client.NewWithWatch(config, client.Options{Scheme: clientgoscheme.Scheme})
	require.NoError(t, err)
	w.createNamespace()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the namespace %s is left as it is, see KUBECONFIG=%s", w.ns, c.GetKubeconfig())
			return
		}
		_ = w.operator.Start(w.ctx, 1)
		_ = w.Delete(w.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.ns}})
	})
	return w
}

// createNamespace creates a namespace for the Memcacheds.
func (w *world) createNamespace() {
	w.Helper()
	w.eventually("create a namespace", func() error {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "chaos-"}}
		err := w.Create(w.ctx, ns)
		w.ns = ns.Name
		return err
	})
}

// eventually calls try until it returns nil. In between, it starts the programs of the control plane that have exited,
// as a kubelet would: the scheduler exits when its cache is corrupt, and the API server when etcd is frozen.
func (w *world) eventually(what string, try func() error) {
	w.Helper()
	harness.Eventually(w, what, harness.Patience+time.Duration(len(w.specs))*time.Second/2, func() error {
		err := try()
		if err != nil {
			err = errors.Join(err, w.cluster.Repair(w.ctx), w.cluster.Check(w.ctx))
		}
		return err
	})
}

func (w *world) delete(obj client.Object) error { return w.Delete(w.ctx, obj) }

// patch applies a JSON merge patch.
func (w *world) patch(obj client.Object, json string) error {
	return w.Patch(w.ctx, obj, client.RawPatch(types.MergePatchType, []byte(json)))
}

// objects returns the objects of these kinds in the namespace.
func (w *world) objects(kinds ...client.ObjectList) (all []client.Object, err error) {
	for _, list := range kinds {
		list := list.DeepCopyObject().(client.ObjectList)
		if err := w.List(w.ctx, list, client.InNamespace(w.ns)); err != nil {
			return nil, err
		}
		_ = meta.EachListItem(list, func(item runtime.Object) error {
			if obj := item.(client.Object); obj.GetName() != "kube-root-ca.crt" { // Kubernetes creates that one
				all = append(all, obj)
			}
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

// memcached returns the Memcached of a spec.
func (w *world) memcached(i int) *v1alpha1.Memcached {
	w.Helper()
	mc := manifest.Parse(w.TB, manifest.Named(fmt.Sprintf("cache-%d", i), w.specs[i]))
	mc.Namespace = w.ns
	return mc
}

// createMissing creates the Memcacheds and the Secrets that there are not. It waits for those that are being deleted.
func (w *world) createMissing() {
	w.Helper()
	w.eventually("create the Secrets", func() error {
		return w.onSecrets(func(secret *corev1.Secret) error { return client.IgnoreAlreadyExists(w.Create(w.ctx, secret)) })
	})
	for i := range w.specs {
		w.eventually("create a Memcached", func() error {
			mc := w.memcached(i)
			err := w.Create(w.ctx, mc)
			if !apierrors.IsAlreadyExists(err) {
				return err
			}
			if err = w.Get(w.ctx, client.ObjectKeyFromObject(mc), mc); err == nil && mc.DeletionTimestamp != nil {
				err = fmt.Errorf("%s is still being deleted", mc.Name)
			}
			return err
		})
	}
}

// onSecrets calls do with new versions of all Secrets.
func (w *world) onSecrets(do func(*corev1.Secret) error) error {
	certificate, err := w.ca.Secret("cache")
	if err != nil {
		return err
	}
	for name, data := range map[string]map[string][]byte{"certificate": certificate,
		"passwords": {"authfile": []byte("user:" + rand.Text() + "\n")}} {
		err = errors.Join(err, do(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}, Data: data}))
	}
	return err
}

// lead starts the replicas that do not run, and waits until one of them leads. A leader that lost its lease exits.
func (w *world) lead() {
	w.Helper()
	w.eventually("find a leader", func() error {
		err := w.operator.Start(w.ctx, 2)
		if err == nil {
			_, err = w.operator.Leader(w.ctx)
		}
		return err
	})
}

// converge waits until every Memcached is Ready and as its workload is. It returns how often one became Ready.
func (w *world) converge() int {
	w.Helper()
	// What namespace controller and operator could not do while faults went on.
	w.eventually("let deleted namespaces end", func() error {
		var namespaces corev1.NamespaceList
		err := w.List(w.ctx, &namespaces)
		for _, ns := range namespaces.Items {
			if ns.DeletionTimestamp != nil {
				err = fmt.Errorf("the namespace %s: %+v", ns.Name, ns.Status)
			}
		}
		return err
	})
	w.eventually("let the operator reconcile every Memcached", w.idle)
	sampler := w.watch()
	w.eventually("become Ready", func() error {
		all, err := w.objects(memcacheds...)
		if err == nil && len(all) != len(w.specs) {
			err = fmt.Errorf("there are %d Memcacheds", len(all))
		}
		for _, obj := range all {
			mc := obj.(*v1alpha1.Memcached)
			if !meta.IsStatusConditionTrue(mc.Status.Conditions, v1alpha1.ConditionReady) ||
				mc.Status.ObservedGeneration != mc.Generation || mc.DeletionTimestamp != nil {
				return fmt.Errorf("%s: %+v", mc.Name, mc.Status)
			}
		}
		return errors.Join(err, w.drift())
	})
	verdict, err := sampler.Stop(w.ctx)
	require.NoError(w, err)
	require.Empty(w, verdict.Lies, "the status lied")
	return verdict.Claims
}

// watch begins to watch each status.
func (w *world) watch() *truth.Sampler {
	w.Helper()
	sampler, err := truth.Start(w.ctx, w.cluster.KubernetesRestConfig())
	require.NoError(w, err)
	return sampler
}

// judge fails if a status was wrong during the faults of a round, unless the API server was restarted and lost events.
// A status may stay Ready for too long: while the operator or the API server is frozen, nobody can correct it.
func (w *world) judge(sampler *truth.Sampler) {
	w.Helper()
	verdict, err := sampler.Stop(w.ctx)
	if errors.Is(err, truth.ErrLost) {
		w.Log(err)
		return
	}
	require.NoError(w, err)
	require.Empty(w, slices.DeleteFunc(verdict.Lies, func(lie string) bool {
		return strings.Contains(lie, " stayed Ready for ")
	}), "the status lied while faults went on")
	w.judged++
}

// drift returns an error if a child is not the operator's any more.
func (w *world) drift() error {
	all, err := w.objects(children...)
	for _, child := range all {
		if owner := metav1.GetControllerOf(child); owner == nil || owner.Kind != "Memcached" ||
			child.GetLabels()[names.LabelManagedBy] != names.Operator {
			return fmt.Errorf("%T %s has the owner %v and the labels %v", child, child.GetName(), owner, child.GetLabels())
		}
	}
	return err
}

// idle returns an error unless the leader has reconciled every Memcached, and has nothing more to do.
func (w *world) idle() error {
	metrics, err := w.operator.Metrics(w.ctx)
	if err != nil {
		return err
	}
	const of = `\{controller="memcached".*\}`
	w.rejected = max(w.rejected, harness.Sum(metrics, `rest_client_requests_total\{code="429".*\}`))
	if n := harness.Sum(metrics, "controller_runtime_reconcile_total"+of); int(n) < len(w.specs) {
		return fmt.Errorf("the leader has reconciled %.0f times", n)
	}
	if n := harness.Sum(metrics, "(?:workqueue_depth|controller_runtime_active_workers)"+of); n > 0 {
		return fmt.Errorf("the leader has %.0f Memcacheds to reconcile", n)
	}
	return nil
}

// empty returns an error unless nothing is left in the namespace.
func (w *world) empty() error {
	all, err := w.objects(slices.Concat(children, memcacheds, pods, []client.ObjectList{&appsv1.ReplicaSetList{},
		&appsv1.ControllerRevisionList{}})...)
	if len(all) > 0 {
		err = errors.Join(err, fmt.Errorf("%d objects are left, such as %T %s", len(all), all[0], all[0].GetName()))
	}
	return err
}

// resources are what the leader uses.
type resources struct{ goroutines, mebibytes float64 }

// String describes the resources.
func (r resources) String() string { return fmt.Sprintf("%.0f, %.0f MiB", r.goroutines, r.mebibytes) }

// used returns what the leader uses.
func (w *world) used() (r resources, err error) {
	metrics, err := w.operator.Metrics(w.ctx)
	r = resources{harness.Sum(metrics, "go_goroutines"), harness.Sum(metrics, "process_resident_memory_bytes") / (1 << 20)}
	if err == nil && (r.goroutines == 0 || r.mebibytes == 0) {
		err = errors.New("the metrics are missing")
	}
	return r, err
}

// measureCalm measures the leader before the faults.
func (w *world) measureCalm() {
	w.Helper()
	w.eventually("read the metrics of the leader", func() (err error) {
		w.calm, err = w.used()
		return errors.Join(err, w.idle())
	})
}

// measure measures the leader after a round. It fails if the leader goes on to use much more than before the faults.
func (w *world) measure() {
	w.Helper()
	w.eventually("release what the faults needed", func() error {
		used, err := w.used()
		if err == nil && (used.goroutines > 1.1*w.calm.goroutines || used.mebibytes > 2*w.calm.mebibytes) {
			err = fmt.Errorf("goroutines and memory of the leader: %s, before the faults: %s", used, w.calm)
		}
		if err == nil {
			w.most = resources{max(w.most.goroutines, used.goroutines), max(w.most.mebibytes, used.mebibytes)}
		}
		return err
	})
}
