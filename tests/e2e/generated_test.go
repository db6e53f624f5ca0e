package e2e

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/e2e-framework/pkg/features"
	"sigs.k8s.io/yaml"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/internal/testing/manifest"
	"github.com/example/memcached-operator/internal/testing/specs"
)

// TestGenerated creates a Memcached for each of some generated specs that the API server accepts. A real memcached runs
// and the Memcached becomes ready, or its status says what to change.
func TestGenerated(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 2 minutes; make specs CLUSTER=node tests the same with processes")
	}
	needRealPods(t)
	t.Parallel()
	schema, err := specs.NewSchema(manifest.Schema(t).Properties["spec"])
	if err != nil {
		t.Fatal(err)
	}
	testEnv.Test(t, features.New("generated specs").Assess("run, or say what to change", step(func(w world) {
		w.newCA().certificate("certificate", "localhost")
		w.passwords("passwords", "app:secret")
		var accepted []*unstructured.Unstructured
		for i, text := range schema.Random(1, 1000) {
			if mc := w.small(fmt.Sprintf("cache-%d", i), text); w.Create(w.ctx, mc.DeepCopy(), client.DryRunAll) == nil &&
				len(accepted) < batch {
				accepted = append(accepted, mc)
			}
		}
		outcomes := map[string]int{}
		for _, mc := range accepted {
			w.must(w.Create(w.ctx, mc))
		}
		for _, mc := range accepted {
			w.eventually(fmt.Sprintf("spec %v: become ready, or say what to change", mc.Object["spec"]), func() error {
				outcome, err := w.outcome(mc.GetName())
				if err == nil {
					outcomes[outcome]++
				}
				return err
			})
		}
		w.Logf("of %d specs: %v", len(accepted), outcomes)
		if outcomes[v1alpha1.ReasonReady] < len(accepted)/2 {
			w.Errorf("too few specs run to prove anything")
		}
	})).Feature())
}

// small returns a Memcached with a generated spec, changed so that it fits on a small node, uses Secrets that exist,
// and misses its deadline soon. It omits the image, which no registry has, and large pages, which not every node has.
func (w world) small(name, text string) *unstructured.Unstructured {
	w.Helper()
	spec, small := map[string]any{}, map[string]any{}
	w.must(yaml.Unmarshal([]byte(strings.ReplaceAll(text, "--enable-largepages", "--disable-cas")), &spec))
	w.must(yaml.Unmarshal([]byte(`{size: 1, `+smallServer+`, tls: {secretName: certificate}, auth: {secretName: passwords},
		proxy: {size: 1, threads: 1, memory: 68Mi, resources: {requests: {cpu: 1m}}},
		rollout: {minReadySeconds: 0, progressDeadlineSeconds: 60}}`), &small))
	for field, value := range small {
		in, isObject := spec[field].(map[string]any)
		optional := field == "tls" || field == "auth" || field == "proxy"
		switch inner, ok := value.(map[string]any); {
		case ok && isObject:
			for field, value := range inner {
				in[field] = value
			}
		case !optional:
			spec[field] = value
		}
	}
	delete(spec, "image")
	delete(spec, "maxItemSize")
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": v1alpha1.GroupVersion.String(),
		"kind": "Memcached", "metadata": map[string]any{"name": name, "namespace": w.ns}, "spec": spec}}
}

// outcome returns why a Memcached needs no more waiting: the reason of Ready, or of Stalled with a message.
func (w world) outcome(name string) (string, error) {
	mc, err := load[v1alpha1.Memcached](w, name)
	if err != nil {
		return "", err
	}
	stalled := meta.FindStatusCondition(mc.Status.Conditions, v1alpha1.ConditionStalled)
	switch {
	case w.ready(name) == nil:
		return v1alpha1.ReasonReady, nil
	case mc.Status.Phase == v1alpha1.PhasePaused:
		return v1alpha1.ReasonPaused, nil
	case stalled != nil && (stalled.Reason != v1alpha1.ReasonProgressDeadlineExceeded ||
		strings.Contains(stalled.Message, "; ")): // after the progress, the message names a cause
		w.Logf("%s is Stalled: %s", name, stalled.Message)
		return stalled.Reason, nil
	}
	return "", fmt.Errorf("%+v", mc.Status)
}
