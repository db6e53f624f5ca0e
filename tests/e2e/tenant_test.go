package e2e

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/tests/leak"
)

// TestTenantLearnsNoSecret: whatever Secret a tenant names in a Memcached, nothing of its content appears in what the
// tenant may read, nor in children and events.
func TestTenantLearnsNoSecret(t *testing.T) {
	needMoreTime(t)
	t.Parallel()
	contents := leak.Contents{}
	specs := map[string]string{}
	testEnv.Test(t, features.New("a tenant").
		Setup(step(func(w world) {
			ours := w.newCA()
			pair, err := ours.Secret("localhost")
			w.must(err)
			other, err := ours.Secret("localhost")
			w.must(err)
			text := func() []byte { return []byte(rand.Text() + rand.Text()) }
			for name, data := range map[string]map[string][]byte{
				"users":            {"authfile": []byte("app:" + rand.Text() + "\n")},
				"no-line-break":    {"authfile": []byte("app:" + rand.Text())},
				"no-colon":         {"authfile": []byte(rand.Text() + "\n" + rand.Text() + "\n")},
				"repeated-user":    {"authfile": []byte("app:" + rand.Text() + "\napp:" + rand.Text() + "\n")},
				"long-line":        {"authfile": []byte("app:" + strings.Repeat(rand.Text(), 10) + "\n")},
				"other-key":        {"token": text()},
				"pair":             pair,
				"mixed":            {"tls.crt": pair["tls.crt"], "tls.key": other["tls.key"], "ca.crt": pair["ca.crt"]},
				"exchanged":        {"tls.crt": pair["tls.key"], "tls.key": pair["tls.crt"], "ca.crt": pair["tls.key"]},
				"key-in-ca":        {"tls.crt": pair["tls.crt"], "tls.key": pair["tls.key"], "ca.crt": pair["tls.key"]},
				"no-pem":           {"tls.crt": text(), "tls.key": text(), "ca.crt": text()},
				"pem-of-text":      {"tls.crt": pemOf(text()), "tls.key": pemOf(text()), "ca.crt": pemOf(text())},
				"all-keys-as-text": {"tls.crt": text(), "tls.key": text(), "ca.crt": text(), "authfile": text()},
			} {
				w.secret(name, data)
				contents.Add(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data})
				for suffix, spec := range map[string]string{"auth": "auth: {secretName: %s}", "tls": "tls: {secretName: %s}",
					"mutual": "metrics: {}, workload: StatefulSet, tls: {secretName: %s, clientAuth: Require}"} {
					specs[name+"-"+suffix] = "{" + fmt.Sprintf(spec, name) + ", " + smallServer + "}"
				}
			}
			basic := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "basic"},
				Type: corev1.SecretTypeBasicAuth, StringData: map[string]string{"username": "admin", "password": rand.Text()}}
			contents.Add(basic)
			w.must(w.Create(w.ctx, basic))
			specs["basic"] = "{auth: {secretName: basic}}"
		})).
		Assess("learns nothing from Memcacheds that name Secrets", step(func(w world) {
			for name, spec := range specs {
				w.createSpec(name, spec)
			}
			w.eventually("look at each Secret", func() error {
				var list v1alpha1.MemcachedList
				err := w.List(w.ctx, &list, client.InNamespace(w.ns))
				for _, mc := range list.Items {
					waits := strings.HasPrefix(condition(&mc, v1alpha1.ConditionReady).Message, "SecretNotFound")
					stalled := meta.IsStatusConditionTrue(mc.Status.Conditions, v1alpha1.ConditionStalled)
					if !waits && !stalled && w.ready(mc.Name) != nil {
						err = errors.Join(err, fmt.Errorf("the conditions of %s are %v", mc.Name, mc.Status.Conditions))
					}
				}
				return err
			})
			out := w.mustKubectl("get", "memcacheds,deployments,statefulsets,replicasets,controllerrevisions,pods,services,"+
				"configmaps,events", "--output=yaml", "--show-managed-fields")
			if !strings.Contains(out, "name: users-auth") || !strings.Contains(out, "kind: Event") {
				w.Errorf("the output lacks objects, so the check proves nothing: %s", out)
			}
			for line := range strings.Lines(out) {
				if secret := contents.In(line); secret != "" {
					w.Errorf("a part of %s appears: %s", secret, line)
				}
			}
		})).
		Assess("gets no Secret of another namespace", step(func(w world) {
			elsewhere := w.another()
			elsewhere.passwords("theirs", "app:"+password)
			w.createSpec("foreign", "{auth: {secretName: theirs}}")
			w.awaitCondition("foreign", v1alpha1.ConditionReconciling, v1alpha1.ReasonProgressingWithRetry,
				"SecretNotFound: there is no Secret theirs")
			w.mustHaveNoWorkload("foreign")
		})).Feature())
}

