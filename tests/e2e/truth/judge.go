// Package truth finds lies in the status of Memcacheds: moments at which the status is Ready although the workload is
// not, and moments at which it is Failed although nothing prevents success.
//
// It uses only what any client can see: the watch events of Memcacheds, of their children, and of objects that may
// cause errors. Resource versions order all events, so the state of a workload at the time of a status is its newest
// event before the event of the status.
package truth

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// grace is how long a status may stay Ready after an unannounced loss, such as a crashed pod or a field that somebody
// changed.
const grace = time.Second

// Event is a watch event of a Memcached, of an object with the name of a child, of a pod, of a Secret, or of an
// admission policy.
type Event struct {
	Seen    time.Time
	Listed  bool // the object existed before the first event
	Deleted bool
	Object  *unstructured.Unstructured
}

// Verdict is the result of Judge.
type Verdict struct {
	Memcacheds, Workloads int // events
	Claims                int // events of a Memcached that is Ready for its current spec
	Failures              int // times that a Memcached became Failed
	Lies                  []string
}

func (v Verdict) String() string {
	return strings.Join(append([]string{fmt.Sprintf("%d events of Memcacheds and %d of workloads watched,"+
		" %d times Ready, %d times Failed, lies: %d",
		v.Memcacheds, v.Workloads, v.Claims, v.Failures, len(v.Lies))}, v.Lies...), "\n  ")
}

// history is the known state of one Memcached at a point in the sequence of events.
type history struct {
	mc         *v1alpha1.Memcached // nil unless its status claims Ready for its current spec
	uid        types.UID           // of the last Memcached, even if it claims nothing
	installed  bool                // it was ready once, or existed before the first event
	workloads  map[child]*seen     // Deployments and StatefulSets
	falseSince time.Time           // when the claim of mc became false; zero while it is true
	reason     string

	object              *unstructured.Unstructured           // the last event of the Memcached
	byOthers            bool                                 // another manager than the operator wrote the status last
	everWrittenByOthers bool                                 // another manager ever wrote the status
	children            map[child]*unstructured.Unstructured // objects with the names of children
	foreignUntil        time.Time                            // when a foreign object with such a name last existed
	servers             map[string]*corev1.Pod               // by their names
	progressed          time.Time                            // when a server became ready, or a workload progressed
	secretChanged       time.Time                            // when a Secret of the Memcached changed
	failure             *failure                             // nil unless the status is Failed
}

// child identifies an object in the namespace of a Memcached.
type child struct{ kind, name string }

// seen is the known state of one workload.
type seen struct {
	now      *Workload // nil if it does not exist
	complete *Workload // the last state of this generation with all pods
	lostAt   time.Time // when it lost pods after that
}

// Judge checks the listed objects in the order of events, and then all others in the order of their resource versions.
// until is the time at which the recording ended.
func Judge(events []Event, until time.Time) (Verdict, error) {
	var v Verdict
	known := map[types.NamespacedName]*history{}
	events = slices.Clone(events)
	slices.SortStableFunc(events, func(a, b Event) int {
		switch {
		case a.Listed && b.Listed:
			return 0
		case a.Listed:
			return -1
		case b.Listed:
			return 1
		}
		return compare(a.Object, b.Object)
	})
	for _, e := range events {
		kind, namespace := e.Object.GetKind(), e.Object.GetNamespace()
		switch {
		case namespace == "": // a policy may affect every object
			for _, h := range known {
				if h.failure != nil {
					h.failure.changedByOthers = true
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
					servers: map[string]*corev1.Pod{}}
				known[key] = h
			}
			if err := v.event(h, name, e); err != nil {
				return v, fmt.Errorf("%s %s: %w", kind, key, err)
			}
		}
	}
	for _, h := range known {
		v.reportStale(h, until)
	}
	return v, nil
}

// numbered matches the name of a child that belongs to one server.
var numbered = regexp.MustCompile(`^(.+)-\d+$`)

// memcachedsOf returns the names of the Memcacheds that an event may concern. A foreign object can have the name of a
// child.
func memcachedsOf(o *unstructured.Unstructured) []string {
	name := o.GetName()
	switch o.GetKind() {
	case "Memcached":
		return []string{name}
	case "Pod":
		return []string{o.GetLabels()[labelName]}
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
		return h.server(e)
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
		v.checkClaim(h, h.contradiction(h.mc, (*seen).current), e.Seen)
	}
	return nil
}

