package controllers

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/internal/testing/testca"
)

// writeSecret creates or updates a Secret.
func (f *fixture) writeSecret(name string, content map[string][]byte) *corev1.Secret {
	f.Helper()
	s := &corev1.Secret{ObjectMeta: f.Object(name), Data: content}
	err := f.API.Update(f.Ctx, s)
	if apierrors.IsNotFound(err) {
		err = f.API.Create(f.Ctx, s)
	}
	f.Must(err)
	return s
}

// writePasswords creates or updates the Secret for spec.auth.
func (f *fixture) writePasswords(text string) {
	f.Helper()
	f.writeSecret("passwords", map[string][]byte{"authfile": []byte(text)})
}

// writeCertificate creates or updates the Secret for spec.tls: a new certificate of a CA, and CAs to trust.
func (f *fixture) writeCertificate(issuer *testca.CA, trusted ...*testca.CA) *corev1.Secret {
	f.Helper()
	content, err := issuer.Secret("cache")
	f.Must(err)
	content["ca.crt"] = nil
	for _, ca := range trusted {
		other, err := ca.Secret("cache")
		f.Must(err)
		content["ca.crt"] = append(content["ca.crt"], other["ca.crt"]...)
	}
	return f.writeSecret("certificate", content)
}

func (f *fixture) newCA() *testca.CA {
	f.Helper()
	ca, err := testca.New()
	f.Must(err)
	return ca
}

// wantNewTemplate fails if the template of the Deployment is still this one.
func (f *fixture) wantNewTemplate(before corev1.PodTemplateSpec) {
	f.Helper()
	if equality.Semantic.DeepEqual(get[appsv1.Deployment](f).Spec.Template, before) {
		f.Error("got the same template after a CA was removed, want another")
	}
}

// wantAnnotated fails unless all pods have an annotation for the Secrets that contains a text.
func (f *fixture) wantAnnotated(text string) {
	f.Helper()
	for _, pod := range f.pods("") {
		if got := pod.Annotations[v1alpha1.SecretsAnnotation]; !strings.Contains(got, text) {
			f.Errorf("pod %s: got annotation %q, want one with %q", pod.Name, got, text)
		}
	}
}

// TestSecretLifecycle: servers are created once their Secret exists, and are not replaced when it changes or is
// deleted. A missing Secret keeps no server from being added.
func TestSecretLifecycle(t *testing.T) {
	f := newFixture(t, "{size: 3, auth: {secretName: passwords}}")
	f.reconcileError("SecretNotFound")
	f.wantNotReady(v1alpha1.ReasonProgressingWithRetry, "SecretNotFound: there is no Secret passwords")
	if f.exists("cache", &appsv1.Deployment{}) {
		t.Error("got a Deployment without the Secret")
	}
	f.writePasswords("app:first\n")
	f.settle()
	f.wantReady()
	template := get[appsv1.Deployment](f).Spec.Template
	f.restartOperator()
	f.mustReconcile()
	f.mustReconcile()
	f.wantRequests() // the Deployment records the version of the Secret

	f.writePasswords("app:second\n")
	f.failures["get Secret"] = forbidden("no role")
	f.reconcileError("no role")
	f.wantNotReady(v1alpha1.ReasonProgressingWithRetry, "no role")
	f.wantTemplate(template)
	clear(f.failures)
	f.settle() // the agents reload the passwords
	f.wantReady()
	f.wantTemplate(template)
	f.wantAnnotated(getNamed[corev1.Secret](f, "passwords").ResourceVersion)

	f.Must(f.API.Delete(f.Ctx, &corev1.Secret{ObjectMeta: f.Object("passwords")}))
	f.set(`{"size":2}`)
	f.reconcileError("SecretNotFound")
	f.wantNotReady(v1alpha1.ReasonProgressingWithRetry, "SecretNotFound")
	f.wantTemplate(template)
	if got := *get[appsv1.Deployment](f).Spec.Replicas; got != 2 {
		t.Errorf("got %d replicas while the Secret is missing, want 2", got)
	}
	f.writePasswords("app:third\n")
	f.settle()
	f.wantReady()
	f.wantTemplate(template)
}

// TestRevokedCA: servers are replaced only if memcached must stop trusting a CA. Ready is False before that.
func TestRevokedCA(t *testing.T) {
	f := newFixture(t, "{size: 3, tls: {secretName: certificate, clientAuth: Require}}")
	oldCA, newCA := f.newCA(), f.newCA()
	f.writeCertificate(oldCA, oldCA)
	f.settle()
	template := get[appsv1.Deployment](f).Spec.Template
	for _, rotate := range []func() *corev1.Secret{
		func() *corev1.Secret { return f.writeCertificate(oldCA, oldCA) },
		func() *corev1.Secret { return f.writeCertificate(oldCA, oldCA, newCA) },
		func() *corev1.Secret { return f.writeCertificate(newCA, newCA, oldCA) },
	} {
		s := rotate()
		f.settle()
		f.wantReady()
		f.wantTemplate(template)
		f.wantAnnotated(s.ResourceVersion)
	}
	f.writeCertificate(newCA, newCA)
	f.mustReconcile()
	f.wantBefore("patch status", "apply Deployment")
	f.wantNotReady(v1alpha1.ReasonRollingOut, "")
	f.wantNewTemplate(template)
	revoked := get[appsv1.Deployment](f).Spec.Template
	f.restartOperator()
	f.writeCertificate(newCA, newCA, oldCA)
	f.settle()
	f.wantReady()
	f.wantTemplate(revoked)
}

