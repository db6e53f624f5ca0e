package e2e

import (
	"errors"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/e2e-framework/pkg/features"
)

func TestFieldsOfOtherManagers(t *testing.T) {
	needMoreTime(t)
	testEnv.Test(t, features.New("fields of other managers").
		Setup(step(func(w world) {
			w.create("cache", 2)
			w.awaitReady("cache")
		})).
		Assess("survive the operator's applies", step(func(w world) {
			d := appsv1ac.Deployment("cache", w.ns).WithLabels(map[string]string{"team": "shop"}).
				WithSpec(appsv1ac.DeploymentSpec().WithTemplate(corev1ac.PodTemplateSpec().
					WithAnnotations(map[string]string{"example.com/note": "ours"}).
					WithSpec(corev1ac.PodSpec().WithHostAliases(corev1ac.HostAlias().WithIP("192.0.2.1").WithHostnames("shop")))))
			w.must(w.Apply(w.ctx, d, client.FieldOwner("platform")))
			s := corev1ac.Service("cache",
				w.ns).WithSpec(corev1ac.ServiceSpec().WithInternalTrafficPolicy(corev1.ServiceInternalTrafficPolicyLocal))
			w.must(w.Apply(w.ctx, s, client.FieldOwner("platform")))
			w.awaitReady("cache")
			w.merge("cache", `{"memory":"128Mi","containerPort":12345}`)
			w.awaitReady("cache")
			deployment, err := load[appsv1.Deployment](w, "cache")
			w.must(err)
			service, err := load[corev1.Service](w, "cache")
			w.must(err)
			template := deployment.Spec.Template
			if deployment.Labels["team"] != "shop" || template.Annotations["example.com/note"] != "ours" ||
				len(template.Spec.HostAliases) != 1 ||
				*service.Spec.InternalTrafficPolicy != corev1.ServiceInternalTrafficPolicyLocal ||
				service.Spec.Ports[0].Port != 12345 {
				w.Errorf("the operator removed a field: %v, %v", deployment, service)
			}
			pods, err := w.servers("cache")
			w.must(err)
			for i := range pods {
				if pods[i].Annotations["example.com/note"] != "ours" {
					w.Errorf("pod %s lacks the annotation", pods[i].Name)
				}
			}
		})).
		Assess("stay: kubectl rollout restart", step(func(w world) {
			w.mustSettle(1, func(d *appsv1.Deployment) error {
				if d.Spec.Template.Annotations["kubectl.kubernetes.io/restartedAt"] == "" {
					return errors.New("the operator reverted the restart")
				}
				return nil
			}, "rollout", "restart", "deployment/cache")
		})).
		Assess("stay: defaults of a LimitRange", step(func(w world) {
			w.must(w.Create(w.ctx, &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "defaults"},
				Spec: corev1.LimitRangeSpec{
					Limits: []corev1.LimitRangeItem{{Type: corev1.LimitTypeContainer,
						Default: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}}}}}))
			w.mustSettle(1, func(*appsv1.Deployment) error {
				pods, err := w.servers("cache")
				for i := range pods {
					if got := pods[i].Spec.Containers[0].Resources.Limits.Cpu().String(); got != "2" {
						err = errors.Join(err, fmt.Errorf("the CPU limit of %s is %s, want that of the LimitRange", pods[i].Name, got))
					}
				}
				return err
			}, "rollout", "restart", "deployment/cache")
		})).
		Assess("are reverted once: kubectl set resources", step(func(w world) {
			d, err := load[appsv1.Deployment](w, "cache")
			w.must(err)
			limit := d.Spec.Template.Spec.Containers[0].Resources.Limits.Memory().String()
			w.mustSettle(2, func(d *appsv1.Deployment) error {
				if got := d.Spec.Template.Spec.Containers[0].Resources.Limits.Memory().String(); got != limit {
					return fmt.Errorf("the memory limit is %s, want %s", got, limit)
				}
				return nil
			}, "set", "resources", "deployment/cache", "--limits=memory=1Gi,cpu=3")
		})).Feature())
}

// mustSettle changes the Deployment with kubectl, and fails unless it then has this number of new generations,
// satisfies want, and does not change again.
func (w world) mustSettle(generations int64, want func(*appsv1.Deployment) error, kubectl ...string) {
	w.Helper()
	before, err := load[appsv1.Deployment](w, "cache")
	w.must(err)
	_, err = w.kubectl(kubectl...)
	w.must(err)
	settled := func() error {
		d, err := load[appsv1.Deployment](w, "cache")
		if err != nil {
			return err
		}
		if n := d.Generation - before.Generation; n != generations {
			return fmt.Errorf("%d new generations of the Deployment, want %d", n, generations)
		}
		return want(d)
	}
	w.eventually("settle", settled)
	w.awaitReady("cache")
	w.always("stay settled", 2*time.Second, settled)
}
