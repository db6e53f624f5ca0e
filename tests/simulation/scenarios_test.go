package simulation

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/internal/testing/simulator"
	"github.com/example/memcached-operator/internal/testing/testca"
)

// scenario is what users do with one Memcached.
type scenario struct {
	name string
	// before is the spec of the Memcached that is Ready before the scenario begins; empty for none.
	before string
	// prepare is called first.
	prepare func(*world)
	// steps are what users do. After each of them, the operator works until nothing changes any more.
	steps []func(*world)
	// takesNewAgent says that an operator that is upgraded in the middle builds the template anew, with its own agent.
	takesNewAgent bool
	// stalls says that the Memcached may become Stalled.
	stalls bool
	// deleted says that the Memcached is deleted in the end; otherwise it is Ready.
	deleted bool
}

const (
	onDeployment  = `{size: 3}`
	onStatefulSet = `{size: 3, workload: StatefulSet}`
	withAgents    = `{size: 3, workload: StatefulSet, metrics: {}}`
	withProxies   = `{size: 2, workload: StatefulSet, metrics: {}, proxy: {size: 2, threads: 1, memory: 68Mi}}`
	withSecrets   = `{size: 2, workload: StatefulSet, tls: {secretName: certificate}, auth: {secretName: passwords}}`
	withAll       = `{size: 2, workload: StatefulSet, serverAddresses: ClusterIP, tls: {secretName: certificate},
		auth: {secretName: passwords}, metrics: {}, networkPolicy: {from: []}, disruptionBudget: {minAvailable: 1},
		service: {labels: {team: shop}, annotations: {a: b}}, rollout: {maxUnavailable: 1, minReadySeconds: 3}}`
)

