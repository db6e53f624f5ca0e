package controllers

import (
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/children"
	"github.com/example/memcached-operator/controllers/desired"
	"github.com/example/memcached-operator/controllers/status"
	"github.com/example/memcached-operator/controllers/steps"
)

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
