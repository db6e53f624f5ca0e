package cache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/internal/testing/harness"
	"github.com/example/memcached-operator/internal/testing/manifest"
)

// before is how long the load runs before the action of the scenario.
const before = 3 * time.Second

// ringKind is the kind of server addresses over which a client hashes its keys.
type ringKind int

const (
	// podAddresses are the addresses of the ready pods, to which the name of a Service resolves.
	podAddresses ringKind = iota
	// fixedAddresses are the addresses in status.servers. They outlive the pods.
	fixedAddresses
	// proxied is the single address of a proxy, which hashes the keys itself.
	proxied
)

// variant is a way to run servers and to address them.
type variant struct {
	object, title string
	spec          string
	ring          ringKind
}

var variants = []variant{
	{"deployment", "Deployment", ``, podAddresses},
	{"dns", "StatefulSet, DNS", `, workload: StatefulSet`, fixedAddresses},
	{"cluster-ip", "StatefulSet, ClusterIP", `, workload: StatefulSet, serverAddresses: ClusterIP`, fixedAddresses},
	{"proxy", "proxy", `, workload: StatefulSet, proxy: {}`, proxied},
}

// common is part of the spec of all variants, which share a small node.
const common = `size: 3, metrics: {}, pod: {resources: {requests: {cpu: 10m}}}`

// subject is a Memcached of a variant, and a client of its servers.
type subject struct {
	variant
	*reader
	api       client.Client
	namespace string
	resolver  *net.Resolver

	lock    sync.Mutex
	now     state
	moments []moment
	err     error // of the last observation
}

// state is a Memcached with its servers at a moment.
type state struct {
	mc      *v1alpha1.Memcached
	pods    []corev1.Pod
	servers []string // as the client resolves them
	moment
}

// create creates a Memcached, and observes it until ctx ends.
func (s *subject) create(ctx context.Context) error {
	mc := &v1alpha1.Memcached{}
	if err := yaml.Unmarshal([]byte(manifest.Named(s.object, "{"+common+s.spec+"}")), mc); err != nil {
		return err
	}
	mc.Namespace = s.namespace
	if err := s.api.Create(ctx, mc); err != nil {
		return err
	}
	go func() {
		for ctx.Err() == nil {
			now, err := s.observe(context.WithoutCancel(ctx))
			s.lock.Lock()
			if s.err = err; err == nil {
				s.now, s.moments = now, append(s.moments, now.moment)
				s.servers.Store(&now.servers)
			}
			s.lock.Unlock()
			time.Sleep(200 * time.Millisecond)
		}
	}()
	return s.eventually(ctx, state.settled)
}

// patch applies a JSON merge patch to the Memcached.
func (s *subject) patch(ctx context.Context, json string) error {
	mc := &v1alpha1.Memcached{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: s.object}}
	return s.api.Patch(ctx, mc, client.RawPatch(types.MergePatchType, []byte(json)))
}

// observe reads the Memcached and its servers.
func (s *subject) observe(ctx context.Context) (state, error) {
	at, mc, pods := time.Now(), &v1alpha1.Memcached{}, &corev1.PodList{}
	if err := s.api.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: s.object}, mc); err != nil {
		return state{}, err
	}
	err := s.api.List(ctx, pods, client.InNamespace(s.namespace), client.MatchingLabels(names.Servers.Selector(mc)))
	if err != nil {
		return state{}, err
	}
	slices.SortFunc(pods.Items, func(a, b corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	now := state{mc, pods.Items, mc.Status.Servers, moment{at: at, all: int(names.Size(mc))}}
	for i := range now.pods {
		if now.pods[i].DeletionTimestamp == nil && container(&now.pods[i]).Ready {
			now.serving++
		}
	}
	if s.ring == podAddresses && len(now.servers) == 1 {
		now.servers, err = s.resolve(ctx, now.servers[0])
	}
	return now, err
}

// resolve returns the addresses of all ready servers.
func (s *subject) resolve(ctx context.Context, server string) ([]string, error) {
	host, port, err := net.SplitHostPort(qualified(server))
	if err != nil {
		return nil, err
	}
	hosts, err := s.resolver.LookupHost(ctx, host)
	for i := range hosts {
		hosts[i] = net.JoinHostPort(hosts[i], port)
	}
	return hosts, err
}

// container returns the status of the memcached container in a pod; it is empty until there is one.
func container(pod *corev1.Pod) (status corev1.ContainerStatus) {
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name == names.Container {
			return status
		}
	}
	return status
}

