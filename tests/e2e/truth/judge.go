// Package truth finds the moments at which the status of a Memcached says more than its workload holds, and those at
// which it says Failed of what was about to succeed.
//
// It sees what any client sees: the watch events of Memcacheds, of their children and of what may refuse these. One
// etcd orders them all, so the workload as of a status is the newest event of the workload before it.
package truth

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
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

// Event is a watch event of a Memcached, of an object that by its name may be its child, of one of its pods, of a
// Secret, or of an admission policy.
type Event struct {
	Seen    time.Time
	Deleted bool
	Object  *unstructured.Unstructured
}

// Verdict is what Judge found.
type Verdict struct {
	Memcacheds, Workloads int // events
	Claims                int // events of a Memcached that said Ready of its current spec
	Failures              int // times that one began to say Failed
	Lies                  []string
}

func (v Verdict) String() string {
	return strings.Join(append([]string{fmt.Sprintf("%d events of Memcacheds and %d of workloads watched,"+
		" %d times Ready, %d times Failed, lies: %d",
		v.Memcacheds, v.Workloads, v.Claims, v.Failures, len(v.Lies))}, v.Lies...), "\n  ")
}

// history is what is known of one Memcached at a point of the sequence of events.
type history struct {
	mc         *v1alpha1.Memcached // nil unless its status claims to be true of its current spec
	uid        types.UID           // of the last Memcached, also if it claims nothing
	installed  bool                // it was ready once, or was there before the first event
	workloads  map[child]*seen     // Deployments and StatefulSets
	falseSince time.Time           // when the workloads stopped being what mc claims; zero while they are
	reason     string

	object       *unstructured.Unstructured           // the last event of the Memcached
	byOthers     bool                                 // the status was written by another manager than the operator, last
	everByOthers bool                                 // or at any time
	children     map[child]*unstructured.Unstructured // objects that have the names of children
	strangeUntil time.Time                            // when one of these that belonged to somebody else was last there
	ready        map[string]bool                      // servers by the names of their pods
	progressed   time.Time                            // when a server became ready, or a workload progressed
	supplied     time.Time                            // when a Secret changed that the Memcached names
	failure      *failure                             // nil unless the status says Failed
}

// child names an object of the namespace of a Memcached.
type child struct{ kind, name string }

// seen is what is known of one workload.
type seen struct {
	now    *Workload // nil where there is none
	whole  *Workload // the last one of this generation that had all its pods
	lostAt time.Time // when it had them no more
}

// Judge looks at all events in the order in which they happened; until then is when the last one could have been seen.
func Judge(events []Event, until time.Time) (Verdict, error) {
	var v Verdict
	known := map[types.NamespacedName]*history{}
	events = slices.Clone(events)
	slices.SortStableFunc(events, func(a, b Event) int { return compare(a.Object, b.Object) })
	for _, e := range events {
		kind, namespace := e.Object.GetKind(), e.Object.GetNamespace()
		switch {
		case namespace == "": // a policy, which may concern every object
			for _, h := range known {
				if h.failure != nil {
					h.failure.outside = true
				}
			}
			continue
		case kind == "Secret":
			for key, h := range known {
				if key.Namespace == namespace {
					h.secret(e)
				}
			}
			continue
		case isWorkload(kind):
			v.Workloads++
		}
		for _, name := range memcachedsOf(e.Object) {
			key := types.NamespacedName{Namespace: namespace, Name: name}
			h := known[key]
			if h == nil {
				h = &history{workloads: map[child]*seen{}, children: map[child]*unstructured.Unstructured{},
					ready: map[string]bool{}}
				known[key] = h
			}
			if err := v.event(h, name, e); err != nil {
				return v, fmt.Errorf("%s %s: %w", kind, key, err)
			}
		}
	}
	for _, h := range known {
		v.late(h, until)
	}
	return v, nil
}

// numbered is the name of a child that belongs to one server.
var numbered = regexp.MustCompile(`^(.+)-\d+$`)

