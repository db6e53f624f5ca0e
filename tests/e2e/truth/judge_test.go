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
metadata: {namespace: ns, name: c, uid: d, resourceVersion: "10", generation: 1, ownerReferences: [{uid: m, controller: true}]}
spec: {replicas: 2, template: {spec: {containers: [{image: "memcached:1", args: [-p, "11211", -m, "64", -c, "1024", -t, "4", -I, 1024k, --verbose]}]}}}
status: {observedGeneration: 1, replicas: 2, updatedReplicas: 2, readyReplicas: 2, availableReplicas: 2}`
	memcached = `
kind: Memcached
metadata: {namespace: ns, name: c, uid: m, resourceVersion: "20", generation: 1}
spec: {size: 2, image: "memcached:1", containerPort: 11211, memory: 64Mi, maxConnections: 1024, threads: 4, extraArgs: [--verbose]}
status: {observedGeneration: 1, conditions: [{type: Ready, status: "True", observedGeneration: 1}]}`

	second   = `generation: 1}=>generation: 2}` // of the Memcached: a spec that no operator has seen
	notReady = `status: "True"=>status: "False"`
	v30      = `"20"=>"30"`
	v40      = `"20"=>"40"`
	degraded = `, observedGeneration: 1}]=>}, {type: Degraded, status: "True"}]`
	lost     = `readyReplicas: 2=>readyReplicas: 1`
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
			at(t, 0, memcached, "observedGeneration: 1, =>observedGeneration: -1, ", "True=>Unknown", ", observedGeneration: 1}=>}")}, ""},
		"a new spec that nobody has seen": {[]Event{
			at(t, 0, deployment), at(t, 1, memcached), at(t, 2, memcached, v30, second)}, ""},
		"nothing but a generation": {[]Event{
			at(t, 0, memcached, "conditions: [{type: Ready, status: \"True\", observedGeneration: 1}]=>conditions: []")}, "no Deployment"},
		"no workload": {[]Event{at(t, 1, memcached)}, "no Deployment"},
		"its workload was deleted": {[]Event{
			at(t, 0, deployment), at(t, 1, deployment, `"10"=>"11"`, "DELETED"), at(t, 2, memcached)}, "no Deployment"},
		"its workload is being deleted": {[]Event{
			at(t, 0, deployment, "name: c=>name: c, deletionTimestamp: 2026-01-01T00:00:00Z"), at(t, 1, memcached)}, "is being deleted"},
		"the workload of another": {[]Event{at(t, 0, deployment, "uid: m=>uid: x"), at(t, 1, memcached)}, "not its own"},
		"a rollout that has not begun": {[]Event{
			at(t, 0, deployment), at(t, 1, memcached), at(t, 2, memcached, v30, second),
			at(t, 3, deployment, `"10"=>"31"`, "generation: 1=>generation: 2"),
			at(t, 4, memcached, v40, second, "observedGeneration: 1=>observedGeneration: 2")}, "not observed"},
		"a condition that runs ahead of its status": {[]Event{
			at(t, 1, memcached, second, "observedGeneration: 1}]=>observedGeneration: 2}]")}, "no Deployment"},
		"A, B, and A again while B rolls": {[]Event{
			at(t, 0, deployment, "updatedReplicas: 2=>updatedReplicas: 1", "observedGeneration: 1=>observedGeneration: 3", "generation: 1=>generation: 3"),
			at(t, 1, memcached, "generation: 1=>generation: 3", "observedGeneration: 1=>observedGeneration: 3")}, "1 of 2 servers are updated"},
		"one server too few": {[]Event{at(t, 0, deployment, "availableReplicas: 2=>availableReplicas: 1"), at(t, 1, memcached)}, "1 of 2 servers are available"},
		"another size":       {[]Event{at(t, 0, deployment), at(t, 1, memcached, "size: 2=>size: 3")}, "asks for 2 servers, not 3"},
		"another image":      {[]Event{at(t, 0, deployment), at(t, 1, memcached, "memcached:1=>memcached:2")}, "run memcached:1, not memcached:2"},
		"another memory":     {[]Event{at(t, 0, deployment), at(t, 1, memcached, "64Mi=>1Gi")}, "-m 1024"},
		"another option":     {[]Event{at(t, 0, deployment), at(t, 1, memcached, "--verbose=>--disable-cas")}, "--disable-cas"},
		"a loss that is told in time": {[]Event{
			at(t, 0, deployment), at(t, 1, memcached), at(t, 2, deployment, `"10"=>"21"`, lost), at(t, 900, memcached, v30, notReady)}, ""},
		"a loss that is told too late": {[]Event{
			at(t, 0, deployment), at(t, 1, memcached), at(t, 2, deployment, `"10"=>"21"`, lost), at(t, 1100, memcached, v30, notReady)}, "stayed Ready for 1.1 s"},
		"a loss that is never told": {[]Event{
			at(t, 0, deployment), at(t, 1, memcached), at(t, 2, deployment, `"10"=>"21"`, lost)}, "stayed Ready for 10.0 s"},
		"a loss that is denied": {[]Event{
			at(t, 0, deployment), at(t, 1, memcached), at(t, 2, deployment, `"10"=>"21"`, lost), at(t, 500, memcached, v30, "name: c=>name: c, labels: {a: b}")}, "stayed Ready"},
		"a loss that is over": {[]Event{
			at(t, 0, deployment), at(t, 1, memcached), at(t, 2, deployment, `"10"=>"21"`, lost), at(t, 500, deployment, `"10"=>"22"`)}, ""},
		"Ready anew within a second of a loss": {[]Event{
			at(t, 0, deployment), at(t, 1, memcached, notReady), at(t, 2, deployment, `"10"=>"21"`, lost), at(t, 3, memcached, v30), at(t, 4, memcached, v40, notReady)}, ""},
		"Ready anew long after a loss": {[]Event{
			at(t, 0, deployment), at(t, 1, memcached, notReady), at(t, 2, deployment, `"10"=>"21"`, lost), at(t, 1100, memcached, v30), at(t, 1101, memcached, v40, notReady)}, "stayed Ready for 1.1 s"},
		"degraded while it is installed": {[]Event{
			at(t, 0, memcached, "observedGeneration: 1, =>observedGeneration: -1, ", "True=>Unknown", ", observedGeneration: 1}=>}"),
			at(t, 1, memcached, v30, notReady, degraded)}, "is Degraded while"},
		"degraded after it was ready": {[]Event{at(t, 0, deployment), at(t, 1, memcached), at(t, 2, memcached, v30, notReady, degraded)}, ""},
		"reconciling and stalled": {[]Event{at(t, 1, memcached, notReady,
			`, observedGeneration: 1}]=>}, {type: Reconciling, status: "True"}, {type: Stalled, status: "True"}]`)}, "at once"},
		"deleted": {[]Event{
			at(t, 0, deployment), at(t, 1, memcached), at(t, 2, memcached, v30, "DELETED"), at(t, 3, deployment, `"10"=>"41"`, "DELETED")}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			verdict, err := Judge(slices.Clone(c.events), start.Add(10*time.Second+2*time.Millisecond))
			if err != nil {
				t.Fatal(err)
			}
			if len(verdict.Lies) > 1 || (len(verdict.Lies) == 0) != (c.lie == "") || !strings.Contains(strings.Join(verdict.Lies, ""), c.lie) {
				t.Errorf("%s\nwant a lie about %q", verdict, c.lie)
			}
		})
	}
}