// TestClientCA: the CAs of clients may be in an object of their own. They rotate as those in the Secret for TLS do.
func TestClientCA(t *testing.T) {
	t.Parallel()
	for kind, field := range map[string]string{"Secret": "secretName", "ConfigMap": "configMapName"} {
		t.Run(kind, func(t *testing.T) {
			f := newFixture(t, "{size: 3, tls: {secretName: certificate, clientAuth: Request, clientCA: {"+field+": clients}}}")
			write := func(text string) (version string) {
				f.Helper()
				if kind == "Secret" {
					return f.writeSecret("clients", map[string][]byte{"ca.crt": []byte(text)}).ResourceVersion
				}
				c := &corev1.ConfigMap{ObjectMeta: f.Object("clients"), Data: map[string]string{"ca.crt": text}}
				err := f.API.Update(f.Ctx, c)
				if apierrors.IsNotFound(err) {
					err = f.API.Create(f.Ctx, c)
				}
				f.Must(err)
				return c.ResourceVersion
			}
			pem := func(ca *testca.CA) string {
				content, err := ca.Secret("cache")
				f.Must(err)
				return string(content["ca.crt"])
			}
			first, second := pem(f.newCA()), pem(f.newCA())
			certificate := f.writeCertificate(f.newCA(), f.newCA()) // whose ca.crt does not count
			missing := kind + "NotFound: there is no " + kind + " clients with the key ca.crt"
			f.reconcileError(missing)
			f.wantNotReady(v1alpha1.ReasonProgressingWithRetry, missing)
			write("")
			f.reconcileError(missing)
			write(first)
			f.settle()
			f.wantReady()
			template := get[appsv1.Deployment](f).Spec.Template
			if after := f.mustReconcile().RequeueAfter; kind == "ConfigMap" && (after == 0 || after > time.Minute) {
				t.Errorf("looks at the ConfigMap again after %s, want a minute", after)
			}
			f.restartOperator()
			f.mustReconcile()
			f.mustReconcile()
			f.wantRequests("get " + kind) // the Deployment records both versions

			version := write(first + second)
			f.settle()
			f.wantReady()
			f.wantTemplate(template)
			f.wantAnnotated(certificate.ResourceVersion + "+")
			f.wantAnnotated("/" + version)

			write(second)
			f.mustReconcile()
			f.wantBefore("patch status", "apply Deployment")
			f.wantNewTemplate(template)
			revoked := get[appsv1.Deployment](f).Spec.Template
			write("nonsense")
			f.mustReconcile()
			f.wantStalled(v1alpha1.ReasonInvalid, "Secret certificate, with ca.crt of "+kind+" clients: ")
			f.wantTemplate(revoked)
		})
	}
}

// TestOneInvalidSecret: while the passwords are invalid, the certificate is still rotated. A CA that was added and
// removed meanwhile is revoked once the passwords are valid.
func TestOneInvalidSecret(t *testing.T) {
	f := newFixture(t, "{size: 3, tls: {secretName: certificate, clientAuth: Request}, auth: {secretName: passwords}}")
	first, second := f.newCA(), f.newCA()
	f.writeCertificate(first, first)
	f.writePasswords("app:first\n")
	f.settle()
	f.wantReady()
	template := get[appsv1.Deployment](f).Spec.Template

	f.writePasswords("nonsense")
	s := f.writeCertificate(first, first, second)
	f.mustReconcile()
	f.wantStalled(v1alpha1.ReasonInvalid, "")
	f.wantAnnotated(s.ResourceVersion)
	f.wantTemplate(template)
	f.restartOperator()
	f.writeCertificate(first, first)
	f.mustReconcile()
	f.wantTemplate(template) // no server is replaced while the passwords are invalid
	f.writePasswords("app:second\n")
	f.mustReconcile()
	f.wantNewTemplate(template)
}

// TestUnrecordedCA: a CA is revoked although it was added and removed while the workload could not be written, when
// servers may have read it, or removed while the Secret was missing.
func TestUnrecordedCA(t *testing.T) {
	t.Parallel()
	for name, meanwhile := range map[string]func(f *fixture, first, second *testca.CA){
		"workload not written": func(f *fixture, first, second *testca.CA) {
			f.failures["apply Deployment"] = errors.New("no (by the test)")
			f.writeCertificate(first, first, second)
			f.reconcileError("no (by the test)")
			clear(f.failures)
		},
		"Secret missing": func(f *fixture, first, second *testca.CA) {
			f.writeCertificate(first, first, second)
			f.settle()
			f.Must(f.API.Delete(f.Ctx, &corev1.Secret{ObjectMeta: f.Object("certificate")}))
			f.reconcileError("SecretNotFound")
			f.restartOperator()
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, "{size: 3, tls: {secretName: certificate, clientAuth: Request}}")
			first, second := f.newCA(), f.newCA()
			f.writeCertificate(first, first)
			f.settle()
			template := get[appsv1.Deployment](f).Spec.Template
			meanwhile(f, first, second)
			f.writeCertificate(first, first)
			f.mustReconcile()
			f.wantNewTemplate(template)
		})
	}
}

