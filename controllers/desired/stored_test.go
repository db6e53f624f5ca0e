package desired

import (
	"encoding/json"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
)

// stored is a workload of servers as the API server stores it. What points to the template is shared with the object.
type stored struct {
	metav1.Object
	Template *corev1.PodTemplateSpec
	Replicas int32
}

// store returns the stored form of a desired workload, which has a pod.
func store(t testing.TB, config runtime.ApplyConfiguration) *stored {
	t.Helper()
	b, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	decode := func(into any) {
		if err := json.Unmarshal(b, into); err != nil {
			t.Fatal(err)
		}
	}
	switch config.(type) {
	case *appsv1ac.DeploymentApplyConfiguration:
		d := &appsv1.Deployment{}
		decode(d)
		d.Status.Replicas = 1
		return &stored{d, &d.Spec.Template, *d.Spec.Replicas}
	case *appsv1ac.StatefulSetApplyConfiguration:
		s := &appsv1.StatefulSet{}
		decode(s)
		s.Status.Replicas = 1
		return &stored{s, &s.Spec.Template, *s.Spec.Replicas}
	}
	t.Fatalf("%T is no workload", config)
	return nil
}

// storeServers returns the stored form of the servers' workload that is applied over another one; nil for none.
func storeServers(t testing.TB, mc *v1alpha1.Memcached, own *stored, current Current, o Options) *stored {
	t.Helper()
	if own != nil {
		current.Workload, current.Record = own.Object, own.record()
	}
	for _, child := range NewPlan(mc, Resolve(mc, current, o)).Children {
		switch c := child.(type) {
		case *appsv1ac.DeploymentApplyConfiguration:
			if *c.Name == mc.Name {
				return store(t, c)
			}
		case *appsv1ac.StatefulSetApplyConfiguration:
			return store(t, c)
		}
	}
	return nil
}

func (s *stored) sameTemplate(other *stored) bool {
	return equality.Semantic.DeepEqual(s.Template, other.Template)
}

// container returns the container of memcached.
func (s *stored) container() *corev1.Container {
	for i := range s.Template.Spec.Containers {
		if c := &s.Template.Spec.Containers[i]; c.Name == names.Container {
			return c
		}
	}
	return nil
}

func (s *stored) record() Record { return ReadRecord(s.GetAnnotations()) }

// digest returns what says whether servers of a StatefulSet are outdated.
func (s *stored) digest() string { return s.Template.Annotations[v1alpha1.TemplateAnnotation] }