// privileged are specs that the API server accepts, because they comply with the baseline Pod Security Standard, and
// whose pods the restricted one does not allow. What it refuses at once is in tests/api.
var privileged = []string{
	`{securityContext: {runAsNonRoot: false}}`,
	`{containerSecurityContext: {runAsNonRoot: false}}`,
	`{containerSecurityContext: {allowPrivilegeEscalation: true}}`,
	`{containerSecurityContext: {capabilities: {drop: [KILL]}}}`,
	`{containerSecurityContext: {capabilities: {drop: [ALL], add: [CHOWN]}}}`,
}

// TestTenantRunsNoPrivilegedPod: in a namespace that enforces the restricted Pod Security Standard, a spec that asks
// for more starts no pod, and the status says why. The other tests show that all else runs in such a namespace.
func TestTenantRunsNoPrivilegedPod(t *testing.T) {
	needMoreTime(t)
	t.Parallel()
	testEnv.Test(t, features.New("a tenant").
		Assess("starts no pod that may do more than Pod Security allows", step(func(w world) {
			for i, pod := range privileged {
				w.createSpec(fmt.Sprintf("cache-%d", i), `{metrics: {}, pod: `+pod+`}`)
			}
			// The template of the pods is the same for each kind of workload.
			w.createSpec("proxied", `{workload: StatefulSet, proxy: {size: 1}, pod: `+privileged[0]+`}`)
			w.createSpec("set", `{workload: StatefulSet, pod: `+privileged[0]+`}`)
			for _, name := range w.names() {
				w.awaitCondition(name, v1alpha1.ConditionReconciling, v1alpha1.ReasonProgressingWithRetry, "violates PodSecurity")
			}
			var pods corev1.PodList
			w.must(w.List(w.ctx, &pods, client.InNamespace(w.ns)))
			for _, pod := range pods.Items {
				w.Errorf("pod %s was created, with %v and %v", pod.Name, pod.Spec.SecurityContext, pod.Spec.Containers)
			}
		})).Feature())
}

// TestTenantReachesNoOtherCache: names, labels, annotations and owner references of a tenant's Memcacheds change
// nothing for other Memcacheds of the namespace and of other namespaces.
func TestTenantReachesNoOtherCache(t *testing.T) {
	needMoreTime(t)
	t.Parallel()
	const proxied = `{size: 2, workload: StatefulSet, proxy: {size: 1, threads: 1, memory: 68Mi}, ` + smallServer + `}`
	var before map[string]string
	testEnv.Test(t, features.New("a tenant").
		Setup(step(func(w world) {
			w.createSpec("shop", proxied)
			w.createSpec("plain", `{size: 1, networkPolicy: {}, `+smallServer+`}`)
			w.awaitReady("shop", "plain")
			before = w.childGenerations()
		})).
		Assess("disturbs no others by names, metadata and owner references", step(func(w world) {
			shop := w.memcached("shop")
			for _, name := range []string{"shop-proxy", "shop-0", "shop-1"} { // of children of shop
				w.createSpec(name, proxied)
				w.awaitCondition(name, v1alpha1.ConditionStalled, v1alpha1.ReasonConflict, name+" exists and is not controlled by")
			}
			evil := w.parse("evil", proxied)
			evil.Labels = names.Servers.Labels(shop)
			evil.Annotations = map[string]string{"cache.example.com/template-record": "{}", "cache.example.com/generation": "1"}
			evil.OwnerReferences = []metav1.OwnerReference{{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Memcached",
				Name: "shop", UID: shop.UID, Controller: ptr.To(true)}}
			w.must(w.Create(w.ctx, evil))
			w.awaitReady("evil", "shop", "plain")
			w.mustKeep(before)
			w.mustSelectOwnPods()
		})).
		Assess("gets no address by a name that is free", step(func(w world) {
			// The Services late-proxy and late-1 exist before late has proxies.
			w.createSpec("late-proxy", `{`+smallServer+`}`)
			w.createSpec("late-1", `{`+smallServer+`}`)
			w.awaitReady("late-proxy", "late-1")
			w.createSpec("late", proxied)
			w.awaitCondition("late", v1alpha1.ConditionStalled, v1alpha1.ReasonConflict, "is not controlled by this Memcached")
			late := w.memcached("late")
			if len(late.Status.Servers) > 0 {
				w.Errorf("clients of late would use %v", late.Status.Servers)
			}
			w.mustHaveNoWorkload("late")
			w.mustSelectOwnPods()
		})).
		Assess("no longer blocks a name after a deletion", step(func(w world) {
			if testing.Short() {
				return // this takes a minute
			}
			// The operator checks again every minute: no event says that a foreign object was deleted.
			w.deleteMemcached("late-proxy")
			w.deleteMemcached("late-1")
			w.awaitReady("late")
		})).
		Assess("reaches no cache of another namespace with the same names", step(func(w world) {
			elsewhere := w.another()
			elsewhere.createSpec("shop", proxied)
			elsewhere.awaitReady("shop")
			elsewhere.mustSelectOwnPods()
			w.mustSelectOwnPods()
			elsewhere.deleteMemcached("shop")
			elsewhere.eventually("delete the children", elsewhere.noChildren)
			w.awaitReady("shop")
			w.mustKeep(before)
		})).Feature())
}

