package simulation

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/internal/testing/apiserver"
	"github.com/example/memcached-operator/internal/testing/harness"
	"github.com/example/memcached-operator/internal/testing/simulator"
	"github.com/example/memcached-operator/tests/cluster"
)

var environment = envtest.Environment{CRDDirectoryPaths: []string{"../../config/crd/bases"}}

// server is a real API server with a real garbage collector.
type server struct {
	config *rest.Config // of an administrator
	scheme *runtime.Scheme
	mapper meta.RESTMapper
	api    client.WithWatch // of an administrator
	admin  http.RoundTripper
	// operator is the transport of the operator, which has the permissions that it ships with, and refused one of the
	// same user, for whom a policy refuses all children.
	operator, refused http.RoundTripper
}

// operatorUser is the service account of the operator.
const operatorUser = "system:serviceaccount:" + cluster.OperatorNamespace + ":" + cluster.OperatorDeployment

var startServer = sync.OnceValues(func() (*server, error) {
	programs, err := apiserver.Programs()
	if err != nil {
		return nil, err
	}
	environment.BinaryAssetsDirectory = programs
	environment.ControlPlane.GetAPIServer().Configure().Set("service-cluster-ip-range", "10.0.0.0/16").
		Set("enable-admission-plugins", "OwnerReferencesPermissionEnforcement")
	environment.ControlPlane.Etcd = &envtest.Etcd{}
	environment.ControlPlane.Etcd.Configure().Set("unsafe-no-fsync", "true")
	config, err := environment.Start()
	if err != nil {
		return nil, fmt.Errorf("start the API server: %w", err)
	}
	config.QPS = -1
	s := &server{config: config, scheme: runtime.NewScheme()}
	if err := errors.Join(clientgoscheme.AddToScheme(s.scheme), v1alpha1.AddToScheme(s.scheme)); err != nil {
		return nil, err
	}
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	if s.mapper, err = apiutil.NewDynamicRESTMapper(config, httpClient); err != nil {
		return nil, err
	}
	s.admin = httpClient.Transport
	if s.api, err = s.client(s.admin); err != nil {
		return nil, err
	}
	if s.operator, err = transportOf(operatorUser); err != nil {
		return nil, err
	}
	if s.refused, err = transportOf(operatorUser, refused); err != nil {
		return nil, err
	}
	ctx := context.Background()
	return s, errors.Join(s.permitOperator(ctx), simulator.CreateNode(ctx, s.api), startGarbageCollector())
})

// client returns a client with this transport.
func (s *server) client(transport http.RoundTripper) (client.WithWatch, error) {
	return client.NewWithWatch(s.config, client.Options{Scheme: s.scheme, Mapper: s.mapper,
		HTTPClient: &http.Client{Transport: transport}})
}

// stopServer ends the API server that the tests started.
var stopServer = sync.OnceFunc(func() {
	stopGarbageCollector()
	if err := environment.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
})

// transportOf returns the transport of a user.
func transportOf(name string, groups ...string) (http.RoundTripper, error) {
	user, err := environment.AddUser(envtest.User{Name: name, Groups: groups}, nil)
	if err != nil {
		return nil, err
	}
	return rest.TransportFor(user.Config())
}

// permitOperator gives the operator the permissions that it ships with, and waits until the API server knows of them.
func (s *server) permitOperator(ctx context.Context) error {
	text, err := os.ReadFile("../../config/rbac/role.yaml")
	if err != nil {
		return err
	}
	role := &rbacv1.ClusterRole{}
	if err := yaml.UnmarshalStrict(text, role); err != nil {
		return err
	}
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: role.Name},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: operatorUser}}}
	if err := errors.Join(s.api.Create(ctx, role), s.api.Create(ctx, binding)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return harness.Poll(ctx, func(ctx context.Context) error {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: operatorUser,
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "list", Resource: "pods"}}}
		if err := s.api.Create(ctx, review); err != nil || review.Status.Allowed {
			return err
		}
		return errors.New("the API server does not give the operator its permissions")
	})
}
