package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/internal/testing/harness"
	"github.com/example/memcached-operator/internal/testing/testca"
	"github.com/example/memcached-operator/tests/cluster"
	"github.com/example/memcached-operator/tests/monitoring"
)

const (
	// plain is under load and gets the faults; secured has TLS and passwords; stalled and paused are in these states.
	plain, secured, stalled, paused = "carts", "users", "pages", "old"

	maxConnections = 100
	memcacheds     = `
apiVersion: cache.example.com/v1alpha1
kind: Memcached
metadata: {name: ` + plain + `}
spec:
  size: 2
  workload: StatefulSet
  memory: 16Mi
  maxConnections: 100
  metrics: {}
  proxy: {size: 1}
---
apiVersion: cache.example.com/v1alpha1
kind: Memcached
metadata: {name: ` + secured + `}
spec:
  size: 1
  workload: StatefulSet
  tls: {secretName: certificate, clientAuth: Require}
  auth: {secretName: passwords}
  metrics: {}
---
apiVersion: cache.example.com/v1alpha1
kind: Memcached
metadata: {name: ` + stalled + `}
spec: {size: 0}
---
apiVersion: cache.example.com/v1alpha1
kind: Memcached
metadata: {name: ` + paused + `}
spec: {size: 0, paused: true}
`
)

// TestMonitoring runs all expressions of alerts and dashboard on a Prometheus that uses the project's files, and causes
// real faults that must make alerts fire.
func TestMonitoring(t *testing.T) {
	w := newWorld(t)
	w.installMonitoring()
	certificate := w.certificate()
	passwords := map[string][]byte{"authfile": []byte("reader:one\nwriter:two\n")}
	w.secret("certificate", certificate)
	w.secret("passwords", passwords)
	// A foreign Service with the name of the stalled Memcached.
	taken := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: stalled},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	harness.Must(t, w.Create(t.Context(), taken))
	w.apply(memcacheds)
	w.until(plain, v1alpha1.ConditionReady)
	w.until(secured, v1alpha1.ConditionReady)
	w.until(stalled, v1alpha1.ConditionStalled)
	p := w.startPrometheus(w.startStateMetrics())
	begin := time.Now()

	p.targets()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	for _, pod := range w.pods(plain) {
		go load(ctx, address(pod))
	}
	nothing := func() error { return nil }
	p.fires("MemcachedStalled", stalled, true, nothing)
	harness.Must(t, w.Delete(t.Context(), taken))
	p.fires("MemcachedStalled", stalled, false, nothing)
	// The test's certificates are valid for an hour.
	p.fires("MemcachedCertificateExpiresSoon", secured, true, nothing)
	// Invalid content stays pending until the Secret is valid again.
	invalid := map[string]map[string][]byte{"auth": {"authfile": []byte("nobody\n")}, "tls": maps.Clone(certificate)}
	invalid["tls"]["tls.key"] = w.certificate()["tls.key"]
	for _, secret := range []struct {
		label, name string
		valid       map[string][]byte
	}{{"auth", "passwords", passwords}, {"tls", "certificate", certificate}} {
		pending := fmt.Sprintf("memcached_agent_secret_pending_seconds{namespace=%q,secret=%q}", w.ns, secret.label)
		w.secret(secret.name, invalid[secret.label])
		p.fires("MemcachedReloadFails", secured, true, nothing)
		p.holds(pending + " > 0")
		w.secret(secret.name, secret.valid)
		p.fires("MemcachedReloadFails", secured, false, nothing)
		p.holds(pending + " == 0")
	}
	w.must(w.kubectl("delete", "secret", "passwords", "--namespace", w.ns))
	p.fires("MemcachedNotReady", secured, true, nothing)
	w.secret("passwords", passwords)
	p.fires("MemcachedNotReady", secured, false, nothing)

	const refused, down = "MemcachedConnectionsRefused", "MemcachedServerDown"
	p.fires(refused, plain, false, nothing)
	p.fires(down, plain, false, nothing)
	victim := w.pods(plain)[0]
	open := connections{address: address(victim)}
	defer open.close()
	harness.Must(t, open.add(maxConnections/2))
	p.holds(fmt.Sprintf(`min_over_time(memcached_current_connections{namespace=%q,pod=%q}[5s]) > %d`, w.ns, victim.Name,
		maxConnections/2))
	full := time.Now()
	for range maxConnections {
		if err := open.add(1); !errors.Is(err, errRefused) {
			harness.Must(t, err)
		}
	}
	open.close()
	p.fires(refused, plain, true, nothing)
	p.fires(refused, plain, false, nothing)
	killed := time.Now()
	kill := func() error {
		// The kubelet restarts memcached after longer and longer delays, during which there is nothing to kill.
		_ = w.cluster.KillContainer(t.Context(), w.ns, victim.Name, names.Container)
		return nil
	}
	p.fires(down, plain, true, kill)
	p.fires("MemcachedProxyCannotReachServer", plain, true, kill)
	p.fires(down, plain, false, nothing)
	p.fires("MemcachedProxyCannotReachServer", plain, false, nothing)
	w.until(plain, v1alpha1.ConditionReady)
	p.holds(fmt.Sprintf(`memcached_current_bytes{namespace=%q,pod=%q} / memcached_limit_bytes > 0.8`, w.ns, victim.Name))
	// Some series exist only after a fault.
	t.Run("series", func(t *testing.T) { p.on(t).series() })
	t.Run("agent", func(t *testing.T) { p.on(t).documented() })
	if *update {
		if t.Failed() {
			t.Fatal("the figure is drawn only after a run without a failure")
		}
		harness.Must(t, p.draw(begin, time.Now(), full, killed))
	}
}

