package gitops

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// patience is how long each wait may take. On an idle machine, none takes a tenth of it.
const patience = 90 * time.Second

const root = "../.."

var (
	memcachedKind  = schema.GroupVersionKind{Group: "cache.example.com", Version: "v1alpha1", Kind: "Memcached"}
	deploymentKind = schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}
	serviceKind    = schema.GroupVersionKind{Version: "v1", Kind: "Service"}
	pdbKind        = schema.GroupVersionKind{Group: "policy", Version: "v1", Kind: "PodDisruptionBudget"}
	podKind        = schema.GroupVersionKind{Version: "v1", Kind: "Pod"}
	namespaceKind  = schema.GroupVersionKind{Version: "v1", Kind: "Namespace"}
	crdKind        = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1",
		Kind: "CustomResourceDefinition"}
)

// summary has the measurements, which are printed at the end.
var (
	summary []string
	timed   = map[string]bool{}
)

func TestMain(m *testing.M) {
	klog.SetLogger(logr.Discard()) // discards a log line of client-go for each watch that a test stops
	code := m.Run()
	fmt.Println(strings.Join(summary, "\n"))
	os.Exit(code)
}

// env is the cluster with an administrator's client, and a namespace of the test.
type env struct {
	*testing.T
	client.WithWatch
	config    *rest.Config
	namespace string
}

func (e *env) measured(format string, args ...any) {
	summary = append(summary, fmt.Sprintf("         "+format, args...))
}

// newEnv skips the test if there is no cluster. `make gitops-e2e` starts one.
func newEnv(t *testing.T) *env {
	t.Helper()
	if os.Getenv("KUBECONFIG") == "" {
		t.Skip("needs a cluster with the operator: make gitops-e2e")
	}
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	require.NoError(t, err)
	if line, start := len(summary), time.Now(); !timed[t.Name()] {
		timed[t.Name()] = true
		summary = append(summary, "")
		t.Cleanup(func() { summary[line] = fmt.Sprintf("%5.1f s  %s", time.Since(start).Seconds(), t.Name()) })
	}
	config.QPS, config.Burst = 200, 400
	config.WarningHandler = rest.NoWarnings{}
	c, err := client.NewWithWatch(config, client.Options{})
	require.NoError(t, err)
	e := &env{T: t, WithWatch: c, config: config}
	namespace := object(namespaceKind, "", "")
	namespace.SetGenerateName("gitops-")
	require.NoError(t, e.Create(t.Context(), namespace))
	e.namespace = namespace.GetName()
	t.Cleanup(func() { _ = e.Delete(context.Background(), namespace) })
	return e
}

func object(kind schema.GroupVersionKind, namespace, name string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(kind)
	u.SetNamespace(namespace)
	u.SetName(name)
	return u
}

// object returns an object in the test's namespace.
func (e *env) object(kind schema.GroupVersionKind, name string) *unstructured.Unstructured {
	return object(kind, e.namespace, name)
}

// memcached returns a Memcached with this spec in YAML.
func (e *env) memcached(name, spec string) *unstructured.Unstructured {
	mc := e.object(memcachedKind, name)
	var s map[string]any
	require.NoError(e, yaml.Unmarshal([]byte(spec), &s))
	mc.Object["spec"] = s
	return mc
}

// patch applies a JSON merge patch to an object with this field manager.
func (e *env) patch(obj *unstructured.Unstructured, manager, json string) {
	e.Helper()
	require.NoError(e, e.Patch(e.Context(), obj.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(json)),
		client.FieldOwner(manager)))
}

func (e *env) get(obj *unstructured.Unstructured) *unstructured.Unstructured {
	e.Helper()
	got := object(obj.GroupVersionKind(), "", "")
	require.NoError(e, e.Get(e.Context(), client.ObjectKeyFromObject(obj), got))
	return got
}

// list returns the objects of a kind in the test's namespace.
func (e *env) list(kind schema.GroupVersionKind) []unstructured.Unstructured {
	e.Helper()
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(kind)
	require.NoError(e, e.List(e.Context(), list, client.InNamespace(e.namespace)))
	return list.Items
}

// run runs a command in the root of the repository and returns its output.
func (e *env) run(name string, args ...string) string {
	e.Helper()
	return e.runWith("", name, args...)
}

func (e *env) runWith(stdin, name string, args ...string) string {
	e.Helper()
	cmd := exec.CommandContext(e.Context(), name, args...)
	cmd.Dir, cmd.Stdin = root, strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	require.NoError(e, cmd.Run(), "%s %s: %s", name, strings.Join(args, " "), stdout.String()+stderr.String())
	return stdout.String()
}