// eventually waits until the state passes.
func (s *subject) eventually(ctx context.Context, pass func(state) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, harness.Patience, fmt.Errorf("not within %s", harness.Patience))
	defer cancel()
	err := harness.Poll(ctx, func(context.Context) error {
		s.lock.Lock()
		now, err := s.now, s.err
		s.lock.Unlock()
		if err != nil || now.mc == nil {
			return errors.Join(errors.New("not observed yet"), err)
		}
		return pass(now)
	})
	if err != nil {
		err = fmt.Errorf("%s: %w", s.title, err)
	}
	return err
}

// settled returns nil if the Memcached is ready and has the wanted number of pods, all ready.
func (now state) settled() error {
	ready := meta.FindStatusCondition(now.mc.Status.Conditions, v1alpha1.ConditionReady)
	if ready == nil || ready.Status != metav1.ConditionTrue || ready.ObservedGeneration != now.mc.Generation {
		return fmt.Errorf("generation %d, Ready is %v", now.mc.Generation, ready)
	}
	if len(now.pods) != now.all || now.serving != now.all {
		return fmt.Errorf("%d pods, %d of them ready, want %d", len(now.pods), now.serving, now.all)
	}
	if n := len(now.servers); now.mc.Spec.Proxy == nil && n != now.all {
		return fmt.Errorf("clients resolve %d servers, want %d", n, now.all)
	}
	return nil
}

// incarnations returns an identifier for the memory of each server: it changes when a pod is replaced or memcached
// restarts.
func (now state) incarnations() (all []string) {
	for i := range now.pods {
		all = append(all, fmt.Sprint(now.pods[i].UID, container(&now.pods[i]).RestartCount))
	}
	return all
}

// prepare waits until the cache has settled, and fills it. It retries, because the network may know of a server later
// than the status.
func (s *subject) prepare(ctx context.Context, c scenario) error {
	return s.eventually(ctx, func(now state) error {
		if err := now.settled(); err != nil {
			return err
		}
		return s.fill(c.name)
	})
}

// run runs a scenario while clients send requests. The load ends when the Memcached has settled again, with as many
// new servers as the scenario makes.
func (s *subject) run(ctx context.Context, c scenario) (*measured, error) {
	s.lock.Lock()
	was := s.now.incarnations()
	s.moments = nil
	s.lock.Unlock()
	done, loaded := make(chan struct{}), make(chan []sample)
	go func() { loaded <- s.load(c.name, done) }()
	time.Sleep(before)
	acted := time.Now()
	err := c.do(ctx, s)
	var back time.Time // when the new servers were first observed
	if changed := time.Now(); err == nil {
		err = s.eventually(ctx, func(now state) error {
			if now.at.Before(changed) {
				return errors.New("not observed since the action")
			}
			fresh := slices.DeleteFunc(now.incarnations(), func(i string) bool { return slices.Contains(was, i) })
			if len(fresh) != c.renewedOf(s.variant) {
				return fmt.Errorf("%d new servers, want %d", len(fresh), c.renewedOf(s.variant))
			}
			if back.IsZero() {
				back = now.at
			}
			return now.settled()
		})
	}
	close(done)
	samples := <-loaded
	s.lock.Lock()
	defer s.lock.Unlock()
	if c.unannounced {
		for i := range s.moments {
			if m := &s.moments[i]; m.at.After(acted) && m.at.Before(back) {
				m.serving = min(m.serving, m.all-1)
			}
		}
		s.moments = append(s.moments, moment{acted, servers - 1, servers})
	}
	return measure(samples, s.moments, acted, c.theory, s.variant), err
}
