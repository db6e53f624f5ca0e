package truth

import (
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/example/memcached-operator/api/v1alpha1"
)

const (
	// operator is the field manager of all writes of the operator, and the managed-by label of every child.
	operator       = "memcached-operator"
	labelManagedBy = "app.kubernetes.io/managed-by"
	labelName      = "cache.example.com/name"
)

// failure is a period in which kstatus is Failed: a client that waits for the Memcached gives up.
type failure struct {
	mc              *v1alpha1.Memcached // of the first event with this failure
	reason          string
	seen            time.Time
	changedByOthers bool // a manager other than the operator has changed an object since
}

// failed records that kstatus becomes Failed, or is no longer Failed, and reports a lie if that is unjustified.
func (v *Verdict) failed(h *history, mc *v1alpha1.Memcached, failed bool, seen time.Time) {
	old := h.failure
	if !failed {
		h.failure = nil
		if old != nil && !h.byOthers && !old.mayEnd(mc, h) {
			v.lie(mc, fmt.Sprintf("stopped to be Stalled with reason %s, although nothing had changed that could help",
				old.reason))
		}
		return
	}
	reason := meta.FindStatusCondition(mc.Status.Conditions, v1alpha1.ConditionStalled).Reason
	if old != nil && old.reason == reason && old.mc.Generation == mc.Generation {
		return
	}
	v.Failures++
	h.failure = &failure{mc: mc, reason: reason, seen: seen}
	if reason == v1alpha1.ReasonConflict && !h.anyForeign(mc.Name) && seen.Sub(h.foreignUntil) > grace {
		v.lie(mc, "is Stalled with reason Conflict, although nobody else has an object of a child's name")
	}
}

// mayEnd reports whether mc may stop being Failed. One of these must have happened:
//   - The user changed the spec, an annotation or a Secret, or deleted the Memcached.
//   - Somebody else changed an object.
//   - A server became ready, if the failure is not an error.
//
// A Secret or a server may also have changed just before, too late for the operator to know.
func (f *failure) mayEnd(mc *v1alpha1.Memcached, h *history) bool {
	isError := f.reason == v1alpha1.ReasonConflict || f.reason == v1alpha1.ReasonInvalid
	return f.changedByOthers || mc.DeletionTimestamp != nil || mc.Generation != f.mc.Generation ||
		!maps.Equal(mc.Annotations, f.mc.Annotations) || !h.secretChanged.Before(f.seen.Add(-grace)) ||
		!isError && !h.progressed.Before(f.seen.Add(-grace))
}

// child records an object with the name of a child, and whether its event justifies the end of a failure.
func (h *history) child(memcached string, e Event) {
	key, is := child{e.Object.GetKind(), e.Object.GetName()}, e.Object
	was := h.children[key]
	if e.Deleted {
		is = nil
	}
	h.children[key] = is
	if isForeign(was, memcached) && !isForeign(is, memcached) {
		h.foreignUntil = e.Seen
	}
	if h.failure != nil && (is == nil || isForeign(was, memcached) || isForeign(is, memcached) ||
		writtenByOthers(was, is, "")) {
		h.failure.changedByOthers = true
	}
}

// secret records that a Secret changed, if the Memcached names it.
func (h *history) secret(e Event) {
	if h.object == nil {
		return
	}
	for _, field := range []string{"tls", "auth"} {
		name, _, _ := unstructured.NestedString(h.object.Object, "spec", field, "secretName")
		if name == e.Object.GetName() {
			h.secretChanged = e.Seen
		}
	}
}

// server records that a pod became ready. The status of the Deployment follows a moment later.
func (h *history) server(e Event) error {
	pod := &corev1.Pod{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(e.Object.Object, pod); err != nil {
		return err
	}
	before := h.servers[pod.Name]
	if isReady(pod) && (before == nil || !isReady(before)) {
		h.progressed = e.Seen
	}
	if h.servers[pod.Name] = pod; e.Deleted {
		delete(h.servers, pod.Name)
	}
	return nil
}

func isReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

func (h *history) anyForeign(memcached string) bool {
	for _, o := range h.children {
		if isForeign(o, memcached) {
			return true
		}
	}
	return false
}

// isForeign reports whether an object with the name of a child belongs to somebody else. Not foreign are: a child of
// this Memcached; a child of an earlier Memcached with the same name, which is being deleted; and an orphan of an
// orphaning deletion, which is adopted.
func isForeign(o *unstructured.Unstructured, memcached string) bool {
	if o == nil {
		return false
	}
	if c := metav1.GetControllerOfNoCopy(o); c != nil {
		return c.Kind != "Memcached" || c.Name != memcached
	}
	return o.GetLabels()[labelManagedBy] != operator || o.GetLabels()[labelName] != memcached
}

// writtenByOthers reports whether a manager other than the operator wrote this subresource between two events of an
// object.
func writtenByOthers(was, is *unstructured.Unstructured, subresource string) bool {
	type writer struct{ manager, operation, time string }
	before := map[writer]bool{}
	each := func(o *unstructured.Unstructured, do func(writer)) {
		if o == nil {
			return
		}
		for _, f := range o.GetManagedFields() {
			if f.Manager != operator && f.Subresource == subresource {
				do(writer{f.Manager, string(f.Operation), f.Time.String()})
			}
		}
	}
	each(was, func(w writer) { before[w] = true })
	written := false
	each(is, func(w writer) { written = written || !before[w] })
	return written
}

// author records who wrote the status of the Memcached, if it changed.
func (h *history) author(is *unstructured.Unstructured) {
	if !sameStatus(h.object, is) {
		h.byOthers = writtenByOthers(h.object, is, "status")
		h.everWrittenByOthers = h.everWrittenByOthers || h.byOthers
	}
	h.object = is
}

func sameStatus(a, b *unstructured.Unstructured) bool {
	return a != nil && equality.Semantic.DeepEqual(a.Object["status"], b.Object["status"])
}

// LateClock is an annotation of a Memcached whose operator has a clock that is late.
const LateClock = "example.com/late-clock"

// inherited returns the part of the status that can only be that of an earlier Memcached with the same name; "" if
// there is none. If somebody else once wrote the conditions, for example from a backup, the operator keeps their times.
// With LateClock, times say nothing.
func inherited(mc *v1alpha1.Memcached, everWrittenByOthers bool) string {
	switch {
	case mc.Status.ObservedGeneration > mc.Generation:
		return fmt.Sprintf("observedGeneration is %d", mc.Status.ObservedGeneration)
	case mc.DeletionTimestamp == nil && mc.Status.Phase == v1alpha1.PhaseDeleting:
		return "it is Deleting, and nobody deleted it"
	}
	_, isLate := mc.Annotations[LateClock]
	for _, c := range mc.Status.Conditions {
		// The CRD's default conditions have times in 1970.
		if !everWrittenByOthers && !isLate && c.LastTransitionTime.Unix() != 0 &&
			c.LastTransitionTime.Before(&mc.CreationTimestamp) {
			return fmt.Sprintf("%s is of %s, before its creation", c.Type, c.LastTransitionTime.UTC().Format(time.TimeOnly))
		}
	}
	return ""
}
