package e2e

import (
	"context"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/example/memcached-operator/agent/contract"
)

// TestIPFamily: servers, proxies and agents are reached by addresses of the cluster's IP family, which is IPv6 with
// IP_FAMILY=ipv6, and servers by their names too.
func TestIPFamily(t *testing.T) {
	needRealPods(t)
	const spec = `size: 2, workload: StatefulSet, serverAddresses: ClusterIP, metrics: {}, ` + smallServer
	testEnv.Test(t, features.New("addresses of the IP family").
		Setup(step(func(w world) {
			w.createSpec("direct", `{`+spec+`}`)
			w.createSpec("proxied", `{`+spec+`, proxy: {size: 1, threads: 1, memory: 68Mi}}`)
			w.awaitReady("direct", "proxied")
		})).
		Assess("lead to servers and agents", step(func(w world) {
			direct := w.memcached("direct").Status.Servers
			all := slices.Clone(direct)
			for _, server := range contract.ParseServers(get[corev1.ConfigMap](w, "proxied-proxy").Data).After {
				all = append(all, server.Address)
			}
			if len(all) != 4 {
				w.Errorf("the servers are %v, want two of each Memcached", all)
			}
			for _, address := range all {
				if parsed, err := netip.ParseAddrPort(address); err != nil || !isOfFamily(parsed.Addr()) {
					w.Errorf("the address %s is of another family: %v", address, err)
				}
			}
			for _, address := range direct {
				w.mustStore(address, memcachedClient{address: address})
			}
			address := w.lookUp("direct-0.direct")
			w.mustStore(address, memcachedClient{address: address})
			w.mustStoreKeys("proxied")
			w.awaitSeries("direct", "memcached_up", is(1))
			w.awaitSeriesOf("proxied", "proxy", "memcached_up", is(1))
		})).
		Assess("let items move", step(func(w world) {
			w.merge("proxied", `{"size":3}`)
			w.awaitReady("proxied")
			sum := 0
			for _, items := range w.items("proxied") {
				sum += items
			}
			if sum != keys {
				w.Errorf("%d items of %d are left", sum, keys)
			}
		})).Feature())
}

func isOfFamily(ip netip.Addr) bool { return ip.Unmap().Is6() == (os.Getenv("IP_FAMILY") == "ipv6") }

// lookUp returns the address of a server, whose name in its namespace is known to the DNS of the cluster.
func (w world) lookUp(name string) string {
	w.Helper()
	var dns corev1.Service
	w.must(w.Get(w.ctx, client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: "kube-dns"}, &dns))
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, net.JoinHostPort(dns.Spec.ClusterIP, "53"))
	}}
	ips, err := resolver.LookupNetIP(w.ctx, "ip", name+"."+w.ns+".svc.cluster.local.")
	w.must(err)
	if len(ips) != 1 || !isOfFamily(ips[0]) {
		w.Fatalf("the name %s has the addresses %v", name, ips)
	}
	return netip.AddrPortFrom(ips[0], 11211).String()
}
