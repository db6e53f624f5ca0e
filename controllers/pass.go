package controllers

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/children"
	"github.com/example/memcached-operator/controllers/desired"
	"github.com/example/memcached-operator/controllers/names"
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
	workload client.Object   // that runs the servers, ours or about to be adopted; nil for none
	held     bool            // a Secret that the servers need cannot be had: none is replaced
	current  desired.Secrets // that the servers shall have in force; empty where held
	obs      status.Observed

	written         v1alpha1.MemcachedStatus // the status that the API server has
	resourceVersion string                   // of mc there
	again           time.Duration            // when to look again where no watch would tell; 0 for never
	err             error                    // why children could not be made or applied
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
		p.set.New = p.mc.Spec.Proxy == nil // proxies must not hear of a server whose name is somebody else's
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
	if err := errors.Join(p.replaceServers(ctx), p.tellPods(ctx)); err != nil {
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
	var pods corev1.PodList
	if err := p.set.List(ctx, p.owner, &pods); err != nil {
		return err
	}
	for _, pod := range pods.Items {
		switch componentOf(&pod) {
		case names.Proxies:
			p.obs.ProxyPods = append(p.obs.ProxyPods, pod)
		case names.Servers:
			p.obs.Pods = append(p.obs.Pods, pod)
		}
	}
	p.see()
	return nil
}

// componentOf says what a pod with our labels is; nothing where it has them by accident, for nothing of ours makes a
// pod without a controller.
func componentOf(pod *corev1.Pod) names.Component {
	switch {
	case metav1.GetControllerOfNoCopy(pod) == nil:
		return ""
	case pod.Labels[names.LabelComponent] == string(names.Proxies):
		return names.Proxies
	}
	return names.Servers
}

func (p *pass) workloadKey() children.Key {
	return children.Key{Kind: string(cmp.Or(p.mc.Spec.Workload, v1alpha1.WorkloadDeployment)), Name: p.mc.Name}
}

func (p *pass) proxyKey() children.Key {
	return children.Key{Kind: string(v1alpha1.WorkloadDeployment), Name: names.Proxy(p.mc)}
}

func (p *pass) lookUpWorkload(ctx context.Context) error {
	err := p.set.LookUp(ctx, p.owner, p.workloadKey(), p.observed)
	p.see()
	return err
}

// see takes the observed workload, and the proxy, for the current ones, where they are ours.
func (p *pass) see() {
	if w := p.observed[p.workloadKey()]; w != nil && p.mayBeOurs(w) {
		p.workload, p.obs.Workload = w, status.Read(w, p.obs.Pods...)
	}
	if proxy := p.observed[p.proxyKey()]; proxy != nil && p.mayBeOurs(proxy) {
		p.obs.Proxy = status.Read(proxy)
		if w := p.obs.Workload; w != nil && p.obs.Proxy.Progressed.After(w.Progressed) {
			w.Progressed = p.obs.Proxy.Progressed
		}
	}
}

func (p *pass) mayBeOurs(obj client.Object) bool {
	relation := p.owner.Relation(obj)
	return relation == children.Ours || relation == children.Orphaned
}

// ownWorkload is what we own of the workload, nil where there is none. One that lost its labels, which the cache does
// not show, is the workload all the same: its template must be known before another is made.
func (p *pass) ownWorkload(ctx context.Context) (*desired.Workload, error) {
	if err := p.lookUpWorkload(ctx); err != nil || p.workload == nil {
		return nil, err
	}
	own, err := p.set.Own(p.workload)
	if err != nil {
		return nil, err
	}
	return desired.ReadWorkload(own), nil
}

// compare returns the children that are not as desired, and notes what that means for the servers. Where nothing that
// they are made from changed since they last were as desired, they are.
func (p *pass) compare(ctx context.Context) ([]children.Change, error) {
	if p.mem.asDesired == p.fingerprint() && p.secretsUnchanged(ctx) {
		p.current = p.mem.secrets
		return nil, nil
	}
	p.mem.asDesired = 0
	changes, err := p.compareFields(ctx)
	if err == nil && len(changes) == 0 && !p.held {
		p.mem.asDesired = p.fingerprint()
	}
	return changes, err
}

