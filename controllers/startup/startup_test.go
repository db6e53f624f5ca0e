package startup

import (
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/internal/testing/apiserver"
)

const root = "../.."

// TestFeaturesRetries: Features repeats its request while the API server answers neither "found" nor "not found".
func TestFeaturesRetries(t *testing.T) {
	backoff.Duration = time.Millisecond
	for name, tt := range map[string]struct {
		answers []int // HTTP status codes; the last one is repeated
		want    bool
		err     string
	}{
		"OpenShift":              {answers: []int{200}, want: true},
		"Kubernetes":             {answers: []int{404}},
		"a starting OpenShift":   {answers: []int{503, 500, 200}, want: true},
		"a starting Kubernetes":  {answers: []int{503, 404}},
		"a broken API server":    {answers: []int{503}, err: "find out whether the cluster is OpenShift"},
		"discovery is forbidden": {answers: []int{403}, err: "find out whether the cluster is OpenShift"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				switch {
				case r.URL.Path == "/apis": // a starting API server does not list the group yet
					_, _ = w.Write([]byte(`{"kind": "APIGroupList", "apiVersion": "v1", "groups": []}`))
				case r.URL.Path == "/api/v1":
					_, _ = w.Write([]byte(`{"kind": "APIResourceList", "apiVersion": "v1", "resources": [{"name": "pods"}]}`))
				case r.URL.Path != "/apis/security.openshift.io/v1":
					w.WriteHeader(http.StatusNotFound)
				case tt.answers[0] == http.StatusOK:
					_, _ = w.Write([]byte(`{"kind": "APIResourceList", "apiVersion": "v1"}`))
				default:
					w.WriteHeader(tt.answers[0])
					tt.answers = tt.answers[min(1, len(tt.answers)-1):]
				}
			}))
			defer server.Close()
			got, canResize, err := Features(t.Context(), &rest.Config{Host: server.URL})
			if got != tt.want || canResize || (err == nil) != (tt.err == "") ||
				err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("got %t, %v, want %t, %q", got, err, tt.want, tt.err)
			}
		})
	}
}

// TestCluster runs Features and Namespaces against a real API server. The client of Namespaces has the operator's own
// permissions.
func TestCluster(t *testing.T) {
	config := apiserver.Start(t, root, "config/crd/bases")
	t.Run("Features", func(t *testing.T) { testFeatures(t, config) })
	t.Run("Namespaces", func(t *testing.T) { testNamespaces(t, config) })
}

func testFeatures(t *testing.T, config *rest.Config) {
	if openShift, canResize, err := Features(t.Context(), config); err != nil || openShift || !canResize {
		t.Errorf("without security.openshift.io: %t, %t, %v", openShift, canResize, err)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "securitycontextconstraints.security.openshift.io"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "security.openshift.io",
			Scope: apiextensionsv1.ClusterScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{
				Plural: "securitycontextconstraints", Kind: "SecurityContextConstraints"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{
					OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}}}},
		},
	}
	_, err := envtest.InstallCRDs(config, envtest.CRDInstallOptions{
		CRDs: []*apiextensionsv1.CustomResourceDefinition{crd}})
	must(t, err)
	if openShift, _, err := Features(t.Context(), config); err != nil || !openShift {
		t.Errorf("with security.openshift.io: %t, %v", openShift, err)
	}
}

func testNamespaces(t *testing.T, config *rest.Config) {
	admin := newClient(t, config)
	for _, name := range []string{"served", "deleted"} {
		must(t, admin.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	}
	mc := &v1alpha1.Memcached{ObjectMeta: metav1.ObjectMeta{Namespace: "deleted", Name: "m",
		Finalizers: []string{"example.com/other", v1alpha1.Finalizer}}}
	must(t, admin.Create(t.Context(), mc))
	// This cluster runs no namespace controller, so the namespace stays in phase Terminating.
	must(t, admin.Delete(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "deleted"}}))

	text, err := os.ReadFile(root + "/config/rbac/finalizer_role.yaml")
	must(t, err)
	role := &rbacv1.ClusterRole{}
	must(t, yaml.UnmarshalStrict(text, role))
	must(t, admin.Create(t.Context(), role))
	must(t, admin.Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "operator"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "operator"}}}))
	as := func(user string) client.Client {
		impersonating := rest.CopyConfig(config)
		impersonating.Impersonate.UserName = user
		return newClient(t, impersonating)
	}
	operator, stranger := as("operator"), as("stranger")

	for name, tt := range map[string]struct {
		client      client.Client
		names, want []string
		err         string
	}{
		"all namespaces":       {client: operator},
		"one does not exist":   {client: operator, names: []string{"missing", "served"}, want: []string{"served"}},
		"one is being deleted": {client: operator, names: []string{"deleted", "served"}, want: []string{"served"}},
		"none exists": {client: operator, names: []string{"missing", "gone"},
			err: `no namespace of --watch-namespaces exists: ["missing" "gone"]`},
		"no permission": {client: stranger, names: []string{"missing", "served"}, want: []string{"missing", "served"}},
	} {
		got, err := Namespaces(t.Context(), tt.client, tt.names)
		if !slices.Equal(got, tt.want) || (err == nil) != (tt.err == "") || err != nil && err.Error() != tt.err {
			t.Errorf("%s: got %q, %v, want %q, %q", name, got, err, tt.want, tt.err)
		}
	}
	must(t, admin.Get(t.Context(), client.ObjectKeyFromObject(mc), mc))
	if !slices.Equal(mc.Finalizers, []string{"example.com/other"}) {
		t.Errorf("finalizers in the namespace that is being deleted: %q", mc.Finalizers)
	}
}

func newClient(t *testing.T, config *rest.Config) client.Client {
	t.Helper()
	must(t, v1alpha1.AddToScheme(clientgoscheme.Scheme))
	c, err := client.New(config, client.Options{Scheme: clientgoscheme.Scheme})
	must(t, err)
	return c
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
