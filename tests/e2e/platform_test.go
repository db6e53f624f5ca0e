package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers"
	"github.com/example/memcached-operator/controllers/desired"
	"github.com/example/memcached-operator/internal/testing/harness"
	"github.com/example/memcached-operator/tests/cluster"
	"github.com/example/memcached-operator/tests/e2e/truth"
)

// clockError is how late the clock of the operator is in TestPlatform.
const clockError = time.Hour

// TestPlatform: policies demand labels, and rewrite images and limits; a quota is raised late; the platform has a
// budget of its own and a node with Windows; the clock of the operator is late; the namespace ends. No status is wrong,
// which the sampler checks, no server is replaced without a reason, and each message says what to change.
func TestPlatform(t *testing.T) {
	if testCluster.Kind != "kwok" {
		t.Skip("only kwok simulates a node with Windows")
	}
	const labels = `"labels":{"team":"shop"}`
	var before map[string]string
	testEnv.Test(t, features.New("a platform's worst day").
		Setup(step(func(w world) {
			file := w.platform("11")
			w.Cleanup(func() { // of the whole test: a step's own cleanup would end the policies after that step
				_, err := harness.Command{}.Run(context.Background(), "kubectl", "delete", "--ignore-not-found", "--filename", file)
				w.must(err)
			})
			w.mustKubectl("create", "quota", "pods", "--hard=pods=1")
			w.behind()
		})).
		Assess("a policy demands labels: said once, and satisfied by spec.labels and spec.pod.labels", step(func(w world) {
			mc := w.parse("cache", `{size: 3, workload: StatefulSet, serverAddresses: ClusterIP, rollout: {minReadySeconds: 1}}`)
			mc.Annotations = map[string]string{truth.LateClock: ""}
			w.must(w.Create(w.ctx, mc))
			w.awaitMessage("cache", "every object needs the label team")
			w.merge("cache", `{`+labels+`,"pod":{`+labels+`}}`)
		})).
		Assess("a quota is raised late", step(func(w world) {
			w.awaitMessage("cache", "exceeded quota: pods")
			w.mustKubectl("patch", "resourcequota/pods", "--type=merge", `--patch={"spec":{"hard":{"pods":"10"}}}`)
			start := time.Now()
			w.awaitReady("cache")
			if took := time.Since(start); took > time.Minute {
				w.Errorf("ready only %s after the quota was raised", took)
			}
		})).
		Assess("a digest moves: more servers replace none", step(func(w world) {
			before = w.uids("cache")
			w.platform("22")
			w.merge("cache", `{"size":4}`)
			w.awaitReady("cache")
			after := w.uids("cache")
			delete(after, "cache-3")
			w.mustNotReplace(before, after)
			w.awaitEvent("cache", "image")
		})).
		Assess("a second budget blocks drains until ours is left out", step(func(w world) {
			evict := func() error {
				pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "cache-0"}}
				return w.SubResource("eviction").Create(w.ctx, pod, &policyv1.Eviction{})
			}
			if err := evict(); err == nil || !strings.Contains(err.Error(), "more than one PodDisruptionBudget") {
				w.Errorf("an eviction with two budgets: %v", err)
			}
			w.merge("cache", `{"disruptionBudget":{"policy":"None","maxUnavailable":null}}`)
			w.eventually("evict a server", evict)
			w.awaitReady("cache")
		})).
		Assess("a rollout goes on with a late clock, and no server runs on Windows", step(func(w world) {
			before = w.uids("cache")
			w.merge("cache", `{"maxConnections":2048}`)
			w.awaitReady("cache")
			w.mustReplaceAll(before, "cache")
			for _, pod := range w.servers("cache") {
				if strings.HasPrefix(pod.Spec.NodeName, "windows") {
					w.Errorf("server %s runs on %s", pod.Name, pod.Spec.NodeName)
				}
			}
		})).
		Assess("the namespace ends", step(func(w world) {
			w.must(w.Delete(w.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.ns}}))
			w.eventually("end", func() error {
				err := w.Get(w.ctx, client.ObjectKey{Name: w.ns}, &corev1.Namespace{})
				if apierrors.IsNotFound(err) {
					return nil
				}
				return errors.Join(errors.New("the namespace still exists"), err)
			})
		})).Feature())
}

