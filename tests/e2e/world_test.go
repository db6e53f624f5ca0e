package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/internal/testing/harness"
	"github.com/example/memcached-operator/internal/testing/manifest"
	"github.com/example/memcached-operator/tests/e2e/truth"
)

// world is the environment of a step: the cluster and a namespace. An error ends the step.
type world struct {
	client.WithWatch
	*testing.T
	ctx context.Context
	ns  string
}

func (w world) must(err error) {
	w.Helper()
	harness.Must(w, err)
}

// eventually calls try until it returns nil.
func (w world) eventually(what string, try func() error) {
	w.Helper()
	harness.Eventually(w, what, harness.Patience, try)
}

func (w world) kubectl(args ...string) (string, error) {
	return harness.Command{}.Run(w.ctx, "kubectl", append([]string{"--namespace", w.ns}, args...)...)
}

func (w world) mustKubectl(args ...string) string {
	w.Helper()
	out, err := w.kubectl(args...)
	w.must(err)
	return out
}

// create creates a Memcached of this size.
func (w world) create(name string, size int32) {
	w.Helper()
	w.createSpec(name, fmt.Sprintf("{size: %d}", size))
}

// createSpec creates a Memcached with this spec.
func (w world) createSpec(name, spec string) {
	w.Helper()
	w.must(w.Create(w.ctx, w.parse(name, spec)))
}

// parse returns a Memcached with this spec.
func (w world) parse(name, spec string) *v1alpha1.Memcached {
	w.Helper()
	mc := &v1alpha1.Memcached{}
	w.must(yaml.UnmarshalStrict([]byte(manifest.Named(name, spec)), mc))
	mc.Namespace = w.ns
	return mc
}

// deleteMemcached deletes a Memcached.
func (w world) deleteMemcached(name string) {
	w.Helper()
	w.must(w.Delete(w.ctx, &v1alpha1.Memcached{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}}))
}

// merge applies a merge patch to the spec of a Memcached.
func (w world) merge(name, spec string) {
	w.Helper()
	mc := &v1alpha1.Memcached{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}}
	w.must(w.Patch(w.ctx, mc, client.RawPatch(types.MergePatchType, []byte(`{"spec":`+spec+`}`))))
}

// load reads an object in the namespace.
func load[T any, P interface {
	*T
	client.Object
}](w world, name string) (P, error) {
	object := P(new(T))
	return object, w.Get(w.ctx, client.ObjectKey{Namespace: w.ns, Name: name}, object)
}

// get reads an object in the namespace, which exists.
func get[T any, P interface {
	*T
	client.Object
}](w world, name string) P {
	w.Helper()
	object, err := load[T, P](w, name)
	w.must(err)
	return object
}

// memcached reads a Memcached, which exists.
func (w world) memcached(name string) *v1alpha1.Memcached {
	w.Helper()
	return get[v1alpha1.Memcached](w, name)
}

// servers returns the pods of the servers of a Memcached that are not terminating, sorted by name.
func (w world) servers(name string) []corev1.Pod { return w.podsOf(name, "server") }

// podsOf returns the pods of a component of a Memcached that are not terminating, sorted by name.
func (w world) podsOf(name, component string) []corev1.Pod {
	w.Helper()
	pods, err := w.listPods(name, component)
	w.must(err)
	return pods
}

