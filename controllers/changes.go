package controllers

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/children"
	"github.com/example/memcached-operator/controllers/desired"
	"github.com/example/memcached-operator/controllers/status"
	"github.com/example/memcached-operator/controllers/steps"
)

// lookUp reads from the API server what the informer cache does not show: a workload that lost its labels keeps its
// template, and the list of the proxies is in their ConfigMap too.
func (o observation) lookUp(ctx context.Context) error {
	if err := o.set.LookUp(ctx, workloadKey(o.mc), o.children); err != nil || o.mc.Spec.Proxy == nil {
		return err
	}
	return o.set.LookUp(ctx, proxyConfigKey(o.mc), o.children)
}

// current returns what the plan is built from, except the spec and the Secrets.
func (o observation) current(ctx context.Context, v steps.View) (c desired.Current, err error) {
	c.Now = v.Now
	if c.ProxyServers, c.MinServers, err = o.nextProxyServers(ctx, v); err != nil {
		return c, err
	}
	workload := o.workload()
	if workload == nil {
		return c, nil
	}
	c.Workload = workload
	w := status.ReadState(c.Workload, o.servers...)
	c.Empty = w.IsEmpty()
	if set, ok := c.Workload.(*appsv1.StatefulSet); ok && w.Observed {
		c.Revision = set.Status.UpdateRevision
	}
	return c, nil
}

// effect returns how the plan affects servers and proxies.
func (o observation) effect(plan desired.Plan) (e status.Effect) {
	if want := plan.Servers; want != nil {
		workload := o.workload()
		otherSize := replicas(workload) != want.Replicas
		e.Changing = workload == nil || want.NewTemplate || otherSize
		e.Resizing = workload != nil && !want.NewTemplate && otherSize
		e.ListChanging = workload != nil && workload.GetAnnotations()[v1alpha1.ProxyServersAnnotation] != want.ProxyServers
	}
	if proxy, want := o.ownChild(proxyKey(o.mc)), plan.Proxies; proxy != nil && want != nil {
		e.ProxyChanging = replicas(proxy) != want.Replicas ||
			proxy.GetAnnotations()[v1alpha1.TemplateAnnotation] != want.Template
	}
	return e
}

// replicas returns spec.replicas of a workload; 0 without one.
func replicas(workload client.Object) int32 {
	switch w := workload.(type) {
	case *appsv1.Deployment:
		return ptr.Deref(w.Spec.Replicas, 1)
	case *appsv1.StatefulSet:
		return ptr.Deref(w.Spec.Replicas, 1)
	}
	return 0
}

// writtenEffect returns an effect after changes were written: those that changed nothing have none.
func writtenEffect(mc *v1alpha1.Memcached, e status.Effect, written []children.Written) status.Effect {
	has := map[children.Key]bool{}
	for _, w := range written {
		has[w.Key] = true
	}
	if !has[workloadKey(mc)] {
		e.Changing, e.Resizing, e.ListChanging = false, false, false
	}
	e.ProxyChanging = e.ProxyChanging && has[proxyKey(mc)]
	return e
}

// heldBack returns the effect of changes that spec.paused holds back. If a dry run failed, it is unknown whether it
// holds anything back.
func heldBack(changes children.Changes, dryRunErr error) status.Effect {
	switch {
	case dryRunErr != nil:
		return status.Effect{HeldBack: "spec.paused may hold changes back, because " + dryRunErr.Error()}
	case len(changes) > 0:
		return status.Effect{HeldBack: "spec.paused keeps the operator from applying the spec"}
	}
	return status.Effect{}
}
