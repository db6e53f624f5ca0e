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
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/desired"
	"github.com/example/memcached-operator/internal/testing/testca"
)

// createPasswords creates the Secret for spec.auth.
func (f *fixture) createPasswords(content string) {
	f.Helper()
	s := f.passwords()
	s.StringData = map[string]string{"authfile": content}
	f.must(f.api.Create(f.ctx, s))
}

func (f *fixture) patchPasswords(patch string) {
	f.Helper()
	f.must(f.api.Patch(f.ctx, f.passwords(), mergePatch(patch)))
}

func (f *fixture) passwords() *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "passwords", Namespace: f.mc.Namespace}}
}

// wantReconcileError reconciles, and fails unless that returns an error with a text.
func (f *fixture) wantReconcileError(text string) {
	f.Helper()
	if _, err := f.reconcile(); err == nil || !strings.Contains(err.Error(), text) {
		f.Errorf("got error %v, want one with %q", err, text)
	}
}

// wantMessage fails unless the message of a condition contains a text.
func (f *fixture) wantMessage(conditionType, text string) {
	f.Helper()
	c := meta.FindStatusCondition(f.mc.Status.Conditions, conditionType)
	if c == nil || !strings.Contains(c.Message, text) {
		f.Errorf("got %s %+v, want a message with %q", conditionType, c, text)
	}
}

func (f *fixture) newCA() *testca.CA {
	f.Helper()
	ca, err := testca.New()
	f.must(err)
	return ca
}

// issue returns the content of a Secret with a new certificate of a CA.
func (f *fixture) issue(ca *testca.CA) map[string][]byte {
	f.Helper()
	content, err := ca.Secret("cache")
	f.must(err)
	return content
}

// writeCertificate creates or updates the Secret for spec.tls.
func (f *fixture) writeCertificate(content map[string][]byte) *corev1.Secret {
	f.Helper()
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "certificate", Namespace: f.mc.Namespace}, Data: content}
	err := f.api.Update(f.ctx, s)
	if apierrors.IsNotFound(err) {
		err = f.api.Create(f.ctx, s)
	}
	f.must(err)
	return s
}

// TestSecretLifecycle: servers are created once their Secret exists, and are not replaced when it changes or is
// deleted.
func TestSecretLifecycle(t *testing.T) {
	f := newFixtureOf(t, "{size: 3, auth: {secretName: passwords}}")
	f.wantReconcileError("SecretNotFound")
	f.wantCondition(v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonProgressingWithRetry)
	const want = "SecretNotFound: there is no Secret passwords"
	if got := meta.FindStatusCondition(f.mc.Status.Conditions, v1alpha1.ConditionReady).Message; got != want {
		t.Errorf("got Ready with %q, want %q", got, want)
	}
	f.wantRequests("patch Memcached", "get Secret",
		"apply Service", "apply PodDisruptionBudget", "patch status")

	f.createPasswords("app:first\n")
	f.mustReconcile()
	f.wantRequests("get Deployment", "get Secret", "get Deployment", "get Memcached", "apply Deployment", "patch status")
	f.setServersReady(3)
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	template := get[appsv1.Deployment](f).Spec.Template
	f.restartOperator()
	f.mustReconcile()
	f.mustReconcile()
	f.wantRequests() // the Deployment records the version of the Secret

	f.patchPasswords(`{"metadata":{"labels":{"rotated":"no"}},"data":{"other":"YQ=="}}`)
	f.failures["get Secret"] = forbidden("no role")
	f.wantReconcileError("no role")
	f.wantCondition(v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonProgressingWithRetry)
	f.wantTemplate(template)
	f.failures["get Secret"] = nil
	f.mustReconcile()
	f.wantRequests("get Secret", "apply Deployment", "patch Pod", "patch Pod", "patch Pod", "patch status")
	f.setServersReady(3)
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	f.wantTemplate(template)

	f.must(f.api.Delete(f.ctx, f.passwords()))
	f.patch(`{"spec":{"size":2}}`)
	f.wantReconcileError("SecretNotFound")
	f.wantCondition(v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonProgressingWithRetry)
	f.wantTemplate(template)
	if got := *get[appsv1.Deployment](f).Spec.Replicas; got != 2 {
		t.Errorf("got %d replicas while the Secret is missing, want 2", got)
	}
	f.createPasswords("app:first\n")
	f.setServersReady(2)
	f.mustReconcile()
	f.setServersReady(2)
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	f.wantTemplate(template)

	f.patchPasswords(`{"stringData":{"authfile":"app:second\n"}}`)
	f.mustReconcile()
	f.observeDeployment() // its generation counts changes of annotations too
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	f.wantTemplate(template)
	f.mustReconcile()
	f.wantRequests() // the agents reload the passwords
}

