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
	"github.com/example/memcached-operator/tests/authority"
	"github.com/example/memcached-operator/tests/cluster"
	"github.com/example/memcached-operator/tests/harness"
	"github.com/example/memcached-operator/tests/monitoring"
)

const (
	// plain is under load and takes the faults; secured has TLS and passwords; the other two are for what only such
	// objects have.
	plain, secured, stalled, paused = "carts", "users", "pages", "old"

	maxConnections = 100
	memcacheds     = `
apiVersion: cache.example.com/v1alpha1
kind: Memcached
metadata: {name: ` + plain + `}
spec: {size: 2, workload: StatefulSet, memory: 16Mi, maxConnections: 100, metrics: {}}
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

// TestMonitoring asks a Prometheus that uses the project's files all that alerts and dashboard ask, and has alerts fire
// by real faults.
func TestMonitoring(t *testing.T) {
	w := newWorld(t)
	w.installMonitoring()
	certificate := w.certificate()
	passwords := map[string][]byte{"authfile": []byte("reader:one\nwriter:two\n")}
	w.secret("certificate", certificate)
	w.secret("passwords", passwords)
	// A Service that is somebody else's.
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
	t.Run("series", func(t *testing.T) { p.on(t).series() })
	t.Run("agent", func(t *testing.T) { p.on(t).documented() })
	quiet := func() error { return nil }
	p.fires("MemcachedStalled", stalled, true, quiet)
	harness.Must(t, w.Delete(t.Context(), taken))
	p.fires("MemcachedStalled", stalled, false, quiet)
	// The certificates of tests are valid for an hour.
	p.fires("MemcachedCertificateExpiresSoon", secured, true, quiet)
	// A wrong content stays out of force until the right one is back.
	wrong := map[string]map[string][]byte{"auth": {"authfile": []byte("nobody\n")}, "tls": maps.Clone(certificate)}
	wrong["tls"]["tls.key"] = w.certificate()["tls.key"]
	for _, secret := range []struct {
		label, name string
		right       map[string][]byte
	}{{"auth", "passwords", passwords}, {"tls", "certificate", certificate}} {
		pending := fmt.Sprintf("memcached_agent_secret_pending_seconds{namespace=%q,secret=%q}", w.ns, secret.label)
		w.secret(secret.name, wrong[secret.label])
		p.fires("MemcachedReloadFails", secured, true, quiet)
		p.holds(pending + " > 0")
		w.secret(secret.name, secret.right)
		p.fires("MemcachedReloadFails", secured, false, quiet)
		p.holds(pending + " == 0")
	}
	w.must(w.kubectl("delete", "secret", "passwords", "--namespace", w.ns))
	p.fires("MemcachedNotReady", secured, true, quiet)
	w.secret("passwords", passwords)
	p.fires("MemcachedNotReady", secured, false, quiet)

	const refused, down = "MemcachedConnectionsRefused", "MemcachedServerDown"
	p.fires(refused, plain, false, quiet)
	p.fires(down, plain, false, quiet)
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
	p.fires(refused, plain, true, quiet)
	p.fires(refused, plain, false, quiet)
	killed := time.Now()
	p.fires(down, plain, true, func() error {
		// The kubelet starts memcached again, each time later; there is nothing to kill while it waits.
		_ = w.cluster.KillContainer(t.Context(), w.ns, victim.Name, names.Container)
		return nil
	})
	p.fires(down, plain, false, quiet)
	w.until(plain, v1alpha1.ConditionReady)
	p.holds(fmt.Sprintf(`memcached_current_bytes{namespace=%q,pod=%q} / memcached_limit_bytes > 0.8`, w.ns, victim.Name))
	if *update {
		if t.Failed() {
			t.Fatal("only a run without a failure is drawn")
		}
		harness.Must(t, p.draw(begin, time.Now(), full, killed))
	}
}

// on is the same Prometheus in a subtest.
func (p prometheus) on(t *testing.T) prometheus {
	p.T = t
	return p
}

// certificate is the content of a Secret with a certificate of the secured Memcached, each time by another authority.
func (w world) certificate() map[string][]byte {
	w.Helper()
	a, err := authority.New()
	harness.Must(w, err)
	content, err := a.Secret("*."+secured+"."+w.ns+".svc", secured+"."+w.ns+".svc")
	harness.Must(w, err)
	return content
}

// secret writes a Secret of the secured Memcached. The kubelet brings the content to a pod that changes at once, to
// others within two minutes.
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

// targets waits until Prometheus has scraped the servers, with the labels that alerts need, and the operator, and fails
// to scrape nothing.
func (p prometheus) targets() {
	p.Helper()
	servers := fmt.Sprintf(`sort(sum by (memcached) (memcached_up{namespace=%q,pod=~".+",job="memcached"}))`, p.ns)
	operator := `group by (namespace) (up{job="memcached-operator-controller-manager-metrics-service"} == 1)`
	for _, target := range []struct{ query, want string }{
		{servers, fmt.Sprintf(`{memcached=%q} => 1, {memcached=%q} => 2`, secured, plain)},
		{operator, fmt.Sprintf(`{namespace=%q} => 1`, cluster.OperatorNamespace)},
		{`group(up{job="kube-state-metrics"})`, "{} => 1"},
		{`up == 0`, ""}, // the last one: before the first scrape nothing has failed
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

// series asks each expression of alerts and dashboard. All that they select must exist.
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
	asked := map[string]bool{}
	for _, expr := range expressions {
		_, err := p.ask(expr)
		harness.Must(p, err)
		selectors, err := monitoring.Selectors(expr)
		harness.Must(p, err)
		for _, selector := range selectors {
			if asked[selector.String()] {
				continue
			}
			asked[selector.String()] = true
			harness.Eventually(p, selector.String(), time.Minute, func() error {
				series, _, err := p.Series(p.Context(), []string{selector.String()}, time.Now().Add(-time.Hour), time.Now())
				if err == nil && len(series) == 0 {
					err = errors.New("no series")
				}
				return err
			})
		}
	}
	p.Logf("%d expressions answer, and what their %d selectors ask for exists", len(expressions), len(asked))
}

// address is that of memcached in a pod of the plain Memcached.
func address(pod corev1.Pod) string {
	return net.JoinHostPort(pod.Status.PodIP, "11211")
}

// load reads items of which some are looked for more often than others, and stores what it does not find, as an
// application does, until ctx ends. There are more of them than fit.
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
			_ = c.Set(&memcache.Item{Key: key, Value: value}) // a server that is down is what the test is about
		}
	}
}

// connections are open connections to a server.
type connections struct {
	address string
	list    []net.Conn
}

var errRefused = errors.New("memcached refuses a connection")

// add opens that many more connections, or as many as the server takes.
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
