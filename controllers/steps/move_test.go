package steps

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/status"
)

// cluster simulates proxies whose files are late, and which come and go, while the wanted servers change.
type cluster struct {
	*testing.T
	*rand.Rand
	told    []contract.Servers // all of them, the newest last
	proxies []*simulated
	created int
	moved   []contract.Server // the servers that all items were last moved to
}

type simulated struct {
	pod  corev1.Pod
	uses int // index in told
}

func (c *cluster) now() contract.Servers { return c.told[len(c.told)-1] }

func (c *cluster) digest() string { return strconv.Itoa(len(c.told)) }

func (c *cluster) create() {
	c.created++
	p := &simulated{uses: len(c.told) - 1}
	p.pod.Name = fmt.Sprintf("proxy-%03d", c.created)
	p.pod.Spec.NodeName = "node"
	p.pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	c.proxies = append(c.proxies, p)
}

func (c *cluster) observe() Routing {
	var pods []*corev1.Pod
	for _, p := range c.proxies {
		pods = append(pods, status.StripPod(&p.pod)) // as in the informer cache
	}
	return routing(c.now(), c.digest(), pods...)
}

// routing returns a Routing with these proxies; digest is that of their newest configuration.
func routing(list contract.Servers, digest string, proxies ...*corev1.Pod) Routing {
	return Routing{List: list, digest: digest, proxies: filter(proxies, mayRun)}
}

// step lets one thing happen.
func (c *cluster) step(wanted []contract.Server) {
	r := c.observe()
	switch p := c.proxies[c.IntN(len(c.proxies))]; c.IntN(6) {
	case 0: // the operator
		if next := r.next(wanted, len(wanted), true); !next.Equal(c.now()) {
			c.told = append(c.told, next)
		}
	case 1: // the kubelet and the proxy
		p.uses += c.IntN(len(c.told) - p.uses)
		if c.IntN(3) == 0 {
			p.uses = len(c.told) - 1
		}
	case 2: // the operator asks
		for _, pod := range r.toAnnotate() {
			c.annotate(pod.Name, r.annotation(notReported))
		}
		for _, pod := range r.unconfirmed() {
			i := slices.IndexFunc(c.proxies, func(p *simulated) bool { return p.pod.Name == pod.Name })
			if c.proxies[i].uses != len(c.told)-1 {
				continue
			}
			c.annotate(pod.Name, r.annotation(hasLoaded))
			if c.now().Mover == pod.Name && c.IntN(2) == 0 {
				c.move()
				c.annotate(pod.Name, r.annotation(hasMoved))
			}
		}
	case 3:
		if len(c.proxies) > 2 { // one is deleted, and another time, it is gone
			if p.pod.DeletionTimestamp.IsZero() {
				p.pod.DeletionTimestamp = &metav1.Time{Time: now}
			} else {
				c.proxies = slices.DeleteFunc(c.proxies, func(other *simulated) bool { return other == p })
			}
		}
	case 4:
		if len(c.proxies) < 4 {
			c.create()
		}
	}
	c.check()
}

func (c *cluster) annotate(name, value string) {
	for _, p := range c.proxies {
		if p.pod.Name == name {
			metav1.SetMetaDataAnnotation(&p.pod.ObjectMeta, v1alpha1.ProxyConfigAnnotation, value)
		}
	}
}

// move is what a mover does: all proxies must be in a phase that allows it.
func (c *cluster) move() {
	s := c.now()
	for _, p := range c.proxies {
		used := c.told[p.uses]
		if s.Phase == contract.PreferAfter && used.Phase != s.Phase ||
			s.Phase == contract.Purge && prefers(used) != prefers(s) {
			c.Fatalf("items are moved in %+v while a proxy uses %+v", s, used)
		}
	}
	if s.Phase == contract.PreferAfter {
		c.moved = s.After
	}
}

// prefers returns what decides where a proxy reads and writes.
func prefers(s contract.Servers) string {
	switch s.Phase {
	case contract.NoChange:
		return fmt.Sprint(s.After)
	case contract.Purge:
		return fmt.Sprint(s.Before)
	}
	return fmt.Sprint(s.Phase, s.Before, s.After)
}

