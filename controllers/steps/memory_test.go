package steps

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/controllers/status"
)

// container is a container of memcached with this memory for items in MiB, and twice as much memory in all.
func container(items int64) corev1.Container {
	memory := corev1.ResourceList{corev1.ResourceMemory: *resource.NewQuantity(2*items<<20, resource.BinarySI)}
	return corev1.Container{Name: names.Container, Args: []string{"-m", strconv.FormatInt(items, 10)},
		Resources: corev1.ResourceRequirements{Limits: memory, Requests: memory}}
}

// memoryCluster is a View of one server, whose memory changes, with a kubelet, an agent and memcached.
type memoryCluster struct {
	*testing.T
	*rand.Rand
	view      View
	pod       *corev1.Pod
	limit     int64  // of the container, in bytes
	mounted   string // the annotation, as the agent reads it
	applied   string // as the agent reports it
	memcached int64  // its memory for items in MiB
}

func newMemoryCluster(t *testing.T, seed uint64, items int64) *memoryCluster {
	c := &memoryCluster{T: t, Rand: rand.New(rand.NewPCG(seed, 0)), view: viewOf(updated()), memcached: items}
	c.pod = c.view.Servers[0]
	c.pod.Spec.Containers = []corev1.Container{container(items)}
	c.setTemplate(items)
	c.resize()
	return c
}

// setTemplate does what the operator does with a StatefulSet when the memory changes.
func (c *memoryCluster) setTemplate(items int64) {
	c.view.Memcached.Generation++
	c.view.statefulSet().Spec.Template.Spec.Containers = []corev1.Container{container(items)}
}

func (c *memoryCluster) next() Step {
	c.view.Servers = []*corev1.Pod{status.StripPod(c.pod.DeepCopy())}
	c.view.Reports[c.pod.Name] = Report{Report: contract.Report{Applied: c.applied, Memory: c.memcached << 20}}
	s, _ := changeMemory(c.view)
	return s
}

// isNothing reports whether a step of the memory does nothing, and waits for nothing.
func isNothing(s Step) bool { return len(s.Annotate) == 0 && s.Resize == nil && s.Progress.Text == "" }

// operate makes the next step of the operator.
func (c *memoryCluster) operate() {
	step := c.next()
	for _, a := range step.Annotate {
		metav1.SetMetaDataAnnotation(&c.pod.ObjectMeta, a.Key, a.Value)
	}
	if step.Resize != nil && !step.Resize.DryRun {
		c.pod.Generation++
		c.pod.Spec.Containers[0].Resources = container(step.Resize.Items).Resources
	}
}

// resize is what the kubelet does with the container.
func (c *memoryCluster) resize() {
	resources := c.pod.Spec.Containers[0].Resources
	c.limit = resources.Limits.Memory().Value()
	c.pod.Status.ObservedGeneration = c.pod.Generation
	c.pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: names.Container, Ready: true, Resources: &resources}}
}

// apply is what the agent does with memcached.
func (c *memoryCluster) apply() {
	c.applied = ""
	if items, err := contract.ParseMemory(c.mounted); err == nil {
		c.memcached, c.applied = items, c.mounted
	}
}

// TestMemory: however the memory is changed, and in whatever order kubelet, agent and operator act, memcached never has
// more memory than its container is for, and in the end has that of the template.
func TestMemory(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		c := newMemoryCluster(t, seed, 64)
		check := func(who string) {
			if c.memcached*2<<20 > c.limit {
				c.Fatalf("seed %d: after %s, memcached has %d MiB in a container of %d MiB", seed, who, c.memcached, c.limit>>20)
			}
		}
		var wanted int64 = 64
		steps := 0
		for done := false; !done; steps++ {
			if steps < 200 && c.IntN(10) == 0 {
				wanted = []int64{32, 64, 96, 128}[c.IntN(4)]
				c.setTemplate(wanted)
			}
			switch c.IntN(4) {
			case 0:
				c.operate()
			case 1:
				c.mounted = c.pod.Annotations[v1alpha1.MemoryAnnotation]
			case 2:
				c.resize()
				check("the kubelet")
			case 3:
				c.apply()
				check("the agent")
			}
			done = steps > 200 && isNothing(c.next())
			if steps > 2000 {
				t.Fatalf("seed %d: %d MiB instead of %d, next %+v", seed, c.memcached, wanted, c.next())
			}
		}
		state := status.ReadState(c.view.Workload, c.pod)
		if c.memcached != wanted || c.limit != 2*wanted<<20 || state.Outdated != 0 {
			t.Errorf("seed %d: got %d MiB in a container of %d MiB, want %d MiB", seed, c.memcached, c.limit>>20, wanted)
		}
	}
}

