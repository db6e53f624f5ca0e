package controllers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/children"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/controllers/status"
)

// The operator writes nothing of a Memcached but its finalizer and its status.

// A status that tells of mere progress waits after the one before, however many servers a rollout has. All else is told
// at once.
const (
	// statusPace is for servers that became ready, and for another cause that keeps servers from being ready. After the
	// last server became ready, a status waits as long for the workload's controller to count it: then Ready follows.
	statusPace = 5 * time.Second
	// startPace is for servers that are not ready yet, and for those of a deleted Memcached that are gone.
	startPace = 30 * time.Second
)

func (p *pass) key() children.Key { return children.Key{Kind: kindMemcached, Name: p.mc.Name} }

// wrote remembers the answer to a write of the Memcached.
func (p *pass) wrote(obj client.Object) {
	p.resourceVersion = obj.GetResourceVersion()
	p.mem.Wrote(p.key(), p.resourceVersion, p.now)
}

// addFinalizer applies the one list item, so that nobody else's is lost. The uid keeps an object that was deleted
// meanwhile from being created anew.
func (p *pass) addFinalizer(ctx context.Context) error {
	config, err := json.Marshal(&metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: kindMemcached},
		ObjectMeta: metav1.ObjectMeta{Name: p.mc.Name, UID: p.mc.UID, Finalizers: []string{v1alpha1.Finalizer}},
	})
	if err != nil {
		return err
	}
	mc := &v1alpha1.Memcached{ObjectMeta: metav1.ObjectMeta{Namespace: p.mc.Namespace, Name: p.mc.Name}}
	err = p.Client.Patch(ctx, mc, client.RawPatch(types.ApplyPatchType, config), client.ForceOwnership,
		client.FieldOwner(names.Operator))
	if err != nil {
		return p.changedMeanwhile(fmt.Errorf("add the finalizer to Memcached %s: %w", p.mc.Name, err))
	}
	p.wrote(mc)
	return nil
}

// removeFinalizer lets the Memcached go, and forgets it: what its children still do is of no interest. An apply would
// leave the item where another manager owns it too, as after the restore of a backup.
func (p *pass) removeFinalizer(ctx context.Context) error {
	before := p.mc.DeepCopy()
	before.ResourceVersion = p.resourceVersion
	mc := before.DeepCopy()
	controllerutil.RemoveFinalizer(mc, v1alpha1.Finalizer)
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	err := p.Client.Patch(ctx, mc, patch, client.FieldOwner(names.Operator))
	if client.IgnoreNotFound(err) != nil {
		return p.changedMeanwhile(fmt.Errorf("remove the finalizer of Memcached %s: %w", p.mc.Name, err))
	}
	p.wrote(mc)
	if err != nil || len(mc.Finalizers) == 0 {
		p.memories.forget(client.ObjectKeyFromObject(mc))
	}
	return nil
}

// writeStatus writes the status where it differs from the one that the API server has, and records the transitions as
// events.
//
// The status is patched and not applied. A condition that another manager co-owns, such as a tool that restores
// backups, cannot be dropped by an apply. The resource version in the patch keeps the status of a predecessor from a
// successor of the same name.
func (p *pass) writeStatus(ctx context.Context) error {
	s := p.computeStatus(ctx)
	if p.awaitsController() || p.awaitsCount(&s) {
		return nil
	}
	if equality.Semantic.DeepEqual(p.written, s) && p.written.Nodes != nil {
		return nil
	}
	// What another manager wrote waits for nothing.
	if wait := p.due(&s).Sub(p.now); wait > 0 && *p.mem.status.Load() == *mark(&p.written) {
		p.again = wait
		return nil
	}
	before := &v1alpha1.Memcached{ObjectMeta: metav1.ObjectMeta{Namespace: p.mc.Namespace, Name: p.mc.Name,
		ResourceVersion: p.resourceVersion}, Status: p.written}
	mc := before.DeepCopy()
	mc.Status = s
	p.mem.status.Store(mark(&s)) // before the watch can show it
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := p.Client.Status().Patch(ctx, mc, patch, client.FieldOwner(names.Operator)); err != nil {
		return p.changedMeanwhile(fmt.Errorf("write the status of Memcached %s: %w", p.mc.Name, err))
	}
	p.wrote(mc)
	p.mem.statusWritten, p.mem.servingSince = p.now, time.Time{}
	if lost(&s) && !lost(&p.written) && p.workload != nil {
		p.mem.lossAt, p.mem.lossUntil = p.workload.GetResourceVersion(), p.now.Add(controllerTime)
	}
	p.recordTransitions(ctx, &p.written, &s)
	p.written = s
	return nil
}

