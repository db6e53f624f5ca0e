package metricsauth

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/internal/testing/apiserver"
)

// TestFilter: a real API server decides who may read metrics.
func TestFilter(t *testing.T) {
	config := apiserver.Start(t, "../..")
	api, err := client.New(config, client.Options{})
	must(t, err)
	token := func(name string) string {
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
		must(t, api.Create(t.Context(), account))
		request := &authenticationv1.TokenRequest{}
		must(t, api.SubResource("token").Create(t.Context(), account, request))
		return request.Status.Token
	}
	reader, stranger := token("reader"), token("stranger")
	must(t, api.Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		Rules: []rbacv1.PolicyRule{{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}}}))
	must(t, api.Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "reader"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: "reader"}}}))

	var failing string // requests to this path of the API server fail
	faulty := rest.CopyConfig(config)
	faulty.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.URL.Path == failing {
				return nil, io.ErrUnexpectedEOF
			}
			return next.RoundTrip(r)
		})
	})
	httpClient, err := rest.HTTPClientFor(faulty)
	must(t, err)
	filter, err := Filter(faulty, httpClient)
	must(t, err)
	metrics, err := filter(logr.Discard(), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusOK)
	}))
	must(t, err)

	for name, tt := range map[string]struct {
		method, path, authorization, failing string
		want                                 int
	}{
		"no token":             {"GET", "/metrics", "", "", 401},
		"not a bearer token":   {"GET", "/metrics", "Basic " + reader, "", 401},
		"empty token":          {"GET", "/metrics", "Bearer ", "", 401},
		"invalid token":        {"GET", "/metrics", "Bearer x", "", 401},
		"token with a space":   {"GET", "/metrics", "Bearer x " + reader, "", 401},
		"reader":               {"GET", "/metrics", "Bearer " + reader, "", 200},
		"bearer in lower case": {"GET", "/metrics", "bearer " + reader, "", 200},
		"reader, POST":         {"POST", "/metrics", "Bearer " + reader, "", 403},
		"reader, other path":   {"GET", "/debug", "Bearer " + reader, "", 403},
		"path with a space":    {"GET", "/metrics%20x", "Bearer " + reader, "", 403},
		"stranger":             {"GET", "/metrics", "Bearer " + stranger, "", 403},
		"token review fails": {"GET", "/metrics", "Bearer " + reader, "/apis/authentication.k8s.io/v1/tokenreviews",
			500},
		"access review fails": {"GET", "/metrics", "Bearer " + reader,
			"/apis/authorization.k8s.io/v1/subjectaccessreviews", 500},
	} {
		failing = tt.failing
		request := httptest.NewRequestWithContext(t.Context(), tt.method, tt.path, nil)
		request.Header.Set("Authorization", tt.authorization)
		response := httptest.NewRecorder()
		metrics.ServeHTTP(response, request)
		if response.Code != tt.want {
			t.Errorf("%s: HTTP status %d, want %d", name, response.Code, tt.want)
		}
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
