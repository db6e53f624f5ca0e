package controllers

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/children"
	"github.com/example/memcached-operator/controllers/desired"
	"github.com/example/memcached-operator/controllers/status"
	"github.com/example/memcached-operator/controllers/steps"
)

// applyResult is what became of a plan.
type applyResult struct {
	children.Result
	mc        *v1alpha1.Memcached // with the status that was written before
	effect    status.Effect
	dryRunErr error
}

// apply applies a plan, or with spec.paused finds out whether that would change anything. The status is written before,
// in these cases:
//
//   - Servers or proxies are replaced without a new generation, such as for a restart, or restored after somebody else
//     changed them, which may take several tries: Ready becomes False.
//   - The proxies get another list: Stalled is removed. With whenMoveStalls Proceed, a later reconcile would give up a
//     change that has just begun. If the informer cache shows an old Stalled, this write conflicts.
//   - While paused, a loss is reported before the dry run.
func (r *MemcachedReconciler) apply(ctx context.Context, o observation, v steps.View, plan desired.Plan,
	st *state) (a applyResult, err error) {
	changes, err := o.set.Plan(ctx, plan.Children, plan.Guards, plan.Preserve, o.children)
	if err != nil {
		return a, err
	}
	paused, effect := v.Memcached.Spec.Paused, status.Effect{}
	if !paused {
		effect = planEffect(v, plan)
	}
	a.mc = v.Memcached
	drifted := changes.Drifted(workloadKey(a.mc)) || changes.Drifted(proxyKey(a.mc))
	if (paused || effect.Changing || effect.ProxyChanging || drifted) && status.WasReady(a.mc) ||
		effect.ListChanging && status.IsStalled(a.mc) {
		if a.mc, err = r.writeStatus(ctx, a.mc, st, statusInput(v, r.Options, effect), v.Now); err != nil {
			return a, err
		}
	}
	if paused {
		var isHeldBack bool
		isHeldBack, a.dryRunErr = o.set.WouldChange(ctx, changes)
		switch {
		case a.dryRunErr != nil: // it is unknown whether anything is held back
			a.effect.HeldBack = "spec.paused may hold changes back, because " + a.dryRunErr.Error()
		case isHeldBack:
			a.effect.HeldBack = "spec.paused keeps the operator from applying the spec"
		}
		return a, nil
	}
	a.Result, a.effect = o.set.Apply(ctx, changes, v.Now), effect
	if st.isTransient(a.Err) || errors.Is(a.Err, children.ErrStaleOwner) {
		return a, a.Err
	}
	if apierrors.HasStatusCause(a.Err, corev1.NamespaceTerminatingCause) {
		return a, errDeleted
	}
	if a.Err == nil { // some changes may have been no-ops
		a.effect = writtenEffect(a.mc, effect, a.Written)
	}
	o.setWritten(a.Written)
	r.reportWritten(ctx, a.mc, a.Written)
	return a, nil
}

// planEffect returns how a plan affects servers and proxies.
func planEffect(v steps.View, plan desired.Plan) (e status.Effect) {
	if want := plan.Servers; want != nil {
		otherSize := steps.Replicas(v.Workload) != want.Replicas
		e.Changing = v.Workload == nil || want.NewTemplate || otherSize
		e.Resizing = v.Workload != nil && !want.NewTemplate && otherSize
		e.ListChanging = v.Workload != nil &&
			v.Workload.GetAnnotations()[v1alpha1.ProxyServersAnnotation] != want.ProxyServers
	}
	if want := plan.Proxies; v.Proxy != nil && want != nil {
		e.ProxyChanging = steps.Replicas(v.Proxy) != want.Replicas ||
			v.Proxy.GetAnnotations()[v1alpha1.TemplateAnnotation] != want.Template
	}
	return e
}

// writtenEffect returns an effect after changes were written: those that changed nothing have none.
func writtenEffect(mc *v1alpha1.Memcached, e status.Effect, written []children.Written) status.Effect {
	isWritten := func(key children.Key) bool {
		return slices.ContainsFunc(written, func(w children.Written) bool { return w.Key == key })
	}
	if !isWritten(workloadKey(mc)) {
		e.Changing, e.Resizing, e.ListChanging = false, false, false
	}
	e.ProxyChanging = e.ProxyChanging && isWritten(proxyKey(mc))
	return e
}
