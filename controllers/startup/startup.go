// Package startup reads from the cluster what the operator must know before its manager starts.
package startup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// container is the name of the operator's container in config/manager.
const container = "manager"

// backoff lasts 15 s in all.
var backoff = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Steps: 6}

// Features reports whether the cluster has OpenShift's security context constraints, which assign users to pods, and
// whether it can change the resources of a running pod, by default from Kubernetes 1.33 on.
//
// It requests each API itself: only "not found" proves that the cluster does not serve an API. The list of API groups
// is no proof, because a starting API server omits groups from it without an error.
func Features(ctx context.Context, config *rest.Config) (openShift, canResize bool, err error) {
	discoverer, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return false, false, fmt.Errorf("create a client for discovery: %w", err)
	}
	err = retryErrors(ctx, func() error {
		_, err := discoverer.ServerResourcesForGroupVersionWithContext(ctx, "security.openshift.io/v1")
		if openShift = err == nil; client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("find out whether the cluster is OpenShift: %w", err)
		}
		core, err := discoverer.ServerResourcesForGroupVersionWithContext(ctx, "v1")
		if err != nil {
			return fmt.Errorf("find out whether the cluster can resize pods: %w", err)
		}
		canResize = slices.ContainsFunc(core.APIResources, func(r metav1.APIResource) bool {
			return r.Name == "pods/resize"
		})
		return nil
	})
	return openShift, canResize, err
}

// Namespaces returns the namespaces of names that the operator can watch:
//   - A namespace that does not exist is left out. Where permissions are bound per namespace, its RoleBinding is
//     missing, so the informers could not list there and the operator would serve no namespace at all.
//   - A namespace that is being deleted is left out for the same reason. Namespaces removes the operator's finalizers
//     there, because no operator will do so later.
//   - A namespace that cannot be read is watched.
func Namespaces(ctx context.Context, c client.Client, names []string) ([]string, error) {
	logger := log.FromContext(ctx)
	var watched []string
	for _, name := range names {
		ns := &corev1.Namespace{}
		err := c.Get(ctx, client.ObjectKey{Name: name}, ns)
		switch {
		case apierrors.IsNotFound(err):
			logger.Info("not watching a namespace that does not exist", "namespace", name)
		case err == nil && ns.DeletionTimestamp != nil:
			logger.Info("not watching a namespace that is being deleted", "namespace", name)
			if err := retryErrors(ctx, func() error { return removeFinalizers(ctx, c, name) }); err != nil {
				logger.Error(err, "cannot remove the finalizers in a namespace that is being deleted", "namespace", name)
			}
		default:
			watched = append(watched, name)
		}
	}
	if len(names) > 0 && len(watched) == 0 {
		return nil, fmt.Errorf("no namespace of --watch-namespaces exists: %q", names)
	}
	return watched, nil
}

// retryErrors calls f until it returns no error, the backoff ends or ctx is done.
func retryErrors(ctx context.Context, f func() error) error {
	return retry.OnError(backoff, func(error) bool { return ctx.Err() == nil }, f)
}

func removeFinalizers(ctx context.Context, c client.Client, namespace string) error {
	var list v1alpha1.MemcachedList
	if err := c.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return err
	}
	for i := range list.Items {
		mc := &list.Items[i]
		patch := client.MergeFromWithOptions(mc.DeepCopy(), client.MergeFromWithOptimisticLock{})
		if controllerutil.RemoveFinalizer(mc, v1alpha1.Finalizer) {
			if err := client.IgnoreNotFound(c.Patch(ctx, mc, patch)); err != nil {
				return err
			}
		}
	}
	return nil
}

// AgentImage returns the image of the operator's own pod: users who install the operator from another registry name
// that registry only once. An operator that does not run in a pod needs AGENT_IMAGE.
func AgentImage(ctx context.Context, reader client.Reader) (string, error) {
	if image := os.Getenv("AGENT_IMAGE"); image != "" {
		return image, nil
	}
	key := client.ObjectKey{Namespace: os.Getenv("POD_NAMESPACE"), Name: os.Getenv("POD_NAME")}
	if key.Name == "" {
		return "", errors.New("set POD_NAME or AGENT_IMAGE: agents run the operator's own image")
	}
	pod := &corev1.Pod{}
	if err := reader.Get(ctx, key, pod); err != nil {
		return "", fmt.Errorf("read the operator's own image: %w", err)
	}
	for _, c := range pod.Spec.Containers {
		if c.Name == container {
			return c.Image, nil
		}
	}
	return "", fmt.Errorf("read the operator's own image: pod %s has no container %s", key.Name, container)
}