// TestExpiredCertificate: the status says when the servers' certificate expired.
func TestExpiredCertificate(t *testing.T) {
	f := newFixture(t, "{size: 3, tls: {secretName: certificate}}")
	f.writeCertificate(f.newCA())
	f.settle()
	f.wantReady()
	f.now = f.now.Add(f.mustReconcile().RequeueAfter + time.Second)
	f.mustReconcile()
	f.wantStalled(v1alpha1.ReasonInvalid, "certificate expired at")
}

// TestAgentNeedsClientCertificate: a certificate that ca.crt does not verify is refused once the agent needs it as a
// client.
func TestAgentNeedsClientCertificate(t *testing.T) {
	f := newFixture(t, "{tls: {secretName: certificate, clientAuth: Require}}")
	f.writeCertificate(f.newCA(), f.newCA())
	f.settle()
	f.wantReady()
	template := get[appsv1.Deployment](f).Spec.Template
	f.set(`{"metrics":{}}`)
	f.mustReconcile()
	f.wantStalled(v1alpha1.ReasonInvalid, "")
	f.wantTemplate(template)
}

// TestSecretIsNotDisclosed: no status, event or Deployment contains a password, whatever is wrong with the Secret.
func TestSecretIsNotDisclosed(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ content, condition, want string }{
		"no password":   {"hunter2\n", v1alpha1.ConditionStalled, "line 1 of authfile must be a user"},
		"no line break": {"app:hunter2", v1alpha1.ConditionStalled, "authfile must end with a line break"},
		"user twice":    {"app:hunter2\napp:hunter22\n", v1alpha1.ConditionStalled, "line 2 of authfile repeats a user"},
		"empty":         {"", v1alpha1.ConditionReconciling, "SecretNotFound: Secret passwords has no key authfile"},
		"valid":         {"app:hunter2\n", v1alpha1.ConditionReconciling, "0 of 3 servers ready"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, "{size: 3, auth: {secretName: passwords}}")
			f.writePasswords(tt.content)
			_, _ = f.reconcile()
			f.wantMessage(tt.condition, tt.want)
			var deployments appsv1.DeploymentList
			f.Must(f.API.List(f.Ctx, &deployments, client.InNamespace(f.Key.Namespace)))
			b, err := json.Marshal([]any{f.mc, deployments})
			f.Must(err)
			texts := []string{string(b)}
			for len(f.events.Events) > 0 {
				texts = append(texts, <-f.events.Events)
			}
			if text := strings.Join(texts, "\n"); strings.Contains(text, "hunter2") {
				t.Errorf("got the password in %s", text)
			}
		})
	}
}

func TestSecretNames(t *testing.T) {
	t.Parallel()
	tls, auth := &v1alpha1.TLSSpec{SecretName: "b"}, func(name string) *v1alpha1.AuthSpec {
		return &v1alpha1.AuthSpec{SecretName: name}
	}
	for _, tt := range []struct {
		spec v1alpha1.MemcachedSpec
		want []string
	}{{v1alpha1.MemcachedSpec{}, nil}, {v1alpha1.MemcachedSpec{TLS: tls}, []string{"b"}},
		{v1alpha1.MemcachedSpec{TLS: tls, Auth: auth("a")}, []string{"a", "b"}},
		{v1alpha1.MemcachedSpec{TLS: tls, Auth: auth("b")}, []string{"b"}},
		{v1alpha1.MemcachedSpec{TLS: &v1alpha1.TLSSpec{SecretName: "b", ClientCA: &v1alpha1.ClientCASource{SecretName: "c"}}},
			[]string{"b", "c"}}} {
		if got := secretNames(&v1alpha1.Memcached{Spec: tt.spec}); !slices.Equal(got, tt.want) {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}

// TestNoReplacementWithoutSecret: while a Secret is missing, a rollout deletes no server: its replacement could not
// start.
func TestNoReplacementWithoutSecret(t *testing.T) {
	f := newFixture(t, "{size: 3, workload: StatefulSet, auth: {secretName: passwords}}")
	f.writePasswords("app:first\n")
	f.settle()
	f.wantReady()
	f.set(`{"threads":2}`)
	f.mustReconcile()
	s := getNamed[corev1.Secret](f, "passwords")
	f.Must(f.API.Delete(f.Ctx, s))
	f.lose("cache-0")
	for range 3 {
		f.act()
		f.reconcileError("SecretNotFound")
		if f.has("delete Pod") {
			t.Errorf("got requests %q, want no pod deleted", f.requests)
		}
	}
	f.wantAnnotated(s.ResourceVersion) // of the pod that was created meanwhile, too
	f.writePasswords("app:first\n")
	f.until("a pod deleted once the Secret exists", func() bool { return f.has("delete Pod") })
}
