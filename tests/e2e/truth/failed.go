package truth

import (
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/example/memcached-operator/api/v1alpha1"
)

const (
	// operator is the field manager of whatever the operator writes, and the managed-by label of every child.
	operator       = "memcached-operator"
	labelManagedBy = "app.kubernetes.io/managed-by"
	labelInstance  = "app.kubernetes.io/instance"
)

// failure is a status that says Failed, which whoever waits for the Memcached takes for the end.
type failure struct {
	mc      *v1alpha1.Memcached // of the first event that said so for this reason
	reason  string
	seen    time.Time
	outside bool // somebody other than the operator has changed something since
}

// failed notes that a Memcached begins to say Failed, or stops, and whether that is a lie.
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
	if reason == v1alpha1.ReasonConflict && !h.anyStrange(mc.Name) && seen.Sub(h.strangeUntil) > grace {
		v.lie(mc, "is Stalled with reason Conflict, although nobody else has an object of a child's name")
	}
}

// mayEnd tells whether anything happened that lets mc say Failed no more: its user asked for something else or changed
// a Secret, somebody else changed something, or, where no error is the reason, a server became ready. A Secret or a
// server may also have come just before, too late for the operator to know.
func (f *failure) mayEnd(mc *v1alpha1.Memcached, h *history) bool {
	isError := f.reason == v1alpha1.ReasonConflict || f.reason == v1alpha1.ReasonInvalid
	return f.outside || mc.DeletionTimestamp != nil || mc.Generation != f.mc.Generation ||
		!maps.Equal(mc.Annotations, f.mc.Annotations) || !h.supplied.Before(f.seen.Add(-grace)) ||
		!isError && !h.progressed.Before(f.seen.Add(-grace))
}

// child remembers an object that has the name of a child of a Memcached, and what its event means for a failure.
func (h *history) child(memcached string, e Event) {
	key, is := child{e.Object.GetKind(), e.Object.GetName()}, e.Object
	was := h.children[key]
	if e.Deleted {
		is = nil
	}
	h.children[key] = is
	if strange(was, memcached) && !strange(is, memcached) {
		h.strangeUntil = e.Seen
	}
	if h.failure != nil && (is == nil || strange(was, memcached) || strange(is, memcached) ||
		writtenByOthers(was, is, "")) {
		h.failure.outside = true
	}
}

// secret notes that a Secret changed, if the Memcached names it.
func (h *history) secret(e Event) {
	if h.object == nil {
		return
	}
	for _, field := range []string{"tls", "auth"} {
		name, _, _ := unstructured.NestedString(h.object.Object, "spec", field, "secretName")
		if name == e.Object.GetName() {
			h.supplied = e.Seen
		}
	}
}

// server notes that a pod became ready. The status of the Deployment says so a moment later.
func (h *history) server(e Event) {
	conditions, _, _ := unstructured.NestedSlice(e.Object.Object, "status", "conditions")
	ready := false
	for _, c := range conditions {
		c, _ := c.(map[string]any)
		ready = ready || c["type"] == string(corev1.PodReady) && c["status"] == string(corev1.ConditionTrue)
	}
	if ready && !h.ready[e.Object.GetName()] {
		h.progressed = e.Seen
	}
	h.ready[e.Object.GetName()] = ready && !e.Deleted
}

func (h *history) anyStrange(memcached string) bool {
	for _, o := range h.children {
		if strange(o, memcached) {
			return true
		}
	}
	return false
}

// strange tells whether an object of the name of a child belongs to somebody else. That of a Memcached of this name is
// its own or that of a predecessor, which goes away; one that an orphaning deletion left is adopted.
func strange(o *unstructured.Unstructured, memcached string) bool {
	if o == nil {
		return false
	}
	if c := metav1.GetControllerOfNoCopy(o); c != nil {
		return c.Kind != "Memcached" || c.Name != memcached
	}
	return o.GetLabels()[labelManagedBy] != operator || o.GetLabels()[labelInstance] != memcached
}

// writtenByOthers tells whether between two events of an object another manager than the operator wrote that
// subresource.
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

// author notes who wrote the status of the Memcached, where it changed.
func (h *history) author(is *unstructured.Unstructured) {
	if !sameStatus(h.object, is) {
		h.byOthers = writtenByOthers(h.object, is, "status")
		h.everByOthers = h.everByOthers || h.byOthers
	}
	h.object = is
}

func sameStatus(a, b *unstructured.Unstructured) bool {
	return a != nil && equality.Semantic.DeepEqual(a.Object["status"], b.Object["status"])
}

// inherited says what the status of mc can only have from another Memcached of its name, which was there before; empty
// if nothing. Of conditions that somebody else wrote once, such as those of a backup, the operator keeps the times.
func inherited(mc *v1alpha1.Memcached, everByOthers bool) string {
	switch {
	case mc.Status.ObservedGeneration > mc.Generation:
		return fmt.Sprintf("observedGeneration is %d", mc.Status.ObservedGeneration)
	case mc.DeletionTimestamp == nil && mc.Status.Phase == v1alpha1.PhaseDeleting:
		return "it is Deleting, and nobody deleted it"
	}
	for _, c := range mc.Status.Conditions {
		// The CRD's defaults are of 1970.
		if !everByOthers && c.LastTransitionTime.Unix() != 0 && c.LastTransitionTime.Before(&mc.CreationTimestamp) {
			return fmt.Sprintf("%s is of %s, before its creation", c.Type, c.LastTransitionTime.UTC().Format(time.TimeOnly))
		}
	}
	return ""
}