// FuzzMemoryAnnotation: whatever somebody writes into the annotation of a server, memcached has the memory of the
// template soon, and its container too.
func FuzzMemoryAnnotation(f *testing.F) {
	for _, annotation := range []string{"", "64 1", "64 1 done", "128 1", "32 1 done", "0", "-1", "x 64", "64 1  done",
		" 128 1", // the agent once set this memory, which the operator did not read
		"17592186044480 1", "9223372036854775807 1 done"} {
		f.Add(annotation)
	}
	f.Fuzz(func(t *testing.T, annotation string) {
		c := newMemoryCluster(t, 0, 64)
		metav1.SetMetaDataAnnotation(&c.pod.ObjectMeta, v1alpha1.MemoryAnnotation, annotation)
		for range 6 {
			c.mounted = c.pod.Annotations[v1alpha1.MemoryAnnotation]
			c.apply()
			c.operate()
			c.resize()
		}
		if step := c.next(); !isNothing(step) || c.memcached != 64 || c.limit != 128<<20 {
			t.Errorf("got %d MiB in a container of %d MiB, next %+v", c.memcached, c.limit>>20, step)
		}
	})
}

// TestMemoryTaken: a server whose container somebody else gave less memory gets back that of the template; more memory
// and other requests are left to other tools.
func TestMemoryTaken(t *testing.T) {
	t.Parallel()
	for limit, want := range map[string]bool{"100Mi": true, "128Mi": false, "200Mi": false} {
		c := newMemoryCluster(t, 0, 64)
		c.pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{
			Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(limit)}}
		step := c.next()
		if (step.Resize != nil) != want || len(step.Annotate) > 0 {
			t.Errorf("with a limit of %s: got the step %+v", limit, step)
		}
		c.operate()
		if step := c.next(); !isNothing(step) {
			t.Errorf("with a limit of %s, then: got the step %+v", limit, step)
		}
	}
}

// TestMemoryStep: a server is changed only if it differs from the template in nothing but its memory, and holds
// something; the first such server comes first.
func TestMemoryStep(t *testing.T) {
	t.Parallel()
	with := func(s *server, items int64) *server {
		s.Spec.Containers = []corev1.Container{container(items)}
		return s
	}
	smaller := func() *server { return with(updated(), 32) }
	same := func() *server { return with(updated(), 64) }
	for name, tt := range map[string]struct {
		servers  []*server
		changes  string   // the first step is for this server
		replaces []string // are to be replaced
	}{
		"none":                  {[]*server{same(), same()}, "", nil},
		"both":                  {[]*server{smaller(), smaller()}, "cache-0", nil},
		"the second":            {[]*server{same(), smaller()}, "cache-1", nil},
		"of another template":   {[]*server{same(), outdated()}, "", []string{"cache-1"}},
		"down":                  {[]*server{same(), smaller().down()}, "", []string{"cache-1"}},
		"not ready, but serves": {[]*server{same(), smaller().agentDown()}, "cache-1", nil},
		"terminating":           {[]*server{same(), smaller().terminating()}, "", nil},
	} {
		v := viewOf(tt.servers...)
		v.statefulSet().Spec.Template.Spec.Containers = []corev1.Container{container(64)}
		changes := ""
		s, _ := changeMemory(v)
		for _, a := range s.Annotate {
			changes = a.Pod.Name
		}
		replaced, _ := replace(counted(v))
		if replaces := podNames(replaced.Delete); changes != tt.changes || !slices.Equal(replaces, tt.replaces) {
			t.Errorf("%s: changes %q and replaces %v, want %q and %v", name, changes, replaces, tt.changes, tt.replaces)
		}
		v.statefulSet().Generation++
		if s, _ := changeMemory(v); !isNothing(s) {
			t.Errorf("%s: changes servers before the controller has observed the template", name)
		}
	}
}
