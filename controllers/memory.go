package controllers

import (
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/children"
	"github.com/example/memcached-operator/controllers/desired"
	"github.com/example/memcached-operator/controllers/status"
)

// memories holds what is remembered of each Memcached between reconciles. It saves requests, and delays statuses and
// retries. After a restart it is empty: whatever is decided of children and their templates does not need it.
type memories struct {
	m       sync.Map
	endings endings
}

// endings remembers for a second which namespaces are being deleted: many objects go at once.
type endings struct {
	sync.Mutex
	asked time.Time
	known map[string]bool
}

func (e *endings) get(namespace string, now time.Time) (terminating, ok bool) {
	e.Lock()
	defer e.Unlock()
	if now.Sub(e.asked) > time.Second {
		e.asked, e.known = now, map[string]bool{}
	}
	terminating, ok = e.known[namespace]
	return terminating, ok
}

func (e *endings) set(namespace string, terminating bool) {
	e.Lock()
	defer e.Unlock()
	e.known[namespace] = terminating
}

// of returns the memory of a Memcached; a successor of the same name has another one.
func (m *memories) of(mc *v1alpha1.Memcached) *memory {
	key := client.ObjectKeyFromObject(mc)
	if v, ok := m.m.Load(key); ok && v.(*memory).uid == mc.UID {
		return v.(*memory)
	}
	mem := &memory{Memory: children.NewMemory(), uid: mc.UID}
	m.m.Store(key, mem)
	return mem
}

func (m *memories) forget(key types.NamespacedName) { m.m.Delete(key) }

// pace says how long changes of the children of a Memcached are gathered until one look at them all, and whether a look
// is needed at all: a Memcached that is not remembered is gone, or about to be looked at for the first time. A deleted
// one waits for the end of its servers, and nothing else.
func (m *memories) pace(key types.NamespacedName, serversRun func() bool) (pace time.Duration, ok bool) {
	v, ok := m.m.Load(key)
	if !ok {
		return 0, false
	}
	last := v.(*memory).status.Load()
	switch {
	case last != nil && last.deleting && serversRun():
		return startPace, true
	case last != nil && (last.deleting || last.ready):
		return 0, true
	}
	return progressingPace, true
}

// memory is used by one reconcile at a time, because those of one object never overlap; status is read by the watch
// too.
type memory struct {
	*children.Memory
	uid types.UID // of the Memcached
	// status is the last one that we wrote, or are about to write; before that, the one that was found.
	status atomic.Pointer[statusMark]
	// statusWritten is when a status was last written.
	statusWritten time.Time
	// servingSince is when all servers were first seen ready that the workload's controller has not counted; zero if that
	// was not seen since the last status was written.
	servingSince time.Time
	// untouchedUntil is how long the workload's controller may take to look at a change that touches no server. Until
	// then no status says that servers roll out.
	untouchedUntil time.Time
	// lossAt is the resource version of the workload when servers were lost, and lossUntil how long its controller may
	// take to find out. Until then its status still counts the servers that are gone.
	lossAt    string
	lossUntil time.Time
	// endingSince is when the servers of a deleted Memcached were first waited for; zero for not yet.
	endingSince time.Time
	// deleted is the uid of the workload that was deleted because its Memcached is. No workload is looked for after that.
	deleted types.UID
	// asDesired is the fingerprint of children that were as desired; 0 for none.
	asDesired uint64
	// secrets are those that were last read.
	secrets desired.Secrets
	// races counts the writes of the Memcached in a row that met a change of somebody else.
	races int
}

// statusMark is what is remembered of a status.
type statusMark struct {
	digest          uint64
	deleting, ready bool
}

// mark needs the order that status.Normalize makes.
func mark(s *v1alpha1.MemcachedStatus) *statusMark {
	return &statusMark{children.Digest(s), s.Phase == v1alpha1.PhaseDeleting,
		meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionReady)}
}

// ours reports whether a status is the last one that we wrote. Any other one is a reason to reconcile.
func (m *memories) ours(key types.NamespacedName, s *v1alpha1.MemcachedStatus) bool {
	v, ok := m.m.Load(key)
	if !ok {
		return false
	}
	last := v.(*memory).status.Load()
	if last == nil {
		return false
	}
	s = s.DeepCopy()
	status.Normalize(s)
	return *last == *mark(s)
}
