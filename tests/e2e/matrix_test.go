package e2e

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// batch is how many Memcacheds of one server are started at the same time on a small node.
const batch = 22

// optional are the fields that are combined with each other, and the values that each may have; the empty one leaves
// the field out.
var optional = [][]string{
	{"", "workload: StatefulSet"},
	{"", "serverAddresses: DNS", "serverAddresses: ClusterIP"},
	{"", "tls: {secretName: certificate}", "tls: {secretName: certificate, clientAuth: Require, minVersion: '1.3'}"},
	{"", "auth: {secretName: passwords}"},
	{"", "metrics: {}"},
	{"", "networkPolicy: {from: [{ipBlock: {cidr: 0.0.0.0/0}}]}"},
	{"", "proxy: {size: 1, threads: 1, memory: 68Mi}"},
}

// others are fields of which each combination has one, by turns.
var others = []string{"", "containerPort: 12345", "extraArgs: [--disable-cas, --extended=no_lru_crawler]",
	"maxItemSize: 512Ki", "rollout: {minReadySeconds: 1}", "disruptionBudget: {maxUnavailable: 0}",
	"image: docker.io/library/memcached:1.6"}

// TestMatrix makes each combination of the optional fields. It starts, and a client is served, or the API server
// refuses it: there is no third outcome.
func TestMatrix(t *testing.T) {
	if under.Kind != "node" {
		t.Skip("this needs real pods that can be reached")
	}
	const host = "cache.example.com"
	var specs []string
	for i, spec := range combinations(optional) {
		spec = append(slices.Clone(spec), frugal)
		if other := others[i%len(others)]; other != "" {
			spec = append(spec, other)
		}
		specs = append(specs, "{"+strings.Join(spec, ", ")+"}")
	}
	var accepted []string
	var ours issuer
	feature := features.New("all combinations of optional fields").
		Setup(step(func(w world) {
			ours = w.newIssuer()
			ours.certificate("certificate", host)
			w.passwords("passwords", "user:password")
		})).
		Assess("are accepted or refused as the documentation says", step(func(w world) {
			for _, spec := range specs {
				has := func(field string) bool { return strings.Contains(spec, field) }
				refuse := !has("StatefulSet") && (has("ClusterIP") || has("proxy")) || has("proxy") && (has("tls") || has("auth"))
				switch err := w.Create(w.ctx, w.parse("cache", spec), client.DryRunAll); {
				case err == nil && !refuse:
					accepted = append(accepted, spec)
				case err == nil || !refuse || !apierrors.IsInvalid(err):
					w.Errorf("%s: %v", spec, err)
				}
			}
			w.Logf("%d of %d accepted", len(accepted), len(specs))
		}))
	feature.Assess("serve clients", step(func(w world) {
		own := ours.issue("client")
		for first := 0; first < len(accepted); first += batch {
			for i, spec := range accepted[first:min(first+batch, len(accepted))] {
				w.make(fmt.Sprintf("cache-%d", first+i), spec)
			}
			for i, spec := range accepted[first:min(first+batch, len(accepted))] {
				name := fmt.Sprintf("cache-%d", first+i)
				w.awaitReady(name)
				c := caller{address: w.entry(name)}
				if strings.Contains(spec, "tls") {
					c.tls = ours.Trust(host, own)
				}
				if strings.Contains(spec, "auth") {
					c.login = "user password"
				}
				w.stores(spec, c)
			}
			w.must(w.DeleteAllOf(w.ctx, &v1alpha1.Memcached{}, client.InNamespace(w.ns))) // they end while the next start
		}
	}))
	testEnv.Test(t, feature.Feature())
}

// combinations are all choices of one of each list, without the empty ones.
func combinations(lists [][]string) [][]string {
	all := [][]string{nil}
	for _, list := range lists {
		var longer [][]string
		for _, chosen := range all {
			for _, value := range list {
				if value == "" {
					longer = append(longer, chosen)
				} else {
					longer = append(longer, append(slices.Clone(chosen), value))
				}
			}
		}
		all = longer
	}
	return all
}

// entry is where clients of a Memcached of one server connect to: the address of the proxy, if there is one, or that of
// the server.
func (w world) entry(name string) string {
	w.Helper()
	proxy, err := load[corev1.Service](w, name+"-proxy")
	if err == nil {
		return net.JoinHostPort(proxy.Spec.ClusterIP, strconv.Itoa(int(proxy.Spec.Ports[0].Port)))
	}
	if !apierrors.IsNotFound(err) {
		w.must(err)
	}
	return w.addressOf(name)
}
