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
	"github.com/example/memcached-operator/tests/authority"
)

func (f *fixture) secret(content string) {
	f.Helper()
	s := f.passwords()
	s.StringData = map[string]string{"authfile": content}
	f.must(f.api.Create(f.ctx, s))
}

func (f *fixture) patchSecret(patch string) {
	f.Helper()
	f.must(f.api.Patch(f.ctx, f.passwords(), mergePatch(patch)))
}

func (f *fixture) passwords() *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "passwords", Namespace: f.mc.Namespace}}
}

// wantError reconciles, and wants an error, which is retried.
func (f *fixture) wantError(part string) {
	f.Helper()
	if _, err := f.reconcile(); err == nil || !strings.Contains(err.Error(), part) {
		f.Errorf("returns %v, want an error with %q", err, part)
	}
}

func (f *fixture) message(conditionType string) string {
	if c := meta.FindStatusCondition(f.mc.Status.Conditions, conditionType); c != nil {
		return c.Message
	}
	return ""
}

// TestSecrets: servers are created once their Secret exists, and keep running whatever happens to it.
func TestSecrets(t *testing.T) {
	f := newFixtureOf(t, "{size: 3, auth: {secretName: passwords}}")
	f.wantError("SecretNotFound")
	f.want(v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonProgressingWithRetry)
	if got := f.message(v1alpha1.ConditionReady); got != "SecretNotFound: there is no Secret passwords" {
		t.Errorf("Ready says %q", got)
	}
	f.wantRequests("apply Memcached", "get Secret",
		"apply Service", "apply PodDisruptionBudget", "patch status")

	f.secret("app:first\n")
	f.mustReconcile()
	f.wantRequests("get Deployment", "get Secret", "get Deployment", "get Memcached", "apply Deployment", "patch status")
	f.roll(3)
	f.mustReconcile()
	f.want(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	template := get[appsv1.Deployment](f).Spec.Template
	f.restart()
	f.mustReconcile()
	f.wantRequests() // the record on the Deployment is enough

	f.patchSecret(`{"metadata":{"labels":{"rotated":"no"}},"data":{"other":"YQ=="}}`)
	f.fail["get Secret"] = apierrors.NewForbidden(corev1.Resource("secrets"), "passwords", errors.New("no role"))
	f.wantError("no role")
	f.want(v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonProgressingWithRetry)
	f.wantTemplate(template)
	f.fail["get Secret"] = nil
	f.mustReconcile()
	f.wantRequests("get Secret", "ask Deployment", "apply Deployment", "patch Pod", "patch Pod", "patch Pod",
		"patch status")
	f.roll(3)
	f.mustReconcile()
	f.want(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	f.wantTemplate(template)

	f.must(f.api.Delete(f.ctx, f.passwords()))
	f.patch(`{"spec":{"size":2}}`)
	f.wantError("SecretNotFound")
	f.want(v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonProgressingWithRetry)
	f.wantTemplate(template)
	if got := *get[appsv1.Deployment](f).Spec.Replicas; got != 2 {
		t.Errorf("%d servers are wanted, though only the Secret is missing", got)
	}
	f.secret("app:first\n")
	f.roll(2)
	f.mustReconcile()
	f.roll(2)
	f.mustReconcile()
	f.want(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	f.wantTemplate(template)

	f.patchSecret(`{"stringData":{"authfile":"app:second\n"}}`)
	f.mustReconcile()
	f.wantRequests("get Secret", "ask Deployment", "apply Deployment", "patch Pod", "patch Pod")
	f.want(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	f.wantTemplate(template)
	f.mustReconcile()
	f.wantRequests() // the agents do the rest
}

// TestRevokedAuthority: servers are replaced only if memcached must stop trusting a CA.
func TestRevokedAuthority(t *testing.T) {
	f := newFixtureOf(t, "{size: 3, tls: {secretName: certificate, clientAuth: Require}}")
	old, err := authority.New()
	f.must(err)
	next, err := authority.New()
	f.must(err)
	put := func(a *authority.Authority, authorities ...*authority.Authority) {
		f.Helper()
		content, err := a.Secret("cache")
		f.must(err)
		content["ca.crt"] = nil
		for _, a := range authorities {
			other, err := a.Secret("cache")
			f.must(err)
			content["ca.crt"] = append(content["ca.crt"], other["ca.crt"]...)
		}
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "certificate", Namespace: f.mc.Namespace}, Data: content}
		if err := f.api.Update(f.ctx, s); apierrors.IsNotFound(err) {
			f.must(f.api.Create(f.ctx, s))
		} else {
			f.must(err)
		}
	}
	put(old, old)
	f.mustReconcile()
	f.roll(3)
	f.mustReconcile()
	template := get[appsv1.Deployment](f).Spec.Template
	for _, change := range []func(){
		func() { put(old, old) }, func() { put(old, old, next) }, func() { put(next, next, old) },
	} {
		change()
		f.mustReconcile()
		f.want(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
		f.wantTemplate(template)
		for _, pod := range f.pods() {
			if got, want := pod.Annotations[v1alpha1.SecretsAnnotation], f.versions(); got != want {
				t.Errorf("pod %s is annotated with %q, want %q", pod.Name, got, want)
			}
		}
	}
	put(next, next)
	f.mustReconcile()
	f.wantRequests("get Secret", "ask Deployment", "get Namespace", "patch status", "apply Deployment", "patch Pod",
		"patch Pod", "patch Pod")
	f.want(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonRollingOut)
	revoked := get[appsv1.Deployment](f).Spec.Template
	if equality.Semantic.DeepEqual(revoked, template) {
		t.Error("removing a CA replaces no server")
	}
	f.restart()
	f.roll(3)
	put(next, next, old)
	f.mustReconcile()
	f.wantTemplate(revoked)
}

// TestOneWrongSecret: while one Secret is invalid, the other one is still rotated and recorded, so that the removal of
// a CA that was trusted meanwhile is noticed.
func TestOneWrongSecret(t *testing.T) {
	f := newFixtureOf(t, "{size: 3, tls: {secretName: certificate, clientAuth: Request}, auth: {secretName: passwords}}")
	ours, err := authority.New()
	f.must(err)
	content, err := ours.Secret("cache")
	f.must(err)
	theirs, err := authority.New()
	f.must(err)
	other, err := theirs.Secret("cache")
	f.must(err)
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "certificate", Namespace: f.mc.Namespace}, Data: content}
	f.must(f.api.Create(f.ctx, s))
	f.secret("app:first\n")
	f.ready()
	template := get[appsv1.Deployment](f).Spec.Template

	f.patchSecret(`{"stringData":{"authfile":"nonsense"}}`)
	alone := content["ca.crt"]
	s.Data["ca.crt"] = slices.Concat(alone, other["ca.crt"])
	f.must(f.api.Update(f.ctx, s))
	f.mustReconcile()
	f.want(v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonInvalid)
	for _, pod := range f.pods() {
		if !strings.Contains(pod.Annotations[v1alpha1.SecretsAnnotation], s.ResourceVersion) {
			t.Errorf("pod %s is not annotated with the certificate: %v", pod.Name, pod.Annotations)
		}
	}
	f.wantTemplate(template)
	f.restart()
	s.Data["ca.crt"] = alone
	f.must(f.api.Update(f.ctx, s))
	f.mustReconcile()
	f.wantTemplate(template) // while the passwords are invalid
	f.patchSecret(`{"stringData":{"authfile":"app:second\n"}}`)
	f.mustReconcile()
	if equality.Semantic.DeepEqual(get[appsv1.Deployment](f).Spec.Template, template) {
		t.Error("the servers still trust a CA that was removed")
	}
}

// TestExpiredCertificate: the status says when the servers' certificate expired.
func TestExpiredCertificate(t *testing.T) {
	f := newFixtureOf(t, "{size: 3, tls: {secretName: certificate}}")
	ours, err := authority.New()
	f.must(err)
	content, err := ours.Secret("cache")
	f.must(err)
	f.must(f.api.Create(f.ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "certificate", Namespace: f.mc.Namespace}, Data: content}))
	f.ready()
	result := f.mustReconcile()
	if result.RequeueAfter == 0 {
		t.Error("no reconcile is scheduled for the expiry of the certificate")
	}
	f.now = f.now.Add(result.RequeueAfter + time.Second)
	f.mustReconcile()
	f.want(v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonInvalid)
	if got := f.message(v1alpha1.ConditionReady); !strings.Contains(got, "certificate expired at") {
		t.Errorf("Ready says %q", got)
	}
}

