package e2e

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/internal/testing/harness"
)

// reloadTime is how long a changed Secret may take to become active. Without the operator's annotation, the kubelet
// alone needs a minute or more.
const reloadTime = 15 * time.Second

// TestRotation changes the Secrets of servers while clients use them.
func TestRotation(t *testing.T) {
	needRealPods(t)
	t.Parallel()
	const host = "svc.example.com"
	stay, first, second := "stay:"+rand.Text(), "app:"+rand.Text(), "app:"+rand.Text()
	var ours, next testCA
	var clients []memcachedClient
	var before map[string]string
	testEnv.Test(t, features.New("rotation").
		Setup(step(func(w world) {
			ours, next = w.newCA(), w.newCA()
			w.certificates(ours, host, ours)
			w.passwords("passwords", stay, first)
			w.createSpec("cache", `{size: 2, workload: StatefulSet, tls: {secretName: certificate, clientAuth: Require},
				auth: {secretName: passwords}, metrics: {}, `+smallServer+`}`)
			w.awaitReady("cache")
			before = w.uids("cache")
			own := ours.issue("client")
			w.eachServer("cache", func(address string) {
				clients = append(clients, memcachedClient{address: address, tls: ours.Trust(host, own), login: loginOf(stay)})
			})
		})).
		Assess("of a certificate loses nothing", step(func(w world) {
			w.mustNotDisturb("cache", clients, func() {
				leaf := w.certificates(ours, host, ours)
				w.awaitReload("the certificate", func(c memcachedClient) error { return presents(c, leaf) }, clients...)
			})
		})).
		Assess("of a password loses nothing", step(func(w world) {
			w.mustNotDisturb("cache", clients, func() {
				w.passwords("passwords", stay, second)
				w.awaitReload("the password", func(c memcachedClient) error {
					c.login = loginOf(second)
					return c.store()
				}, clients...)
			})
			for _, c := range clients {
				c.login = loginOf(first)
				w.mustRefuse("the old password", wrongPassword, c)
			}
		})).
		Assess("of both at once, with an additional CA, loses nothing", step(func(w world) {
			both := clone(clients, func(c *memcachedClient) { c.tls = trust(host, c.tls.Certificates, ours, next) })
			w.mustNotDisturb("cache", both, func() {
				w.certificates(ours, host, ours, next)
				w.passwords("passwords", stay, first)
				w.awaitReload("the second CA", func(c memcachedClient) error {
					c.tls, c.login = trust(host, []tls.Certificate{next.issue("client")}, ours, next), loginOf(first)
					return c.store()
				}, both...)
				leaf := w.certificates(next, host, ours, next)
				w.awaitReload("a certificate of the second CA", func(c memcachedClient) error { return presents(c, leaf) }, both...)
			})
		})).
		Assess("to invalid content changes nothing", step(func(w world) {
			trusting := clone(clients, func(c *memcachedClient) { c.tls = trust(host, c.tls.Certificates, ours, next) })
			otherKey, err := ours.Secret(host)
			w.must(err)
			valid := get[corev1.Secret](w, "certificate")
			leaf := valid.Data["tls.crt"]
			w.mustNotDisturb("cache", trusting, func() {
				mixed := maps.Clone(valid.Data)
				mixed["tls.key"] = otherKey["tls.key"]
				w.secret("certificate", mixed)
				w.awaitCondition("cache", v1alpha1.ConditionStalled, v1alpha1.ReasonInvalid, "tls.key is not the private key of")
				w.awaitRefusedByAgents("cache", "tls")
				w.passwords("passwords", stay, "without a colon "+password)
				w.secret("certificate", valid.Data)
				w.awaitCondition("cache", v1alpha1.ConditionStalled, v1alpha1.ReasonInvalid, "line 2 of authfile must be a user")
				w.awaitRefusedByAgents("cache", "auth")
				w.awaitSeries("cache", `memcached_agent_secret_pending_seconds{secret="tls"}`, is(0))
				w.mustKubectl("delete", "secret", "passwords")
				w.awaitCondition("cache", v1alpha1.ConditionReconciling, v1alpha1.ReasonProgressingWithRetry, "SecretNotFound")
				for _, c := range trusting {
					w.must(presents(c, leaf))
				}
				w.passwords("passwords", stay, first)
				w.awaitReady("cache")
			})
		})).
		Assess("is not disturbed by a killed agent", step(func(w world) {
			trusting := clone(clients, func(c *memcachedClient) { c.tls = trust(host, c.tls.Certificates, ours, next) })
			w.mustNotDisturb("cache", trusting, func() {
				w.killAgent("cache")
				w.awaitSeries("cache", "memcached_up", is(1))
			})
		})).
		Assess("that removes a CA replaces the servers", step(func(w world) {
			w.mustNotReplace(before, w.uids("cache"))
			w.certificates(next, host, next)
			w.eventually("replace the servers", func() error { return w.replaced(before, "cache") })
			w.awaitReady("cache")
			w.eachServer("cache", func(address string) {
				c := memcachedClient{address: address, tls: next.Trust(host, next.issue("client")), login: loginOf(stay)}
				w.mustStore("a client of the new CA", c)
				c.tls = next.Trust(host)
				oldCert := ours.issue("client")
				c.tls.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &oldCert, nil }
				w.mustRefuse("a client of the old CA", unknownCA, c)
			})
		})).Feature())
}

// awaitRefusedByAgents waits until the agents of a Memcached have refused the content of a Secret. The operator
// annotates pods only for valid content, so the test annotates them itself.
func (w world) awaitRefusedByAgents(name, secret string) {
	w.Helper()
	w.mustKubectl("annotate", "pods", "--selector", "cache.example.com/name="+name, "--overwrite",
		"example.com/look-at="+secret)
	w.awaitSeries(name, fmt.Sprintf("memcached_agent_secret_pending_seconds{secret=%q}", secret), positive)
	w.awaitSeries(name, fmt.Sprintf("memcached_agent_reload_failures_total{secret=%q}", secret), positive)
}

