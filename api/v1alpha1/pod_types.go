package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// PodSpec adjusts the pods of servers and proxies. What the baseline Pod Security Standard forbids is refused, also in
// a namespace without Pod Security admission: rights on Memcacheds alone must not give more.
// https://kubernetes.io/docs/concepts/security/pod-security-standards/#baseline
type PodSpec struct {
	// labels are added to the pods, at most 15. A change replaces the servers; without proxy, they start empty.
	//
	// +kubebuilder:validation:XValidation:rule="self.all(k, !['apps.kubernetes.io/', 'statefulset.kubernetes.io/'].exists(p, k.startsWith(p)) && !(k in ['pod-template-hash', 'controller-revision-hash', 'pod-template-generation']))",message="must not use the prefixes apps.kubernetes.io/ and statefulset.kubernetes.io/ or the keys pod-template-hash, controller-revision-hash and pod-template-generation: they belong to workload controllers"
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Labels"
	Labels Labels `json:"labels,omitempty"`

	// annotations are added to the pods, at most 32 with 255 KiB in all. A change replaces the servers; without proxy,
	// they start empty.
	//
	// +kubebuilder:validation:XValidation:rule="self.all(k, !k.startsWith('container.apparmor.security.beta.kubernetes.io/'))",message="must not use the prefix container.apparmor.security.beta.kubernetes.io/: set appArmorProfile in spec.pod.securityContext"
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Annotations"
	Annotations Annotations `json:"annotations,omitempty"`

	// resources are those of the memcached container. Each value replaces the operator's: a request of 50m of cpu, and a
	// request and limit of memory for spec.memory, connections, threads and the hash table. A limit of memory must be at
	// least spec.memory + 48Mi + 4Mi·threads. A change replaces the servers; without proxy, they start empty.
	//
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Resources",xDescriptors={"urn:alm:descriptor:com.tectonic.ui:resourceRequirements"}
	Resources *ResourceRequirements `json:"resources,omitempty"`

	// securityContext is that of the pods. Each field replaces the operator's: runAsNonRoot, user and group 11211, the
	// RuntimeDefault seccomp profile. memcached refuses to run as root, user 0. A change replaces the servers; without
	// proxy, they start empty.
	//
	// +kubebuilder:validation:XValidation:rule="!has(self.runAsUser) || self.runAsUser != 0",fieldPath=".runAsUser",message="must not be 0: memcached refuses to run as root"
	// +kubebuilder:validation:XValidation:rule="!has(self.seccompProfile) || self.seccompProfile.type in ['RuntimeDefault', 'Localhost']",fieldPath=".seccompProfile",message="type must be RuntimeDefault or Localhost, by the baseline Pod Security Standard"
	// +kubebuilder:validation:XValidation:rule="!has(self.appArmorProfile) || self.appArmorProfile.type in ['RuntimeDefault', 'Localhost']",fieldPath=".appArmorProfile",message="type must be RuntimeDefault or Localhost, by the baseline Pod Security Standard"
	// +kubebuilder:validation:XValidation:rule="!has(self.seLinuxOptions) || ((!has(self.seLinuxOptions.type) || self.seLinuxOptions.type in ['', 'container_t', 'container_init_t', 'container_kvm_t', 'container_engine_t']) && (!has(self.seLinuxOptions.user) || self.seLinuxOptions.user == '') && (!has(self.seLinuxOptions.role) || self.seLinuxOptions.role == ''))",fieldPath=".seLinuxOptions",message="type must be container_t, container_init_t, container_kvm_t or container_engine_t, and user and role must not be set, by the baseline Pod Security Standard"
	// +kubebuilder:validation:XValidation:rule="!has(self.sysctls) || [self.sysctls].all(list, list.all(s, s.name in ['kernel.shm_rmid_forced', 'net.ipv4.ip_local_port_range', 'net.ipv4.ip_local_reserved_ports', 'net.ipv4.ip_unprivileged_port_start', 'net.ipv4.ping_group_range', 'net.ipv4.tcp_fin_timeout', 'net.ipv4.tcp_keepalive_intvl', 'net.ipv4.tcp_keepalive_probes', 'net.ipv4.tcp_keepalive_time', 'net.ipv4.tcp_notsent_lowat', 'net.ipv4.tcp_rmem', 'net.ipv4.tcp_slow_start_after_idle', 'net.ipv4.tcp_syncookies', 'net.ipv4.tcp_wmem']))",fieldPath=".sysctls",message="must be among those of the baseline Pod Security Standard: kernel.shm_rmid_forced, net.ipv4.ip_local_port_range, net.ipv4.ip_local_reserved_ports, net.ipv4.ip_unprivileged_port_start, net.ipv4.ping_group_range, net.ipv4.tcp_fin_timeout, net.ipv4.tcp_keepalive_intvl, net.ipv4.tcp_keepalive_probes, net.ipv4.tcp_keepalive_time, net.ipv4.tcp_notsent_lowat, net.ipv4.tcp_rmem, net.ipv4.tcp_slow_start_after_idle, net.ipv4.tcp_syncookies, net.ipv4.tcp_wmem"
	// +kubebuilder:validation:XValidation:rule="!has(self.windowsOptions) || !has(self.windowsOptions.hostProcess) || !self.windowsOptions.hostProcess",fieldPath=".windowsOptions",message="hostProcess must not be true, by the baseline Pod Security Standard"
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Security context"
	SecurityContext *corev1.PodSecurityContext `json:"securityContext,omitempty"`

	// nodeSelector restricts the pods to nodes with all these labels, and with the operating system Linux unless another
	// is given. A change replaces the servers; without proxy, they start empty.
	//
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Node selector"
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`

	// tolerations are those of the pods; none by default. A change replaces the servers; without proxy, they start empty.
	//
	// +listType=atomic
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Tolerations"
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`

	Placement `json:",inline"`

	// priorityClassName is the PriorityClass of the pods; the cluster's by default. A change replaces the servers; without
	// proxy, they start empty.
	//
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Priority class name"
	PriorityClassName string `json:"priorityClassName,omitempty"`

	// schedulerName is the scheduler of the pods; the cluster's by default. A change replaces the servers; without proxy,
	// they start empty.
	//
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$')",message="must be the name of a scheduler: lower case letters, digits, '-' and '.', with a letter or digit at both ends"
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Scheduler name"
	SchedulerName string `json:"schedulerName,omitempty"`

	// serviceAccountName is the ServiceAccount of the pods, default by default. Its token is not mounted; its pull secrets
	// and admission policies apply. A change replaces the servers; without proxy, they start empty.
	//
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Service account name"
	ServiceAccountName string `json:"serviceAccountName,omitempty"`

	// imagePullPolicy is when the memcached image is pulled: Always, IfNotPresent or Never. By default, it is Always if
	// the first image has the tag latest, otherwise IfNotPresent; another image does not change it. A change replaces the
	// servers; without proxy, they start empty.
	//
	// +kubebuilder:validation:Enum=Always;IfNotPresent;Never
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Image pull policy",xDescriptors={"urn:alm:descriptor:com.tectonic.ui:imagePullPolicy"}
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`

	// containerSecurityContext is that of all containers, the agent's included. Each field replaces the operator's: no
	// privilege escalation, a read-only root file system, no capabilities. A change replaces the servers; without proxy,
	// they start empty.
	//
	// +kubebuilder:validation:XValidation:rule="!has(self.privileged) || !self.privileged",fieldPath=".privileged",message="must not be true, by the baseline Pod Security Standard"
	// +kubebuilder:validation:XValidation:rule="!has(self.runAsUser) || self.runAsUser != 0",fieldPath=".runAsUser",message="must not be 0: memcached refuses to run as root"
	// +kubebuilder:validation:XValidation:rule="!has(self.capabilities) || !has(self.capabilities.add) || [self.capabilities.add].all(list, list.all(c, c in ['AUDIT_WRITE', 'CHOWN', 'DAC_OVERRIDE', 'FOWNER', 'FSETID', 'KILL', 'MKNOD', 'NET_BIND_SERVICE', 'SETFCAP', 'SETGID', 'SETPCAP', 'SETUID', 'SYS_CHROOT']))",fieldPath=".capabilities.add",message="must be among those of the baseline Pod Security Standard: AUDIT_WRITE, CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, MKNOD, NET_BIND_SERVICE, SETFCAP, SETGID, SETPCAP, SETUID, SYS_CHROOT"
	// +kubebuilder:validation:XValidation:rule="!has(self.procMount) || self.procMount == 'Default'",fieldPath=".procMount",message="must be Default, by the baseline Pod Security Standard"
	// +kubebuilder:validation:XValidation:rule="!has(self.seccompProfile) || self.seccompProfile.type in ['RuntimeDefault', 'Localhost']",fieldPath=".seccompProfile",message="type must be RuntimeDefault or Localhost, by the baseline Pod Security Standard"
	// +kubebuilder:validation:XValidation:rule="!has(self.appArmorProfile) || self.appArmorProfile.type in ['RuntimeDefault', 'Localhost']",fieldPath=".appArmorProfile",message="type must be RuntimeDefault or Localhost, by the baseline Pod Security Standard"
	// +kubebuilder:validation:XValidation:rule="!has(self.seLinuxOptions) || ((!has(self.seLinuxOptions.type) || self.seLinuxOptions.type in ['', 'container_t', 'container_init_t', 'container_kvm_t', 'container_engine_t']) && (!has(self.seLinuxOptions.user) || self.seLinuxOptions.user == '') && (!has(self.seLinuxOptions.role) || self.seLinuxOptions.role == ''))",fieldPath=".seLinuxOptions",message="type must be container_t, container_init_t, container_kvm_t or container_engine_t, and user and role must not be set, by the baseline Pod Security Standard"
	// +kubebuilder:validation:XValidation:rule="!has(self.windowsOptions) || !has(self.windowsOptions.hostProcess) || !self.windowsOptions.hostProcess",fieldPath=".windowsOptions",message="hostProcess must not be true, by the baseline Pod Security Standard"
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Container security context"
	ContainerSecurityContext *corev1.SecurityContext `json:"containerSecurityContext,omitempty"`

	// imagePullSecrets are Secrets of this namespace for pulling the images of memcached and the agent, at most 32. By
	// default, they are those of the operator's flag --image-pull-secrets. A change replaces the servers; without proxy,
	// they start empty.
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
	// affinity is that of the pods. Unless podAntiAffinity is set, the scheduler prefers the nodes and zones with the
	// fewest pods of the same Memcached. In pod, a change replaces the servers; without proxy, they start empty. In proxy,
	// a change touches no server.
	//
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Affinity"
	Affinity *corev1.Affinity `json:"affinity,omitempty"`

	// topologySpreadConstraints spread the pods over nodes or zones. One without a labelSelector counts the servers, or in
	// proxy the proxies. One with the topologyKey of nodes (the host name) or zones replaces the default of affinity for
	// these. In pod, a change replaces the servers; without proxy, they start empty. In proxy, a change touches no server.
	//
	// +listType=map
	// +listMapKey=topologyKey
	// +listMapKey=whenUnsatisfiable
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Topology spread constraints"
	TopologySpreadConstraints []corev1.TopologySpreadConstraint `json:"topologySpreadConstraints,omitempty"`
}

// Annotations are annotations of pods or of objects that the operator creates.
//
// +kubebuilder:validation:MaxProperties=32
// +kubebuilder:validation:XValidation:rule="self.all(k, !k.startsWith('cache.example.com/'))",message="must not use the prefix cache.example.com/: it belongs to the operator"
// +kubebuilder:validation:XValidation:rule="self.map(k, k.size() + self[k].size()).sum() <= 261120",message="must have at most 255 KiB in all, keys and values together: Kubernetes allows 256 KiB, of which 1 KiB is kept for the operator's own"
type Annotations map[string]string

// Labels are labels of pods or of objects that the operator creates.
//
// +kubebuilder:validation:MaxProperties=15
// +kubebuilder:validation:XValidation:rule="self.all(k, !k.startsWith('app.kubernetes.io/') && !k.startsWith('cache.example.com/'))",message="must not use the prefixes app.kubernetes.io/ and cache.example.com/: they belong to the operator"
type Labels map[string]string

// ResourceRequirements are requests and limits of a container. Unlike those of core/v1 they have no claims.
type ResourceRequirements struct {
	// limits are the most that the container may use: at most 6 quantities of at most 20 characters, without sign or
	// exponent, such as 500m or 2Gi. In pod and agent, a change replaces the servers; without proxy, they start empty. In
	// proxy, a change touches no server.
	//
	// +optional
	Limits ResourceList `json:"limits,omitempty"`

	// requests are what the scheduler reserves on a node for the container. The rules of limits apply. In pod and agent, a
	// change replaces the servers; without proxy, they start empty. In proxy, a change touches no server.
	//
	// +optional
	Requests ResourceList `json:"requests,omitempty"`
}

// ResourceList is a ResourceList of core/v1 without two kinds of quantities: those that would take minutes to compare,
// such as 1e999999999, and those that the operator cannot decode, such as 1e1.5.
//
// +kubebuilder:validation:MaxProperties=6
// +kubebuilder:validation:XValidation:rule="self.all(k, string(self[k]).size() <= 20 && !string(self[k]).matches('[eE-]'))",message="must be quantities of at most 20 characters, without sign or exponent, such as 500m or 2Gi"
type ResourceList map[corev1.ResourceName]resource.Quantity

// AgentSpec adjusts the agent.
type AgentSpec struct {
	// resources are those of the agent's container. Each value replaces the default: requests of 5m of cpu and 16Mi of
	// memory, and a limit of 64Mi of memory, which is also the minimum. Beside a proxy, maxItemSize is added to this
	// limit. A change replaces the servers that have an agent; without proxy, they start empty.
	//
	// +kubebuilder:validation:XValidation:rule="!has(self.limits) || !('memory' in self.limits) || [string(self.limits['memory'])].all(l, l.size() > 20 || l.matches('[eE-]') || quantity(l).compareTo(quantity('64Mi')) >= 0)",fieldPath=".limits.memory",message="must be at least 64Mi"
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Resources",xDescriptors={"urn:alm:descriptor:com.tectonic.ui:resourceRequirements"}
	Resources *ResourceRequirements `json:"resources,omitempty"`
}
