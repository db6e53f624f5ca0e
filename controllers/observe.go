package controllers

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/children"
	"github.com/example/memcached-operator/controllers/desired"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/controllers/status"
	"github.com/example/memcached-operator/controllers/steps"
)

// observation holds one Memcached, its children and its pods. They come from the informer cache, from the API server
// where the cache does not hold them, and from the responses to this reconcile's writes.
type observation struct {
	set      *children.Set
	mc       *v1alpha1.Memcached
	children children.Observed
	servers  []*corev1.Pod // by name, as the proxies
	proxies  []*corev1.Pod
}

// observe reads the children and the pods of mc from the informer cache.
func observe(ctx context.Context, set *children.Set, mc *v1alpha1.Memcached) (o observation, err error) {
	o.set, o.mc = set, mc
	if o.children, err = set.Observe(ctx); err != nil {
		return o, err
	}
	o.children[memcachedKey(mc)] = mc // so that IsBehind also notices an outdated Memcached
	var pods corev1.PodList
	if err := set.List(ctx, &pods); err != nil {
		return o, err
	}
	o.setPods(pods.Items)
	return o, nil
}

// setPods sets the pods of both components, by name: the informer cache has no order.
func (o *observation) setPods(list []corev1.Pod) {
	slices.SortFunc(list, func(a, b corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	o.servers, o.proxies = nil, nil
	for i := range list {
		switch pod := &list[i]; {
		case isPodOf(pod, o.mc.Name):
			o.servers = append(o.servers, pod)
		case isPodOf(pod, names.Proxy(o.mc)):
			o.proxies = append(o.proxies, pod)
		}
	}
}

// live returns the observation with workload, pods and configuration of the proxies as the API server has them. What
// cannot be taken back is decided by these: the informer cache may not show yet what another operator process has
// written, or a new proxy.
func (o observation) live(ctx context.Context) (observation, error) {
	existed, set := o.workload() != nil, *o.set
	set.New = false
	o.set, o.children = &set, maps.Clone(o.children)
	delete(o.children, workloadKey(o.mc))
	delete(o.children, configMapKey(names.Proxy(o.mc)))
	if err := o.lookUp(ctx); err != nil {
		return o, err
	}
	if existed && o.workload() == nil {
		return o, errOutdated(o.mc)
	}
	var pods corev1.PodList
	if err := o.set.APIReader.List(ctx, &pods, client.InNamespace(o.mc.Namespace),
		client.MatchingLabels{v1alpha1.NameLabel: o.mc.Name}); err != nil {
		return o, fmt.Errorf("list pods: %w", err)
	}
	o.setPods(pods.Items)
	return o, nil
}

// isPodOf reports whether a pod is controlled by the StatefulSet with this name, or by a ReplicaSet of the Deployment
// with this name. Users may create pods and ReplicaSets with our labels, for example to debug.
func isPodOf(pod *corev1.Pod, workload string) bool {
	switch by := metav1.GetControllerOfNoCopy(pod); {
	case by == nil || by.APIVersion != appsv1.SchemeGroupVersion.String():
		return false
	case by.Kind == kindReplicaSet:
		return by.Name == workload+"-"+pod.Labels[appsv1.DefaultDeploymentUniqueLabelKey]
	default:
		return by.Kind == string(v1alpha1.WorkloadStatefulSet) && by.Name == workload
	}
}

func memcachedKey(mc *v1alpha1.Memcached) children.Key {
	return children.Key{Kind: kindMemcached, Name: mc.Name}
}

func workloadKey(mc *v1alpha1.Memcached) children.Key {
	return children.Key{Kind: string(cmp.Or(mc.Spec.Workload, v1alpha1.WorkloadDeployment)), Name: mc.Name}
}

func proxyKey(mc *v1alpha1.Memcached) children.Key {
	return children.Key{Kind: string(v1alpha1.WorkloadDeployment), Name: names.Proxy(mc)}
}

func configMapKey(name string) children.Key { return children.Key{Kind: "ConfigMap", Name: name} }

// ownChild returns the child with this key if we control it or are about to adopt it; nil for none.
func (o observation) ownChild(key children.Key) client.Object {
	if child := o.children[key]; child != nil {
		if relation := o.set.Relation(child); relation == children.Ours || relation == children.Orphaned {
			return child
		}
	}
	return nil
}

// workload returns the Deployment or StatefulSet of the servers; nil for none.
func (o observation) workload() client.Object { return o.ownChild(workloadKey(o.mc)) }

// service implements status.Service.
func (o observation) service(name string) (service *corev1.Service, free bool) {
	key := children.Key{Kind: "Service", Name: name}
	service, _ = o.ownChild(key).(*corev1.Service)
	return service, service != nil || o.children[key] == nil
}

// setWritten replaces observed children with the API server's responses, which are newer than the informer cache.
func (o observation) setWritten(written []children.Written) {
	for _, w := range written {
		delete(o.children, w.Key)
		if w.After != nil {
			o.children[w.Key] = w.After
		}
	}
}

// update returns a view with what is observed.
func (o observation) update(v steps.View) steps.View {
	observed := steps.Observed{Servers: o.servers, Proxies: o.proxies, Workload: o.workload(),
		Proxy: o.ownChild(proxyKey(o.mc)), Service: o.service}
	observed.ProxyConfig, _ = o.ownChild(configMapKey(names.Proxy(o.mc))).(*corev1.ConfigMap)
	discovery := o.ownChild(configMapKey(names.Discovery(o.mc)))
	if config, ok := discovery.(*corev1.ConfigMap); ok && o.mc.Spec.Discovery != nil {
		observed.List, observed.Published = desired.ReadList(config.Data)
	}
	return v.With(observed)
}

// lookUp reads from the API server what the informer cache does not show: a workload that lost its labels keeps its
// template, and the lists for proxies and for clients are in ConfigMaps.
func (o observation) lookUp(ctx context.Context) error {
	err := o.set.LookUp(ctx, workloadKey(o.mc), o.children)
	if err == nil && o.mc.Spec.Proxy != nil {
		err = o.set.LookUp(ctx, configMapKey(names.Proxy(o.mc)), o.children)
	}
	if err == nil && o.mc.Spec.Discovery != nil {
		err = o.set.LookUp(ctx, configMapKey(names.Discovery(o.mc)), o.children)
	}
	return err
}

// nextMove returns the next list of servers for the proxies. Unless it is recorded already, it is decided by what the
// API server has.
func (o observation) nextMove(ctx context.Context, v steps.View) (steps.Move, error) {
	next := steps.NextMove(v)
	if o.mc.Spec.Proxy == nil || !status.Installed(o.mc) || next.IsDone(v) {
		return next, nil
	}
	live, err := o.live(ctx)
	return steps.NextMove(live.update(v)), err
}

// statusInput returns what the status is computed from, except errors and the progress of a step.
func statusInput(v steps.View, options desired.Options, effect status.Effect) status.Input {
	list := v.Routing.List
	s := status.Input{Servers: status.ReadComponent(v.Workload, v.Servers), Effect: effect,
		Work:      status.Work{Moving: list.Phase != contract.NoChange, ToFlush: int32(v.Flush().ToDrop(v))},
		Addresses: status.Addresses(v.Memcached, v.Service), Outdated: v.Record.Outdated(options)}
	s.Work.Resizing = s.Work.Moving && len(list.Before) != len(list.After) || v.UntilRemoval() > 0
	if v.Memcached.Spec.Proxy != nil {
		s.Proxies = status.ReadComponent(v.Proxy, v.Proxies)
	}
	switch {
	case !v.Memcached.Spec.Paused:
		s.Work.NotLoaded = v.Routing.NotLoaded()
	case s.Work.ToFlush > 0:
		s.HeldBack = cmp.Or(s.HeldBack, "spec.paused keeps the operator from flushing servers")
	}
	return s
}