// check fails if two proxies are more than one step apart, or if one uses servers whose items were not moved.
func (c *cluster) check() {
	least, most := len(c.told), 0
	for _, p := range c.proxies {
		least, most = min(least, p.uses), max(most, p.uses)
		if s := c.told[p.uses]; s.Phase == contract.NoChange && !slices.Equal(s.After, c.moved) && p.uses == len(c.told)-1 {
			c.Fatalf("a proxy uses %v, but the items are on %v", s.After, c.moved)
		}
	}
	apart := map[string]bool{}
	for _, s := range c.told[least : most+1] {
		apart[prefers(s)] = true
	}
	if len(apart) > 2 {
		c.Fatalf("proxies are %d steps apart", len(apart)-1)
	}
}

// TestNext: whatever happens in whatever order, proxies are never more than one step apart, items are moved only while
// all proxies allow that, and in the end all proxies use the wanted servers.
func TestNext(t *testing.T) {
	t.Parallel()
	var all []contract.Server
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		all = append(all, contract.Server{Name: name, Address: name})
	}
	changes := 0
	for seed := range uint64(25) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			c := &cluster{T: t, Rand: rand.New(rand.NewPCG(seed, 0)), told: []contract.Servers{{After: all[:3]}}, moved: all[:3]}
			c.create()
			c.create()
			var wanted []contract.Server
			for range 10 {
				wanted = slices.Clone(all[:1+c.IntN(len(all))])
				if c.IntN(3) == 0 && len(wanted) == len(c.now().After) { // one is replaced
					wanted = slices.Clone(c.now().After)
					wanted[c.IntN(len(wanted))] = contract.Server{Name: "f", Address: strconv.Itoa(c.IntN(1000))}
				}
				for range c.IntN(400) {
					c.step(wanted)
				}
			}
			for n := 0; !c.now().Equal(contract.Servers{After: wanted}) || c.observe().NotLoaded() != ""; n++ {
				if n == 20000 {
					t.Fatalf("after %d steps, %+v has not become %v", n, c.now(), wanted)
				}
				c.step(wanted)
			}
			changes += len(c.told) / 4
		})
	}
	t.Logf("about %d changes", changes)
}

// FuzzProxyConfig: whatever somebody writes into the annotation of a proxy and into the files of the proxies, a proxy
// has confirmed only what the operator writes, and in the end the proxies use the wanted servers.
func FuzzProxyConfig(f *testing.F) {
	const digest = "0123456789abcdef"
	for _, annotation := range []string{"", digest, digest + " ", digest + " loaded", digest + " moved",
		digest + " moved ",
		digest + "  loaded", digest + "x loaded", "loaded"} {
		f.Add(annotation, "", "")
	}
	for _, text := range []string{"a 1\n", "phase 0\nold a 1\na 1\nb 2\n", "phase 1\nold a 1\nb 2\n",
		"phase 2\na 1\nb 2\n",
		"phase 0\n", "phase 3\nold a 1\n", "phase 2\na 1\na 1\na 1\n"} {
		f.Add(digest+" moved", text, "")
		f.Add(digest+" moved", text, "proxy")
		f.Add(digest+" moved", text, "other")
	}
	wanted := []contract.Server{{Name: "a", Address: "1"}, {Name: "b", Address: "2"}}
	f.Fuzz(func(t *testing.T, annotation, servers, moverName string) {
		pods := []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "proxy"}, Spec: corev1.PodSpec{NodeName: "node"},
			Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}}}
		pods[0].Annotations = map[string]string{v1alpha1.ProxyConfigAnnotation: annotation}
		r := routing(contract.ParseServers(map[string]string{"servers": servers, "mover": moverName}), digest, pods...)
		c, ok := r.confirmation(pods[0])
		if first, _, _ := strings.Cut(annotation, " "); ok != (first == digest) || c != notReported &&
			annotation != r.annotation(c) {
			t.Errorf("the proxy has confirmed %q, %t", c, ok)
		}
		pods[0].Annotations[v1alpha1.ProxyConfigAnnotation] = r.annotation(hasMoved)
		for range 10 {
			r.List = r.next(wanted, len(wanted), true)
		}
		if !r.List.Equal(contract.Servers{After: wanted}) {
			t.Errorf("the proxies use %+v", r.List)
		}
	})
}

