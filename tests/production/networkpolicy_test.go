package production

import (
	"fmt"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/internal/testing/harness"
)

// clients are two pods: the policy admits friend, but not stranger.
const clients = `apiVersion: v1
kind: Pod
metadata: {name: friend, labels: {role: shop}}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: client, image: "busybox:1.36", command: [sleep, infinity]}]
---
apiVersion: v1
kind: Pod
metadata: {name: stranger}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: client, image: "busybox:1.36", command: [sleep, infinity]}]
`

// TestNetworkPolicy: real clients can connect only as the policy says. It tries a policy, the same with a proxy, a
// policy that admits nobody, and no policy.
func TestNetworkPolicy(t *testing.T) {
	stop, err := testCluster.NetworkPolicies(t.Context())
	harness.Must(t, err)
	t.Cleanup(func() { harness.Must(t, stop()) })
	w := newWorld(t)
	w.apply(clients + `---
apiVersion: cache.example.com/v1alpha1
kind: Memcached
metadata: {name: cache}
spec: {size: 2, workload: StatefulSet, metrics: {}, networkPolicy: {from: [{podSelector: {matchLabels: {role: shop}}}]}}
`)
	w.ready("cache")
	_, err = w.kubectl("wait", "--for=condition=Ready", "pod/friend", "pod/stranger", "--timeout=1m")
	harness.Must(t, err)
	w.mustReach("friend", names.Servers, true)
	w.mustReach("stranger", names.Servers, false)

	w.mustReadMetrics("stranger", true)
	w.merge(`{"networkPolicy": {"metricsFrom": [{"podSelector": {"matchLabels": {"role": "shop"}}}]}}`)
	w.mustReadMetrics("friend", true)
	w.mustReadMetrics("stranger", false)

	w.merge(`{"proxy": {"size": 1}}`)
	w.ready("cache")
	w.mustReach("friend", names.Proxies, true)
	w.mustReach("stranger", names.Proxies, false)
	w.mustReach("friend", names.Servers, false)
	for _, change := range []string{
		`{"size": 3}`,        // proxies report to the operator, and one moves items
		`{"memory": "96Mi"}`, // the agents of servers report
		`{"threads": 2}`,     // the operator lets each server stop once its items have moved
	} {
		w.merge(change)
		w.ready("cache")
	}

	w.merge(`{"proxy": null, "networkPolicy": {"from": []}}`)
	w.mustReach("friend", names.Servers, false)
	// The kubelet's probes must be admitted, or the new server would never become ready.
	replaced := w.pods("cache", names.Servers)[0]
	_, err = w.kubectl("delete", "pod", replaced.Name)
	harness.Must(t, err)
	w.ready("cache")
	for _, pod := range w.pods("cache", names.Servers) {
		if pod.UID == replaced.UID {
			t.Errorf("%s was not replaced", pod.Name)
		}
	}
	w.mustReach("friend", names.Servers, false)

	w.merge(`{"networkPolicy": null}`)
	w.mustReach("friend", names.Servers, true)
	w.mustReach("stranger", names.Servers, true)
	harness.Eventually(t, "delete the policy", harness.Patience, func() error {
		var policies networkingv1.NetworkPolicyList
		err := w.List(w.Context(), &policies, client.InNamespace(w.ns))
		if err == nil && len(policies.Items) > 0 {
			err = fmt.Errorf("%s is left", policies.Items[0].Name)
		}
		return err
	})
}

// merge applies a merge patch to the spec of the Memcached.
func (w world) merge(spec string) {
	w.Helper()
	_, err := w.kubectl("patch", "memcached", "cache", "--type=merge", "--patch", `{"spec": `+spec+`}`)
	harness.Must(w, err)
}

// mustReach waits until a pod can use all servers or proxies, or can connect to none of them.
func (w world) mustReach(pod string, component names.Component, allowed bool) {
	w.Helper()
	w.mustConnect(pod, component, allowed, `printf 'set key 0 0 5\r\nvalue\r\nget key\r\nquit\r\n' | nc -w 2 %s 11211`,
		"STORED\r\nVALUE key 0 5\r\nvalue\r\nEND\r\n")
}

// mustReadMetrics waits until a pod can read the metrics of all servers, or can connect to none of them.
func (w world) mustReadMetrics(pod string, allowed bool) {
	w.Helper()
	w.mustConnect(pod, names.Servers, allowed, `printf 'GET /metrics HTTP/1.0\r\n\r\n' | nc -w 2 %s 9150`,
		"\nmemcached_up 1\n")
}

// mustConnect waits until a command in a pod gets this answer from every address, or cannot connect to any.
func (w world) mustConnect(pod string, component names.Component, allowed bool, command, answer string) {
	w.Helper()
	for _, server := range w.pods("cache", component) {
		harness.Eventually(w, pod+" to "+server.Name, harness.Patience, func() error {
			out, err := w.kubectl("exec", pod, "--", "sh", "-c", fmt.Sprintf(command, server.Status.PodIP))
			switch {
			case allowed && err == nil && !strings.Contains(out, answer):
				return fmt.Errorf("the answer is %q", out)
			case allowed:
				return err
			case err == nil:
				return fmt.Errorf("connected, with the answer %q", out)
			case !strings.Contains(err.Error(), "timed out"):
				return err
			}
			return nil
		})
	}
}
