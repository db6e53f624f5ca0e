package controllers

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/children"
	"github.com/example/memcached-operator/controllers/desired"
	"github.com/example/memcached-operator/controllers/status"
)

// errChanged says that the Memcached or a child of it is not what the cache shows any more.
var errChanged = errors.New("changed since it was read")

// controllerTime is how long the workload's controller may take to look at a change that touches no server, or to find
// out that servers are gone.
const controllerTime = 2 * time.Second

// maxRaces is how often in a row a write of the Memcached may meet a change of somebody else before that is an error.
const maxRaces = 3

// pass is one reconcile of one Memcached.
type pass struct {
	*MemcachedReconciler
	mc    *v1alpha1.Memcached // as the cache shows it
	owner children.Owner
	set   *children.Set
	mem   *memory
	now   time.Time

	observed children.Observed
	workload *appsv1.Deployment // ours, or about to be adopted; nil for none
	obs      status.Observed

	written         v1alpha1.MemcachedStatus // the status that the API server has
	resourceVersion string                   // of mc there
	again           time.Duration            // when to look again where no watch would tell; 0 for never
	err             error                    // why children could not be applied
}

func (p *pass) reconcile(ctx context.Context) error {
	if err := p.observe(ctx); err != nil {
		return err
	}
	if p.mem.Stale(p.observed, p.now) {
		p.again = staleRetry
		return nil
	}
	if !p.mc.DeletionTimestamp.IsZero() {
		return p.finalize(ctx)
	}
	alive := !controllerutil.ContainsFinalizer(p.mc, v1alpha1.Finalizer)
	if alive {
		if err := p.addFinalizer(ctx); err != nil {
			return err
		}
	}
	changes, err := p.compare(ctx)
	if err != nil {
		return err
	}
	if p.mc.Spec.Paused {
		p.obs.HeldBack = len(changes) > 0
	} else if err := p.apply(ctx, changes, alive); err != nil {
		return err
	}
	if err := p.writeStatus(ctx); err != nil {
		return err
	}
	p.mem.races = 0
	return p.lookAgain()
}

// observe reads the children and the pods from the cache.
func (p *pass) observe(ctx context.Context) (err error) {
	if p.observed, err = p.set.Observe(ctx, p.owner); err != nil {
		return err
	}
	p.observed[p.key()] = p.mc
	p.see(p.observed[p.workloadKey()])
	var pods corev1.PodList
	if err := p.set.List(ctx, p.owner, &pods); err != nil {
		return err
	}
	for i := range pods.Items {
		// A pod without a controller has our labels by accident: nothing of ours makes such a pod.
		if metav1.GetControllerOfNoCopy(&pods.Items[i]) != nil {
			p.obs.Pods = append(p.obs.Pods, pods.Items[i])
		}
	}
	return nil
}

func (p *pass) workloadKey() children.Key { return children.Key{Kind: kindDeployment, Name: p.mc.Name} }

func (p *pass) lookUpWorkload(ctx context.Context) error {
	err := p.set.LookUp(ctx, p.owner, workloadKind, p.mc.Name, p.observed)
	p.see(p.observed[p.workloadKey()])
	return err
}

// see takes a workload for the current one, unless it is none, or not ours.
func (p *pass) see(obj client.Object) {
	d, ok := obj.(*appsv1.Deployment)
	if !ok {
		return
	}
	if relation := p.owner.Relation(d); relation == children.Ours || relation == children.Orphaned {
		p.workload, p.obs.Workload = d, status.FromDeployment(d)
	}
}

// ownWorkload is what we own of the workload, nil where there is none. One that lost its labels, which the cache does
// not show, is the workload all the same: its template must be known before another is made.
func (p *pass) ownWorkload(ctx context.Context) (*appsv1ac.DeploymentApplyConfiguration, error) {
	if err := p.lookUpWorkload(ctx); err != nil || p.workload == nil {
		return nil, err
	}
	own, err := p.set.Own(p.workload)
	if err != nil {
		return nil, err
	}
	return own.(*appsv1ac.DeploymentApplyConfiguration), nil
}