// fingerprint identifies what the children are compared with besides Secrets, whose versions tell.
func (p *pass) fingerprint() uint64 { return p.set.Fingerprint(p.owner, p.observed) }

func (p *pass) compareFields(ctx context.Context) ([]children.Change, error) {
	own, err := p.ownWorkload(ctx)
	if err != nil {
		return nil, err
	}
	secrets, err := p.secrets(ctx, own)
	inputs := desired.Resolve(p.mc, own, secrets, p.Options)
	for i := range names.Size(p.mc) {
		server := names.Server(p.mc, i)
		inputs.ProxyServers = append(inputs.ProxyServers, p.address(names.ServiceHost(p.mc, server), server))
	}
	if err != nil {
		p.err, p.obs.Problem, p.held = err, problem(err), true
		inputs = inputs.Hold(own)
	} else {
		p.current = secrets
	}
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
	if own != nil && !own.Kept() && !p.mc.Spec.Paused && !p.held && !slices.ContainsFunc(changes, isWorkload) {
		// An admission plugin changed the template, and has the last word. What runs is what stays, whatever a later builder
		// would make of it. A plugin that changes its own result once more must not be given the occasion.
		changes, err = p.set.Compare(ctx, p.owner, desired.Children(p.mc, inputs.Keep(own)), p.observed, p.mem.Memory, true)
		if err != nil {
			return nil, err
		}
		changes = slices.DeleteFunc(changes, func(c children.Change) bool {
			return isWorkload(c) && c.Answer != nil && !own.SameTemplate(desired.ReadWorkload(c.Answer))
		})
	}
	if i := slices.IndexFunc(changes, isWorkload); i >= 0 && !p.mc.Spec.Paused {
		want := desired.ReadWorkload(cmp.Or(changes[i].Answer, changes[i].Desired))
		template, size := own != nil && own.SameTemplate(want), own != nil && own.SameSize(want)
		p.obs.Changing, p.obs.Resizing = !template || !size, template && !size
	}
	isProxy := func(c children.Change) bool { return c.Key == p.proxyKey() }
	if i := slices.IndexFunc(changes, isProxy); i >= 0 && changes[i].Own != nil && !p.mc.Spec.Paused {
		before := desired.ReadWorkload(changes[i].Own)
		want := desired.ReadWorkload(cmp.Or(changes[i].Answer, changes[i].Desired))
		p.obs.ProxyChanging = want != nil && (!before.SameTemplate(want) || !before.SameSize(want))
	}
	return changes, nil
}

// apply makes the changes and notes what became of them.
func (p *pass) apply(ctx context.Context, changes []children.Change, alive bool) error {
	if (p.obs.Changing || p.obs.ProxyChanging) && status.WasReady(p.mc) {
		// No generation announces this change: say that servers will go before they do.
		if err := p.writeStatus(ctx); err != nil {
			return err
		}
	}
	before, proxyBefore := p.workload, p.observed[p.proxyKey()]
	r := p.set.Apply(ctx, p.owner, p.withholdServers(changes), p.mem.Memory, alive, p.now)
	p.noteWritten(ctx, r)
	p.obs.Changing = p.obs.Changing && (r.Err != nil || p.workload != before) // else the API server made the same of it
	p.obs.ProxyChanging = p.obs.ProxyChanging && (r.Err != nil || p.observed[p.proxyKey()] != proxyBefore)
	if errors.Is(r.Err, children.ErrOwnerGone) || r.Raced {
		p.again = raceRetry // the cache will show what is there now
		if p.set.New {
			p.again = staleRetry // a name is taken, and the next look finds by whom
		}
		return errChanged
	}
	if r.NamespaceTerminating {
		p.obs.NamespaceTerminating = true
	}
	if r.AsDesired && !p.held {
		p.mem.asDesired = p.fingerprint()
	}
	p.err, p.obs.Waiting = errors.Join(p.err, r.Err), r.Waiting
	if r.Err != nil {
		p.obs.Problem = problem(r.Err)
	}
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
		p.see()
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
		p.again = min(cmp.Or(p.again, leftRetry), leftRetry)
	default:
		if end := status.Deadline(p.mc, p.written.Conditions, p.obs.Workload); !end.IsZero() {
			if left := max(end.Sub(p.now), time.Second); p.again == 0 || left < p.again {
				p.again = left
			}
		}
	}
	return nil
}
