package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/example/memcached-operator/agent/mover"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/desired"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/controllers/rollout"
)

// actions are the pods to replace and to annotate.
type actions struct {
	rollout rollout.Step
	memory  rollout.MemoryStep
	flush   rollout.Flush
	// cannotFlush is why servers cannot drop their items, as is asked for; empty for nothing.
	cannotFlush string
	wait        time.Duration // until there is more to do; 0 if a watch event will trigger it
	annotate    []annotation
	ask         []*corev1.Pod // proxies, whether they use the current list of servers
	stop        []*corev1.Pod // servers that wait until they may stop
}

type annotation struct {
	key, value string
	pods       []*corev1.Pod
}

// nextActions returns which pods to replace and to annotate: none while the Memcached is paused; a server that somebody
// deletes then stops at once. Unless the template is final, no server is replaced: a Secret may be unavailable, or the
// newest template could not be written.
func nextActions(o observation, secrets desired.Secrets, isFinal bool, now time.Time) (a actions) {
	moves := !o.mc.Spec.Paused && o.movesWhenReplaced()
	servers, proxies := o.proxyServers()
	inUse := proxies.InUse(servers)
	a.stop = rollout.ToStop(o.servers, func(name string) bool { return moves && inUse(name) })
	if o.mc.Spec.Paused {
		return a
	}
	if set, ok := o.workload().(*appsv1.StatefulSet); ok && isFinal {
		a.memory = rollout.NextMemoryStep(set, o.servers, names.Generation(o.mc))
		switch {
		case moves:
			a.rollout.Replace = rollout.UnusedToReplace(set, o.servers, inUse)
		case servers.Phase == mover.NoChange: // otherwise, first the items reach their new servers
			a.rollout = rollout.NextStep(set, o.servers, o.mc.Spec.Rollout, now)
			a.wait = a.rollout.Wait
		}
	}
	versions := secrets.Annotation()
	a.annotate = []annotation{{v1alpha1.SecretsAnnotation, versions,
		rollout.PodsToAnnotate(o.servers, v1alpha1.SecretsAnnotation, versions)}}
	flush, begun := o.flush()
	switch idle := servers.Phase == mover.NoChange && proxies.NotLoaded() == "" &&
		len(a.rollout.Replace)+len(a.rollout.Peers) == 0; {
	case o.mc.Annotations[v1alpha1.FlushedAtAnnotation] == "": // taken back
		a.annotate = append(a.annotate, annotation{v1alpha1.FlushAnnotation, "", flush.Asked})
		if len(flush.Asked) > 0 {
			a.wait = soonest(a.wait, proxyRetry)
		}
	case len(flush.Asked) > 0, begun && idle:
		a.flush = flush
	case !begun:
		_, a.cannotFlush = o.flushBegin(now, servers)
	}
	for _, pod := range flush.Stopping { // its items need not move
		if !slices.Contains(a.stop, pod) {
			a.stop = append(a.stop, pod)
		}
	}
	if o.mc.Spec.Proxy == nil {
		return a
	}
	a.ask = proxies.Unconfirmed(servers)
	list := proxies.ToAnnotate()
	if len(list) > 0 {
		a.wait = soonest(a.wait, proxyRetry)
	}
	if servers.Phase != mover.NoChange { // it may stall, which no watch event tells
		a.wait = soonest(a.wait, silentRetry)
	}
	a.annotate = append(a.annotate, annotation{v1alpha1.ProxyConfigAnnotation, proxies.Annotation(rollout.Unasked), list})
	return a
}

// perform performs all actions, continues after an error, and joins the errors.
func (r *MemcachedReconciler) perform(ctx context.Context, o observation, a actions) error {
	var errs []error
	if len(a.rollout.Replace) > 0 {
		errs = append(errs, r.replace(ctx, o, a))
	}
	for _, annotation := range a.annotate {
		for _, pod := range annotation.pods {
			errs = append(errs, r.annotate(ctx, pod, annotation.key, annotation.value))
		}
	}
	return errors.Join(errs...)
}

// annotated returns a copy of a pod with an annotation and the time of its change.
func (r *MemcachedReconciler) annotated(pod *corev1.Pod, key, value string) *corev1.Pod {
	after := pod.DeepCopy()
	metav1.SetMetaDataAnnotation(&after.ObjectMeta, v1alpha1.RefreshedAnnotation, r.Now().UTC().Format(time.RFC3339))
	metav1.SetMetaDataAnnotation(&after.ObjectMeta, key, value)
	return after
}

func (r *MemcachedReconciler) annotate(ctx context.Context, pod *corev1.Pod, key, value string) error {
	err := r.Client.Patch(ctx, r.annotated(pod, key, value), client.MergeFrom(pod), client.FieldOwner(names.Operator))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("annotate pod %s: %w", pod.Name, err)
	}
	return nil
}

// replace deletes servers of a StatefulSet, whose controller recreates them.
func (r *MemcachedReconciler) replace(ctx context.Context, o observation, a actions) error {
	if err := o.isCurrent(ctx); err != nil {
		return err
	}
	var errs []error
	for _, pod := range a.rollout.Replace {
		log.FromContext(ctx).Info("replacing a server", "pod", pod.Name, "generation", o.mc.Generation)
		if err := o.set.Delete(ctx, pod, metav1.DeletePropagationBackground); err != nil {
			errs = append(errs, fmt.Errorf("replace a server: %w", err))
		}
	}
	return errors.Join(errs...)
}
