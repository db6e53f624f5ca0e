package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const (
	// Finalizer delays the deletion of a Memcached until its servers are deleted.
	Finalizer = "cache.example.com/finalizer"

	// RestartedAtAnnotation on a Memcached restarts its servers, as spec.rollout says, each time its value changes. Any
	// value works; a timestamp is customary.
	RestartedAtAnnotation = "cache.example.com/restartedAt"

	// FlushedAtAnnotation on a Memcached makes its servers drop all items, one server after the other, each time its value
	// changes. With spec.rollout.warmUp, the next server waits until the one before is warm. Any value works; a timestamp
	// is customary. The servers need an agent, as those of a StatefulSet have. Without the annotation, no further server
	// is flushed. On the workload, it is the value of the last flush that has ended.
	FlushedAtAnnotation = "cache.example.com/flushedAt"

	// NameLabel on a child or pod is the name of its Memcached. Selectors use this label and ComponentLabel, not those
	// that Kubernetes recommends, by which charts of memcached select their pods.
	NameLabel = "cache.example.com/name"

	// ComponentLabel on a child or pod is the component that it belongs to: server or proxy.
	ComponentLabel = "cache.example.com/component"

	// GenerationLabel on a workload is the generation of the Memcached that the workload was built from. Unless
	// spec.paused is set, Ready is not True while the workload has another generation. It is no annotation: the Deployment
	// controller copies annotations, but not labels, to the ReplicaSet, and that write conflicts with its next one, which
	// scales the ReplicaSet.
	GenerationLabel = "cache.example.com/generation"

	// TemplateRecordAnnotation on the workload of the servers records its pod template, as the operator applied it, and
	// what the template was made from. While that stays the same, the operator applies the same template, even if a newer
	// operator would build a different one.
	TemplateRecordAnnotation = "cache.example.com/template-record"

	// TemplateAnnotation on the Deployment of the proxies is a digest of its pod template. On the pods of a StatefulSet,
	// it is a digest of what they were created from, without the memory if servers can change it. A server is replaced if
	// its digest differs from that of the StatefulSet's template.
	TemplateAnnotation = "cache.example.com/template"

	// SecretsAnnotation on a server's pod names the versions of the Secrets that the pod mounts: tls=UID/VERSION
	// auth=UID/VERSION. When an annotation of a pod changes, the kubelet refreshes the pod's volumes at once; without such
	// a change it takes a minute or two.
	SecretsAnnotation = "cache.example.com/secrets" //nolint:gosec // a name

	// RevokedAnnotation on a server's pod is the version of the Secret in which a CA was last removed. memcached trusts a
	// removed CA until it restarts, so a new value replaces the pods.
	RevokedAnnotation = "cache.example.com/revoked"

	// ProxyServersAnnotation on the StatefulSet of the servers behind proxies is the list of servers of the proxies, by
	// names and in order: the order decides which keys a server stores. The ConfigMap of the proxies follows from it.
	ProxyServersAnnotation = "cache.example.com/proxy-servers"

	// ProxyConfigAnnotation on a proxy's pod is the digest of the proxy's configuration and, after a space, what the proxy
	// has reported: loaded, or moved if it has moved all items too. When the annotation changes, the kubelet refreshes the
	// pod's volumes at once.
	ProxyConfigAnnotation = "cache.example.com/proxy-config"

	// MemoryAnnotation on a server's pod is the memory for items that memcached has in place of that of its arguments, in
	// MiB, and the generation of the Memcached that asked for it. The agent reads the annotation, and changes memcached
	// without a restart. The operator adds the word done once memcached and its container have that memory.
	MemoryAnnotation = "cache.example.com/memory"

	// WarmAnnotation on a server's pod is the time when the pod became ready. Until the server has its share of items, as
	// spec.rollout.warmUp says, it also has the time when the operator began to wait for that. A server that becomes ready
	// again has to warm up again.
	WarmAnnotation = "cache.example.com/warm"

	// RefreshedAnnotation on a pod is when the operator last changed an annotation of the pod, so that the kubelet
	// refreshes its volumes. A kubelet may miss a change of a pod that it is busy with, until it looks at the pod again
	// after a minute or two. So the operator writes the time again if an agent does not know a file after some seconds.
	RefreshedAnnotation = "cache.example.com/refreshed"

	// RetriedAnnotation on a Deployment or StatefulSet is when the operator last made its controller try again to create
	// pods.
	RetriedAnnotation = "cache.example.com/retried"

	// FlushAnnotation on a server's pod asks its agent to make memcached drop all items: when the operator asked, and for
	// which value of FlushedAtAnnotation.
	FlushAnnotation = "cache.example.com/flush"

	// DrainAnnotation on a server's pod is the token with which the kubelet and the operator, and nobody else, ask its
	// agent to let the server stop. A server without it stops before its items have moved.
	DrainAnnotation = "cache.example.com/drain"

	// DrainingAnnotation on a server's pod says that the kubelet waits until memcached may stop, whatever the reason. It
	// is the time when this memcached started, so that it does not apply to the next one in the same pod.
	DrainingAnnotation = "cache.example.com/draining"

	// DiscoveryAnnotation on a server's pod is the version of the list of servers that clients discover. When it changes,
	// the kubelet refreshes the pod's volumes at once, from which the agent reads the list.
	DiscoveryAnnotation = "cache.example.com/discovery"

	// UnreachableAnnotation on a proxy's pod names a server that the proxy does not reach; empty for none.
	UnreachableAnnotation = "cache.example.com/unreachable"
)