// TestAgentIsClient: a certificate that only servers may use is refused once the agent needs it as a client.
func TestAgentIsClient(t *testing.T) {
	f := newFixtureOf(t, "{tls: {secretName: certificate, clientAuth: Require}}")
	ours, err := authority.New()
	f.must(err)
	content, err := ours.Secret("cache")
	f.must(err)
	next, err := authority.New()
	f.must(err)
	theirs, err := next.Secret("cache")
	f.must(err)
	content["ca.crt"] = theirs["ca.crt"]
	f.must(f.api.Create(f.ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "certificate", Namespace: f.mc.Namespace}, Data: content}))
	f.mustReconcile()
	f.roll(1)
	f.mustReconcile()
	template := get[appsv1.Deployment](f).Spec.Template
	f.patch(`{"spec":{"metrics":{}}}`)
	f.mustReconcile()
	f.want(v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonInvalid)
	f.wantTemplate(template)
}

// versions are those of the Secrets that the workload records.
func (f *fixture) versions() string {
	f.Helper()
	var source struct{ Secrets desired.Secrets }
	f.must(json.Unmarshal([]byte(get[appsv1.Deployment](f).Annotations[v1alpha1.TemplateRecordAnnotation]), &source))
	return source.Secrets.Annotation()
}

func (f *fixture) pods() []corev1.Pod {
	f.Helper()
	var pods corev1.PodList
	f.must(f.api.List(f.ctx, &pods, client.InNamespace(f.mc.Namespace)))
	return pods.Items
}

