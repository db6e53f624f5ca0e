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

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// frugal is a spec of a server that needs little of a small node.
const frugal = `memory: 16Mi, threads: 1, maxConnections: 64, pod: {resources: {requests: {cpu: 1m}}}`

// What the libraries of clients, and memcached, say of a client that is refused.
const (
	noCertificate      = "certificate required"
	unknownAuthority   = "unknown certificate authority"
	oldVersion         = "protocol version not supported"
	plainText          = "EOF|connection reset"
	noTLS              = "does not look like a TLS handshake"
	notLoggedIn        = "bad authentication token" // memcached takes the first set for the login
	wrongPassword      = "authentication failure"
	foreignCertificate = "certificate signed by unknown authority"
)

// TestTLS has clients come with and without certificates to real servers.
func TestTLS(t *testing.T) {
	if under.Kind != "node" {
		t.Skip("this needs real pods that can be reached")
	}
	var ours, foreign issuer
	var host string
	testEnv.Test(t, features.New("TLS").
		Setup(step(func(w world) {
			host = "svc.example.com"
			ours, foreign = w.newIssuer(), w.newIssuer()
			ours.certificate("certificate", host)
			w.make("plain", `{`+frugal+`}`)
			w.make("none", `{tls: {secretName: certificate}, `+frugal+`}`)
			w.make("request", `{tls: {secretName: certificate, clientAuth: Request}, `+frugal+`}`)
			w.make("require", `{tls: {secretName: certificate, clientAuth: Require, minVersion: "1.3"}, workload: StatefulSet, `+
				frugal+`}`)
			w.awaitReady("plain", "none", "request", "require")
		})).
		Assess("takes and refuses clients as clientAuth says", step(func(w world) {
			own, strange := ours.issue("client"), foreign.issue("client")
			without, with, other := ours.Trust(host), ours.Trust(host, own), ours.Trust(host, strange)
			other.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &strange, nil }
			distrust, old := foreign.Trust(host), ours.Trust(host, own)
			old.MaxVersion = tls.VersionTLS12
			for name, c := range map[string]struct {
				tls  *tls.Config
				want map[string]string // what each server says; empty where the client succeeds
			}{
				"plain text": {nil, map[string]string{"plain": "", "none": plainText, "request": plainText, "require": plainText}},
				"no certificate": {without, map[string]string{"plain": noTLS, "none": "", "request": "",
					"require": noCertificate}},
				"own certificate": {with, map[string]string{"none": "", "request": "", "require": ""}},
				"foreign certificate": {other, map[string]string{"none": "", "request": unknownAuthority,
					"require": unknownAuthority}},
				"client that trusts another authority": {distrust, map[string]string{"none": foreignCertificate,
					"require": foreignCertificate}},
				"TLS 1.2": {old, map[string]string{"none": "", "request": "", "require": oldVersion}},
			} {
				for server, words := range c.want {
					what := fmt.Sprintf("%s at %s", name, server)
					if client := (caller{address: w.addressOf(server), tls: c.tls}); words == "" {
						w.stores(what, client)
					} else {
						w.refused(what, words, client)
					}
				}
			}
		})).
		Assess("leaves no other listener", step(func(w world) {
			for _, name := range []string{"plain", "none", "request", "require"} {
				pods, err := w.servers(name)
				w.must(err)
				// State 0A is LISTEN, and 2BCB the port 11211.
				out, err := w.kubectl("exec", pods[0].Name, "--", "sh", "-c",
					`for file in tcp tcp6; do while read -r line; do echo "$line"; done </proc/net/$file; done`)
				w.must(err)
				ports := regexp.MustCompile(`(?m)^\d+: [0-9A-F]+:([0-9A-F]{4}) [0-9A-F]+:0000 0A `).FindAllStringSubmatch(out, -1)
				for _, port := range ports {
					if port[1] != "2BCB" {
						w.Errorf("%s listens on port %s", name, port[1])
					}
				}
				if len(ports) == 0 {
					w.Errorf("%s listens on no port: %s", name, out)
				}
			}
		})).
		Assess("serves a certificate that was renewed, by the same servers", step(func(w world) {
			before := w.uids("require")
			own := ours.issue("client")
			ours.certificate("certificate", "renewed.example.com")
			for _, name := range []string{"none", "request", "require"} {
				w.stores("the new name", caller{address: w.addressOf(name), tls: ours.Trust("renewed.example.com", own)})
				w.refused("the old name", "not "+host, caller{address: w.addressOf(name), tls: ours.Trust(host, own)})
			}
			w.same(before, w.uids("require"))
		})).
		Assess("waits for ca.crt where clients need certificates", step(func(w world) {
			content := ours.certificate("short", host)
			authorities := content[corev1.ServiceAccountRootCAKey]
			delete(content, corev1.ServiceAccountRootCAKey)
			w.secret("short", content)
			w.make("short", `{tls: {secretName: short, clientAuth: Require}, `+frugal+`}`)
			w.says("short", v1alpha1.ConditionStalled, v1alpha1.ReasonInvalid, "ca.crt")
			w.noWorkload("short")
			content[corev1.ServiceAccountRootCAKey] = authorities
			w.secret("short", content)
			w.awaitReady("short")
		})).Feature())
}

