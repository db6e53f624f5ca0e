// Package specs holds specs of Memcacheds for tests that try many: a table of accepted specs, and a generator.
package specs

import (
	"encoding/json"
	"strings"
)

// Digest is a digest of an image.
const Digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// Accepted are specs that the API server must accept and return unchanged.
var Accepted = []string{
	`{size: 3, containerPort: 11211}`,
	`{size: 0}`,
	`{size: 1000}`,
	`{containerPort: 1024}`,
	`{containerPort: 65535}`,
	`{image: memcached}`,
	`{image: "memcached:1.6.39-alpine"}`,
	`{image: docker.io/library/memcached}`,
	`{image: "localhost:5000/memcached:1.6"}`,
	`{image: "registry.example.com:5000/a/b__c/d-e.f:V_1.0"}`,
	`{image: "[fd00::1]:5000/memcached:1.6"}`,
	`{image: "memcached@` + Digest + `"}`,
	`{image: "docker.io/library/memcached:1.6.45@` + Digest + `"}`,
	`{memory: 16Mi}`,
	`{memory: 4096Gi}`,
	`{memory: 1024Mi}`,
	`{maxItemSize: 512Ki}`,
	`{maxItemSize: 1536Ki}`,
	`{maxItemSize: 32Mi}`,
	`{maxItemSize: 1024Mi, memory: 2Gi}`,
	`{maxConnections: 32}`,
	`{maxConnections: 20, threads: 1}`,
	`{maxConnections: 40, threads: 6}`,
	`{maxConnections: 45, threads: 7}`,
	`{maxConnections: 50, threads: 8}`,
	`{maxConnections: 170, threads: 32}`,
	`{maxConnections: 330, threads: 64}`,
	`{maxConnections: 1000000}`,
	`{extraArgs: []}`,
	Args("--verbose", "--verbose", "--disable-evictions", "--disable-cas", "--disable-flush-all", "--disable-dumping",
		"--disable-watch", "--enable-largepages"),
	Args("--slab-growth-factor=1.05", "--slab-min-size=64", "--max-reqs-per-event=20", "--listen-backlog=4096"),
	Args("--slab-growth-factor=1.10", "--slab-growth-factor=2", "--slab-growth-factor=10.5"),
	Args("--extended=modern"),
	Args("--extended=idle_timeout=600,slab_automove=2,no_lru_crawler"),
	Args("--extended=slab_reassign,no_slab_reassign,no_slab_automove,slab_automove_ratio=0.80," +
		"slab_automove_ratio=1,slab_automove_window=30"),
	Args("--slab-growth-factor=1.0000000000000002"),
	Args("--extended=lru_maintainer,no_lru_maintainer,lru_crawler,lru_crawler_sleep=1000000," +
		"lru_crawler_tocrawl=0,hot_lru_pct=20,warm_lru_pct=40"),
	Args("--extended=hot_lru_pct=40", "--extended=warm_lru_pct=60,hot_lru_pct=20"),
	Args("--extended=hot_lru_pct=79,warm_lru_pct=1"),
	Args("--extended=no_lru_maintainer,temporary_ttl=61,lru_maintainer"),
	Args("--extended=hot_max_factor=0.2,warm_max_factor=2.0,track_sizes,no_chunked_items,no_hashexpand," +
		"no_modern,maxconns_fast"),
	Args("--extended=temporary_ttl=61,no_chunked_items"),
	Args("--extended=no_maxconns_fast", "--extended=maxconns_fast,hash_algorithm=xxh3,"+
		"tail_repair_time=10,watcher_logbuf_size=256,resp_obj_mem_limit=0,read_buf_mem_limit=16"),
	Args(Repeat("--verbose", 32)...),
	`{pod: {}}`,
	`{pod: {labels: {team: shop, example.com/cost-center: "0815", empty: "", A: a_b.c-D9},
 annotations: {example.com/note: "any text,\nin lines", Example.com/X: ""}}}`,
	`{pod: {labels: {` + Numbered("l", 15) + `}, annotations: {` + Numbered("a",
		32) + `}, nodeSelector: {` + Numbered("n", 15) + `}}}`,
	`{pod: {nodeSelector: {kubernetes.io/os: linux, node-role.kubernetes.io/cache: ""}}}`,
	`{pod: {priorityClassName: system-cluster-critical, imagePullSecrets: [{name: a}, {name: b}]}}`,
	`{pod: {annotations: {a: ` + strings.Repeat("x", 261119) + `}}}`,
	Security(`runAsUser: 1000, runAsGroup: 0, fsGroup: 0, supplementalGroups: [1, 2147483647]`),
	Security(`supplementalGroups: [], fsGroupChangePolicy: OnRootMismatch, supplementalGroupsPolicy: Strict,
 seLinuxChangePolicy: Recursive`),
	Security(`seccompProfile: {type: Localhost, localhostProfile: a/b.json}, appArmorProfile: {type: Localhost,
 localhostProfile: a}`),
	Security(`seccompProfile: {type: RuntimeDefault}, appArmorProfile: {type: RuntimeDefault},
 windowsOptions: {runAsUserName: x}, seLinuxOptions: {type: container_t, level: "s0:c1,c2"}`),
	`{pod: {containerSecurityContext: {allowPrivilegeEscalation: false, privileged: false, procMount: Default,
 capabilities: {drop: [ALL], add: [AUDIT_WRITE, CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, MKNOD, NET_BIND_SERVICE,
 SETFCAP, SETGID, SETPCAP, SETUID, SYS_CHROOT]}, seccompProfile: {type: RuntimeDefault},
 appArmorProfile: {type: Localhost, localhostProfile: a}, seLinuxOptions: {type: container_init_t, user: "", role: ""},
 windowsOptions: {hostProcess: false}}}}`,
	Security(`sysctls: [{name: net.ipv4.tcp_keepalive_time, value: "60"}, {name: kernel.shm_rmid_forced,
 value: "1"}, {name: net.ipv4.tcp_rmem, value: 4096 87380 16777216}]`),
	Toleration(`operator: Exists`),
	Toleration(`operator: Exists, effect: NoExecute, tolerationSeconds: -1`),
	Toleration(`key: example.com/dedicated, value: cache, effect: PreferNoSchedule`),
	Toleration(`key: a, operator: Equal, value: "", effect: ""`),
	Spread(`maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule, minDomains: 2, nodeAffinityPolicy: Ignore,
 nodeTaintsPolicy: Honor`),
	Spread(`maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway,
 matchLabelKeys: [controller-revision-hash]`),
	Spread(`maxSkew: 2, topologyKey: any key, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {a: b},
 matchExpressions: [{key: a, operator: In, values: [b]}, {key: c, operator: DoesNotExist}]}`),
	`{pod: {affinity: {nodeAffinity: {}, podAffinity: {}, podAntiAffinity: {}}}}`,
	NodeTerm(`matchExpressions: [{key: a, operator: In, values: [b, c]}, {key: d, operator: DoesNotExist, values: []},
 {key: e, operator: Gt, values: ["1"]}], matchFields: [{key: metadata.name, operator: NotIn, values: [node-1]}]`),
	`{pod: {affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 100,
 preference: {matchExpressions: [{key: a, operator: Exists}]}}]}}}}`,
	`{pod: {affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: zone,
 labelSelector: {matchExpressions: [{key: a, operator: NotIn, values: [b]}]}}],
 preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, podAffinityTerm: {topologyKey: kubernetes.io/hostname,
	labelSelector: {matchLabels: {a: b}}, namespaces: [other]}}]}}}}`,
	Limits(`memory: 128Mi`),
	Limits(`memory: 134217728`),
	`{threads: 64, memory: 1Gi, pod: {resources: {limits: {memory: 1328Mi}}}}`,
	Limits(`memory: "0.5Gi", cpu: 2, ephemeral-storage: 1Gi, hugepages-2Mi: 64Mi, example.com/device: "1"`),
	`{pod: {resources: {limits: {cpu: 500m}, requests: {cpu: "0.5"}}}}`,
	`{pod: {resources: {limits: {example.com/device: 1, hugepages-1Gi: 2Gi}, requests: {example.com/device: 1000m,
 hugepages-1Gi: 2048Mi}}}}`,
	`{pod: {resources: {requests: {kubernetes.io/batch-cpu: "0.5"}}}}`,
	`{pod: {resources: {requests: {memory: 10Gi, cpu: 0}}}}`,
	`{rollout: {maxUnavailable: 2, minReadySeconds: 0, progressDeadlineSeconds: 1}}`,
	`{workload: StatefulSet, proxy: {}, rollout: {progressDeadlineSeconds: 1}}`,
	`{rollout: {minReadySeconds: 599}}`,
	`{rollout: {minReadySeconds: 86400, progressDeadlineSeconds: 172800}}`,
	`{disruptionBudget: {maxUnavailable: 0}}`,
	`{disruptionBudget: {minAvailable: 0}}`,
	`{disruptionBudget: {minAvailable: 75%}}`,
	`{disruptionBudget: {policy: None}}`,
	`{labels: {team: shop, example.com/cost-center: "0815"}, annotations: {example.com/note: "any text,\nin lines"}}`,
	`{service: {}}`,
	`{service: {type: ClusterIP, labels: {team: shop}, annotations: {example.com/a: "$(SERVICE_NAME)"},
 ipFamilyPolicy: PreferDualStack}}`,
	`{workload: StatefulSet, serverAddresses: ClusterIP, service: {type: LoadBalancer}}`,
	`{workload: StatefulSet, proxy: {}, service: {type: NodePort, trafficDistribution: PreferClose}}`,
	`{workload: StatefulSet, proxy: {affinity: {podAntiAffinity: {}}, topologySpreadConstraints: []}}`,
	`{pod: {schedulerName: slow, serviceAccountName: caches, imagePullPolicy: Always}}`,
	`{pod: {containerSecurityContext: {readOnlyRootFilesystem: false, capabilities: {drop: [NET_RAW]}}}}`,
	`{paused: true}`,
	`{workload: StatefulSet}`,
	`{workload: StatefulSet, serverAddresses: ClusterIP, size: 3}`,
	`{tls: {secretName: certificate}}`,
	`{tls: {secretName: a.b-c, clientAuth: Require, minVersion: "1.3"}, auth: {secretName: passwords}}`,
	`{tls: {secretName: a, clientAuth: Request, clientCA: {secretName: b}}}`,
	`{tls: {secretName: a, clientAuth: Require, clientCA: {configMapName: a.b-c}}, metrics: {}}`,
	`{metrics: {}}`,
	`{metrics: {port: 1024}, tls: {secretName: certificate, clientAuth: Request}}`,
	`{metrics: {}, auth: {secretName: passwords}, networkPolicy: {from: [], metricsFrom: [{namespaceSelector: {}}]}}`,
	`{networkPolicy: {}}`,
	`{networkPolicy: {from: [{podSelector: {}}, {namespaceSelector: {matchLabels: {a: b}}, podSelector: {}},
 {ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}, {ipBlock: {cidr: "fd00::/16"}}]}}`,
	`{workload: StatefulSet, proxy: {}}`,
	`{workload: StatefulSet, maxItemSize: 16Mi, proxy: {}}`,
	`{workload: StatefulSet, proxy: {threads: 1, memory: 68Mi, resources: {}}}`,
	`{workload: StatefulSet, proxy: {resources: {requests: {cpu: 1}, limits: {cpu: "1.5"}}}}`,
	`{workload: StatefulSet, proxy: {threads: 64, memory: 320Mi, resources: {limits: {cpu: 20m}}}}`,
	`{workload: StatefulSet, proxy: {source: {servers: ["a.example.com|10.0.0.4|11211"], hash: Ketama,
 until: "2027-01-31T12:00:00Z"}}}`,
	`{workload: StatefulSet, proxy: {source: {servers: ["fd00::4|fd00::4|11211", "10.0.0.5|10.0.0.5|65535"], hash: CRC32,
 until: "2037-12-31T23:59:59Z"}}}`,
	`{workload: StatefulSet, discovery: {}}`,
	`{workload: StatefulSet, discovery: {removalDelaySeconds: 0}, proxy: {}, serverAddresses: ClusterIP}`,
	`{workload: StatefulSet, discovery: {removalDelaySeconds: 600}, metrics: {}, networkPolicy: {}}`,
	`{agent: {resources: {limits: {cpu: 2m, memory: 64Mi}}}, metrics: {}}`,
	`{agent: {resources: {requests: {cpu: "0.5", memory: 1Gi}}}, auth: {secretName: passwords}}`,
	`{agent: {}}`,
	`{workload: StatefulSet, proxy: {}, maxConnections: 54}`,
	`{workload: StatefulSet, proxy: {size: 100, threads: 64, memory: 64Gi}, maxConnections: 6702,
 networkPolicy: {from: []}}`,
}

// Args returns a spec with extraArgs.
func Args(a ...string) string {
	b, err := json.Marshal(map[string]any{"extraArgs": a})
	if err != nil {
		panic(err)
	}
	return string(b)
}

// NodeTerm returns a spec with a required node affinity.
func NodeTerm(term string) string {
	return `{pod: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{` +
		term + `}]}}}}}`
}

// Spread returns a spec with a topology spread constraint.
func Spread(s string) string { return `{pod: {topologySpreadConstraints: [{` + s + `}]}}` }

// Toleration returns a spec with a toleration.
func Toleration(t string) string { return `{pod: {tolerations: [{` + t + `}]}}` }

// Security returns a spec with a security context of the pod.
func Security(c string) string { return `{pod: {securityContext: {` + c + `}}}` }

// Limits returns a spec with resource limits.
func Limits(l string) string { return `{pod: {resources: {limits: {` + l + `}}}}` }

// Repeat returns n times the same argument.
func Repeat(s string, n int) []string { return strings.Fields(strings.Repeat(s+" ", n)) }

// Numbered returns n entries of a YAML map.
func Numbered(key string, n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(key + string(rune('a'+i/26)) + string(rune('a'+i%26)) + ": '1'")
	}
	return b.String()
}
