package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// PodSpec adjusts the pods that the servers run in.
//
// +kubebuilder:validation:XValidation:rule="!has(self.tolerations) || [self.tolerations].all(list, list.all(t, !has(t.key) || t.key.size() == 0 || [t.key].all(k, k.size() <= 317 && k.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$'))))",fieldPath=".tolerations",message="key must be like the key of a label, such as dedicated or example.com/dedicated"
// +kubebuilder:validation:XValidation:rule="!has(self.tolerations) || [self.tolerations].all(list, list.all(t, !has(t.operator) || t.operator.size() == 0 || t.operator in ['Exists', 'Equal', 'Lt', 'Gt']))",fieldPath=".tolerations",message="operator must be Exists, Equal, Lt or Gt"
// +kubebuilder:validation:XValidation:rule="!has(self.tolerations) || [self.tolerations].all(list, list.all(t, (has(t.key) && t.key.size() > 0) || (has(t.operator) && t.operator == 'Exists')))",fieldPath=".tolerations",message="operator must be Exists where there is no key"
// +kubebuilder:validation:XValidation:rule="!has(self.tolerations) || [self.tolerations].all(list, list.all(t, !has(t.value) || (has(t.operator) && t.operator == 'Exists' ? t.value.size() == 0 : [t.value].all(v, v.size() <= 63 && v.matches('^(-?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$')))))",fieldPath=".tolerations",message="value must be like the value of a label, and empty where operator is Exists"
// +kubebuilder:validation:XValidation:rule="!has(self.tolerations) || [self.tolerations].all(list, list.all(t, !has(t.effect) || t.effect.size() == 0 || t.effect in ['NoSchedule', 'PreferNoSchedule', 'NoExecute']))",fieldPath=".tolerations",message="effect must be NoSchedule, PreferNoSchedule, NoExecute, or empty for all of them"
// +kubebuilder:validation:XValidation:rule="!has(self.tolerations) || [self.tolerations].all(list, list.all(t, !has(t.tolerationSeconds) || (has(t.effect) && t.effect == 'NoExecute')))",fieldPath=".tolerations",message="effect must be NoExecute where tolerationSeconds is set"
type PodSpec struct {
	// labels are added to the pods, at most 15. Labels of the operator and of workload controllers are refused.
	//
	// +kubebuilder:validation:XValidation:rule="self.all(k, !['app.kubernetes.io/', 'apps.kubernetes.io/', 'statefulset.kubernetes.io/'].exists(p, k.startsWith(p)) && !(k in ['pod-template-hash', 'controller-revision-hash', 'pod-template-generation']))",message="must not use the prefixes app.kubernetes.io/, apps.kubernetes.io/ and statefulset.kubernetes.io/ or the keys pod-template-hash, controller-revision-hash and pod-template-generation: they belong to the operator and to workload controllers"
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Labels"
	Labels Labels `json:"labels,omitempty"`

	// annotations are added to the pods, at most 32 with 255 KiB in all: Kubernetes allows 256 KiB, of which the operator
	// needs 1 KiB.
	//
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Annotations"
	Annotations Annotations `json:"annotations,omitempty"`

	// resources of the memcached container. Each request or limit given here replaces the one that the operator derives.
	// By default these are a request of 50m of cpu, and a request and limit of memory for spec.memory, connections,
	// threads and the hash table.
	//
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Resources",xDescriptors={"urn:alm:descriptor:com.tectonic.ui:resourceRequirements"}
	Resources *ResourceRequirements `json:"resources,omitempty"`

	// securityContext of the pod. Each field given here replaces the operator's: runAsNonRoot, user and group 11211, the
	// RuntimeDefault seccomp profile. memcached refuses to run as root, user 0.
	//
	// +kubebuilder:validation:XValidation:rule="!has(self.runAsUser) || (self.runAsUser >= 1 && self.runAsUser <= 2147483647)",fieldPath=".runAsUser",message="must be from 1 to 2147483647: memcached refuses to run as root, user 0"
	// +kubebuilder:validation:XValidation:rule="!has(self.runAsGroup) || (self.runAsGroup >= 0 && self.runAsGroup <= 2147483647)",fieldPath=".runAsGroup",message="must be from 0 to 2147483647"
	// +kubebuilder:validation:XValidation:rule="!has(self.fsGroup) || (self.fsGroup >= 0 && self.fsGroup <= 2147483647)",fieldPath=".fsGroup",message="must be from 0 to 2147483647"
	// +kubebuilder:validation:XValidation:rule="!has(self.supplementalGroups) || self.supplementalGroups.size() == 0 || (self.supplementalGroups.min() >= 0 && self.supplementalGroups.max() <= 2147483647)",fieldPath=".supplementalGroups",message="must be from 0 to 2147483647"
	// +kubebuilder:validation:XValidation:rule="!has(self.fsGroupChangePolicy) || self.fsGroupChangePolicy in ['Always', 'OnRootMismatch']",fieldPath=".fsGroupChangePolicy",message="must be Always or OnRootMismatch"
	// +kubebuilder:validation:XValidation:rule="!has(self.supplementalGroupsPolicy) || self.supplementalGroupsPolicy in ['Merge', 'Strict']",fieldPath=".supplementalGroupsPolicy",message="must be Merge or Strict"
	// +kubebuilder:validation:XValidation:rule="!has(self.seLinuxChangePolicy) || self.seLinuxChangePolicy in ['MountOption', 'Recursive']",fieldPath=".seLinuxChangePolicy",message="must be MountOption or Recursive"
	// +kubebuilder:validation:XValidation:rule="!has(self.seccompProfile) || (self.seccompProfile.type == 'Localhost' ? has(self.seccompProfile.localhostProfile) : self.seccompProfile.type in ['RuntimeDefault', 'Unconfined'] && !has(self.seccompProfile.localhostProfile))",fieldPath=".seccompProfile",message="type must be RuntimeDefault, Unconfined or Localhost, and with Localhost alone a localhostProfile is named"
	// +kubebuilder:validation:XValidation:rule="!has(self.appArmorProfile) || (self.appArmorProfile.type == 'Localhost' ? has(self.appArmorProfile.localhostProfile) && self.appArmorProfile.localhostProfile != '' : self.appArmorProfile.type in ['RuntimeDefault', 'Unconfined'] && !has(self.appArmorProfile.localhostProfile))",fieldPath=".appArmorProfile",message="type must be RuntimeDefault, Unconfined or Localhost, and with Localhost alone a localhostProfile is named"
	// +kubebuilder:validation:XValidation:rule="!has(self.sysctls) || [self.sysctls].all(list, list.all(s, s.name in ['kernel.shm_rmid_forced', 'net.ipv4.ip_local_port_range', 'net.ipv4.ip_local_reserved_ports', 'net.ipv4.ip_unprivileged_port_start', 'net.ipv4.ping_group_range', 'net.ipv4.tcp_fin_timeout', 'net.ipv4.tcp_keepalive_intvl', 'net.ipv4.tcp_keepalive_probes', 'net.ipv4.tcp_keepalive_time', 'net.ipv4.tcp_notsent_lowat', 'net.ipv4.tcp_rmem', 'net.ipv4.tcp_slow_start_after_idle', 'net.ipv4.tcp_syncookies', 'net.ipv4.tcp_wmem'] && list.exists_one(o, o.name == s.name)))",fieldPath=".sysctls",message="names must be safe sysctls by the baseline Pod Security Standard, each once: kernel.shm_rmid_forced, net.ipv4.ip_local_port_range, net.ipv4.ip_local_reserved_ports, net.ipv4.ip_unprivileged_port_start, net.ipv4.ping_group_range, net.ipv4.tcp_fin_timeout, net.ipv4.tcp_keepalive_intvl, net.ipv4.tcp_keepalive_probes, net.ipv4.tcp_keepalive_time, net.ipv4.tcp_notsent_lowat, net.ipv4.tcp_rmem, net.ipv4.tcp_slow_start_after_idle, net.ipv4.tcp_syncookies, net.ipv4.tcp_wmem"
	// +kubebuilder:validation:XValidation:rule="!has(self.windowsOptions) || !has(self.windowsOptions.hostProcess) || !self.windowsOptions.hostProcess",fieldPath=".windowsOptions",message="must not ask for hostProcess, which takes the network of the host"
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Security context"
	SecurityContext *corev1.PodSecurityContext `json:"securityContext,omitempty"`

	// nodeSelector restricts the nodes that the pods run on to those with all these labels, at most 15.
	//
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Node selector"
	NodeSelector Labels `json:"nodeSelector,omitempty"`

	// tolerations of the pods.
	//
	// +listType=atomic
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Tolerations"
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`

	Placement `json:",inline"`

	// priorityClassName of the pods.
	//
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$')",message="must be the name of a PriorityClass: lower case letters, digits, '-' and '.', with a letter or digit at both ends"
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Priority class name"
	PriorityClassName string `json:"priorityClassName,omitempty"`

	// schedulerName is the scheduler of the pods, the cluster's default scheduler by default.
	//
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$')",message="must be the name of a scheduler: lower case letters, digits, '-' and '.', with a letter or digit at both ends"
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Scheduler name"
	SchedulerName string `json:"schedulerName,omitempty"`

	// serviceAccountName is the ServiceAccount of the pods, default by default. No token of it is mounted; it matters for
	// admission policies and for the pull secrets of the ServiceAccount.
	//
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$')",message="must be the name of a ServiceAccount: lower case letters, digits, '-' and '.', with a letter or digit at both ends"
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Service account name"
	ServiceAccountName string `json:"serviceAccountName,omitempty"`

	// imagePullPolicy says when the memcached image is pulled: Always, IfNotPresent or Never. By default Always if
	// the servers were created with an image of the tag latest, otherwise IfNotPresent. Another image does not change it.
	//
	// +kubebuilder:validation:Enum=Always;IfNotPresent;Never
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Image pull policy",xDescriptors={"urn:alm:descriptor:com.tectonic.ui:imagePullPolicy"}
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`

	// containerSecurityContext of the containers, the agent's included. Each field given here replaces the operator's: no
	// privilege escalation, a read-only root file system, no capabilities.
	//
	// +kubebuilder:validation:XValidation:rule="!has(self.privileged) || !self.privileged",fieldPath=".privileged",message="must not be true: memcached needs no privileges"
	// +kubebuilder:validation:XValidation:rule="!has(self.runAsUser) || (self.runAsUser >= 1 && self.runAsUser <= 2147483647)",fieldPath=".runAsUser",message="must be from 1 to 2147483647: memcached refuses to run as root, user 0"
	// +kubebuilder:validation:XValidation:rule="!has(self.runAsGroup) || (self.runAsGroup >= 0 && self.runAsGroup <= 2147483647)",fieldPath=".runAsGroup",message="must be from 0 to 2147483647"
	// +kubebuilder:validation:XValidation:rule="!has(self.capabilities) || !has(self.capabilities.add) || !('CAP_SYS_ADMIN' in self.capabilities.add)",fieldPath=".capabilities.add",message="must be named without CAP_, as SYS_ADMIN"
	// +kubebuilder:validation:XValidation:rule="!has(self.procMount) || self.procMount == 'Default'",fieldPath=".procMount",message="must be Default"
	// +kubebuilder:validation:XValidation:rule="!has(self.seccompProfile) || (self.seccompProfile.type == 'Localhost' ? has(self.seccompProfile.localhostProfile) : self.seccompProfile.type in ['RuntimeDefault', 'Unconfined'] && !has(self.seccompProfile.localhostProfile))",fieldPath=".seccompProfile",message="type must be RuntimeDefault, Unconfined or Localhost, and with Localhost alone a localhostProfile is named"
	// +kubebuilder:validation:XValidation:rule="!has(self.appArmorProfile) || (self.appArmorProfile.type == 'Localhost' ? has(self.appArmorProfile.localhostProfile) && self.appArmorProfile.localhostProfile != '' : self.appArmorProfile.type in ['RuntimeDefault', 'Unconfined'] && !has(self.appArmorProfile.localhostProfile))",fieldPath=".appArmorProfile",message="type must be RuntimeDefault, Unconfined or Localhost, and with Localhost alone a localhostProfile is named"
	// +kubebuilder:validation:XValidation:rule="!has(self.windowsOptions) || !has(self.windowsOptions.hostProcess) || !self.windowsOptions.hostProcess",fieldPath=".windowsOptions",message="must not ask for hostProcess, which takes the network of the host"
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Container security context"
	ContainerSecurityContext *corev1.SecurityContext `json:"containerSecurityContext,omitempty"`

	// imagePullSecrets name the Secrets for pulling the image from a private registry, at most 32.
	//
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:XValidation:rule="has(self.name) && self.name != ''",message="must have a name"
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Image pull secrets"
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty"`
}

