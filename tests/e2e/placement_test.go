package e2e

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/e2e-framework/pkg/features"
)

// TestSpread: the scheduler puts servers, and proxies, on different nodes as long as there are any.
func TestSpread(t *testing.T) {
	needMoreTime(t)
	t.Parallel()
	testEnv.Test(t, features.New("servers and proxies").
		Assess("are spread over the nodes", step(func(w world) {
			var nodes corev1.NodeList
			w.must(w.List(w.ctx, &nodes))
			spread := min(3, len(nodes.Items))
			w.createSpec("cache", fmt.Sprintf(`{size: %d, workload: StatefulSet, proxy: {size: %d, threads: 1,
				memory: 68Mi}, %s}`, spread, spread, smallServer))
			w.awaitReady("cache")
			for _, component := range []string{"server", "proxy"} {
				pods, err := w.podsOf("cache", component)
				w.must(err)
				used := sets.New[string]()
				for i := range pods {
					used.Insert(pods[i].Spec.NodeName)
				}
				if len(used) != spread {
					w.Errorf("the %d pods of component %s run on the nodes %v", spread, component, used)
				}
			}
		})).Feature())
}

// TestService: spec.service adjusts the Service of the proxies, and spec.disruptionBudget the budget of the servers. No
// change of them replaces a pod.
func TestService(t *testing.T) {
	t.Parallel()
	var servers, proxies map[string]string
	mustBe := func(w world, what string, got, want any) {
		w.Helper()
		if got != want {
			w.Errorf("%s is %v, want %v", what, got, want)
		}
	}
	testEnv.Test(t, features.New("Services").
		Setup(step(func(w world) {
			w.createSpec("cache", `{size: 2, workload: StatefulSet, proxy: {size: 1, threads: 1, memory: 68Mi},
				service: {type: NodePort, labels: {team: shop}, annotations: {example.com/note: a},
				trafficDistribution: PreferClose}, disruptionBudget: {minAvailable: 50%}, `+smallServer+`}`)
			w.awaitReady("cache")
			servers, proxies = w.uids("cache"), w.uidsOf("cache", "proxy")
		})).
		Assess("are what spec.service asks for", step(func(w world) {
			s, err := load[corev1.Service](w, "cache-proxy")
			w.must(err)
			mustBe(w, "the type", s.Spec.Type, corev1.ServiceTypeNodePort)
			mustBe(w, "the label", s.Labels["team"], "shop")
			mustBe(w, "the annotation", s.Annotations["example.com/note"], "a")
			for _, name := range []string{"cache", "cache-0"} {
				s, err := load[corev1.Service](w, name)
				w.must(err)
				mustBe(w, "the type of "+name, s.Spec.Type, corev1.ServiceTypeClusterIP)
				mustBe(w, "the annotation of "+name, s.Annotations["example.com/note"], "")
			}
			budget, err := load[policyv1.PodDisruptionBudget](w, "cache")
			w.must(err)
			mustBe(w, "minAvailable", *budget.Spec.MinAvailable, intstr.FromString("50%"))
		})).
		Assess("serve clients outside of the cluster", step(func(w world) {
			if testCluster.Kind == "kwok" {
				w.Log("kwok has no real pods")
				return
			}
			s, err := load[corev1.Service](w, "cache-proxy")
			w.must(err)
			pods, err := w.podsOf("cache", "proxy")
			w.must(err)
			w.mustStore("a port of the node", memcachedClient{address: net.JoinHostPort(pods[0].Status.HostIP,
				strconv.Itoa(int(s.Spec.Ports[0].NodePort)))})
		})).
		Assess("return to the defaults", step(func(w world) {
			w.merge("cache", `{"service":null,"disruptionBudget":null}`)
			w.awaitReady("cache")
			s, err := load[corev1.Service](w, "cache-proxy")
			w.must(err)
			mustBe(w, "the type", s.Spec.Type, corev1.ServiceTypeClusterIP)
			mustBe(w, "the node port", s.Spec.Ports[0].NodePort, int32(0))
			mustBe(w, "the label", s.Labels["team"], "")
			mustBe(w, "the annotation", s.Annotations["example.com/note"], "")
			budget, err := load[policyv1.PodDisruptionBudget](w, "cache")
			w.must(err)
			mustBe(w, "maxUnavailable", *budget.Spec.MaxUnavailable, intstr.FromInt32(1))
			w.mustNotReplace(servers, w.uids("cache"))
			w.mustNotReplace(proxies, w.uidsOf("cache", "proxy"))
		})).
		Assess("are deleted with the proxies", step(func(w world) {
			w.merge("cache", `{"proxy":null}`)
			w.awaitReady("cache")
			w.eventually("delete what the proxies had", func() error {
				var left []string
				err := w.eachChild(func(o client.Object) {
					if strings.HasPrefix(o.GetName(), "cache-proxy") {
						left = append(left, fmt.Sprintf("%T", o))
					}
				})
				if len(left) > 0 {
					err = errors.Join(err, fmt.Errorf("the proxies have left %v", left))
				}
				return err
			})
		})).Feature())
}