// compare returns the children that are not as desired, and notes what that means for the servers.
func (p *pass) compare(ctx context.Context) ([]children.Change, error) {
	own, err := p.ownWorkload(ctx)
	if err != nil {
		return nil, err
	}
	inputs := desired.Resolve(p.mc, own, p.Options)
	// Where a new generation announces a change, an apply that turns out to change nothing does no harm.
	ask := p.mc.Spec.Paused || p.written.ObservedGeneration == p.mc.Generation
	changes, err := p.set.Compare(ctx, p.owner, desired.Children(p.mc, inputs), p.observed, p.mem.Memory, ask)
	if err != nil {
		return nil, err
	}
	for _, c := range changes {
		if p.mc.Spec.Paused && c.NoAnswer != nil {
			return nil, c.NoAnswer // whether anything is held back is not known
		}
	}
	isWorkload := func(c children.Change) bool { return c.Key == p.workloadKey() }
	if own != nil && !desired.Kept(own) && !p.mc.Spec.Paused && !slices.ContainsFunc(changes, isWorkload) {
		// An admission plugin changed the template, and has the last word. What runs is what stays, whatever a later builder
		// would make of it. A plugin that changes its own result once more must not be given the occasion.
		changes, err = p.set.Compare(ctx, p.owner, desired.Children(p.mc, inputs.Keep(own)), p.observed, p.mem.Memory, true)
		if err != nil {
			return nil, err
		}
		changes = slices.DeleteFunc(changes, func(c children.Change) bool {
			answer, asked := c.Answer.(*appsv1ac.DeploymentApplyConfiguration)
			return isWorkload(c) && asked && !desired.SameTemplate(own, answer)
		})
	}
	if i := slices.IndexFunc(changes, isWorkload); i >= 0 && !p.mc.Spec.Paused {
		want := cmp.Or(changes[i].Answer, changes[i].Desired).(*appsv1ac.DeploymentApplyConfiguration)
		template := own != nil && desired.SameTemplate(own, want)
		size := own != nil && desired.SameSize(own, want)
		p.obs.Changing, p.obs.Resizing = !template || !size, template && !size
	}
	return changes, nil
}

// apply makes the changes and notes what became of them.
func (p *pass) apply(ctx context.Context, changes []children.Change, alive bool) error {
	if p.obs.Changing && status.WasReady(p.mc) {
		// No generation announces this change: say that servers will go before they do.
		if err := p.writeStatus(ctx); err != nil {
			return err
		}
	}
	before := p.workload
	r := p.set.Apply(ctx, p.owner, changes, p.mem.Memory, alive, p.now)
	p.noteWritten(ctx, r)
	p.obs.Changing = p.obs.Changing && (r.Err != nil || p.workload != before) // else the API server made the same of it
	if errors.Is(r.Err, children.ErrOwnerGone) || r.Raced {
		p.again = raceRetry // the cache will show what is there now
		return errChanged
	}
	if r.NamespaceTerminating {
		p.obs.NamespaceTerminating = true
	}
	p.err, p.obs.Problem, p.obs.Waiting = r.Err, problem(r.Err), r.Waiting
	return nil
}

// noteWritten takes what was written for what is observed: it is newer than the cache.
func (p *pass) noteWritten(ctx context.Context, r children.Result) {
	var differences []string
	for _, w := range r.Written {
		differences = append(differences, w.String()+": "+w.Difference())
		delete(p.observed, w.Key)
		if w.Now != nil {
			p.observed[w.Key] = w.Now
		}
		p.see(w.Now)
		if w.Adopted {
			p.record(w.Now, corev1.EventTypeNormal, "Adopted", "Adopt", "%s had no controller and is managed again", w.Key)
		}
	}
	if len(differences) == 0 {
		return
	}
	log.FromContext(ctx).Info("wrote children", "differences", differences, "generation", p.mc.Generation)
	if !p.obs.Changing && meta.IsStatusConditionTrue(p.mc.Status.Conditions, v1alpha1.ConditionReady) {
		p.mem.untouchedUntil = p.now.Add(controllerTime)
	}
}

// lookAgain decides when to look again where no watch would tell.
func (p *pass) lookAgain() error {
	switch {
	case p.obs.Problem != nil && p.obs.Problem.Stalled:
		p.again = stalledRetry
	case p.err != nil:
		return p.err
	case p.obs.Waiting != "":
		p.again = leftRetry
	case p.again == 0:
		if end := status.Deadline(p.mc, p.written.Conditions, p.obs.Workload); !end.IsZero() {
			p.again = max(end.Sub(p.now), time.Second)
		}
	}
	return nil
}