// platform applies testdata/platform.yaml to the namespace, and returns the file. Images become this digest.
func (w world) platform(digest string) string {
	w.Helper()
	content, err := os.ReadFile("testdata/platform.yaml")
	w.must(err)
	file := filepath.Join(w.TempDir(), "platform.yaml")
	replace := strings.NewReplacer("NAMESPACE", w.ns, "DIGEST", strings.Repeat(digest, 32))
	w.must(os.WriteFile(file, []byte(replace.Replace(string(content))), 0o600))
	w.mustKubectl("apply", "--filename", file)
	w.eventually("enforce the policies", func() error {
		probe := map[string]string{"team": "platform"}
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "probe", Labels: probe},
			Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: probe}, Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: probe},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "probe", Image: "probe:1"}}}}}}
		if err := w.Create(w.ctx, d, client.DryRunAll); err != nil || !strings.Contains(d.Spec.Template.Spec.
			Containers[0].Image, digest) {
			return fmt.Errorf("the image is not rewritten: %w", err)
		}
		d.Name, d.ResourceVersion, d.Labels = "other", "", nil
		if err := w.Create(w.ctx, d, client.DryRunAll); !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) {
			return fmt.Errorf("an object without a label is not refused: %w", err)
		}
		return nil
	})
	return file
}

// behind runs the reconciler in this process, with the permissions of the operator and a late clock, instead of the
// operator, until the test ends.
func (w world) behind() {
	w.Helper()
	w.must(operator.Stop(w.ctx))
	config := rest.CopyConfig(testCluster.KubernetesRestConfig())
	config.Impersonate.UserName = fmt.Sprintf("system:serviceaccount:%s:%s", cluster.OperatorNamespace,
		cluster.OperatorDeployment)
	options := ctrl.Options{Scheme: clientgoscheme.Scheme, Cache: controllers.CacheOptions()}
	options.Metrics.BindAddress = "0"
	options.Controller.MaxConcurrentReconciles = 4
	options.Cache.DefaultNamespaces = map[string]cache.Config{w.ns: {}}
	mgr, err := ctrl.NewManager(config, options)
	w.must(err)
	r := &controllers.MemcachedReconciler{Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(),
		Recorder: mgr.GetEventRecorder("memcached-operator"),
		Now:      func() time.Time { return time.Now().Add(-clockError) },
		AskAgent: controllers.AskAgent, StopServer: controllers.StopServer,
		Options: desired.Options{DefaultImage: "docker.io/library/memcached:1.6.45", CanResize: true,
			AgentImage: "example.com/memcached-operator:v0.1.0", Namespace: cluster.OperatorNamespace}}
	w.must(r.SetupWithManager(mgr))
	ctx, stop := context.WithCancel(w.ctx)
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	w.Cleanup(func() {
		stop()
		w.must(<-ended)
		w.must(operator.Start(w.ctx, 1))
	})
}

// awaitMessage waits until the status says why a Memcached is not ready, with these words once.
func (w world) awaitMessage(name, words string) {
	w.Helper()
	start := time.Now()
	w.eventually("say "+words, func() error {
		message := condition(w.memcached(name), v1alpha1.ConditionReady).Message
		if n := strings.Count(message, words); n != 1 {
			return fmt.Errorf("the message has these words %d times: %s", n, message)
		}
		return nil
	})
	if took := time.Since(start); took > 30*time.Second {
		w.Errorf("the message came after %s", took)
	}
}

// awaitEvent waits for an event about a Memcached with this text.
func (w world) awaitEvent(name, text string) {
	w.Helper()
	w.eventually("record an event", func() error {
		var events eventsv1.EventList
		if err := w.List(w.ctx, &events, client.InNamespace(w.ns)); err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.Regarding.Kind == "Memcached" && e.Regarding.Name == name && strings.Contains(e.Note, text) {
				return nil
			}
		}
		return fmt.Errorf("no event says %q", text)
	})
}