// MemcachedSpec is the desired state of a group of memcached servers.
//
// +kubebuilder:validation:XValidation:rule="[self.?memory, self.?maxItemSize] == [oldSelf.?memory, oldSelf.?maxItemSize] || !has(self.memory) || !has(self.maxItemSize) || !self.memory.matches('^[1-9][0-9]*(Mi|Gi)$') || !self.maxItemSize.matches('^[1-9][0-9]*(Ki|Mi)$') || quantity(self.maxItemSize).add(quantity(self.maxItemSize)).compareTo(quantity(self.memory)) <= 0",optionalOldSelf=true,fieldPath=".maxItemSize",message="must be at most half of spec.memory"
// +kubebuilder:validation:XValidation:rule="[self.?maxConnections, self.?threads] == [oldSelf.?maxConnections, oldSelf.?threads] || !has(self.maxConnections) || !has(self.threads) || (self.maxConnections >= 16 + 4 * self.threads && self.maxConnections >= 10 + 5 * self.threads)",optionalOldSelf=true,fieldPath=".maxConnections",message="must be at least max(16 + 4·threads, 10 + 5·threads): memcached limits its open files to this number and uses some itself"
// +kubebuilder:validation:XValidation:rule="[self.?maxItemSize] == [oldSelf.?maxItemSize] && [self.?extraArgs] == [oldSelf.?extraArgs] || !has(self.maxItemSize) || self.maxItemSize != '512Ki' || !has(self.extraArgs) || !self.extraArgs.exists(a, a.contains('no_chunked_items') || a.contains('no_modern'))",optionalOldSelf=true,fieldPath=".maxItemSize",message="must be at least 1Mi with no_chunked_items or no_modern in spec.extraArgs: memcached then stores no item in parts of 512Ki, and refuses to start"
// +kubebuilder:validation:XValidation:rule="[self.?memory] == [oldSelf.?memory] && [self.?threads] == [oldSelf.?threads] && [self.?pod.?resources.?limits[?'memory']] == [oldSelf.?pod.?resources.?limits[?'memory']] || !has(self.memory) || !has(self.threads) || !has(self.pod) || !has(self.pod.resources) || !has(self.pod.resources.limits) || !('memory' in self.pod.resources.limits) || !self.memory.matches('^[1-9][0-9]{0,9}(Mi|Gi)$') || [string(self.pod.resources.limits['memory'])].all(l, l.size() > 20 || l.matches('[eE-]') || quantity(l).compareTo(quantity(self.memory).add(50331648 + 4194304 * self.threads)) >= 0)",optionalOldSelf=true,fieldPath=".pod.resources.limits.memory",message="must be at least spec.memory + 48Mi + 4Mi·threads, or the kernel kills the server when its cache fills; leave it out to have it derived"
// +kubebuilder:validation:XValidation:rule="[self.?serverAddresses] == [oldSelf.?serverAddresses] || !has(self.serverAddresses) || self.serverAddresses != 'ClusterIP' || (has(self.workload) && self.workload == 'StatefulSet')",optionalOldSelf=true,fieldPath=".serverAddresses",message="ClusterIP needs spec.workload StatefulSet: the servers of a Deployment have no lasting identity"
// +kubebuilder:validation:XValidation:rule="oldSelf.?proxy.hasValue() || !has(self.proxy) || (has(self.workload) && self.workload == 'StatefulSet')",optionalOldSelf=true,fieldPath=".proxy",message="needs spec.workload StatefulSet: the proxy finds a key again only on servers with lasting names"
// +kubebuilder:validation:XValidation:rule="[has(self.proxy), has(self.tls), has(self.auth)] == [oldSelf.?proxy.hasValue(), oldSelf.?tls.hasValue(), oldSelf.?auth.hasValue()] || !has(self.proxy) || (!has(self.tls) && !has(self.auth))",optionalOldSelf=true,fieldPath=".proxy",message="cannot be combined with spec.tls or spec.auth: memcached's proxy speaks neither TLS nor passwords to the servers"
// +kubebuilder:validation:XValidation:rule="[self.?proxy.?memory, self.?maxItemSize] == [oldSelf.?proxy.?memory, oldSelf.?maxItemSize] && [self.?proxy.?threads] == [oldSelf.?proxy.?threads] || !has(self.proxy) || !has(self.proxy.memory) || !has(self.proxy.threads) || !has(self.maxItemSize) || !self.proxy.memory.matches('^[1-9][0-9]{0,9}(Mi|Gi)$') || !self.maxItemSize.matches('^[1-9][0-9]{0,9}(Ki|Mi)$') || quantity(self.proxy.memory).asInteger() >= 2 * self.proxy.threads * quantity(self.maxItemSize).asInteger()",optionalOldSelf=true,fieldPath=".proxy.memory",message="must be at least 2·threads·maxItemSize: a thread that has no room for an item tells the client that the item was not stored"
// +kubebuilder:validation:XValidation:rule="[self.?proxy.?size, self.?proxy.?threads, self.?maxConnections, self.?threads] == [oldSelf.?proxy.?size, oldSelf.?proxy.?threads, oldSelf.?maxConnections, oldSelf.?threads] || !has(self.proxy) || !has(self.proxy.size) || !has(self.proxy.threads) || !has(self.maxConnections) || !has(self.threads) || self.maxConnections >= (self.proxy.size + 1) * (self.proxy.threads + 2) + 16 + 5 * self.threads",optionalOldSelf=true,fieldPath=".maxConnections",message="must be at least (proxy.size + 1)·(proxy.threads + 2) + 16 + 5·threads: each thread and the agent of each proxy, and of one more during a rollout, connect to each server"
// +kubebuilder:validation:XValidation:rule="[self.?extraArgs] == [oldSelf.?extraArgs] && [self.?proxy.?source] == [oldSelf.?proxy.?source] || !has(self.proxy) || !has(self.proxy.source) || !has(self.extraArgs) || !('--disable-cas' in self.extraArgs)",optionalOldSelf=true,fieldPath=".proxy.source",message="cannot be combined with --disable-cas in spec.extraArgs: proxies tell items that are being copied by their CAS"
// +kubebuilder:validation:XValidation:rule="oldSelf.?discovery.hasValue() || !has(self.discovery) || (has(self.workload) && self.workload == 'StatefulSet')",optionalOldSelf=true,fieldPath=".discovery",message="needs spec.workload StatefulSet: the servers of a Deployment have no lasting names"
// +kubebuilder:validation:XValidation:rule="[has(self.discovery), has(self.tls), has(self.auth)] == [oldSelf.?discovery.hasValue(), oldSelf.?tls.hasValue(), oldSelf.?auth.hasValue()] || !has(self.discovery) || (!has(self.tls) && !has(self.auth))",optionalOldSelf=true,fieldPath=".discovery",message="cannot be combined with spec.tls or spec.auth: the list is published without encryption and passwords"
// +kubebuilder:validation:XValidation:rule="[self.?service.?type, self.?serverAddresses] == [oldSelf.?service.?type, oldSelf.?serverAddresses] && has(self.proxy) == oldSelf.?proxy.hasValue() || !has(self.service) || !has(self.service.type) || self.service.type == 'ClusterIP' || has(self.proxy) || (has(self.serverAddresses) && self.serverAddresses == 'ClusterIP')",optionalOldSelf=true,fieldPath=".service.type",message="must be ClusterIP without spec.proxy or spec.serverAddresses ClusterIP: the Service of the servers has no cluster IP then"
// +kubebuilder:validation:XValidation:rule="[self.?service.?trafficDistribution] == [oldSelf.?service.?trafficDistribution] && has(self.proxy) == oldSelf.?proxy.hasValue() || !has(self.service) || !has(self.service.trafficDistribution) || has(self.proxy)",optionalOldSelf=true,fieldPath=".service.trafficDistribution",message="needs spec.proxy: without proxies, clients choose the server by the key"
// +kubebuilder:validation:XValidation:rule="[self.?metrics.?port, self.?containerPort] == [oldSelf.?metrics.?port, oldSelf.?containerPort] || !has(self.metrics) || !has(self.metrics.port) || !has(self.containerPort) || self.metrics.port != self.containerPort",optionalOldSelf=true,fieldPath=".metrics.port",message="must not be spec.containerPort, which memcached listens on"
// +kubebuilder:validation:XValidation:rule="oldSelf.?rollout.?warmUp.hasValue() || !has(self.rollout) || !has(self.rollout.warmUp) || (has(self.workload) && self.workload == 'StatefulSet')",optionalOldSelf=true,fieldPath=".rollout.warmUp",message="needs spec.workload StatefulSet, whose servers the operator replaces"
type MemcachedSpec struct {
	// size is the number of servers, from 0 to 1000, 1 by default. Zero removes all servers and keeps the object. Leave
	// size out of git if an autoscaler sets it through the scale subresource. A change adds or removes servers and
	// replaces none.
	//
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Size",xDescriptors={"urn:alm:descriptor:com.tectonic.ui:podCount"}
	Size *int32 `json:"size,omitempty"`

	// workload is the kind of object that runs the servers. The servers of a StatefulSet have lasting names, so that
	// clients with a list of servers find their keys again. The servers of a Deployment, the default, share one name:
	// choose it only if clients look up all addresses of that name. It cannot be changed.
	//
	// +kubebuilder:default=Deployment
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed: create a Memcached of another name with the new workload, move the clients to its status.servers, and delete this one"
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Workload",xDescriptors={"urn:alm:descriptor:com.tectonic.ui:select:Deployment","urn:alm:descriptor:com.tectonic.ui:select:StatefulSet"}
	Workload WorkloadKind `json:"workload,omitempty"`

	// serverAddresses is how clients address the servers of a StatefulSet. DNS, the default: by the name of the pod, which
	// resolves to the pod's address. ClusterIP: by the address of a Service for each server, which outlives the pod, for
	// clients that resolve names once or place keys by address. A change touches no server, but changes status.servers, so
	// that clients miss most keys.
	//
	// +kubebuilder:default=DNS
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Server addresses",xDescriptors={"urn:alm:descriptor:com.tectonic.ui:select:DNS","urn:alm:descriptor:com.tectonic.ui:select:ClusterIP"}
	ServerAddresses ServerAddresses `json:"serverAddresses,omitempty"`

	// image is the memcached image: a name in lower case with a tag, a digest, or both, such as
	// "docker.io/library/memcached:1.6.45". A change replaces the servers; without proxy, they start empty. Without image,
	// servers keep the operator's default at their creation. Removing image, or a restart (annotation
	// cache.example.com/restartedAt) without it, gives them the current default.
	//
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.matches('^(([a-z0-9]([a-z0-9-]*[a-z0-9])?([.][a-z0-9]([a-z0-9-]*[a-z0-9])?)*|[[][0-9a-f:]+[]])(:[0-9]+)?/)?[a-z0-9]+((([.]|_|__|-+)[a-z0-9]+)*)(/[a-z0-9]+((([.]|_|__|-+)[a-z0-9]+)*))*(:[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,127})?(@sha256:[a-f0-9]{64})?$')",message="must be a valid image reference: [registry[:port]/]name[:tag][@sha256:digest], with registry and name in lower case"
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Image"
	Image string `json:"image,omitempty"`

	// containerPort is the TCP port of memcached and of the Services, from 1024 to 65535, 11211 by default. A change
	// replaces the servers; without proxy, they start empty. Services change at once.
	//
	// +kubebuilder:default=11211
	// +kubebuilder:validation:Minimum=1024
	// +kubebuilder:validation:Maximum=65535
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Container port"
	ContainerPort int32 `json:"containerPort,omitempty"`

	// memory is the memory for items of each server (memcached -m), in Mi or Gi, from 16Mi to 4096Gi, 64Mi by default. The
	// memory request and limit of the container are derived from it. In a StatefulSet, more memory loses no item with
	// Kubernetes 1.33 or later. Less memory drops what no longer fits with 1.34 or later; 1.33 refuses it. In a
	// Deployment, or with an older Kubernetes, a change replaces the servers; without proxy, they start empty.
	//
	// +kubebuilder:default="64Mi"
	// +kubebuilder:validation:MaxLength=12
	// +kubebuilder:validation:XValidation:rule="self.matches('^[1-9][0-9]*(Mi|Gi)$')",message="must be a whole number followed by Mi or Gi, such as 512Mi"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^[1-9][0-9]*(Mi|Gi)$') || (quantity(self).compareTo(quantity('16Mi')) >= 0 && quantity(self).compareTo(quantity('4Ti')) <= 0)",message="must be from 16Mi to 4096Gi"
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Memory"
	Memory string `json:"memory,omitempty"`

	// maxConnections is the number of simultaneous client connections of each server (memcached -c), up to 1000000, 1024
	// by default. A further client gets an error and is disconnected. The minimum is max(16 + 4·threads, 10 + 5·threads),
	// or with proxy (proxy.size + 1)·(proxy.threads + 2) + 16 + 5·threads. memcached does not start if the number exceeds
	// the container's limit of open files. A change replaces the servers; without proxy, they start empty.
	//
	// +kubebuilder:default=1024
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Maximum connections",xDescriptors={"urn:alm:descriptor:com.tectonic.ui:advanced"}
	MaxConnections int32 `json:"maxConnections,omitempty"`

	// threads is the number of worker threads of each server (memcached -t), from 1 to 64, 4 by default. More threads than
	// processors have no benefit. A change replaces the servers; without proxy, they start empty.
	//
	// +kubebuilder:default=4
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Threads",xDescriptors={"urn:alm:descriptor:com.tectonic.ui:advanced"}
	Threads int32 `json:"threads,omitempty"`

	// maxItemSize is the size of the largest item (memcached -I), a multiple of 512Ki from 512Ki to 1024Mi, at most half
	// of memory, 1Mi by default. A change replaces the servers; without proxy, they start empty.
	//
	// +kubebuilder:default="1Mi"
	// +kubebuilder:validation:MaxLength=12
	// +kubebuilder:validation:XValidation:rule="self.matches('^[1-9][0-9]*(Ki|Mi)$') && quantity(self).compareTo(quantity('512Ki')) >= 0 && quantity(self).compareTo(quantity('1Gi')) <= 0 && quantity(self).asInteger() % 524288 == 0",message="must be a multiple of 512Ki from 512Ki to 1024Mi, such as 2Mi"
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Maximum item size",xDescriptors={"urn:alm:descriptor:com.tectonic.ui:advanced"}
	MaxItemSize string `json:"maxItemSize,omitempty"`

	// extraArgs are further options of memcached, at most 32, each one string with the long form, of at most 256
	// characters, such as "--extended=idle_timeout=600,slab_automove=2". Refused are options of other fields, options that
	// open a socket or a file or change the user, and combinations with which memcached does not start. The error names
	// the allowed options. A change replaces the servers; without proxy, they start empty.
	//
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=256
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^--(verbose|disable-evictions|disable-cas|disable-flush-all|disable-dumping|disable-watch|enable-largepages|(slab-min-size|max-reqs-per-event|listen-backlog)=[1-9][0-9]{0,8}|slab-growth-factor=(1[.]0*[1-9][0-9]*|([2-9]|[1-9][0-9]+)([.][0-9]+)?))$') || self.startsWith('--extended=')",message="must be one of --verbose, --disable-evictions, --disable-cas, --disable-flush-all, --disable-dumping, --disable-watch, --enable-largepages, --slab-growth-factor=N (above 1), --slab-min-size=N, --max-reqs-per-event=N, --listen-backlog=N and --extended=KEY[=VALUE],...; options that a field of the spec owns, or that open a socket, a file or another user, are not allowed"
	// +kubebuilder:validation:items:XValidation:rule="!self.startsWith('--extended=') || self.matches('^--extended=((maxconns_fast|no_maxconns_fast|no_hashexpand|modern|no_modern|slab_reassign|no_slab_reassign|no_slab_automove|lru_crawler|no_lru_crawler|lru_maintainer|no_lru_maintainer|track_sizes|no_chunked_items|hash_algorithm=(jenkins|murmur3|xxh3)|tail_repair_time=[1-9][0-9]{1,8}|slab_automove=[0-2]|slab_automove_ratio=(1|0[.]0*[1-9][0-9]*)|slab_automove_window=([3-9]|[1-9][0-9]{1,2}|1[0-7][0-9]{2}|1800)|lru_crawler_sleep=([0-9]{1,6}|1000000)|(hot|warm)_lru_pct=([1-9]|[1-7][0-9])|(hot|warm)_max_factor=(0[.]0*[1-9][0-9]*|[1-9][0-9]*([.][0-9]+)?)|(lru_crawler_tocrawl|temporary_ttl|idle_timeout|resp_obj_mem_limit|read_buf_mem_limit)=[0-9]{1,9}|watcher_logbuf_size=[0-9]{1,5})(,|$))+$')",message="must hold, after --extended=, tuning keys of memcached -o with values in memcached's bounds, separated by commas: hash_algorithm=jenkins|murmur3|xxh3, hot_lru_pct, hot_max_factor, idle_timeout, [no_]lru_crawler, lru_crawler_sleep, lru_crawler_tocrawl, [no_]lru_maintainer, [no_]maxconns_fast, [no_]modern, no_chunked_items, no_hashexpand, read_buf_mem_limit, resp_obj_mem_limit, slab_automove=0|1|2, no_slab_automove, slab_automove_ratio, slab_automove_window, [no_]slab_reassign, tail_repair_time, temporary_ttl, track_sizes, warm_lru_pct, warm_max_factor, watcher_logbuf_size"
	// +kubebuilder:validation:items:XValidation:rule="!self.matches('^--slab-growth-factor=[0-9]+[.][0-9]+$') || double(self.substring(21)) > 1.0",message="must not be so close to 1 that memcached takes it for 1"
	// +kubebuilder:validation:XValidation:rule="[self.join(',').findAll('(no_)?maxconns_fast|no_modern')].all(found, found.size() == 0 || found[found.size() - 1] == 'maxconns_fast')",message="must not hold no_maxconns_fast, nor no_modern unless maxconns_fast follows: a server whose connections are all in use would not answer its liveness probe, and the kubelet would kill it"
	// +kubebuilder:validation:XValidation:rule="!self.exists(a, a.contains('temporary_ttl=')) || [self.join(',').findAll('(no_)?lru_maintainer|no_modern')].all(found, found.size() == 0 || found[found.size() - 1] == 'lru_maintainer')",message="must not hold temporary_ttl together with no_lru_maintainer or no_modern: memcached refuses to start"
	// +kubebuilder:validation:XValidation:rule="[['20'] + self.join(',').findAll('hot_lru_pct=[0-9]{1,2}').map(h, h.substring(12))].all(hot, [['40'] + self.join(',').findAll('warm_lru_pct=[0-9]{1,2}').map(w, w.substring(13))].all(warm, int(hot[hot.size() - 1]) + int(warm[warm.size() - 1]) <= 80))",message="must not hold hot_lru_pct and warm_lru_pct with a sum above 80, with the defaults of 20 and 40 for the one that is not given: memcached refuses to start"
	// +listType=atomic
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Extra arguments",xDescriptors={"urn:alm:descriptor:com.tectonic.ui:advanced"}
	ExtraArgs []string `json:"extraArgs,omitempty"`

	// tls encrypts all connections of clients; none is encrypted by default. It excludes proxy. A change replaces the
	// servers; without proxy, they start empty.
	//
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="TLS"
	TLS *TLSSpec `json:"tls,omitempty"`

	// auth requires a user and a password of clients; none is required by default. Clients must use the ASCII protocol. It
	// excludes proxy. A change replaces the servers; without proxy, they start empty.
	//
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Authentication"
	Auth *AuthSpec `json:"auth,omitempty"`

	// metrics serves metrics of memcached and the agent to Prometheus, also with tls and auth; none are served by default.
	// A change replaces the servers; without proxy, they start empty.
	//
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Metrics"
	Metrics *MetricsSpec `json:"metrics,omitempty"`

	// networkPolicy restricts access to servers and proxies, if the cluster's network enforces policies. Everybody has
	// access by default. A change touches no server.
	//
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Network policy"
	NetworkPolicy *NetworkPolicySpec `json:"networkPolicy,omitempty"`

	// proxy puts memcached's built-in proxy in front of the servers of a StatefulSet: one address for clients that cannot
	// spread keys over servers. Items move when servers change (see proxy.moveItems); proxies hold none. It excludes tls
	// and auth. Adding or removing it touches no server, but changes status.servers, so that clients miss most keys.
	//
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Proxy"
	Proxy *ProxySpec `json:"proxy,omitempty"`

	// discovery publishes the list of servers of a StatefulSet at the Service NAME-discovery, port 11211, by the protocol
	// of managed services (config get cluster), and in a ConfigMap of that name. New servers are added once all are ready.
	// A server that size removes leaves the list first, and then serves for discovery.removalDelaySeconds. It excludes tls
	// and auth. A change replaces the servers; without proxy, they start empty.
	//
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Discovery"
	Discovery *DiscoverySpec `json:"discovery,omitempty"`

	// service adjusts the Services in status.servers: with proxy that of the proxies, with serverAddresses ClusterIP those
	// of the servers, otherwise the one with the name of the Memcached. A change touches no server.
	//
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Service",xDescriptors={"urn:alm:descriptor:com.tectonic.ui:advanced"}
	Service *ServiceSpec `json:"service,omitempty"`

	// agent adjusts the agent (sidecar) beside each proxy and each server. Servers of a Deployment have one only with tls,
	// auth or metrics. A change replaces the servers that have an agent; without proxy, they start empty.
	//
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Agent",xDescriptors={"urn:alm:descriptor:com.tectonic.ui:advanced"}
	Agent *AgentSpec `json:"agent,omitempty"`

	// pod adjusts the pods of servers and proxies; proxies have resources, affinity and topologySpreadConstraints in
	// proxy. What the baseline Pod Security Standard forbids is refused. Kubernetes validates most other fields when the
	// operator writes the workload. A change replaces the servers; without proxy, they start empty.
	//
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Pod",xDescriptors={"urn:alm:descriptor:com.tectonic.ui:advanced"}
	Pod *PodSpec `json:"pod,omitempty"`

	// rollout paces the replacement of servers. A server that starts empty loses 1/size of the cache. A change touches no
	// server.
	//
	// +kubebuilder:default={}
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Rollout",xDescriptors={"urn:alm:descriptor:com.tectonic.ui:advanced"}
	Rollout RolloutSpec `json:"rollout,omitzero"`

	// disruptionBudget limits evictions, such as those of node drains, by a PodDisruptionBudget. A server that is not
	// ready can always be evicted if it has no agent. With an agent, it may still serve clients, and can be evicted only
	// while enough others are ready. A change touches no server.
	//
	// +kubebuilder:default={}
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Disruption budget",xDescriptors={"urn:alm:descriptor:com.tectonic.ui:advanced"}
	DisruptionBudget DisruptionBudgetSpec `json:"disruptionBudget,omitzero"`

	// labels are added to each object that the operator creates, except pods (see pod.labels), at most 15. service.labels
	// take precedence. A change touches no server.
	//
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Labels",xDescriptors={"urn:alm:descriptor:com.tectonic.ui:advanced"}
	Labels Labels `json:"labels,omitempty"`

	// annotations are added to each object that the operator creates, except pods (see pod.annotations), at most 32 with
	// 255 KiB in all. service.annotations take precedence. A change touches no server.
	//
	// +kubebuilder:validation:XValidation:rule="self.all(k, !k.startsWith('deployment.kubernetes.io/'))",message="must not use the prefix deployment.kubernetes.io/: it belongs to the controller of Deployments"
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Annotations",xDescriptors={"urn:alm:descriptor:com.tectonic.ui:advanced"}
	Annotations Annotations `json:"annotations,omitempty"`

	// paused makes the operator write only the status and, on a new object, its finalizer; false by default. Setting it
	// touches no server. Removing it applies what was held back.
	//
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Paused",xDescriptors={"urn:alm:descriptor:com.tectonic.ui:booleanSwitch"}
	Paused bool `json:"paused,omitempty"`
}