// memcachedsOf are the names of the Memcacheds that an event may concern. An object of somebody else can have the name
// of a child.
func memcachedsOf(o *unstructured.Unstructured) []string {
	name := o.GetName()
	switch o.GetKind() {
	case "Memcached":
		return []string{name}
	case "Pod":
		return []string{o.GetLabels()[labelInstance]}
	}
	list := []string{name}
	if m := numbered.FindStringSubmatch(name); m != nil && o.GetKind() == "Service" {
		list = append(list, m[1])
	}
	if prefix, ok := strings.CutSuffix(name, proxySuffix); ok {
		list = append(list, prefix)
	}
	return list
}

func (v *Verdict) event(h *history, memcached string, e Event) (err error) {
	switch kind := e.Object.GetKind(); {
	case kind == "Memcached":
		v.Memcacheds++
		return v.memcached(h, e)
	case kind == "Pod":
		h.server(e)
		return nil
	case isWorkload(kind):
		err = v.workload(h, e)
	}
	h.child(memcached, e)
	return err
}

func (v *Verdict) workload(h *history, e Event) error {
	key := child{e.Object.GetKind(), e.Object.GetName()}
	s := h.workloads[key]
	if s == nil {
		s = &seen{}
		h.workloads[key] = s
	}
	if e.Deleted {
		*s = seen{}
	} else {
		was := s.now
		var err error
		if s.now, err = Read(e.Object); err != nil {
			return err
		}
		s.remember(e.Seen)
		if s.now.progressedSince(was) {
			h.progressed = e.Seen
		}
	}
	if h.mc != nil {
		v.doubt(h, h.contradiction(h.mc, (*seen).current), e.Seen)
	}
	return nil
}

// remember keeps the workload if it has all its pods, or notes when it lost some without anybody asking for it.
func (s *seen) remember(at time.Time) {
	w := s.now
	switch {
	case w.Spec.Replicas != nil && w.missing(*w.Spec.Replicas, "pods") == "":
		s.whole, s.lostAt = w, time.Time{}
	case s.whole == nil || s.whole.UID != w.UID || s.whole.Generation != w.Generation:
		s.whole, s.lostAt = nil, time.Time{}
	case s.lostAt.IsZero():
		s.lostAt = at
	}
}

func (s *seen) current() *Workload {
	if s == nil {
		return nil
	}
	return s.now
}

func (s *seen) lastWhole() *Workload {
	if s == nil {
		return nil
	}
	return s.whole
}

// contradiction is that of mc with its workloads, either as they are or as they were when they had all their pods.
func (h *history) contradiction(mc *v1alpha1.Memcached, which func(*seen) *Workload) string {
	return Contradiction(mc, which(h.servers(mc)), which(h.proxies(mc)))
}

func (h *history) servers(mc *v1alpha1.Memcached) *seen {
	return h.workloads[child{ServersKind(mc), mc.Name}]
}

func (h *history) proxies(mc *v1alpha1.Memcached) *seen {
	return h.workloads[child{"Deployment", ProxyName(mc)}]
}

// lostAt is when the first of the workloads of mc lost pods; zero where none did.
func (h *history) lostAt(mc *v1alpha1.Memcached) (first time.Time) {
	for _, s := range []*seen{h.servers(mc), h.proxies(mc)} {
		if s != nil && !s.lostAt.IsZero() && (first.IsZero() || s.lostAt.Before(first)) {
			first = s.lostAt
		}
	}
	return first
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
	reason, since := h.contradiction(mc, (*seen).current), e.Seen
	if reason != "" && !claimed {
		if h.contradiction(mc, (*seen).lastWhole) != "" {
			v.lie(mc, "turned Ready, but "+reason)
			return nil
		}
		since = h.lostAt(mc)
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

// compare orders two objects by resource version.
func compare(a, b *unstructured.Unstructured) int {
	return int(version(a)) - int(version(b))
}

func version(u *unstructured.Unstructured) uint64 {
	n, _ := strconv.ParseUint(u.GetResourceVersion(), 10, 64)
	return n
}