// Placement selects the nodes that pods run on.
type Placement struct {
	// affinity of the pods. Unless podAntiAffinity or topologySpreadConstraints is set, the scheduler prefers nodes, and
	// zones, that run the fewest pods of the same Memcached.
	//
	// +kubebuilder:validation:XValidation:rule="!has(self.nodeAffinity) || !has(self.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution) || self.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms.size() > 0",fieldPath=".nodeAffinity",message="nodeSelectorTerms must not be empty"
	// +kubebuilder:validation:XValidation:rule="!has(self.nodeAffinity) || ((!has(self.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution) || [self.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms].all(list, list.all(t, (!has(t.matchExpressions) || t.matchExpressions.all(e, e.operator in ['In', 'NotIn'] ? has(e.values) && e.values.size() > 0 : e.operator in ['Gt', 'Lt'] ? has(e.values) && e.values.size() == 1 : e.operator in ['Exists', 'DoesNotExist'] && (!has(e.values) || e.values.size() == 0))) && (!has(t.matchFields) || t.matchFields.all(e, e.key == 'metadata.name' && e.operator in ['In', 'NotIn'] && has(e.values) && e.values.size() == 1))))) && (!has(self.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution) || [self.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution].all(list, list.all(p, (!has(p.preference.matchExpressions) || p.preference.matchExpressions.all(e, e.operator in ['In', 'NotIn'] ? has(e.values) && e.values.size() > 0 : e.operator in ['Gt', 'Lt'] ? has(e.values) && e.values.size() == 1 : e.operator in ['Exists', 'DoesNotExist'] && (!has(e.values) || e.values.size() == 0))) && (!has(p.preference.matchFields) || p.preference.matchFields.all(e, e.key == 'metadata.name' && e.operator in ['In', 'NotIn'] && has(e.values) && e.values.size() == 1))))))",fieldPath=".nodeAffinity",message="matchExpressions must have values with In and NotIn, one value with Gt and Lt, and none with Exists and DoesNotExist; matchFields must have the key metadata.name, In or NotIn, and one value"
	// +kubebuilder:validation:XValidation:rule="!has(self.nodeAffinity) || (!has(self.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution) || [self.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution].all(list, list.all(p, p.weight >= 1 && p.weight <= 100)))",fieldPath=".nodeAffinity",message="weight must be from 1 to 100"
	// +kubebuilder:validation:XValidation:rule="!has(self.podAffinity) || ((!has(self.podAffinity.requiredDuringSchedulingIgnoredDuringExecution) || [self.podAffinity.requiredDuringSchedulingIgnoredDuringExecution].all(list, list.all(t, t.topologyKey != ''))) && (!has(self.podAffinity.preferredDuringSchedulingIgnoredDuringExecution) || [self.podAffinity.preferredDuringSchedulingIgnoredDuringExecution].all(list, list.all(p, p.podAffinityTerm.topologyKey != ''))))",fieldPath=".podAffinity",message="topologyKey must name a label of nodes, such as kubernetes.io/hostname"
	// +kubebuilder:validation:XValidation:rule="!has(self.podAffinity) || (!has(self.podAffinity.preferredDuringSchedulingIgnoredDuringExecution) || [self.podAffinity.preferredDuringSchedulingIgnoredDuringExecution].all(list, list.all(p, p.weight >= 1 && p.weight <= 100)))",fieldPath=".podAffinity",message="weight must be from 1 to 100"
	// +kubebuilder:validation:XValidation:rule="!has(self.podAffinity) || ((!has(self.podAffinity.requiredDuringSchedulingIgnoredDuringExecution) || [self.podAffinity.requiredDuringSchedulingIgnoredDuringExecution].all(list, list.all(t, !has(t.labelSelector) || !has(t.labelSelector.matchExpressions) || t.labelSelector.matchExpressions.all(e, e.operator in ['In', 'NotIn'] ? has(e.values) && e.values.size() > 0 : e.operator in ['Exists', 'DoesNotExist'] && (!has(e.values) || e.values.size() == 0))))) && (!has(self.podAffinity.preferredDuringSchedulingIgnoredDuringExecution) || [self.podAffinity.preferredDuringSchedulingIgnoredDuringExecution].all(list, list.all(p, !has(p.podAffinityTerm.labelSelector) || !has(p.podAffinityTerm.labelSelector.matchExpressions) || p.podAffinityTerm.labelSelector.matchExpressions.all(e, e.operator in ['In', 'NotIn'] ? has(e.values) && e.values.size() > 0 : e.operator in ['Exists', 'DoesNotExist'] && (!has(e.values) || e.values.size() == 0))))))",fieldPath=".podAffinity",message="matchExpressions must have values with In and NotIn, and none with Exists and DoesNotExist"
	// +kubebuilder:validation:XValidation:rule="!has(self.podAntiAffinity) || ((!has(self.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution) || [self.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution].all(list, list.all(t, t.topologyKey != ''))) && (!has(self.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution) || [self.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution].all(list, list.all(p, p.podAffinityTerm.topologyKey != ''))))",fieldPath=".podAntiAffinity",message="topologyKey must name a label of nodes, such as kubernetes.io/hostname"
	// +kubebuilder:validation:XValidation:rule="!has(self.podAntiAffinity) || (!has(self.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution) || [self.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution].all(list, list.all(p, p.weight >= 1 && p.weight <= 100)))",fieldPath=".podAntiAffinity",message="weight must be from 1 to 100"
	// +kubebuilder:validation:XValidation:rule="!has(self.podAntiAffinity) || ((!has(self.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution) || [self.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution].all(list, list.all(t, !has(t.labelSelector) || !has(t.labelSelector.matchExpressions) || t.labelSelector.matchExpressions.all(e, e.operator in ['In', 'NotIn'] ? has(e.values) && e.values.size() > 0 : e.operator in ['Exists', 'DoesNotExist'] && (!has(e.values) || e.values.size() == 0))))) && (!has(self.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution) || [self.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution].all(list, list.all(p, !has(p.podAffinityTerm.labelSelector) || !has(p.podAffinityTerm.labelSelector.matchExpressions) || p.podAffinityTerm.labelSelector.matchExpressions.all(e, e.operator in ['In', 'NotIn'] ? has(e.values) && e.values.size() > 0 : e.operator in ['Exists', 'DoesNotExist'] && (!has(e.values) || e.values.size() == 0))))))",fieldPath=".podAntiAffinity",message="matchExpressions must have values with In and NotIn, and none with Exists and DoesNotExist"
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Affinity"
	Affinity *corev1.Affinity `json:"affinity,omitempty"`

	// topologySpreadConstraints spread the pods over nodes or zones, instead of the default preference of affinity.
	//
	// +kubebuilder:validation:items:XValidation:rule="self.maxSkew >= 1",fieldPath=".maxSkew",message="must be at least 1"
	// +kubebuilder:validation:items:XValidation:rule="self.topologyKey != ''",fieldPath=".topologyKey",message="must name the label of nodes that tells where they are, such as topology.kubernetes.io/zone"
	// +kubebuilder:validation:items:XValidation:rule="self.whenUnsatisfiable in ['DoNotSchedule', 'ScheduleAnyway']",fieldPath=".whenUnsatisfiable",message="must be DoNotSchedule or ScheduleAnyway"
	// +kubebuilder:validation:items:XValidation:rule="!has(self.minDomains) || (self.minDomains >= 1 && self.whenUnsatisfiable == 'DoNotSchedule')",fieldPath=".minDomains",message="must be at least 1, and be left out unless whenUnsatisfiable is DoNotSchedule"
	// +kubebuilder:validation:items:XValidation:rule="!has(self.nodeAffinityPolicy) || self.nodeAffinityPolicy in ['Honor', 'Ignore']",fieldPath=".nodeAffinityPolicy",message="must be Honor or Ignore"
	// +kubebuilder:validation:items:XValidation:rule="!has(self.nodeTaintsPolicy) || self.nodeTaintsPolicy in ['Honor', 'Ignore']",fieldPath=".nodeTaintsPolicy",message="must be Honor or Ignore"
	// +kubebuilder:validation:items:XValidation:rule="!has(self.labelSelector) || !has(self.labelSelector.matchExpressions) || [self.labelSelector.matchExpressions].all(list, list.all(e, e.operator in ['In', 'NotIn'] ? has(e.values) && e.values.size() > 0 : e.operator in ['Exists', 'DoesNotExist'] && (!has(e.values) || e.values.size() == 0)))",fieldPath=".labelSelector",message="matchExpressions must have values with In and NotIn, and none with Exists and DoesNotExist"
	// +listType=map
	// +listMapKey=topologyKey
	// +listMapKey=whenUnsatisfiable
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Topology spread constraints"
	TopologySpreadConstraints []corev1.TopologySpreadConstraint `json:"topologySpreadConstraints,omitempty"`
}

