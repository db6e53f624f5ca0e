package api

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
	quantityRule   = "must be quantities of at most 20 characters, without sign or exponent"
	userRule       = "must not be 0: memcached refuses to run as root"
	ownLabels      = "they belong to workload controllers"
	reservedLabels = "must not use the prefixes app.kubernetes.io/ and cache.example.com/"
	memoryLimit    = "must be at least spec.memory + 48Mi + 4Mi·threads"
	proxyMemory    = "must be at least 64Mi + 4Mi·threads"
	sizeRule       = "must have at most 255 KiB in all"
	availableRule  = "must be a number from 0 to 1000, or a percentage from 0% to 100%"
	nameRule       = "metadata.name must start with a letter, hold only lower case letters, digits and '-', and"

	digest = specs.Digest
)

// Builders of specs.
var args, limits, security = specs.Args, specs.Limits, specs.Security

// refused are specs that the API server must refuse, by the field and the rule that the message names. What merely
// breaks a bound in the schema is not here, nor what Kubernetes refuses in a child.
var refused = []struct {
	field, message string
	specs          []string
}{
	// Types, bounds and names that tutorials use.
	{"spec.size", "must be of type integer", []string{`{size: "3"}`}},
	{"", `unknown field "spec.replicas"`, []string{`{replicas: 3}`}},
	{"", `unknown field "spec.port"`, []string{`{port: 11211}`}},
	{"", `key "size" already set in map`, []string{`{size: 1, size: 2}`}},
	{"", `unknown field "spec.pod.resource"`, []string{`{pod: {resource: {}}}`}},
	{"spec.workload", "supported values", []string{`{workload: DaemonSet}`}},
	{"spec.serverAddresses", "ClusterIP needs spec.workload StatefulSet", []string{
		`{serverAddresses: ClusterIP}`, `{workload: Deployment, serverAddresses: ClusterIP}`,
	}},
	{"spec.tls.secretName", "Required value", []string{`{tls: {}}`}},
	{"spec.tls.secretName", "must be the name of a Secret", []string{
		`{tls: {secretName: ""}}`, `{tls: {secretName: a/b}}`,
	}},
	{"spec.tls.clientCA", "must have either secretName or configMapName", []string{
		`{tls: {secretName: a, clientCA: {}}}`, `{tls: {secretName: a, clientCA: {secretName: b, configMapName: c}}}`,
	}},
	{"spec.tls.clientCA.secretName", "must be the name of a Secret", []string{
		`{tls: {secretName: a, clientCA: {secretName: ""}}}`, `{tls: {secretName: a, clientCA: {secretName: B}}}`,
	}},
	{"spec.tls.clientCA.configMapName", "must be the name of a ConfigMap", []string{
		`{tls: {secretName: a, clientCA: {configMapName: ""}}}`, `{tls: {secretName: a, clientCA: {configMapName: b/c}}}`,
	}},
	{"spec.auth.secretName", "must be the name of a Secret", []string{`{auth: {secretName: A}}`}},
	{"spec.metrics.port", "must not be spec.containerPort", []string{
		`{metrics: {port: 11211}}`, `{containerPort: 9150, metrics: {}}`,
	}},
	{"spec.proxy", "needs spec.workload StatefulSet", []string{`{proxy: {}}`}},
	{"spec.proxy", "cannot be combined with spec.tls or spec.auth", []string{
		`{workload: StatefulSet, proxy: {}, tls: {secretName: a}}`,
		`{workload: StatefulSet, proxy: {}, auth: {secretName: a}}`,
	}},
	{"spec.proxy.source.until", "Required value", []string{
		`{workload: StatefulSet, proxy: {source: {servers: ["a|10.0.0.4|11211"]}}}`,
	}},
	{"spec.proxy.source.until", "should match", []string{
		`{workload: StatefulSet, proxy: {source: {servers: ["a|10.0.0.4|11211"], until: "2027-01-31t12:00:00z"}}}`,
		`{workload: StatefulSet, proxy: {source: {servers: ["a|10.0.0.4|11211"], until: "2027-01-31T12:00:00+25:00"}}}`,
		`{workload: StatefulSet, proxy: {source: {servers: ["a|10.0.0.4|11211"], until: "2027-01-31T12:00:00x1Z"}}}`,
		`{workload: StatefulSet, proxy: {source: {servers: ["a|10.0.0.4|11211"], until: "2038-01-31T12:00:00Z"}}}`,
	}},
	{"spec.proxy.source.until", "must be of type date-time", []string{
		`{workload: StatefulSet, proxy: {source: {servers: ["a|10.0.0.4|11211"], until: "2027-02-30T12:00:00Z"}}}`,
	}},
	{"spec.proxy.source", "cannot be combined with --disable-cas", []string{
		`{workload: StatefulSet, extraArgs: [--disable-cas], proxy: {source: {servers: ["a|10.0.0.4|11211"],
 until: "2027-01-31T12:00:00Z"}}}`,
	}},
	{"spec.proxy.source.servers", "should have at least 1 items", []string{
		`{workload: StatefulSet, proxy: {source: {servers: [], until: "2027-01-31T12:00:00Z"}}}`,
	}},
	{"spec.proxy.source.servers[0]", "must be name|ip|port", []string{
		`{workload: StatefulSet, proxy: {source: {servers: ["10.0.0.4:11211"], until: "2027-01-31T12:00:00Z"}}}`,
		`{workload: StatefulSet, proxy: {source: {servers: ["a\"b|10.0.0.4|11211"], until: "2027-01-31T12:00:00Z"}}}`,
		`{workload: StatefulSet, proxy: {source: {servers: ["a|x|11211"], until: "2027-01-31T12:00:00Z"}}}`,
		`{workload: StatefulSet, proxy: {source: {servers: ["a|1.2.3.4.5|11211"], until: "2027-01-31T12:00:00Z"}}}`,
		`{workload: StatefulSet, proxy: {source: {servers: ["a..b|10.0.0.4|11211"], until: "2027-01-31T12:00:00Z"}}}`,
		`{workload: StatefulSet, proxy: {source: {servers: ["A|10.0.0.4|11211"], until: "2027-01-31T12:00:00Z"}}}`,
		`{workload: StatefulSet, proxy: {source: {servers: ["a|10.0.0.4|0"], until: "2027-01-31T12:00:00Z"}}}`,
		`{workload: StatefulSet, proxy: {source: {servers: ["a|10.0.0.4|65536"], until: "2027-01-31T12:00:00Z"}}}`,
		`{workload: StatefulSet, proxy: {source: {servers: ["a|10.0.0.4|11211 b|10.0.0.5|11211"],
 until: "2027-01-31T12:00:00Z"}}}`,
	}},
	{"spec.discovery", "needs spec.workload StatefulSet", []string{`{discovery: {}}`}},
	{"spec.discovery", "cannot be combined with spec.tls or spec.auth", []string{
		`{workload: StatefulSet, discovery: {}, tls: {secretName: a}}`,
		`{workload: StatefulSet, discovery: {}, auth: {secretName: a}}`,
	}},
	{"spec.discovery.removalDelaySeconds", "should be less than or equal to 600", []string{
		`{workload: StatefulSet, discovery: {removalDelaySeconds: 601}}`,
	}},
	{"spec.discovery.removalDelaySeconds", "should be greater than or equal to 0", []string{
		`{workload: StatefulSet, discovery: {removalDelaySeconds: -1}}`,
	}},
	{"spec.proxy.memory", proxyMemory, []string{
		`{workload: StatefulSet, proxy: {memory: 16Mi}}`, `{workload: StatefulSet, proxy: {memory: 79Mi}}`,
		`{workload: StatefulSet, proxy: {threads: 64}}`, `{workload: StatefulSet, proxy: {threads: 64, memory: 319Mi}}`,
	}},
	{"spec.proxy.memory", "must be at most 64Gi", []string{`{workload: StatefulSet, proxy: {memory: 65Gi}}`}},
	{"spec.proxy.memory", "must be at least 2·threads·maxItemSize", []string{
		`{workload: StatefulSet, maxItemSize: 32Mi, proxy: {}}`,
	}},
	{"spec.proxy.resources", "must not hold memory: spec.proxy.memory is its request and limit", []string{
		`{workload: StatefulSet, proxy: {resources: {limits: {memory: 1Gi}}}}`,
		`{workload: StatefulSet, proxy: {resources: {requests: {memory: 1Gi}}}}`,
	}},
	{"spec.proxy.resources.limits", quantityRule, []string{
		`{workload: StatefulSet, proxy: {resources: {limits: {cpu: -1}}}}`,
		`{workload: StatefulSet, proxy: {resources: {limits: {cpu: 1e1.5}}}}`,
	}},
	{"spec.proxy.resources.requests", quantityRule, []string{
		`{workload: StatefulSet, proxy: {resources: {requests: {cpu: -1}}}}`,
		`{workload: StatefulSet, proxy: {resources: {requests: {cpu: 1e1.5}}}}`,
	}},
	{"spec.agent.resources.limits[memory]", "must be at least 64Mi", []string{
		`{agent: {resources: {limits: {memory: 63Mi}}}}`, `{agent: {resources: {limits: {memory: 67108863}}}}`,
	}},
	{"spec.agent.resources.limits", quantityRule, []string{`{agent: {resources: {limits: {cpu: 1e1.5}}}}`}},
	{"spec.agent.resources.requests", quantityRule, []string{
		`{agent: {resources: {requests: {memory: 1e2000000000}}}}`,
	}},
	{"", `unknown field "spec.agent.image"`, []string{`{agent: {image: a}}`}},
	{"spec.proxy.memory", "must be a whole number followed by Mi or Gi", []string{
		`{workload: StatefulSet, proxy: {memory: 1G}}`,
	}},
	{"spec.containerPort", "should be greater than or equal to 1024", []string{`{containerPort: 80}`}},
	{"spec.pod.schedulerName", "must be the name of a scheduler", []string{`{pod: {schedulerName: A}}`}},
	{"spec.containerPort", "should be less than or equal to 65535", []string{`{containerPort: 70000}`}},
	{"spec.image", imageRule, []string{
		`{image: ""}`, `{image: UPPER/x}`, `{image: Memcached}`, `{image: "a b"}`, `{image: " memcached"}`,
		`{image: "memcached\n"}`, `{image: "memcached\n--evil"}`, `{image: "x:"}`, `{image: "x:-1"}`,
		`{image: "x@sha256:12"}`, `{image: "x@md5:0123"}`, `{image: "@` + digest + `"}`, `{image: -x}`, `{image: x-/y}`,
		`{image: /x}`, `{image: x//y}`, `{image: "https://example.com/x"}`,
		`{image: "x:` + strings.Repeat("a", 129) + `"}`,
	}},
	{"spec.memory", memoryRule, []string{
		`{memory: ""}`, `{memory: "64"}`, `{memory: 64M}`, `{memory: 64mi}`, `{memory: 0.5Gi}`, `{memory: 4Ti}`,
		`{memory: 0Mi}`, `{memory: 015Mi}`, `{memory: -64Mi}`, `{memory: "64Mi "}`, `{memory: "64Mi\n"}`,
	}},
	{"spec.memory", memoryBounds, []string{
		`{memory: 8Mi}`, `{memory: 15Mi}`, `{memory: 4097Gi}`, `{memory: 5000Gi}`, `{memory: 9999999999Gi}`,
	}},
	{"spec.maxItemSize", itemSizeRule, []string{
		`{maxItemSize: 1000Ki}`, `{maxItemSize: 256Ki}`, `{maxItemSize: 2Gi, memory: 16Gi}`, `{maxItemSize: 2Gi}`,
		`{maxItemSize: "1048576"}`, `{maxItemSize: 1m}`, `{maxItemSize: big}`, `{maxItemSize: ""}`,
		`{maxItemSize: "1Mi\n"}`, `{maxItemSize: 1025Mi, memory: 4Gi}`, `{maxItemSize: 9999999999Mi}`,
	}},
	{"spec.maxItemSize", halfRule, []string{
		`{maxItemSize: 33Mi}`, `{maxItemSize: 1024Mi, memory: 2047Mi}`, `{maxItemSize: 9Mi, memory: 16Mi}`,
	}},
	{"spec.maxConnections", connsRule, []string{
		`{maxConnections: 1}`, `{maxConnections: 31}`, `{maxConnections: 19, threads: 1}`,
		`{maxConnections: 44, threads: 7}`, `{maxConnections: 49, threads: 8}`, `{maxConnections: 169, threads: 32}`,
		`{maxConnections: 329, threads: 64}`,
	}},
	{"spec.maxConnections", proxyConnsRule, []string{
		`{workload: StatefulSet, proxy: {}, maxConnections: 53}`,
		`{workload: StatefulSet, proxy: {}, maxConnections: 55, threads: 5}`,
		`{workload: StatefulSet, proxy: {size: 20, threads: 64, memory: 1Gi}}`,
	}},
	{"spec.extraArgs[1]", argsRule, []string{args("--verbose", "-l")}},
	{"spec.extraArgs[0]", argsRule, each(
		"", "-l 0.0.0.0", "-vv", "-M", "--", "memcached", " --verbose", "--verbose ", "--verbose=1", "--listen=0.0.0.0",
		"--unix-socket=/tmp/s", "--unix-mask=777", "--user=root", "--port=1", "--udp-port=11211", "--memory-limit=1",
		"--conn-limit=1", "--threads=1", "--max-item-size=1m", "--enable-ssl", "--enable-sasl", "--enable-shutdown",
		"--enable-coredumps", "--auth-file=/etc/passwd", "--memory-file=/dev/shm/x", "--pidfile=/tmp/pid",
		"--protocol=binary", "--lock-memory", "--daemon", "--help", "--napi-ids=4", "--Verbose", "--slab-growth-factor",
		"--slab-growth-factor=", "--slab-growth-factor=1", "--slab-growth-factor=1.00", "--slab-growth-factor=0.9",
		"--slab-growth-factor=1e9", "--slab-min-size=0", "--max-reqs-per-event=0", "--max-reqs-per-event=-1",
		"--max-reqs-per-event=20.5", "--listen-backlog=4294967297",
		// getopt_long accepts every unambiguous prefix of an option.
		"--verb", "--ext=modern", "--li=0.0.0.0",
		"--verbose\n-l", "--verbose\n", "-l\n--verbose", "\n--verbose", "--verbose\r", "--listen=x\n--extended=modern",
		"--extended",
	)},
	{"spec.extraArgs[", argsRule, []string{args("-o", "modern")}},
	{"spec.extraArgs[0]", extendedRule, each(
		"--extended=modern\n", "--extended=modern\next_path=/x:1G", "--extended=", "--extended=,",
		"--extended=modern,,track_sizes", "--extended=modern track_sizes", "--extended=ssl_ca_cert=/x",
		"--extended=ext_path=/x:1G", "--extended=modern,ext_path=/x:1G", "--extended=idle_timeout=1=2",
		"--extended=idle_timeout=5,ext_path=/x:1G", "--extended=proxy_config=/x.lua", "--extended=hashpower=32",
		"--extended=no_drop_privileges", "--extended=slab_chunk_max=1", "--extended=MODERN", "--extended=idle_timeout",
		"--extended=hash_algorithm=md5", "--extended=slab_automove=3", "--extended=slab_automove_ratio=0",
		"--extended=slab_automove_ratio=1.5", "--extended=slab_automove_window=2",
		"--extended=slab_automove_window=1801", "--extended=tail_repair_time=9", "--extended=lru_crawler_sleep=1000001",
		"--extended=lru_crawler_tocrawl=1.5", "--extended=hot_lru_pct=0", "--extended=hot_max_factor=0",
		"--extended=warm_max_factor=0.0", "--extended=worker_logbuf_size=64",
	)},
	{"spec.extraArgs[0]", growthRule, each(
		"--slab-growth-factor=1.00000000000000001", "--slab-growth-factor=1.0000000000000001",
	)},
	{"spec.extraArgs", lruRule, []string{
		args("--extended=hot_lru_pct=41"), args("--extended=warm_lru_pct=61"),
		args("--extended=hot_lru_pct=50,warm_lru_pct=31"),
		args("--extended=warm_lru_pct=31", "--verbose", "--extended=hot_lru_pct=50"),
		args("--extended=hot_lru_pct=20,hot_lru_pct=41"), args("--extended=hot_lru_pct=20", "--extended=hot_lru_pct=41"),
	}},
	{"spec.extraArgs", ttlRule, []string{
		args("--extended=temporary_ttl=61,no_lru_maintainer"), args("--extended=no_lru_maintainer,temporary_ttl=0"),
		args("--extended=no_lru_maintainer", "--extended=temporary_ttl=61"),
		args("--extended=lru_maintainer,no_lru_maintainer,temporary_ttl=61"),
		args("--extended=temporary_ttl=61,no_modern,maxconns_fast"),
	}},
	{"spec.maxItemSize", chunkRule, []string{
		`{maxItemSize: 512Ki, extraArgs: [--extended=no_chunked_items]}`,
		`{maxItemSize: 512Ki, extraArgs: ["--extended=no_modern,maxconns_fast"]}`,
	}},
	{"spec.extraArgs", fullRule, []string{
		args("--extended=no_maxconns_fast"), args("--extended=maxconns_fast,no_maxconns_fast"),
		args("--extended=maxconns_fast", "--verbose", "--extended=no_maxconns_fast"),
		args("--extended=maxconns_fast,no_modern"),
	}},
	{"spec.pod.labels", ownLabels, []string{
		`{pod: {labels: {pod-template-hash: x}}}`, `{pod: {labels: {controller-revision-hash: x}}}`,
		`{pod: {labels: {pod-template-generation: "1"}}}`, `{pod: {labels: {statefulset.kubernetes.io/pod-name: x}}}`,
		`{pod: {labels: {apps.kubernetes.io/pod-index: "0"}}}`,
	}},
	{"spec.pod.annotations", "must not use the prefix cache.example.com/", []string{
		`{pod: {annotations: {cache.example.com/restartedAt: x}}}`,
	}},
	{"spec.pod.imagePullSecrets[0]", "must have a name", []string{`{pod: {imagePullSecrets: [{}]}}`}},
	{"spec.pod.securityContext.runAsUser", userRule, []string{
		security(`runAsUser: 0`),
	}},
	{"spec.pod.annotations", sizeRule, []string{`{pod: {annotations: {a: ` + strings.Repeat("x", 261120) + `}}}`}},
	{"", `unknown field "spec.pod.resources.claims"`, []string{`{pod: {resources: {claims: [{name: gpu}]}}}`}},
	{"spec.pod.resources.limits[memory]", memoryLimit, []string{
		limits(`memory: 64Mi`), limits(`memory: "1"`), limits(`memory: 127Mi`), limits(`memory: 134217727`),
		limits(`memory: 134M`), `{threads: 64, memory: 1Gi, pod: {resources: {limits: {memory: 1327Mi}}}}`,
	}},
	{"spec.pod.resources.limits", quantityRule, []string{
		limits(`cpu: -1`), limits(`cpu: "-1"`), limits(`cpu: 1e1.5`), limits(`cpu: 1E.5`), limits(`cpu: 1e2000000000`),
		limits(`memory: 1e2000000000`), limits(`cpu: "` + strings.Repeat("9", 100000) + `"`),
	}},
	{"spec.pod.resources.requests", quantityRule, []string{`{pod: {resources: {requests: {memory: -1Mi}}}}`}},
	{"spec.pod.resources.", quantityRule, []string{
		`{pod: {resources: {limits: {memory: 1e2000000000}, requests: {memory: 1e2000000000}}}}`,
	}},
	{"spec.rollout.progressDeadlineSeconds", "must be greater than spec.rollout.minReadySeconds", []string{
		`{rollout: {minReadySeconds: 600}}`, `{rollout: {minReadySeconds: 10, progressDeadlineSeconds: 10}}`,
		`{rollout: {progressDeadlineSeconds: 5, minReadySeconds: 9}}`,
	}},
	{"spec.rollout.warmUp", "needs spec.workload StatefulSet", []string{`{metrics: {}, rollout: {warmUp: {}}}`}},
	{"spec.disruptionBudget.minAvailable", availableRule, []string{
		`{disruptionBudget: {minAvailable: -1}}`, `{disruptionBudget: {minAvailable: 1001}}`,
		`{disruptionBudget: {minAvailable: 101%}}`, `{disruptionBudget: {minAvailable: half}}`,
	}},
	{"spec.disruptionBudget.policy", "None cannot be combined with", []string{
		`{disruptionBudget: {policy: None, maxUnavailable: 0}}`, `{disruptionBudget: {policy: None, minAvailable: 1}}`,
	}},
	{"spec.service.type", "must be ClusterIP without spec.proxy or", []string{
		`{service: {type: LoadBalancer}}`, `{workload: StatefulSet, service: {type: NodePort}}`,
	}},
	{"spec.pod.labels", reservedLabels, []string{
		`{pod: {labels: {app.kubernetes.io/name: x}}}`, `{pod: {labels: {cache.example.com/name: x}}}`,
	}},
	{"spec.service.labels", reservedLabels, []string{
		`{service: {labels: {app.kubernetes.io/name: a}}}`, `{service: {labels: {cache.example.com/component: a}}}`,
	}},
	{"spec.labels", reservedLabels, []string{
		`{labels: {app.kubernetes.io/instance: a}}`, `{labels: {cache.example.com/name: a}}`,
	}},
	{"spec.annotations", "must not use the prefix cache.example.com/", []string{
		`{annotations: {cache.example.com/template-record: a}}`,
	}},
	{"spec.annotations", sizeRule, []string{`{annotations: {a: ` + strings.Repeat("x", 261120) + `}}`}},
	{"spec.annotations", "must not use the prefix deployment.kubernetes.io/", []string{
		`{annotations: {deployment.kubernetes.io/revision: "1"}}`,
	}},
	{"spec.service.annotations", "must not use the prefix cache.example.com/", []string{
		`{service: {annotations: {cache.example.com/a: b}}}`,
	}},
	{"spec.service.annotations", sizeRule, []string{
		`{service: {annotations: {a: ` + strings.Repeat("x", 261120) + `}}}`,
	}},
	{"spec.service.trafficDistribution", "needs spec.proxy", []string{
		`{service: {trafficDistribution: PreferClose}}`, `{service: {trafficDistribution: PreferSameNode}}`,
	}},
	{"spec.pod.containerSecurityContext.runAsUser", userRule, []string{
		`{pod: {containerSecurityContext: {runAsUser: 0}}}`,
	}},
}

// each returns a spec for each argument.
func each(arguments ...string) (all []string) {
	for _, argument := range arguments {
		all = append(all, args(argument))
	}
	return all
}

func TestRefused(t *testing.T) {
	for _, tt := range refused {
		for _, spec := range tt.specs {
			t.Run(subtestName(spec), func(t *testing.T) {
				mustRefuse(t, document(spec), tt.field, tt.message)
			})
		}
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

func TestAcceptedNames(t *testing.T) {
	for _, metadata := range []string{"name: a", "name: " + strings.Repeat("a", 52), "name: a-1-b", "generateName: a-"} {
		document := "apiVersion: cache.example.com/v1alpha1\nkind: Memcached\nmetadata: {" + metadata + "}\n"
		if _, err := dryRun(t.Context(), document); err != nil {
			t.Errorf("%s: %v", metadata, err)
		}
	}
}

// subtestName returns a short name for a subtest.
func subtestName(spec string) string {
	return strings.ReplaceAll(spec[:min(len(spec), 70)], "/", "|")
}
