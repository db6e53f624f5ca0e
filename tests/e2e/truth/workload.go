package truth

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// Workload has the fields that a Deployment and a StatefulSet have in common.
type Workload struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		Replicas *int32                 `json:"replicas"`
		Template corev1.PodTemplateSpec `json:"template"`
	} `json:"spec"`
	Status struct {
		ObservedGeneration int64                        `json:"observedGeneration"`
		Replicas           int32                        `json:"replicas"`
		UpdatedReplicas    int32                        `json:"updatedReplicas"`
		ReadyReplicas      int32                        `json:"readyReplicas"`
		AvailableReplicas  int32                        `json:"availableReplicas"`
		Conditions         []appsv1.DeploymentCondition `json:"conditions"`
	} `json:"status"`
}

// proxySuffix is the suffix of the names of the proxy's children.
const proxySuffix = "-proxy"

// ServersKind returns the kind of the workload that runs the servers of mc. Its name is that of mc.
func ServersKind(mc *v1alpha1.Memcached) string {
	return string(cmp.Or(mc.Spec.Workload, v1alpha1.WorkloadDeployment))
}

// ProxyName returns the name of the Deployment that runs the proxies of mc.
func ProxyName(mc *v1alpha1.Memcached) string { return mc.Name + proxySuffix }

const statefulSet = string(v1alpha1.WorkloadStatefulSet)

func isWorkload(kind string) bool { return kind == "Deployment" || kind == statefulSet }

// Read decodes a Deployment or a StatefulSet.
func Read(o *unstructured.Unstructured) (*Workload, error) {
	w := &Workload{}
	return w, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, w)
}

// Contradiction returns why not all servers and proxies of the spec of mc are updated, available and observed; "" if
// they are. pods are those of the servers.
func Contradiction(mc *v1alpha1.Memcached, servers, proxies *Workload, pods []*corev1.Pod) string {
	if mc.Spec.Size == nil {
		return "a size is missing"
	}
	if reason := servers.contradiction(mc, ServersKind(mc), *mc.Spec.Size, "servers"); reason != "" {
		return reason
	}
	if reason := templateContradiction(mc, servers.Spec.Template.Spec); reason != "" {
		return reason
	}
	for _, pod := range pods {
		if ServersKind(mc) == statefulSet && servers.differs(pod) {
			return fmt.Sprintf("server %s is not updated", pod.Name)
		}
	}
	if mc.Spec.Proxy == nil {
		return addressContradiction(mc, *mc.Spec.Size)
	}
	if reason := proxies.contradiction(mc, "proxy", mc.Spec.Proxy.Size, "proxies"); reason != "" {
		return reason
	}
	if reason := podContradiction("proxies", proxies.Spec.Template.Spec, servers.Spec.Template.Spec.Containers[0].Image,
		"-p "+strconv.Itoa(int(mc.Spec.ContainerPort)), "-t "+strconv.Itoa(int(mc.Spec.Proxy.Threads))); reason != "" {
		return reason
	}
	return addressContradiction(mc, 1)
}

func (w *Workload) contradiction(mc *v1alpha1.Memcached, what string, size int32, pods string) string {
	switch {
	case w == nil:
		return "there is no " + what
	case !metav1.IsControlledBy(w, mc):
		return "the " + what + " is not its own"
	case w.DeletionTimestamp != nil:
		return "the " + what + " is being deleted"
	case w.Status.ObservedGeneration < w.Generation:
		return fmt.Sprintf("generation %d of the %s is not observed", w.Generation, what)
	case w.Spec.Replicas == nil:
		return "a size is missing"
	case *w.Spec.Replicas != size:
		return fmt.Sprintf("the %s wants %d %s, not %d", what, *w.Spec.Replicas, pods, size)
	}
	return w.missing(size, pods)
}

// differs reports whether a pod was created from another template, if not only the memory differs.
func (w *Workload) differs(pod *corev1.Pod) bool {
	template := w.Spec.Template
	if pod.DeletionTimestamp != nil || !metav1.IsControlledBy(pod, w) || len(template.Spec.Containers) == 0 {
		return false
	}
	for key, value := range template.Annotations {
		if pod.Annotations[key] != value {
			return true
		}
	}
	withoutMemory := func(args []string) []string {
		args = slices.Clone(args)
		if i := slices.Index(args, "-m") + 1; i > 0 && i < len(args) {
			args[i] = ""
		}
		return args
	}
	want := template.Spec.Containers[0]
	return !slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool {
		return c.Image == want.Image && slices.Equal(withoutMemory(c.Args), withoutMemory(want.Args))
	})
}