// TestPasswords has clients come with and without passwords, where servers are real, and the passwords change.
func TestPasswords(t *testing.T) {
	// They are new each time, so that no log has them of an earlier run.
	first, second, malformed := rand.Text(), rand.Text(), rand.Text()
	right, changed := "app "+first, "app "+second
	var before map[string]string
	testEnv.Test(t, features.New("passwords").
		Setup(step(func(w world) {
			w.make("cache", `{size: 2, workload: StatefulSet, auth: {secretName: passwords}, `+frugal+`}`)
		})).
		Assess("are waited for", step(func(w world) {
			w.says("cache", v1alpha1.ConditionReconciling, v1alpha1.ReasonProgressingWithRetry,
				"SecretNotFound: there is no Secret passwords")
			w.noWorkload("cache")
			w.secret("passwords", map[string][]byte{"other": []byte("key")})
			w.says("cache", v1alpha1.ConditionReconciling, v1alpha1.ReasonProgressingWithRetry,
				"SecretNotFound: Secret passwords has no key authfile")
			w.passwords("passwords", "app:"+first)
			w.awaitReady("cache")
			before = w.uids("cache")
		})).
		Assess("let in who knows one", step(func(w world) {
			w.lets("cache", right)
			w.turnsAway("cache", wrongPassword, "app wrong", "other "+first)
			w.turnsAway("cache", notLoggedIn, "")
		})).
		Assess("may be missing for a while", step(func(w world) {
			_, err := w.kubectl("delete", "secret", "passwords")
			w.must(err)
			w.says("cache", v1alpha1.ConditionReconciling, v1alpha1.ReasonProgressingWithRetry, "SecretNotFound")
			w.lets("cache", right)
			generation := w.templateGeneration("cache")
			w.passwords("passwords", "app:"+first)
			w.awaitReady("cache")
			if now := w.templateGeneration("cache"); now != generation {
				w.Errorf("the StatefulSet was changed: generation %d, before %d", now, generation)
			}
			w.same(before, w.uids("cache"))
		})).
		Assess("are refused where memcached could not read them", step(func(w world) {
			w.secret("passwords", map[string][]byte{"authfile": []byte(malformed + "\n")})
			w.says("cache", v1alpha1.ConditionStalled, v1alpha1.ReasonInvalid, "line 1 of authfile must be a user")
			w.lets("cache", right)
			w.same(before, w.uids("cache"))
			w.passwords("passwords", "app:"+first)
			w.awaitReady("cache")
			w.same(before, w.uids("cache"))
		})).
		Assess("change, and the servers stay", step(func(w world) {
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
			w.lets("cache", changed)
			w.lets("cache", "other user")
			w.turnsAway("cache", wrongPassword, right)
			w.same(before, w.uids("cache"))
			w.must(w.ready("cache"))
		})).
		Assess("show nowhere", step(func(w world) {
			out, err := w.kubectl("get", "memcacheds,statefulsets,controllerrevisions,pods,services,configmaps,events", "-o",
				"yaml")
			w.must(err)
			logs, err := operator.Logs(w.ctx)
			w.must(err)
			for _, secret := range []string{first, second, malformed} {
				if strings.Contains(out+logs, secret) {
					w.Errorf("%q shows", secret)
				}
			}
			if !strings.Contains(out, "name: cache-0") {
				w.Errorf("this proves nothing: %s", out)
			}
		})).Feature())
}

