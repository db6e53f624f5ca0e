package specs

import (
	"encoding/json"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
)

// Generate returns n random specs, the same ones on each call. Most values are valid; some are not, or not in
// combination with others, so that the API server refuses the spec.
func Generate(n int) []string {
	g := generator{rand.New(rand.NewPCG(1, 2))}
	all := make([]string, n)
	for i := range all {
		b, err := json.Marshal(g.spec())
		if err != nil {
			panic(err)
		}
		all[i] = string(b)
	}
	return all
}

type generator struct{ *rand.Rand }

type object = map[string]any

func (g generator) spec() object {
	return g.some(object{
		"size":            g.one(0, 1, 2, 3, 1000),
		"workload":        g.one("Deployment", "StatefulSet"),
		"serverAddresses": g.one("DNS", "ClusterIP"),
		"tls":             g.tls(),
		"auth":            object{"secretName": g.one("passwords", "a.b-c")},
		"metrics":         g.some(object{"port": g.one(1024, 9150, 65535)}),
		"networkPolicy": g.some(object{"from": g.one([]any{}, []any{g.peer()}, []any{g.peer(), g.peer()}),
			"metricsFrom": []any{g.peer()}}),
		"proxy": g.some(object{"size": g.one(1, 100), "threads": g.one(1, 64), "memory": g.one("68Mi", "64Gi"),
			"moveItems": g.one("Always", "OnResize"), "whenMoveStalls": g.one("Wait", "Proceed"),
			"resources": g.some(object{"limits": g.resources(), "requests": g.some(object{"cpu": g.one("100m", 2)})}),
			"affinity":  g.affinity(), "topologySpreadConstraints": []any{g.spread("a")},
			"source": object{"hash": g.one("Ketama", "OneAtATime", "CRC32"), "until": "2027-01-31T12:00:00Z",
				"servers": g.one([]any{"10.0.0.4|10.0.0.4|11211"}, []any{"a.example.com|10.0.0.5|1", "b|fd00::1|11211"})}}),
		"discovery": g.some(object{"removalDelaySeconds": g.one(0, 90, 600)}),
		"service": g.some(object{"type": g.one("ClusterIP", "NodePort", "LoadBalancer"), "labels": g.labels(),
			"annotations": g.annotations(), "trafficDistribution": "PreferClose",
			"ipFamilyPolicy": g.one("SingleStack", "PreferDualStack")}),
		"agent": object{"resources": g.some(object{"limits": g.some(object{"cpu": g.one("100m", 1)}),
			"requests": g.some(object{"cpu": g.one("100m", 2), "memory": g.one("10Gi", "1Mi")})})},
		"image":          g.one("memcached", "docker.io/library/memcached:1.6.45", "localhost:5000/a/memcached@"+Digest),
		"containerPort":  g.one(1024, 11211, 65535),
		"memory":         g.one("16Mi", "64Mi", "100Mi", "1Gi", "4096Gi"),
		"maxItemSize":    g.one("512Ki", "1Mi", "1536Ki", "8Mi", "1024Mi"),
		"maxConnections": g.one(20, 29, 32, 36, 49, 50, 100, 170, 329, 330, 1024, 100000),
		"threads":        g.one(1, 2, 4, 7, 8, 16, 32, 64),
		"extraArgs":      g.extraArgs(),
		"pod":            g.pod(),
		"rollout": g.some(object{"maxUnavailable": g.one(1, 1000), "minReadySeconds": g.one(0, 10, 599),
			"warmUp":                  g.some(object{"percent": g.one(1, 100), "timeoutSeconds": g.one(1, 86400)}),
			"progressDeadlineSeconds": g.one(1, 600, 172800)}),
		"labels":      g.labels(),
		"annotations": g.one(object{}, object{"example.com/Note": "a\nb"}),
		"disruptionBudget": g.some(object{"policy": g.one("Managed", "None"), "maxUnavailable": g.one(0, 1, 1000),
			"minAvailable": g.one(0, 1000, 1001, "0%", "75%", "101%")}),
		"paused": g.one(true, false),
	})
}

func (g generator) tls() object {
	tls := g.some(object{"clientAuth": g.one("None", "Request", "Require"), "minVersion": g.one("1.2", "1.3"),
		"clientCA": g.one(object{"secretName": "clients"}, object{"configMapName": "clients"})})
	tls["secretName"] = g.one("certificate", "a.b-c")
	return tls
}

// peer returns a peer of a NetworkPolicy.
func (g generator) peer() object {
	block := g.some(object{"except": g.one([]any{}, []any{"10.1.0.0/16"}, []any{"10.0.0.0/8"}, []any{"fd00:1::/32"})})
	block["cidr"] = g.one("10.0.0.0/8", "10.1.2.3/16", "fd00::/16", "10.0.0.0", "a")
	return g.one(object{"ipBlock": block}, g.some(object{"podSelector": g.selector(), "namespaceSelector": g.selector()}),
		object{"podSelector": object{}}, object{"ipBlock": block, "podSelector": object{}}).(object)
}

