package api

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/internal/testing/specs"
)

const (
	imageRule      = "must be a valid image reference: [registry[:port]/]name[:tag][@sha256:digest]"
	memoryRule     = "must be a whole number followed by Mi or Gi, such as 512Mi"
	memoryBounds   = "must be from 16Mi to 4096Gi"
	itemSizeRule   = "must be a multiple of 512Ki from 512Ki to 1024Mi"
	halfRule       = "must be at most half of spec.memory"
	proxyConnsRule = "must be at least (proxy.size + 1)·(proxy.threads + 2) + 16 + 5·threads: each thread and the agent"
	connsRule      = "must be at least max(16 + 4·threads, 10 + 5·threads)"
	chunkRule      = "must be at least 1Mi with no_chunked_items or no_modern in spec.extraArgs"
	argsRule       = "must be one of --verbose, --disable-evictions,"
	extendedRule   = "must hold, after --extended=, tuning keys of memcached -o"
	growthRule     = "must not be so close to 1 that memcached takes it for 1"
	lruRule        = "must not hold hot_lru_pct and warm_lru_pct with a sum above 80"
	ttlRule        = "must not hold temporary_ttl together with no_lru_maintainer or no_modern"
	fullRule       = "must not hold no_maxconns_fast, nor no_modern unless maxconns_fast follows"
	labelKeyRule   = "keys must be like app, app.kubernetes.io/name or example.com/team"
	labelValueRule = "values must be empty or at most 63 letters, digits, '-', '_' or '.'"
	quantityRule   = "must be quantities of at most 20 characters, without sign or exponent"
	resourceRule   = "may hold cpu, memory, ephemeral-storage, hugepages-SIZE and extended resources"
	extendedName   = "names of extended resources must be like example.com/device"
	limitRule      = "hugepages and extended resources must have a limit, and a request must equal it"
	wholeRule      = "extended resources must be whole numbers"
	pagesRule      = "hugepages must be named by the size of a page, such as hugepages-2Mi, and be a multiple of that size"
	idRule         = "must be from 0 to 2147483647"
	userRule       = "must be from 1 to 2147483647: memcached refuses to run as root"
	profileRule    = "type must be RuntimeDefault, Unconfined or Localhost, and with Localhost alone a localhostProfile"
	sysctlRule     = "names must be safe sysctls by the baseline Pod Security Standard, each once: kernel.shm_rmid_forced"
	ownLabels      = "they belong to the operator and to workload controllers"
	memoryLimit    = "must be at least spec.memory + 48Mi + 4Mi·threads"
	proxyMemory    = "must be at least 64Mi + 4Mi·threads"
	sizeRule       = "must have at most 255 KiB in all"
	weightRule     = "weight must be from 1 to 100"
	nodeTermRule   = "matchExpressions must have values with In and NotIn, one value with Gt and Lt"
	selectorRule   = "matchExpressions must have values with In and NotIn, and none with Exists and DoesNotExist"
	topologyRule   = "topologyKey must name a label of nodes"
	availableRule  = "must be a number from 0 to 1000, or a percentage from 0% to 100%"
	nameRule       = "metadata.name must start with a letter, hold only lower case letters, digits and '-', and"

	digest = specs.Digest
)

// Builders of specs.
var (
	args, limits, toleration, security = specs.Args, specs.Limits, specs.Toleration, specs.Security
	nodeTerm, spread, numbered         = specs.NodeTerm, specs.Spread, specs.Numbered
)