// due is when a status that differs is written, which is not put off beyond the progress deadline.
func (p *pass) due(s *v1alpha1.MemcachedStatus) time.Time {
	due := p.mem.statusWritten.Add(p.pace(s))
	if !p.mem.servingSince.IsZero() {
		due = earlier(due, p.mem.servingSince.Add(statusPace))
	}
	if end := status.Deadline(p.mc, p.written.Conditions, p.obs.Workload); !end.IsZero() {
		due = earlier(due, end)
	}
	return due
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// pace is how long after another one a status is written: 0 but for mere progress.
func (p *pass) pace(s *v1alpha1.MemcachedStatus) time.Duration {
	if !p.mc.DeletionTimestamp.IsZero() {
		if p.written.Phase == v1alpha1.PhaseDeleting && p.obs.Problem == nil {
			return startPace
		}
		return 0
	}
	if p.obs.Problem != nil || meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionReady) ||
		p.written.ObservedGeneration != s.ObservedGeneration || p.written.Phase != s.Phase ||
		p.written.Image != s.Image || !slices.Equal(p.written.Servers, s.Servers) ||
		s.ReadyReplicas < p.written.ReadyReplicas || len(p.written.Conditions) != len(s.Conditions) {
		return 0
	}
	all := s.ReadyReplicas == names.Size(p.mc) && p.mc.Spec.Rollout.MinReadySeconds == 0
	pace := startPace
	switch {
	case s.ReadyReplicas == p.written.ReadyReplicas:
	case !all:
		pace = statusPace
	case p.mem.servingSince.IsZero():
		p.mem.servingSince = p.now
	}
	for _, c := range s.Conditions {
		old := meta.FindStatusCondition(p.written.Conditions, c.Type)
		comes := c.Type == v1alpha1.ConditionAvailable && c.Status == metav1.ConditionTrue
		switch {
		case old == nil || !comes && (old.Status != c.Status || old.Reason != c.Reason):
			return 0
		case old.Status != c.Status && p.mc.Spec.Proxy != nil: // whose proxies may keep it from being ready
			pace = statusPace
		case old.Message != c.Message && (c.Reason == v1alpha1.ReasonProgressingWithRetry ||
			c.Reason == v1alpha1.ReasonProgressDeadlineExceeded):
			pace = statusPace
		}
	}
	if slices.ContainsFunc(p.written.Nodes, func(node string) bool { return !slices.Contains(s.Nodes, node) }) {
		return 0
	}
	return pace
}

// computeStatus asks about the namespace where the status would say that servers are lost or being removed, and goes on
// to ask while it is being deleted.
func (p *pass) computeStatus(ctx context.Context) v1alpha1.MemcachedStatus {
	p.obs.Servers = p.addresses()
	s := status.Compute(p.mc, p.obs, p.now)
	before := meta.FindStatusCondition(p.written.Conditions, v1alpha1.ConditionDegraded)
	after := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionDegraded)
	ready := meta.FindStatusCondition(p.written.Conditions, v1alpha1.ConditionReady)
	worse := after.Status == metav1.ConditionTrue && (before == nil || before.Reason != after.Reason)
	ending := ready != nil && ready.Reason == v1alpha1.ReasonDeleting && p.mc.DeletionTimestamp.IsZero()
	vanished := p.obs.Workload == nil && status.WasReady(p.mc) && p.mc.DeletionTimestamp.IsZero()
	if !p.obs.NamespaceTerminating && (worse || ending || vanished) && p.namespaceTerminating(ctx) {
		p.obs.NamespaceTerminating = true
		s = status.Compute(p.mc, p.obs, p.now)
	}
	return s
}

// awaitsController reports whether all that keeps mc from being ready is that the workload's controller has not looked
// at a change that touches no server. It looks within milliseconds. Until then the previous status, of the older
// generation, is left in place.
func (p *pass) awaitsController() bool {
	if !p.now.Before(p.mem.untouchedUntil) || p.obs.Workload == nil ||
		p.obs.Workload.Observed && (p.obs.Proxy == nil || p.obs.Proxy.Observed) {
		return false
	}
	obs := p.obs
	obs.Workload, obs.Proxy = obs.Workload.AsObserved(), obs.Proxy.AsObserved()
	if s := status.Compute(p.mc, obs, p.now); !meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionReady) {
		return false
	}
	p.again = time.Second
	return true
}

// awaitsCount reports whether mc is ready again after a loss only because the workload's status is still that of before
// the loss: the new servers were ready before its controller counted.
func (p *pass) awaitsCount(s *v1alpha1.MemcachedStatus) bool {
	if !lost(&p.written) || !meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionReady) ||
		p.workload == nil || p.workload.GetResourceVersion() != p.mem.lossAt || !p.now.Before(p.mem.lossUntil) {
		return false
	}
	p.again = p.mem.lossUntil.Sub(p.now)
	return true
}

func lost(s *v1alpha1.MemcachedStatus) bool {
	c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionDegraded)
	return c != nil && c.Reason == v1alpha1.ReasonServersLost
}

// problem puts an error into the words of the status.
func problem(err error) *status.Problem {
	if err == nil {
		return nil
	}
	message := strings.ReplaceAll(err.Error(), "\n", "; ") // of joined errors
	var stall *children.StallError
	if errors.As(err, &stall) {
		return &status.Problem{Reason: stall.Reason, Message: message, Stalled: true}
	}
	return &status.Problem{Reason: v1alpha1.ReasonProgressingWithRetry, Message: message}
}

// changedMeanwhile tells a write that met another Memcached, or another state of it, than the cache shows from one that
// failed. The cache will show what is there. An admission plugin that answers in the same way does so again and again.
func (p *pass) changedMeanwhile(err error) error {
	switch {
	case apierrors.IsNotFound(err):
		p.memories.forget(client.ObjectKeyFromObject(p.mc)) // no event may follow that would
		return errChanged
	case children.IsRace(err) && p.mem.races < maxRaces:
		p.mem.races++
		p.again = raceRetry
		return errChanged
	}
	return err
}