// missing returns which pods do not exist or are not updated, ready or available; "" if all are. A StatefulSet counts
// servers that got another memory as not updated.
func (w *Workload) missing(size int32, pods string) string {
	s := w.Status
	if w.Kind == statefulSet {
		s.UpdatedReplicas = s.Replicas
	}
	for i, n := range []int32{s.Replicas, s.UpdatedReplicas, s.ReadyReplicas, s.AvailableReplicas} {
		if n != size {
			return fmt.Sprintf("%d of %d %s are %s", n, size, pods, []string{"there", "updated", "ready", "available"}[i])
		}
	}
	return ""
}

// progressedSince reports whether more pods are ready than before, or the workload's controller reports progress.
func (w *Workload) progressedSince(was *Workload) bool {
	if was == nil {
		was = &Workload{}
	}
	return w.Status.ReadyReplicas > was.Status.ReadyReplicas ||
		w.Status.AvailableReplicas > was.Status.AvailableReplicas || w.lastProgress().After(was.lastProgress())
}

func (w *Workload) lastProgress() time.Time {
	for _, c := range w.Status.Conditions {
		if c.Type == appsv1.DeploymentProgressing && c.Status == corev1.ConditionTrue {
			return c.LastUpdateTime.Time
		}
	}
	return time.Time{}
}

func templateContradiction(mc *v1alpha1.Memcached, pod corev1.PodSpec) string {
	memory, err := resource.ParseQuantity(mc.Spec.Memory)
	if err != nil {
		return err.Error()
	}
	agent := mc.Spec.Workload == v1alpha1.WorkloadStatefulSet || mc.Spec.Metrics != nil || mc.Spec.TLS != nil ||
		mc.Spec.Auth != nil
	connections := mc.Spec.MaxConnections
	if agent {
		connections += 2 // of the agent
	}
	reason := podContradiction("servers", pod, cmp.Or(mc.Spec.Image, mc.Status.Image), append([]string{
		"-p " + strconv.Itoa(int(mc.Spec.ContainerPort)), "-m " + strconv.FormatInt(memory.Value()>>20, 10),
		"-c " + strconv.Itoa(int(connections)), "-t " + strconv.Itoa(int(mc.Spec.Threads)),
	}, mc.Spec.ExtraArgs...)...)
	if reason != "" {
		return reason
	}
	if got := len(pod.InitContainers) == 1; got != agent {
		return fmt.Sprintf("servers have an agent: %t, want %t", got, agent)
	}
	args := pod.Containers[0].Args
	if got, want := slices.Contains(args, "--enable-ssl"), mc.Spec.TLS != nil; got != want {
		return fmt.Sprintf("servers use TLS: %t, want %t", got, want)
	}
	got := slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "--auth-file=") })
	if want := mc.Spec.Auth != nil; got != want {
		return fmt.Sprintf("servers require passwords: %t, want %t", got, want)
	}
	return ""
}

// podContradiction returns why pods do not run an image with these arguments; "" if they do.
func podContradiction(what string, pod corev1.PodSpec, image string, arguments ...string) string {
	if len(pod.Containers) == 0 {
		return "the " + what + " have no container"
	}
	if got := pod.Containers[0].Image; got != image {
		return fmt.Sprintf("the %s run %s, not %s", what, got, image)
	}
	args := strings.Join(pod.Containers[0].Args, " ") + " "
	for _, want := range arguments {
		if !strings.Contains(args, want+" ") {
			return fmt.Sprintf("the %s run with %snot with %s", what, args, want)
		}
	}
	return ""
}

// addressContradiction returns "" if the status lists as many addresses as the spec needs. It ignores Deployments:
// their servers share one address, which only objects of an older operator lack.
func addressContradiction(mc *v1alpha1.Memcached, want int32) string {
	if got := int32(len(mc.Status.Servers)); ServersKind(mc) == statefulSet && got != want {
		return fmt.Sprintf("the status lists %d addresses, not %d", got, want)
	}
	return ""
}