// killAgent kills the agent of the first server, and waits until it runs again.
func (w world) killAgent(name string) {
	w.Helper()
	victim := w.servers(name)[0].Name
	w.must(testCluster.KillContainer(w.ctx, w.ns, victim, "agent"))
	w.eventually("the agent of "+victim+" runs again", func() error {
		pod, err := load[corev1.Pod](w, victim)
		if err == nil && (pod.Status.InitContainerStatuses[0].RestartCount == 0 || readyCondition(pod) == nil) {
			err = fmt.Errorf("got %+v", pod.Status)
		}
		return err
	})
}

// certificates writes a certificate issued by a CA, and the CAs of clients, into the Secret certificate. It returns the
// certificate.
func (w world) certificates(of testCA, host string, cas ...testCA) []byte {
	w.Helper()
	content, err := of.Secret(host)
	w.must(err)
	content["ca.crt"] = nil
	for _, a := range cas {
		theirs, err := a.Secret(host)
		w.must(err)
		content["ca.crt"] = append(content["ca.crt"], theirs["ca.crt"]...)
	}
	w.secret("certificate", content)
	return content["tls.crt"]
}

// trust returns the configuration of a client that trusts several CAs.
func trust(host string, own []tls.Certificate, cas ...testCA) *tls.Config {
	config := cas[0].Trust(host, own...)
	for _, a := range cas[1:] {
		a.AddTo(config.RootCAs)
	}
	return config
}

// loginOf returns the login of a client from a line of an authfile.
func loginOf(line string) string { return strings.Replace(line, ":", " ", 1) }

func clone(clients []memcachedClient, change func(*memcachedClient)) []memcachedClient {
	clients = slices.Clone(clients)
	for i := range clients {
		change(&clients[i])
	}
	return clients
}

// presents returns nil if a server presents this certificate.
func presents(c memcachedClient, want []byte) error {
	conn, err := tls.Dial("tcp", c.address, c.tls)
	if err != nil {
		return err
	}
	defer conn.Close()
	block, _ := pem.Decode(want)
	if got := conn.ConnectionState().PeerCertificates[0].Raw; !bytes.Equal(got, block.Bytes) {
		return errors.New("the server presents another certificate")
	}
	return nil
}

// awaitReload waits until try succeeds for each client after a Secret changed, and logs how long that took.
func (w world) awaitReload(what string, try func(memcachedClient) error, clients ...memcachedClient) {
	w.Helper()
	changed := time.Now()
	for _, c := range clients {
		harness.Eventually(w, what+" is active at "+c.address, reloadTime, func() error { return try(c) })
	}
	w.Logf("%s was active after %s", what, time.Since(changed).Round(10*time.Millisecond))
}

// mustNotDisturb fails if act makes a request fail, loses a key, replaces a server or restarts memcached.
func (w world) mustNotDisturb(name string, clients []memcachedClient, act func()) {
	w.Helper()
	for _, c := range clients {
		w.fill(c)
	}
	before := w.uids(name)
	if l := w.load(act, clients...); l.misses > 0 || l.hits == 0 {
		w.Errorf("%d keys were lost, %d found", l.misses, l.hits)
	}
	w.mustNotReplace(before, w.uids(name))
	pods := w.servers(name)
	for i := range pods {
		if n := pods[i].Status.ContainerStatuses[0].RestartCount; n > 0 {
			w.Errorf("memcached of %s restarted %d times", pods[i].Name, n)
		}
	}
}

// fill stores the keys that load reads.
func (w world) fill(c memcachedClient) {
	w.Helper()
	conn, err := c.dial()
	w.must(err)
	defer conn.Close()
	for i := range keys {
		if answer, err := ask(conn, "set key-%d 0 0 5\r\nvalue", i); err != nil || answer != "STORED" {
			w.Fatalf("%s answers %q to a set: %v", c.address, answer, err)
		}
	}
}

// awaitSeries waits until a series has a wanted value at each server of a Memcached.
func (w world) awaitSeries(name, series string, ok func(float64) bool) {
	w.Helper()
	w.awaitSeriesOf(name, "server", series, ok)
}

// awaitSeriesOf waits until a series, such as up or up{job="x"}, has a wanted value at the agent of each pod of a
// component of a Memcached.
func (w world) awaitSeriesOf(name, component, series string, ok func(float64) bool) {
	w.Helper()
	w.eventually(series+" of "+name, func() error {
		pods, port := w.podsOf(name, component), strconv.Itoa(int(w.memcached(name).Spec.Metrics.Port))
		if len(pods) == 0 {
			return errors.New("there is no pod")
		}
		for i := range pods {
			value, err := scrape("http://"+net.JoinHostPort(pods[i].Status.PodIP, port)+"/metrics", series)
			if err == nil && !ok(value) {
				err = fmt.Errorf("the value is %v", value)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", pods[i].Name, err)
			}
		}
		return nil
	})
}

// scrape returns the value of a series.
func scrape(url, series string) (float64, error) {
	response, err := http.Get(url)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err
	}
	_, after, found := strings.Cut(string(text), "\n"+series+" ")
	if !found {
		return 0, fmt.Errorf("no series %s in %s", series, text)
	}
	line, _, _ := strings.Cut(after, "\n")
	return strconv.ParseFloat(line, 64)
}

func positive(v float64) bool { return v > 0 }

func is(want float64) func(float64) bool { return func(v float64) bool { return v == want } }
