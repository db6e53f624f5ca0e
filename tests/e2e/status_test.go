package e2e

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/tests/cluster"
)

// TestStop: an operator that stops on SIGTERM releases its lease, and the next one leads at once. In tests/chaos, a
// standby takes over from leaders that were killed.
func TestStop(t *testing.T) {
	needMoreTime(t)
	testEnv.Test(t, features.New("an operator that stops").Assess("leaves its lease to the next one", step(func(w world) {
		w.create("cache", 2)
		w.awaitReady("cache")
		w.must(operator.Stop(w.ctx))
		if holder, err := operator.Holder(w.ctx); err == nil {
			w.Errorf("%s stopped without releasing its lease", holder)
		}
		start := time.Now()
		w.must(operator.Start(w.ctx, 1))
		w.merge("cache", `{"size":3}`)
		w.awaitReady("cache")
		if took := time.Since(start); took > 15*time.Second {
			w.Errorf("the next leader took %s", took)
		}
	})).Feature())
}

// TestKubectlWait: when kubectl wait returns, every server answers, after each kind of change.
func TestKubectlWait(t *testing.T) {
	t.Parallel()
	feature := features.New("kubectl wait --for=condition=Ready returns when every server answers").
		Setup(step(func(w world) { w.create("cache", 3) }))
	for _, c := range []struct{ name, spec string }{
		{"after creation", `{}`}, {"after adding servers", `{"size":5}`}, {"after a rollout",
			`{"memory":"128Mi","containerPort":12345}`},
		{"after removing servers", `{"size":2}`}, {"at zero", `{"size":0}`}, {"after a restart from zero", `{"size":2}`},
		{"after a reverted rollout", `{"memory":"64Mi"}`},
	} {
		feature.Assess(c.name, step(func(w world) {
			if strings.Contains(c.name, "reverted") {
				w.merge("cache", `{"memory":"256Mi"}`)
			}
			w.merge("cache", c.spec)
			w.mustAnswerWhenReady("cache")
		}))
	}
	feature.Assess("after the loss of all servers", step(func(w world) {
		events := w.watch(&v1alpha1.MemcachedList{})
		w.mustKubectl("delete", "pods", "-l", "cache.example.com/name=cache", "--wait=false")
		lost := await(w, events, "the loss is reported", func(_ watch.EventType, mc *v1alpha1.Memcached) bool {
			s, err := kstatus(mc)
			return err != nil || s != status.CurrentStatus
		})
		if lost.Status.Phase != v1alpha1.PhaseDegraded {
			w.Errorf("the phase is %s after a loss", lost.Status.Phase)
		}
		w.mustAnswerWhenReady("cache")
	}))
	testEnv.Test(t, feature.Feature())
}

func (w world) mustAnswerWhenReady(name string) {
	w.Helper()
	w.mustKubectl("wait", "--for=condition=Ready", "memcached/"+name, "--timeout=120s")
	pods := w.servers(name)
	for i := range pods {
		if err := answers(&pods[i]); err != nil {
			w.Errorf("server %s is not ready: %v", pods[i].Name, err)
		}
	}
	w.must(w.ready(name))
}

// answers asks a server for its version or, if pods are simulated, checks that its pod is ready.
// It fails if the server is older than its image says: users would not run that version.
func answers(pod *corev1.Pod) error {
	if !cluster.RealPods(testCluster.Kind) {
		if readyCondition(pod) != nil {
			return nil
		}
		return errors.New("the pod is not ready")
	}
	port := strconv.Itoa(int(pod.Spec.Containers[0].Ports[0].ContainerPort))
	c := memcachedClient{address: net.JoinHostPort(pod.Status.PodIP, port), patience: time.Second}
	conn, err := c.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	line, err := ask(conn, "version")
	if err != nil {
		return err
	}
	_, want, _ := strings.Cut(pod.Spec.Containers[0].Image, ":")
	got, err := version.ParseGeneric(strings.TrimPrefix(line, "VERSION "))
	if err != nil {
		return fmt.Errorf("the server answers %q: %w", line, err)
	}
	order, err := got.Compare(want)
	if err == nil && order < 0 {
		err = fmt.Errorf("the image of memcached %[2]s runs memcached %[1]s", got, want)
	}
	return err
}
