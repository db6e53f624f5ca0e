package controllers

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/children"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/controllers/status"
)

// The operator writes only two parts of a Memcached: its finalizer and its status. It also records events.

// errDeleted stops a reconcile because the Memcached was deleted or its namespace is being deleted. The informer cache
// will show that soon.
var errDeleted = errors.New("the Memcached was deleted")

// writeFinalizer adds or removes our finalizer, and returns mc as it is then. The resource version keeps the finalizers
// of others, and proves that mc is the newest one.
func (r *MemcachedReconciler) writeFinalizer(ctx context.Context, mc *v1alpha1.Memcached, st *state, now time.Time,
	change func(object client.Object, finalizer string) bool) (*v1alpha1.Memcached, error) {
	after := mc.DeepCopy()
	change(after, v1alpha1.Finalizer)
	patch := client.MergeFromWithOptions(mc, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Patch(ctx, after, patch, client.FieldOwner(names.Operator)); err != nil {
		return nil, writeError("write the finalizer of", mc, err)
	}
	st.children.Expect(memcachedKey(mc), after.ResourceVersion, now)
	status.Normalize(&after.Status)
	return after, nil
}

// removeFinalizer removes our finalizer.
func (r *MemcachedReconciler) removeFinalizer(ctx context.Context, mc *v1alpha1.Memcached, st *state,
	now time.Time) error {
	_, err := r.writeFinalizer(ctx, mc, st, now, controllerutil.RemoveFinalizer)
	return err
}

func writeError(action string, mc *v1alpha1.Memcached, err error) error {
	if apierrors.IsNotFound(err) {
		return errDeleted
	}
	return fmt.Errorf("%s Memcached %s: %w", action, mc.Name, err)
}

// writeStatus computes the status, writes it if it differs from that of mc, and records the transitions as events. It
// returns mc with its new status.
//
// The status is patched, because an apply cannot remove a condition that another manager co-owns, such as a tool that
// restores backups. The resource version in the patch keeps the status of a deleted Memcached from being written to a
// new one of the same name.
func (r *MemcachedReconciler) writeStatus(ctx context.Context, mc *v1alpha1.Memcached, st *state, in status.Input,
	now time.Time) (*v1alpha1.Memcached, error) {
	st.clock = st.clock.Next(mc, in, now)
	s := status.Compute(mc, in, st.clock, now)
	if equality.Semantic.DeepEqual(mc.Status, s) && mc.Status.Nodes != nil {
		return mc, nil
	}
	before := &v1alpha1.Memcached{ObjectMeta: metav1.ObjectMeta{Namespace: mc.Namespace, Name: mc.Name,
		ResourceVersion: mc.ResourceVersion}, Status: mc.Status}
	response := before.DeepCopy()
	response.Status = s
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Status().Patch(ctx, response, patch, client.FieldOwner(names.Operator)); err != nil {
		return mc, writeError("write the status of", mc, err)
	}
	st.children.Expect(memcachedKey(mc), response.ResourceVersion, now)
	st.statusVersion.Store(&response.ResourceVersion)
	r.recordTransitions(ctx, mc, &s)
	after := mc.DeepCopy()
	after.ResourceVersion, after.Status = response.ResourceVersion, s
	return after, nil
}

// namespaceIsTerminating reports whether a namespace is being deleted; false if the operator may not read it.
func (r *MemcachedReconciler) namespaceIsTerminating(ctx context.Context, name string) bool {
	ns := &metav1.PartialObjectMetadata{}
	ns.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	err := r.APIReader.Get(ctx, client.ObjectKey{Name: name}, ns)
	return apierrors.IsNotFound(err) || err == nil && !ns.DeletionTimestamp.IsZero()
}

// problem converts an error to the form in which the status reports it.
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

// reportWritten logs the children that were written, and records an event for each that was adopted.
func (r *MemcachedReconciler) reportWritten(ctx context.Context, mc *v1alpha1.Memcached, list []children.Written) {
	var keys []string
	for _, w := range list {
		keys = append(keys, w.String())
		switch {
		case w.Adopted:
			r.record(mc, w.After, corev1.EventTypeNormal, "Adopted", "Adopt", "%s had no controller and was adopted", w.Key)
		case w.Reverted != "":
			r.record(mc, w.After, corev1.EventTypeNormal, "Reverted", "Apply", "%s: reverted %s; %s", w.Key, w.Reverted,
				remedy(mc, w))
		}
		if w.HeldBack != "" {
			r.record(mc, w.After, corev1.EventTypeNormal, "HeldBack", "Apply", "%s: an admission policy would change %s and "+
				"replace all pods; that is held back until the pod template changes anyway", w.Key, w.HeldBack)
		}
	}
	if len(keys) > 0 {
		log.FromContext(ctx).Info("wrote children", "children", children.Names(keys, 20), "generation", mc.Generation)
	}
}

// remedies are the fields of a Memcached that decide the fields of its children.
var remedies = [][2]string{{`^Proxies \.spec\.replicas`, "spec.proxy.size"}, {`^Proxies .*\.resources`, "spec.proxy"},
	{`\.spec\.replicas`, "spec.size"}, {`="memcached"]\.image`, "spec.image"},
	{`="memcached"]\.resources`, "spec.memory or spec.pod.resources"}, {`\.spec\.template`, "spec.pod"},
	{`^Service.* \.(spec\.type|metadata\.annotations)`, "spec.service"},
	{`^PodDisruptionBudget.* \.spec`, "spec.disruptionBudget"}, {`^NetworkPolicy.* \.spec`, "spec.networkPolicy"}}

// remedy says what to change instead of a field that was reverted.
func remedy(mc *v1alpha1.Memcached, w children.Written) string {
	kind := w.Kind
	if w.Key == proxyKey(mc) {
		kind = "Proxies"
	}
	for _, r := range remedies {
		if ok, _ := regexp.MatchString(r[0], kind+" "+w.Reverted); ok {
			return "set " + r[1] + " of the Memcached instead"
		}
	}
	return "only the operator sets this"
}

// maxNote limits the text of an event, in bytes. The API server refuses more than 1024.
const maxNote = 1000

// recordTransitions records an event for each condition that became True or changed its reason, but only one for each
// reason and each message; and for the start and the end of a pause.
func (r *MemcachedReconciler) recordTransitions(ctx context.Context, mc *v1alpha1.Memcached,
	after *v1alpha1.MemcachedStatus) {
	before := &mc.Status
	if before.Phase != after.Phase && mc.DeletionTimestamp.IsZero() {
		switch v1alpha1.PhasePaused {
		case after.Phase:
			r.record(mc, nil, corev1.EventTypeNormal, v1alpha1.ReasonPaused, "Reconcile",
				"spec.paused is set: changes of the spec are not applied")
		case before.Phase:
			r.record(mc, nil, corev1.EventTypeNormal, "Resumed", "Reconcile", "Changes of the spec are applied again")
		}
	}
	recorded := map[string]bool{v1alpha1.ReasonDeleting: true, v1alpha1.ReasonAvailable: true,
		v1alpha1.ReasonInstalling: true}
	if !meta.IsStatusConditionTrue(before.Conditions, v1alpha1.ConditionReady) ||
		before.ObservedGeneration != after.ObservedGeneration {
		// No event: the rollout was just requested, or the Memcached was not ready before it either.
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
		if c.Type == v1alpha1.ConditionStalled || c.Reason == v1alpha1.ReasonProgressingWithRetry ||
			c.Type == v1alpha1.ConditionDegraded && c.Reason != v1alpha1.ReasonFinalizing {
			eventType = corev1.EventTypeWarning
		}
		log.FromContext(ctx).Info("condition changed", "condition", c.Type, "reason", c.Reason, "message", c.Message,
			"generation", mc.Generation)
		r.record(mc, nil, eventType, c.Reason, "Reconcile", "%s", c.Message)
	}
}

// record records an event about a Memcached.
func (r *MemcachedReconciler) record(mc *v1alpha1.Memcached, related runtime.Object, eventType, reason, action,
	note string, args ...any) {
	text := children.Limit(fmt.Sprintf(note, args...), maxNote)
	r.Recorder.Eventf(mc, related, eventType, reason, action, "%s", text)
}