func (g generator) extraArgs() []string {
	var all []string
	for range g.IntN(4) {
		all = append(all, g.one("--verbose", "--disable-evictions", "--disable-cas", "--disable-flush-all",
			"--disable-dumping", "--disable-watch",
			"--slab-growth-factor=1.0000000001", "--slab-growth-factor=1.08", "--slab-growth-factor=99999", "--slab-min-size=1",
			"--slab-min-size=1024",
			"--slab-min-size=999999999", "--max-reqs-per-event=1", "--max-reqs-per-event=999999999", "--listen-backlog=1",
			"--listen-backlog=999999999",
			"--extended="+g.keys(), "--extended="+g.keys(), "--extended="+g.keys()).(string))
	}
	return all
}

// keys returns keys of memcached -o, with values at their lower or upper bounds.
func (g generator) keys() string {
	keys := make([]string, 1+g.IntN(4))
	for i := range keys {
		keys[i] = g.one("maxconns_fast", "no_maxconns_fast", "no_hashexpand", "modern", "no_modern", "slab_reassign",
			"no_slab_reassign",
			"no_slab_automove", "lru_crawler", "no_lru_crawler", "lru_maintainer", "no_lru_maintainer", "track_sizes",
			"no_chunked_items",
			"hash_algorithm=jenkins", "hash_algorithm=murmur3", "hash_algorithm=xxh3", "tail_repair_time=10",
			"tail_repair_time=999999999",
			"slab_automove=0", "slab_automove=2", "slab_automove_ratio=0.01", "slab_automove_ratio=1", "slab_automove_window=3",
			"slab_automove_window=1800",
			"lru_crawler_sleep=0", "lru_crawler_sleep=1000000", "hot_lru_pct=1", "hot_lru_pct=40", "hot_lru_pct=79",
			"warm_lru_pct=1", "warm_lru_pct=60",
			"warm_lru_pct=79", "hot_max_factor=0.01", "warm_max_factor=100", "lru_crawler_tocrawl=0",
			"lru_crawler_tocrawl=999999999", "temporary_ttl=0",
			"temporary_ttl=999999999", "idle_timeout=0", "idle_timeout=999999999", "resp_obj_mem_limit=999999999",
			"read_buf_mem_limit=0",
			"read_buf_mem_limit=1", "read_buf_mem_limit=999999999", "watcher_logbuf_size=0",
			"watcher_logbuf_size=99999").(string)
	}
	return strings.Join(keys, ",")
}

func (g generator) labels() any {
	return g.one(object{}, object{"team": "shop"}, object{"example.com/team": "", "A": "a_b.c"},
		object{"topology.kubernetes.io/zone": "a"})
}

func (g generator) annotations() any {
	return g.one(object{}, object{"example.com/Note": "a\nb"}, object{"a": strings.Repeat("x", 200000),
		"b": strings.Repeat("x", 61117)})
}

func (g generator) pod() object {
	return g.some(object{
		"labels":                    g.labels(),
		"annotations":               g.annotations(),
		"nodeSelector":              g.labels(),
		"resources":                 g.some(object{"limits": g.resources(), "requests": g.resources()}),
		"securityContext":           g.securityContext(),
		"tolerations":               []any{g.toleration(), g.toleration()},
		"affinity":                  g.affinity(),
		"topologySpreadConstraints": []any{g.spread("kubernetes.io/hostname"), g.spread("topology.kubernetes.io/zone")},
		"priorityClassName":         g.one("", "system-cluster-critical"),
		"schedulerName":             g.one("", "binpacking"),
		"serviceAccountName":        g.one("", "default", "caches"),
		"imagePullPolicy":           g.one("Always", "IfNotPresent", "Never"),
		"containerSecurityContext":  g.containerSecurityContext(),
		"imagePullSecrets":          g.one([]any{}, []any{object{"name": "a"}, object{"name": "b"}}),
	})
}

func (g generator) resources() object {
	return g.some(object{
		"cpu":                       g.one("100m", 1, "1.5", "0"),
		"memory":                    g.one("10Gi", "128Mi", 123456789),
		"ephemeral-storage":         g.one("1Gi", "1.5Gi"),
		"hugepages-2Mi":             g.one("2Mi", "4Mi", "3Mi", "0"),
		"example.com/gpu":           g.one(1, "1", "500m", "2"),
		"kubernetes.io/some-device": g.one("0.5", 1),
	})
}

func (g generator) profile() object {
	return g.some(object{"type": g.one("RuntimeDefault", "Unconfined", "Localhost"), "localhostProfile": "a/b"})
}

func (g generator) seLinuxOptions() object {
	return g.some(object{"level": "s0:c1,c2", "type": g.one("container_t", "spc_t"), "role": "system_r"})
}