// stopOperator stops the operator. It starts again when start is called or the test ends.
func (e *env) stopOperator() (start func()) {
	e.Helper()
	e.run("bin/cluster", "-kind", "kwok", "operator-stop")
	var once sync.Once
	start = func() {
		once.Do(func() {
			cmd := exec.Command("bin/cluster", "-kind", "kwok", "operator-start", "unused")
			cmd.Dir = root
			if out, err := cmd.CombinedOutput(); err != nil {
				e.Errorf("start the operator again: %v: %s", err, out)
			}
		})
	}
	e.Cleanup(start)
	return start
}

// observer records every event of a kind in a namespace since its creation.
type observer struct {
	e      *env
	kind   schema.GroupVersionKind
	mu     sync.Mutex
	events []event
	more   chan struct{} // closed and replaced at each event
	lost   error
}

type event struct {
	watch.EventType
	*unstructured.Unstructured
	at time.Time
}

func (e *env) observe(kind schema.GroupVersionKind, namespace string) *observer {
	e.Helper()
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(kind)
	list.SetKind(kind.Kind + "List")
	watcher, err := e.Watch(e.Context(), list, client.InNamespace(namespace))
	require.NoError(e, err)
	e.Cleanup(watcher.Stop)
	o := &observer{e: e, kind: kind, more: make(chan struct{})}
	go func() {
		for {
			got, open := <-watcher.ResultChan()
			o.mu.Lock()
			if u, ok := got.Object.(*unstructured.Unstructured); open && ok && got.Type != watch.Error {
				o.events = append(o.events, event{got.Type, u, time.Now()})
			} else {
				o.lost = fmt.Errorf("the watch ended: %v", got)
			}
			close(o.more)
			o.more = make(chan struct{})
			lost := o.lost
			o.mu.Unlock()
			if lost != nil {
				return
			}
		}
	}()
	return o
}

// all returns the events so far, of the object with this name or, for "", of all objects.
func (o *observer) all(name string) (events []event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, got := range o.events {
		if name == "" || got.GetName() == name {
			events = append(events, got)
		}
	}
	return events
}

// until returns the first event, past or future, of the object with this name for which check returns "".
func (o *observer) until(name string, check func(event) string) event {
	o.e.Helper()
	timeout := time.After(patience)
	last, seen := "the object does not exist", 0
	for {
		o.mu.Lock()
		more, lost := o.more, o.lost
		o.mu.Unlock()
		events := o.all(name)
		for _, got := range events[seen:] {
			if last = check(got); last == "" {
				return got
			}
		}
		seen = len(events)
		require.NoError(o.e, lost)
		select {
		case <-more:
		case <-timeout:
			require.FailNow(o.e, "the wait timed out", "%s %s: %s", o.kind.Kind, name, last)
		}
	}
}

// await waits until check returns "" for the object. Unlike until, it ignores earlier events.
func (e *env) await(obj *unstructured.Unstructured, check func(event) string) *unstructured.Unstructured {
	e.Helper()
	return e.observe(obj.GroupVersionKind(), obj.GetNamespace()).until(obj.GetName(), check).Unstructured
}

// established waits until the API server serves a CRD.
func (e *env) established(crd string) {
	e.Helper()
	e.await(object(crdKind, "", crd), func(got event) string {
		if !strings.HasPrefix(conditions(got.Unstructured)["Established"], "Established=True/") {
			return "the CRD is not established"
		}
		return ""
	})
}

func (r row) check(got event) string { return r.mismatch(got.Unstructured) }

// rowOf returns the row with this name.
func rowOf(name string) row {
	for _, r := range contract {
		if r.name == name {
			return r
		}
	}
	panic("no row " + name)
}

// version returns the resource version, which orders all events of the cluster.
func version(u *unstructured.Unstructured) int64 {
	v, err := strconv.ParseInt(u.GetResourceVersion(), 10, 64)
	if err != nil {
		panic(err)
	}
	return v
}

func (e *env) create(objects ...*unstructured.Unstructured) {
	e.Helper()
	for _, obj := range objects {
		require.NoError(e, e.Create(e.Context(), obj.DeepCopy()))
	}
}

func (e *env) delete(obj *unstructured.Unstructured, policy metav1.DeletionPropagation) {
	e.Helper()
	require.NoError(e, client.IgnoreNotFound(e.Delete(e.Context(), obj.DeepCopy(), client.PropagationPolicy(policy))))
}
