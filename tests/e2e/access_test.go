package e2e

import (
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/tests/cluster"
)

// smallServer is the part of a spec that makes a server fit on a small node.
const smallServer = `memory: 16Mi, threads: 1, maxConnections: 64, pod: {resources: {requests: {cpu: 1m}}}`

// Errors that clients or memcached report when a server refuses a client.
const (
	noCertificate      = "certificate required"
	unknownCA          = "unknown certificate authority"
	oldVersion         = "protocol version not supported"
	plainText          = "EOF|connection reset"
	noTLS              = "does not look like a TLS handshake"
	notLoggedIn        = "bad authentication token" // memcached takes the first set for the login
	wrongPassword      = "authentication failure"
	foreignCertificate = "certificate signed by unknown authority"
)

// TestTLS connects clients with and without certificates to real servers.
func TestTLS(t *testing.T) {
	needRealPods(t)
	t.Parallel()
	const host = "svc.example.com"
	var ours, foreign testCA
	testEnv.Test(t, features.New("TLS").
		Setup(step(func(w world) {
			ours, foreign = w.newCA(), w.newCA()
			ours.certificate("certificate", host)
			w.createSpec("plain", `{`+smallServer+`}`)
			w.createSpec("none", `{tls: {secretName: certificate}, `+smallServer+`}`)
			w.createSpec("request", `{tls: {secretName: certificate, clientAuth: Request}, `+smallServer+`}`)
			w.createSpec("require", `{tls: {secretName: certificate, clientAuth: Require, minVersion: "1.3"},
				workload: StatefulSet, `+smallServer+`}`)
			w.awaitReady("plain", "none", "request", "require")
		})).
		Assess("accepts and refuses clients as clientAuth says", step(func(w world) {
			own, foreignCert := ours.issue("client"), foreign.issue("client")
			without, with, other := ours.Trust(host), ours.Trust(host, own), ours.Trust(host, foreignCert)
			other.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &foreignCert, nil }
			distrust, old := foreign.Trust(host), ours.Trust(host, own)
			old.MaxVersion = tls.VersionTLS12
			for name, c := range map[string]struct {
				tls  *tls.Config
				want map[string]string // the error at each server; "" if the client succeeds
			}{
				"plain text": {nil, map[string]string{"plain": "", "none": plainText, "request": plainText, "require": plainText}},
				"no certificate": {without, map[string]string{"plain": noTLS, "none": "", "request": "",
					"require": noCertificate}},
				"own certificate": {with, map[string]string{"none": "", "request": "", "require": ""}},
				"foreign certificate": {other, map[string]string{"none": "", "request": unknownCA,
					"require": unknownCA}},
				"client that trusts another CA": {distrust, map[string]string{"none": foreignCertificate,
					"require": foreignCertificate}},
				"TLS 1.2": {old, map[string]string{"none": "", "request": "", "require": oldVersion}},
			} {
				for server, words := range c.want {
					what := fmt.Sprintf("%s at %s", name, server)
					if client := (memcachedClient{address: w.addressOf(server), tls: c.tls}); words == "" {
						w.mustStore(what, client)
					} else {
						w.mustRefuse(what, words, client)
					}
				}
			}
		})).
		Assess("listens on no other port", step(func(w world) {
			for _, name := range []string{"plain", "none", "request", "require"} {
				pods := w.servers(name)
				// State 0A is LISTEN, 2BCB is port 11211, and 23BF port 9151 of an agent that reports.
				out := w.mustKubectl("exec", pods[0].Name, "--", "sh", "-c",
					`for file in tcp tcp6; do while read -r line; do echo "$line"; done </proc/net/$file; done`)
				ports := regexp.MustCompile(`(?m)^\d+: [0-9A-F]+:([0-9A-F]{4}) [0-9A-F]+:0000 0A `).FindAllStringSubmatch(out, -1)
				for _, port := range ports {
					if port[1] != "2BCB" && port[1] != "23BF" {
						w.Errorf("%s listens on port %s", name, port[1])
					}
				}
				if len(ports) == 0 {
					w.Errorf("%s listens on no port: %s", name, out)
				}
			}
		})).Feature())
}