// TestRevokedCA: servers are replaced only if memcached must stop trusting a CA.
func TestRevokedCA(t *testing.T) {
	f := newFixtureOf(t, "{size: 3, tls: {secretName: certificate, clientAuth: Require}}")
	oldCA, newCA := f.newCA(), f.newCA()
	rotate := func(issuer *testca.CA, trusted ...*testca.CA) {
		f.Helper()
		content := f.issue(issuer)
		content["ca.crt"] = nil
		for _, ca := range trusted {
			content["ca.crt"] = append(content["ca.crt"], f.issue(ca)["ca.crt"]...)
		}
		f.writeCertificate(content)
	}
	rotate(oldCA, oldCA)
	f.mustReconcile()
	f.setServersReady(3)
	f.mustReconcile()
	template := get[appsv1.Deployment](f).Spec.Template
	for _, rotateAgain := range []func(){
		func() { rotate(oldCA, oldCA) }, func() { rotate(oldCA, oldCA, newCA) }, func() { rotate(newCA, newCA, oldCA) },
	} {
		rotateAgain()
		f.mustReconcile()
		f.observeDeployment() // its generation counts changes of annotations too
		f.mustReconcile()
		f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
		f.wantTemplate(template)
		for _, pod := range f.pods() {
			if got, want := pod.Annotations[v1alpha1.SecretsAnnotation], f.recordedVersions(); got != want {
				t.Errorf("pod %s: got annotation %q, want %q", pod.Name, got, want)
			}
		}
	}
	rotate(newCA, newCA)
	f.mustReconcile()
	f.wantRequests("get Secret", "patch status", "apply Deployment", "patch Pod",
		"patch Pod", "patch Pod")
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonRollingOut)
	revoked := get[appsv1.Deployment](f).Spec.Template
	if equality.Semantic.DeepEqual(revoked, template) {
		t.Error("got the same template after a CA was removed, want another")
	}
	f.restartOperator()
	f.setServersReady(3)
	rotate(newCA, newCA, oldCA)
	f.mustReconcile()
	f.wantTemplate(revoked)
}

// TestOneInvalidSecret: while the passwords are invalid, the certificate is still rotated. A CA that was added and
// removed meanwhile is revoked once the passwords are valid.
func TestOneInvalidSecret(t *testing.T) {
	f := newFixtureOf(t, "{size: 3, tls: {secretName: certificate, clientAuth: Request}, auth: {secretName: passwords}}")
	content, ca := f.issue(f.newCA()), f.issue(f.newCA())["ca.crt"]
	f.writeCertificate(content)
	f.createPasswords("app:first\n")
	f.becomeReady()
	template := get[appsv1.Deployment](f).Spec.Template

	f.patchPasswords(`{"stringData":{"authfile":"nonsense"}}`)
	firstCA := content["ca.crt"]
	content["ca.crt"] = slices.Concat(firstCA, ca)
	s := f.writeCertificate(content)
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonInvalid)
	for _, pod := range f.pods() {
		if !strings.Contains(pod.Annotations[v1alpha1.SecretsAnnotation], s.ResourceVersion) {
			t.Errorf("pod %s: got annotations %v, want version %s of the certificate", pod.Name, pod.Annotations,
				s.ResourceVersion)
		}
	}
	f.wantTemplate(template)
	f.restartOperator()
	content["ca.crt"] = firstCA
	f.writeCertificate(content)
	f.mustReconcile()
	f.wantTemplate(template) // no server is replaced while the passwords are invalid
	f.patchPasswords(`{"stringData":{"authfile":"app:second\n"}}`)
	f.mustReconcile()
	if equality.Semantic.DeepEqual(get[appsv1.Deployment](f).Spec.Template, template) {
		t.Error("got the same template after a CA was removed, want another")
	}
}

// TestUnrecordedCA: servers may have read a CA that was added and removed while the workload could not be written. The
// CA is revoked.
func TestUnrecordedCA(t *testing.T) {
	f := newFixtureOf(t, "{size: 3, tls: {secretName: certificate, clientAuth: Request}}")
	content, ca := f.issue(f.newCA()), f.issue(f.newCA())["ca.crt"]
	f.writeCertificate(content)
	f.becomeReady()
	template := get[appsv1.Deployment](f).Spec.Template

	f.failures["apply Deployment"] = errors.New("no (by the test)")
	firstCA := content["ca.crt"]
	content["ca.crt"] = slices.Concat(firstCA, ca)
	f.writeCertificate(content)
	f.wantReconcileError("no (by the test)")
	delete(f.failures, "apply Deployment")
	content["ca.crt"] = firstCA
	f.writeCertificate(content)
	f.mustReconcile()
	if equality.Semantic.DeepEqual(get[appsv1.Deployment](f).Spec.Template, template) {
		t.Error("got the same template after a CA was removed, want another")
	}
}

