package controllers

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// maxNote bounds the text of an event, in bytes. The API server refuses one of more than 1024.
const maxNote = 1000

// recordTransitions records an event for each condition that became true, or true for another reason, one event a
// reason and message; and for the beginning and the end of a pause.
func (p *pass) recordTransitions(ctx context.Context, before, after *v1alpha1.MemcachedStatus) {
	if before.Phase != after.Phase && p.mc.DeletionTimestamp.IsZero() {
		switch v1alpha1.PhasePaused {
		case after.Phase:
			p.record(nil, corev1.EventTypeNormal, v1alpha1.ReasonPaused, "Reconcile",
				"spec.paused: changes of the spec are held back")
		case before.Phase:
			p.record(nil, corev1.EventTypeNormal, "Resumed", "Reconcile", "The pause is over")
		}
	}
	recorded := map[string]bool{v1alpha1.ReasonDeleting: true, v1alpha1.ReasonAvailable: true}
	if !meta.IsStatusConditionTrue(before.Conditions, v1alpha1.ConditionReady) ||
		before.ObservedGeneration != after.ObservedGeneration {
		// Nobody need be told that what was not ready, or was just asked for, is on its way.
		recorded[v1alpha1.ReasonRollingOut], recorded[v1alpha1.ReasonResizing] = true, true
	}
	for _, c := range after.Conditions {
		old := meta.FindStatusCondition(before.Conditions, c.Type)
		if c.Status != metav1.ConditionTrue || recorded[c.Reason] || recorded[c.Message] ||
			old != nil && old.Status == c.Status && old.Reason == c.Reason {
			continue
		}
		recorded[c.Reason], recorded[c.Message] = true, true
		eventType := corev1.EventTypeNormal
		switch {
		case c.Type == v1alpha1.ConditionStalled, c.Reason == v1alpha1.ReasonProgressingWithRetry,
			c.Type == v1alpha1.ConditionDegraded && c.Reason != v1alpha1.ReasonFinalizing:
			eventType = corev1.EventTypeWarning
		}
		log.FromContext(ctx).Info("condition changed", "condition", c.Type, "reason", c.Reason, "message", c.Message,
			"generation", p.mc.Generation)
		p.record(nil, eventType, c.Reason, "Reconcile", "%s", c.Message)
	}
}

// record records an event about the Memcached. A namespace that is being deleted takes none.
func (p *pass) record(related runtime.Object, eventType, reason, action, note string, args ...any) {
	if p.obs.NamespaceTerminating {
		return
	}
	text := fmt.Sprintf(note, args...)
	text = strings.ToValidUTF8(text[:min(len(text), maxNote)], "")
	p.Recorder.Eventf(p.mc, related, eventType, reason, action, "%s", text)
}

// namespaceTerminating asks whether the namespace is being deleted. Its servers then go before their Memcached does,
// which is no loss that anybody must hear of. Where the operator may not look, the answer is no.
func (p *pass) namespaceTerminating(ctx context.Context) bool {
	terminating, known := p.memories.endings.get(p.mc.Namespace, p.now)
	if known && !p.mc.DeletionTimestamp.IsZero() { // for one that lives the newest answer counts
		return terminating
	}
	ns := &metav1.PartialObjectMetadata{}
	ns.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	err := p.APIReader.Get(ctx, client.ObjectKey{Name: p.mc.Namespace}, ns)
	terminating = apierrors.IsNotFound(err) || err == nil && !ns.DeletionTimestamp.IsZero()
	p.memories.endings.set(p.mc.Namespace, terminating)
	return terminating
}
