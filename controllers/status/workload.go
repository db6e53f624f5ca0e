package status

import (
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
)

// Workload is what the status must know of the object that runs the servers, whatever the kind of that object.
type Workload struct {
	// Generation is that of the Memcached that the workload was made from.
	Generation string
	// Terminating says that the workload is being deleted.
	Terminating bool
	// Observed says that its controller has seen the newest spec of the workload.
	Observed bool
	// Paused says that somebody paused its rollouts.
	Paused bool
	// Image is the memcached image of its template.
	Image string
	// Wanted is the number of servers that it asks for; the others are numbers of servers by its status.
	Wanted, Replicas, Updated, Ready, Available int32
	// Progressed is when its controller last saw progress; zero where it saw none.
	Progressed time.Time
	// Failure says why its controller cannot create servers; empty where it can.
	Failure string
}

// FromDeployment reads a Deployment.
func FromDeployment(d *appsv1.Deployment) *Workload {
	w := &Workload{
		Generation:  d.Annotations[v1alpha1.GenerationAnnotation],
		Terminating: !d.DeletionTimestamp.IsZero(),
		Observed:    d.Status.ObservedGeneration >= d.Generation,
		Paused:      d.Spec.Paused,
		Wanted:      ptr.Deref(d.Spec.Replicas, 1),
		Replicas:    d.Status.Replicas,
		Updated:     d.Status.UpdatedReplicas,
		Ready:       d.Status.ReadyReplicas,
		Available:   d.Status.AvailableReplicas,
	}
	for i := range d.Spec.Template.Spec.Containers {
		if c := &d.Spec.Template.Spec.Containers[i]; c.Name == names.Container {
			w.Image = c.Image
		}
	}
	for _, c := range d.Status.Conditions {
		switch {
		case c.Status != corev1.ConditionTrue: // Progressing=False is written when nothing progressed for too long
		case c.Type == appsv1.DeploymentProgressing:
			w.Progressed = c.LastUpdateTime.Time
		case c.Type == appsv1.DeploymentReplicaFailure:
			w.Failure = c.Message
		}
	}
	return w
}

// complete reports whether, by the workload, every server of the current generation of mc is updated and available. The
// generation on the workload proves that what the cache shows was made from this one, even where the cache lags behind
// what another operator process wrote.
func (w *Workload) complete(mc *v1alpha1.Memcached) bool {
	generation := strconv.FormatInt(mc.Generation, 10)
	want := names.Size(mc)
	return w != nil && !w.Terminating && w.Observed && (mc.Spec.Paused || w.Generation == generation) &&
		w.Wanted == want && w.Updated == want && w.Replicas == want && w.Ready == want && w.Available == want
}

// mixed reports whether servers of an older template still run.
func (w *Workload) mixed() bool { return w != nil && w.Updated < w.Replicas }

// rolling reports whether servers are being replaced, or the newest template has not been looked at.
func (w *Workload) rolling() bool { return w != nil && (!w.Observed || w.mixed()) }
