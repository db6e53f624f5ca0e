package simulation

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/internal/testing/simulator"
	"github.com/example/memcached-operator/tests/e2e/truth"
)

// checkStalled fails if the Memcached is Stalled although nobody has refused what the operator asked for since the last
// reconcile began.
func (w *world) checkStalled() {
	w.Helper()
	c := w.connection
	if mc := w.now().Memcached(); mc != nil && !w.mayStall && !c.refused && (!c.hit || !c.fault.refuses()) {
		stalled := meta.FindStatusCondition(mc.Status.Conditions, v1alpha1.ConditionStalled)
		if stalled != nil && stalled.Status == metav1.ConditionTrue {
			w.Errorf("the Memcached is Stalled: %s", stalled.Message)
		}
	}
}

// checkReady fails if the Memcached is Ready, and its servers are not. The informer cache may show each kind as it was
// in another state since the oldest that it shows.
func (w *world) checkReady() {
	w.Helper()
	mc := w.now().Memcached()
	if mc == nil || mc.DeletionTimestamp != nil || mc.Status.ObservedGeneration != mc.Generation ||
		!meta.IsStatusConditionTrue(mc.Status.Conditions, v1alpha1.ConditionReady) {
		return
	}
	oldest := len(w.history) - 1
	for _, i := range w.delivered {
		oldest = min(oldest, i)
	}
	since := w.history[oldest:]
	w.anyOf(since, func(s state) string { return w.contradiction(mc, s) })
	w.anyOf(since, func(s state) string { return w.unready(mc, s) })
}

// anyOf fails if the Memcached is not Ready in any of the states.
func (w *world) anyOf(states []state, notReady func(state) string) {
	w.Helper()
	why := ""
	for _, s := range states {
		if why = notReady(s); why == "" {
			return
		}
	}
	w.Errorf("the Memcached is Ready, but %s", why)
}

// contradiction returns how the workloads contradict a status that is Ready; empty if they do not.
func (w *world) contradiction(mc *v1alpha1.Memcached, s state) string {
	w.Helper()
	servers, pods := w.workload(s, truth.ServersKind(mc), mc.Name)
	proxies, _ := w.workload(s, "Deployment", truth.ProxyName(mc))
	if w.policy == policyRewrite {
		mc = mc.DeepCopy()
		mc.Spec.Image = "" // the policy decides
	}
	return truth.Contradiction(mc, servers, proxies, pods)
}

// unready names a pod that is not ready, or has another memory for items than the spec says; empty for none.
func (w *world) unready(mc *v1alpha1.Memcached, s state) string {
	w.Helper()
	_, servers := w.workload(s, truth.ServersKind(mc), mc.Name)
	_, proxies := w.workload(s, "Deployment", truth.ProxyName(mc))
	for _, pod := range slices.Concat(servers, proxies) {
		if _, ready := simulator.ReadySince(pod); !ready && pod.DeletionTimestamp == nil {
			return fmt.Sprintf("pod %s is not ready", pod.Name)
		}
	}
	memory := resource.MustParse(mc.Spec.Memory)
	for _, pod := range servers {
		if got := simulator.ItemMemory(pod); got != memory.Value()>>20 {
			return fmt.Sprintf("server %s has %d MiB for items, not %s", pod.Name, got, mc.Spec.Memory)
		}
	}
	return ""
}

func (w *world) workload(s state, kind, name string) (*truth.Workload, []*corev1.Pod) {
	w.Helper()
	for _, obj := range s[kind] {
		if obj.GetName() != name {
			continue
		}
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
		w.Must(err)
		content["kind"] = kind
		workload, err := truth.Read(&unstructured.Unstructured{Object: content})
		w.Must(err)
		return workload, simulator.PodsOf(s, obj)
	}
	return nil, nil
}