// remember stores the workload as complete if it has all its pods; otherwise it records when the workload lost pods
// without a new generation.
func (s *seen) remember(at time.Time) {
	w := s.now
	switch {
	case w.Spec.Replicas != nil && w.missing(*w.Spec.Replicas, "pods") == "":
		s.complete, s.lostAt = w, time.Time{}
	case s.complete == nil || s.complete.UID != w.UID || s.complete.Generation != w.Generation:
		s.complete, s.lostAt = nil, time.Time{}
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

func (s *seen) lastComplete() *Workload {
	if s == nil {
		return nil
	}
	return s.complete
}

// contradiction returns how mc contradicts its workloads: either their current state, or their last complete state.
func (h *history) contradiction(mc *v1alpha1.Memcached, which func(*seen) *Workload) string {
	return Contradiction(mc, which(h.workload(mc)), which(h.proxies(mc)), slices.Collect(maps.Values(h.servers)))
}

// workload returns that of the servers.
func (h *history) workload(mc *v1alpha1.Memcached) *seen {
	return h.workloads[child{ServersKind(mc), mc.Name}]
}

func (h *history) proxies(mc *v1alpha1.Memcached) *seen {
	return h.workloads[child{"Deployment", ProxyName(mc)}]
}

// lostAt returns when the first of the workloads of mc lost pods, or zero if none did.
func (h *history) lostAt(mc *v1alpha1.Memcached) (first time.Time) {
	for _, s := range []*seen{h.workload(mc), h.proxies(mc)} {
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
		h.object, h.byOthers, h.everWrittenByOthers, h.failure = nil, false, false, nil
	}
	before := h.object
	h.author(e.Object)
	claims, failed := claimsReady(read, mc) && !h.byOthers, read.Status == status.FailedStatus && !h.byOthers
	h.installed = h.installed || claims
	is := func(c string) bool { return meta.IsStatusConditionTrue(mc.Status.Conditions, c) }
	switch reason := inherited(mc, h.everWrittenByOthers); {
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
		v.reportStale(h, e.Seen)
		h.mc, h.falseSince = nil, time.Time{}
		return nil
	}
	v.Claims++
	claimed := e.Listed || h.mc != nil && h.mc.UID == mc.UID && h.mc.Generation == mc.Generation
	h.mc = mc
	reason, since := h.contradiction(mc, (*seen).current), e.Seen
	if reason != "" && !claimed {
		if h.contradiction(mc, (*seen).lastComplete) != "" {
			v.lie(mc, "turned Ready, but "+reason)
			return nil
		}
		since = h.lostAt(mc)
	}
	v.checkClaim(h, reason, since)
	return nil
}

// checkClaim records whether the present claim is true.
func (v *Verdict) checkClaim(h *history, reason string, seen time.Time) {
	if reason != "" && !h.falseSince.IsZero() {
		return // the claim is still false
	}
	v.reportStale(h, seen)
	h.reason, h.falseSince = reason, time.Time{}
	if reason != "" {
		h.falseSince = seen
	}
}

// reportStale reports a claim that was false for longer than grace.
func (v *Verdict) reportStale(h *history, now time.Time) {
	if h.mc != nil && !h.falseSince.IsZero() && now.Sub(h.falseSince) > grace {
		v.lie(h.mc, fmt.Sprintf("stayed Ready for %.1f s, although %s", now.Sub(h.falseSince).Seconds(), h.reason))
	}
}

func (v *Verdict) lie(mc *v1alpha1.Memcached, what string) {
	v.Lies = append(v.Lies, fmt.Sprintf("Memcached %s/%s (generation %d, resourceVersion %s) %s",
		mc.Namespace, mc.Name, mc.Generation, mc.ResourceVersion, what))
}

// claimsReady reports whether a client that waits for the Memcached would continue. There are three kinds of clients:
// those that compare generations themselves, those that trust the generation of the condition (kubectl wait), and those
// that use kstatus (Flux).
func claimsReady(read *status.Result, mc *v1alpha1.Memcached) bool {
	ready := meta.FindStatusCondition(mc.Status.Conditions, v1alpha1.ConditionReady)
	return read.Status == status.CurrentStatus || ready != nil && ready.Status == metav1.ConditionTrue &&
		(mc.Status.ObservedGeneration == mc.Generation || ready.ObservedGeneration == mc.Generation)
}

// compare orders two objects by their resource versions.
func compare(a, b *unstructured.Unstructured) int {
	return int(version(a)) - int(version(b))
}

func version(u *unstructured.Unstructured) uint64 {
	n, _ := strconv.ParseUint(u.GetResourceVersion(), 10, 64)
	return n
}
