package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// TLSSpec encrypts the connections of clients.
type TLSSpec struct {
	// secretName names a Secret of this namespace with the keys tls.crt and tls.key, and ca.crt if clientAuth is not None
	// and clientCA is not set. A change replaces the servers; without proxy, they start empty. New content is loaded
	// without a restart, but the removal of a CA replaces the servers too. Without a valid Secret, new servers wait, and
	// running servers keep the previous content.
	//
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="must be the name of a Secret: lower case letters, digits, '-' and '.', with a letter or digit at both ends"
	// +required
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Secret",xDescriptors={"urn:alm:descriptor:io.kubernetes:Secret"}
	SecretName string `json:"secretName"`

	// clientAuth is what servers require of clients. None, the default: no certificate. Request: if a client sends a
	// certificate, a CA in ca.crt must have signed it. Require: each client must send a certificate that a CA in ca.crt
	// has signed. A change replaces the servers; without proxy, they start empty.
	//
	// +kubebuilder:default=None
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Client authentication"
	ClientAuth ClientAuth `json:"clientAuth,omitempty"`

	// clientCA names another object with the CAs of clients; by default, they are in ca.crt of the Secret in secretName.
	// It is ignored if clientAuth is None. Use it for certificates of ACME, which have no CA, or with trust-manager. A
	// change replaces the servers; without proxy, they start empty. New content has the same effect as in that Secret.
	//
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Client CA"
	ClientCA *ClientCASource `json:"clientCA,omitempty"`

	// minVersion is the oldest version of TLS that servers speak: "1.2", the default, or "1.3". A change replaces the
	// servers; without proxy, they start empty.
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
	// secretName names a Secret of this namespace with the key ca.crt. A change replaces the servers; without proxy, they
	// start empty.
	//
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="must be the name of a Secret: lower case letters, digits, '-' and '.', with a letter or digit at both ends"
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Secret",xDescriptors={"urn:alm:descriptor:io.kubernetes:Secret"}
	SecretName string `json:"secretName,omitempty"`

	// configMapName names a ConfigMap of this namespace with the key ca.crt. The operator looks once a minute whether it
	// has new content. A change replaces the servers; without proxy, they start empty.
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
	// secretName names a Secret of this namespace with the key authfile: 1 to 8 lines user:password of at most 254 bytes,
	// each with a line break at its end. A change replaces the servers; without proxy, they start empty. New content is
	// loaded without a restart. Without a valid Secret, new servers wait, and running servers keep the previous content.
	//
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="must be the name of a Secret: lower case letters, digits, '-' and '.', with a letter or digit at both ends"
	// +required
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Secret",xDescriptors={"urn:alm:descriptor:io.kubernetes:Secret"}
	SecretName string `json:"secretName"`
}

// ServiceSpec adjusts the Services that clients connect to.
type ServiceSpec struct {
	// type is ClusterIP, the default, NodePort or LoadBalancer. The latter two are for clients outside of the cluster, and
	// need proxy or serverAddresses ClusterIP. status.servers has the addresses inside of the cluster in any case. A
	// change touches no server.
	//
	// +kubebuilder:validation:Enum=ClusterIP;NodePort;LoadBalancer
	// +kubebuilder:default=ClusterIP
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Type"
	Type corev1.ServiceType `json:"type,omitempty"`

	// labels are added to the Services, at most 15. A change touches no server.
	//
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Labels"
	Labels Labels `json:"labels,omitempty"`

	// annotations are added to the Services, at most 32 with 255 KiB in all, for example to configure a load balancer. In
	// values, $(SERVICE_NAME) stands for the name of the Service: $(SERVICE_NAME).cache.example.org gives each a host name
	// in external-dns. A change touches no server.
	//
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Annotations"
	Annotations Annotations `json:"annotations,omitempty"`

	// trafficDistribution is which proxies clients prefer; none by default. PreferClose (Kubernetes 1.31 or later) and
	// PreferSameZone (1.34 or later): those in their zone. PreferSameNode (1.34 or later): those on their node. It needs
	// proxy. A change touches no server.
	//
	// +kubebuilder:validation:Enum=PreferClose;PreferSameZone;PreferSameNode
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Traffic distribution"
	TrafficDistribution string `json:"trafficDistribution,omitempty"`

	// ipFamilyPolicy is SingleStack, PreferDualStack or RequireDualStack, for all Services of the Memcached. By default,
	// new Services have one address, of the cluster's first IP family. Removing the field changes no Service: set
	// SingleStack instead. A change touches no server.
	//
	// +kubebuilder:validation:Enum=SingleStack;PreferDualStack;RequireDualStack
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="IP family policy"
	IPFamilyPolicy corev1.IPFamilyPolicy `json:"ipFamilyPolicy,omitempty"`
}

