package rollout

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/example/memcached-operator/agent/mover"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/status"
)

// cluster simulates proxies whose files are late, and which come and go, while the wanted servers change.
type cluster struct {
	*testing.T
	*rand.Rand
	told    []mover.Servers // all of them, the newest last
	proxies []*simulated
	created int
	moved   []string // the servers that all items were last moved to
}

type simulated struct {
	pod  corev1.Pod
	uses int // index in told
}

func (c *cluster) now() mover.Servers { return c.told[len(c.told)-1] }

func (c *cluster) digest() string { return strconv.Itoa(len(c.told)) }

func (c *cluster) create() {
	c.created++
	p := &simulated{uses: len(c.told) - 1}
	p.pod.Name = fmt.Sprintf("proxy-%03d", c.created)
	p.pod.Spec.NodeName = "node"
	p.pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	c.proxies = append(c.proxies, p)
}

func (c *cluster) observe() Proxies {
	var pods []corev1.Pod
	for _, p := range c.proxies {
		pods = append(pods, *status.StripPod(&p.pod)) // as in the informer cache
	}
	return NewProxies(pods, c.digest())
}

// step lets one thing happen.
func (c *cluster) step(wanted []string) {
	proxies := c.observe()
	switch p := c.proxies[c.IntN(len(c.proxies))]; c.IntN(6) {
	case 0: // the operator
		if next := proxies.Next(c.now(), wanted, len(wanted), true); !next.Equal(c.now()) {
			c.told = append(c.told, next)
		}
	case 1: // the kubelet and the proxy
		p.uses += c.IntN(len(c.told) - p.uses)
		if c.IntN(3) == 0 {
			p.uses = len(c.told) - 1
		}
	case 2: // the operator asks
		for _, pod := range proxies.ToAnnotate() {
			c.annotate(pod.Name, proxies.Annotation(Unasked))
		}
		for _, pod := range proxies.Unconfirmed(c.now()) {
			i := slices.IndexFunc(c.proxies, func(p *simulated) bool { return p.pod.Name == pod.Name })
			if c.proxies[i].uses != len(c.told)-1 {
				continue
			}
			c.annotate(pod.Name, proxies.Annotation(Loaded))
			if c.now().Mover == pod.Name && c.IntN(2) == 0 {
				c.move()
				c.annotate(pod.Name, proxies.Annotation(Moved))
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
		if s.Phase == mover.PreferAfter && used.Phase != s.Phase || s.Phase == mover.Purge && prefers(used) != prefers(s) {
			c.Fatalf("items are moved in %+v while a proxy uses %+v", s, used)
		}
	}
	if s.Phase == mover.PreferAfter {
		c.moved = s.After
	}
}

// prefers returns what decides where a proxy reads and writes.
func prefers(s mover.Servers) string {
	switch s.Phase {
	case mover.NoChange:
		return strings.Join(s.After, ",")
	case mover.Purge:
		return strings.Join(s.Before, ",")
	}
	return fmt.Sprint(s.Phase, s.Before, s.After)
}

// check fails if two proxies are more than one step apart, or if one uses servers whose items were not moved.
func (c *cluster) check() {
	var steps []string // that differ
	for _, s := range c.told {
		if step := prefers(s); len(steps) == 0 || steps[len(steps)-1] != step {
			steps = append(steps, step)
		}
	}
	least, most := len(c.told), 0
	for _, p := range c.proxies {
		least, most = min(least, p.uses), max(most, p.uses)
		if s := c.told[p.uses]; s.Phase == mover.NoChange && !slices.Equal(s.After, c.moved) && p.uses == len(c.told)-1 {
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
	all := []string{"a:1", "b:1", "c:1", "d:1", "e:1"}
	changes := 0
	for seed := range uint64(50) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			c := &cluster{T: t, Rand: rand.New(rand.NewPCG(seed, 0)), told: []mover.Servers{{After: all[:3]}}, moved: all[:3]}
			c.create()
			c.create()
			var wanted []string
			for range 10 {
				wanted = all[:1+c.IntN(len(all))]
				for range c.IntN(400) {
					c.step(wanted)
				}
			}
			for n := 0; !c.now().Equal(mover.Servers{After: wanted}) || c.observe().NotLoaded() != ""; n++ {
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

// TestNextAtOnce: servers change at once where nothing can be kept, and wait where some are not ready.
func TestNextAtOnce(t *testing.T) {
	two, three := []string{"a:1", "b:1"}, []string{"a:1", "b:1", "c:1"}
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "proxy"}, Spec: corev1.PodSpec{NodeName: "node"}}
	loaded := NewProxies([]corev1.Pod{pod}, "digest")
	pod.Annotations = map[string]string{v1alpha1.ProxyConfigAnnotation: loaded.Annotation(Loaded)}
	loaded = NewProxies([]corev1.Pod{pod}, "digest")
	for name, tt := range map[string]struct {
		proxies     Proxies
		now, wanted []string
		size        int
		warm        bool
		want        mover.Servers
	}{
		"none before":      {loaded, nil, two, 3, true, mover.Servers{After: two}},
		"none after":       {loaded, two, nil, 0, true, mover.Servers{}},
		"not warm":         {loaded, two, three, 4, false, mover.Servers{After: three}},
		"an address":       {loaded, two, []string{"a:1", "c:1"}, 2, true, mover.Servers{After: []string{"a:1", "c:1"}}},
		"one is not ready": {loaded, two, three, 4, true, mover.Servers{After: two}},
		"a proxy has not loaded the list": {NewProxies([]corev1.Pod{pod}, "newer"), two, three, 3, true,
			mover.Servers{After: two}},
		"a proxy has no node": {NewProxies([]corev1.Pod{{}}, "newer"), two, three, 3, true,
			mover.Servers{Phase: mover.Purge, Before: two, After: three}},
		"all are ready": {loaded, two, three, 3, true, mover.Servers{Phase: mover.Purge, Before: two, After: three}},
	} {
		if got := tt.proxies.Next(mover.Servers{After: tt.now}, tt.wanted, tt.size, tt.warm); !got.Equal(tt.want) {
			t.Errorf("%s: got %+v, want %+v", name, got, tt.want)
		}
	}
}