// checkBudget fails if the operator has deleted a ready server although spec.rollout.maxUnavailable were unavailable.
func (w *world) checkBudget(before state) {
	w.Helper()
	mc := w.now().Memcached()
	if mc == nil || mc.DeletionTimestamp != nil {
		return
	}
	serving := func(s state, set client.Object) (list []string) {
		for _, pod := range simulator.PodsOf(s, set) {
			if _, ready := simulator.ReadySince(pod); ready && pod.DeletionTimestamp == nil {
				list = append(list, pod.Name)
			}
		}
		return list
	}
	for _, obj := range w.now()["StatefulSet"] {
		set, was, is := obj.(*appsv1.StatefulSet), serving(before, obj), serving(w.now(), obj)
		if away := int(*set.Spec.Replicas) - len(is); len(is) < len(was) &&
			away > int(cmp.Or(mc.Spec.Rollout.MaxUnavailable, 1)) {
			w.Errorf("the operator deleted servers although others were unavailable: %v of %d were ready, now %v", was,
				*set.Spec.Replicas, is)
		}
	}
}

var (
	times   = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)
	uids    = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}(/\d+)?`)
	address = regexp.MustCompile(`\b10\.\d+\.\d+\.\d+\b`)
	digests = regexp.MustCompile(`\b[0-9a-f]{8,64}\b`)
	images  = regexp.MustCompile(`\b(memcached|operator):\d+`)
	podName = regexp.MustCompile(`("cache(-proxy)?-HASH)-\d{5}"`)
)

// summary describes the current state, without what differs from run to run; after an upgrade, also without what
// differs between releases: which releases the servers and the template record are of, and that the proxies were
// replaced.
func (w *world) summary(upgraded bool) string {
	w.Helper()
	var lines []string
	for kind, objects := range w.now() {
		if kind == "ReplicaSet" || kind == "Secret" {
			continue
		}
		for _, obj := range objects {
			obj = obj.DeepCopyObject().(client.Object)
			if upgraded {
				annotations := obj.GetAnnotations()
				delete(annotations, v1alpha1.TemplateRecordAnnotation)
				obj.SetAnnotations(annotations)
				if mc, ok := obj.(*v1alpha1.Memcached); ok {
					mc.Status.Outdated = nil
				}
			}
			lines = append(lines, kind+" "+w.describe(obj))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func (w *world) describe(obj client.Object) string {
	w.Helper()
	obj = obj.DeepCopyObject().(client.Object)
	obj.SetResourceVersion("")
	obj.SetGeneration(0)
	// How often a controller was made to try again does not matter, nor who wrote that.
	managers := slices.DeleteFunc(obj.GetManagedFields(), func(e metav1.ManagedFieldsEntry) bool {
		return e.Manager == names.Operator && e.Operation == metav1.ManagedFieldsOperationUpdate && e.Subresource == ""
	})
	for i := range managers {
		managers[i].Time, managers[i].FieldsV1 = nil, nil
	}
	slices.SortFunc(managers, func(a, b metav1.ManagedFieldsEntry) int {
		return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b))
	})
	obj.SetManagedFields(managers)
	annotations := obj.GetAnnotations()
	delete(annotations, v1alpha1.RefreshedAnnotation)
	delete(annotations, v1alpha1.RetriedAnnotation)
	obj.SetAnnotations(annotations)
	switch obj := obj.(type) { // how often a template was written does not matter, unless servers were replaced
	case *appsv1.Deployment:
		obj.Status.ObservedGeneration = 0
	case *appsv1.StatefulSet:
		obj.Status.ObservedGeneration = 0
	}
	body, err := json.Marshal(obj)
	w.Must(err)
	text := strings.ReplaceAll(string(body), w.Key.Namespace, "NAMESPACE")
	for _, secret := range w.now()["Secret"] { // otherwise the summary would not tell which content servers got
		version := string(secret.GetUID()) + "/" + secret.GetResourceVersion()
		text = strings.ReplaceAll(text, version, "the content of "+secret.GetName())
	}
	text = times.ReplaceAllString(text, "TIME")
	text = uids.ReplaceAllString(text, "UID")
	text = address.ReplaceAllString(text, "ADDRESS")
	text = digests.ReplaceAllString(text, "HASH")
	text = images.ReplaceAllString(text, "$1:N")
	return podName.ReplaceAllString(text, `$1"`)
}
