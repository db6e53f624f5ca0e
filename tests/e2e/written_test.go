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

// Tools that restore backups create an object, and then update its status to what it was.
func TestStatusRestored(t *testing.T) {
	testEnv.Test(t, features.New("a status from a backup").
		Setup(step(func(w world) {
			w.create("resting", 2)
			w.awaitReady("resting")
			w.must(operator.Stop(w.ctx))
			backup, err := load[v1alpha1.Memcached](w, "resting")
			w.must(err)
			// In the middle of its first rollout, which is where the operator will see it too.
			w.create("restored", 2)
			w.overwrite("restored", "velero", func(s *v1alpha1.MemcachedStatus) {
				*s = backup.Status
				s.Conditions = append(slices.Clone(s.Conditions), claim(v1alpha1.ConditionReconciling, v1alpha1.ReasonRollingOut))
				s.Nodes = append(s.Nodes, "cache-bogus")
			})
			w.overwrite("resting", "velero", func(s *v1alpha1.MemcachedStatus) {
				s.Conditions = append(s.Conditions, claim(v1alpha1.ConditionStalled, v1alpha1.ReasonInvalid))
				s.Nodes = append(s.Nodes, "cache-bogus")
			})
			w.must(operator.Start(w.ctx, 1))
		})).
		Assess("gives way to what is true", step(func(w world) {
			for _, name := range []string{"resting", "restored"} {
				w.eventually("wait until ready", func() error { return errors.Join(w.ready(name), w.onlyReady(name)) })
			}
		})).
		Assess("does not hold up a deletion", step(func(w world) {
			for _, name := range []string{"resting", "restored"} {
				w.must(w.Delete(w.ctx, &v1alpha1.Memcached{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}}))
				w.eventually("delete "+name, func() error { return w.gone(name) })
			}
		})).
		Teardown(step(func(w world) { w.must(operator.Start(w.ctx, 1)) })).Feature())
}

// A leader that was replaced may write late. Nothing else happens then that would have the next one look.
func TestStatusWrittenLate(t *testing.T) {
	feature := features.New("a status that the operator did not write").
		Setup(step(func(w world) {
			w.create("cache", 2)
			w.awaitReady("cache")
		}))
	for _, manager := range []string{"velero", "memcached-operator"} {
		feature.Assess("is put right, by "+manager, step(func(w world) {
			before := w.specs()
			w.overwrite("cache", manager, func(s *v1alpha1.MemcachedStatus) {
				s.Phase, s.Nodes, s.ReadyReplicas = v1alpha1.PhaseProgressing, []string{"cache-bogus"}, 1
				meta.RemoveStatusCondition(&s.Conditions, v1alpha1.ConditionReady)
				unready := claim(v1alpha1.ConditionReady, v1alpha1.ReasonRollingOut)
				unready.Status = metav1.ConditionFalse
				s.Conditions = append(s.Conditions, unready, claim(v1alpha1.ConditionReconciling, v1alpha1.ReasonRollingOut))
			})
			w.eventually("wait until ready", func() error { return errors.Join(w.ready("cache"), w.onlyReady("cache")) })
			if err := differ(before, w.specs()); err != nil {
				w.Error(err)
			}
		}))
	}
	testEnv.Test(t, feature.Feature())
}

// claim is a condition that is True.
func claim(conditionType, reason string) metav1.Condition {
	return metav1.Condition{Type: conditionType, Status: metav1.ConditionTrue, Reason: reason, Message: "bogus",
		ObservedGeneration: 1, LastTransitionTime: metav1.NewTime(time.Now())}
}

// overwrite updates the status of a Memcached as that manager.
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

// onlyReady returns nil if the status of a Memcached claims nothing but that it is ready.
func (w world) onlyReady(name string) error {
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

// specs are the generations of the children, or their resource versions where they have none.
func (w world) specs() map[string]string {
	w.Helper()
	specs := map[string]string{}
	w.must(w.eachChild(func(o client.Object) {
		specs[fmt.Sprintf("%T %s", o, o.GetName())] = fmt.Sprint(o.GetUID(), o.GetGeneration())
	}))
	return specs
}