// DiscoverySpec adjusts how clients find the servers by themselves.
type DiscoverySpec struct {
	// removalDelaySeconds is how long a server that size removes serves after it has left the list, in seconds, from 0 to
	// 600, 150 by default: clients look for a new list once a minute, and a kubelet may take 90 s. A change touches no
	// server.
	//
	// +kubebuilder:default=150
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=600
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Removal delay"
	RemovalDelaySeconds *int32 `json:"removalDelaySeconds,omitempty"`
}

// WorkloadKind is the kind of object that runs the servers.
//
// +kubebuilder:validation:Enum=Deployment;StatefulSet
type WorkloadKind string

// Kinds of workloads.
const (
	WorkloadDeployment  WorkloadKind = "Deployment"
	WorkloadStatefulSet WorkloadKind = "StatefulSet"
)

// ServerAddresses is how clients address single servers.
//
// +kubebuilder:validation:Enum=DNS;ClusterIP
type ServerAddresses string

// Ways to address the servers of a StatefulSet.
const (
	// AddressesDNS are names like sessions-0.sessions.shop.svc.
	AddressesDNS ServerAddresses = "DNS"
	// AddressesClusterIP are the cluster IPs of one Service for each server.
	AddressesClusterIP ServerAddresses = "ClusterIP"
)

