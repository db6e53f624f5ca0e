package e2e

import (
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/tests/cluster"
)

// TestRestartTakesNewDefaultImage: a restart selects the default image of an upgraded operator once, even while writing
// another child fails permanently.
func TestRestartTakesNewDefaultImage(t *testing.T) {
	needMoreTime(t)
	const image = "docker.io/library/memcached:1.6" // not the default
	testEnv.Test(t, features.New("a restart by an upgraded operator, with a foreign PodDisruptionBudget").
		Setup(step(func(w world) {
			w.create("cache", 2)
			w.awaitReady("cache")
			w.must(operator.Stop(w.ctx))
			budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "cache"}}
			w.must(w.Delete(w.ctx, budget))
			w.must(w.Create(w.ctx, &policyv1.PodDisruptionBudget{
				ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "cache"},
				Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt32(1)),
					Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "foreign"}}},
			}))
			w.changeOperator(func(o *cluster.Operator) { o.DefaultImage = image })
			w.must(operator.Start(w.ctx, 1))
			w.eventually("report the foreign budget", func() error {
				mc, err := load[v1alpha1.Memcached](w, "cache")
				if err == nil && condition(mc, v1alpha1.ConditionStalled).Reason != v1alpha1.ReasonConflict {
					err = fmt.Errorf("conditions %v", mc.Status.Conditions)
				}
				return err
			})
		})).
		Assess("changes to the new image once", step(func(w world) {
			before, err := load[appsv1.Deployment](w, "cache")
			w.must(err)
			events, images := w.watch(&appsv1.DeploymentList{}), []string{containerImage(before)}
			_, err = w.kubectl("annotate", "memcached/cache", v1alpha1.RestartedAtAnnotation+"=now")
			w.must(err)
			// The operator reconciles several times before all servers of the new image are available.
			await(w, events, "the rollout is complete", func(_ watch.EventType, d *appsv1.Deployment) bool {
				if is := containerImage(d); is != images[len(images)-1] {
					images = append(images, is)
				}
				return d.Spec.Template.Annotations[v1alpha1.RestartedAtAnnotation] == "now" &&
					d.Status.ObservedGeneration == d.Generation &&
					d.Status.UpdatedReplicas == 2 && d.Status.AvailableReplicas == 2 && d.Status.Replicas == 2
			})
			w.always("stay", 2*time.Second, func() error {
				d, err := load[appsv1.Deployment](w, "cache")
				if err == nil && (containerImage(d) != image || len(images) != 2 || d.Generation != before.Generation+1) {
					err = fmt.Errorf("the images were %v; after %d changes the image is %s", images, d.Generation-before.Generation,
						containerImage(d))
				}
				return err
			})
			mc, err := load[v1alpha1.Memcached](w, "cache")
			w.must(err)
			if mc.Status.Image != image {
				w.Errorf("status.image is %s, want the image of the servers, %s", mc.Status.Image, image)
			}
			if !meta.IsStatusConditionTrue(mc.Status.Conditions, v1alpha1.ConditionStalled) {
				w.Error("the foreign budget is no longer reported")
			}
		})).Feature())
}

func containerImage(d *appsv1.Deployment) string { return d.Spec.Template.Spec.Containers[0].Image }