var scenarios = []scenario{
	{name: "create a Deployment", steps: does(creates(onDeployment))},
	{name: "create a StatefulSet", steps: does(creates(onStatefulSet))},
	{name: "create with every feature", prepare: createSecrets, steps: does(creates(withAll))},
	{name: "create proxies", steps: does(creates(withProxies))},
	{name: "scale a Deployment", before: onDeployment, steps: does(patches(`{"size":5}`), patches(`{"size":1}`),
		patches(`{"size":0}`), patches(`{"size":2}`))},
	{name: "scale a StatefulSet", before: onStatefulSet, steps: does(patches(`{"size":5}`), patches(`{"size":1}`),
		patches(`{"size":0}`), patches(`{"size":2}`))},
	{name: "change the template of a Deployment", before: onDeployment, steps: does(patches(`{"threads":2}`))},
	{name: "change the template of a StatefulSet", before: onStatefulSet, steps: does(patches(`{"threads":2}`))},
	{name: "change the template, two at a time, with minReadySeconds", before: onStatefulSet,
		steps: does(patches(`{"threads":2,"rollout":{"maxUnavailable":2,"minReadySeconds":5}}`))},
	{name: "change the template, with warmUp", before: withAgents,
		steps: does(patches(`{"threads":2,"rollout":{"warmUp":{"percent":80}}}`))},
	{name: "change the template and back at once", before: onStatefulSet, takesNewAgent: true, steps: does(func(w *world) {
		w.patch(`{"spec":{"threads":2}}`)
		w.reconcileOnce()
		w.patch(`{"spec":{"threads":4}}`)
	})},
	{name: "change the image", before: onStatefulSet, steps: does(patches(`{"image":"docker.io/library/memcached:1.6"}`))},
	{name: "change the port", before: withAgents, steps: does(patches(`{"containerPort":12345}`))},
	{name: "change memory in place", before: withAgents, steps: does(patches(`{"memory":"128Mi"}`),
		patches(`{"memory":"64Mi"}`))},
	{name: "change memory and the template", before: withAgents, steps: does(patches(`{"memory":"128Mi","threads":2}`))},
	{name: "metrics on and off", before: onDeployment,
		steps: does(patches(`{"metrics":{}}`), patches(`{"metrics":null}`))},
	{name: "a NetworkPolicy on and off", before: onDeployment, steps: does(patches(`{"networkPolicy":{"from":[]}}`),
		patches(`{"networkPolicy":null}`))},
	{name: "TLS on and off", before: onStatefulSet, prepare: createSecrets,
		steps: does(patches(`{"tls":{"secretName":"certificate"}}`), patches(`{"tls":null}`))},
	{name: "passwords on and off", before: onStatefulSet, prepare: createSecrets,
		steps: does(patches(`{"auth":{"secretName":"passwords"}}`), patches(`{"auth":null}`))},
	{name: "proxies on and off", before: withAgents,
		steps: does(patches(`{"proxy":{"size":2,"threads":1,"memory":"68Mi"}}`), patches(`{"proxy":null}`))},
	{name: "addresses of Services on and off", before: onStatefulSet,
		steps: does(patches(`{"serverAddresses":"ClusterIP"}`), patches(`{"serverAddresses":"DNS"}`))},
	{name: "the fields of the Service", before: onDeployment, steps: does(
		patches(`{"service":{"labels":{"a":"b"},"annotations":{"a":"b"}}}`), patches(`{"service":null}`))},
	{name: "the disruption budget", before: onDeployment, steps: does(patches(`{"disruptionBudget":{"maxUnavailable":2}}`),
		patches(`{"disruptionBudget":{"maxUnavailable":null,"minAvailable":1}}`), patches(`{"disruptionBudget":null}`))},
	{name: "rotate certificate and passwords", before: withSecrets, prepare: createSecrets, steps: does(func(w *world) {
		w.writeSecret("certificate", w.certificate())
		w.writeSecret("passwords", map[string][]byte{"authfile": []byte("user:another\n")})
	})},
	{name: "scale while a Secret is missing", before: withSecrets, prepare: createSecrets, steps: does(func(w *world) {
		w.Must(w.API.Delete(w.Ctx, &corev1.Secret{ObjectMeta: w.Object("passwords")}))
		w.patch(`{"spec":{"size":4}}`)
	}, createSecrets)},
	{name: "wait for a Secret", steps: does(creates(withSecrets), createSecrets)},
	{name: "restart", before: onStatefulSet, steps: does(annotates(v1alpha1.RestartedAtAnnotation, "1"))},
	{name: "flush", before: withAgents, steps: does(annotates(v1alpha1.FlushedAtAnnotation, "1"),
		annotates(v1alpha1.FlushedAtAnnotation, "2"))},
	{name: "flush with warmUp", before: `{size: 3, workload: StatefulSet, metrics: {}, rollout: {warmUp: {percent: 80}}}`,
		steps: does(annotates(v1alpha1.FlushedAtAnnotation, "1"))},
	{name: "flush behind proxies", before: withProxies, steps: does(annotates(v1alpha1.FlushedAtAnnotation, "1"))},
	{name: "resize behind proxies", before: withProxies, steps: does(patches(`{"size":3}`), patches(`{"size":1}`))},
	{name: "change the template behind proxies", before: withProxies, steps: does(patches(`{"threads":2}`))},
	{name: "somebody deletes a server behind proxies", before: withProxies, steps: does(func(w *world) {
		w.Must(w.API.Delete(w.Ctx, &corev1.Pod{ObjectMeta: w.Object("cache-0")}))
	})},
	{name: "resize proxies", before: withProxies,
		steps: does(patches(`{"proxy":{"size":3}}`), patches(`{"proxy":{"size":1}}`))},
	{name: "pause and continue", before: onStatefulSet, steps: does(patches(`{"paused":true}`),
		patches(`{"threads":2,"size":4,"metrics":{}}`), patches(`{"paused":false}`))},
	{name: "a foreign object", before: onDeployment, stalls: true, steps: does(func(w *world) {
		w.Must(w.API.Create(w.Ctx, &policyv1.PodDisruptionBudget{ObjectMeta: w.Object("other")}))
		w.Must(w.API.Create(w.Ctx, &corev1.Service{ObjectMeta: w.Object("cache-metrics"),
			Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}))
		w.patch(`{"spec":{"metrics":{}}}`)
	})},
	{name: "a foreign object in the way", stalls: true, steps: does(func(w *world) {
		w.Must(w.API.Create(w.Ctx, &corev1.Service{ObjectMeta: w.Object("cache"),
			Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}))
		w.create(onDeployment)
	}, func(w *world) {
		w.Must(w.API.Delete(w.Ctx, &corev1.Service{ObjectMeta: w.Object("cache")}))
	})},
	{name: "children of a predecessor", steps: does(func(w *world) {
		service := &corev1.Service{ObjectMeta: w.ofPredecessor(v1alpha1.GroupVersion.String()),
			Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
		service.Finalizers = []string{"example.com/slow"}
		w.create(onDeployment)
		w.Must(w.API.Create(w.Ctx, service))
	}, func(w *world) {
		w.Patch(&corev1.Service{ObjectMeta: w.Object("cache")}, `{"metadata":{"finalizers":null}}`)
	})},
	{name: "children that the garbage collector misses", steps: does(func(w *world) {
		w.create(onDeployment)
		w.Must(w.API.Create(w.Ctx, &policyv1.PodDisruptionBudget{ObjectMeta: w.ofPredecessor(notServed)}))
		metadata, err := json.Marshal(w.ofPredecessor(notServed))
		w.Must(err)
		w.Must(w.API.Patch(w.Ctx, &networkingv1.NetworkPolicy{ObjectMeta: w.Object("cache")}, client.RawPatch(
			types.ApplyPatchType, fmt.Appendf(nil, `{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy",
			"metadata":%s,"spec":{"podSelector":{}}}`, metadata)), client.FieldOwner(names.Operator)))
	})},
	{name: "somebody deletes children", before: withAgents, steps: does(func(w *world) {
		for _, kind := range []string{"Service", "PodDisruptionBudget", "ConfigMap"} {
			for _, obj := range w.now()[kind] {
				if metav1.GetControllerOf(obj) != nil {
					w.Must(w.API.Delete(w.Ctx, obj))
				}
			}
		}
	})},
	{name: "somebody deletes the list of the proxies, and the address of a server", before: withProxies,
		steps: does(func(w *world) {
			set := &appsv1.StatefulSet{ObjectMeta: w.Object(w.Key.Name)}
			w.Patch(set, fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.ProxyServersAnnotation,
				`{"after":[{"name":"cache-1"},{"name":"cache-0"}]}`))
		}, func(w *world) {
			w.checkOrder("cache-1 cache-0")
			w.deleteProxyConfig()
			w.Must(w.API.Delete(w.Ctx, &corev1.Service{ObjectMeta: w.Object("cache-1")})) // it gets another address
		}, func(w *world) {
			w.checkOrder("cache-1 cache-0")
			w.patch(`{"spec":{"size":3}}`)
			for _, phase := range []string{"0", "2"} {
				for range 20 { // a disturbed operator may skip the phase
					if w.now().Proxies().Phase != phase {
						w.reconcileOnce()
					}
				}
				w.deleteProxyConfig()
			}
		}, func(w *world) { w.checkOrder("cache-1 cache-0 cache-2") })},
	{name: "somebody changes the StatefulSet", before: onStatefulSet, steps: does(func(w *world) {
		set := &appsv1.StatefulSet{ObjectMeta: w.Object(w.Key.Name)}
		w.Patch(set, `{"metadata":{"labels":null},"spec":{"template":{"spec":{"containers":[{"name":"memcached",
			"image":"evil","args":["-vv"]}]}}}}`)
	})},
	{name: "a server fails its probe", before: onStatefulSet, steps: does(failProbe)},
	{name: "a server of a Deployment fails its probe", before: onDeployment, steps: does(failProbe)},
	{name: "a server fails its probe after a change of memory", before: withAgents,
		steps: does(patches(`{"memory":"128Mi"}`), failProbe)},
	{name: "somebody adds a port, and the others change", before: onDeployment, steps: does(func(w *world) {
		w.Patch(&corev1.Service{ObjectMeta: w.Object("cache")}, `{"spec":{"ports":[{"name":"other","port":80}]}}`)
		w.patch(`{"spec":{"containerPort":12345}}`)
	})},
	{name: "delete", before: withAgents, deleted: true, steps: does(deletes(metav1.DeletePropagationBackground))},
	{name: "delete in the foreground", before: withAgents, deleted: true,
		steps: does(deletes(metav1.DeletePropagationForeground))},
	{name: "delete and orphan", before: withAgents, deleted: true, steps: does(deletes(metav1.DeletePropagationOrphan))},
	{name: "delete with proxies", before: withProxies, deleted: true,
		steps: does(deletes(metav1.DeletePropagationBackground))},
	{name: "delete and create again", before: onDeployment,
		steps: does(deletes(metav1.DeletePropagationBackground), creates(onDeployment))},
	{name: "delete during creation", deleted: true, steps: does(func(w *world) {
		w.create(withAgents)
		w.reconcileOnce()
		deletes(metav1.DeletePropagationBackground)(w)
	})},
}

