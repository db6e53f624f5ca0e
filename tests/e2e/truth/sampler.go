package truth

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// sampled lists the kinds that are watched. Add each new kind of child: a conflict with an object of a kind that is not
// watched would look like a lie. The same is true for objects that the status follows, such as Secrets.
var sampled = []struct {
	schema.GroupVersionResource
	selector string
	optional bool // not every version of Kubernetes has this kind
}{
	{GroupVersionResource: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}},
	{GroupVersionResource: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "statefulsets"}},
	{GroupVersionResource: schema.GroupVersionResource{Version: "v1", Resource: "services"}},
	{GroupVersionResource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}},
	{GroupVersionResource: schema.GroupVersionResource{Version: "v1", Resource: "secrets"}},
	{GroupVersionResource: schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1",
		Resource: "networkpolicies"}},
	{GroupVersionResource: schema.GroupVersionResource{Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"}},
	{GroupVersionResource: schema.GroupVersionResource{Version: "v1", Resource: "pods"}, selector: labelManagedBy + "=" +
		operator},
	{GroupVersionResource: admission("validatingadmissionpolicies")},
	{GroupVersionResource: admission("validatingadmissionpolicybindings")},
	{GroupVersionResource: admission("mutatingadmissionpolicies"), optional: true},
	{GroupVersionResource: admission("mutatingadmissionpolicybindings"), optional: true},
	{GroupVersionResource: admission("validatingwebhookconfigurations")},
	{GroupVersionResource: admission("mutatingwebhookconfigurations")},
	{GroupVersionResource: v1alpha1.GroupVersion.WithResource("memcacheds")}, // after what their status follows
}

func admission(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: resource}
}

// Sampler records all events that Judge needs.
type Sampler struct {
	client dynamic.Interface
	stop   context.CancelFunc

	mu     sync.Mutex
	events []Event
	newest map[types.UID]uint64
	err    error
}

// ErrLost says that the API server could not send all events, for example because it had been restarted.
var ErrLost = errors.New("events were lost")

// Start starts to watch. The CRD must exist.
func Start(ctx context.Context, config *rest.Config) (*Sampler, error) {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	s := &Sampler{client: client, newest: map[types.UID]uint64{}}
	ctx, s.stop = context.WithCancel(ctx)
	for _, kind := range sampled {
		list, err := client.Resource(kind.GroupVersionResource).List(ctx, metav1.ListOptions{LabelSelector: kind.selector})
		if kind.optional && apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			s.stop()
			return nil, fmt.Errorf("list %s: %w", kind.Resource, err)
		}
		for i := range list.Items {
			s.record(Event{Listed: true, Object: &list.Items[i]})
		}
		// The RetryWatcher resumes when a connection ends.
		w, err := watchtools.NewRetryWatcherWithContext(ctx, list.GetResourceVersion(), &cache.ListWatch{
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				o.LabelSelector = kind.selector
				return client.Resource(kind.GroupVersionResource).Watch(ctx, o)
			},
		})
		if err != nil {
			s.stop()
			return nil, fmt.Errorf("watch %s: %w", kind.Resource, err)
		}
		go func() {
			for e := range w.ResultChan() {
				object, ok := e.Object.(*unstructured.Unstructured)
				if !ok {
					s.lost(apierrors.FromObject(e.Object))
					return
				}
				s.record(Event{Deleted: e.Type == watch.Deleted, Object: object})
			}
		}()
	}
	return s, nil
}

func (s *Sampler) record(e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.Seen = time.Now()
	unstructured.RemoveNestedField(e.Object.Object, "data") // do not keep the content of Secrets
	s.events = append(s.events, e)
	s.newest[e.Object.GetUID()] = version(e.Object)
}

// lost remembers why a watch ended.
func (s *Sampler) lost(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = errors.Join(s.err, fmt.Errorf("%w: %w", ErrLost, err))
}

// Stop waits until all events so far are recorded, and judges them. The error is ErrLost if that is impossible.
func (s *Sampler) Stop(ctx context.Context) (Verdict, error) {
	defer s.stop()
	if err := s.failed(); err != nil {
		return Verdict{}, err
	}
	for _, kind := range sampled {
		list, err := s.client.Resource(kind.GroupVersionResource).List(ctx, metav1.ListOptions{LabelSelector: kind.selector})
		if kind.optional && apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return Verdict{}, fmt.Errorf("list %s: %w", kind.Resource, err)
		}
		err = wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, 10*time.Second, true,
			func(context.Context) (bool, error) {
				return s.recorded(list.Items), nil
			})
		if err != nil {
			return Verdict{}, fmt.Errorf("the watch of %s lags: %w", kind.Resource, err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	verdict, err := Judge(s.events, time.Now())
	return verdict, errors.Join(s.err, err)
}

func (s *Sampler) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func (s *Sampler) recorded(items []unstructured.Unstructured) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range items {
		if s.newest[items[i].GetUID()] < version(&items[i]) {
			return false
		}
	}
	return true
}