// Annotations are annotations of pods or Services, with the keys and the size that Kubernetes allows.
//
// +kubebuilder:validation:MaxProperties=32
// +kubebuilder:validation:XValidation:rule="self.all(k, k.size() <= 317 && k.matches('^([A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?([.][A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$'))",message="keys must be like app, app.kubernetes.io/name or example.com/team: an optional DNS prefix and a slash, then at most 63 letters, digits, '-', '_' or '.', with a letter or digit at both ends"
// +kubebuilder:validation:XValidation:rule="self.all(k, !k.startsWith('cache.example.com/'))",message="must not use the prefix cache.example.com/: it belongs to the operator"
// +kubebuilder:validation:XValidation:rule="self.map(k, k.size() + self[k].size()).sum() <= 261120",message="must have at most 255 KiB in all, keys and values together: Kubernetes allows 256 KiB, of which 1 KiB is kept for the operator's own"
type Annotations map[string]string

// Labels are labels of pods or nodes, with the keys and values that Kubernetes allows.
//
// +kubebuilder:validation:MaxProperties=15
// +kubebuilder:validation:XValidation:rule="self.all(k, k.size() <= 317 && k.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$'))",message="keys must be like app, app.kubernetes.io/name or example.com/team: an optional DNS prefix and a slash, then at most 63 letters, digits, '-', '_' or '.', with a letter or digit at both ends"
// +kubebuilder:validation:XValidation:rule="self.all(k, self[k].size() <= 63 && !self[k].matches(r'[^\\w.-]') && !['-', '_', '.'].exists(c, self[k].startsWith(c) || self[k].endsWith(c)))",message="values must be empty or at most 63 letters, digits, '-', '_' or '.', with a letter or digit at both ends"
type Labels map[string]string

