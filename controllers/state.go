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

// states holds the state of each Memcached between reconciles. It saves requests, and measures time. It is empty after
// a restart, so decisions about children do not depend on it, with one exception: state.tls knows the CAs of a Secret
// even if its record could not be written yet.
type states struct{ m sync.Map }

// state is used by one reconcile at a time, because reconciles of one object never overlap. Only statusVersion is also
// read by the watch.
type state struct {
	uid      types.UID // of the Memcached
	children children.State
	clock    status.Clock
	// statusVersion is the resource version of the Memcached after the last write of its status, whose event needs no
	// reconcile; nil after a reconcile that saw another version.
	statusVersion atomic.Pointer[string]
	// tls is the record of the Secret for TLS as it was last read, even if it could not be written to the workload yet.
	tls *desired.Secret
	// polled is when the agents were last polled.
	polled time.Time
	// conflicts counts the consecutive reconciles that failed with a write conflict.
	conflicts int
}

// get returns the state of a Memcached. A new Memcached with the name of a deleted one gets a new state.
func (s *states) get(mc *v1alpha1.Memcached) *state {
	key := client.ObjectKeyFromObject(mc)
	if v, ok := s.m.Load(key); ok && v.(*state).uid == mc.UID {
		return v.(*state)
	}
	st := &state{uid: mc.UID}
	s.m.Store(key, st)
	return st
}

func (s *states) delete(key types.NamespacedName) { s.m.Delete(key) }

// isLastStatus reports whether the last write of mc was our last write of its status.
func (s *states) isLastStatus(mc *v1alpha1.Memcached) bool {
	v, ok := s.m.Load(client.ObjectKeyFromObject(mc))
	return ok && v.(*state).isLastStatus(mc)
}

func (s *state) isLastStatus(mc *v1alpha1.Memcached) bool {
	version := s.statusVersion.Load()
	return version != nil && *version == mc.ResourceVersion
}

// untilDeadline returns the time until the progress deadline; 0 unless Reconciling is True.
func (s *state) untilDeadline(mc *v1alpha1.Memcached, now time.Time) time.Duration {
	if !meta.IsStatusConditionTrue(mc.Status.Conditions, v1alpha1.ConditionReconciling) {
		return 0
	}
	return max(s.clock.End(mc).Sub(now), time.Second)
}

// isTransient reports whether an error is a write conflict that the status does not report, because fewer than
// maxConflicts preceded it.
func (s *state) isTransient(err error) bool {
	return children.IsConflict(err) && s.conflicts < maxConflicts
}