func pemOf(text []byte) []byte {
	return fmt.Appendf(nil, "-----BEGIN PRIVATE KEY-----\n%s\n-----END PRIVATE KEY-----\n", text)
}

// another returns another namespace, until the step ends.
func (w world) another() world {
	w.Helper()
	ns, err := newNamespace(w.ctx, w.T)
	w.must(err)
	w.ns = ns
	return w
}

// names returns the names of all Memcacheds in the namespace.
func (w world) names() (list []string) {
	w.Helper()
	var memcacheds v1alpha1.MemcachedList
	w.must(w.List(w.ctx, &memcacheds, client.InNamespace(w.ns)))
	for i := range memcacheds.Items {
		list = append(list, memcacheds.Items[i].Name)
	}
	return list
}

// mustKeep fails if a child of before was changed or replaced.
func (w world) mustKeep(before map[string]string) {
	w.Helper()
	after := w.childGenerations()
	for key, was := range before {
		if after[key] != was {
			w.Errorf("%s was %q, and is %q", key, was, after[key])
		}
	}
}

// mustSelectOwnPods fails unless Services, budgets and policies of each Memcached select only its own pods, and its
// proxies only its own Services.
func (w world) mustSelectOwnPods() {
	w.Helper()
	var pods corev1.PodList
	w.must(w.List(w.ctx, &pods, client.InNamespace(w.ns)))
	services, selected, proxies := map[string]string{}, 0, 0
	w.must(w.eachChild(func(child client.Object) {
		if s, ok := child.(*corev1.Service); ok && len(s.Spec.Ports) > 0 {
			services[net.JoinHostPort(s.Spec.ClusterIP, strconv.Itoa(int(s.Spec.Ports[0].Port)))] = s.Labels[v1alpha1.NameLabel]
		}
	}))
	w.must(w.eachChild(func(child client.Object) {
		instance, selector := child.GetLabels()[v1alpha1.NameLabel], labels.Nothing()
		var err error
		switch child := child.(type) {
		case *corev1.Service:
			selector = labels.SelectorFromSet(child.Spec.Selector)
		case *policyv1.PodDisruptionBudget:
			selector, err = metav1.LabelSelectorAsSelector(child.Spec.Selector)
		case *networkingv1.NetworkPolicy:
			selector, err = metav1.LabelSelectorAsSelector(&child.Spec.PodSelector)
		case *corev1.ConfigMap:
			servers := contract.ParseServers(child.Data)
			for _, s := range slices.Concat(servers.Before, servers.After) {
				proxies++
				if services[s.Address] != instance {
					w.Errorf("the proxies of %s use %s, an address of %q", instance, s.Address, services[s.Address])
				}
			}
		}
		w.must(err)
		for i := range pods.Items {
			if pod := &pods.Items[i]; selector.Matches(labels.Set(pod.Labels)) {
				selected++
				if pod.Labels[v1alpha1.NameLabel] != instance {
					w.Errorf("%T %s of %s selects pod %s", child, child.GetName(), instance, pod.Name)
				}
			}
		}
	}))
	if selected == 0 || proxies == 0 {
		w.Errorf("%d pods are selected, and proxies use %d addresses, so this proves nothing", selected, proxies)
	}
}