// TestNextAtOnce: servers change at once where nothing can be kept.
func TestNextAtOnce(t *testing.T) {
	three := []contract.Server{{Name: "a", Address: "1"}, {Name: "b", Address: "2"}, {Name: "c", Address: "3"}}
	two := three[:2]
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "proxy"}, Spec: corev1.PodSpec{NodeName: "node"}}
	pod.Annotations = map[string]string{v1alpha1.ProxyConfigAnnotation: "digest loaded"}
	loaded, notLoaded := routing(contract.Servers{}, "digest", pod), routing(contract.Servers{}, "newer", pod)
	noNode := routing(contract.Servers{}, "newer", &corev1.Pod{})
	change := contract.Servers{Phase: contract.Purge, Before: two, After: three}
	for name, tt := range map[string]struct {
		routing     Routing
		now, wanted []contract.Server
		warm        bool
		want        contract.Servers
	}{
		"none before":                             {loaded, nil, two, true, contract.Servers{After: two}},
		"none before, a proxy not loaded":         {notLoaded, nil, two, true, contract.Servers{}},
		"none after":                              {loaded, two, nil, true, contract.Servers{}},
		"not warm":                                {notLoaded, two, three, false, contract.Servers{After: three}},
		"a proxy has not loaded the list":         {notLoaded, two, three, true, contract.Servers{After: two}},
		"a proxy has no node":                     {noNode, two, three, true, change},
		"all proxies have loaded the list":        {loaded, two, three, true, change},
		"all proxies have loaded the list, as is": {loaded, two, two, true, contract.Servers{After: two}},
	} {
		tt.routing.List.After = tt.now
		got := tt.routing.next(tt.wanted, len(tt.wanted), tt.warm)
		if !got.Equal(tt.want) {
			t.Errorf("%s: got %+v, want %+v", name, got, tt.want)
		}
	}
}

// TestWantedWithServersDown: a server that is down is removed at once, and before others, whose items move.
func TestWantedWithServersDown(t *testing.T) {
	t.Parallel()
	for down, want := range map[int]struct {
		list []int
		warm bool
	}{-1: {[]int{0}, true}, 1: {[]int{0}, true}, 2: {[]int{0, 1}, false}} {
		o := serverSet{size: 1, serving: map[int]bool{0: true, 1: down != 1, 2: down != 2}}
		if list, warm := o.wanted([]int{0, 1, 2}, true); !slices.Equal(list, want.list) || warm != want.warm {
			t.Errorf("server %d is down: got %v, warm %t, want %+v", down, list, warm, want)
		}
	}
}

// TestNextMove: a change that has only deleted items is given up for another size, and none begins before a flush has
// ended.
func TestNextMove(t *testing.T) {
	t.Parallel()
	v := flushView([]*server{able(), able(), able()})
	v.Memcached.Spec.Proxy = &v1alpha1.ProxySpec{}
	meta.SetStatusCondition(&v.Memcached.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionDegraded,
		Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonAsExpected})
	all := v.addressed([]int{0, 1, 2})
	v.Routing.List.After = all[:2]
	if got := NextMove(v).List; !got.Equal(v.Routing.List) {
		t.Errorf("before a flush has ended: got %+v", got)
	}
	v.Memcached.Annotations = nil
	v.Routing.List = NextMove(v).List
	if want := (contract.Servers{Phase: contract.Purge, Before: all[:2], After: all}); !v.Routing.List.Equal(want) {
		t.Errorf("after a flush: got %+v, want %+v", v.Routing.List, want)
	}
	v.Memcached.Spec.Size = ptr.To[int32](2)
	if got := NextMove(v); !got.List.Equal(contract.Servers{After: all[:2]}) || got.MinServers != 3 {
		t.Errorf("with another size: got %+v, want the servers before", got)
	}
}

