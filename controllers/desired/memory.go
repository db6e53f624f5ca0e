package desired

import (
	"fmt"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/api/resource"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
)

// canChangeMemory reports whether the servers of mc can get another memory without a restart: the cluster can resize
// their pods, and the operator replaces them, so that it can also leave them as they are.
func canChangeMemory(mc *v1alpha1.Memcached, o Options) bool {
	return o.CanResize && mc.Spec.Workload == v1alpha1.WorkloadStatefulSet
}

// addPodVolume mounts into the agent what annotations of the pod ask for.
func addPodVolume(pod *corev1ac.PodSpecApplyConfiguration, sidecar *corev1ac.ContainerApplyConfiguration) {
	file := func(name, annotation string) *corev1ac.DownwardAPIVolumeFileApplyConfiguration {
		return corev1ac.DownwardAPIVolumeFile().WithPath(name).WithFieldRef(corev1ac.ObjectFieldSelector().
			WithAPIVersion("v1").WithFieldPath(fmt.Sprintf("metadata.annotations['%s']", annotation)))
	}
	pod.WithVolumes(corev1ac.Volume().WithName(names.PodVolume).WithDownwardAPI(corev1ac.DownwardAPIVolumeSource().
		WithItems(file(contract.MemoryFile, v1alpha1.MemoryAnnotation), file(contract.FlushFile, v1alpha1.FlushAnnotation))))
	mount := corev1ac.VolumeMount().WithName(names.PodVolume).WithMountPath(contract.PodPath).WithReadOnly(true)
	sidecar.WithVolumeMounts(mount)
}

// withMemory returns the recorded template with the memory of mc, if only the memory differs from what was recorded,
// and the servers can change it without a restart; otherwise nil.
func withMemory(mc *v1alpha1.Memcached, r, recorded Record, o Options) *corev1ac.PodTemplateSpecApplyConfiguration {
	before := mc.DeepCopy()
	before.Spec.Memory = recorded.Memory
	if !canChangeMemory(mc, o) || digestOfInputs(before, r) != recorded.Inputs {
		return nil
	}
	template, memory := convert(recorded.Template, corev1ac.PodTemplateSpec()), resource.MustParse(mc.Spec.Memory)
	c := &template.Spec.Containers[0]
	i := slices.Index(c.Args, "-m") + 1
	if i == 0 || i == len(c.Args) {
		return nil
	}
	c.Args[i] = strconv.FormatInt(memory.Value()/mebi, 10)
	c.Resources = resources(mc)
	if template.ObjectMetaApplyConfiguration != nil && template.Annotations[v1alpha1.DrainAnnotation] != "" {
		template.Spec.WithTerminationGracePeriodSeconds(drainTime(mc)) // of the next pods
	}
	return template
}