// refused are specs that the API server must refuse, each with a message that names the field and the rule.
var refused = []struct{ spec, field, message string }{
	// Wrong types, bounds and names.
	{`{size: "3"}`, "spec.size", "must be of type integer"},
	{`{size: -1}`, "spec.size", "should be greater than or equal to 0"},
	{`{size: 1001}`, "spec.size", "should be less than or equal to 1000"},
	{`{size: 1.5}`, "spec.size", "must be of type int"},
	{`{replicas: 3}`, "", `unknown field "spec.replicas"`},
	{`{port: 11211}`, "", `unknown field "spec.port"`},
	{`{size: 1, size: 2}`, "", `key "size" already set in map`},
	{`{pod: {resource: {}}}`, "", `unknown field "spec.pod.resource"`},
	{`[]`, "spec", "must be of type object"},
	{`{paused: "yes"}`, "spec.paused", "must be of type boolean"},
	{`{workload: DaemonSet}`, "spec.workload", "supported values"},
	{`{serverAddresses: ClusterIP}`, "spec.serverAddresses", "ClusterIP needs spec.workload StatefulSet"},
	{`{workload: Deployment, serverAddresses: ClusterIP}`, "spec.serverAddresses", "needs spec.workload StatefulSet"},
	{`{tls: {}}`, "spec.tls.secretName", "Required value"},
	{`{tls: {secretName: ""}}`, "spec.tls.secretName", "must be the name of a Secret"},
	{`{tls: {secretName: a/b}}`, "spec.tls.secretName", "must be the name of a Secret"},
	{`{tls: {secretName: a, clientAuth: Always}}`, "spec.tls.clientAuth", "supported values"},
	{`{tls: {secretName: a, minVersion: "1.1"}}`, "spec.tls.minVersion", "supported values"},
	{`{tls: {secretName: a, minVersion: 1.3}}`, "spec.tls.minVersion", "must be of type string"},
	{`{auth: {}}`, "spec.auth.secretName", "Required value"},
	{`{auth: {secretName: A}}`, "spec.auth.secretName", "must be the name of a Secret"},
	{`{networkPolicy: {from: [{}]}}`, "spec.networkPolicy.from[0]", "must hold ipBlock alone"},
	{`{networkPolicy: {from: [{podSelector: {}, ipBlock: {cidr: 10.0.0.0/8}}]}}`, "spec.networkPolicy.from[0]",
		"must hold ipBlock alone"},
	{`{networkPolicy: {from: [{ipBlock: {cidr: 10.0.0.0}}]}}`, "spec.networkPolicy.from[0].ipBlock.cidr",
		"must be a network such as 10.0.0.0/8"},
	{`{networkPolicy: {from: [{ipBlock: {cidr: 10.1.0.0/8}}]}}`, "spec.networkPolicy.from[0].ipBlock.cidr",
		"with no bits set behind its prefix"},
	{`{networkPolicy: {from: [{ipBlock: {cidr: 10.0.0.0/8, except: [11.0.0.0/16]}}]}}`,
		"spec.networkPolicy.from[0].ipBlock.except", "must be networks inside of cidr"},
	{`{networkPolicy: {from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.0.0.0/8]}}]}}`,
		"spec.networkPolicy.from[0].ipBlock.except", "must be networks inside of cidr"},
	{`{networkPolicy: {from: [{podSelector: {matchExpressions: [{key: a, operator: In}]}}]}}`,
		"spec.networkPolicy.from[0].podSelector", "matchExpressions must have values"},
	{`{metrics: {port: 80}}`, "spec.metrics.port", "should be greater than or equal to 1024"},
	{`{metrics: {port: 11211}}`, "spec.metrics.port", "must not be spec.containerPort"},
	{`{containerPort: 9150, metrics: {}}`, "spec.metrics.port", "must not be spec.containerPort"},
	{`{networkPolicy: {metricsFrom: []}}`, "spec.networkPolicy.metricsFrom", "should have at least 1 items"},
	{`{proxy: {}}`, "spec.proxy", "needs spec.workload StatefulSet"},
	{`{workload: StatefulSet, proxy: {}, tls: {secretName: a}}`, "spec.proxy", "cannot be combined with spec.tls"},
	{`{workload: StatefulSet, proxy: {}, auth: {secretName: a}}`, "spec.proxy", "cannot be combined with spec.tls or"},
	{`{workload: StatefulSet, proxy: {whenMoveStalls: Stop}}`, "spec.proxy.whenMoveStalls", "Unsupported value"},
	{`{workload: StatefulSet, proxy: {size: 0}}`, "spec.proxy.size", "should be greater than or equal to 1"},
	{`{workload: StatefulSet, proxy: {threads: 65, memory: 1Gi}}`, "spec.proxy.threads",
		"should be less than or equal to 64"},
	{`{workload: StatefulSet, proxy: {memory: 16Mi}}`, "spec.proxy.memory", proxyMemory},
	{`{workload: StatefulSet, proxy: {memory: 79Mi}}`, "spec.proxy.memory", proxyMemory},
	{`{workload: StatefulSet, proxy: {threads: 64}}`, "spec.proxy.memory", proxyMemory},
	{`{workload: StatefulSet, proxy: {threads: 64, memory: 319Mi}}`, "spec.proxy.memory", proxyMemory},
	{`{workload: StatefulSet, proxy: {memory: 65Gi}}`, "spec.proxy.memory", "must be at most 64Gi"},
	{`{workload: StatefulSet, maxItemSize: 32Mi, proxy: {}}`, "spec.proxy.memory",
		"must be at least 2·threads·maxItemSize"},
	{`{workload: StatefulSet, proxy: {resources: {limits: {memory: 1Gi}}}}`, "spec.proxy.resources",
		"may hold cpu only: spec.proxy.memory is"},
	{`{workload: StatefulSet, proxy: {resources: {requests: {memory: 1Gi}}}}`, "spec.proxy.resources",
		"may hold cpu only"},
	{`{workload: StatefulSet, proxy: {resources: {requests: {cpu: 2}, limits: {cpu: 1500m}}}}`,
		"spec.proxy.resources.requests", "must not exceed their limits"},
	{`{agent: {resources: {limits: {memory: 63Mi}}}}`, "spec.agent.resources.limits[memory]", "must be at least 64Mi"},
	{`{agent: {resources: {limits: {memory: 67108863}}}}`, "spec.agent.resources.limits[memory]", "must be at least 64Mi"},
	{`{agent: {resources: {requests: {memory: 2Gi}, limits: {memory: 1Gi}}}}`, "spec.agent.resources.requests",
		"must not exceed their limits"},
	{`{agent: {resources: {limits: {ephemeral-storage: 1Gi}}}}`, "spec.agent.resources.limits",
		"may hold cpu and memory"},
	{`{agent: {resources: {limits: {cpu: 1e1.5}}}}`, "spec.agent.resources.limits", quantityRule},
	{`{agent: {resources: {requests: {memory: 1e2000000000}}}}`, "spec.agent.resources.requests", quantityRule},
	{`{agent: {image: a}}`, "", `unknown field "spec.agent.image"`},
	{`{workload: StatefulSet, proxy: {memory: 1G}}`, "spec.proxy.memory", "must be a whole number followed by Mi or Gi"},
	{`{containerPort: 80}`, "spec.containerPort", "should be greater than or equal to 1024"},
	{`{containerPort: 70000}`, "spec.containerPort", "should be less than or equal to 65535"},
	{`{containerPort: "11211"}`, "spec.containerPort", "must be of type integer"},
	{`{threads: 0}`, "spec.threads", "should be greater than or equal to 1"},
	{`{threads: 65}`, "spec.threads", "should be less than or equal to 64"},

	// Images.
	{`{image: ""}`, "spec.image", imageRule},
	{`{image: UPPER/x}`, "spec.image", imageRule},
	{`{image: Memcached}`, "spec.image", imageRule},
	{`{image: "a b"}`, "spec.image", imageRule},
	{`{image: " memcached"}`, "spec.image", imageRule},
	{`{image: "memcached\n"}`, "spec.image", imageRule},
	{`{image: "memcached\n--evil"}`, "spec.image", imageRule},
	{`{image: "x:"}`, "spec.image", imageRule},
	{`{image: "x:-1"}`, "spec.image", imageRule},
	{`{image: "x@sha256:12"}`, "spec.image", imageRule},
	{`{image: "x@md5:0123"}`, "spec.image", imageRule},
	{`{image: "@` + digest + `"}`, "spec.image", imageRule},
	{`{image: -x}`, "spec.image", imageRule},
	{`{image: x-/y}`, "spec.image", imageRule},
	{`{image: /x}`, "spec.image", imageRule},
	{`{image: x//y}`, "spec.image", imageRule},
	{`{image: "https://example.com/x"}`, "spec.image", imageRule},
	{`{image: "x:` + strings.Repeat("a", 129) + `"}`, "spec.image", imageRule},
	{`{image: "` + strings.Repeat("a", 513) + `"}`, "spec.image", "Too long"},

	// Memory.
	{`{memory: 64}`, "spec.memory", "must be of type string"},
	{`{memory: ""}`, "spec.memory", memoryRule},
	{`{memory: "64"}`, "spec.memory", memoryRule},
	{`{memory: 64M}`, "spec.memory", memoryRule},
	{`{memory: 64mi}`, "spec.memory", memoryRule},
	{`{memory: 0.5Gi}`, "spec.memory", memoryRule},
	{`{memory: 4Ti}`, "spec.memory", memoryRule},
	{`{memory: 0Mi}`, "spec.memory", memoryRule},
	{`{memory: 015Mi}`, "spec.memory", memoryRule},
	{`{memory: -64Mi}`, "spec.memory", memoryRule},
	{`{memory: "64Mi "}`, "spec.memory", memoryRule},
	{`{memory: "64Mi\n"}`, "spec.memory", memoryRule},
	{`{memory: 8Mi}`, "spec.memory", memoryBounds},
	{`{memory: 15Mi}`, "spec.memory", memoryBounds},
	{`{memory: 4097Gi}`, "spec.memory", memoryBounds},
	{`{memory: 5000Gi}`, "spec.memory", memoryBounds},
	{`{memory: 9999999999Gi}`, "spec.memory", memoryBounds},
	{`{memory: 99999999999Gi}`, "spec.memory", "Too long"},
	{`{maxItemSize: 1000Ki}`, "spec.maxItemSize", itemSizeRule},
	{`{maxItemSize: 256Ki}`, "spec.maxItemSize", itemSizeRule},
	{`{maxItemSize: 2Gi, memory: 16Gi}`, "spec.maxItemSize", itemSizeRule},
	{`{maxItemSize: 2Gi}`, "spec.maxItemSize", itemSizeRule},
	{`{maxItemSize: "1048576"}`, "spec.maxItemSize", itemSizeRule},
	{`{maxItemSize: 1m}`, "spec.maxItemSize", itemSizeRule},
	{`{maxItemSize: big}`, "spec.maxItemSize", itemSizeRule},
	{`{maxItemSize: ""}`, "spec.maxItemSize", itemSizeRule},
	{`{maxItemSize: "1Mi\n"}`, "spec.maxItemSize", itemSizeRule},
	{`{maxItemSize: 1025Mi, memory: 4Gi}`, "spec.maxItemSize", itemSizeRule},
	{`{maxItemSize: 9999999999Mi}`, "spec.maxItemSize", itemSizeRule},
	{`{maxItemSize: 10000000000Mi}`, "spec.maxItemSize", "Too long"},
	{`{maxItemSize: 33Mi}`, "spec.maxItemSize", halfRule},
	{`{maxItemSize: 1024Mi, memory: 2047Mi}`, "spec.maxItemSize", halfRule},
	{`{maxItemSize: 9Mi, memory: 16Mi}`, "spec.maxItemSize", halfRule},

	// Too few connections: memcached needs some of these files itself to start.
	{`{maxConnections: 0}`, "spec.maxConnections", "should be greater than or equal to 1"},
	{`{maxConnections: 1000001}`, "spec.maxConnections", "should be less than or equal to 1000000"},
	{`{maxConnections: 1}`, "spec.maxConnections", connsRule},
	{`{maxConnections: 31}`, "spec.maxConnections", connsRule},
	{`{maxConnections: 19, threads: 1}`, "spec.maxConnections", connsRule},
	{`{maxConnections: 44, threads: 7}`, "spec.maxConnections", connsRule},
	{`{maxConnections: 49, threads: 8}`, "spec.maxConnections", connsRule},
	{`{maxConnections: 169, threads: 32}`, "spec.maxConnections", connsRule},
	{`{maxConnections: 329, threads: 64}`, "spec.maxConnections", connsRule},
	{`{workload: StatefulSet, proxy: {}, maxConnections: 53}`, "spec.maxConnections", proxyConnsRule},
	{`{workload: StatefulSet, proxy: {}, maxConnections: 55, threads: 5}`, "spec.maxConnections", proxyConnsRule},
	{`{workload: StatefulSet, proxy: {size: 20, threads: 64, memory: 1Gi}}`, "spec.maxConnections", proxyConnsRule},

	// Options.
	{`{extraArgs: --verbose}`, "spec.extraArgs", "must be of type array"},
	{`{extraArgs: [1]}`, "spec.extraArgs[0]", "must be of type string"},
	{args(specs.Repeat("--verbose", 33)...), "spec.extraArgs", "must have at most 32 items"},
	{args("--extended=" + strings.Repeat("modern,", 36)[:246]), "spec.extraArgs[0]", "Too long"},
	{args("--verbose", "-l"), "spec.extraArgs[1]", argsRule},
	{args(""), "spec.extraArgs[0]", argsRule},
	{args("-l 0.0.0.0"), "spec.extraArgs[0]", argsRule},
	{args("-vv"), "spec.extraArgs[0]", argsRule},
	{args("-M"), "spec.extraArgs[0]", argsRule},
	{args("-o", "modern"), "spec.extraArgs[", argsRule},
	{args("--"), "spec.extraArgs[0]", argsRule},
	{args("memcached"), "spec.extraArgs[0]", argsRule},
	{args(" --verbose"), "spec.extraArgs[0]", argsRule},
	{args("--verbose "), "spec.extraArgs[0]", argsRule},
	{args("--verbose=1"), "spec.extraArgs[0]", argsRule},
	{args("--listen=0.0.0.0"), "spec.extraArgs[0]", argsRule},
	{args("--unix-socket=/tmp/s"), "spec.extraArgs[0]", argsRule},
	{args("--unix-mask=777"), "spec.extraArgs[0]", argsRule},
	{args("--user=root"), "spec.extraArgs[0]", argsRule},
	{args("--port=1"), "spec.extraArgs[0]", argsRule},
	{args("--udp-port=11211"), "spec.extraArgs[0]", argsRule},
	{args("--memory-limit=1"), "spec.extraArgs[0]", argsRule},
	{args("--conn-limit=1"), "spec.extraArgs[0]", argsRule},
	{args("--threads=1"), "spec.extraArgs[0]", argsRule},
	{args("--max-item-size=1m"), "spec.extraArgs[0]", argsRule},
	{args("--enable-ssl"), "spec.extraArgs[0]", argsRule},
	{args("--enable-sasl"), "spec.extraArgs[0]", argsRule},
	{args("--enable-shutdown"), "spec.extraArgs[0]", argsRule},
	{args("--enable-coredumps"), "spec.extraArgs[0]", argsRule},
	{args("--auth-file=/etc/passwd"), "spec.extraArgs[0]", argsRule},
	{args("--memory-file=/dev/shm/x"), "spec.extraArgs[0]", argsRule},
	{args("--pidfile=/tmp/pid"), "spec.extraArgs[0]", argsRule},
	{args("--protocol=binary"), "spec.extraArgs[0]", argsRule},
	{args("--lock-memory"), "spec.extraArgs[0]", argsRule},
	{args("--daemon"), "spec.extraArgs[0]", argsRule},
	{args("--help"), "spec.extraArgs[0]", argsRule},
	{args("--napi-ids=4"), "spec.extraArgs[0]", argsRule},
	{args("--Verbose"), "spec.extraArgs[0]", argsRule},
	{args("--slab-growth-factor"), "spec.extraArgs[0]", argsRule},
	{args("--slab-growth-factor="), "spec.extraArgs[0]", argsRule},
	{args("--slab-growth-factor=1"), "spec.extraArgs[0]", argsRule},
	{args("--slab-growth-factor=1.00"), "spec.extraArgs[0]", argsRule},
	{args("--slab-growth-factor=0.9"), "spec.extraArgs[0]", argsRule},
	{args("--slab-growth-factor=1e9"), "spec.extraArgs[0]", argsRule},
	{args("--slab-min-size=0"), "spec.extraArgs[0]", argsRule},
	{args("--max-reqs-per-event=0"), "spec.extraArgs[0]", argsRule},
	{args("--max-reqs-per-event=-1"), "spec.extraArgs[0]", argsRule},
	{args("--max-reqs-per-event=20.5"), "spec.extraArgs[0]", argsRule},
	{args("--listen-backlog=4294967297"), "spec.extraArgs[0]", argsRule},
	// getopt_long accepts every unambiguous prefix of an option.
	{args("--verb"), "spec.extraArgs[0]", argsRule},
	{args("--ext=modern"), "spec.extraArgs[0]", argsRule},
	{args("--li=0.0.0.0"), "spec.extraArgs[0]", argsRule},
	// A line break must not hide the text before or after it.
	{args("--verbose\n-l"), "spec.extraArgs[0]", argsRule},
	{args("--verbose\n"), "spec.extraArgs[0]", argsRule},
	{args("-l\n--verbose"), "spec.extraArgs[0]", argsRule},
	{args("\n--verbose"), "spec.extraArgs[0]", argsRule},
	{args("--verbose\r"), "spec.extraArgs[0]", argsRule},
	{args("--listen=x\n--extended=modern"), "spec.extraArgs[0]", argsRule},
	{args("--extended=modern\n"), "spec.extraArgs[0]", extendedRule},
	{args("--extended=modern\next_path=/x:1G"), "spec.extraArgs[0]", extendedRule},
	{args("--extended"), "spec.extraArgs[0]", argsRule},
	{args("--extended="), "spec.extraArgs[0]", extendedRule},
	{args("--extended=,"), "spec.extraArgs[0]", extendedRule},
	{args("--extended=modern,,track_sizes"), "spec.extraArgs[0]", extendedRule},
	{args("--extended=modern track_sizes"), "spec.extraArgs[0]", extendedRule},
	{args("--extended=ssl_ca_cert=/x"), "spec.extraArgs[0]", extendedRule},
	{args("--extended=ext_path=/x:1G"), "spec.extraArgs[0]", extendedRule},
	{args("--extended=modern,ext_path=/x:1G"), "spec.extraArgs[0]", extendedRule},
	{args("--extended=idle_timeout=1=2"), "spec.extraArgs[0]", extendedRule},
	{args("--extended=idle_timeout=5,ext_path=/x:1G"), "spec.extraArgs[0]", extendedRule},
	{args("--extended=proxy_config=/x.lua"), "spec.extraArgs[0]", extendedRule},
	{args("--extended=hashpower=32"), "spec.extraArgs[0]", extendedRule},
	{args("--extended=no_drop_privileges"), "spec.extraArgs[0]", extendedRule},
	{args("--extended=slab_chunk_max=1"), "spec.extraArgs[0]", extendedRule},
	{args("--extended=MODERN"), "spec.extraArgs[0]", extendedRule},
	// Values that memcached refuses to start with.
	{args("--extended=idle_timeout"), "spec.extraArgs[0]", extendedRule},
	{args("--extended=hash_algorithm=md5"), "spec.extraArgs[0]", extendedRule},
	{args("--extended=slab_automove=3"), "spec.extraArgs[0]", extendedRule},
	{args("--extended=slab_automove_ratio=0"), "spec.extraArgs[0]", extendedRule},
	{args("--extended=slab_automove_ratio=1.5"), "spec.extraArgs[0]", extendedRule},
	{args("--extended=slab_automove_window=2"), "spec.extraArgs[0]", extendedRule},
	{args("--extended=slab_automove_window=1801"), "spec.extraArgs[0]", extendedRule},
	{args("--extended=tail_repair_time=9"), "spec.extraArgs[0]", extendedRule},
	{args("--extended=lru_crawler_sleep=1000001"), "spec.extraArgs[0]", extendedRule},
	{args("--extended=lru_crawler_tocrawl=1.5"), "spec.extraArgs[0]", extendedRule},
	{args("--extended=hot_lru_pct=0"), "spec.extraArgs[0]", extendedRule},
	{args("--extended=warm_lru_pct=80"), "spec.extraArgs", extendedRule},
	{args("--extended=hot_max_factor=0"), "spec.extraArgs[0]", extendedRule},
	{args("--extended=warm_max_factor=0.0"), "spec.extraArgs[0]", extendedRule},
	// Values that memcached refuses in combination with other values or defaults. If a key is repeated, its last value
	// counts.
	{args("--slab-growth-factor=1.00000000000000001"), "spec.extraArgs[0]", growthRule},
	{args("--slab-growth-factor=1.0000000000000001"), "spec.extraArgs[0]", growthRule},
	{args("--extended=hot_lru_pct=41"), "spec.extraArgs", lruRule},
	{args("--extended=warm_lru_pct=61"), "spec.extraArgs", lruRule},
	{args("--extended=hot_lru_pct=50,warm_lru_pct=31"), "spec.extraArgs", lruRule},
	{args("--extended=warm_lru_pct=31", "--verbose", "--extended=hot_lru_pct=50"), "spec.extraArgs", lruRule},
	{args("--extended=hot_lru_pct=20,hot_lru_pct=41"), "spec.extraArgs", lruRule},
	{args("--extended=hot_lru_pct=20", "--extended=hot_lru_pct=41"), "spec.extraArgs", lruRule},
	{args("--extended=temporary_ttl=61,no_lru_maintainer"), "spec.extraArgs", ttlRule},
	{args("--extended=no_lru_maintainer,temporary_ttl=0"), "spec.extraArgs", ttlRule},
	{args("--extended=no_lru_maintainer", "--extended=temporary_ttl=61"), "spec.extraArgs", ttlRule},
	{args("--extended=lru_maintainer,no_lru_maintainer,temporary_ttl=61"), "spec.extraArgs", ttlRule},
	{args("--extended=temporary_ttl=61,no_modern,maxconns_fast"), "spec.extraArgs", ttlRule},
	{`{maxItemSize: 512Ki, extraArgs: [--extended=no_chunked_items]}`, "spec.maxItemSize", chunkRule},
	{`{maxItemSize: 512Ki, extraArgs: ["--extended=no_modern,maxconns_fast"]}`, "spec.maxItemSize", chunkRule},
	// With these options, a server whose connections are all in use does not answer its probes.
	{args("--extended=no_maxconns_fast"), "spec.extraArgs", fullRule},
	{args("--extended=maxconns_fast,no_maxconns_fast"), "spec.extraArgs", fullRule},
	{args("--extended=maxconns_fast", "--verbose", "--extended=no_maxconns_fast"), "spec.extraArgs", fullRule},
	{args("--extended=maxconns_fast,no_modern"), "spec.extraArgs", fullRule},
	// memcached 1.6.18 uses this value for slab_sizes.
	{args("--extended=worker_logbuf_size=64"), "spec.extraArgs[0]", extendedRule},

	// Pods.
	{`{pod: {labels: {app.kubernetes.io/name: x}}}`, "spec.pod.labels", ownLabels},
	{`{pod: {labels: {app.kubernetes.io/instance: x}}}`, "spec.pod.labels", ownLabels},
	{`{pod: {labels: {pod-template-hash: x}}}`, "spec.pod.labels", ownLabels},
	{`{pod: {labels: {controller-revision-hash: x}}}`, "spec.pod.labels", ownLabels},
	{`{pod: {labels: {pod-template-generation: "1"}}}`, "spec.pod.labels", ownLabels},
	{`{pod: {labels: {statefulset.kubernetes.io/pod-name: x}}}`, "spec.pod.labels", ownLabels},
	{`{pod: {labels: {apps.kubernetes.io/pod-index: "0"}}}`, "spec.pod.labels", ownLabels},
	{`{pod: {labels: {team: 1}}}`, "spec.pod.labels.team", "must be of type string"},
	{`{pod: {labels: {team: data platform}}}`, "spec.pod.labels", labelValueRule},
	{`{pod: {labels: {team: a/b}}}`, "spec.pod.labels", labelValueRule},
	{`{pod: {labels: {team: é}}}`, "spec.pod.labels", labelValueRule},
	{`{pod: {labels: {team: "a\n"}}}`, "spec.pod.labels", labelValueRule},
	{`{pod: {labels: {team: a-}}}`, "spec.pod.labels", labelValueRule},
	{`{pod: {labels: {team: .a}}}`, "spec.pod.labels", labelValueRule},
	{`{pod: {labels: {team: ` + strings.Repeat("a", 64) + `}}}`, "spec.pod.labels", labelValueRule},
	{`{pod: {labels: {"": x}}}`, "spec.pod.labels", labelKeyRule},
	{`{pod: {labels: {my team: x}}}`, "spec.pod.labels", labelKeyRule},
	{`{pod: {labels: {a/b/c: x}}}`, "spec.pod.labels", labelKeyRule},
	{`{pod: {labels: {/a: x}}}`, "spec.pod.labels", labelKeyRule},
	{`{pod: {labels: {Example.com/a: x}}}`, "spec.pod.labels", labelKeyRule},
	{`{pod: {labels: {"team\n": x}}}`, "spec.pod.labels", labelKeyRule},
	{`{pod: {labels: {` + strings.Repeat("a", 64) + `: x}}}`, "spec.pod.labels", labelKeyRule},
	{`{pod: {labels: {` + numbered("l", 16) + `}}}`, "spec.pod.labels", "must have at most 15 items"},
	{`{pod: {annotations: {cache.example.com/restartedAt: x}}}`, "spec.pod.annotations",
		"must not use the prefix cache.example.com/"},
	{`{pod: {annotations: {my key: x}}}`, "spec.pod.annotations", labelKeyRule},
	{`{pod: {annotations: {` + numbered("a", 33) + `}}}`, "spec.pod.annotations", "must have at most 32 items"},
	{`{pod: {nodeSelector: {disk type: ssd}}}`, "spec.pod.nodeSelector", labelKeyRule},
	{`{pod: {nodeSelector: {disktype: fast ssd}}}`, "spec.pod.nodeSelector", labelValueRule},
	{`{pod: {nodeSelector: {disktype: true}}}`, "spec.pod.nodeSelector.disktype", "must be of type string"},
	{`{pod: {priorityClassName: High Priority}}`, "spec.pod.priorityClassName", "must be the name of a PriorityClass"},
	{`{pod: {imagePullSecrets: [{}]}}`, "spec.pod.imagePullSecrets[0]", "must have a name"},
	{`{pod: {imagePullSecrets: [{name: a}, {name: a}]}}`, "spec.pod.imagePullSecrets[1]", "Duplicate value"},
	{`{pod: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: []}}}}}`,
		"spec.pod.affinity.nodeAffinity", "nodeSelectorTerms must not be empty"},
	{nodeTerm(`matchExpressions: [{key: zone, operator: In}]`), "spec.pod.affinity.nodeAffinity", nodeTermRule},
	{nodeTerm(`matchExpressions: [{key: zone, operator: Exists, values: [a]}]`), "spec.pod.affinity.nodeAffinity",
		nodeTermRule},
	{nodeTerm(`matchExpressions: [{key: cores, operator: Gt, values: ["1", "2"]}]`), "spec.pod.affinity.nodeAffinity",
		nodeTermRule},
	{nodeTerm(`matchExpressions: [{key: zone, operator: Equals, values: [a]}]`), "spec.pod.affinity.nodeAffinity",
		nodeTermRule},
	{nodeTerm(`matchFields: [{key: metadata.name, operator: Exists}]`), "spec.pod.affinity.nodeAffinity", nodeTermRule},
	{nodeTerm(`matchFields: [{key: metadata.uid, operator: In, values: [a]}]`), "spec.pod.affinity.nodeAffinity",
		nodeTermRule},
	{`{pod: {affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 0,
 preference: {}}]}}}}`, "spec.pod.affinity.nodeAffinity", weightRule},
	{`{pod: {affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1,
 preference: {matchExpressions: [{key: zone, operator: NotIn,
 values: []}]}}]}}}}`, "spec.pod.affinity.nodeAffinity", nodeTermRule},
	{`{pod: {affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: ""}]}}}}`,
		"spec.pod.affinity.podAffinity", topologyRule},
	{`{pod: {affinity: {podAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 101,
 podAffinityTerm: {topologyKey: zone}}]}}}}`, "spec.pod.affinity.podAffinity", weightRule},
	{`{pod: {affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: zone,
 labelSelector: {matchExpressions: [{key: a, operator: Gt, values: ["1"]}]}}]}}}}`,
		"spec.pod.affinity.podAffinity", selectorRule},
	{`{pod: {affinity: {podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1,
 podAffinityTerm: {topologyKey: ""}}]}}}}`, "spec.pod.affinity.podAntiAffinity", topologyRule},
	{`{pod: {affinity: {podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: -1,
 podAffinityTerm: {topologyKey: zone}}]}}}}`, "spec.pod.affinity.podAntiAffinity", weightRule},
	{`{pod: {affinity: {podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1,
 podAffinityTerm: {topologyKey: zone, labelSelector: {matchExpressions: [{key: a,
 operator: In}]}}}]}}}}`, "spec.pod.affinity.podAntiAffinity", selectorRule},
	{spread(`maxSkew: 0, topologyKey: zone, whenUnsatisfiable: DoNotSchedule`),
		"spec.pod.topologySpreadConstraints[0].maxSkew", "must be at least 1"},
	{spread(`maxSkew: 1, topologyKey: "", whenUnsatisfiable: DoNotSchedule`),
		"spec.pod.topologySpreadConstraints[0].topologyKey", "must name the label of nodes"},
	{spread(`maxSkew: 1, topologyKey: zone, whenUnsatisfiable: Never`),
		"spec.pod.topologySpreadConstraints[0].whenUnsatisfiable", "must be DoNotSchedule or ScheduleAnyway"},
	{spread(`maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway, minDomains: 2`),
		"spec.pod.topologySpreadConstraints[0].minDomains", "must be at least 1, and be left out unless"},
	{spread(`maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule, minDomains: 0`),
		"spec.pod.topologySpreadConstraints[0].minDomains", "must be at least 1, and be left out unless"},
	{spread(`maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule, nodeAffinityPolicy: Obey`),
		"spec.pod.topologySpreadConstraints[0].nodeAffinityPolicy", "must be Honor or Ignore"},
	{spread(`maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule, nodeTaintsPolicy: Obey`),
		"spec.pod.topologySpreadConstraints[0].nodeTaintsPolicy", "must be Honor or Ignore"},
	{spread(`maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchExpressions: [{key: a,
 operator: NotIn}]}`), "spec.pod.topologySpreadConstraints[0].labelSelector", selectorRule},
	{toleration(`key: a b, operator: Exists`), "spec.pod.tolerations", "key must be like the key of a label"},
	{toleration(`key: a, operator: In`), "spec.pod.tolerations", "operator must be Exists, Equal, Lt or Gt"},
	{toleration(`effect: NoSchedule`), "spec.pod.tolerations", "operator must be Exists where there is no key"},
	{toleration(`key: "", operator: Equal`), "spec.pod.tolerations", "operator must be Exists where there is no key"},
	{toleration(`key: a, operator: Exists, value: b`), "spec.pod.tolerations",
		"value must be like the value of a label, and empty where operator is Exists"},
	{toleration(`key: a, value: b c`), "spec.pod.tolerations", "value must be like the value of a label"},
	{toleration(`key: a, effect: Never`), "spec.pod.tolerations",
		"effect must be NoSchedule, PreferNoSchedule, NoExecute, or empty"},
	{toleration(`key: a, tolerationSeconds: 60`), "spec.pod.tolerations",
		"effect must be NoExecute where tolerationSeconds is set"},
	{toleration(`key: a, effect: NoSchedule, tolerationSeconds: 60`), "spec.pod.tolerations",
		"effect must be NoExecute where tolerationSeconds is set"},
	{security(`runAsUser: 0`), "spec.pod.securityContext.runAsUser", userRule},
	{security(`runAsUser: 2147483648`), "spec.pod.securityContext.runAsUser", userRule},
	{security(`runAsGroup: -1`), "spec.pod.securityContext.runAsGroup", idRule},
	{security(`fsGroup: 2147483648`), "spec.pod.securityContext.fsGroup", idRule},
	{security(`supplementalGroups: [1, -1]`), "spec.pod.securityContext.supplementalGroups", idRule},
	{security(`supplementalGroups: [2147483648]`), "spec.pod.securityContext.supplementalGroups", idRule},
	{security(`fsGroupChangePolicy: Never`), "spec.pod.securityContext.fsGroupChangePolicy",
		"must be Always or OnRootMismatch"},
	{security(`supplementalGroupsPolicy: Never`), "spec.pod.securityContext.supplementalGroupsPolicy",
		"must be Merge or Strict"},
	{security(`seLinuxChangePolicy: Never`), "spec.pod.securityContext.seLinuxChangePolicy",
		"must be MountOption or Recursive"},
	{security(`seccompProfile: {type: Default}`), "spec.pod.securityContext.seccompProfile", profileRule},
	{security(`seccompProfile: {type: Localhost}`), "spec.pod.securityContext.seccompProfile", profileRule},
	{security(`seccompProfile: {type: RuntimeDefault, localhostProfile: a}`), "spec.pod.securityContext.seccompProfile",
		profileRule},
	{security(`appArmorProfile: {type: Default}`), "spec.pod.securityContext.appArmorProfile", profileRule},
	{security(`appArmorProfile: {type: Localhost, localhostProfile: ""}`), "spec.pod.securityContext.appArmorProfile",
		profileRule},
	{security(`appArmorProfile: {type: Unconfined, localhostProfile: a}`), "spec.pod.securityContext.appArmorProfile",
		profileRule},
	{security(`sysctls: [{name: net core, value: "1"}]`), "spec.pod.securityContext.sysctls", sysctlRule},
	{security(`sysctls: [{name: "", value: "1"}]`), "spec.pod.securityContext.sysctls", sysctlRule},
	{security(`sysctls: [{name: net.ipv4.tcp_rmem, value: "1"}, {name: net.ipv4.tcp_rmem, value: "2"}]`),
		"spec.pod.securityContext.sysctls", sysctlRule},
	{security(`sysctls: [{name: net.core.somaxconn, value: "1024"}]`), "spec.pod.securityContext.sysctls", sysctlRule},
	{security(`sysctls: [{name: kernel.msgmax, value: "1"}]`), "spec.pod.securityContext.sysctls", sysctlRule},
	{security(`windowsOptions: {hostProcess: true}`), "spec.pod.securityContext.windowsOptions",
		"must not ask for hostProcess"},
	{`{pod: {annotations: {a: ` + strings.Repeat("x", 261120) + `}}}`, "spec.pod.annotations", sizeRule},
	{`{pod: {resources: {requests: {example.com/gpu: 1}}}}`, "spec.pod.resources.requests", limitRule},
	{`{pod: {resources: {requests: {hugepages-2Mi: 2Mi}}}}`, "spec.pod.resources.requests", limitRule},
	{`{pod: {resources: {limits: {example.com/gpu: 2}, requests: {example.com/gpu: 1}}}}`, "spec.pod.resources.requests",
		limitRule},
	{`{pod: {resources: {limits: {hugepages-2Mi: 4Mi}, requests: {hugepages-2Mi: 2Mi}}}}`, "spec.pod.resources.requests",
		limitRule},
	{limits(`example.com/gpu: 500m`), "spec.pod.resources.limits", wholeRule},
	{limits(`example.com/gpu: "1.5"`), "spec.pod.resources.limits", wholeRule},
	{limits(`hugepages-2Mi: 3Mi`), "spec.pod.resources.limits", pagesRule},
	{limits(`hugepages-2Mi: "0.5"`), "spec.pod.resources.limits", pagesRule},
	{limits(`hugepages-big: 2Mi`), "spec.pod.resources.limits", pagesRule},
	{limits(`hugepages-: 2Mi`), "spec.pod.resources.limits", pagesRule},
	{limits(`example.com/: 1`), "spec.pod.resources.limits", extendedName},
	{limits(`/gpu: 1`), "spec.pod.resources.limits", extendedName},
	{limits(`Example.com/gpu: 1`), "spec.pod.resources.limits", extendedName},
	{limits(`example.com/my gpu: 1`), "spec.pod.resources.limits", extendedName},
	{limits(`requests.example.com/gpu: 1`), "spec.pod.resources.limits", extendedName},
	{`{pod: {resources: {requests: {a/b/c: 1}, limits: {a/b/c: 1}}}}`, "spec.pod.resources.", extendedName},
	{`{pod: {resources: {requests: {kubernetes.io/: 1}}}}`, "spec.pod.resources.requests", extendedName},
	{`{pod: {resources: {claims: [{name: gpu}]}}}`, "", `unknown field "spec.pod.resources.claims"`},
	{limits(`memory: 64Mi`), "spec.pod.resources.limits[memory]", memoryLimit},
	{limits(`memory: "1"`), "spec.pod.resources.limits[memory]", memoryLimit},
	{limits(`memory: 127Mi`), "spec.pod.resources.limits[memory]", memoryLimit},
	{limits(`memory: 134217727`), "spec.pod.resources.limits[memory]", memoryLimit},
	{limits(`memory: 134M`), "spec.pod.resources.limits[memory]", memoryLimit},
	{`{threads: 64, memory: 1Gi, pod: {resources: {limits: {memory: 1327Mi}}}}`, "spec.pod.resources.limits[memory]",
		memoryLimit},
	{limits(`cpu: 1.5`), "spec.pod.resources.limits.cpu", "must be of type integer"},
	{limits(`cpu: one`), "spec.pod.resources.limits", "should match"},
	{limits(`cpu: -1`), "spec.pod.resources.limits", quantityRule},
	{limits(`cpu: "-1"`), "spec.pod.resources.limits", quantityRule},
	{limits(`mem: 1Gi`), "spec.pod.resources.limits", resourceRule},
	{limits(numbered("example.com/", 7)), "spec.pod.resources.limits", "must have at most 6 items"},
	{`{pod: {resources: {requests: {` + numbered("example.com/", 7) + `}}}}`, "spec.pod.resources.requests",
		"must have at most 6 items"},
	{`{pod: {resources: {requests: {memory: -1Mi}}}}`, "spec.pod.resources.requests", quantityRule},
	{`{pod: {resources: {requests: {mem: 1Gi}}}}`, "spec.pod.resources.requests", resourceRule},
	{`{pod: {resources: {limits: {cpu: 100m}, requests: {cpu: "0.2"}}}}`, "spec.pod.resources.requests",
		"cpu and memory must not exceed their limits"},
	{`{pod: {resources: {limits: {memory: 1Gi}, requests: {memory: 1073741825}}}}`, "spec.pod.resources.requests",
		"cpu and memory must not exceed their limits"},
	// The schema of a quantity accepts these. The first two cannot be decoded, so that one such Memcached would hide all
	// others from the operator. The rest would keep the operator and the API server busy for minutes.
	{limits(`cpu: 1e1.5`), "spec.pod.resources.limits", quantityRule},
	{limits(`cpu: 1E.5`), "spec.pod.resources.limits", quantityRule},
	{limits(`cpu: 1e2000000000`), "spec.pod.resources.limits", quantityRule},
	{limits(`memory: 1e2000000000`), "spec.pod.resources.limits", quantityRule},
	{`{pod: {resources: {limits: {memory: 1e2000000000}, requests: {memory: 1e2000000000}}}}`, "spec.pod.resources.",
		quantityRule},
	{limits(`cpu: "` + strings.Repeat("9", 100000) + `"`), "spec.pod.resources.limits", quantityRule},

	// Rollouts and disruptions.
	{`{rollout: {maxUnavailable: 0}}`, "spec.rollout.maxUnavailable", "should be greater than or equal to 1"},
	{`{rollout: {maxUnavailable: 1001}}`, "spec.rollout.maxUnavailable", "should be less than or equal to 1000"},
	{`{rollout: {maxUnavailable: "25%"}}`, "spec.rollout.maxUnavailable", "must be of type integer"},
	{`{rollout: {minReadySeconds: -1}}`, "spec.rollout.minReadySeconds", "should be greater than or equal to 0"},
	{`{rollout: {minReadySeconds: 86401, progressDeadlineSeconds: 172800}}`, "spec.rollout.minReadySeconds",
		"should be less than or equal to 86400"},
	{`{rollout: {progressDeadlineSeconds: 0}}`, "spec.rollout.progressDeadlineSeconds",
		"should be greater than or equal to 1"},
	{`{rollout: {progressDeadlineSeconds: 172801}}`, "spec.rollout.progressDeadlineSeconds",
		"should be less than or equal to 172800"},
	{`{rollout: {minReadySeconds: 600}}`, "spec.rollout.progressDeadlineSeconds",
		"must be greater than spec.rollout.minReadySeconds"},
	{`{rollout: {minReadySeconds: 10, progressDeadlineSeconds: 10}}`, "spec.rollout.progressDeadlineSeconds",
		"must be greater than spec.rollout.minReadySeconds"},
	{`{rollout: {progressDeadlineSeconds: 5, minReadySeconds: 9}}`, "spec.rollout.progressDeadlineSeconds",
		"must be greater than spec.rollout.minReadySeconds"},
	{`{workload: StatefulSet, metrics: {}, rollout: {warmUp: {percent: 0}}}`, "spec.rollout.warmUp.percent",
		"should be greater than or equal to 1"},
	{`{workload: StatefulSet, metrics: {}, rollout: {warmUp: {percent: 101}}}`, "spec.rollout.warmUp.percent",
		"should be less than or equal to 100"},
	{`{workload: StatefulSet, metrics: {}, rollout: {warmUp: {timeoutSeconds: 0}}}`,
		"spec.rollout.warmUp.timeoutSeconds", "should be greater than or equal to 1"},
	{`{workload: StatefulSet, metrics: {}, rollout: {warmUp: {timeoutSeconds: 86401}}}`,
		"spec.rollout.warmUp.timeoutSeconds", "should be less than or equal to 86400"},
	{`{metrics: {}, rollout: {warmUp: {}}}`, "spec.rollout.warmUp", "needs spec.workload StatefulSet"},
	{`{disruptionBudget: {maxUnavailable: -1}}`, "spec.disruptionBudget.maxUnavailable",
		"should be greater than or equal to 0"},
	{`{disruptionBudget: {maxUnavailable: 1001}}`, "spec.disruptionBudget.maxUnavailable",
		"should be less than or equal to 1000"},
	{`{disruptionBudget: {maxUnavailable: 50%}}`, "spec.disruptionBudget.maxUnavailable", "must be of type integer"},
	{`{disruptionBudget: {minAvailable: -1}}`, "spec.disruptionBudget.minAvailable", availableRule},
	{`{disruptionBudget: {minAvailable: 1001}}`, "spec.disruptionBudget.minAvailable", availableRule},
	{`{disruptionBudget: {minAvailable: 101%}}`, "spec.disruptionBudget.minAvailable", availableRule},
	{`{disruptionBudget: {minAvailable: half}}`, "spec.disruptionBudget.minAvailable", availableRule},
	{`{service: {type: ExternalName}}`, "spec.service.type", "supported values"},
	{`{service: {type: LoadBalancer}}`, "spec.service.type", "must be ClusterIP without spec.proxy or"},
	{`{workload: StatefulSet, service: {type: NodePort}}`, "spec.service.type", "must be ClusterIP without spec.proxy or"},
	{`{service: {labels: {app.kubernetes.io/name: a}}}`, "spec.service.labels", "must not use the prefix app.kubernetes"},
	{`{service: {labels: {a: "b c"}}}`, "spec.service.labels.a", "should match '^(([A-Za-z0-9]"},
	{`{service: {labels: {"a b": c}}}`, "spec.service.labels", "keys must be like app or example.com/team"},
	{`{service: {annotations: {cache.example.com/a: b}}}`, "spec.service.annotations",
		"must not use the prefix cache.example.com/"},
	{`{service: {trafficDistribution: PreferClose}}`, "spec.service.trafficDistribution", "needs spec.proxy"},
	{`{workload: StatefulSet, proxy: {}, service: {trafficDistribution: Nearest}}`, "spec.service.trafficDistribution",
		"supported values"},
	{`{service: {ipFamilyPolicy: DualStack}}`, "spec.service.ipFamilyPolicy", "supported values"},
	{`{pod: {schedulerName: A}}`, "spec.pod.schedulerName", "must be the name of a scheduler"},
	{`{pod: {serviceAccountName: a_b}}`, "spec.pod.serviceAccountName", "must be the name of a ServiceAccount"},
	{`{pod: {imagePullPolicy: Sometimes}}`, "spec.pod.imagePullPolicy", "supported values"},
	{`{pod: {containerSecurityContext: {privileged: true}}}`, "spec.pod.containerSecurityContext.privileged",
		"must not be true: memcached needs no privileges"},
	{`{pod: {containerSecurityContext: {runAsUser: 0}}}`, "spec.pod.containerSecurityContext.runAsUser", userRule},
	{`{pod: {containerSecurityContext: {runAsGroup: -1}}}`, "spec.pod.containerSecurityContext.runAsGroup", idRule},
	{`{pod: {containerSecurityContext: {procMount: Unmasked}}}`, "spec.pod.containerSecurityContext.procMount",
		"must be Default"},
	{`{pod: {containerSecurityContext: {seccompProfile: {type: Localhost}}}}`,
		"spec.pod.containerSecurityContext.seccompProfile", profileRule},
	{`{pod: {containerSecurityContext: {capabilities: {add: [CAP_SYS_ADMIN]}}}}`,
		"spec.pod.containerSecurityContext.capabilities.add", "must be named without CAP_"},
	{`{pod: {containerSecurityContext: {appArmorProfile: {type: Other}}}}`,
		"spec.pod.containerSecurityContext.appArmorProfile", profileRule},
	{`{pod: {containerSecurityContext: {windowsOptions: {hostProcess: true}}}}`,
		"spec.pod.containerSecurityContext.windowsOptions", "must not ask for hostProcess"},
	{`{workload: StatefulSet, proxy: {topologySpreadConstraints: [{maxSkew: 0, topologyKey: zone,
		whenUnsatisfiable: DoNotSchedule}]}}`, "spec.proxy.topologySpreadConstraints[0].maxSkew", "must be at least 1"},
	{`{workload: StatefulSet, proxy: {affinity: {podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [
		{weight: 0, podAffinityTerm: {topologyKey: zone}}]}}}}`, "spec.proxy.affinity.podAntiAffinity", weightRule},
}

