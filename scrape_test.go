package main

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestScrapers: a real API server says who reads metrics, and each answer about a token holds for a while.
func TestScrapers(t *testing.T) {
	config := apiServer(t)
	reader, stranger := token(t, config, "reader"), token(t, config, "stranger")
	api, err := client.New(config, client.Options{})
	must(t, err)
	must(t, api.Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		Rules: []rbacv1.PolicyRule{{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}}}))
	must(t, api.Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "reader"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: "reader"}}}))

	asked := 0
	counted := rest.CopyConfig(config)
	counted.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) { asked++; return next.RoundTrip(r) })
	})
	httpClient, err := rest.HTTPClientFor(counted)
	must(t, err)
	filter, err := withAccessReview(counted, httpClient)
	must(t, err)
	metrics, err := filter(logr.Discard(), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusOK)
	}))
	must(t, err)

	for name, tt := range map[string]struct {
		method, path, authorization string
		want, asks, again           int
	}{
		"no token":             {"GET", "/metrics", "", 401, 0, 0},
		"no bearer":            {"GET", "/metrics", "Basic " + reader, 401, 0, 0},
		"not a token":          {"GET", "/metrics", "Bearer x", 401, 1, 1}, // nor remembered: anybody can make these up
		"reader":               {"GET", "/metrics", "Bearer " + reader, 200, 2, 0},
		"reader writes":        {"POST", "/metrics", "Bearer " + reader, 403, 2, 0},
		"reader looks further": {"GET", "/debug", "Bearer " + reader, 403, 2, 0},
		"stranger":             {"GET", "/metrics", "bearer " + stranger, 403, 2, 0},
	} {
		for _, asks := range []int{tt.asks, tt.again} {
			asked = 0
			request := httptest.NewRequestWithContext(t.Context(), tt.method, tt.path, nil)
			request.Header.Set("Authorization", tt.authorization)
			answer := httptest.NewRecorder()
			metrics.ServeHTTP(answer, request)
			if answer.Code != tt.want || asked != asks {
				t.Errorf("%s: HTTP status %d after %d questions, want %d after %d", name, answer.Code, asked, tt.want, asks)
			}
		}
	}

	counted.Host = "127.0.0.1:1"
	filter, err = withAccessReview(counted, httpClient)
	must(t, err)
	metrics, err = filter(logr.Discard(), metrics)
	must(t, err)
	request := httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil)
	request.Header.Set("Authorization", "Bearer "+reader)
	answer := httptest.NewRecorder()
	metrics.ServeHTTP(answer, request)
	if answer.Code != http.StatusInternalServerError {
		t.Errorf("HTTP status %d without an API server, want 500", answer.Code)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// token is one of a new service account.
func token(t *testing.T, config *rest.Config, name string) string {
	t.Helper()
	api, err := client.New(config, client.Options{Scheme: clientgoscheme.Scheme})
	must(t, err)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	must(t, api.Create(t.Context(), account))
	request := &authenticationv1.TokenRequest{}
	must(t, api.SubResource("token").Create(t.Context(), account, request))
	return request.Status.Token
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
