package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	testingclock "k8s.io/utils/clock/testing"
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
	var failures []int // HTTP statuses that the next questions meet, 0 for a broken connection
	counted := rest.CopyConfig(config)
	counted.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			asked++
			if len(failures) == 0 {
				return next.RoundTrip(r)
			}
			status := failures[0]
			failures = failures[1:]
			if status == 0 {
				return nil, io.ErrUnexpectedEOF
			}
			return &http.Response{StatusCode: status, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
		})
	})
	httpClient, err := rest.HTTPClientFor(counted)
	must(t, err)
	s, err := newScrapers(counted, httpClient)
	must(t, err)
	clock := testingclock.NewFakeClock(time.Now())
	s.answers, s.retries.Duration = cache.NewExpiringWithClock(clock), time.Millisecond
	metrics, err := s.filter(logr.Discard(), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusOK)
	}))
	must(t, err)
	scrape := func(name, method, path, authorization string, want, asks int) {
		t.Helper()
		asked = 0
		request := httptest.NewRequestWithContext(t.Context(), method, path, nil)
		request.Header.Set("Authorization", authorization)
		answer := httptest.NewRecorder()
		metrics.ServeHTTP(answer, request)
		if answer.Code != want || asked != asks {
			t.Errorf("%s: HTTP status %d after %d questions, want %d after %d", name, answer.Code, asked, want, asks)
		}
	}

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
			scrape(name, tt.method, tt.path, tt.authorization, tt.want, asks)
		}
	}

	scrape("a path with a space", "GET", "/metrics%20x", "Bearer "+stranger, 403, 2)
	scrape("a token with a space", "GET", "/metrics", "Bearer x "+stranger, 401, 1)

	for _, tt := range []struct {
		name           string
		after          time.Duration
		reads, rejects int // questions about the reader and the stranger
	}{
		{"both answers hold", 29 * time.Second, 0, 0},
		{"a denial ends", 2 * time.Second, 0, 2},
		{"a permission ends", 30 * time.Second, 2, 2},
	} {
		clock.Step(tt.after)
		scrape(tt.name, "GET", "/metrics", "Bearer "+reader, 200, tt.reads)
		scrape(tt.name, "GET", "/metrics", "Bearer "+stranger, 403, tt.rejects)
	}

	for _, tt := range []struct {
		name       string
		failures   []int
		want, asks int
	}{
		{"a moment of trouble", []int{0, 500, 503}, 200, 3 + 2},
		{"lasting trouble", []int{0, 503, 503, 503, 503}, 500, 5},
		{"no permission to ask", []int{403}, 500, 1},
	} {
		clock.Step(time.Hour)
		failures = tt.failures
		scrape(tt.name, "GET", "/metrics", "Bearer "+reader, tt.want, tt.asks)
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