func TestRefused(t *testing.T) {
	for _, tc := range refused {
		t.Run(subtestName(tc.spec), func(t *testing.T) {
			mustRefuse(t, document(tc.spec), tc.field, tc.message)
		})
	}
}

func TestRefusedNames(t *testing.T) {
	for _, name := range []string{"1abc", "a.b", "a-", "-a", "Foo", "a_b", strings.Repeat("a", 53)} {
		t.Run(name, func(t *testing.T) {
			mustRefuse(t, "apiVersion: cache.example.com/v1alpha1\nkind: Memcached\nmetadata: {name: "+name+"}\n", "<nil>",
				nameRule)
		})
	}
}

// mustRefuse fails unless the API server refuses a document with a message about this field, and about no other field,
// which would mislead the user.
func mustRefuse(t *testing.T, document, field, message string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := dryRun(ctx, document)
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		t.Fatalf("want a refusal with %q, got: %v", message, err)
	}
	if field == "" {
		if !strings.Contains(err.Error(), message) {
			t.Errorf("want %q, got: %v", message, err)
		}
		return
	}
	found := false
	for _, cause := range causesOfRules(status.Status()) {
		found = found || strings.Contains(cause.Message, message)
		if !strings.HasPrefix(cause.Field, field) {
			t.Errorf("want only messages about %s, got one about %s: %s", field, cause.Field, cause.Message)
		}
	}
	if !found {
		t.Errorf("want %s: %q, got: %v", field, message, err)
	}
}

