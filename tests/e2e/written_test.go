package e2e

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// TestStatusRestored: backup tools create an object and then restore its old status. The operator corrects that status.
func TestStatusRestored(t *testing.T) {
	needMoreTime(t)
	testEnv.Test(t, features.New("a status from a backup").
		Setup(step(func(w world) {
			w.create("resting", 2)
			w.awaitReady("resting")
			w.must(operator.Stop(w.ctx))
			backup, err := load[v1alpha1.Memcached](w, "resting")
			w.must(err)
			// Restored in the middle of its first rollout: the operator starts in this state.
			w.create("restored", 2)
			w.overwrite("restored", "velero", func(s *v1alpha1.MemcachedStatus) {
				*s = backup.Status
				s.Conditions = append(slices.Clone(s.Conditions), rollingOut())
				s.Nodes = append(s.Nodes, "cache-bogus")
			})
			w.overwrite("resting", "velero", func(s *v1alpha1.MemcachedStatus) {
				s.Conditions = append(s.Conditions, trueCondition(v1alpha1.ConditionStalled, v1alpha1.ReasonInvalid))
				s.Nodes = append(s.Nodes, "cache-bogus")
			})
			w.must(operator.Start(w.ctx, 1))
		})).
		Assess("is corrected", step(func(w world) {
			for _, name := range []string{"resting", "restored"} {
				w.eventually("wait until ready", func() error { return errors.Join(w.ready(name), w.claimsOnlyReady(name)) })
			}
		})).
		Assess("does not block a deletion", step(func(w world) {
			for _, name := range []string{"resting", "restored"} {
				w.must(w.Delete(w.ctx, &v1alpha1.Memcached{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}}))
				w.eventually("delete "+name, func() error { return w.isGone(name) })
			}
		})).Feature())
}

// TestStatusWrittenLate: a former leader may write the status late. The operator corrects the status, although nothing
// else changes.
func TestStatusWrittenLate(t *testing.T) {
	needMoreTime(t)
	feature := features.New("a status that the operator did not write").
		Setup(step(func(w world) {
			w.create("cache", 2)
			w.awaitReady("cache")
		}))
	for _, manager := range []string{"velero", "memcached-operator"} {
		feature.Assess("is corrected, written by "+manager, step(func(w world) {
			before := w.childGenerations()
			w.overwrite("cache", manager, func(s *v1alpha1.MemcachedStatus) {
				s.Phase, s.Nodes, s.ReadyReplicas = v1alpha1.PhaseProgressing, []string{"cache-bogus"}, 1
				meta.RemoveStatusCondition(&s.Conditions, v1alpha1.ConditionReady)
				notReady := trueCondition(v1alpha1.ConditionReady, v1alpha1.ReasonRollingOut)
				notReady.Status = metav1.ConditionFalse
				s.Conditions = append(s.Conditions, notReady, rollingOut())
			})
			w.eventually("wait until ready", func() error { return errors.Join(w.ready("cache"), w.claimsOnlyReady("cache")) })
			if err := differ(before, w.childGenerations()); err != nil {
				w.Error(err)
			}
		}))
	}
	testEnv.Test(t, feature.Feature())
}

// trueCondition returns a condition that is True.
func trueCondition(conditionType, reason string) metav1.Condition {
	return metav1.Condition{Type: conditionType, Status: metav1.ConditionTrue, Reason: reason, Message: "bogus",
		ObservedGeneration: 1, LastTransitionTime: metav1.NewTime(time.Now())}
}

func rollingOut() metav1.Condition {
	return trueCondition(v1alpha1.ConditionReconciling, v1alpha1.ReasonRollingOut)
}

// overwrite updates the status of a Memcached as this manager.
func (w world) overwrite(name, manager string, change func(*v1alpha1.MemcachedStatus)) {
	w.Helper()
	w.eventually("write the status", func() error {
		mc, err := load[v1alpha1.Memcached](w, name)
		if err != nil {
			return err
		}
		change(&mc.Status)
		return w.Status().Update(w.ctx, mc, client.FieldOwner(manager))
	})
}

// claimsOnlyReady returns nil if the status of a Memcached says only that it is ready.
func (w world) claimsOnlyReady(name string) error {
	mc, err := load[v1alpha1.Memcached](w, name)
	if err != nil {
		return err
	}
	for _, c := range mc.Status.Conditions {
		ready := c.Type == v1alpha1.ConditionReady || c.Type == v1alpha1.ConditionAvailable
		if ready != (c.Status == metav1.ConditionTrue) || c.Message == "bogus" {
			return fmt.Errorf("%s is %s: %s", c.Type, c.Status, c.Message)
		}
	}
	if mc.Status.Phase != v1alpha1.PhaseReady || mc.Status.ReadyReplicas != *mc.Spec.Size {
		return fmt.Errorf("the phase is %s, and %d servers are ready", mc.Status.Phase, mc.Status.ReadyReplicas)
	}
	return nil
}

// childGenerations are the generations of the children, or their resource versions where they have none.
func (w world) childGenerations() map[string]string {
	w.Helper()
	specs := map[string]string{}
	w.must(w.eachChild(func(o client.Object) {
		specs[fmt.Sprintf("%T %s", o, o.GetName())] = fmt.Sprint(o.GetUID(), o.GetGeneration())
	}))
	return specs
}