// TestSecretIsNotTold: whatever is wrong with a Secret, its content is in no status, event or child.
func TestSecretIsNotTold(t *testing.T) {
	for name, tt := range map[string]struct{ content, condition, want string }{
		"no password":    {"hunter2\n", v1alpha1.ConditionStalled, "line 1 of authfile must be a user"},
		"no end":         {"app:hunter2", v1alpha1.ConditionStalled, "authfile must end with a line break"},
		"a user twice":   {"app:hunter2\napp:hunter22\n", v1alpha1.ConditionStalled, "line 2 of authfile repeats a user"},
		"empty":          {"", v1alpha1.ConditionReconciling, "SecretNotFound: Secret passwords has no key authfile"},
		"as it shall be": {"app:hunter2\n", v1alpha1.ConditionReconciling, "0 of 3 servers ready"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixtureOf(t, "{size: 3, auth: {secretName: passwords}}")
			f.secret(tt.content)
			_, _ = f.reconcile()
			if got := f.message(tt.condition); !strings.Contains(got, tt.want) {
				t.Errorf("%s says %q, want %q", tt.condition, got, tt.want)
			}
			b, err := json.Marshal(f.mc)
			f.must(err)
			told := []string{string(b)}
			for len(f.events.Events) > 0 {
				told = append(told, <-f.events.Events)
			}
			var deployments appsv1.DeploymentList
			f.must(f.api.List(f.ctx, &deployments, client.InNamespace(f.mc.Namespace)))
			b, err = json.Marshal(deployments)
			f.must(err)
			for _, text := range append(told, string(b)) {
				if strings.Contains(text, "hunter2") {
					t.Errorf("the content is disclosed: %s", text)
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
			t.Errorf("names %q, want %q", got, want)
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

// TestSecretHoldsReplacements: a rollout deletes no server whose replacement could not start.
func TestSecretHoldsReplacements(t *testing.T) {
	f := newFixtureOf(t, "{size: 3, workload: StatefulSet, auth: {secretName: passwords}}")
	f.secret("app:first\n")
	f.mustReconcile()
	f.servers("old", "old", "old")
	f.mustReconcile()
	f.want(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	f.patch(`{"spec":{"memory":"128Mi"}}`)
	f.mustReconcile()
	f.servers("old", "old", "old")
	f.must(f.api.Delete(f.ctx, f.passwords()))
	f.wantError("SecretNotFound")
	f.wantRequests("get Secret", "patch Pod", "patch Pod", "patch Pod", "get Namespace", "patch status")
	f.secret("app:first\n")
	f.mustReconcile()
	if !slices.Contains(f.requests, "delete Pod") {
		t.Errorf("the rollout does not continue: %q", f.requests)
	}
}