func (g generator) containerSecurityContext() object {
	return g.some(object{
		"runAsUser": g.one(0, 1, 2147483648), "runAsGroup": g.one(-1, 0), "runAsNonRoot": g.one(true, false),
		"allowPrivilegeEscalation": g.one(true, false), "privileged": g.one(true, false),
		"readOnlyRootFilesystem": g.one(true, false), "procMount": g.one("Default", "Unmasked"),
		"capabilities":   g.some(object{"add": []any{g.one("CHOWN", "IPC_LOCK")}, "drop": []any{"NET_RAW"}}),
		"seccompProfile": g.profile(), "appArmorProfile": g.profile(), "seLinuxOptions": g.seLinuxOptions(),
	})
}

func (g generator) securityContext() object {
	return g.some(object{
		"runAsUser": g.one(0, 1, 1000, 2147483647, 2147483648), "runAsGroup": g.one(-1, 0, 1000), "runAsNonRoot": g.one(true,
			false), "fsGroup": g.one(0, 2147483648),
		"supplementalGroups": g.one([]any{}, []any{0, 1}, []any{-1}), "supplementalGroupsPolicy": g.one("Merge", "Strict"),
		"fsGroupChangePolicy": g.one("Always", "OnRootMismatch", "Never"), "seLinuxOptions": g.seLinuxOptions(),
		"seLinuxChangePolicy": "Recursive",
		"seccompProfile":      g.profile(), "appArmorProfile": g.profile(), "windowsOptions": g.one(object{},
			object{"hostProcess": true}),
		"sysctls": g.one([]any{}, []any{object{"name": "net.ipv4.tcp_syncookies", "value": "1"}}, []any{object{"name": "Net",
			"value": "1"}}),
	})
}

func (g generator) toleration() object {
	return g.some(object{
		"key": g.one("", "a", "example.com/a", "a b"), "operator": g.one("", "Exists", "Equal", "In"), "value": g.one("",
			"b", "-", "a b"),
		"effect": g.one("", "NoSchedule", "PreferNoSchedule", "NoExecute", "Never"), "tolerationSeconds": g.one(-1, 0, 60),
	})
}

func (g generator) requirement(operators ...any) object {
	r := g.some(object{"values": g.one([]any{}, []any{"1"}, []any{"1", "2"})})
	r["key"], r["operator"] = g.one("a", "example.com/a"), g.one(operators...)
	return r
}

func (g generator) affinity() object {
	return g.some(object{"nodeAffinity": g.nodeAffinity(), "podAffinity": g.podAffinity(),
		"podAntiAffinity": g.podAffinity()})
}

func (g generator) nodeAffinity() object {
	term := func() object {
		return g.some(object{
			"matchExpressions": []any{g.requirement("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Is")},
			"matchFields": []any{object{"key": g.one("metadata.name", "spec.name"), "operator": "In",
				"values": []any{"a"}}},
		})
	}
	return g.some(object{
		"requiredDuringSchedulingIgnoredDuringExecution": object{"nodeSelectorTerms": g.one([]any{}, []any{term()},
			[]any{term(), term()})},
		"preferredDuringSchedulingIgnoredDuringExecution": []any{object{"weight": g.one(0, 1, 100, 101),
			"preference": term()}},
	})
}

func (g generator) podAffinity() object {
	term := func() object {
		t := g.some(object{"labelSelector": g.selector(), "namespaces": []any{"other"}, "namespaceSelector": object{}})
		t["topologyKey"] = g.one("", "a", "kubernetes.io/hostname")
		return t
	}
	return g.some(object{
		"requiredDuringSchedulingIgnoredDuringExecution": []any{term()},
		"preferredDuringSchedulingIgnoredDuringExecution": []any{object{"weight": g.one(0, 1, 100, 101),
			"podAffinityTerm": term()}},
	})
}

func (g generator) selector() object {
	return g.some(object{"matchLabels": object{"a": "b"}, "matchExpressions": []any{g.requirement("In", "NotIn", "Exists",
		"DoesNotExist", "Gt")}})
}

func (g generator) spread(key string) object {
	s := g.some(object{"minDomains": g.one(0, 1, 2), "nodeAffinityPolicy": g.one("Honor", "Ignore"),
		"nodeTaintsPolicy": g.one("Honor", "Obey"), "labelSelector": g.selector()})
	s["maxSkew"], s["topologyKey"], s["whenUnsatisfiable"] = g.one(0, 1, 2), key, g.one("DoNotSchedule", "ScheduleAnyway")
	return s
}

// one returns one of several values.
func (g generator) one(values ...any) any { return values[g.IntN(len(values))] }

// some keeps about a third of the fields of an object.
func (g generator) some(all object) object {
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if g.IntN(3) > 0 {
			delete(all, key)
		}
	}
	return all
}
