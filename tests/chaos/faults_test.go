package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/internal/testing/harness"
	"github.com/example/memcached-operator/tests/cluster"
)

// fault is something that goes wrong.
type fault struct {
	name string
	// only is the kind of cluster on which it can happen; empty for all.
	only string
	// do begins the fault, which end ends; end is nil for a fault that is over at once.
	do func(w *world) (end func() error, err error)
}

// errNone says that there is nothing that the fault could happen to.
var errNone = errors.New("there is none")

// outages break the operator and the control plane. They are no reason to replace a server.
var outages = []fault{
	{name: "the leader is killed", do: once((*world).killLeader)},
	{name: "the leader is killed, and returns as another release", only: "kwok", do: once(func(w *world) error {
		release := w.random.IntN(3)
		w.operator.DefaultImage = fmt.Sprintf("memcached:%d", release)
		w.operator.AgentImage = fmt.Sprintf("operator:%d", release)
		return w.killLeader()
	})},
	{name: "the leader is frozen, and wakes up late", do: func(w *world) (func() error, error) {
		return w.operator.Freeze(w.ctx)
	}},
	{name: "an operator of another release works without a lease", only: "kwok", do: func(w *world) (func() error, error) {
		rival := w.cluster.Operator("")
		rival.DefaultImage, rival.AgentImage = "memcached:rival", "operator:rival"
		return rival.StartBeside(w.ctx, "rival", "--leader-elect=false")
	}},
	{name: "the operator gets 429, because its account floods the API server", do: (*world).throttle},
	freezes("the API server is frozen", "kube-apiserver"),
	freezes("etcd is frozen", "etcd"),
	freezes("the controllers are frozen", "kube-controller-manager"),
	freezes("the scheduler is frozen", "kube-scheduler"),
	freezes("the kubelet is frozen", "kubelet", "kwok-controller"),
	kills("the API server is killed", "kube-apiserver"),
	kills("etcd is killed", "etcd"),
	kills("the controllers are killed", "kube-controller-manager"),
}

// changes are what users, administrators and others do with the objects.
var changes = []fault{
	{name: "the node is cut off for a minute", do: once(func(w *world) error {
		end, err := w.freeze("kubelet", "kwok-controller")
		if err != nil {
			return err
		}
		time.Sleep(time.Minute) // until the control plane takes the node for lost
		return end()
	})},
	{name: "a child is deleted", do: once(func(w *world) error { return w.onObject(children, w.delete) })},
	patches("a child is changed", children, func(*world) string {
		return `{"metadata": {"labels": {"app.kubernetes.io/managed-by": "somebody"}, "annotations": null,
			"ownerReferences": null}}`
	}),
	patches("a workload is changed", workloads, func(*world) string {
		return `{"spec": {"replicas": 1, "template": {"metadata": {"labels": {"somebody": "was-here"}}}}}`
	}),
	{name: "a pod is deleted", do: once(func(w *world) error { return w.onObject(pods, w.delete) })},
	{name: "a pod is evicted", do: once(func(w *world) error {
		return w.onObject(pods, func(obj client.Object) error {
			return w.SubResource("eviction").Create(w.ctx, obj, &policyv1.Eviction{})
		})
	})},
	{name: "a node is drained, as far as budgets allow", do: func(w *world) (func() error, error) {
		var nodes corev1.NodeList
		if err := w.List(w.ctx, &nodes); err != nil {
			return nil, err
		}
		name := nodes.Items[w.random.IntN(len(nodes.Items))].Name
		err := w.kubectl("drain", name, "--ignore-daemonsets", "--timeout=20s",
			"--pod-selector=app.kubernetes.io/managed-by=memcached-operator")
		if err != nil && (strings.Contains(err.Error(), "global timeout reached") || // disruption budgets stop the drain
			strings.Contains(err.Error(), context.DeadlineExceeded.Error())) { // or the last pod has yet to stop
			err = nil
		}
		return func() error { return w.kubectl("uncordon", name) }, err
	}},
	patches("a user changes the spec", memcacheds, func(w *world) string {
		return `{"spec": ` + []string{`{"size": 1}`, `{"size": 4}`, `{"threads": 3}`, `{"maxConnections": 1025}`,
			`{"metrics": {}}`, `{"metrics": null}`, `{"networkPolicy": {}}`, `{"networkPolicy": null}`}[w.random.IntN(8)] + `}`
	}),
	patches("a user restarts the servers", memcacheds, func(*world) string {
		return fmt.Sprintf(`{"metadata": {"annotations": {%q: %q}}}`, v1alpha1.RestartedAtAnnotation,
			time.Now().Format(time.RFC3339))
	}),
	{name: "certificate and passwords are rotated", do: once(func(w *world) error {
		return w.onSecrets(func(secret *corev1.Secret) error { return w.Update(w.ctx, secret) })
	})},
	{name: "a user deletes a Memcached", do: once(func(w *world) error { return w.onObject(memcacheds, w.delete) })},
	{name: "a user deletes the namespace", do: once(func(w *world) error {
		if err := w.Delete(w.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.ns}}); err != nil {
			return err
		}
		w.createNamespace()
		return nil
	})},
}