// causesOfRules returns the causes of a refusal without the generic ones that the API server adds to the same error.
func causesOfRules(status metav1.Status) []metav1.StatusCause {
	var causes []metav1.StatusCause
	if status.Details == nil {
		return nil
	}
	for _, cause := range status.Details.Causes {
		switch {
		case strings.Contains(cause.Message, "some validation rules were not checked"):
		case strings.Contains(cause.Message, "Checked value must be of type"), strings.Contains(cause.Message,
			"must validate at least one schema"):
		case cause.Field == ".spec.size", cause.Field == "metadata.name":
		default:
			causes = append(causes, cause)
		}
	}
	return causes
}

func TestAccepted(t *testing.T) {
	for _, spec := range specs.Accepted {
		t.Run(subtestName(spec), func(t *testing.T) {
			got, err := dryRun(t.Context(), document(spec))
			if err != nil {
				t.Fatal(err)
			}
			var want any
			if err := yaml.Unmarshal([]byte(spec), &want); err != nil {
				t.Fatal(err)
			}
			body, err := got.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			var obj map[string]any
			if err := json.Unmarshal(body, &obj); err != nil {
				t.Fatal(err)
			}
			if !contains(obj["spec"], want) {
				t.Errorf("want the spec that was sent, got %v", obj["spec"])
			}
			// One object that cannot be decoded would hide all others from the operator.
			if err := json.Unmarshal(body, &v1alpha1.Memcached{}); err != nil {
				t.Errorf("the operator cannot decode it: %v", err)
			}
		})
	}
}

func TestAcceptedNames(t *testing.T) {
	for _, metadata := range []string{"name: a", "name: " + strings.Repeat("a", 52), "name: a-1-b", "generateName: a-"} {
		document := "apiVersion: cache.example.com/v1alpha1\nkind: Memcached\nmetadata: {" + metadata + "}\n"
		if _, err := dryRun(t.Context(), document); err != nil {
			t.Errorf("%s: %v", metadata, err)
		}
	}
}

// contains reports whether got has every value of want.
func contains(got, want any) bool {
	w, ok := want.(map[string]any)
	if !ok {
		return reflect.DeepEqual(got, want)
	}
	g, ok := got.(map[string]any)
	for k := range w {
		ok = ok && contains(g[k], w[k])
	}
	return ok
}

// subtestName returns a short name for a subtest.
func subtestName(spec string) string {
	return strings.ReplaceAll(spec[:min(len(spec), 70)], "/", "|")
}
