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
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// reloadTime is how long a changed Secret may take to be in force. The kubelet alone takes a minute or more.
const reloadTime = 15 * time.Second

// TestRotation changes the Secrets of servers that have clients.
func TestRotation(t *testing.T) {
	if under.Kind != "node" {
		t.Skip("this needs real pods that can be reached")
	}
	const host = "svc.example.com"
	stay, first, second := "stay:"+rand.Text(), "app:"+rand.Text(), "app:"+rand.Text()
	var ours, next issuer
	var clients []caller
	var before map[string]string
	testEnv.Test(t, features.New("rotation").
		Setup(step(func(w world) {
			ours, next = w.newIssuer(), w.newIssuer()
			w.certificates(ours, host, ours)
			w.passwords("passwords", stay, first)
			w.make("cache", `{size: 2, workload: StatefulSet, tls: {secretName: certificate, clientAuth: Require},
				auth: {secretName: passwords}, metrics: {}, `+frugal+`}`)
			w.awaitReady("cache")
			before = w.uids("cache")
			own := ours.issue("client")
			w.eachServer("cache", func(address string) {
				clients = append(clients, caller{address: address, tls: ours.Trust(host, own), login: loginOf(stay)})
			})
		})).
		Assess("of a certificate loses nothing", step(func(w world) {
			w.undisturbed("cache", clients, func() {
				leaf := w.certificates(ours, host, ours)
				w.inForce("the certificate", func(c caller) error { return shows(c, leaf) }, clients...)
			})
		})).
		Assess("of a password loses nothing", step(func(w world) {
			w.undisturbed("cache", clients, func() {
				w.passwords("passwords", stay, second)
				w.inForce("the password", func(c caller) error {
					c.login = loginOf(second)
					return c.store()
				}, clients...)
			})
			for _, c := range clients {
				c.login = loginOf(first)
				w.refused("the old password", wrongPassword, c)
			}
		})).
		Assess("of both at once loses nothing, with a CA that is new", step(func(w world) {
			both := clone(clients, func(c *caller) { c.tls = trust(host, c.tls.Certificates, ours, next) })
			w.undisturbed("cache", both, func() {
				w.certificates(ours, host, ours, next)
				w.passwords("passwords", stay, first)
				w.inForce("the second CA", func(c caller) error {
					c.tls, c.login = trust(host, []tls.Certificate{next.issue("client")}, ours, next), loginOf(first)
					return c.store()
				}, both...)
				leaf := w.certificates(next, host, ours, next)
				w.inForce("a certificate of the second CA", func(c caller) error { return shows(c, leaf) }, both...)
			})
		})).
		Assess("to what is wrong changes nothing", step(func(w world) {
			trusting := clone(clients, func(c *caller) { c.tls = trust(host, c.tls.Certificates, ours, next) })
			wrong, err := ours.Secret(host)
			w.must(err)
			right, err := load[corev1.Secret](w, "certificate")
			w.must(err)
			leaf := right.Data["tls.crt"]
			w.undisturbed("cache", trusting, func() {
				mixed := maps.Clone(right.Data)
				mixed["tls.key"] = wrong["tls.key"]
				w.secret("certificate", mixed)
				w.says("cache", v1alpha1.ConditionStalled, v1alpha1.ReasonInvalid, "tls.key is not the private key of")
				w.keepsWhatItHas("cache", "tls")
				w.passwords("passwords", stay, "without a colon")
				w.secret("certificate", right.Data)
				w.says("cache", v1alpha1.ConditionStalled, v1alpha1.ReasonInvalid, "line 2 of authfile must be a user")
				w.keepsWhatItHas("cache", "auth")
				w.awaits("cache", `memcached_agent_secret_pending_seconds{secret="tls"}`, is(0))
				_, err := w.kubectl("delete", "secret", "passwords")
				w.must(err)
				w.says("cache", v1alpha1.ConditionReconciling, v1alpha1.ReasonProgressingWithRetry, "SecretNotFound")
				for _, c := range trusting {
					w.must(shows(c, leaf))
				}
				w.passwords("passwords", stay, first)
				w.awaitReady("cache")
			})
		})).
		Assess("survives an agent that is killed", step(func(w world) {
			trusting := clone(clients, func(c *caller) { c.tls = trust(host, c.tls.Certificates, ours, next) })
			w.undisturbed("cache", trusting, func() {
				if unpublished := w.killAgent("cache", 0); unpublished > 0 {
					w.Error("the name of a server of a StatefulSet had no address")
				}
				w.awaits("cache", "memcached_up", is(1))
			})
		})).
		Assess("of a CA that is taken out replaces the servers", step(func(w world) {
			w.same(before, w.uids("cache"))
			w.announced("cache", func() { w.certificates(next, host, next) })
			w.replacedAll(before, "cache")
			w.eachServer("cache", func(address string) {
				c := caller{address: address, tls: next.Trust(host, next.issue("client")), login: loginOf(stay)}
				w.stores("a client of the new CA", c)
				c.tls = next.Trust(host)
				strange := ours.issue("client")
				c.tls.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &strange, nil }
				w.refused("a client of the old CA", unknownAuthority, c)
			})
		})).Feature())
}