// ResourceRequirements are requests and limits of the memcached container. Unlike those of core/v1 they have no claims.
//
// +kubebuilder:validation:XValidation:rule="!has(self.limits) || !has(self.requests) || ['cpu', 'memory'].all(k, !(k in self.limits) || !(k in self.requests) || string(self.limits[k]).size() > 20 || string(self.requests[k]).size() > 20 || string(self.limits[k]).matches('[eE-]') || string(self.requests[k]).matches('[eE-]') || quantity(string(self.requests[k])).compareTo(quantity(string(self.limits[k]))) <= 0)",fieldPath=".requests",message="cpu and memory must not exceed their limits"
// +kubebuilder:validation:XValidation:rule="!has(self.requests) || self.requests.all(k, !(k.startsWith('hugepages-') || (k.contains('/') && !k.contains('kubernetes.io/'))) || (has(self.limits) && k in self.limits && [string(self.limits[k])].all(l, [string(self.requests[k])].all(r, l.size() > 20 || r.size() > 20 || l.matches('[eE]') || r.matches('[eE]') || quantity(l).compareTo(quantity(r)) == 0))))",fieldPath=".requests",message="hugepages and extended resources must have a limit, and a request must equal it"
// +kubebuilder:validation:XValidation:rule="!has(self.limits) || self.limits.all(k, !k.contains('/') || k.contains('kubernetes.io/') || [string(self.limits[k])].all(q, q.size() > 20 || q.matches('[eE]') || [quantity(q).asApproximateFloat()].all(n, n > 9.0e15 || double(int(n)) == n)))",fieldPath=".limits",message="extended resources must be whole numbers"
// +kubebuilder:validation:XValidation:rule="!has(self.limits) || self.limits.all(k, !k.startsWith('hugepages-') || [string(self.limits[k])].all(q, q.size() > 20 || q.matches('[eE]') || (k.matches('^hugepages-[1-9][0-9]{0,8}(Ki|Mi|Gi)$') && quantity(q).isInteger() && quantity(q).asInteger() % quantity(k.substring(10)).asInteger() == 0)))",fieldPath=".limits",message="hugepages must be named by the size of a page, such as hugepages-2Mi, and be a multiple of that size"
type ResourceRequirements struct {
	// limits are the most that the container may use, at most 6.
	//
	// +optional
	Limits ResourceList `json:"limits,omitempty"`

	// requests are what the scheduler reserves on a node for the container, at most 6.
	//
	// +optional
	Requests ResourceList `json:"requests,omitempty"`
}