// TestWanted covers the rules in the comment of wanted.
func TestWanted(t *testing.T) {
	t.Parallel()
	set := func(ordinals ...int) map[int]bool {
		m := map[int]bool{}
		for _, ordinal := range ordinals {
			m[ordinal] = true
		}
		return m
	}
	for name, tt := range map[string]struct {
		size            int
		ready, outdated map[int]bool
		current         []int
		cold            bool
		want            []int
		minServers      int // for the current ones
	}{
		"as it is":                  {3, set(0, 1, 2), nil, []int{0, 1, 2}, false, []int{0, 1, 2}, 3},
		"in another order":          {3, set(0, 1, 2), nil, []int{1, 2, 0}, false, []int{1, 2, 0}, 3},
		"none is ready":             {3, nil, nil, []int{0, 1, 2}, false, []int{0, 1, 2}, 3},
		"two more":                  {4, set(0, 1, 2, 3), nil, []int{1, 0}, false, []int{1, 0, 2, 3}, 2},
		"two more, one is ready":    {4, set(0, 1, 2), nil, []int{0, 1}, false, []int{0, 1}, 2},
		"two more, one is cold":     {4, set(0, 1, 2), nil, []int{0, 1}, true, []int{0, 1, 2}, 2},
		"two more, not in order":    {4, set(0, 1, 3), nil, []int{0, 1}, true, []int{0, 1}, 2},
		"one fewer":                 {2, set(0, 1, 2), nil, []int{0, 1, 2}, false, []int{0, 1}, 3},
		"one fewer, another order":  {2, set(0, 1, 2), nil, []int{1, 2, 0}, false, []int{1, 2}, 3},
		"one beyond the size":       {2, set(0, 1, 2), nil, []int{1, 2}, false, []int{1, 0}, 3},
		"one beyond, none ready":    {2, set(1, 2), nil, []int{1, 2}, false, []int{1, 2}, 3},
		"one fewer, cold":           {2, set(0, 1, 2), nil, []int{1, 2, 0}, true, []int{1, 0}, 3},
		"outdated":                  {2, set(0, 1), set(0, 1), []int{0, 1}, false, []int{0, 1}, 3},
		"outdated, a spare one":     {2, set(0, 1, 2), set(0, 1), []int{0, 1}, false, []int{2, 1}, 3},
		"one was replaced":          {2, set(0, 1, 2), set(1), []int{2, 1}, false, []int{2, 0}, 3},
		"one is being replaced":     {2, set(1, 2), set(1), []int{2, 1}, false, []int{2, 1}, 3},
		"all were replaced":         {2, set(0, 1, 2), nil, []int{2, 0}, false, []int{1, 0}, 3},
		"the spare one is outdated": {2, set(0, 1, 2), set(0, 2), []int{0, 2}, false, []int{1, 2}, 3},
		"zero":                      {0, set(0, 1), nil, []int{0, 1}, false, nil, 2},
	} {
		o := serverSet{size: tt.size, ready: tt.ready, outdated: tt.outdated, serving: set(0, 1, 2, 3)}
		if got, _ := o.wanted(tt.current, !tt.cold); !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %v, want %v", name, got, tt.want)
		}
		if got := o.minServers(tt.current); got != tt.minServers {
			t.Errorf("%s: got a minimum of %d servers, want %d", name, got, tt.minServers)
		}
	}
}

// TestWantedRollout: each server is replaced while it is not in use, and items move once more often than there are
// servers. If the template changes again in between, the rollout begins again, and ends.
func TestWantedRollout(t *testing.T) {
	t.Parallel()
	for size := range 6 {
		for again := range size + 2 { // 0: the template changes only once
			o := serverSet{size: size, ready: map[int]bool{}, outdated: map[int]bool{}, serving: map[int]bool{}}
			var current []int
			changeTemplate := func() {
				for ordinal := range o.ready {
					o.outdated[ordinal] = true
				}
			}
			for ordinal := range size {
				o.ready[ordinal] = true
				current = append(current, ordinal)
			}
			changeTemplate()
			moves := 0
			for {
				o.ready[size] = o.minServers(current) > size
				moves++
				if moves == again {
					changeTemplate()
				}
				for ordinal := range o.outdated {
					o.outdated[ordinal] = o.outdated[ordinal] && slices.Contains(current, ordinal)
				}
				next, _ := o.wanted(current, true)
				if slices.Equal(next, current) || moves > 3*size+3 {
					break
				}
				current = next
			}
			most := min(size, 1)*(size+1) + again
			if o.minServers(current) != size || o.hasOutdated(current) || len(current) != size || moves-1 > most {
				t.Errorf("%d servers, another template at move %d: after %d moves, %v are in use", size, again, moves-1, current)
			}
		}
	}
}
