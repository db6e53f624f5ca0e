package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// TLSSpec encrypts the connections of clients.
type TLSSpec struct {
	// secretName names a Secret of this namespace with the keys tls.crt and tls.key, such as cert-manager creates, and
	// with ca.crt unless clientAuth is None or clientCA is set. The servers load a changed certificate or an added CA
	// within seconds, without a restart. Removing a CA replaces the servers at the pace of rollout. While the Secret is
	// missing or invalid, a new Memcached gets no servers, and running servers keep the previous content.
	//
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="must be the name of a Secret: lower case letters, digits, '-' and '.', with a letter or digit at both ends"
	// +required
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Secret",xDescriptors={"urn:alm:descriptor:io.kubernetes:Secret"}
	SecretName string `json:"secretName"`

	// clientAuth is what servers require of clients. None, the default: no certificate. Request: a client may send a
	// certificate, and is refused if no CA in ca.crt has signed it. Require: each client must send a certificate that a
	// CA in ca.crt has signed.
	//
	// +kubebuilder:default=None
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Client authentication"
	ClientAuth ClientAuth `json:"clientAuth,omitempty"`

	// clientCA names another object that has the CAs of clients, unless clientAuth is None; by default they are in ca.crt
	// of the Secret that secretName names. Certificates from ACME issuers come without a CA, and trust-manager writes CAs
	// to ConfigMaps. Another object replaces every server; changed content does what it does in that Secret.
	//
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Client CA"
	ClientCA *ClientCASource `json:"clientCA,omitempty"`

	// minVersion is the oldest version of TLS that servers speak: "1.2", the default, or "1.3".
	//
	// +kubebuilder:default="1.2"
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Minimum version"
	MinVersion TLSVersion `json:"minVersion,omitempty"`
}

// ClientCASource names a Secret or a ConfigMap with the CAs of clients.
//
// +kubebuilder:validation:XValidation:rule="has(self.secretName) != has(self.configMapName)",message="must have either secretName or configMapName"
type ClientCASource struct {
	// secretName names a Secret of this namespace with the key ca.crt. It needs no other key.
	//
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="must be the name of a Secret: lower case letters, digits, '-' and '.', with a letter or digit at both ends"
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Secret",xDescriptors={"urn:alm:descriptor:io.kubernetes:Secret"}
	SecretName string `json:"secretName,omitempty"`

	// configMapName names a ConfigMap of this namespace with the key ca.crt. The operator does not watch ConfigMaps of
	// users, and looks once a minute whether it changed.
	//
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="must be the name of a ConfigMap: lower case letters, digits, '-' and '.', with a letter or digit at both ends"
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="ConfigMap",xDescriptors={"urn:alm:descriptor:io.kubernetes:ConfigMap"}
	ConfigMapName string `json:"configMapName,omitempty"`
}

// ClientAuth is what servers require of the certificates of clients.
//
// +kubebuilder:validation:Enum=None;Request;Require
type ClientAuth string

// What servers require of the certificates of clients.
const (
	ClientAuthNone    ClientAuth = "None"
	ClientAuthRequest ClientAuth = "Request"
	ClientAuthRequire ClientAuth = "Require"
)

// TLSVersion is a version of TLS.
//
// +kubebuilder:validation:Enum="1.2";"1.3"
type TLSVersion string

// Versions of TLS.
const (
	TLS12 TLSVersion = "1.2"
	TLS13 TLSVersion = "1.3"
)

// AuthSpec requires a user and a password of clients, in memcached's ASCII protocol.
type AuthSpec struct {
	// secretName names a Secret of this namespace with the key authfile: 1 to 8 lines of at most 254 bytes, each a user,
	// a colon and a password, with a line break after each line, the last one too. The servers load a changed file within
	// seconds, without a restart. While the Secret is missing or invalid, a new Memcached gets no servers, and running
	// servers keep the previous content.
	//
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="must be the name of a Secret: lower case letters, digits, '-' and '.', with a letter or digit at both ends"
	// +required
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Secret",xDescriptors={"urn:alm:descriptor:io.kubernetes:Secret"}
	SecretName string `json:"secretName"`
}

