// Package cache measures how many keys a cache keeps while its servers are replaced, lost, added and removed. It uses
// real memcached on a cluster of type node or kind, and a read-through client with consistent hashing.
package cache

import (
	"context"
	"errors"
	"flag"
	"net"
	"os"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/internal/testing/harness"
	"github.com/example/memcached-operator/tests/cluster"
)

var update = flag.Bool("update", false, "write the results into results.md, and the plot into docs/")

// world is the cluster and a namespace of the test.
type world struct {
	*testing.T
	client.Client
	cluster   *cluster.Cluster
	namespace string
	resolver  *net.Resolver
}

func TestWhatACacheKeeps(t *testing.T) {
	w := newWorld(t)
	operator := w.cluster.Operator(os.Getenv("IMG"))
	t.Cleanup(func() {
		if operator.DefaultImage != "" {
			operator.DefaultImage = ""
			harness.Must(t, operator.Start(context.Background(), 1))
		}
	})
	certificates, err := newSecrets(w)
	harness.Must(t, err)
	first, second := plain(w, operator), certificates.rotations()
	all := slices.Concat(w.group(variants, first, credentials{}),
		w.group(secured(variants), second, certificates.credentials()))
	t.Log("\n" + tables(all))
	if *update {
		if t.Failed() || len(all) < len(first)+len(second) {
			t.Fatal("only a complete run without a failure is published")
		}
		harness.Must(t, publish(resultsPage, hitRatioSVG, all))
	}
}

// group runs scenarios, one after the other, for all variants at the same time.
func (w world) group(variants []variant, scenarios []scenario, c credentials) (rows []*row) {
	w.Helper()
	ctx, cancel := context.WithCancel(w.Context())
	defer cancel()
	subjects := make([]*subject, len(variants))
	each := func(t *testing.T, do func(i int, s *subject) error) {
		t.Helper()
		errs := make([]error, len(subjects))
		var all sync.WaitGroup
		for i, s := range subjects {
			all.Go(func() { errs[i] = do(i, s) })
		}
		all.Wait()
		harness.Must(t, errors.Join(errs...))
	}
	for i, v := range variants {
		subjects[i] = &subject{variant: v, reader: newReader(w.resolver, c), api: w.Client,
			namespace: w.namespace, resolver: w.resolver}
	}
	each(w.T, func(_ int, s *subject) error { return s.create(ctx) })
	for _, c := range scenarios {
		w.Run(c.name, func(t *testing.T) {
			r := &row{scenario: c, cells: make([]*measured, len(subjects))}
			each(t, func(_ int, s *subject) error { return s.prepare(ctx, c) })
			each(t, func(i int, s *subject) (err error) {
				r.cells[i], err = s.run(ctx, c)
				return err
			})
			for i, m := range r.cells {
				t.Logf("%-24s %s", variants[i].title, m)
				for _, wrong := range m.wrong() {
					t.Errorf("%s: %s", variants[i].title, wrong)
				}
			}
			rows = append(rows, r)
		})
	}
	harness.Must(w, w.DeleteAllOf(ctx, &v1alpha1.Memcached{}, client.InNamespace(w.namespace)))
	return rows
}

// newWorld connects to the cluster, whose servers this machine can reach.
func newWorld(t *testing.T) world {
	t.Helper()
	if !cluster.RealPods(os.Getenv("CLUSTER")) {
		t.Skip("needs real pods: make cache-e2e CLUSTER=node, or kind")
	}
	w := world{T: t}
	var err error
	w.cluster, w.Client, err = cluster.Connect(os.Getenv("CLUSTER"))
	harness.Must(t, err)
	dns := &corev1.Service{}
	harness.Must(t, w.Get(t.Context(), client.ObjectKey{Namespace: "kube-system", Name: "kube-dns"}, dns))
	w.resolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, net.JoinHostPort(dns.Spec.ClusterIP, "53"))
	}}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "cache-",
		Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}}
	harness.Must(t, w.Create(t.Context(), ns))
	w.namespace = ns.Name
	t.Cleanup(func() { harness.Must(t, w.Delete(context.Background(), ns)) })
	return w
}