// ResourceList is a ResourceList of core/v1 that refuses two kinds of quantities: those that the API server and the
// operator would compare for minutes, such as 1e999999999, and those that the operator cannot decode, such as 1e1.5.
//
// +kubebuilder:validation:MaxProperties=6
// +kubebuilder:validation:XValidation:rule="self.all(k, string(self[k]).size() <= 20 && !string(self[k]).matches('[eE-]'))",message="must be quantities of at most 20 characters, without sign or exponent, such as 500m or 2Gi"
// +kubebuilder:validation:XValidation:rule="self.all(k, k in ['cpu', 'memory', 'ephemeral-storage'] || k.startsWith('hugepages-') || k.contains('/'))",message="may hold cpu, memory, ephemeral-storage, hugepages-SIZE and extended resources such as example.com/device"
// +kubebuilder:validation:XValidation:rule="self.all(k, !k.contains('/') || (k.size() <= 308 && !k.startsWith('requests.') && k.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$')))",message="names of extended resources must be like example.com/device: a DNS name that does not begin with requests., a slash, and at most 63 letters, digits, '-', '_' or '.', with a letter or digit at both ends"
type ResourceList map[corev1.ResourceName]resource.Quantity

// AgentSpec adjusts the agent.
type AgentSpec struct {
	// resources of the agent's container. Each request or limit given here replaces the default: requests of 5m of cpu
	// and 16Mi of memory, and a limit of 64Mi of memory. Beside a proxy, maxItemSize is added to the limit of memory.
	//
	// +kubebuilder:validation:XValidation:rule="!has(self.limits) || !('memory' in self.limits) || [string(self.limits['memory'])].all(l, l.size() > 20 || l.matches('[eE-]') || quantity(l).compareTo(quantity('64Mi')) >= 0)",fieldPath=".limits.memory",message="must be at least 64Mi"
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Resources",xDescriptors={"urn:alm:descriptor:com.tectonic.ui:resourceRequirements"}
	Resources *ComputeResources `json:"resources,omitempty"`
}