// on returns the same Prometheus for a subtest.
func (p prometheus) on(t *testing.T) prometheus {
	p.T = t
	return p
}

// certificate returns the content of a Secret with a certificate for the secured Memcached, each time from a new CA.
func (w world) certificate() map[string][]byte {
	w.Helper()
	ca, err := testca.New()
	harness.Must(w, err)
	content, err := ca.Secret("*."+secured+"."+w.ns+".svc", secured+"."+w.ns+".svc")
	harness.Must(w, err)
	return content
}

// secret writes a Secret of the secured Memcached. It annotates the pods, so that the kubelet refreshes their volumes
// at once instead of within two minutes.
func (w world) secret(name string, content map[string][]byte) {
	w.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}}
	_, err := controllerutil.CreateOrUpdate(w.Context(), w, secret, func() error {
		secret.Data = content
		return nil
	})
	harness.Must(w, err)
	w.must(w.kubectl("annotate", "pods", "--all", "--namespace", w.ns, "--overwrite", "changed="+time.Now().String()))
}

// targets waits until Prometheus has scraped all servers and proxies, with the labels that alerts need, and the
// operator, without a failed scrape.
func (p prometheus) targets() {
	p.Helper()
	const up = `sort(sum by (memcached, memcached_proxy) (memcached_up{namespace=%q,pod=~".+",job="memcached",%s!=""}))`
	operator := `group by (namespace) (up{job="memcached-operator-controller-manager-metrics-service"} == 1)`
	for _, target := range []struct{ query, want string }{
		{fmt.Sprintf(up, p.ns, "memcached"), fmt.Sprintf(`{memcached=%q} => 1, {memcached=%q} => 2`, secured, plain)},
		{fmt.Sprintf(up, p.ns, "memcached_proxy"), fmt.Sprintf(`{memcached_proxy=%q} => 1`, plain)},
		{operator, fmt.Sprintf(`{namespace=%q} => 1`, cluster.OperatorNamespace)},
		{`group(up{job="kube-state-metrics"})`, "{} => 1"},
		{`up == 0`, ""}, // last, because there is no failed scrape before the first scrape
	} {
		query, want := target.query, target.want
		harness.Eventually(p, query, harness.Patience, func() error {
			value, err := p.ask(query)
			if err != nil {
				return err
			}
			vector, _ := value.(model.Vector)
			samples := make([]string, len(vector))
			for i, s := range vector {
				samples[i] = fmt.Sprintf("%s => %s", s.Metric, s.Value)
			}
			if got := strings.Join(samples, ", "); got != want {
				return fmt.Errorf("%s, want %s", got, want)
			}
			return nil
		})
	}
}

// series queries each expression of alerts and dashboard. Every selector must match a series.
func (p prometheus) series() {
	var expressions []string
	groups, err := monitoring.Alerts(p.root)
	harness.Must(p, err)
	for _, g := range groups {
		for _, rule := range g.Rules {
			expressions = append(expressions, rule.Expr.String())
		}
	}
	_, panels, err := monitoring.Dashboard(p.root)
	harness.Must(p, err)
	for _, panel := range panels {
		for _, query := range panel.Queries {
			expressions = append(expressions, monitoring.Expression(query.Expr, rateInterval))
		}
	}
	checked := map[string]bool{}
	for _, expr := range expressions {
		_, err := p.ask(expr)
		harness.Must(p, err)
		selectors, err := monitoring.Selectors(expr)
		harness.Must(p, err)
		for _, selector := range selectors {
			if checked[selector.String()] {
				continue
			}
			checked[selector.String()] = true
			harness.Eventually(p, selector.String(), time.Minute, func() error {
				series, _, err := p.Series(p.Context(), []string{selector.String()}, time.Now().Add(-time.Hour), time.Now())
				if err == nil && len(series) == 0 {
					err = errors.New("no series")
				}
				return err
			})
		}
	}
	p.Logf("%d expressions succeed, and each of their %d selectors matches a series", len(expressions), len(checked))
}

// address returns the address of memcached in a pod.
func address(pod corev1.Pod) string {
	return net.JoinHostPort(pod.Status.PodIP, "11211")
}

// load reads items, some more often than others, and writes the ones that it misses, until ctx ends. Not all items fit
// into the cache.
func load(ctx context.Context, address string) {
	const keys, valueSize = 4000, 10_000
	c := memcache.New(address)
	c.Timeout = time.Second
	defer c.Close()
	zipf := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.1, 10, keys-1)
	value := make([]byte, valueSize)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		key := strconv.FormatUint(zipf.Uint64(), 10)
		if _, err := c.Get(key); errors.Is(err, memcache.ErrCacheMiss) {
			_ = c.Set(&memcache.Item{Key: key, Value: value}) // the test stops servers, so this may fail
		}
	}
}

// connections are open connections to a server.
type connections struct {
	address string
	list    []net.Conn
}

var errRefused = errors.New("memcached refuses a connection")

// add opens this number of further connections, until the server refuses one.
func (c *connections) add(count int) error {
	for range count {
		conn, err := net.DialTimeout("tcp", c.address, time.Second)
		if err != nil {
			return err
		}
		c.list = append(c.list, conn)
		if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
			return err
		}
		_, sent := conn.Write([]byte("version\r\n"))
		if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.HasPrefix(line, "VERSION") {
			return fmt.Errorf("%w: %q, %w", errRefused, line, errors.Join(sent, err))
		}
	}
	return nil
}

func (c *connections) close() {
	for _, conn := range c.list {
		conn.Close()
	}
	c.list = nil
}