// notServed is a version of the API that is not served. The garbage collector cannot look up owners of this version, so
// their dependents stay.
const notServed = "cache.example.com/v1alpha0"

// ofPredecessor returns the metadata of a child of a deleted Memcached of the same name.
func (w *world) ofPredecessor(apiVersion string) metav1.ObjectMeta {
	m := w.Object("cache")
	m.Labels = names.Servers.Labels(&v1alpha1.Memcached{ObjectMeta: m})
	m.OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: "Memcached", Name: m.Name,
		UID: "predecessor", Controller: ptr.To(true)}}
	return m
}

func does(steps ...func(*world)) []func(*world) { return steps }

func creates(spec string) func(*world) { return func(w *world) { w.create(spec) } }

func patches(spec string) func(*world) { return func(w *world) { w.patch(`{"spec":` + spec + `}`) } }

func annotates(key, value string) func(*world) {
	return func(w *world) { w.patch(`{"metadata":{"annotations":{"` + key + `":"` + value + `"}}}`) }
}

func deletes(how metav1.DeletionPropagation) func(*world) {
	return func(w *world) {
		w.Must(w.API.Delete(w.Ctx, &v1alpha1.Memcached{ObjectMeta: w.Object("cache")}, client.PropagationPolicy(how)))
	}
}

