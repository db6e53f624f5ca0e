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

// event returns the event of a manifest, observed this many milliseconds after the start. Each edit has the form
// old=>new and changes the manifest, and may have several lines; the edit DELETED makes the event a deletion, and
// LISTED an object that existed.
func event(t *testing.T, ms int, manifest string, edits ...string) Event {
	t.Helper()
	deleted, listed := false, false
	for _, edit := range strings.Split(strings.Join(edits, "\n"), "\n") {
		switch edit {
		case "DELETED":
			deleted = true
			continue
		case "LISTED":
			listed = true
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
	return Event{Listed: listed, Seen: start.Add(time.Duration(ms) * time.Millisecond), Deleted: deleted, Object: u}
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

	newGeneration = `generation: 1}=>generation: 2}` // of the Memcached: a spec that the operator has not observed
	notReady      = `status: "True"=>status: "False"`
	version30     = `"20"=>"30"`
	version40     = `"20"=>"40"`
	stalled       = `status: "True", observedGeneration: 1}]=>status: "False"}, ` +
		`{type: Stalled, status: "True", reason: ProgressDeadlineExceeded}]`
	conflict   = `ProgressDeadlineExceeded=>Conflict`
	invalid    = `ProgressDeadlineExceeded=>Invalid`
	degraded   = `, observedGeneration: 1}]=>}, {type: Degraded, status: "True"}]`
	serverLost = `readyReplicas: 2=>readyReplicas: 1`

	service = `
kind: Service
metadata: {namespace: ns, name: c, uid: s, resourceVersion: "10", labels: {app: foreign}}`
	ofMemcached = `labels: {app: foreign}=>ownerReferences: [{kind: Memcached, name: c, uid: m, controller: true}]`
	asOrphan    = `app: foreign=>app.kubernetes.io/managed-by: memcached-operator, app.kubernetes.io/instance: c`
	server      = `
kind: Pod
metadata: {namespace: ns, name: c-1, uid: p, resourceVersion: "11", labels: {app.kubernetes.io/instance: c},
  ownerReferences: [{kind: StatefulSet, name: c, uid: d, controller: true}]}
spec: {containers: [{image: "memcached:1",
  args: ["-p", "11211", "-m", "64", "-c", "1026", "-t", "4", "-I", 1024k, --verbose]}]}`
	pod = `
kind: Pod
metadata: {namespace: ns, name: c-1, uid: p, resourceVersion: "21", labels: {app.kubernetes.io/instance: c}}
status: {conditions: [{type: Ready, status: "True"}]}`
	policy = `
kind: ValidatingAdmissionPolicyBinding
metadata: {name: strict, uid: v, resourceVersion: "21"}`

	progressing = `availableReplicas: 2=>availableReplicas: 2, ` +
		`conditions: [{type: Progressing, status: "True", lastUpdateTime: 2026-01-01T00:00:00Z}]`
	notProgressing = `availableReplicas: 2=>availableReplicas: 2, ` +
		`conditions: [{type: Progressing, status: "False", lastUpdateTime: 2026-01-01T00:00:00Z}]`

	// Edits for a StatefulSet, and for a proxy.
	asStatefulSet = `kind: Deployment=>kind: StatefulSet` + "\n" + withAgent + "\n" + twoMoreConnections
	inStatefulSet = `size: 2, =>size: 2, workload: StatefulSet, `
	twoAddresses  = `observedGeneration: 1, =>observedGeneration: 1, servers: ["c-0:11211", "c-1:11211"], `
	withProxy     = `size: 2, =>size: 2, workload: StatefulSet, proxy: {size: 2, threads: 3}, `
	oneAddress    = `observedGeneration: 1, =>observedGeneration: 1, servers: ["c-proxy:11211"], `
	asProxy       = `name: c, uid: d=>name: c-proxy, uid: e`
	proxyThreads  = `-t, "4"=>-t, "3"`
	secret        = `
kind: Secret
metadata: {namespace: ns, name: passwords, uid: x, resourceVersion: "21"}`
	withAuth = `size: 2, =>size: 2, auth: {secretName: passwords}, `
	// Edits for an agent, which has two connections of its own.
	withAgent          = `{containers: =>{initContainers: [{name: agent}], containers: `
	twoMoreConnections = `"1024"=>"1026"`

	// Edits for an object that another manager wrote, and for a status that another manager wrote.
	byOthers       = `name: c=>name: c, managedFields: [{manager: kubectl, operation: Update, time: 2026-01-01T00:00:00Z}]`
	statusByOthers = `name: c=>name: c, managedFields: ` +
		`[{manager: velero, operation: Update, subresource: status, time: 2026-01-01T00:00:00Z}]`
)

func TestJudge(t *testing.T) {
	for name, c := range map[string]struct {
		events []Event
		lie    string // part of the wanted lie; empty: no lie
	}{
		"ready with its workload":                        {[]Event{event(t, 0, deployment), event(t, 1, memcached)}, ""},
		"events in the order of their resource versions": {[]Event{event(t, 0, memcached), event(t, 9, deployment)}, ""},
		"ready in the beginning, with a workload that changed later": {[]Event{
			event(t, 0, deployment, `"10"=>"30"`, "LISTED"), event(t, 1, memcached, "LISTED"),
		}, ""},
		"ready in the beginning, and corrected at once": {[]Event{
			event(t, 0, deployment, serverLost, "LISTED"), event(t, 1, memcached, "LISTED"),
			event(t, 500, memcached, notReady, version30),
		}, ""},
		"ready in the beginning, and for too long": {[]Event{
			event(t, 0, deployment, serverLost, "LISTED"), event(t, 1, memcached, "LISTED"),
			event(t, 3000, memcached, notReady, version30),
		}, "stayed Ready for 3.0 s"},
		"not observed by any operator": {[]Event{
			event(t, 0, memcached, "observedGeneration: 1, =>observedGeneration: -1, ", "True=>Unknown",
				", observedGeneration: 1}=>}"),
		}, ""},
		"a new spec that is not observed": {[]Event{
			event(t, 0, deployment),
			event(t, 1, memcached),
			event(t, 2, memcached, version30, newGeneration),
		}, ""},
		"an observed generation without conditions": {[]Event{
			event(t, 0, memcached, `conditions: [{type: Ready, status: "True", observedGeneration: 1}]=>conditions: []`),
		}, "no Deployment"},
		"no workload": {[]Event{event(t, 1, memcached)}, "no Deployment"},
		"its workload was deleted": {[]Event{
			event(t, 0, deployment),
			event(t, 1, deployment, `"10"=>"11"`, "DELETED"),
			event(t, 2, memcached),
		}, "no Deployment"},
		"its workload is being deleted": {[]Event{
			event(t, 0, deployment, "name: c=>name: c, deletionTimestamp: 2026-01-01T00:00:00Z"),
			event(t, 1, memcached),
		}, "is being deleted"},
		"the workload of another": {[]Event{
			event(t, 0, deployment, "uid: m=>uid: x"),
			event(t, 1, memcached),
		}, "not its own"},
		"a rollout that has not begun": {[]Event{
			event(t, 0, deployment),
			event(t, 1, memcached),
			event(t, 2, memcached, version30, newGeneration),
			event(t, 3, deployment, `"10"=>"31"`, "generation: 1=>generation: 2"),
			event(t, 4, memcached, version40, newGeneration, "observedGeneration: 1=>observedGeneration: 2"),
		}, "not observed"},
		"a condition that runs ahead of its status": {[]Event{
			event(t, 1, memcached, newGeneration, "observedGeneration: 1}]=>observedGeneration: 2}]"),
		}, "no Deployment"},
		"back to the first spec during a rollout": {[]Event{
			event(t, 0, deployment, "updatedReplicas: 2=>updatedReplicas: 1", "observedGeneration: 1=>observedGeneration: 3",
				"generation: 1=>generation: 3"),
			event(t, 1, memcached, "generation: 1=>generation: 3", "observedGeneration: 1=>observedGeneration: 3"),
		}, "1 of 2 servers are updated"},
		"one server too few": {[]Event{
			event(t, 0, deployment, "availableReplicas: 2=>availableReplicas: 1"),
			event(t, 1, memcached),
		}, "1 of 2 servers are available"},
		"another size": {[]Event{
			event(t, 0, deployment),
			event(t, 1, memcached, "size: 2=>size: 3"),
		}, "wants 2 servers, not 3"},
		"another image": {[]Event{
			event(t, 0, deployment),
			event(t, 1, memcached, "memcached:1=>memcached:2"),
		}, "run memcached:1, not memcached:2"},
		"another memory": {[]Event{event(t, 0, deployment), event(t, 1, memcached, "64Mi=>1Gi")}, "-m 1024"},
		"another option": {[]Event{
			event(t, 0, deployment),
			event(t, 1, memcached, "--verbose=>--disable-cas"),
		}, "--disable-cas"},
		"a loss that is reported in time": {[]Event{
			event(t, 0, deployment),
			event(t, 1, memcached),
			event(t, 2, deployment, `"10"=>"21"`, serverLost),
			event(t, 900, memcached, version30, notReady),
		}, ""},
		"a loss that is reported too late": {[]Event{
			event(t, 0, deployment),
			event(t, 1, memcached),
			event(t, 2, deployment, `"10"=>"21"`, serverLost),
			event(t, 1100, memcached, version30, notReady),
		}, "stayed Ready for 1.1 s"},
		"a loss that is never reported": {[]Event{
			event(t, 0, deployment),
			event(t, 1, memcached),
			event(t, 2, deployment, `"10"=>"21"`, serverLost),
		}, "stayed Ready for 10.0 s"},
		"a loss that is denied": {[]Event{
			event(t, 0, deployment),
			event(t, 1, memcached),
			event(t, 2, deployment, `"10"=>"21"`, serverLost),
			event(t, 500, memcached, version30, "name: c=>name: c, labels: {a: b}"),
		}, "stayed Ready"},
		"a loss that is over": {[]Event{
			event(t, 0, deployment),
			event(t, 1, memcached),
			event(t, 2, deployment, `"10"=>"21"`, serverLost),
			event(t, 500, deployment, `"10"=>"22"`),
		}, ""},
		"Ready again within a second of a loss": {[]Event{
			event(t, 0, deployment),
			event(t, 1, memcached, notReady),
			event(t, 2, deployment, `"10"=>"21"`, serverLost),
			event(t, 3, memcached, version30),
			event(t, 4, memcached, version40, notReady),
		}, ""},
		"Ready again long after a loss": {[]Event{
			event(t, 0, deployment),
			event(t, 1, memcached, notReady),
			event(t, 2, deployment, `"10"=>"21"`, serverLost),
			event(t, 1100, memcached, version30),
			event(t, 1101, memcached, version40, notReady),
		}, "stayed Ready for 1.1 s"},
		"degraded while it is installed": {[]Event{
			event(t, 0, memcached, "observedGeneration: 1, =>observedGeneration: -1, ", "True=>Unknown",
				", observedGeneration: 1}=>}"),
			event(t, 1, memcached, version30, notReady, degraded),
		}, "is Degraded while"},
		"degraded after it was ready": {[]Event{
			event(t, 0, deployment),
			event(t, 1, memcached),
			event(t, 2, memcached, version30, notReady, degraded),
		}, ""},
		"reconciling and stalled": {[]Event{
			event(t, 1, memcached, notReady,
				`, observedGeneration: 1}]=>}, {type: Reconciling, status: "True"}, {type: Stalled, status: "True"}]`),
		}, "at once"},
		"stalled permanently": {[]Event{event(t, 0, memcached, stalled)}, ""},
		"no longer stalled because a server became ready": {[]Event{
			event(t, 0, memcached, stalled),
			event(t, 1, pod),
			event(t, 2, memcached, version30, notReady),
		}, ""},
		"no longer stalled although a server only exists": {[]Event{
			event(t, 0, memcached, stalled),
			event(t, 1, pod, "True=>False"),
			event(t, 2, memcached, version30, notReady),
		}, "stopped to be Stalled with reason Progress"},
		"no longer stalled although the server was ready long ago": {[]Event{
			event(t, 0, pod, `"21"=>"19"`),
			event(t, 1100, memcached, stalled),
			event(t, 1101, pod),
			event(t, 1102, memcached, version30, notReady),
		}, "stopped to be Stalled"},
		"no longer stalled because a server became ready just before": {[]Event{
			event(t, 0, pod, `"21"=>"19"`),
			event(t, 900, memcached, stalled),
			event(t, 901, memcached, version30, notReady),
		}, ""},
		"no longer stalled because the workload has more servers": {[]Event{
			event(t, 0, deployment, serverLost),
			event(t, 1100, memcached, stalled),
			event(t, 1101, deployment, `"10"=>"21"`),
			event(t, 1102, memcached, version30, notReady),
		}, ""},
		"no longer stalled because a server became available": {[]Event{
			event(t, 0, deployment, "availableReplicas: 2=>availableReplicas: 1"),
			event(t, 1100, memcached, stalled),
			event(t, 1101, deployment, `"10"=>"21"`),
			event(t, 1102, memcached, version30, notReady),
		}, ""},
		"no longer stalled because a server is ready again": {[]Event{
			event(t, 0, pod, `"21"=>"18"`),
			event(t, 1, pod, `"21"=>"19"`, "DELETED"),
			event(t, 1100, memcached, stalled),
			event(t, 1101, pod),
			event(t, 1102, memcached, version30, notReady),
		}, ""},
		"no longer stalled in a second generation that stalled": {[]Event{
			event(t, 0, memcached, stalled),
			event(t, 1, memcached, version30, stalled, newGeneration, "observedGeneration: 1=>observedGeneration: 2"),
			event(t, 2, memcached, version40, newGeneration, "observedGeneration: 1=>observedGeneration: 2", notReady),
		}, "stopped to be Stalled"},
		"no longer stalled because the workload progressed": {[]Event{
			event(t, 0, deployment, serverLost),
			event(t, 1100, memcached, stalled),
			event(t, 1101, deployment, `"10"=>"21"`, serverLost, progressing),
			event(t, 1102, memcached, version30, notReady),
		}, ""},
		"no longer stalled because the workload stalled": {[]Event{
			event(t, 0, deployment, serverLost),
			event(t, 1100, memcached, stalled),
			event(t, 1101, deployment, `"10"=>"21"`, serverLost, notProgressing),
			event(t, 1102, memcached, version30, notReady),
		}, "stopped to be Stalled"},
		"no longer stalled because of another spec": {[]Event{
			event(t, 0, memcached, stalled),
			event(t, 1, memcached, version30, "generation: 1}=>generation: 2}", notReady),
		}, ""},
		"no longer stalled because of an annotation": {[]Event{
			event(t, 0, memcached, stalled),
			event(t, 1, memcached, version30, notReady, "name: c=>name: c, annotations: {cache.example.com/restartedAt: now}"),
		}, ""},
		"no longer stalled because it is deleted": {[]Event{
			event(t, 0, memcached, stalled),
			event(t, 1, memcached, version30, notReady, "name: c=>name: c, deletionTimestamp: 2026-01-01T00:00:00Z"),
		}, ""},
		"stalled until it is deleted": {[]Event{
			event(t, 0, memcached, stalled),
			event(t, 1, memcached, stalled, version30, "DELETED"),
		}, ""},
		"no longer stalled in a successor": {[]Event{
			event(t, 0, memcached, stalled),
			event(t, 1, memcached, version30, notReady, "uid: m=>uid: other"),
		}, ""},
		"stalled for one reason, then another, then none": {[]Event{
			event(t, 0, service),
			event(t, 1, memcached, stalled, conflict),
			event(t, 2, service, `"10"=>"21"`, "DELETED"),
			event(t, 3, memcached, stalled, invalid, version30),
			event(t, 4, memcached, version40, notReady),
		}, "reason Invalid"},
		"no longer invalid because a server is ready": {[]Event{
			event(t, 0, memcached, stalled, invalid),
			event(t, 1, pod),
			event(t, 2, memcached, version30, notReady),
		}, "reason Invalid"},
		"no longer invalid because the policy was deleted": {[]Event{
			event(t, 0, memcached, stalled, invalid),
			event(t, 1, policy, "DELETED"),
			event(t, 2, memcached, version30, notReady),
		}, ""},
		"no longer invalid because somebody changed the workload": {[]Event{
			event(t, 0, deployment),
			event(t, 1, memcached, stalled, invalid),
			event(t, 2, deployment, `"10"=>"21"`, byOthers),
			event(t, 3, memcached, version30, notReady),
		}, ""},
		"no longer invalid because the operator changed the workload": {[]Event{
			event(t, 0, deployment),
			event(t, 1, memcached, stalled, invalid),
			event(t, 2, deployment, `"10"=>"21"`, byOthers, "kubectl=>memcached-operator"),
			event(t, 3, memcached, version30, notReady),
		}, "reason Invalid"},
		"no longer invalid because the status of the workload changed": {[]Event{
			event(t, 0, deployment),
			event(t, 1, memcached, stalled, invalid),
			event(t, 2, deployment, `"10"=>"21"`, statusByOthers),
			event(t, 3, memcached, version30, notReady),
		}, "reason Invalid"},
		"no longer invalid because the workload was replaced before": {[]Event{
			event(t, 0, deployment),
			event(t, 1, deployment, `"10"=>"11"`, "DELETED"),
			event(t, 2, memcached, stalled, invalid),
			event(t, 3, memcached, version30, notReady),
		}, "reason Invalid"},
		"no longer invalid because the workload was deleted": {[]Event{
			event(t, 0, deployment),
			event(t, 1, memcached, stalled, invalid),
			event(t, 2, deployment, `"10"=>"21"`, "DELETED"),
			event(t, 3, memcached, version30, notReady),
		}, ""},
		"conflict": {[]Event{event(t, 0, service), event(t, 1, memcached, stalled, conflict)}, ""},
		"conflict without another object": {[]Event{
			event(t, 0, memcached, stalled, conflict),
		}, "reason Conflict, although nobody else"},
		"conflict with its own child": {[]Event{
			event(t, 0, service, ofMemcached),
			event(t, 1, memcached, stalled, conflict),
		}, "although nobody else"},
		"conflict with an orphan": {[]Event{
			event(t, 0, service, asOrphan),
			event(t, 1, memcached, stalled, conflict),
		}, "although nobody else"},
		"conflict with a child of a predecessor": {[]Event{
			event(t, 0, service, ofMemcached, "uid: m=>uid: l"),
			event(t, 1, memcached, stalled, conflict),
		}, "although nobody else"},
		"conflict with a child of another owner": {[]Event{
			event(t, 0, service, ofMemcached, "kind: Memcached=>kind: Other"),
			event(t, 1, memcached, stalled, conflict),
		}, ""},
		"conflict with an object that was just deleted": {[]Event{
			event(t, 0, service),
			event(t, 1, service, `"10"=>"11"`, "DELETED"),
			event(t, 900, memcached, stalled, conflict),
		}, ""},
		"conflict with an object that was deleted long ago": {[]Event{
			event(t, 0, service),
			event(t, 1, service, `"10"=>"11"`, "DELETED"),
			event(t, 1100, memcached, stalled, conflict),
		}, "although nobody else"},
		"conflict over": {[]Event{
			event(t, 0, service),
			event(t, 1, memcached, stalled, conflict),
			event(t, 2, service, `"10"=>"21"`, "DELETED"),
			event(t, 60000, memcached, version30, notReady),
		}, ""},
		"conflict over, and no object was deleted": {[]Event{
			event(t, 0, service),
			event(t, 1, memcached, stalled, conflict),
			event(t, 60000, memcached, version30, notReady),
		}, "reason Conflict"},
		"conflict over, and a server became ready": {[]Event{
			event(t, 0, service),
			event(t, 1, memcached, stalled, conflict),
			event(t, 2, pod),
			event(t, 3, memcached, version30, notReady),
		}, "reason Conflict"},
		"conflict with the child of a Memcached of another name": {[]Event{
			event(t, 0, service, ofMemcached, "Memcached, name: c=>Memcached, name: d"),
			event(t, 1, memcached, stalled, conflict),
		}, ""},
		"conflict with an orphan of another operator": {[]Event{
			event(t, 0, service, asOrphan, "managed-by: memcached-operator=>managed-by: other"),
			event(t, 1, memcached, stalled, conflict),
		}, ""},
		"conflict with an orphan of another Memcached": {[]Event{
			event(t, 0, service, asOrphan, "instance: c=>instance: d"),
			event(t, 1, memcached, stalled, conflict),
		}, ""},
		"stalled until somebody else writes": {[]Event{
			event(t, 0, memcached, stalled),
			event(t, 1, memcached, version30, notReady, statusByOthers),
		}, ""},
		"contradicting conditions by somebody else": {[]Event{
			event(t, 0, memcached, notReady, statusByOthers,
				`, observedGeneration: 1}]=>}, {type: Reconciling, status: "True"}, {type: Stalled, status: "True"}]`),
		}, ""},
		"stalled by somebody else": {[]Event{
			event(t, 0, memcached, stalled, conflict, statusByOthers),
			event(t, 1, memcached, version30, notReady, statusByOthers),
		}, ""},
		"ready by somebody else": {[]Event{event(t, 0, memcached, statusByOthers)}, ""},
		"ready by the operator after others": {[]Event{
			event(t, 0, memcached, notReady, statusByOthers),
			event(t, 1, memcached, version30, statusByOthers),
		}, "no Deployment"},
		"a generation of a predecessor": {[]Event{
			event(t, 0, memcached, notReady, "observedGeneration: 1, =>observedGeneration: 2, "),
		}, "has the status of another"},
		"the deletion of a predecessor": {[]Event{
			event(t, 0, memcached, notReady, "observedGeneration: 1, =>observedGeneration: 1, phase: Deleting, "),
		}, "has the status of another"},
		"its own deletion": {[]Event{
			event(t, 0, memcached, notReady, "observedGeneration: 1, =>observedGeneration: 1, phase: Deleting, ",
				"name: c=>name: c, deletionTimestamp: 2026-01-01T00:00:00Z"),
		}, ""},
		"a condition of a predecessor": {[]Event{
			event(t, 0, memcached, notReady, "name: c=>name: c, creationTimestamp: 2026-01-01T00:00:01Z",
				"type: Ready=>type: Ready, lastTransitionTime: 2026-01-01T00:00:00Z"),
		}, "Ready is of 00:00:00, before its creation"},
		"a condition of its first second": {[]Event{
			event(t, 0, memcached, notReady, "name: c=>name: c, creationTimestamp: 2026-01-01T00:00:00Z",
				"type: Ready=>type: Ready, lastTransitionTime: 2026-01-01T00:00:00Z"),
		}, ""},
		"a condition of the CRD's defaults": {[]Event{
			event(t, 0, memcached, notReady, "name: c=>name: c, creationTimestamp: 2026-01-01T00:00:00Z",
				"type: Ready=>type: Ready, lastTransitionTime: 1970-01-01T00:00:00Z"),
		}, ""},
		"a condition of a backup": {[]Event{
			event(t, 0, memcached, notReady, statusByOthers, "name: c=>name: c, creationTimestamp: 2026-01-01T00:00:00Z",
				"type: Ready=>type: Ready, lastTransitionTime: 2025-01-01T00:00:00Z"),
			event(t, 1, memcached, version30, notReady, statusByOthers,
				"name: c=>name: c, creationTimestamp: 2026-01-01T00:00:00Z",
				"type: Ready=>type: Ready, message: restored, lastTransitionTime: 2025-01-01T00:00:00Z"),
		}, ""},
		"a StatefulSet": {[]Event{
			event(t, 0, deployment, asStatefulSet),
			event(t, 1, memcached, inStatefulSet, twoAddresses),
		}, ""},
		"a Deployment beside the StatefulSet": {[]Event{
			event(t, 0, deployment, asStatefulSet),
			event(t, 1, memcached, inStatefulSet, twoAddresses),
			event(t, 2, deployment, `"10"=>"21"`, serverLost),
		}, ""},
		"a Deployment in place of a StatefulSet": {[]Event{
			event(t, 0, deployment),
			event(t, 1, memcached, inStatefulSet, twoAddresses),
		}, "no StatefulSet"},
		"a StatefulSet in place of a Deployment": {[]Event{
			event(t, 0, deployment, asStatefulSet),
			event(t, 1, memcached),
		}, "no Deployment"},
		"a StatefulSet with a server of an older template": {[]Event{
			event(t, 0, deployment, asStatefulSet),
			event(t, 0, server, `"-c", "1026"=>"-c", "512"`),
			event(t, 1, memcached, inStatefulSet, twoAddresses),
		}, "server c-1 is not updated"},
		"a StatefulSet whose servers got another memory": {[]Event{
			event(t, 0, deployment, asStatefulSet, "updatedReplicas: 2=>updatedReplicas: 1"),
			event(t, 0, server, `"-m", "64"=>"-m", "32"`),
			event(t, 1, memcached, inStatefulSet, twoAddresses),
		}, ""},
		"a StatefulSet that is not observed": {[]Event{
			event(t, 0, deployment, asStatefulSet, "generation: 1,=>generation: 2,"),
			event(t, 1, memcached, inStatefulSet, twoAddresses),
		}, "generation 2 of the StatefulSet is not observed"},
		"a loss of a StatefulSet that is reported too late": {[]Event{
			event(t, 0, deployment, asStatefulSet),
			event(t, 1, memcached, inStatefulSet, twoAddresses),
			event(t, 2, deployment, asStatefulSet, `"10"=>"21"`, serverLost),
			event(t, 1100, memcached, version30, inStatefulSet, twoAddresses, notReady),
		}, "stayed Ready for 1.1 s"},
		"a StatefulSet with one address too few": {[]Event{
			event(t, 0, deployment, asStatefulSet),
			event(t, 1, memcached, inStatefulSet, twoAddresses, `, "c-1:11211"=>`),
		}, "lists 1 addresses"},
		"a proxy": {[]Event{
			event(t, 0, deployment, asStatefulSet),
			event(t, 0, deployment, asProxy, proxyThreads),
			event(t, 1, memcached, withProxy, oneAddress),
		}, ""},
		"a Deployment with the name of a proxy": {[]Event{
			event(t, 0, deployment, asStatefulSet),
			event(t, 0, deployment, asProxy, serverLost),
			event(t, 1, memcached, inStatefulSet, twoAddresses),
		}, ""},
		"a missing proxy": {[]Event{
			event(t, 0, deployment, asStatefulSet),
			event(t, 1, memcached, withProxy, oneAddress),
		}, "no proxy"},
		"one proxy too few": {[]Event{
			event(t, 0, deployment, asStatefulSet),
			event(t, 0, deployment, asProxy, proxyThreads, serverLost),
			event(t, 1, memcached, withProxy, oneAddress),
		}, "1 of 2 proxies are ready"},
		"proxies of another size": {[]Event{
			event(t, 0, deployment, asStatefulSet),
			event(t, 0, deployment, asProxy, proxyThreads, "replicas: 2=>replicas: 1"),
			event(t, 1, memcached, withProxy, oneAddress),
		}, "the proxy wants 1 proxies, not 2"},
		"proxies with other options": {[]Event{
			event(t, 0, deployment, asStatefulSet),
			event(t, 0, deployment, asProxy),
			event(t, 1, memcached, withProxy, oneAddress),
		}, "the proxies run with"},
		"proxies of another image": {[]Event{
			event(t, 0, deployment, asStatefulSet),
			event(t, 0, deployment, asProxy, proxyThreads, "memcached:1=>memcached:2"),
			event(t, 1, memcached, withProxy, oneAddress),
		}, "the proxies run memcached:2, not memcached:1"},
		"a proxy whose servers are listed instead": {[]Event{
			event(t, 0, deployment, asStatefulSet),
			event(t, 0, deployment, asProxy, proxyThreads),
			event(t, 1, memcached, withProxy, twoAddresses),
		}, "lists 2 addresses"},
		"proxies of another": {[]Event{
			event(t, 0, deployment, asStatefulSet),
			event(t, 0, deployment, asProxy, proxyThreads, "uid: m=>uid: x"),
			event(t, 1, memcached, withProxy, oneAddress),
		}, "the proxy is not its own"},
		"a loss of a proxy that is reported in time": {[]Event{
			event(t, 0, deployment, asStatefulSet),
			event(t, 0, deployment, asProxy, proxyThreads),
			event(t, 1, memcached, withProxy, oneAddress),
			event(t, 2, deployment, asProxy, proxyThreads, `"10"=>"21"`, serverLost),
			event(t, 900, memcached, version30, withProxy, oneAddress, notReady),
		}, ""},
		"a loss of a proxy that is never reported": {[]Event{
			event(t, 0, deployment, asStatefulSet),
			event(t, 0, deployment, asProxy, proxyThreads),
			event(t, 1, memcached, withProxy, oneAddress),
			event(t, 2, deployment, asProxy, proxyThreads, `"10"=>"21"`, serverLost),
		}, "stayed Ready for 10.0 s"},
		"Ready again within a second of the loss of a proxy": {[]Event{
			event(t, 0, deployment, asStatefulSet),
			event(t, 0, deployment, asProxy, proxyThreads),
			event(t, 1, memcached, withProxy, oneAddress, notReady),
			event(t, 2, deployment, asProxy, proxyThreads, `"10"=>"21"`, serverLost),
			event(t, 3, memcached, version30, withProxy, oneAddress),
			event(t, 4, memcached, version40, withProxy, oneAddress, notReady),
		}, ""},
		"Ready again long after the loss of a proxy": {[]Event{
			event(t, 0, deployment, asStatefulSet),
			event(t, 0, deployment, asProxy, proxyThreads),
			event(t, 1, memcached, withProxy, oneAddress, notReady),
			event(t, 2, deployment, asProxy, proxyThreads, `"10"=>"21"`, serverLost),
			event(t, 1100, memcached, version30, withProxy, oneAddress),
			event(t, 1101, memcached, version40, withProxy, oneAddress, notReady),
		}, "stayed Ready for 1.1 s"},
		"servers that speak no TLS": {[]Event{
			event(t, 0, deployment, withAgent, twoMoreConnections),
			event(t, 1, memcached, "size: 2, =>size: 2, tls: {secretName: certificate}, "),
		}, "use TLS: false"},
		"servers that speak TLS": {[]Event{
			event(t, 0, deployment, "--verbose=>--verbose, --enable-ssl"),
			event(t, 1, memcached),
		}, "use TLS: true"},
		"servers that require no password": {[]Event{
			event(t, 0, deployment, withAgent, twoMoreConnections),
			event(t, 1, memcached, withAuth),
		}, "require passwords: false"},
		"servers that require a password": {[]Event{
			event(t, 0, deployment, withAgent, twoMoreConnections, "--verbose=>--verbose, --auth-file=/passwords"),
			event(t, 1, memcached, withAuth),
		}, ""},
		"servers without metrics": {[]Event{
			event(t, 0, deployment, twoMoreConnections),
			event(t, 1, memcached, "size: 2, =>size: 2, metrics: {port: 9150}, "),
		}, "have an agent: false"},
		"an unnecessary agent": {[]Event{
			event(t, 0, deployment, withAgent),
			event(t, 1, memcached),
		}, "have an agent: true"},
		"an agent that takes connections of clients": {[]Event{
			event(t, 0, deployment, withAgent),
			event(t, 1, memcached, "size: 2, =>size: 2, metrics: {port: 9150}, "),
		}, "-c 1026"},
		"conflict with a server's Service": {[]Event{
			event(t, 0, service, "name: c=>name: c-1"),
			event(t, 1, memcached, stalled, conflict),
		}, ""},
		"conflict with its own server's Service": {[]Event{
			event(t, 0, service, "name: c=>name: c-1", ofMemcached),
			event(t, 1, memcached, stalled, conflict),
		}, "although nobody else"},
		"conflict with one of two Services": {[]Event{
			event(t, 0, service, "name: c=>name: c-0"),
			event(t, 0, service, "name: c=>name: c-1", ofMemcached),
			event(t, 1100, memcached, stalled, conflict),
		}, ""},
		"conflict with a proxy's ConfigMap": {[]Event{
			event(t, 0, service, "kind: Service=>kind: ConfigMap", "name: c=>name: c-proxy"),
			event(t, 1, memcached, stalled, conflict),
		}, ""},
		"conflict with objects that have no name of a child": {[]Event{
			event(t, 0, service, "kind: Service=>kind: ConfigMap", "name: c=>name: c-1"),
			event(t, 0, service, "name: c=>name: c-x"),
			event(t, 1, memcached, stalled, conflict),
		}, "although nobody else"},
		"no longer invalid because its Secret changed": {[]Event{
			event(t, 0, memcached, withAuth, stalled, invalid),
			event(t, 1, secret),
			event(t, 2, memcached, version30, withAuth, notReady),
		}, ""},
		"no longer invalid because its Secret changed just before": {[]Event{
			event(t, 0, memcached, withAuth, notReady, `"20"=>"10"`),
			event(t, 1, secret, `"21"=>"11"`),
			event(t, 900, memcached, withAuth, stalled, invalid),
			event(t, 901, memcached, version30, withAuth, notReady),
		}, ""},
		"no longer invalid although its Secret changed long ago": {[]Event{
			event(t, 0, memcached, withAuth, notReady, `"20"=>"10"`),
			event(t, 1, secret, `"21"=>"11"`),
			event(t, 1100, memcached, withAuth, stalled, invalid),
			event(t, 1101, memcached, version30, withAuth, notReady),
		}, "reason Invalid"},
		"no longer invalid because another Secret changed": {[]Event{
			event(t, 0, memcached, withAuth, stalled, invalid),
			event(t, 1, secret, "passwords=>others"),
			event(t, 2, memcached, version30, withAuth, notReady),
		}, "reason Invalid"},
		"deleted": {[]Event{
			event(t, 0, deployment),
			event(t, 1, memcached),
			event(t, 2, memcached, version30, "DELETED"),
			event(t, 3, deployment, `"10"=>"41"`, "DELETED"),
		}, ""},
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
