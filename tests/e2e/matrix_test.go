package e2e

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// batch is the number of Memcacheds with one server that start at the same time on a small node.
const batch = 22

// optional are the fields that are combined with each other, with their values. An empty value omits the field.
var optional = [][]string{
	{"", "workload: StatefulSet"},
	{"", "serverAddresses: DNS", "serverAddresses: ClusterIP"},
	{"", "tls: {secretName: certificate}", "tls: {secretName: certificate, clientAuth: Require, minVersion: '1.3'}"},
	{"", "auth: {secretName: passwords}"},
	{"", "metrics: {port: 9999}"},
	{"", "networkPolicy: {from: [{ipBlock: {cidr: 0.0.0.0/0}}]}"},
	{"", "proxy: {size: 1, threads: 1, memory: 68Mi}"},
}

// others are further fields. Each combination has one of them, in turn.
var others = []string{"", "containerPort: 12345", "extraArgs: [--disable-cas, --extended=no_lru_crawler]",
	"maxItemSize: 512Ki", "rollout: {minReadySeconds: 1}", "disruptionBudget: {maxUnavailable: 0}",
	"disruptionBudget: {minAvailable: 50%}", "disruptionBudget: {policy: None}",
	"labels: {team: shop}", "annotations: {example.com/note: a}", "agent: {resources: {requests: {cpu: 6m}}}",
	"service: {labels: {team: shop}, ipFamilyPolicy: PreferDualStack}",
	"image: docker.io/library/memcached:1.6", "discovery: {}"}

// TestMatrix creates a Memcached for each combination of the optional fields. Either the API server refuses it, as
// documented, or it becomes ready and serves a client, and metrics; with -short, some of them serve.
func TestMatrix(t *testing.T) {
	needRealPods(t)
	t.Parallel()
	const host = "cache.example.com"
	var specs []string
	for i, spec := range combinations(optional) {
		spec = append(slices.Clone(spec), smallServer)
		if other := others[i%len(others)]; other != "" {
			spec = append(spec, other)
		}
		specs = append(specs, "{"+strings.Join(spec, ", ")+"}")
	}
	var accepted []string
	var ours testCA
	feature := features.New("all combinations of optional fields").
		Setup(step(func(w world) {
			ours = w.newCA()
			ours.certificate("certificate", host)
			w.passwords("passwords", "user:"+password)
		})).
		Assess("are accepted or refused as the documentation says", step(func(w world) {
			for _, spec := range specs {
				has := func(field string) bool { return strings.Contains(spec, field) }
				hasList := has("proxy") || has("discovery")
				invalid := !has("StatefulSet") && (has("ClusterIP") || hasList) || hasList && (has("tls") || has("auth"))
				switch err := w.Create(w.ctx, w.parse("cache", spec), client.DryRunAll); {
				case err == nil && !invalid:
					accepted = append(accepted, spec)
				case err == nil || !invalid || !apierrors.IsInvalid(err):
					w.Errorf("%s: %v", spec, err)
				}
			}
			w.Logf("%d of %d accepted", len(accepted), len(specs))
		}))
	feature.Assess("serve clients", step(func(w world) {
		own := ours.issue("client")
		if testing.Short() {
			accepted = every(7, accepted) // these have all values of the optional fields
		}
		for first := 0; first < len(accepted); first += batch {
			for i, spec := range accepted[first:min(first+batch, len(accepted))] {
				w.createSpec(fmt.Sprintf("cache-%d", first+i), spec)
			}
			for i, spec := range accepted[first:min(first+batch, len(accepted))] {
				name := fmt.Sprintf("cache-%d", first+i)
				w.awaitReady(name)
				c := memcachedClient{address: w.clientAddress(name)}
				if strings.Contains(spec, "tls") {
					c.tls = ours.Trust(host, own)
				}
				if strings.Contains(spec, "auth") {
					c.login = "user " + password
				}
				w.mustStore(spec, c)
				if strings.Contains(spec, "metrics") {
					w.mustServeMetrics(name, spec)
				}
			}
			w.must(w.DeleteAllOf(w.ctx, &v1alpha1.Memcached{}, client.InNamespace(w.ns))) // deleted while the next batch starts
		}
	}))
	testEnv.Test(t, feature.Feature())
}

// mustServeMetrics fails unless the agent of a server serves metrics of memcached, and of the Secrets in the spec.
func (w world) mustServeMetrics(name, spec string) {
	w.Helper()
	w.awaitSeries(name, "memcached_up", is(1))
	w.awaitSeries(name, "memcached_max_connections", is(66)) // two of them for the agent
	if strings.Contains(spec, "auth") {
		w.awaitSeries(name, "memcached_agent_users", is(1))
	}
	if strings.Contains(spec, "tls") {
		w.awaitSeries(name, "memcached_agent_certificate_expires_in_seconds", func(v float64) bool {
			return v > 0 && v < (24*time.Hour).Seconds()
		})
	}
}

// every returns each nth of all.
func every(n int, all []string) []string {
	var some []string
	for i := 0; i < len(all); i += n {
		some = append(some, all[i])
	}
	return some
}

// combinations returns all choices of one value from each list, without the empty values.
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

// clientAddress returns the address for clients of a Memcached with one server: that of the proxy, if there is one, or
// that of the server.
func (w world) clientAddress(name string) string {
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