// addressOf is where the first server of a Memcached can be reached.
func (w world) addressOf(name string) string {
	w.Helper()
	pods, err := w.servers(name)
	w.must(err)
	if len(pods) == 0 {
		w.Fatalf("%s has no server", name)
	}
	return net.JoinHostPort(pods[0].Status.PodIP, strconv.Itoa(int(pods[0].Spec.Containers[0].Ports[0].ContainerPort)))
}

// lets fails unless each server of a Memcached lets in who logs in so.
func (w world) lets(name, login string) {
	w.Helper()
	w.eachServer(name, func(address string) { w.stores(login, caller{address: address, login: login}) })
}

// turnsAway fails unless each server of a Memcached refuses who logs in so.
func (w world) turnsAway(name, words string, logins ...string) {
	w.Helper()
	w.eachServer(name, func(address string) {
		for _, login := range logins {
			w.refused(login, words, caller{address: address, login: login})
		}
	})
}

// eachServer calls do with the address of each server of a Memcached, where servers are real and can be reached.
func (w world) eachServer(name string, do func(address string)) {
	w.Helper()
	if under.Kind != "node" {
		return
	}
	pods, err := w.servers(name)
	w.must(err)
	for i := range pods {
		do(net.JoinHostPort(pods[i].Status.PodIP, "11211"))
	}
}

// says waits until a condition of a Memcached is True for that reason, with these words in its message.
func (w world) says(name, conditionType, reason, words string) {
	w.Helper()
	w.eventually("say "+words, func() error {
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

// secretVersions are those of the Secrets with which the servers of a Memcached are annotated.
func (w world) secretVersions(name string) (versions []string) {
	w.Helper()
	pods, err := w.servers(name)
	w.must(err)
	for i := range pods {
		versions = append(versions, pods[i].Annotations[v1alpha1.SecretsAnnotation])
	}
	return versions
}

// noWorkload fails if anything was made to run servers of a Memcached.
func (w world) noWorkload(name string) {
	w.Helper()
	for _, kind := range []string{"Deployment", "StatefulSet"} {
		if _, err := w.workload(kind, name); err == nil {
			w.Errorf("there is a %s %s", kind, name)
		}
	}
}

// announced fails unless the status of a Memcached stops to say Ready before its StatefulSet changes.
func (w world) announced(name string, act func()) {
	w.Helper()
	memcacheds, sets := w.watch(&v1alpha1.MemcachedList{}), w.watch(&appsv1.StatefulSetList{})
	generation := w.templateGeneration(name)
	act()
	told := await(w, memcacheds, "it is not Ready", func(_ watch.EventType, mc *v1alpha1.Memcached) bool {
		return mc.Name == name && meta.IsStatusConditionTrue(mc.Status.Conditions, v1alpha1.ConditionReconciling) &&
			condition(mc, v1alpha1.ConditionReady).Status == metav1.ConditionFalse
	})
	changed := await(w, sets, "the StatefulSet changes", func(_ watch.EventType, set *appsv1.StatefulSet) bool {
		return set.Name == name && set.Generation > generation
	})
	c, err := resourceversion.CompareResourceVersion(told.ResourceVersion, changed.ResourceVersion)
	if err != nil || c > 0 {
		w.Errorf("StatefulSet %s changed before the status told it (%v)", name, err)
	}
	w.awaitReady(name)
}

// replacedAll fails if any server of before is left.
func (w world) replacedAll(before map[string]string, name string) {
	w.Helper()
	for pod, uid := range w.uids(name) {
		if before[pod] == uid {
			w.Errorf("%s was not replaced", pod)
		}
	}
}

func (w world) templateGeneration(name string) int64 {
	w.Helper()
	set, err := w.workload("StatefulSet", name)
	w.must(err)
	return set.Generation
}