// RolloutSpec paces the replacement of servers.
//
// +kubebuilder:validation:XValidation:rule="[self.?progressDeadlineSeconds, self.?minReadySeconds] == [oldSelf.?progressDeadlineSeconds, oldSelf.?minReadySeconds] || !has(self.progressDeadlineSeconds) || !has(self.minReadySeconds) || self.progressDeadlineSeconds > self.minReadySeconds",optionalOldSelf=true,fieldPath=".progressDeadlineSeconds",message="must be greater than spec.rollout.minReadySeconds"
type RolloutSpec struct {
	// maxUnavailable is the number of servers that may be unavailable at the same time during a rollout, from 1 to 1000, 1
	// by default. A StatefulSet replaces servers that are not ready first, then the highest numbers. The single server of
	// a Deployment stops after its successor is ready. Servers whose items move (proxy.moveItems) are replaced one at a
	// time. A change touches no server.
	//
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Max unavailable"
	MaxUnavailable int32 `json:"maxUnavailable,omitempty"`

	// minReadySeconds is how long a new server must be ready before the next one is replaced, in seconds, from 0 to 86400,
	// 0 by default. It gives an empty server time to fill. Servers whose items move (proxy.moveItems) do not wait. A
	// change touches no server.
	//
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Min ready seconds"
	MinReadySeconds int32 `json:"minReadySeconds,omitempty"`

	// warmUp delays the next replacement until clients have filled the new server; not set by default. It needs workload
	// StatefulSet. Servers whose items move (proxy.moveItems) do not wait. A change touches no server.
	//
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Warm up"
	WarmUp *WarmUpSpec `json:"warmUp,omitempty"`

	// progressDeadlineSeconds is how long a rollout may make no progress before the object becomes Stalled, in seconds,
	// more than minReadySeconds, at most 172800, 600 by default. minReadySeconds, warmUp.timeoutSeconds and
	// discovery.removalDelaySeconds are added. The operator keeps trying. A change touches no server.
	//
	// +kubebuilder:default=600
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=172800
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Progress deadline seconds"
	ProgressDeadlineSeconds int32 `json:"progressDeadlineSeconds,omitempty"`
}