// reconcileOnce lets the operator and the controllers act once.
func (w *world) reconcileOnce() {
	w.Helper()
	w.observe()
	w.deliver()
	_, _ = w.reconcile()
	w.observe()
	w.step()
}

// failProbe lets the readiness probe of a server fail once.
func failProbe(w *world) {
	w.Helper()
	pod := w.now()["Pod"][0].(*corev1.Pod)
	is := pod.Status.DeepCopy()
	for i := range is.Conditions {
		if c := &is.Conditions[i]; c.Type == corev1.PodReady || c.Type == corev1.ContainersReady {
			c.Status, c.LastTransitionTime = corev1.ConditionFalse, metav1.NewTime(w.Clock().Truncate(time.Second))
		}
	}
	for i := range is.ContainerStatuses {
		is.ContainerStatuses[i].Ready = is.ContainerStatuses[i].Name != simulator.MemcachedContainer
	}
	w.WriteStatus(pod, *is)
}

func (w *world) deleteProxyConfig() {
	w.Helper()
	w.Must(client.IgnoreNotFound(w.API.Delete(w.Ctx, &corev1.ConfigMap{ObjectMeta: w.Object("cache-proxy")})))
	w.observe()
}

// checkOrder fails unless the proxies are told these servers, in this order: another order would lose most items.
func (w *world) checkOrder(want string) {
	w.Helper()
	if got := strings.Join(w.now().Proxies().After, " "); got != want {
		w.Errorf("the proxies are told %q, want %q", got, want)
	}
}

func createSecrets(w *world) {
	w.Helper()
	w.writeSecret("certificate", w.certificate())
	w.writeSecret("passwords", map[string][]byte{"authfile": []byte("user:password\n")})
}

var ca = func() *testca.CA {
	ca, err := testca.New()
	if err != nil {
		panic(err)
	}
	return ca
}()

func (w *world) certificate() map[string][]byte {
	w.Helper()
	content, err := ca.Secret("cache")
	w.Must(err)
	return content
}

// writeSecret creates or changes a Secret.
func (w *world) writeSecret(name string, data map[string][]byte) {
	w.Helper()
	secret := &corev1.Secret{ObjectMeta: w.Object(name), Data: data}
	err := w.API.Update(w.Ctx, secret)
	if apierrors.IsNotFound(err) {
		err = w.API.Create(w.Ctx, secret)
	}
	w.Must(err)
}