// once is a fault that is over when do returns.
func once(do func(w *world) error) func(*world) (func() error, error) {
	return func(w *world) (func() error, error) { return nil, do(w) }
}

// patches is the fault that somebody patches an object of these kinds.
func patches(name string, kinds []client.ObjectList, patch func(w *world) string) fault {
	return fault{name: name, do: once(func(w *world) error {
		return w.onObject(kinds, func(obj client.Object) error { return w.patch(obj, patch(w)) })
	})}
}

// freezes is the fault that a program does nothing for a while; the first one that the cluster has.
func freezes(name string, programs ...string) fault {
	return fault{name: name, do: func(w *world) (func() error, error) { return w.freeze(programs...) }}
}

// kills is the fault that a program is killed, and starts again later.
func kills(name, program string) fault {
	return fault{name: name, do: func(w *world) (func() error, error) {
		return func() error { return w.cluster.Repair(w.ctx) }, none(w.cluster.Kill(w.ctx, program))
	}}
}

func (w *world) freeze(programs ...string) (end func() error, err error) {
	for _, program := range programs {
		if end, err = w.cluster.Freeze(program); !errors.Is(err, os.ErrNotExist) {
			break
		}
	}
	return end, none(err)
}

// none translates the error for a program that does not run, as after another fault.
func none(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return errNone
	}
	return err
}

// killLeader kills the leader, and measures how long it takes until a standby leads, if there is one.
func (w *world) killLeader() error {
	killed, holderErr := w.operator.Holder(w.ctx)
	if err := w.operator.Kill(w.ctx); err != nil {
		return err
	}
	w.deaths++
	if holderErr != nil { // the API server does not answer
		return nil
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(w.ctx, 40*time.Second)
	defer cancel()
	err := harness.Poll(ctx, func(ctx context.Context) error {
		holder, err := w.operator.Holder(ctx)
		if err == nil && holder == killed {
			err = errors.New("nobody has taken over")
		}
		return err
	})
	if err == nil {
		w.failovers = append(w.failovers, time.Since(began))
	}
	return nil
}

// throttle lets the API server serve one request of the operator's service account at a time, and answer the others
// with 429. It sends requests of this account without a pause, and waits until one of them gets this answer.
func (w *world) throttle() (func() error, error) {
	level := &flowcontrolv1.PriorityLevelConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "chaos"},
		Spec: flowcontrolv1.PriorityLevelConfigurationSpec{Type: flowcontrolv1.PriorityLevelEnablementLimited,
			Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{NominalConcurrencyShares: ptr.To(int32(0)),
				BorrowingLimitPercent: ptr.To(int32(0)),
				LimitResponse:         flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeReject}}}}
	schema := &flowcontrolv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: "chaos"},
		Spec: flowcontrolv1.FlowSchemaSpec{
			PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: level.Name},
			MatchingPrecedence:         2, // 1 is reserved
			Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
				Subjects: []flowcontrolv1.Subject{{Kind: flowcontrolv1.SubjectKindServiceAccount,
					ServiceAccount: &flowcontrolv1.ServiceAccountSubject{Namespace: cluster.OperatorNamespace,
						Name: cluster.OperatorDeployment}}},
				ResourceRules: []flowcontrolv1.ResourcePolicyRule{{Verbs: []string{"*"}, APIGroups: []string{"*"},
					Resources: []string{"*"}, ClusterScope: true, Namespaces: []string{"*"}}}}}}}
	kubeconfig, err := w.cluster.KubeconfigOf(w.ctx, cluster.OperatorNamespace, cluster.OperatorDeployment)
	if err != nil {
		return nil, err
	}
	config, err := cluster.RestConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	flood, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(w.ctx)
	end := func() error {
		stop()
		return errors.Join(client.IgnoreNotFound(w.Delete(w.ctx, schema)), client.IgnoreNotFound(w.Delete(w.ctx, level)))
	}
	if err := errors.Join(client.IgnoreAlreadyExists(w.Create(w.ctx, level)),
		client.IgnoreAlreadyExists(w.Create(w.ctx, schema))); err != nil {
		return end, err
	}
	rejected := make(chan struct{}, 1)
	for range 4 {
		go func() {
			for ctx.Err() == nil {
				_, err := flood.CoreV1().RESTClient().Get().Resource("pods").MaxRetries(0).DoRaw(ctx)
				if apierrors.IsTooManyRequests(err) {
					select {
					case rejected <- struct{}{}:
					default:
					}
				}
			}
		}()
	}
	select {
	case <-rejected:
		return end, nil
	case <-time.After(20 * time.Second):
		return end, errors.New("no request was answered with 429")
	}
}

// kubectl runs kubectl on the cluster, for half a minute at most.
func (w *world) kubectl(args ...string) error {
	ctx, cancel := context.WithTimeout(w.ctx, 30*time.Second)
	defer cancel()
	_, err := harness.Command{Env: []string{"KUBECONFIG=" + w.cluster.GetKubeconfig()}}.Run(ctx, "kubectl", args...)
	return err
}