// TestMetrics scrapes servers of each kind.
func TestMetrics(t *testing.T) {
	if under.Kind != "node" {
		t.Skip("this needs real pods that can be reached")
	}
	specs := map[string]string{
		"plain": `metrics: {}`, "port": `metrics: {port: 9999}, containerPort: 12345`,
		"passwords":    `metrics: {}, auth: {secretName: passwords}`,
		"tls":          `metrics: {}, tls: {secretName: certificate}`,
		"mutual":       `metrics: {}, tls: {secretName: certificate, clientAuth: Require, minVersion: "1.3"}`,
		"all-together": `metrics: {}, tls: {secretName: certificate, clientAuth: Require}, auth: {secretName: passwords}`,
		"unwanted":     `tls: {secretName: certificate}`,
	}
	testEnv.Test(t, features.New("metrics").
		Setup(step(func(w world) {
			ours := w.newIssuer()
			ours.certificate("certificate", "svc.example.com")
			w.passwords("passwords", "app:"+rand.Text(), "b:c")
			for name, spec := range specs {
				w.make(name, "{"+spec+", "+frugal+"}")
			}
			w.awaitReady(slices.Collect(maps.Keys(specs))...)
		})).
		Assess("are served with whatever memcached asks of clients", step(func(w world) {
			for name, spec := range specs {
				if name == "unwanted" {
					pods, err := w.servers(name)
					w.must(err)
					if response, err := http.Get("http://" + net.JoinHostPort(pods[0].Status.PodIP, "9150") + "/metrics"); err == nil {
						_ = response.Body.Close()
						w.Error("metrics are served though nobody asked for them")
					}
					continue
				}
				w.awaits(name, "memcached_up", is(1))
				w.awaits(name, "memcached_max_connections", is(66))
				if strings.Contains(spec, "auth") {
					w.awaits(name, "memcached_agent_users", is(2))
				}
				if strings.Contains(spec, "tls") {
					w.awaits(name, "memcached_agent_certificate_expires_in_seconds", func(v float64) bool {
						return v > 0 && v < time.Hour.Seconds()
					})
				}
				memory, err1 := w.series(name, "process_resident_memory_bytes")
				cpu, err2 := w.series(name, "process_cpu_seconds_total")
				w.must(errors.Join(err1, err2))
				w.Logf("the agent of %s has %.1f MiB resident, with its program, and has taken %.2f s of CPU", name,
					memory[0]/(1<<20), cpu[0])
			}
		})).
		Assess("are served again by an agent that was killed", step(func(w world) {
			memcached := func() string {
				pods, err := w.servers("plain")
				w.must(err)
				return pods[0].Status.ContainerStatuses[0].ContainerID
			}
			before := memcached()
			w.killAgent("plain", 0)
			w.awaits("plain", "memcached_up", is(1))
			if memcached() != before {
				w.Error("memcached was started anew")
			}
		})).Feature())
}