func (w world) listPods(name, component string) ([]corev1.Pod, error) {
	var pods corev1.PodList
	err := w.List(w.ctx, &pods, client.InNamespace(w.ns), client.MatchingLabels{
		"cache.example.com/name": name, "cache.example.com/component": component})
	list := slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
	slices.SortFunc(list, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return list, err
}

// kstatus returns the status of a Memcached as Flux computes it.
func kstatus(mc *v1alpha1.Memcached) (status.Status, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(mc)
	if err != nil {
		return "", err
	}
	result, err := status.Compute(&unstructured.Unstructured{Object: content})
	if err != nil {
		return "", err
	}
	return result.Status, nil
}

// condition returns the condition of this type, or an empty one.
func condition(mc *v1alpha1.Memcached, conditionType string) metav1.Condition {
	return ptr.Deref(meta.FindStatusCondition(mc.Status.Conditions, conditionType), metav1.Condition{})
}

// ready returns nil if the Memcached is ready and its workloads and pods match its status.
func (w world) ready(name string) error {
	mc, err := load[v1alpha1.Memcached](w, name)
	if err != nil {
		return err
	}
	if s, err := kstatus(mc); err != nil || s != status.CurrentStatus {
		return fmt.Errorf("%s is %s, conditions %v, %w", name, s, mc.Status.Conditions, err)
	}
	servers, err := w.workload(truth.ServersKind(mc), name)
	if err != nil {
		return err
	}
	var proxies *truth.Workload
	if mc.Spec.Proxy != nil {
		if proxies, err = w.workload("Deployment", truth.ProxyName(mc)); err != nil {
			return err
		}
	}
	pods, err := w.listPods(name, "server")
	if err != nil {
		return err
	}
	names, pointers := []string{}, []*corev1.Pod{}
	for i := range pods {
		names, pointers = append(names, pods[i].Name), append(pointers, &pods[i])
	}
	if reason := truth.Contradiction(mc, servers, proxies, pointers); reason != "" {
		return fmt.Errorf("%s is ready, but %s", name, reason)
	}
	if !slices.Equal(mc.Status.Nodes, names) {
		return fmt.Errorf("the nodes of %s are %v, its pods %v", name, mc.Status.Nodes, names)
	}
	return nil
}

// workload reads a Deployment or a StatefulSet.
func (w world) workload(kind, name string) (*truth.Workload, error) {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind(kind))
	if err := w.Get(w.ctx, client.ObjectKey{Namespace: w.ns, Name: name}, u); err != nil {
		return nil, err
	}
	return truth.Read(u)
}

// awaitReady waits until all these Memcacheds are ready.
func (w world) awaitReady(names ...string) {
	w.Helper()
	for _, name := range names {
		w.eventually("wait until ready", func() error { return w.ready(name) })
	}
}

// children returns empty lists of every kind that the operator creates.
func children() []client.ObjectList {
	return []client.ObjectList{&appsv1.DeploymentList{}, &appsv1.StatefulSetList{}, &corev1.ServiceList{},
		&corev1.ConfigMapList{}, &networkingv1.NetworkPolicyList{}, &policyv1.PodDisruptionBudgetList{}}
}

// managed selects the children of the operator: a namespace has other ConfigMaps too.
var managed = client.MatchingLabels{"app.kubernetes.io/managed-by": "memcached-operator"}

// eachChild calls do with each child in the namespace.
func (w world) eachChild(do func(client.Object)) error {
	for _, list := range children() {
		if err := w.List(w.ctx, list, client.InNamespace(w.ns), managed); err != nil {
			return err
		}
		for _, object := range listItems(list) {
			do(object)
		}
	}
	return nil
}

// isGone returns nil if there is no Memcached with this name.
func (w world) isGone(name string) error {
	if _, err := load[v1alpha1.Memcached](w, name); !apierrors.IsNotFound(err) {
		return fmt.Errorf("%s still exists: %w", name, err)
	}
	return nil
}

func (w world) noChildren() error {
	var left []string
	err := w.eachChild(func(o client.Object) { left = append(left, fmt.Sprintf("%T %s", o, o.GetName())) })
	if len(left) > 0 {
		err = errors.Join(err, fmt.Errorf("%d children are left: %v", len(left), left))
	}
	return err
}

// watch returns the events of these kinds from now on, until the test ends.
func (w world) watch(lists ...client.ObjectList) <-chan watch.Event {
	w.Helper()
	all := make(chan watch.Event)
	for _, list := range lists {
		w.must(w.List(w.ctx, list, client.InNamespace(w.ns)))
		watcher, err := w.Watch(w.ctx, list, client.InNamespace(w.ns), &client.ListOptions{
			Raw: &metav1.ListOptions{ResourceVersion: list.GetResourceVersion()},
		})
		w.must(err)
		w.Cleanup(watcher.Stop)
		go func() {
			for e := range watcher.ResultChan() {
				select {
				case all <- e:
				case <-w.Context().Done(): // the test has ended
					return
				}
			}
		}()
	}
	return all
}

// await reads events until one passes, and returns its object.
func await[T client.Object](w world, events <-chan watch.Event, what string, pass func(watch.EventType, T) bool) T {
	w.Helper()
	deadline := time.After(harness.Patience)
	for {
		select {
		case e := <-events:
			if object, ok := e.Object.(T); ok && pass(e.Type, object) {
				return object
			}
		case <-deadline:
			w.Fatalf("wait until %s: no such event", what)
		}
	}
}
