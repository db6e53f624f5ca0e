package controllers

import (
	"context"
	"errors"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/children"
	"github.com/example/memcached-operator/controllers/desired"
	"github.com/example/memcached-operator/controllers/status"
)

// current returns what the plan is built from, except the spec and the Secrets. A workload that the informer cache does
// not show may have lost its labels: it is read from the API server, so that its template can be preserved.
func (o observation) current(ctx context.Context, now time.Time) (c desired.Current, err error) {
	c.Now, c.Workload = now, &desired.Workload{}
	if err := o.set.LookUp(ctx, workloadKey(o.mc), o.children); err != nil {
		return c, err
	}
	if c.ProxyServers, c.MinServers, err = o.nextProxyServers(ctx); err != nil {
		return c, err
	}
	workload := o.workload()
	if workload == nil {
		return c, nil
	}
	owned, err := o.set.Extract(workload)
	if err != nil {
		return c, err
	}
	c.FlushBegin, _ = o.flushBegin(now, c.ProxyServers)
	w := status.ReadState(workload, o.servers...)
	c.Workload, c.Empty, c.HasReady = desired.ReadWorkload(owned), w.IsEmpty(), w.HasReady()
	if set, ok := workload.(*appsv1.StatefulSet); ok && w.Observed {
		c.Revision = set.Status.UpdateRevision
	}
	const key = v1alpha1.TemplateRecordAnnotation
	if record := workload.GetAnnotations()[key]; c.Annotations[key] == "" && record != "" { // owned by another manager
		c.Annotations = map[string]string{key: record}
	}
	return c, nil
}

// compare returns the children that are not as desired.
func compare(ctx context.Context, o observation, in desired.Inputs,
	current desired.Current) ([]children.Change, error) {
	plan := desired.NewPlan(o.mc, in)
	// A new generation that no workload has been built from makes the object InProgress in any case, so that a no-op apply
	// needs no dry run first.
	dryRun := o.mc.Spec.Paused || o.mc.Status.ObservedGeneration == o.mc.Generation || current.IsOfGeneration(o.mc)
	changes, err := o.set.Compare(ctx, plan.Children, plan.Guards, o.children, dryRun)
	replacesTemplate := func(c children.Change) bool {
		return o.isWorkload(c) && (c.DryRun == nil || !current.SameTemplate(desired.ReadWorkload(c.DryRun)))
	}
	if err != nil || !in.HasNewTemplate() || slices.ContainsFunc(changes, replacesTemplate) {
		return changes, err
	}
	// An apply would not change the template to the desired one: an admission plugin overrides it. Preserve the current
	// template. If the plugin would change even the current template, do not apply the workload, because each apply would
	// replace the servers. The list of the proxies cannot change then.
	plan = desired.NewPlan(o.mc, in.PreserveTemplate(current.Workload))
	changes, err = o.set.Compare(ctx, plan.Children, plan.Guards, o.children, true)
	isRefused := slices.ContainsFunc(changes, func(c children.Change) bool {
		return o.isWorkload(c) && c.DryRun != nil && !current.SameTemplate(desired.ReadWorkload(c.DryRun))
	})
	return slices.DeleteFunc(changes, func(c children.Change) bool {
		return isRefused && (o.isWorkload(c) || c.Key == proxyConfigKey(o.mc))
	}), err
}

func (o observation) isWorkload(c children.Change) bool { return c.Key == workloadKey(o.mc) }

// effectOf returns how changes affect servers and proxies. While mc is paused, it also returns the error of a failed
// dry run: without a result, it is unknown whether spec.paused holds anything back.
func effectOf(mc *v1alpha1.Memcached, changes []children.Change) (e status.Effect, dryRunErr error) {
	for _, c := range changes {
		dryRunErr = errors.Join(dryRunErr, c.DryRunErr)
		after := desired.ReadWorkload(c.After())
		if after == nil {
			continue
		}
		before := desired.ReadWorkload(c.Owned)
		sameTemplate, sameSize := before != nil && before.SameTemplate(after), before != nil && before.SameSize(after)
		switch c.Key {
		case workloadKey(mc):
			e.Changing, e.Resizing = !sameTemplate || !sameSize, sameTemplate && !sameSize
			e.ListChanging = before != nil && before.Annotations[v1alpha1.ProxyServersAnnotation] !=
				after.Annotations[v1alpha1.ProxyServersAnnotation]
		case proxyKey(mc):
			e.ProxyChanging = before != nil && (!sameTemplate || !sameSize)
		}
	}
	switch {
	case !mc.Spec.Paused:
		return e, nil
	case dryRunErr != nil:
		return status.Effect{HeldBack: "spec.paused may hold changes back, because " + dryRunErr.Error()}, dryRunErr
	case len(changes) > 0:
		return status.Effect{HeldBack: "spec.paused keeps the operator from applying the spec"}, nil
	}
	return status.Effect{}, nil
}