// ServiceSpec adjusts the Services that clients connect to.
type ServiceSpec struct {
	// type of the Services: ClusterIP, the default; NodePort or LoadBalancer, for clients outside of the cluster, needs
	// proxy or serverAddresses: ClusterIP. status.servers has the addresses inside of the cluster in any case.
	//
	// +kubebuilder:validation:Enum=ClusterIP;NodePort;LoadBalancer
	// +kubebuilder:default=ClusterIP
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Type"
	Type corev1.ServiceType `json:"type,omitempty"`

	// labels are added to the Services, at most 15. Labels of the operator are refused.
	//
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Labels"
	Labels Labels `json:"labels,omitempty"`

	// annotations are added to the Services, at most 32 with 255 KiB in all, such as those that configure a load
	// balancer. In values, $(SERVICE_NAME) stands for the name of the Service: with a Service for each server,
	// $(SERVICE_NAME).cache.example.org as the host name of external-dns gives each a name of its own.
	//
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Annotations"
	Annotations Annotations `json:"annotations,omitempty"`

	// trafficDistribution says which proxies clients prefer: with PreferClose, from Kubernetes 1.31 on, or PreferSameZone,
	// from 1.34 on, those in their own zone; with PreferSameNode, from 1.34 on, those on their own node. By default they
	// prefer none. Needs proxy.
	//
	// +kubebuilder:validation:Enum=PreferClose;PreferSameZone;PreferSameNode
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Traffic distribution"
	TrafficDistribution string `json:"trafficDistribution,omitempty"`

	// ipFamilyPolicy says whether the Services have addresses of one IP family, SingleStack, or of both, PreferDualStack
	// or RequireDualStack. By default new Services have one address, of the cluster's first family. A Service keeps its
	// addresses when the field is removed: set SingleStack instead. It applies to all Services of the Memcached.
	//
	// +kubebuilder:validation:Enum=SingleStack;PreferDualStack;RequireDualStack
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="IP family policy"
	IPFamilyPolicy corev1.IPFamilyPolicy `json:"ipFamilyPolicy,omitempty"`
}

// MetricsSpec serves metrics of the servers.
type MetricsSpec struct {
	// port is the port on which each pod serves metrics at /metrics, from 1024 to 65535, 9150 by default. They are the
	// metrics of Prometheus's exporter for memcached, and of the agent.
	//
	// +kubebuilder:default=9150
	// +kubebuilder:validation:Minimum=1024
	// +kubebuilder:validation:Maximum=65535
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Port"
	Port int32 `json:"port,omitempty"`
}

// NetworkPolicySpec restricts who may reach the servers.
type NetworkPolicySpec struct {
	// from are the peers that may reach memcached, as in a NetworkPolicy of networking.k8s.io/v1, at most 32. An empty
	// list admits nobody.
	//
	// +kubebuilder:validation:MaxItems=32
	// +listType=atomic
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="From"
	From []networkingv1.NetworkPolicyPeer `json:"from,omitempty"`

	// metricsFrom are the peers that may reach the metrics, at most 32. By default all peers may: metrics are numbers and
	// reveal no cached data.
	//
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +listType=atomic
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Metrics from"
	MetricsFrom []networkingv1.NetworkPolicyPeer `json:"metricsFrom,omitempty"`
}

// MoveItems says when items move to other servers.
//
// +kubebuilder:validation:Enum=Always;OnResize
type MoveItems string

// When items move to other servers.
const (
	MoveItemsAlways   MoveItems = "Always"
	MoveItemsOnResize MoveItems = "OnResize"
)

// WhenMoveStalls says what happens to a move of items that cannot go on.
//
// +kubebuilder:validation:Enum=Wait;Proceed
type WhenMoveStalls string

