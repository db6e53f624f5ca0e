package controllers

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// tell records an event for each condition that became true, or true for another reason; one event a reason.
func (p *pass) tell(ctx context.Context, before, after []metav1.Condition) {
	told := map[string]bool{v1alpha1.ReasonDeleting: true, v1alpha1.ReasonAvailable: true}
	for _, c := range after {
		old := meta.FindStatusCondition(before, c.Type)
		if c.Status != metav1.ConditionTrue || told[c.Reason] || old != nil && old.Status == c.Status && old.Reason == c.Reason {
			continue
		}
		told[c.Reason] = true
		eventType := corev1.EventTypeNormal
		switch {
		case c.Type == v1alpha1.ConditionStalled, c.Reason == v1alpha1.ReasonProgressingWithRetry,
			c.Type == v1alpha1.ConditionDegraded && c.Reason != v1alpha1.ReasonFinalizing:
			eventType = corev1.EventTypeWarning
		}
		log.FromContext(ctx).Info("condition changed", "condition", c.Type, "reason", c.Reason, "message", c.Message, "generation", p.mc.Generation)
		// The API server refuses an event whose note is longer.
		p.Recorder.Eventf(p.mc, nil, eventType, c.Reason, "Reconcile", "%.1000s", c.Message)
	}
}