// TestAgentUpgrade upgrades the operator, and with the operator the agent's image.
func TestAgentUpgrade(t *testing.T) {
	var before map[string]string
	testEnv.Test(t, features.New("an upgrade of the agent").
		Setup(step(func(w world) {
			w.passwords("passwords", "a:b")
			w.make("cache", `{size: 2, metrics: {}, auth: {secretName: passwords}, `+frugal+`}`)
			w.make("set", `{size: 2, metrics: {}, workload: StatefulSet, `+frugal+`}`)
			w.awaitReady("cache", "set")
			before = w.uids("cache")
			maps.Copy(before, w.uids("set"))
			w.must(operator.Stop(w.ctx))
			operator.AgentImage = "example.com/memcached-operator:another"
			w.must(operator.Start(w.ctx, 1))
		})).
		Assess("changes no pod", step(func(w world) {
			w.merge("set", `{"size":3}`)
			w.awaitReady("cache", "set")
			after := w.uids("cache")
			maps.Copy(after, w.uids("set"))
			delete(after, "set-2")
			w.same(before, after)
		})).
		Teardown(step(func(w world) {
			operator.AgentImage = ""
			w.must(operator.Stop(w.ctx))
			w.must(operator.Start(w.ctx, 1))
		})).Feature())
}

// keepsWhatItHas waits until the agents of a Memcached have refused the content of a Secret. The operator hastens the
// kubelet only where the content is right, so the test does.
func (w world) keepsWhatItHas(name, secret string) {
	w.Helper()
	_, err := w.kubectl("annotate", "pods", "--selector", "app.kubernetes.io/instance="+name, "--overwrite",
		"example.com/look-at="+secret)
	w.must(err)
	w.awaits(name, fmt.Sprintf("memcached_agent_secret_pending_seconds{secret=%q}", secret), positive)
	w.awaits(name, fmt.Sprintf("memcached_agent_reload_failures_total{secret=%q}", secret), positive)
}

// killAgent kills the agent of a server, waits until the agent is back, and returns for how long the Service did not
// publish the pod. What is over at once may pass between two writes.
func (w world) killAgent(name string, server int) time.Duration {
	w.Helper()
	pods, err := w.servers(name)
	w.must(err)
	victim := pods[server].Name
	events := w.watch(&corev1.PodList{}, &discoveryv1.EndpointSliceList{})
	w.must(under.KillContainer(w.ctx, w.ns, victim, "agent"))
	var notReady, unpublished stopwatch
	back := false
	await(w, events, "the agent of "+victim+" is back", func(_ watch.EventType, object client.Object) bool {
		switch object := object.(type) {
		case *corev1.Pod:
			if object.Name == victim {
				notReady.run(readyCondition(object) == nil)
				back = object.Status.InitContainerStatuses[0].RestartCount > 0
			}
		case *discoveryv1.EndpointSlice:
			if object.Labels[discoveryv1.LabelServiceName] == name {
				unpublished.run(!slices.ContainsFunc(object.Endpoints, func(e discoveryv1.Endpoint) bool {
					return e.TargetRef.Name == victim && *e.Conditions.Ready
				}))
			}
		}
		return back && notReady.stopped() && unpublished.stopped()
	})
	w.Logf("without its agent a pod of %s was not ready for %s, and not published for %s", name,
		notReady.sum.Round(10*time.Millisecond), unpublished.sum.Round(10*time.Millisecond))
	return unpublished.sum
}

type stopwatch struct {
	sum   time.Duration
	since time.Time // zero where it does not run
}

func (s *stopwatch) stopped() bool { return s.since.IsZero() }

func (s *stopwatch) run(on bool) {
	switch {
	case on && s.stopped():
		s.since = time.Now()
	case !on && !s.stopped():
		s.sum, s.since = s.sum+time.Since(s.since), time.Time{}
	}
}

// certificates puts a certificate by an authority, and the CAs of clients, into the Secret certificate. It returns the
// certificate.
func (w world) certificates(of issuer, host string, authorities ...issuer) []byte {
	w.Helper()
	content, err := of.Secret(host)
	w.must(err)
	content["ca.crt"] = nil
	for _, a := range authorities {
		theirs, err := a.Secret(host)
		w.must(err)
		content["ca.crt"] = append(content["ca.crt"], theirs["ca.crt"]...)
	}
	w.secret("certificate", content)
	return content["tls.crt"]
}

