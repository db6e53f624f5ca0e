package steps

import (
	"fmt"
	"reflect"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/status"
)

const (
	// createDelay is how long nothing has progressed before the operator finds out why a pod is missing, and
	// retryInterval is the least time between two changes of a workload that make its controller try again.
	createDelay   = 5 * time.Second
	retryInterval = 30 * time.Second
)

// create finds out why a pod is missing, such as a quota, and makes the controller of its workload try again once the
// API server accepts the pod: the tries of the controller itself are up to 17 minutes apart.
//
//   - The controller has not observed a StatefulSet yet, or something has just progressed: pods may come by themselves.
//   - A StatefulSet lacks a pod: the one with the lowest ordinal is tried. A pod that terminates is not missing.
//   - A Deployment says itself that a pod or a ReplicaSet is refused, but nobody says that it would be accepted now. If
//     it is a ReplicaSet, its controller has not observed the Deployment.
//   - Both servers and proxies lack pods: the servers come first.
//   - While the Memcached is paused, workloads are not changed.
func create(v View) (s Step, busy bool) {
	wait := v.LastProgress.Add(createDelay).Sub(v.Now)
	for _, workload := range []metav1.Object{v.Workload, v.Proxy} {
		switch pod := v.missing(workload); {
		case pod == nil, s.Create != nil, v.Memcached.Spec.Paused:
		case wait > 0:
			s.Wait = wait
		default:
			retried, err := time.Parse(time.RFC3339, workload.GetAnnotations()[v1alpha1.RetriedAnnotation])
			s.Create, s.Retry = pod, err != nil || v.Now.Sub(retried).Abs() >= retryInterval
			s.waitsFor(Later, fmt.Sprintf("%s %s has yet to create a pod; its events say why",
				pod.OwnerReferences[0].Kind, workload.GetName()))
		}
	}
	return s, false
}

// missing returns a pod that the controller of a workload should have created; nil for none. Pods of a Deployment have
// other names.
func (v View) missing(workload metav1.Object) *corev1.Pod {
	state := status.ReadState(workload)
	_, isSet := workload.(*appsv1.StatefulSet)
	if state == nil || isSet && !state.Observed || !isSet && state.Failure == "" ||
		!workload.GetDeletionTimestamp().IsZero() {
		return nil
	}
	for n := range state.Wanted {
		name, template := fmt.Sprintf("%s-%d", workload.GetName(), n), status.Template(workload)
		if !slices.ContainsFunc(v.Servers, func(pod *corev1.Pod) bool { return pod.Name == name }) {
			pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
			pod.Namespace, pod.Name = workload.GetNamespace(), name
			// In OpenShift, the operator may not set blockOwnerDeletion for a workload.
			pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Name: workload.GetName(),
				Kind: reflect.TypeOf(workload).Elem().Name(), UID: workload.GetUID(), Controller: new(true)}}
			return pod
		}
	}
	return nil
}
