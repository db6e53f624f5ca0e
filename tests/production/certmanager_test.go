package production

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/internal/testing/harness"
)

// Address and zone of the cluster's DNS.
const (
	dnsAddress = "10.96.0.10:53"
	dnsZone    = ".cluster.local."
)

// TestCertManager: cert-manager issues and renews the certificate of the TLS sample, and the servers use it.
func TestCertManager(t *testing.T) {
	const name = "memcached-tls" // of the sample's Memcached, Certificate and Secret
	stop, err := testCluster.CertManager(t.Context())
	harness.Must(t, err)
	t.Cleanup(func() { harness.Must(t, stop()) })
	w := newWorld(t)
	for _, file := range []string{"cache_v1alpha1_memcached_tls.yaml", "cert-manager.yaml"} {
		sample, err := os.ReadFile("../../config/samples/" + file)
		harness.Must(t, err)
		w.apply(strings.ReplaceAll(string(sample), ".default.svc", "."+w.ns+".svc"))
	}

	mc := w.ready(name)
	first := w.certificate(name)
	w.mustServe(mc, first)
	for _, pod := range w.pods(name, names.Servers) {
		address := net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(int(mc.Spec.ContainerPort)))
		if err := memcache.New(address).Ping(); err == nil {
			t.Errorf("%s of %s answers in plain text", address, pod.Name)
		}
	}

	before := w.pods(name, names.Servers)
	w.renew(name)
	var second certificate
	harness.Eventually(w, "renew the certificate", harness.Patience, func() error {
		if second = w.certificate(name); second.leaf.Equal(first.leaf) {
			return errors.New("not renewed yet")
		}
		return nil
	})
	w.mustServe(mc, second)
	for i, pod := range w.pods(name, names.Servers) {
		if pod.UID != before[i].UID || pod.Status.ContainerStatuses[0].RestartCount > 0 {
			t.Errorf("%s was replaced or restarted", pod.Name)
		}
	}
}

// certificate is the certificate and the CA in a Secret.
type certificate struct {
	leaf *x509.Certificate
	ca   *x509.CertPool
}

func (w world) certificate(secret string) certificate {
	w.Helper()
	var s corev1.Secret
	harness.Must(w, w.Get(w.Context(), client.ObjectKey{Namespace: w.ns, Name: secret}, &s))
	block, _ := pem.Decode(s.Data["tls.crt"])
	if block == nil {
		w.Fatalf("no certificate in tls.crt of %s", secret)
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	harness.Must(w, err)
	ca := x509.NewCertPool()
	if !ca.AppendCertsFromPEM(s.Data["ca.crt"]) {
		w.Fatalf("no certificate in ca.crt of %s", secret)
	}
	return certificate{leaf, ca}
}

// mustServe fails unless each server in the status presents this certificate for its name, serves a client that trusts
// the CA, and is not trusted by other clients.
func (w world) mustServe(mc *v1alpha1.Memcached, want certificate) {
	w.Helper()
	if len(mc.Status.Servers) != int(*mc.Spec.Size) {
		w.Fatalf("size %d, servers %v", *mc.Spec.Size, mc.Status.Servers)
	}
	for i, server := range mc.Status.Servers {
		host, port, err := net.SplitHostPort(server)
		harness.Must(w, err)
		key, value := fmt.Sprintf("key-%d", i), []byte(server)
		// DNS has the new address of a pod after a moment.
		harness.Eventually(w, server, 10*time.Second, func() error {
			addresses, err := clusterDNS.LookupHost(w.Context(), host+dnsZone)
			if err != nil {
				return err
			}
			config := &tls.Config{RootCAs: want.ca, ServerName: host, VerifyConnection: func(s tls.ConnectionState) error {
				if !s.PeerCertificates[0].Equal(want.leaf) {
					return errors.New("the certificate is not that of the Secret")
				}
				return nil
			}}
			c := memcache.New(net.JoinHostPort(addresses[0], port))
			defer c.Close()
			c.DialContext = (&tls.Dialer{Config: config}).DialContext
			if err := c.Set(&memcache.Item{Key: key, Value: value}); err != nil {
				return err
			}
			item, err := c.Get(key)
			if err == nil && string(item.Value) != server {
				err = fmt.Errorf("set %s, got %s", value, item.Value)
			}
			if err != nil {
				return err
			}
			stranger := memcache.New(net.JoinHostPort(addresses[0], port))
			stranger.DialContext = (&tls.Dialer{Config: &tls.Config{ServerName: host}}).DialContext
			var unknown x509.UnknownAuthorityError
			if err := stranger.Ping(); !errors.As(err, &unknown) {
				return fmt.Errorf("a client that does not trust the CA: %w", err)
			}
			return nil
		})
	}
}

// clusterDNS resolves names with the cluster's DNS.
var clusterDNS = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, network, dnsAddress)
}}

// renew makes cert-manager renew a Certificate, as `cmctl renew` does.
func (w world) renew(name string) {
	w.Helper()
	c := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "cert-manager.io/v1", "kind": "Certificate"}}
	harness.Must(w, w.Get(w.Context(), client.ObjectKey{Namespace: w.ns, Name: name}, c))
	conditions, _, err := unstructured.NestedSlice(c.Object, "status", "conditions")
	harness.Must(w, err)
	conditions = append(conditions, map[string]any{"type": "Issuing", "status": "True", "reason": "ManuallyTriggered",
		"message": "by the test", "lastTransitionTime": metav1.Now().UTC().Format(time.RFC3339)})
	harness.Must(w, unstructured.SetNestedSlice(c.Object, conditions, "status", "conditions"))
	harness.Must(w, w.Status().Update(w.Context(), c))
}
