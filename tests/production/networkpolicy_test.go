package production

import (
	"fmt"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/tests/harness"
)

// clients are pods, one of which the policy knows.
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

// TestNetworkPolicy has real clients try to reach servers: with a policy, with a proxy too, with a policy that lets
// nobody in, and with none.
func TestNetworkPolicy(t *testing.T) {
	stop, err := under.NetworkPolicies(t.Context())
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
	w.reaches("friend", names.Servers, true)
	w.reaches("stranger", names.Servers, false)

	w.reads("stranger", true)
	w.merge(`{"networkPolicy": {"metricsFrom": [{"podSelector": {"matchLabels": {"role": "shop"}}}]}}`)
	w.reads("friend", true)
	w.reads("stranger", false)

	w.merge(`{"proxy": {"size": 1}}`)
	w.ready("cache")
	w.reaches("friend", names.Proxies, true)
	w.reaches("stranger", names.Proxies, false)
	w.reaches("friend", names.Servers, false)

	w.merge(`{"proxy": null, "networkPolicy": {"from": []}}`)
	w.reaches("friend", names.Servers, false)
	// The kubelet's probes are let through, or the new server would never be ready.
	replaced := w.pods("cache", names.Servers)[0]
	_, err = w.kubectl("delete", "pod", replaced.Name)
	harness.Must(t, err)
	w.ready("cache")
	for _, pod := range w.pods("cache", names.Servers) {
		if pod.UID == replaced.UID {
			t.Errorf("%s was not replaced", pod.Name)
		}
	}
	w.reaches("friend", names.Servers, false)

	w.merge(`{"networkPolicy": null}`)
	w.reaches("friend", names.Servers, true)
	w.reaches("stranger", names.Servers, true)
	harness.Eventually(t, "delete the policy", harness.Patience, func() error {
		var policies networkingv1.NetworkPolicyList
		err := w.List(w.Context(), &policies, client.InNamespace(w.ns))
		if err == nil && len(policies.Items) > 0 {
			err = fmt.Errorf("%s is left", policies.Items[0].Name)
		}
		return err
	})
}

// merge patches the spec of the Memcached.
func (w world) merge(spec string) {
	w.Helper()
	_, err := w.kubectl("patch", "memcached", "cache", "--type=merge", "--patch", `{"spec": `+spec+`}`)
	harness.Must(w, err)
}

// reaches waits until a pod can use every server, or every proxy, or cannot connect to any.
func (w world) reaches(pod string, component names.Component, allowed bool) {
	w.Helper()
	w.tries(pod, component, allowed, `printf 'set key 0 0 5\r\nvalue\r\nget key\r\nquit\r\n' | nc -w 2 %s 11211`,
		"STORED\r\nVALUE key 0 5\r\nvalue\r\nEND\r\n")
}

// reads waits until a pod can read the metrics of every server, or cannot connect to any.
func (w world) reads(pod string, allowed bool) {
	w.Helper()
	w.tries(pod, names.Servers, allowed, `printf 'GET /metrics HTTP/1.0\r\n\r\n' | nc -w 2 %s 9150`,
		"\nmemcached_up 1\n")
}

// tries waits until a command in a pod gets a certain answer of every address, or cannot connect to any.
func (w world) tries(pod string, component names.Component, allowed bool, command, answer string) {
	w.Helper()
	for _, server := range w.pods("cache", component) {
		harness.Eventually(w, pod+" to "+server.Name, harness.Patience, func() error {
			out, err := w.kubectl("exec", pod, "--", "sh", "-c", fmt.Sprintf(command, server.Status.PodIP))
			switch {
			case allowed && err == nil && !strings.Contains(out, answer):
				return fmt.Errorf("answered %q", out)
			case allowed:
				return err
			case err == nil:
				return fmt.Errorf("connected, and was answered %q", out)
			case !strings.Contains(err.Error(), "timed out"):
				return err
			}
			return nil
		})
	}
}
