package truth

import (
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// at makes an event out of a manifest, seen so many milliseconds after the start, with edits of the form old=>new.
func at(t *testing.T, ms int, manifest string, edits ...string) Event {
	t.Helper()
	deleted := false
	for _, edit := range edits {
		if edit == "DELETED" {
			deleted = true
			continue
		}
		from, to, _ := strings.Cut(edit, "=>")
		if !strings.Contains(manifest, from) {
			t.Fatalf("%q is not in the manifest", from)
		}
		manifest = strings.Replace(manifest, from, to, 1)
	}
	u := &unstructured.Unstructured{}
	json, err := yaml.YAMLToJSON([]byte(manifest))
	if err != nil {
		t.Fatal(err)
	}
	if err := u.UnmarshalJSON(json); err != nil {
		t.Fatal(err)
	}
	return Event{Seen: start.Add(time.Duration(ms) * time.Millisecond), Deleted: deleted, Object: u}
}

const (
	deployment = `
kind: Deployment
metadata: {namespace: ns, name: c, uid: d, resourceVersion: "10", generation: 1,
  ownerReferences: [{kind: Memcached, name: c, uid: m, controller: true}]}
spec: {replicas: 2, template: {spec: {containers: [{image: "memcached:1",
  args: [-p, "11211", -m, "64", -c, "1024", -t, "4", -I, 1024k, --verbose]}]}}}
status: {observedGeneration: 1, replicas: 2, updatedReplicas: 2, readyReplicas: 2, availableReplicas: 2}`
	memcached = `
kind: Memcached
metadata: {namespace: ns, name: c, uid: m, resourceVersion: "20", generation: 1}
spec: {size: 2, image: "memcached:1", containerPort: 11211, memory: 64Mi,
  maxConnections: 1024, threads: 4, extraArgs: [--verbose]}
status: {observedGeneration: 1, conditions: [{type: Ready, status: "True", observedGeneration: 1}]}`

	second   = `generation: 1}=>generation: 2}` // of the Memcached: a spec that no operator has seen
	notReady = `status: "True"=>status: "False"`
	v30      = `"20"=>"30"`
	v40      = `"20"=>"40"`
	stalled  = `status: "True", observedGeneration: 1}]=>status: "False"}, ` +
		`{type: Stalled, status: "True", reason: ProgressDeadlineExceeded}]`
	conflict = `ProgressDeadlineExceeded=>Conflict`
	refused  = `ProgressDeadlineExceeded=>Invalid`
	degraded = `, observedGeneration: 1}]=>}, {type: Degraded, status: "True"}]`
	lost     = `readyReplicas: 2=>readyReplicas: 1`

	service = `
kind: Service
metadata: {namespace: ns, name: c, uid: s, resourceVersion: "10", labels: {app: foreign}}`
	controlled = `labels: {app: foreign}=>ownerReferences: [{kind: Memcached, name: c, uid: m, controller: true}]`
	orphan     = `app: foreign=>app.kubernetes.io/managed-by: memcached-operator, app.kubernetes.io/instance: c`
	pod        = `
kind: Pod
metadata: {namespace: ns, name: c-1, uid: p, resourceVersion: "21", labels: {app.kubernetes.io/instance: c}}
status: {conditions: [{type: Ready, status: "True"}]}`
	policy = `
kind: ValidatingAdmissionPolicyBinding
metadata: {name: strict, uid: v, resourceVersion: "21"}`

	// Of a Memcached whose servers a StatefulSet runs, and of one that has a proxy too.
	statefulSet  = `kind: Deployment=>kind: StatefulSet`
	inSet        = `size: 2, =>size: 2, workload: StatefulSet, `
	listed       = `observedGeneration: 1, =>observedGeneration: 1, servers: ["c-0:11211", "c-1:11211"], `
	withProxy    = `size: 2, =>size: 2, workload: StatefulSet, proxy: {size: 2, threads: 3}, `
	oneAddress   = `observedGeneration: 1, =>observedGeneration: 1, servers: ["c-proxy:11211"], `
	proxy        = `name: c, uid: d=>name: c-proxy, uid: e`
	proxyThreads = `-t, "4"=>-t, "3"`
	secret       = `
kind: Secret
metadata: {namespace: ns, name: passwords, uid: x, resourceVersion: "21"}`
	asks = `size: 2, =>size: 2, auth: {secretName: passwords}, `
	// An agent has connections of its own.
	withAgent = `{containers: =>{initContainers: [{name: agent}], containers: `
	twoMore   = `"1024"=>"1026"`

	// Fields that another manager wrote, of an object and of its status.
	byOthers       = `name: c=>name: c, managedFields: [{manager: kubectl, operation: Update, time: 2026-01-01T00:00:00Z}]`
	statusByOthers = `name: c=>name: c, managedFields: ` +
		`[{manager: velero, operation: Update, subresource: status, time: 2026-01-01T00:00:00Z}]`
)

func TestJudge(t *testing.T) {
	for name, c := range map[string]struct {
		events []Event
		lie    string // what it must contain; empty: none
	}{
		"ready with its workload": {[]Event{at(t, 0, deployment), at(t, 1, memcached)}, ""},
		"order is that of the resource versions": {[]Event{
			at(t, 0, memcached), at(t, 9, deployment)}, ""},
		"before any operator": {[]Event{
			at(t, 0, memcached, "observedGeneration: 1, =>observedGeneration: -1, ", "True=>Unknown",
				", observedGeneration: 1}=>}")}, ""},
		"a new spec that nobody has seen": {[]Event{
			at(t, 0, deployment), at(t, 1, memcached), at(t, 2, memcached, v30, second)}, ""},
		"nothing but a generation": {[]Event{
			at(t, 0, memcached, `conditions: [{type: Ready, status: "True", observedGeneration: 1}]=>conditions: []`)},
			"no Deployment"},
		"no workload": {[]Event{at(t, 1, memcached)}, "no Deployment"},
		"its workload was deleted": {[]Event{
			at(t, 0, deployment), at(t, 1, deployment, `"10"=>"11"`, "DELETED"), at(t, 2, memcached)}, "no Deployment"},
		"its workload is being deleted": {[]Event{
			at(t, 0, deployment, "name: c=>name: c, deletionTimestamp: 2026-01-01T00:00:00Z"), at(t, 1,
				memcached)}, "is being deleted"},
		"the workload of another": {[]Event{at(t, 0, deployment, "uid: m=>uid: x"), at(t, 1, memcached)}, "not its own"},
		"a rollout that has not begun": {[]Event{
			at(t, 0, deployment), at(t, 1, memcached), at(t, 2, memcached, v30, second),
			at(t, 3, deployment, `"10"=>"31"`, "generation: 1=>generation: 2"),
			at(t, 4, memcached, v40, second, "observedGeneration: 1=>observedGeneration: 2")}, "not observed"},
		"a condition that runs ahead of its status": {[]Event{
			at(t, 1, memcached, second, "observedGeneration: 1}]=>observedGeneration: 2}]")}, "no Deployment"},
		"A, B, and A again while B rolls": {[]Event{
			at(t, 0, deployment, "updatedReplicas: 2=>updatedReplicas: 1", "observedGeneration: 1=>observedGeneration: 3",
				"generation: 1=>generation: 3"),
			at(t, 1, memcached, "generation: 1=>generation: 3",
				"observedGeneration: 1=>observedGeneration: 3")}, "1 of 2 servers are updated"},
		"one server too few": {[]Event{at(t, 0, deployment, "availableReplicas: 2=>availableReplicas: 1"),
			at(t, 1, memcached)}, "1 of 2 servers are available"},
		"another size": {[]Event{at(t, 0, deployment), at(t, 1, memcached, "size: 2=>size: 3")},
			"asks for 2 servers, not 3"},
		"another image": {[]Event{at(t, 0, deployment), at(t, 1, memcached, "memcached:1=>memcached:2")},
			"run memcached:1, not memcached:2"},
		"another memory": {[]Event{at(t, 0, deployment), at(t, 1, memcached, "64Mi=>1Gi")}, "-m 1024"},
		"another option": {[]Event{at(t, 0, deployment), at(t, 1, memcached, "--verbose=>--disable-cas")},
			"--disable-cas"},
		"a loss that is told in time": {[]Event{
			at(t, 0, deployment), at(t, 1, memcached), at(t, 2, deployment, `"10"=>"21"`, lost), at(t, 900, memcached, v30,
				notReady)}, ""},
		"a loss that is told too late": {[]Event{
			at(t, 0, deployment), at(t, 1, memcached), at(t, 2, deployment, `"10"=>"21"`, lost), at(t, 1100, memcached, v30,
				notReady)}, "stayed Ready for 1.1 s"},
		"a loss that is never told": {[]Event{
			at(t, 0, deployment), at(t, 1, memcached), at(t, 2, deployment, `"10"=>"21"`, lost)}, "stayed Ready for 10.0 s"},
		"a loss that is denied": {[]Event{
			at(t, 0, deployment), at(t, 1, memcached), at(t, 2, deployment, `"10"=>"21"`, lost), at(t, 500, memcached, v30,
				"name: c=>name: c, labels: {a: b}")}, "stayed Ready"},
		"a loss that is over": {[]Event{
			at(t, 0, deployment), at(t, 1, memcached), at(t, 2, deployment, `"10"=>"21"`, lost), at(t, 500, deployment,
				`"10"=>"22"`)}, ""},
		"Ready anew within a second of a loss": {[]Event{
			at(t, 0, deployment), at(t, 1, memcached, notReady), at(t, 2, deployment, `"10"=>"21"`, lost), at(t, 3, memcached,
				v30), at(t, 4, memcached, v40, notReady)}, ""},
		"Ready anew long after a loss": {[]Event{
			at(t, 0, deployment), at(t, 1, memcached, notReady), at(t, 2, deployment, `"10"=>"21"`, lost), at(t, 1100, memcached,
				v30), at(t, 1101, memcached, v40, notReady)}, "stayed Ready for 1.1 s"},
		"degraded while it is installed": {[]Event{
			at(t, 0, memcached, "observedGeneration: 1, =>observedGeneration: -1, ", "True=>Unknown",
				", observedGeneration: 1}=>}"),
			at(t, 1, memcached, v30, notReady, degraded)}, "is Degraded while"},
		"degraded after it was ready": {[]Event{at(t, 0, deployment), at(t, 1, memcached),
			at(t, 2, memcached, v30, notReady, degraded)}, ""},
		"reconciling and stalled": {[]Event{at(t, 1, memcached, notReady,
			`, observedGeneration: 1}]=>}, {type: Reconciling, status: "True"}, {type: Stalled, status: "True"}]`)}, "at once"},
		"stalled for good": {[]Event{at(t, 0, memcached, stalled)}, ""},
		"stalled no more because a server became ready": {[]Event{
			at(t, 0, memcached, stalled), at(t, 1, pod), at(t, 2, memcached, v30, notReady)}, ""},
		"stalled no more although a server is only there": {[]Event{
			at(t, 0, memcached, stalled), at(t, 1, pod, "True=>False"), at(t, 2, memcached, v30,
				notReady)}, "stopped to be Stalled with reason Progress"},
		"stalled no more although the server was ready long ago": {[]Event{
			at(t, 0, pod, `"21"=>"19"`), at(t, 1100, memcached, stalled), at(t, 1101, pod), at(t, 1102, memcached, v30,
				notReady)}, "stopped to be Stalled"},
		"stalled no more because a server became ready just before": {[]Event{
			at(t, 0, pod, `"21"=>"19"`), at(t, 900, memcached, stalled), at(t, 901, memcached, v30, notReady)}, ""},
		"stalled no more because the workload has more servers": {[]Event{
			at(t, 0, deployment, lost), at(t, 1100, memcached, stalled), at(t, 1101, deployment, `"10"=>"21"`), at(t, 1102,
				memcached, v30, notReady)}, ""},
		"stalled no more because a server became available": {[]Event{
			at(t, 0, deployment, "availableReplicas: 2=>availableReplicas: 1"), at(t, 1100, memcached, stalled),
			at(t, 1101, deployment, `"10"=>"21"`), at(t, 1102, memcached, v30, notReady)}, ""},
		"stalled no more because a server is ready again": {[]Event{
			at(t, 0, pod, `"21"=>"18"`), at(t, 1, pod, `"21"=>"19"`, "DELETED"), at(t, 1100, memcached, stalled),
			at(t, 1101, pod), at(t, 1102, memcached, v30, notReady)}, ""},
		"stalled no more in a second generation that stalled": {[]Event{
			at(t, 0, memcached, stalled), at(t, 1, memcached, v30, stalled, second,
				"observedGeneration: 1=>observedGeneration: 2"),
			at(t, 2, memcached, v40, second, "observedGeneration: 1=>observedGeneration: 2",
				notReady)}, "stopped to be Stalled"},
		"stalled no more because the workload progressed": {[]Event{
			at(t, 0, deployment, lost), at(t, 1100, memcached, stalled),
			at(t, 1101, deployment, `"10"=>"21"`, lost,
				`availableReplicas: 2=>availableReplicas: 2, `+
					`conditions: [{type: Progressing, status: "True", lastUpdateTime: 2026-01-01T00:00:00Z}]`),
			at(t, 1102, memcached, v30, notReady)}, ""},
		"stalled no more because the workload stalled": {[]Event{
			at(t, 0, deployment, lost), at(t, 1100, memcached, stalled),
			at(t, 1101, deployment, `"10"=>"21"`, lost,
				`availableReplicas: 2=>availableReplicas: 2, `+
					`conditions: [{type: Progressing, status: "False", lastUpdateTime: 2026-01-01T00:00:00Z}]`),
			at(t, 1102, memcached, v30, notReady)}, "stopped to be Stalled"},
		"stalled no more because of another spec": {[]Event{
			at(t, 0, memcached, stalled), at(t, 1, memcached, v30, "generation: 1}=>generation: 2}", notReady)}, ""},
		"stalled no more because of an annotation": {[]Event{
			at(t, 0, memcached, stalled), at(t, 1, memcached, v30, notReady,
				"name: c=>name: c, annotations: {cache.example.com/restartedAt: now}")}, ""},
		"stalled no more because it is deleted": {[]Event{
			at(t, 0, memcached, stalled), at(t, 1, memcached, v30, notReady,
				"name: c=>name: c, deletionTimestamp: 2026-01-01T00:00:00Z")}, ""},
		"stalled until it is gone": {[]Event{at(t, 0, memcached, stalled), at(t, 1, memcached, stalled, v30, "DELETED")}, ""},
		"stalled no more in a successor": {[]Event{
			at(t, 0, memcached, stalled), at(t, 1, memcached, v30, notReady, "uid: m=>uid: other")}, ""},
		"stalled for one reason, then another, then none": {[]Event{
			at(t, 0, service), at(t, 1, memcached, stalled, conflict), at(t, 2, service, `"10"=>"21"`, "DELETED"),
			at(t, 3, memcached, stalled, refused, v30), at(t, 4, memcached, v40, notReady)}, "reason Invalid"},
		"refused no more because a server is ready": {[]Event{
			at(t, 0, memcached, stalled, refused), at(t, 1, pod), at(t, 2, memcached, v30, notReady)}, "reason Invalid"},
		"refused no more because the policy is gone": {[]Event{
			at(t, 0, memcached, stalled, refused), at(t, 1, policy, "DELETED"), at(t, 2, memcached, v30, notReady)}, ""},
		"refused no more because somebody changed the workload": {[]Event{
			at(t, 0, deployment), at(t, 1, memcached, stalled, refused), at(t, 2, deployment, `"10"=>"21"`, byOthers), at(t, 3,
				memcached, v30, notReady)}, ""},
		"refused no more because the operator changed the workload": {[]Event{
			at(t, 0, deployment), at(t, 1, memcached, stalled, refused), at(t, 2, deployment, `"10"=>"21"`, byOthers,
				"kubectl=>memcached-operator"),
			at(t, 3, memcached, v30, notReady)}, "reason Invalid"},
		"refused no more because the status of the workload changed": {[]Event{
			at(t, 0, deployment), at(t, 1, memcached, stalled, refused), at(t, 2, deployment, `"10"=>"21"`,
				statusByOthers), at(t, 3, memcached, v30, notReady)}, "reason Invalid"},
		"refused no more because the workload was replaced before": {[]Event{
			at(t, 0, deployment), at(t, 1, deployment, `"10"=>"11"`, "DELETED"), at(t, 2, memcached, stalled, refused),
			at(t, 3, memcached, v30, notReady)}, "reason Invalid"},
		"refused no more because the workload is gone": {[]Event{
			at(t, 0, deployment), at(t, 1, memcached, stalled, refused), at(t, 2, deployment, `"10"=>"21"`, "DELETED"), at(t, 3,
				memcached, v30, notReady)}, ""},
		"conflict": {[]Event{at(t, 0, service), at(t, 1, memcached, stalled, conflict)}, ""},
		"conflict with nothing": {[]Event{at(t, 0, memcached, stalled, conflict)},
			"reason Conflict, although nobody else"},
		"conflict with its own child": {[]Event{at(t, 0, service, controlled), at(t, 1, memcached, stalled, conflict)},
			"although nobody else"},
		"conflict with an orphan": {[]Event{at(t, 0, service, orphan), at(t, 1, memcached, stalled, conflict)},
			"although nobody else"},
		"conflict with a predecessor's": {[]Event{at(t, 0, service, controlled, "uid: m=>uid: l"),
			at(t, 1, memcached, stalled, conflict)}, "although nobody else"},
		"conflict with another's": {[]Event{at(t, 0, service, controlled, "kind: Memcached=>kind: Other"),
			at(t, 1, memcached, stalled, conflict)}, ""},
		"conflict with what just went": {[]Event{at(t, 0, service), at(t, 1, service, `"10"=>"11"`, "DELETED"),
			at(t, 900, memcached, stalled, conflict)}, ""},
		"conflict with what went before": {[]Event{at(t, 0, service), at(t, 1, service, `"10"=>"11"`, "DELETED"),
			at(t, 1100, memcached, stalled, conflict)}, "although nobody else"},
		"conflict over": {[]Event{at(t, 0, service), at(t, 1, memcached, stalled, conflict),
			at(t, 2, service, `"10"=>"21"`, "DELETED"),
			at(t, 60000, memcached, v30, notReady)}, ""},
		"conflict over, and nothing went": {[]Event{
			at(t, 0, service), at(t, 1, memcached, stalled, conflict), at(t, 60000, memcached, v30,
				notReady)}, "reason Conflict"},
		"conflict over, and a server became ready": {[]Event{
			at(t, 0, service), at(t, 1, memcached, stalled, conflict), at(t, 2, pod), at(t, 3, memcached, v30,
				notReady)}, "reason Conflict"},
		"conflict with the child of a Memcached of another name": {[]Event{
			at(t, 0, service, controlled, "Memcached, name: c=>Memcached, name: d"), at(t, 1, memcached, stalled,
				conflict)}, ""},
		"conflict with an orphan of another operator": {[]Event{
			at(t, 0, service, orphan, "managed-by: memcached-operator=>managed-by: other"), at(t, 1, memcached, stalled,
				conflict)}, ""},
		"conflict with an orphan of another Memcached": {[]Event{
			at(t, 0, service, orphan, "instance: c=>instance: d"), at(t, 1, memcached, stalled, conflict)}, ""},
		"stalled until somebody else writes": {[]Event{
			at(t, 0, memcached, stalled), at(t, 1, memcached, v30, notReady, statusByOthers)}, ""},
		"all conditions by somebody else": {[]Event{at(t, 0, memcached, notReady, statusByOthers,
			`, observedGeneration: 1}]=>}, {type: Reconciling, status: "True"}, {type: Stalled, status: "True"}]`)}, ""},
		"stalled by somebody else": {[]Event{
			at(t, 0, memcached, stalled, conflict, statusByOthers), at(t, 1, memcached, v30, notReady, statusByOthers)}, ""},
		"ready by somebody else": {[]Event{at(t, 0, memcached, statusByOthers)}, ""},
		"ready by the operator after others": {[]Event{at(t, 0, memcached, notReady, statusByOthers),
			at(t, 1, memcached, v30, statusByOthers)}, "no Deployment"},
		"a generation of a predecessor": {[]Event{at(t, 0, memcached, notReady,
			"observedGeneration: 1, =>observedGeneration: 2, ")}, "has the status of another"},
		"the end of a predecessor": {[]Event{at(t, 0, memcached, notReady,
			"observedGeneration: 1, =>observedGeneration: 1, phase: Deleting, ")}, "has the status of another"},
		"its own end": {[]Event{at(t, 0, memcached, notReady,
			"observedGeneration: 1, =>observedGeneration: 1, phase: Deleting, ",
			"name: c=>name: c, deletionTimestamp: 2026-01-01T00:00:00Z")}, ""},
		"a condition of a predecessor": {[]Event{at(t, 0, memcached, notReady,
			"name: c=>name: c, creationTimestamp: 2026-01-01T00:00:01Z",
			"type: Ready=>type: Ready, lastTransitionTime: 2026-01-01T00:00:00Z")}, "Ready is of 00:00:00, before its creation"},
		"a condition of its first second": {[]Event{at(t, 0, memcached, notReady,
			"name: c=>name: c, creationTimestamp: 2026-01-01T00:00:00Z",
			"type: Ready=>type: Ready, lastTransitionTime: 2026-01-01T00:00:00Z")}, ""},
		"a condition of the CRD's defaults": {[]Event{at(t, 0, memcached, notReady,
			"name: c=>name: c, creationTimestamp: 2026-01-01T00:00:00Z",
			"type: Ready=>type: Ready, lastTransitionTime: 1970-01-01T00:00:00Z")}, ""},
		"a condition of a backup": {[]Event{
			at(t, 0, memcached, notReady, statusByOthers, "name: c=>name: c, creationTimestamp: 2026-01-01T00:00:00Z",
				"type: Ready=>type: Ready, lastTransitionTime: 2025-01-01T00:00:00Z"),
			at(t, 1, memcached, v30, notReady, statusByOthers, "name: c=>name: c, creationTimestamp: 2026-01-01T00:00:00Z",
				"type: Ready=>type: Ready, message: restored, lastTransitionTime: 2025-01-01T00:00:00Z")}, ""},
		"a StatefulSet": {[]Event{
			at(t, 0, deployment, statefulSet), at(t, 1, memcached, inSet, listed)}, ""},
		"a Deployment beside the StatefulSet": {[]Event{
			at(t, 0, deployment, statefulSet), at(t, 1, memcached, inSet, listed),
			at(t, 2, deployment, `"10"=>"21"`, lost)}, ""},
		"a Deployment in place of a StatefulSet": {[]Event{
			at(t, 0, deployment), at(t, 1, memcached, inSet, listed)}, "no StatefulSet"},
		"a StatefulSet in place of a Deployment": {[]Event{
			at(t, 0, deployment, statefulSet), at(t, 1, memcached)}, "no Deployment"},
		"a StatefulSet that is not all updated": {[]Event{
			at(t, 0, deployment, statefulSet, "updatedReplicas: 2=>updatedReplicas: 1"), at(t, 1, memcached, inSet,
				listed)}, "1 of 2 servers are updated"},
		"a StatefulSet that is not observed": {[]Event{
			at(t, 0, deployment, statefulSet, "generation: 1,=>generation: 2,"), at(t, 1, memcached, inSet,
				listed)}, "generation 2 of the StatefulSet is not observed"},
		"a loss of a StatefulSet that is told too late": {[]Event{
			at(t, 0, deployment, statefulSet), at(t, 1, memcached, inSet, listed),
			at(t, 2, deployment, statefulSet, `"10"=>"21"`, lost), at(t, 1100, memcached, v30, inSet, listed,
				notReady)}, "stayed Ready for 1.1 s"},
		"a StatefulSet with an address too few": {[]Event{
			at(t, 0, deployment, statefulSet), at(t, 1, memcached, inSet, listed, `, "c-1:11211"=>`)}, "lists 1 addresses"},
		"a proxy": {[]Event{
			at(t, 0, deployment, statefulSet), at(t, 0, deployment, proxy, proxyThreads), at(t, 1, memcached, withProxy,
				oneAddress)}, ""},
		"a proxy that nobody asks for": {[]Event{
			at(t, 0, deployment, statefulSet), at(t, 0, deployment, proxy, lost), at(t, 1, memcached, inSet, listed)}, ""},
		"no proxy": {[]Event{
			at(t, 0, deployment, statefulSet), at(t, 1, memcached, withProxy, oneAddress)}, "no proxy"},
		"a proxy too few": {[]Event{
			at(t, 0, deployment, statefulSet), at(t, 0, deployment, proxy, proxyThreads, lost), at(t, 1, memcached, withProxy,
				oneAddress)}, "1 of 2 proxies are ready"},
		"proxies of another size": {[]Event{
			at(t, 0, deployment, statefulSet), at(t, 0, deployment, proxy, proxyThreads, "replicas: 2=>replicas: 1"),
			at(t, 1, memcached, withProxy, oneAddress)}, "the proxy asks for 1 proxies, not 2"},
		"proxies with other options": {[]Event{
			at(t, 0, deployment, statefulSet), at(t, 0, deployment, proxy), at(t, 1, memcached, withProxy,
				oneAddress)}, "the proxies run with"},
		"proxies of another image": {[]Event{
			at(t, 0, deployment, statefulSet), at(t, 0, deployment, proxy, proxyThreads, "memcached:1=>memcached:2"),
			at(t, 1, memcached, withProxy, oneAddress)}, "the proxies run memcached:2, not memcached:1"},
		"proxies of which only the servers are listed": {[]Event{
			at(t, 0, deployment, statefulSet), at(t, 0, deployment, proxy, proxyThreads), at(t, 1, memcached, withProxy,
				listed)}, "lists 2 addresses"},
		"proxies of another": {[]Event{
			at(t, 0, deployment, statefulSet), at(t, 0, deployment, proxy, proxyThreads, "uid: m=>uid: x"),
			at(t, 1, memcached, withProxy, oneAddress)}, "the proxy is not its own"},
		"a loss of a proxy that is told in time": {[]Event{
			at(t, 0, deployment, statefulSet), at(t, 0, deployment, proxy, proxyThreads), at(t, 1, memcached, withProxy,
				oneAddress), at(t, 2, deployment, proxy, proxyThreads, `"10"=>"21"`, lost),
			at(t, 900, memcached, v30, withProxy, oneAddress, notReady)}, ""},
		"a loss of a proxy that is never told": {[]Event{
			at(t, 0, deployment, statefulSet), at(t, 0, deployment, proxy, proxyThreads), at(t, 1, memcached, withProxy,
				oneAddress), at(t, 2, deployment, proxy, proxyThreads, `"10"=>"21"`, lost)}, "stayed Ready for 10.0 s"},
		"Ready anew within a second of the loss of a proxy": {[]Event{
			at(t, 0, deployment, statefulSet), at(t, 0, deployment, proxy, proxyThreads), at(t, 1, memcached, withProxy,
				oneAddress, notReady), at(t, 2, deployment, proxy, proxyThreads, `"10"=>"21"`, lost),
			at(t, 3, memcached, v30, withProxy, oneAddress), at(t, 4, memcached, v40, withProxy, oneAddress, notReady)}, ""},
		"Ready anew long after the loss of a proxy": {[]Event{
			at(t, 0, deployment, statefulSet), at(t, 0, deployment, proxy, proxyThreads), at(t, 1, memcached, withProxy,
				oneAddress, notReady), at(t, 2, deployment, proxy, proxyThreads, `"10"=>"21"`, lost),
			at(t, 1100, memcached, v30, withProxy, oneAddress), at(t, 1101, memcached, v40, withProxy, oneAddress,
				notReady)}, "stayed Ready for 1.1 s"},
		"servers that speak no TLS": {[]Event{
			at(t, 0, deployment, withAgent, twoMore), at(t, 1, memcached,
				"size: 2, =>size: 2, tls: {secretName: certificate}, ")}, "speak TLS is false"},
		"servers that speak TLS": {[]Event{
			at(t, 0, deployment, "--verbose=>--verbose, --enable-ssl"), at(t, 1, memcached)}, "speak TLS is true"},
		"servers that ask for no password": {[]Event{
			at(t, 0, deployment, withAgent, twoMore), at(t, 1, memcached, asks)}, "ask for passwords is false"},
		"servers that ask for a password": {[]Event{
			at(t, 0, deployment, withAgent, twoMore, "--verbose=>--verbose, --auth-file=/passwords"), at(t, 1, memcached,
				asks)}, ""},
		"servers without metrics": {[]Event{
			at(t, 0, deployment, twoMore), at(t, 1, memcached, "size: 2, =>size: 2, metrics: {port: 9150}, ")},
			"have an agent is false"},
		"an agent that nobody needs": {[]Event{
			at(t, 0, deployment, withAgent), at(t, 1, memcached)}, "have an agent is true"},
		"an agent that takes connections of clients": {[]Event{
			at(t, 0, deployment, withAgent), at(t, 1, memcached, "size: 2, =>size: 2, metrics: {port: 9150}, ")}, "-c 1026"},
		"conflict with a server's Service": {[]Event{at(t, 0, service, "name: c=>name: c-1"),
			at(t, 1, memcached, stalled, conflict)}, ""},
		"conflict with its own server's Service": {[]Event{at(t, 0, service, "name: c=>name: c-1", controlled),
			at(t, 1, memcached, stalled, conflict)}, "although nobody else"},
		"conflict with one of two Services": {[]Event{at(t, 0, service, "name: c=>name: c-0"),
			at(t, 0, service, "name: c=>name: c-1", controlled), at(t, 1100, memcached, stalled, conflict)}, ""},
		"conflict with a proxy's ConfigMap": {[]Event{
			at(t, 0, service, "kind: Service=>kind: ConfigMap", "name: c=>name: c-proxy"), at(t, 1, memcached, stalled,
				conflict)}, ""},
		"conflict with what has no name of a child": {[]Event{
			at(t, 0, service, "kind: Service=>kind: ConfigMap", "name: c=>name: c-1"), at(t, 0, service, "name: c=>name: c-x"),
			at(t, 1, memcached, stalled, conflict)}, "although nobody else"},
		"refused no more because its Secret changed": {[]Event{
			at(t, 0, memcached, asks, stalled, refused), at(t, 1, secret), at(t, 2, memcached, v30, asks, notReady)}, ""},
		"refused no more because its Secret changed just before": {[]Event{
			at(t, 0, memcached, asks, notReady, `"20"=>"10"`), at(t, 1, secret, `"21"=>"11"`),
			at(t, 900, memcached, asks, stalled,
				refused), at(t, 901, memcached, v30, asks, notReady)}, ""},
		"refused no more although its Secret changed long ago": {[]Event{
			at(t, 0, memcached, asks, notReady, `"20"=>"10"`), at(t, 1, secret, `"21"=>"11"`), at(t, 1100, memcached, asks,
				stalled, refused), at(t, 1101, memcached, v30, asks, notReady)}, "reason Invalid"},
		"refused no more because another Secret changed": {[]Event{
			at(t, 0, memcached, asks, stalled, refused), at(t, 1, secret, "passwords=>others"), at(t, 2, memcached, v30, asks,
				notReady)}, "reason Invalid"},
		"deleted": {[]Event{
			at(t, 0, deployment), at(t, 1, memcached), at(t, 2, memcached, v30, "DELETED"), at(t, 3, deployment, `"10"=>"41"`,
				"DELETED")}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			verdict, err := Judge(slices.Clone(c.events), start.Add(10*time.Second+2*time.Millisecond))
			if err != nil {
				t.Fatal(err)
			}
			if len(verdict.Lies) > 1 || (len(verdict.Lies) == 0) != (c.lie == "") ||
				!strings.Contains(strings.Join(verdict.Lies, ""), c.lie) {
				t.Errorf("%s\nwant a lie about %q", verdict, c.lie)
			}
		})
	}
}
