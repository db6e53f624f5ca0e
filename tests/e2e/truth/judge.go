// Package truth finds the moments at which the status of a Memcached says more than its workload holds, and those at
// which it says Failed of what was about to succeed.
//
// It sees what any client sees: the watch events of Memcacheds, of their children and of what may refuse these. One
// etcd orders them all, so the workload as of a status is the newest event of the Deployment before it.
package truth

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// grace is how long a status may stay Ready after the workload lost what nobody announced: a pod that died, a field
// that somebody changed.
const grace = time.Second

// Event is a watch event of a Memcached, of an object of its name that may be its child, of one of its pods, or of an
// admission policy.
type Event struct {
	Seen    time.Time
	Deleted bool
	Object  *unstructured.Unstructured
}

// Verdict is what Judge found.
type Verdict struct {
	Memcacheds, Deployments int // events
	Claims                  int // events of a Memcached that said Ready of its current spec
	Failures                int // times that one began to say Failed
	Lies                    []string
}

func (v Verdict) String() string {
	return strings.Join(append([]string{fmt.Sprintf("%d events of Memcacheds and %d of Deployments watched,"+
		" %d times Ready, %d times Failed, lies: %d",
		v.Memcacheds, v.Deployments, v.Claims, v.Failures, len(v.Lies))}, v.Lies...), "\n  ")
}

// history is what is known of one Memcached at a point of the sequence of events.
type history struct {
	mc         *v1alpha1.Memcached // nil unless its status claims to be true of its current spec
	uid        types.UID           // of the last Memcached, also if it claims nothing
	installed  bool                // it was ready once, or was there before the first event
	deployment *appsv1.Deployment
	whole      *appsv1.Deployment // the last one of this generation that had all servers
	lostAt     time.Time          // when it had them no more
	falseSince time.Time          // when the workload stopped being what mc claims; zero while it is
	reason     string

	object       *unstructured.Unstructured            // the last event of the Memcached
	byOthers     bool                                  // the status was written by another manager than the operator, last
	everByOthers bool                                  // or at any time
	children     map[string]*unstructured.Unstructured // by kind
	strangeUntil time.Time                             // when one of these that belonged to somebody else was last there
	ready        map[string]bool                       // servers by the names of their pods
	progressed   time.Time                             // when a server became ready, or the workload progressed
	failure      *failure                              // nil unless the status says Failed
}

// Judge looks at all events in the order in which they happened; until then is when the last one could have been seen.
func Judge(events []Event, until time.Time) (Verdict, error) {
	var v Verdict
	known := map[types.NamespacedName]*history{}
	events = slices.Clone(events)
	slices.SortStableFunc(events, func(a, b Event) int { return compare(a.Object, b.Object) })
	for _, e := range events {
		key := types.NamespacedName{Namespace: e.Object.GetNamespace(), Name: e.Object.GetName()}
		if e.Object.GetKind() == "Pod" {
			key.Name = e.Object.GetLabels()[labelInstance]
		}
		if key.Namespace == "" { // a policy, which may concern every object
			for _, h := range known {
				if h.failure != nil {
					h.failure.outside = true
				}
			}
			continue
		}
		h := known[key]
		if h == nil {
			h = &history{children: map[string]*unstructured.Unstructured{}, ready: map[string]bool{}}
			known[key] = h
		}
		var err error
		switch e.Object.GetKind() {
		case "Memcached":
			v.Memcacheds++
			err = v.memcached(h, e)
		case "Pod":
			h.server(e)
		case "Deployment":
			v.Deployments++
			err = v.deployment(h, e)
			fallthrough
		default:
			h.child(e)
		}
		if err != nil {
			return v, fmt.Errorf("%s %s: %w", e.Object.GetKind(), key, err)
		}
	}
	for _, h := range known {
		v.late(h, until)
	}
	return v, nil
}