// TestExpiredCertificate: the status says when the servers' certificate expired.
func TestExpiredCertificate(t *testing.T) {
	f := newFixtureOf(t, "{size: 3, tls: {secretName: certificate}}")
	f.writeCertificate(f.issue(f.newCA()))
	f.becomeReady()
	result := f.mustReconcile()
	if result.RequeueAfter == 0 {
		t.Error("got no requeue, want one when the certificate expires")
	}
	f.now = f.now.Add(result.RequeueAfter + time.Second)
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonInvalid)
	f.wantMessage(v1alpha1.ConditionReady, "certificate expired at")
}

// TestAgentNeedsClientCertificate: a certificate that ca.crt does not verify is refused once the agent needs it as a
// client.
func TestAgentNeedsClientCertificate(t *testing.T) {
	f := newFixtureOf(t, "{tls: {secretName: certificate, clientAuth: Require}}")
	content := f.issue(f.newCA())
	content["ca.crt"] = f.issue(f.newCA())["ca.crt"]
	f.writeCertificate(content)
	f.mustReconcile()
	f.setServersReady(1)
	f.mustReconcile()
	template := get[appsv1.Deployment](f).Spec.Template
	f.patch(`{"spec":{"metrics":{}}}`)
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonInvalid)
	f.wantTemplate(template)
}

// recordedVersions returns the annotation for the Secrets that the Deployment records.
func (f *fixture) recordedVersions() string {
	f.Helper()
	var record struct{ Secrets desired.Secrets }
	f.must(json.Unmarshal([]byte(get[appsv1.Deployment](f).Annotations[v1alpha1.TemplateRecordAnnotation]), &record))
	return record.Secrets.Annotation()
}

func (f *fixture) pods() []corev1.Pod {
	f.Helper()
	var pods corev1.PodList
	f.must(f.api.List(f.ctx, &pods, client.InNamespace(f.mc.Namespace)))
	if len(pods.Items) == 0 { // a loop over them would test nothing
		f.Fatal("there is no pod")
	}
	return pods.Items
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
			f := newFixtureOf(t, "{size: 3, auth: {secretName: passwords}}")
			f.createPasswords(tt.content)
			_, _ = f.reconcile()
			f.wantMessage(tt.condition, tt.want)
			b, err := json.Marshal(f.mc)
			f.must(err)
			texts := []string{string(b)}
			for len(f.events.Events) > 0 {
				texts = append(texts, <-f.events.Events)
			}
			var deployments appsv1.DeploymentList
			f.must(f.api.List(f.ctx, &deployments, client.InNamespace(f.mc.Namespace)))
			b, err = json.Marshal(deployments)
			f.must(err)
			for _, text := range append(texts, string(b)) {
				if strings.Contains(text, "hunter2") {
					t.Errorf("got the password in %s", text)
				}
			}
		})
	}
}

func TestSecretNames(t *testing.T) {
	t.Parallel()
	mc := &v1alpha1.Memcached{}
	for _, want := range [][]string{nil, {"b"}, {"a", "b"}, {"b"}} {
		if got := secretNames(mc); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		switch {
		case mc.Spec.TLS == nil:
			mc.Spec.TLS = &v1alpha1.TLSSpec{SecretName: "b"}
		case mc.Spec.Auth == nil:
			mc.Spec.Auth = &v1alpha1.AuthSpec{SecretName: "a"}
		default:
			mc.Spec.Auth.SecretName = "b"
		}
	}
}

// TestNoReplacementWithoutSecret: while a Secret is missing, a rollout deletes no server: its replacement could not
// start.
func TestNoReplacementWithoutSecret(t *testing.T) {
	f := newFixtureOf(t, "{size: 3, workload: StatefulSet, auth: {secretName: passwords}}")
	f.createPasswords("app:first\n")
	f.mustReconcile()
	f.setServers(updated(), updated(), updated())
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	f.patch(`{"spec":{"memory":"128Mi"}}`)
	f.mustReconcile()
	f.setServers(outdated(), outdated(), outdated())
	f.must(f.api.Delete(f.ctx, f.passwords()))
	f.wantReconcileError("SecretNotFound")
	f.wantRequests("get Secret", "patch Pod", "patch Pod", "patch Pod", "patch status")
	f.createPasswords("app:first\n")
	f.mustReconcile()
	if !slices.Contains(f.requests, "delete Pod") {
		t.Errorf("got requests %q, want a pod deleted once the Secret exists", f.requests)
	}
}