// ComputeResources are requests and limits of cpu and memory.
//
// +kubebuilder:validation:XValidation:rule="!has(self.limits) || !has(self.requests) || ['cpu', 'memory'].all(k, !(k in self.limits) || !(k in self.requests) || [string(self.limits[k])].all(l, [string(self.requests[k])].all(r, l.size() > 20 || r.size() > 20 || l.matches('[eE-]') || r.matches('[eE-]') || quantity(r).compareTo(quantity(l)) <= 0)))",fieldPath=".requests",message="must not exceed their limits"
type ComputeResources struct {
	// limits are the most that the container may use.
	//
	// +optional
	Limits ComputeList `json:"limits,omitempty"`

	// requests are what the scheduler reserves on a node for the container.
	//
	// +optional
	Requests ComputeList `json:"requests,omitempty"`
}

// ComputeList holds quantities of cpu and memory, with the bounds of ResourceList.
//
// +kubebuilder:validation:MaxProperties=2
// +kubebuilder:validation:XValidation:rule="self.all(k, [string(self[k])].all(q, q.size() <= 20 && !q.matches('[eE-]')))",message="must be quantities of at most 20 characters, without sign or exponent, such as 500m or 2Gi"
// +kubebuilder:validation:XValidation:rule="self.all(k, k in ['cpu', 'memory'])",message="may hold cpu and memory"
type ComputeList map[corev1.ResourceName]resource.Quantity