func (v *Verdict) deployment(h *history, e Event) error {
	if e.Deleted {
		h.deployment, h.whole = nil, nil
	} else {
		was := h.deployment
		h.deployment = &appsv1.Deployment{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(e.Object.Object, h.deployment); err != nil {
			return err
		}
		h.remember(e.Seen)
		h.workload(was, h.deployment, e.Seen)
	}
	if h.mc != nil {
		v.doubt(h, Contradiction(h.mc, h.deployment), e.Seen)
	}
	return nil
}

// remember keeps the Deployment if it has all servers, or notes when it lost some without anybody asking for it.
func (h *history) remember(seen time.Time) {
	d := h.deployment
	switch {
	case d.Spec.Replicas != nil && missing(d, *d.Spec.Replicas) == "":
		h.whole, h.lostAt = d, time.Time{}
	case h.whole == nil || h.whole.UID != d.UID || h.whole.Generation != d.Generation:
		h.whole = nil
	case h.lostAt.IsZero():
		h.lostAt = seen
	}
}

func (v *Verdict) memcached(h *history, e Event) error {
	mc := &v1alpha1.Memcached{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(e.Object.Object, mc); err != nil {
		return err
	}
	read, err := status.Compute(e.Object)
	if err != nil {
		return err
	}
	if h.uid != mc.UID {
		h.uid, h.installed = mc.UID, mc.Status.ObservedGeneration >= 0
		h.object, h.byOthers, h.everByOthers, h.failure = nil, false, false, nil
	}
	before := h.object
	h.author(e.Object)
	claims, failed := claimsReady(read, mc) && !h.byOthers, read.Status == status.FailedStatus && !h.byOthers
	h.installed = h.installed || claims
	is := func(c string) bool { return meta.IsStatusConditionTrue(mc.Status.Conditions, c) }
	switch reason := inherited(mc, h.everByOthers); {
	case h.byOthers:
	case reason != "" && (before == nil || !sameStatus(before, e.Object)):
		v.lie(mc, "has the status of another Memcached of its name: "+reason)
	case is(v1alpha1.ConditionReconciling) && is(v1alpha1.ConditionStalled):
		v.lie(mc, "is Reconciling and Stalled at once")
	case is(v1alpha1.ConditionDegraded) && !is(v1alpha1.ConditionStalled) && !h.installed && mc.DeletionTimestamp == nil:
		v.lie(mc, "is Degraded while it is being installed")
	}
	v.failed(h, mc, failed, e.Seen)
	if !claims || e.Deleted {
		v.late(h, e.Seen)
		h.mc, h.falseSince = nil, time.Time{}
		return nil
	}
	v.Claims++
	claimed := h.mc != nil && h.mc.UID == mc.UID && h.mc.Generation == mc.Generation
	h.mc = mc
	reason, since := Contradiction(mc, h.deployment), e.Seen
	if reason != "" && !claimed {
		if Contradiction(mc, h.whole) != "" {
			v.lie(mc, "turned Ready, but "+reason)
			return nil
		}
		since = h.lostAt
	}
	v.doubt(h, reason, since)
	return nil
}

// doubt notes whether the claim that stands is true now.
func (v *Verdict) doubt(h *history, reason string, seen time.Time) {
	if reason != "" && !h.falseSince.IsZero() {
		return // still false
	}
	v.late(h, seen)
	h.reason, h.falseSince = reason, time.Time{}
	if reason != "" {
		h.falseSince = seen
	}
}

// late reports a claim that stood for too long after it stopped being true.
func (v *Verdict) late(h *history, now time.Time) {
	if h.mc != nil && !h.falseSince.IsZero() && now.Sub(h.falseSince) > grace {
		v.lie(h.mc, fmt.Sprintf("stayed Ready for %.1f s, although %s", now.Sub(h.falseSince).Seconds(), h.reason))
	}
}

func (v *Verdict) lie(mc *v1alpha1.Memcached, what string) {
	v.Lies = append(v.Lies, fmt.Sprintf("Memcached %s/%s (generation %d, resourceVersion %s) %s",
		mc.Namespace, mc.Name, mc.Generation, mc.ResourceVersion, what))
}

// claimsReady tells whether a client that waits for the Memcached would go on: one that compares generations itself,
// one that trusts that of the condition, as kubectl wait does, or one that uses kstatus, as Flux does.
func claimsReady(read *status.Result, mc *v1alpha1.Memcached) bool {
	ready := meta.FindStatusCondition(mc.Status.Conditions, v1alpha1.ConditionReady)
	return read.Status == status.CurrentStatus || ready != nil && ready.Status == metav1.ConditionTrue &&
		(mc.Status.ObservedGeneration == mc.Generation || ready.ObservedGeneration == mc.Generation)
}

// Contradiction says what keeps every server of the spec of mc from being updated, available and observed; empty if
// nothing does.
func Contradiction(mc *v1alpha1.Memcached, d *appsv1.Deployment) string {
	switch {
	case d == nil:
		return "there is no Deployment"
	case !metav1.IsControlledBy(d, mc):
		return "the Deployment is not its own"
	case d.DeletionTimestamp != nil:
		return "the Deployment is being deleted"
	case d.Status.ObservedGeneration < d.Generation:
		return fmt.Sprintf("generation %d of the Deployment is not observed", d.Generation)
	case mc.Spec.Size == nil || d.Spec.Replicas == nil:
		return "a size is missing"
	case *d.Spec.Replicas != *mc.Spec.Size:
		return fmt.Sprintf("the Deployment asks for %d servers, not %d", *d.Spec.Replicas, *mc.Spec.Size)
	}
	if reason := missing(d, *mc.Spec.Size); reason != "" {
		return reason
	}
	return templateContradiction(mc, d.Spec.Template.Spec)
}

// missing says which servers are not there, updated, ready or available; empty if all are.
func missing(d *appsv1.Deployment, size int32) string {
	s := d.Status
	for i, n := range []int32{s.Replicas, s.UpdatedReplicas, s.ReadyReplicas, s.AvailableReplicas} {
		if n != size {
			return fmt.Sprintf("%d of %d servers are %s", n, size, []string{"there", "updated", "ready", "available"}[i])
		}
	}
	return ""
}

func templateContradiction(mc *v1alpha1.Memcached, pod corev1.PodSpec) string {
	if len(pod.Containers) == 0 {
		return "the servers have no container"
	}
	image := mc.Spec.Image
	if image == "" {
		image = mc.Status.Image
	}
	if got := pod.Containers[0].Image; got != image {
		return fmt.Sprintf("the servers run %s, not %s", got, image)
	}
	memory, err := resource.ParseQuantity(mc.Spec.Memory)
	if err != nil {
		return err.Error()
	}
	args := strings.Join(pod.Containers[0].Args, " ") + " "
	for _, want := range append([]string{
		"-p " + strconv.Itoa(int(mc.Spec.ContainerPort)), "-m " + strconv.FormatInt(memory.Value()>>20, 10),
		"-c " + strconv.Itoa(int(mc.Spec.MaxConnections)), "-t " + strconv.Itoa(int(mc.Spec.Threads)),
	}, mc.Spec.ExtraArgs...) {
		if !strings.Contains(args, want+" ") {
			return fmt.Sprintf("the servers run with %snot with %s", args, want)
		}
	}
	return ""
}

// compare orders two objects by resource version.
func compare(a, b *unstructured.Unstructured) int {
	return int(version(a)) - int(version(b))
}

func version(u *unstructured.Unstructured) uint64 {
	n, _ := strconv.ParseUint(u.GetResourceVersion(), 10, 64)
	return n
}