// WarmUpSpec says when a new server is warm.
type WarmUpSpec struct {
	// percent is how full a new server must be: its number of items in percent of the average of the servers that are yet
	// to be replaced, from 1 to 100, 80 by default. A change touches no server.
	//
	// +kubebuilder:default=80
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Percent"
	Percent int32 `json:"percent,omitempty"`

	// timeoutSeconds is how long a new server may take to warm up, in seconds since the operator first saw it available,
	// from 1 to 86400, 1800 by default. Then the next server is replaced in any case. A change touches no server.
	//
	// +kubebuilder:default=1800
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Timeout seconds"
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`
}

// DisruptionBudgetSpec limits evictions.
//
// +kubebuilder:validation:XValidation:rule="!has(self.policy) || self.policy != 'None' || (!has(self.minAvailable) && (!has(self.maxUnavailable) || self.maxUnavailable == 1))",fieldPath=".policy",message="None cannot be combined with maxUnavailable or minAvailable: there is no budget then"
type DisruptionBudgetSpec struct {
	// policy is who limits evictions. Managed, the default: the operator creates a PodDisruptionBudget for the servers,
	// and one for the proxies. None: it creates none, for a platform that adds its own. Kubernetes evicts no pod that two
	// budgets select. A change touches no server.
	//
	// +kubebuilder:default=Managed
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Policy",xDescriptors={"urn:alm:descriptor:com.tectonic.ui:select:Managed","urn:alm:descriptor:com.tectonic.ui:select:None"}
	Policy DisruptionBudgetPolicy `json:"policy,omitempty"`

	// maxUnavailable is the number of servers that evictions may make unavailable at the same time, from 0 to 1000, 1 by
	// default. Zero blocks every drain of a node with a server. For proxies, it is always 1. A change touches no server.
	//
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Max unavailable"
	MaxUnavailable *int32 `json:"maxUnavailable,omitempty"`

	// minAvailable is the number of servers, from 0 to 1000, or their percentage such as "75%", that evictions leave
	// available. If it is set, maxUnavailable does not apply. A change touches no server.
	//
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=4
	// +kubebuilder:validation:XValidation:rule="type(self) == string ? self.matches('^(100|[1-9]?[0-9])%$') : self >= 0 && self <= 1000",message="must be a number from 0 to 1000, or a percentage from 0% to 100%"
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=spec,displayName="Min available"
	MinAvailable *intstr.IntOrString `json:"minAvailable,omitempty"`
}

// DisruptionBudgetPolicy is who limits evictions.
//
// +kubebuilder:validation:Enum=Managed;None
type DisruptionBudgetPolicy string

// Who limits voluntary disruptions: the operator, or nobody but the platform.
const (
	DisruptionBudgetManaged DisruptionBudgetPolicy = "Managed"
	DisruptionBudgetNone    DisruptionBudgetPolicy = "None"
)

// Condition types of a Memcached. Reconciling and Stalled follow kstatus: they exist only while they are true, and
// never together.
// https://github.com/kubernetes-sigs/cli-utils/blob/master/pkg/kstatus/README.md
const (
	// ConditionReady is True when every server and every proxy of the current generation is updated and available.
	ConditionReady = "Ready"
	// ConditionAvailable is True when at least one server accepts connections, and with spec.proxy at least one proxy too.
	ConditionAvailable = "Available"
	// ConditionDegraded is True when servers were lost, an error cannot be overcome, or the object is being deleted.
	ConditionDegraded = "Degraded"
	// ConditionReconciling is True while the operator works towards the current generation.
	ConditionReconciling = "Reconciling"
	// ConditionStalled is True when no retry can help: somebody must change something.
	ConditionStalled = "Stalled"
)

// Reasons of the conditions of a Memcached.
const (
	// ReasonPending is the reason before the first reconcile.
	ReasonPending = "Pending"
	// ReasonReady says that all servers are available.
	ReasonReady = "Ready"
	// ReasonRollingOut says that servers are created or replaced.
	ReasonRollingOut = "RollingOut"
	// ReasonResizing says that servers are added or removed.
	ReasonResizing = "Resizing"
	// ReasonServersLost says that servers are no longer ready.
	ReasonServersLost = "ServersLost"
	// ReasonProgressingWithRetry says that an error, named in the message, is retried.
	ReasonProgressingWithRetry = "ProgressingWithRetry"
	// ReasonConflict means that a foreign object has the name of a child.
	ReasonConflict = "Conflict"
	// ReasonInvalid says that the API server refuses what the spec requests, or that memcached could not use a Secret.
	ReasonInvalid = "Invalid"
	// ReasonProgressDeadlineExceeded says that nothing progressed for spec.rollout.progressDeadlineSeconds.
	ReasonProgressDeadlineExceeded = "ProgressDeadlineExceeded"
	// ReasonAvailable says that at least one server accepts connections.
	ReasonAvailable = "ServersAvailable"
	// ReasonUnavailable says that no server accepts connections.
	ReasonUnavailable = "NoServersAvailable"
	// ReasonScaledToZero says that spec.size is 0.
	ReasonScaledToZero = "ScaledToZero"
	// ReasonInstalling says that nothing is degraded, and that the servers have never all been ready yet.
	ReasonInstalling = "Installing"
	// ReasonAsExpected says that nothing is degraded.
	ReasonAsExpected = "AsExpected"
	// ReasonPaused says that spec.paused keeps the operator from applying the spec.
	ReasonPaused = "Paused"
	// ReasonDeleting says that the object is being deleted.
	ReasonDeleting = "Deleting"
	// ReasonFinalizing says that the operator removes the servers of a deleted object.
	ReasonFinalizing = "Finalizing"
)

// Phase summarizes the conditions for people; programs read the conditions.
//
// +kubebuilder:validation:Enum=Pending;Progressing;Ready;Degraded;Paused;Deleting
type Phase string

// Phases of a Memcached.
const (
	PhasePending     Phase = "Pending"
	PhaseProgressing Phase = "Progressing"
	PhaseReady       Phase = "Ready"
	PhaseDegraded    Phase = "Degraded"
	PhasePaused      Phase = "Paused"
	PhaseDeleting    Phase = "Deleting"
)

// MemcachedStatus is the observed state of a group of memcached servers.
type MemcachedStatus struct {
	// observedGeneration is the metadata.generation that this status describes; -1 before an operator has seen the object.
	//
	// +kubebuilder:default=-1
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=status,displayName="Observed generation"
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions are Ready, Available and, once an operator has seen the object, Degraded; Reconciling and Stalled exist
	// while they are true.
	//
	// +default=[{"type": "Ready", "status": "Unknown", "reason": "Pending", "message": "Waiting for controller", "lastTransitionTime": "1970-01-01T00:00:00Z"}, {"type": "Available", "status": "Unknown", "reason": "Pending", "message": "Waiting for controller", "lastTransitionTime": "1970-01-01T00:00:00Z"}]
	// +listType=map
	// +listMapKey=type
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=status,displayName="Conditions",xDescriptors={"urn:alm:descriptor:io.kubernetes.conditions"}
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// phase summarizes the conditions for people: Pending, Progressing, Ready, Degraded, Paused or Deleting.
	//
	// +kubebuilder:default=Pending
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=status,displayName="Phase",xDescriptors={"urn:alm:descriptor:io.kubernetes.phase"}
	Phase Phase `json:"phase,omitempty"`

	// nodes are the sorted names of the servers' pods, without terminating and finished ones. They are not nodes of the
	// cluster.
	//
	// +listType=set
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=status,displayName="Nodes"
	Nodes []string `json:"nodes"`

	// replicas is the number of servers that exist.
	//
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=status,displayName="Replicas"
	Replicas int32 `json:"replicas"`

	// readyReplicas is the number of servers that accept connections.
	//
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=status,displayName="Ready replicas"
	ReadyReplicas int32 `json:"readyReplicas"`

	// selector matches the pods of the servers, for autoscalers.
	//
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=status,displayName="Selector"
	Selector string `json:"selector,omitempty"`

	// image is the memcached image in use.
	//
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=status,displayName="Image"
	Image string `json:"image,omitempty"`

	// agentImage is the image of the agent (sidecar) in use; absent without an agent.
	//
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=status,displayName="Agent image"
	AgentImage string `json:"agentImage,omitempty"`

	// outdated lists the images, image or agentImage, that differ from the operator's current defaults; absent for none.
	// The restart annotation updates them, and replaces the servers.
	//
	// +listType=set
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=status,displayName="Outdated"
	Outdated []string `json:"outdated,omitempty"`

	// servers are the host:port addresses for clients. For a StatefulSet: one for each server, in the order of their
	// numbers. For a Deployment: the name of a headless Service, which resolves to all ready servers. With proxy: only its
	// address. They change only with size, containerPort, serverAddresses and proxy.
	//
	// +listType=atomic
	// +optional
	// +operator-sdk:csv:customresourcedefinitions:type=status,displayName="Servers"
	Servers []string `json:"servers,omitempty"`
}

// Memcached is a group of memcached servers that share nothing: clients spread their keys over them.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=mcd
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.size,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Size",type=integer,JSONPath=`.spec.size`
// +kubebuilder:printcolumn:name="Servers Ready",type=integer,JSONPath=`.status.readyReplicas`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Image",type=string,JSONPath=`.status.image`,priority=1
// +kubebuilder:printcolumn:name="Outdated",type=string,JSONPath=`.status.outdated`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="oldSelf.hasValue() || self.metadata.name.size() <= 52 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",optionalOldSelf=true,message="metadata.name must start with a letter, hold only lower case letters, digits and '-', and have at most 52 characters: the names and labels of the servers are made of it"
// +kubebuilder:metadata:annotations="argocd.argoproj.io/sync-options=Prune=false,Delete=false"
// +kubebuilder:metadata:annotations="kustomize.toolkit.fluxcd.io/prune=disabled"
// +kubebuilder:metadata:annotations="helm.sh/resource-policy=keep"
// +operator-sdk:csv:customresourcedefinitions:displayName="Memcached",resources={{Deployment,v1,},{StatefulSet,v1,},{Service,v1,},{PodDisruptionBudget,v1,},{NetworkPolicy,v1,},{ConfigMap,v1,},{Pod,v1,}}
type Memcached struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired state.
	//
	// +kubebuilder:default={}
	// +optional
	Spec MemcachedSpec `json:"spec,omitzero"`

	// status is the observed state. Until an operator has seen the object, Ready is Unknown.
	//
	// +default={"observedGeneration": -1, "phase": "Pending", "conditions": [{"type": "Ready", "status": "Unknown", "reason": "Pending", "message": "Waiting for controller", "lastTransitionTime": "1970-01-01T00:00:00Z"}, {"type": "Available", "status": "Unknown", "reason": "Pending", "message": "Waiting for controller", "lastTransitionTime": "1970-01-01T00:00:00Z"}]}
	// +optional
	Status MemcachedStatus `json:"status,omitzero"`
}

// MemcachedList is a list of Memcacheds.
//
// +kubebuilder:object:root=true
type MemcachedList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Memcached `json:"items"`
}