// MetricsSpec serves metrics of servers and proxies: those of Prometheus's exporter for memcached, and of the agent.
type MetricsSpec struct {
	// port is the port on which each pod serves metrics at /metrics, from 1024 to 65535, 9150 by default. It must differ
	// from containerPort. A change replaces the servers; without proxy, they start empty.
	//
	// +kubebuilder:default=9150
	// +kubebuilder:validation:Minimum=1024
	// +kubebuilder:validation:Maximum=65535
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Port"
	Port int32 `json:"port,omitempty"`
}

// NetworkPolicySpec restricts access to servers and proxies.
type NetworkPolicySpec struct {
	// from are the peers that have access to memcached, or with proxy only to the proxies, as in a NetworkPolicy of
	// networking.k8s.io/v1, at most 32. Without peers, nobody has access. A change touches no server.
	//
	// +kubebuilder:validation:MaxItems=32
	// +listType=atomic
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="From"
	From []networkingv1.NetworkPolicyPeer `json:"from,omitempty"`

	// metricsFrom are the peers that have access to the metrics, from 1 to 32. If it is not set, everybody has access:
	// metrics hold no cached data. A change touches no server.
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

// WhenMoveStalls says what happens if items cannot move.
//
// +kubebuilder:validation:Enum=Wait;Proceed
type WhenMoveStalls string

// What happens if items cannot move.
const (
	WhenMoveStallsWait    WhenMoveStalls = "Wait"
	WhenMoveStallsProceed WhenMoveStalls = "Proceed"
)

// ProxySpec puts memcached's built-in proxy in front of the servers.
//
// +kubebuilder:validation:XValidation:rule="!has(self.source) || has(oldSelf.source)",fieldPath=".source",message="cannot be added to proxies that are in use: while only some of them read the other cache, clients would read wrong values; add it together with proxy"
// +kubebuilder:validation:XValidation:rule="[self.?memory] == [oldSelf.?memory] && [self.?threads] == [oldSelf.?threads] || !has(self.memory) || !has(self.threads) || !self.memory.matches('^[1-9][0-9]{0,9}(Mi|Gi)$') || quantity(self.memory).asInteger() >= 67108864 + 4194304 * self.threads",optionalOldSelf=true,fieldPath=".memory",message="must be at least 64Mi + 4Mi·threads"
type ProxySpec struct {
	// size is the number of proxies, from 1 to 100, 2 by default. A change touches no server.
	//
	// +kubebuilder:default=2
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Size"
	Size int32 `json:"size,omitempty"`

	// threads is the number of worker threads of each proxy, from 1 to 64, 4 by default. A change touches no server.
	//
	// +kubebuilder:default=4
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Threads"
	Threads int32 `json:"threads,omitempty"`

	// memory is the memory request and limit of each proxy, in Mi or Gi, at most 64Gi, 128Mi by default. The minimum is
	// the larger of 64Mi + 4Mi·threads and 2·threads·maxItemSize. A change touches no server.
	//
	// +kubebuilder:default="128Mi"
	// +kubebuilder:validation:MaxLength=12
	// +kubebuilder:validation:XValidation:rule="self.matches('^[1-9][0-9]*(Mi|Gi)$')",message="must be a whole number followed by Mi or Gi, such as 128Mi"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^[1-9][0-9]*(Mi|Gi)$') || quantity(self).compareTo(quantity('64Gi')) <= 0",message="must be at most 64Gi"
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Memory"
	Memory string `json:"memory,omitempty"`

	// moveItems is when items move to other servers, so that no client misses one. Always, the default: when size changes,
	// and before a server is replaced or evicted, which needs room for one more server. OnResize: only when size changes;
	// a server that is replaced or evicted starts empty. A change touches no server.
	//
	// +kubebuilder:default=Always
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Move items",xDescriptors={"urn:alm:descriptor:com.tectonic.ui:select:Always","urn:alm:descriptor:com.tectonic.ui:select:OnResize"}
	MoveItems MoveItems `json:"moveItems,omitempty"`

	// whenMoveStalls is what happens if items cannot move, for example because a proxy does not answer the operator. Wait,
	// the default: the operator keeps trying. Proceed: after rollout.progressDeadlineSeconds, proxies use the new servers;
	// other items are lost, and clients may read old values. A change touches no server.
	//
	// +kubebuilder:default=Wait
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="When move stalls",xDescriptors={"urn:alm:descriptor:com.tectonic.ui:select:Wait","urn:alm:descriptor:com.tectonic.ui:select:Proceed"}
	WhenMoveStalls WhenMoveStalls `json:"whenMoveStalls,omitempty"`

	// source is another cache whose items the proxies read until a time: a migration then needs no cold start. The proxies
	// write nothing there. It cannot be added to proxies that are in use. A change touches no server.
	//
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Source"
	Source *ProxySource `json:"source,omitempty"`

	// resources are the request of cpu, 50m by default, and the limit of cpu, none by default, of each proxy. They must
	// not hold memory. A change touches no server.
	//
	// +kubebuilder:validation:XValidation:rule="[self.?limits[?'memory'], self.?requests[?'memory']] == [oldSelf.?limits[?'memory'], oldSelf.?requests[?'memory']] || (!has(self.limits) || !('memory' in self.limits)) && (!has(self.requests) || !('memory' in self.requests))",optionalOldSelf=true,message="must not hold memory: spec.proxy.memory is its request and limit"
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Resources",xDescriptors={"urn:alm:descriptor:com.tectonic.ui:resourceRequirements"}
	Resources *ResourceRequirements `json:"resources,omitempty"`

	Placement `json:",inline"`
}

// ProxySource is another cache whose items the proxies read. A read that finds no item copies the item from there, with
// its flags and its remaining time. A key that clients write or delete is no longer read there, unless the note of that
// is evicted or flushed, or lost with its server.
type ProxySource struct {
	// servers are those of the other cache, from 1 to 64, each as name|ip|port, in the order of its clients' list.
	// `config get cluster` of ElastiCache or Memorystore answers in this form. The name is what clients call the server;
	// Ketama hashes the name. The servers need memcached 1.6 and neither TLS nor passwords. A change touches no server.
	//
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=320
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*|[0-9a-f:]*:[0-9a-f:]+)[|]((25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])([.](25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])){3}|[0-9a-f:]*:[0-9a-f:]+)[|]([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$')",message="must be name|ip|port, such as cache-1.example.com|10.0.0.4|11211"
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Servers"
	Servers []string `json:"servers"`

	// hash is how the clients of the other cache choose a server by the key. Ketama, the default: as libmemcached with
	// LIBKETAMA_COMPATIBLE or ketama_weighted. OneAtATime: the remainder of this hash, the default of libmemcached, PHP
	// and pylibmc. CRC32: the remainder of this hash, as gomemcache. With one server, any is right. A change touches no
	// server.
	//
	// +kubebuilder:default=Ketama
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Hash",xDescriptors={"urn:alm:descriptor:com.tectonic.ui:select:Ketama","urn:alm:descriptor:com.tectonic.ui:select:OneAtATime","urn:alm:descriptor:com.tectonic.ui:select:CRC32"}
	Hash SourceHash `json:"hash,omitempty"`

	// until is when the proxies stop reading the other cache, a time in UTC such as 2027-01-31T12:00:00Z, before 2038. It
	// should be as far away as the longest lifetime of an item. A change touches no server.
	//
	// +kubebuilder:validation:Format=date-time
	// +kubebuilder:validation:Pattern=`^20(2[0-9]|3[0-7])-[0-9]{2}-[0-9]{2}T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]Z$`
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Until"
	Until string `json:"until"`
}

// SourceHash is how clients choose a server by the key.
//
// +kubebuilder:validation:Enum=Ketama;OneAtATime;CRC32
type SourceHash string

// HashKetama is the hash that needs the names of the servers.
const HashKetama SourceHash = "Ketama"