// What happens to a move of items that cannot go on.
const (
	WhenMoveStallsWait    WhenMoveStalls = "Wait"
	WhenMoveStallsProceed WhenMoveStalls = "Proceed"
)

// ProxySpec puts memcached's built-in proxy in front of the servers.
//
// +kubebuilder:validation:XValidation:rule="[self.?memory] == [oldSelf.?memory] && [self.?threads] == [oldSelf.?threads] || !has(self.memory) || !has(self.threads) || !self.memory.matches('^[1-9][0-9]{0,9}(Mi|Gi)$') || quantity(self.memory).asInteger() >= 67108864 + 4194304 * self.threads",optionalOldSelf=true,fieldPath=".memory",message="must be at least 64Mi + 4Mi·threads"
type ProxySpec struct {
	// size is the number of proxies, from 1 to 100, 2 by default.
	//
	// +kubebuilder:default=2
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Size"
	Size int32 `json:"size,omitempty"`

	// threads is the number of worker threads of each proxy, from 1 to 64, 4 by default.
	//
	// +kubebuilder:default=4
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Threads"
	Threads int32 `json:"threads,omitempty"`

	// memory is the memory request and limit of each proxy, in Mi or Gi, from 64Mi + 4Mi·threads to 64Gi, 128Mi by
	// default. Proxies store no items.
	//
	// +kubebuilder:default="128Mi"
	// +kubebuilder:validation:MaxLength=12
	// +kubebuilder:validation:XValidation:rule="self.matches('^[1-9][0-9]*(Mi|Gi)$')",message="must be a whole number followed by Mi or Gi, such as 128Mi"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^[1-9][0-9]*(Mi|Gi)$') || quantity(self).compareTo(quantity('64Gi')) <= 0",message="must be at most 64Gi"
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Memory"
	Memory string `json:"memory,omitempty"`

	// moveItems says when items move to other servers, so that no client misses one. Always, the default: when size
	// changes, and before a server is replaced or evicted, one after the other; the cluster then needs room for one more
	// server. OnResize: only when size changes; a server that is replaced or evicted starts empty, as
	// spec.rollout says.
	//
	// +kubebuilder:default=Always
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Move items",xDescriptors={"urn:alm:descriptor:com.tectonic.ui:select:Always","urn:alm:descriptor:com.tectonic.ui:select:OnResize"}
	MoveItems MoveItems `json:"moveItems,omitempty"`

	// whenMoveStalls says what happens if a move of items cannot continue, for example because a proxy does not answer
	// the operator. Wait, the default: the operator tries again until it succeeds. Proceed: once the object is Stalled,
	// after rollout.progressDeadlineSeconds, proxies use the new servers at once. Items that have not moved are lost, and
	// clients may read values that are older than later writes.
	//
	// +kubebuilder:default=Wait
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="When move stalls",xDescriptors={"urn:alm:descriptor:com.tectonic.ui:select:Wait","urn:alm:descriptor:com.tectonic.ui:select:Proceed"}
	WhenMoveStalls WhenMoveStalls `json:"whenMoveStalls,omitempty"`

	// resources are the request of cpu, 50m by default, and the limit of cpu, none by default, of each proxy.
	//
	// +kubebuilder:validation:XValidation:rule="[self.?limits[?'memory'], self.?requests[?'memory']] == [oldSelf.?limits[?'memory'], oldSelf.?requests[?'memory']] || (!has(self.limits) || !('memory' in self.limits)) && (!has(self.requests) || !('memory' in self.requests))",optionalOldSelf=true,message="must not hold memory: spec.proxy.memory is its request and limit"
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Resources",xDescriptors={"urn:alm:descriptor:com.tectonic.ui:resourceRequirements"}
	Resources *ResourceRequirements `json:"resources,omitempty"`

	Placement `json:",inline"`
}