// trust is the configuration of a client that believes several authorities.
func trust(host string, own []tls.Certificate, authorities ...issuer) *tls.Config {
	config := authorities[0].Trust(host, own...)
	for _, a := range authorities[1:] {
		a.AddTo(config.RootCAs)
	}
	return config
}

// loginOf is what a client sends of a line of an authfile.
func loginOf(line string) string { return strings.Replace(line, ":", " ", 1) }

func clone(clients []caller, change func(*caller)) []caller {
	clients = slices.Clone(clients)
	for i := range clients {
		change(&clients[i])
	}
	return clients
}

// shows returns nil if a server shows that certificate.
func shows(c caller, want []byte) error {
	conn, err := tls.Dial("tcp", c.address, c.tls)
	if err != nil {
		return err
	}
	defer conn.Close()
	block, _ := pem.Decode(want)
	if got := conn.ConnectionState().PeerCertificates[0].Raw; !bytes.Equal(got, block.Bytes) {
		return errors.New("another certificate")
	}
	return nil
}

// inForce waits until each server does as a changed Secret says, and tells how long that took.
func (w world) inForce(what string, try func(caller) error, clients ...caller) {
	w.Helper()
	changed, deadline := time.Now(), time.Now().Add(reloadTime)
	for _, c := range clients {
		for {
			err := try(c)
			if err == nil {
				break
			}
			if time.Now().After(deadline) {
				w.Fatalf("%s is not in force at %s after %s: %v", what, c.address, reloadTime, err)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	w.Logf("%s was in force after %s", what, time.Since(changed).Round(10*time.Millisecond))
}

// undisturbed fails if what is done to a Memcached makes a request fail, loses a key, or ends a container of memcached.
func (w world) undisturbed(name string, clients []caller, act func()) {
	w.Helper()
	for _, c := range clients {
		w.fill(c)
	}
	before := w.uids(name)
	if l := w.load(act, clients...); l.misses > 0 || l.hits == 0 {
		w.Errorf("%d keys were lost, %d found", l.misses, l.hits)
	}
	w.same(before, w.uids(name))
	pods, err := w.servers(name)
	w.must(err)
	for i := range pods {
		if n := pods[i].Status.ContainerStatuses[0].RestartCount; n > 0 {
			w.Errorf("memcached of %s restarted %d times", pods[i].Name, n)
		}
	}
}

// fill stores the keys that a load reads.
func (w world) fill(c caller) {
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

// series is what the agent of each server of a Memcached says of a series, such as up or up{job="x"}.
func (w world) series(name, series string) (values []float64, err error) {
	w.Helper()
	pods, err := w.servers(name)
	w.must(err)
	mc, err := load[v1alpha1.Memcached](w, name)
	w.must(err)
	for i := range pods {
		address := net.JoinHostPort(pods[i].Status.PodIP, strconv.Itoa(int(mc.Spec.Metrics.Port)))
		response, err := http.Get("http://" + address + "/metrics")
		if err != nil {
			return nil, err
		}
		text, err := io.ReadAll(response.Body)
		if err := errors.Join(err, response.Body.Close()); err != nil {
			return nil, err
		}
		_, after, found := strings.Cut(string(text), "\n"+series+" ")
		if !found {
			return nil, fmt.Errorf("no series %s in %s", series, text)
		}
		line, _, _ := strings.Cut(after, "\n")
		value, err := strconv.ParseFloat(line, 64)
		if err != nil {
			return nil, err
		}
		values = append(values, value)
	}
	return values, nil
}

// awaits waits until each server of a Memcached says what it should of a series.
func (w world) awaits(name, series string, ok func(float64) bool) {
	w.Helper()
	w.eventually(series+" of "+name, func() error {
		values, err := w.series(name, series)
		if err == nil && (len(values) == 0 || slices.ContainsFunc(values, func(v float64) bool { return !ok(v) })) {
			err = fmt.Errorf("values %v", values)
		}
		return err
	})
}

func positive(v float64) bool { return v > 0 }

func is(want float64) func(float64) bool { return func(v float64) bool { return v == want } }