// TestPasswords logs in to real servers with right and wrong passwords, and changes the passwords. In TestRotation, the
// Secret is missing or invalid meanwhile. TestSecretContents of tests/permissions would find passwords in requests.
func TestPasswords(t *testing.T) {
	t.Parallel()
	// New passwords for each run: no log has them from an earlier run.
	first, second := rand.Text(), rand.Text()
	right, changed := "app "+first, "app "+second
	var before map[string]string
	testEnv.Test(t, features.New("passwords").
		Setup(step(func(w world) {
			w.createSpec("cache", `{size: 2, workload: StatefulSet, auth: {secretName: passwords}, `+smallServer+`}`)
		})).
		Assess("must exist before servers are created", step(func(w world) {
			w.awaitCondition("cache", v1alpha1.ConditionReconciling, v1alpha1.ReasonProgressingWithRetry,
				"SecretNotFound: there is no Secret passwords")
			w.mustHaveNoWorkload("cache")
			w.secret("passwords", map[string][]byte{"other": []byte("key")})
			w.awaitCondition("cache", v1alpha1.ConditionReconciling, v1alpha1.ReasonProgressingWithRetry,
				"SecretNotFound: Secret passwords has no key authfile")
			w.passwords("passwords", "app:"+first)
			w.awaitReady("cache")
			before = w.uids("cache")
		})).
		Assess("are required of clients", step(func(w world) {
			w.mustAccept("cache", right)
			w.mustRefuseLogins("cache", wrongPassword, "app wrong", "other "+first)
			w.mustRefuseLogins("cache", notLoggedIn, "")
		})).
		Assess("can change without replacing servers", step(func(w world) {
			earlier := w.secretVersions("cache")
			w.passwords("passwords", "app:"+second, "other:user")
			w.eventually("annotate the pods", func() error {
				now := w.secretVersions("cache")
				if len(now) != len(earlier) || slices.ContainsFunc(now, func(version string) bool {
					return version == "" || slices.Contains(earlier, version)
				}) {
					return fmt.Errorf("before %v, now %v", earlier, now)
				}
				return nil
			})
			w.mustAccept("cache", changed)
			w.mustAccept("cache", "other user")
			w.mustRefuseLogins("cache", wrongPassword, right)
			w.mustNotReplace(before, w.uids("cache"))
			w.must(w.ready("cache"))
		})).Feature())
}

// addressOf returns the address of the first server of a Memcached.
func (w world) addressOf(name string) string {
	w.Helper()
	pods := w.servers(name)
	if len(pods) == 0 {
		w.Fatalf("%s has no server", name)
	}
	return net.JoinHostPort(pods[0].Status.PodIP, strconv.Itoa(int(pods[0].Spec.Containers[0].Ports[0].ContainerPort)))
}

// mustAccept fails unless each server of a Memcached accepts a login.
func (w world) mustAccept(name, login string) {
	w.Helper()
	w.eachServer(name, func(address string) { w.mustStore(login, memcachedClient{address: address, login: login}) })
}

// mustRefuseLogins fails unless each server of a Memcached refuses each login with these words.
func (w world) mustRefuseLogins(name, words string, logins ...string) {
	w.Helper()
	w.eachServer(name, func(address string) {
		for _, login := range logins {
			w.mustRefuse(login, words, memcachedClient{address: address, login: login})
		}
	})
}

// eachServer calls do with the address of each server of a Memcached. It does nothing if the servers are simulated.
func (w world) eachServer(name string, do func(address string)) {
	w.Helper()
	if !cluster.RealPods(testCluster.Kind) {
		return
	}
	pods := w.servers(name)
	for i := range pods {
		do(net.JoinHostPort(pods[i].Status.PodIP, "11211"))
	}
}

// awaitCondition waits until a condition of a Memcached is True with this reason, with these words in its message, and
// the Memcached is not Ready.
func (w world) awaitCondition(name, conditionType, reason, words string) {
	w.Helper()
	w.eventually("condition with "+words, func() error {
		mc, err := load[v1alpha1.Memcached](w, name)
		if err != nil {
			return err
		}
		c := condition(mc, conditionType)
		if c.Status != metav1.ConditionTrue || c.Reason != reason || !strings.Contains(c.Message, words) ||
			meta.IsStatusConditionTrue(mc.Status.Conditions, v1alpha1.ConditionReady) {
			return fmt.Errorf("the conditions are %v", mc.Status.Conditions)
		}
		return nil
	})
}

// secretVersions returns the Secret versions in the annotations of a Memcached's servers.
func (w world) secretVersions(name string) (versions []string) {
	w.Helper()
	pods := w.servers(name)
	for i := range pods {
		versions = append(versions, pods[i].Annotations[v1alpha1.SecretsAnnotation])
	}
	return versions
}

// mustHaveNoWorkload fails if a Memcached has a Deployment or a StatefulSet.
func (w world) mustHaveNoWorkload(name string) {
	w.Helper()
	for _, kind := range []string{"Deployment", "StatefulSet"} {
		if _, err := w.workload(kind, name); err == nil {
			w.Errorf("there is a %s %s", kind, name)
		}
	}
}

// mustReplaceAll fails if any server of before still exists.
func (w world) mustReplaceAll(before map[string]string, name string) {
	w.Helper()
	w.must(w.replaced(before, name))
}

// replaced returns an error if any server of before still exists.
func (w world) replaced(before map[string]string, name string) error {
	for pod, uid := range w.uids(name) {
		if before[pod] == uid {
			return fmt.Errorf("%s was not replaced", pod)
		}
	}
	return nil
}
