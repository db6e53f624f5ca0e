package truth

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// The manifests of the events.
const (
	deployment = `
kind: Deployment
metadata: {namespace: ns, name: c, uid: d, generation: 1,
  ownerReferences: [{kind: Memcached, name: c, uid: m, controller: true}]}
spec: {replicas: 2, template: {spec: {containers: [{image: "memcached:1",
  args: [-p, "11211", -m, "64", -c, "1024", -t, "4", -I, 1024k, --verbose]}]}}}
status: {observedGeneration: 1, replicas: 2, updatedReplicas: 2, readyReplicas: 2, availableReplicas: 2}`
	memcached = `
kind: Memcached
metadata: {namespace: ns, name: c, uid: m, generation: 1}
spec: {size: 2, image: "memcached:1", containerPort: 11211, memory: 64Mi,
  maxConnections: 1024, threads: 4, extraArgs: [--verbose]}
status: {observedGeneration: 1, conditions: [{type: Ready, status: "True", observedGeneration: 1}]}`
	aService = `
kind: Service
metadata: {namespace: ns, name: c, uid: s, labels: {app: foreign}}`
	serverPod = `
kind: Pod
metadata: {namespace: ns, name: c-1, uid: p, labels: {cache.example.com/name: c},
  ownerReferences: [{kind: StatefulSet, name: c, uid: d, controller: true}]}
spec: {containers: [{image: "memcached:1",
  args: ["-p", "11211", "-m", "64", "-c", "1026", "-t", "4", "-I", 1024k, --verbose]}]}`
	readyPod = `
kind: Pod
metadata: {namespace: ns, name: c-1, uid: p, labels: {cache.example.com/name: c}}
status: {conditions: [{type: Ready, status: "True"}]}`
	binding  = "kind: ValidatingAdmissionPolicyBinding\nmetadata: {name: strict, uid: v}"
	password = "kind: Secret\nmetadata: {namespace: ns, name: passwords, uid: x}"
)

// Edits of manifests, each of the form old=>new. An edit may have several lines.
const (
	gone   = "DELETED" // the event is a deletion
	listed = "LISTED"  // the object existed before the first event
	// Without these, the resource versions of events are in the order of the events.
	version10 = named + `resourceVersion: "10"`
	version20 = named + `resourceVersion: "20"`
	version30 = named + `resourceVersion: "30"`
	named     = `name: c=>name: c, `

	newGeneration  = `generation: 1}=>generation: 2}` // of the Memcached: a spec that the operator has not observed
	generation3    = `generation: 1=>generation: 3`
	observed2      = `observedGeneration: 1=>observedGeneration: 2`
	observed3      = `observedGeneration: 1=>observedGeneration: 3`
	created        = named + `creationTimestamp: 2026-01-01T00:00:00Z`
	deleting       = named + `deletionTimestamp: 2026-01-01T00:00:00Z`
	byOthers       = named + `managedFields: [{manager: kubectl, operation: Update, time: 2026-01-01T00:00:00Z}]`
	statusByOthers = named +
		`managedFields: [{manager: velero, operation: Update, subresource: status, time: 2026-01-01T00:00:00Z}]`

	isNotReady            = `status: "True"=>status: "False"`
	condition             = `, observedGeneration: 1}]=>}, {type: `
	degraded              = condition + `Degraded, status: "True"}]`
	reconcilingAndStalled = condition + `Reconciling, status: "True"}, {type: Stalled, status: "True"}]`
	isStalled             = isNotReady + "\n" + condition + `Stalled, status: "True", reason: ProgressDeadlineExceeded}]`
	conflict              = `ProgressDeadlineExceeded=>Conflict`
	invalid               = `ProgressDeadlineExceeded=>Invalid`
	unobserved            = "observedGeneration: 1, =>observedGeneration: -1, \nTrue=>Unknown\n, observedGeneration: 1}=>}"
	phaseDeleting         = `observedGeneration: 1, =>observedGeneration: 1, phase: Deleting, `
	transition            = `type: Ready=>type: Ready, lastTransitionTime: `

	outdated    = `updatedReplicas: 2=>updatedReplicas: 1`
	serverLost  = `readyReplicas: 2=>readyReplicas: 1`
	unavailable = `availableReplicas: 2=>availableReplicas: 1`
	progressing = `availableReplicas: 2=>availableReplicas: 2, ` +
		`conditions: [{type: Progressing, status: "True", lastUpdateTime: 2026-01-01T00:00:00Z}]`
	notProgressing = progressing + "\n" + isNotReady

	ofMemcached = `labels: {app: foreign}=>ownerReferences: [{kind: Memcached, name: c, uid: m, controller: true}]`
	ofAnother   = `uid: m=>uid: x`
	asOrphan    = `app: foreign=>app.kubernetes.io/managed-by: memcached-operator, cache.example.com/name: c`
	asConfigMap = `kind: Service=>kind: ConfigMap`
	ofServer    = `name: c=>name: c-1`

	withAuth           = `size: 2, =>size: 2, auth: {secretName: passwords}, `
	withMetrics        = `size: 2, =>size: 2, metrics: {port: 9150}, `
	withAgent          = `{containers: =>{initContainers: [{name: agent}], containers: `
	twoMoreConnections = `"1024"=>"1026"` // of the agent
	asStatefulSet      = "kind: Deployment=>kind: StatefulSet\n" + withAgent + "\n" + twoMoreConnections
	inStatefulSet      = `size: 2, =>size: 2, workload: StatefulSet, `
	twoAddresses       = `observedGeneration: 1, =>observedGeneration: 1, servers: ["c-0:11211", "c-1:11211"], `
	withProxy          = `size: 2, =>size: 2, workload: StatefulSet, proxy: {size: 2, threads: 3}, `
	oneAddress         = `observedGeneration: 1, =>observedGeneration: 1, servers: ["c-proxy:11211"], `
	asProxy            = `name: c, uid: d=>name: c-proxy, uid: e`
	proxyThreads       = `-t, "4"=>-t, "3"`
)

// build returns the event of an edited manifest, observed this many milliseconds after the start.
type build func(ms int, edits ...string) Event

// events returns a function that builds events of a manifest, with these edits before others.
func events(t *testing.T, manifest string, always ...string) build {
	return func(ms int, edits ...string) Event {
		t.Helper()
		text, seen := manifest, start.Add(time.Duration(ms)*time.Millisecond)
		e := Event{Seen: seen, Object: &unstructured.Unstructured{}}
		for edit := range strings.SplitSeq(strings.Join(slices.Concat(always, edits), "\n"), "\n") {
			from, to, _ := strings.Cut(edit, "=>")
			switch {
			case edit == gone:
				e.Deleted = true
			case edit == listed:
				e.Listed = true
			case edit != "" && !strings.Contains(text, from):
				t.Fatalf("%q is not in the manifest", from)
			default:
				text = strings.Replace(text, from, to, 1)
			}
		}
		if err := yaml.Unmarshal([]byte(text), e.Object); err != nil {
			t.Fatal(err)
		}
		return e
	}
}

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// sequence is a sequence of events, with a part of the lie that it shows; empty for none.
type sequence struct {
	name, lie string
	events    []Event
}

func truthful(name string, events ...Event) sequence { return sequence{name, "", events} }

func lie(name, about string, events ...Event) sequence { return sequence{name, about, events} }

func TestJudge(t *testing.T) {
	ready := events(t, memcached) // events of a Memcached that claims to be Ready
	notReady, stalled := events(t, memcached, isNotReady), events(t, memcached, isStalled)
	readySet, readyProxy := events(t, memcached, inStatefulSet, twoAddresses), events(t, memcached, withProxy, oneAddress)
	deploy, set := events(t, deployment), events(t, deployment, asStatefulSet)
	proxies := events(t, deployment, asProxy, proxyThreads)
	service, server, pod := events(t, aService), events(t, serverPod), events(t, readyPod)
	policy, secret := events(t, binding), events(t, password)
	for _, c := range []sequence{
		truthful("ready with its workload", deploy(0), ready(1)),
		truthful("events in the order of their resource versions",
			ready(0, version20), deploy(9, version10)),
		truthful("ready in the beginning, with a workload that changed later",
			deploy(0, listed, version30), ready(1, listed, version20)),
		truthful("ready in the beginning, and corrected at once", deploy(0, serverLost, listed), ready(1, listed),
			notReady(500)),
		lie("ready in the beginning, and for too long", "stayed Ready for 3.0 s", deploy(0, serverLost, listed),
			ready(1, listed), notReady(3000)),
		truthful("not observed by any operator", ready(0, unobserved)),
		truthful("a new spec that is not observed", deploy(0), ready(1), ready(2, newGeneration)),
		lie("an observed generation without conditions", "no Deployment",
			ready(0, `conditions: [{type: Ready, status: "True", observedGeneration: 1}]=>conditions: []`)),
		lie("no workload", "no Deployment", ready(1)),
		lie("its workload was deleted", "no Deployment", deploy(0), deploy(1, gone), ready(2)),
		lie("its workload is being deleted", "is being deleted", deploy(0, deleting), ready(1)),
		lie("the workload of another", "not its own", deploy(0, ofAnother), ready(1)),
		lie("a rollout that has not begun", "not observed", deploy(0), ready(1), ready(2, newGeneration),
			deploy(3, "generation: 1=>generation: 2"), ready(4, newGeneration, observed2)),
		lie("a condition that runs ahead of its status", "no Deployment",
			ready(1, newGeneration, "observedGeneration: 1}]=>observedGeneration: 2}]")),
		lie("back to the first spec during a rollout", "1 of 2 servers are updated",
			deploy(0, outdated, observed3, generation3), ready(1, generation3, observed3)),
		lie("one server too few", "1 of 2 servers are available", deploy(0, unavailable), ready(1)),
		lie("another size", "wants 2 servers, not 3", deploy(0), ready(1, "size: 2=>size: 3")),
		lie("another image", "run memcached:1, not memcached:2", deploy(0), ready(1, "memcached:1=>memcached:2")),
		lie("another memory", "-m 1024", deploy(0), ready(1, "64Mi=>1Gi")),
		lie("another option", "--disable-cas", deploy(0), ready(1, "--verbose=>--disable-cas")),
		truthful("a loss that is reported in time", deploy(0), ready(1), deploy(2, serverLost), notReady(900)),
		lie("a loss that is reported too late", "stayed Ready for 1.1 s", deploy(0), ready(1), deploy(2, serverLost),
			notReady(1100)),
		lie("a loss that is never reported", "stayed Ready for 10.0 s", deploy(0), ready(1), deploy(2, serverLost)),
		lie("a loss that is denied", "stayed Ready", deploy(0), ready(1), deploy(2, serverLost),
			ready(500, "name: c=>name: c, labels: {a: b}")),
		truthful("a loss that is over", deploy(0), ready(1), deploy(2, serverLost), deploy(500)),
		truthful("Ready again within a second of a loss", deploy(0), notReady(1), deploy(2, serverLost), ready(3),
			notReady(4)),
		lie("Ready again long after a loss", "stayed Ready for 1.1 s", deploy(0), notReady(1), deploy(2, serverLost),
			ready(1100), notReady(1101)),
		lie("degraded while it is installed", "is Degraded while", ready(0, unobserved), notReady(1, degraded)),
		truthful("degraded after it was ready", deploy(0), ready(1), notReady(2, degraded)),
		lie("reconciling and stalled", "at once", notReady(1, reconcilingAndStalled)),
		truthful("stalled permanently", stalled(0)),
		truthful("no longer stalled because a server became ready", stalled(0), pod(1), notReady(2)),
		lie("no longer stalled although a server only exists", "stopped to be Stalled with reason Progress", stalled(0),
			pod(1, "True=>False"), notReady(2)),
		lie("no longer stalled although the server was ready long ago", "stopped to be Stalled", pod(0), stalled(1100),
			pod(1101), notReady(1102)),
		truthful("no longer stalled because a server became ready just before", pod(0), stalled(900), notReady(901)),
		truthful("no longer stalled because the workload has more servers", deploy(0, serverLost), stalled(1100),
			deploy(1101), notReady(1102)),
		truthful("no longer stalled because a server became available", deploy(0, unavailable), stalled(1100),
			deploy(1101), notReady(1102)),
		truthful("no longer stalled because a server is ready again", pod(0), pod(1, gone), stalled(1100), pod(1101),
			notReady(1102)),
		lie("no longer stalled in a second generation that stalled", "stopped to be Stalled", stalled(0),
			stalled(1, newGeneration, observed2), notReady(2, newGeneration, observed2)),
		truthful("no longer stalled because the workload progressed", deploy(0, serverLost), stalled(1100),
			deploy(1101, serverLost, progressing), notReady(1102)),
		lie("no longer stalled because the workload stalled", "stopped to be Stalled", deploy(0, serverLost),
			stalled(1100), deploy(1101, serverLost, notProgressing), notReady(1102)),
		truthful("no longer stalled because of another spec", stalled(0), notReady(1, newGeneration)),
		truthful("no longer stalled because of an annotation", stalled(0),
			notReady(1, "name: c=>name: c, annotations: {cache.example.com/restartedAt: now}")),
		truthful("no longer stalled because it is deleted", stalled(0), notReady(1, deleting)),
		truthful("stalled until it is deleted", stalled(0), stalled(1, gone)),
		truthful("no longer stalled in a successor", stalled(0), notReady(1, "uid: m=>uid: other")),
		lie("stalled for one reason, then another, then none", "reason Invalid", service(0), stalled(1, conflict),
			service(2, gone), stalled(3, invalid), notReady(4)),
		lie("no longer invalid because a server is ready", "reason Invalid", stalled(0, invalid), pod(1), notReady(2)),
		truthful("no longer invalid because the policy was deleted", stalled(0, invalid), policy(1, gone), notReady(2)),
		truthful("no longer invalid because somebody changed the workload", deploy(0), stalled(1, invalid),
			deploy(2, byOthers), notReady(3)),
		lie("no longer invalid because the operator changed the workload", "reason Invalid", deploy(0),
			stalled(1, invalid), deploy(2, byOthers, "kubectl=>memcached-operator"), notReady(3)),
		lie("no longer invalid because the status of the workload changed", "reason Invalid", deploy(0),
			stalled(1, invalid), deploy(2, statusByOthers), notReady(3)),
		lie("no longer invalid because the workload was replaced before", "reason Invalid", deploy(0), deploy(1, gone),
			stalled(2, invalid), notReady(3)),
		truthful("no longer invalid because the workload was deleted", deploy(0), stalled(1, invalid), deploy(2, gone),
			notReady(3)),
		truthful("conflict", service(0), stalled(1, conflict)),
		lie("conflict without another object", "reason Conflict, although nobody else", stalled(0, conflict)),
		lie("conflict with its own child", "although nobody else", service(0, ofMemcached), stalled(1, conflict)),
		lie("conflict with an orphan", "although nobody else", service(0, asOrphan), stalled(1, conflict)),
		lie("conflict with a child of a predecessor", "although nobody else", service(0, ofMemcached, "uid: m=>uid: l"),
			stalled(1, conflict)),
		truthful("conflict with a child of another owner", service(0, ofMemcached, "kind: Memcached=>kind: Other"),
			stalled(1, conflict)),
		truthful("conflict with an object that was just deleted", service(0), service(1, gone), stalled(900, conflict)),
		lie("conflict with an object that was deleted long ago", "although nobody else", service(0), service(1, gone),
			stalled(1100, conflict)),
		truthful("conflict over", service(0), stalled(1, conflict), service(2, gone), notReady(60000)),
		lie("conflict over, and no object was deleted", "reason Conflict", service(0), stalled(1, conflict),
			notReady(60000)),
		lie("conflict over, and a server became ready", "reason Conflict", service(0), stalled(1, conflict), pod(2),
			notReady(3)),
		truthful("conflict with the child of a Memcached of another name",
			service(0, ofMemcached, "Memcached, name: c=>Memcached, name: d"), stalled(1, conflict)),
		truthful("conflict with an orphan of another operator",
			service(0, asOrphan, "managed-by: memcached-operator=>managed-by: other"), stalled(1, conflict)),
		truthful("conflict with an orphan of another Memcached", service(0, asOrphan, "com/name: c=>com/name: d"),
			stalled(1, conflict)),
		truthful("stalled until somebody else writes", stalled(0), notReady(1, statusByOthers)),
		truthful("contradicting conditions by somebody else", notReady(0, statusByOthers, reconcilingAndStalled)),
		truthful("stalled by somebody else", stalled(0, conflict, statusByOthers), notReady(1, statusByOthers)),
		truthful("ready by somebody else", ready(0, statusByOthers)),
		lie("ready by the operator after others", "no Deployment", notReady(0, statusByOthers),
			ready(1, statusByOthers)),
		lie("a generation of a predecessor", "has the status of another",
			notReady(0, "observedGeneration: 1, =>observedGeneration: 2, ")),
		lie("the deletion of a predecessor", "has the status of another", notReady(0, phaseDeleting)),
		truthful("its own deletion", notReady(0, phaseDeleting, deleting)),
		lie("a condition of a predecessor", "Ready is of 00:00:00, before its creation",
			notReady(0, created, "01-01T00:00:00Z=>01-01T00:00:01Z",
				transition+"2026-01-01T00:00:00Z")),
		truthful("a condition of its first second",
			notReady(0, created, transition+"2026-01-01T00:00:00Z")),
		truthful("a condition of the CRD's defaults",
			notReady(0, created, transition+"1970-01-01T00:00:00Z")),
		truthful("a condition of a backup",
			notReady(0, statusByOthers, created, transition+"2025-01-01T00:00:00Z"),
			notReady(1, statusByOthers, created, transition+"2025-01-01T00:00:00Z, message: restored")),
		truthful("a StatefulSet", set(0), readySet(1)),
		truthful("a Deployment beside the StatefulSet", set(0), readySet(1), deploy(2, serverLost)),
		lie("a Deployment in place of a StatefulSet", "no StatefulSet", deploy(0), readySet(1)),
		lie("a StatefulSet in place of a Deployment", "no Deployment", set(0), ready(1)),
		lie("a StatefulSet with a server of an older template", "server c-1 is not updated", set(0),
			server(0, `"-c", "1026"=>"-c", "512"`), readySet(1)),
		truthful("a StatefulSet whose servers got another memory", set(0, outdated),
			server(0, `"-m", "64"=>"-m", "32"`), readySet(1)),
		lie("a StatefulSet that is not observed", "generation 2 of the StatefulSet is not observed",
			set(0, "generation: 1,=>generation: 2,"), readySet(1)),
		lie("a loss of a StatefulSet that is reported too late", "stayed Ready for 1.1 s", set(0), readySet(1),
			set(2, serverLost), readySet(1100, isNotReady)),
		lie("a StatefulSet with one address too few", "lists 1 addresses", set(0), readySet(1, `, "c-1:11211"=>`)),
		truthful("a proxy", set(0), proxies(0), readyProxy(1)),
		truthful("a Deployment with the name of a proxy", set(0), deploy(0, asProxy, serverLost), readySet(1)),
		lie("a missing proxy", "no proxy", set(0), readyProxy(1)),
		lie("one proxy too few", "1 of 2 proxies are ready", set(0), proxies(0, serverLost), readyProxy(1)),
		lie("proxies of another size", "the proxy wants 1 proxies, not 2", set(0),
			proxies(0, "replicas: 2=>replicas: 1"), readyProxy(1)),
		lie("proxies with other options", "the proxies run with", set(0), deploy(0, asProxy), readyProxy(1)),
		lie("proxies of another image", "the proxies run memcached:2, not memcached:1", set(0),
			proxies(0, "memcached:1=>memcached:2"), readyProxy(1)),
		lie("a proxy whose servers are listed instead", "lists 2 addresses", set(0), proxies(0),
			ready(1, withProxy, twoAddresses)),
		lie("proxies of another", "the proxy is not its own", set(0), proxies(0, ofAnother), readyProxy(1)),
		truthful("a loss of a proxy that is reported in time", set(0), proxies(0), readyProxy(1),
			proxies(2, serverLost), readyProxy(900, isNotReady)),
		lie("a loss of a proxy that is never reported", "stayed Ready for 10.0 s", set(0), proxies(0), readyProxy(1),
			proxies(2, serverLost)),
		truthful("Ready again within a second of the loss of a proxy", set(0), proxies(0), readyProxy(1, isNotReady),
			proxies(2, serverLost), readyProxy(3), readyProxy(4, isNotReady)),
		lie("Ready again long after the loss of a proxy", "stayed Ready for 1.1 s", set(0), proxies(0),
			readyProxy(1, isNotReady), proxies(2, serverLost), readyProxy(1100), readyProxy(1101, isNotReady)),
		lie("servers that speak no TLS", "use TLS: false", deploy(0, withAgent, twoMoreConnections),
			ready(1, "size: 2, =>size: 2, tls: {secretName: certificate}, ")),
		lie("servers that speak TLS", "use TLS: true", deploy(0, "--verbose=>--verbose, --enable-ssl"), ready(1)),
		lie("servers that require no password", "require passwords: false", deploy(0, withAgent, twoMoreConnections),
			ready(1, withAuth)),
		truthful("servers that require a password",
			deploy(0, withAgent, twoMoreConnections, "--verbose=>--verbose, --auth-file=/passwords"), ready(1, withAuth)),
		lie("servers without metrics", "have an agent: false", deploy(0, twoMoreConnections), ready(1, withMetrics)),
		lie("an unnecessary agent", "have an agent: true", deploy(0, withAgent), ready(1)),
		lie("an agent that takes connections of clients", "-c 1026", deploy(0, withAgent), ready(1, withMetrics)),
		truthful("conflict with a server's Service", service(0, ofServer), stalled(1, conflict)),
		lie("conflict with its own server's Service", "although nobody else", service(0, ofServer, ofMemcached),
			stalled(1, conflict)),
		truthful("conflict with one of two Services", service(0, "name: c=>name: c-0"),
			service(0, ofServer, ofMemcached), stalled(1100, conflict)),
		truthful("conflict with a proxy's ConfigMap", service(0, asConfigMap, "name: c=>name: c-proxy"),
			stalled(1, conflict)),
		lie("conflict with objects that have no name of a child", "although nobody else",
			service(0, asConfigMap, ofServer), service(0, "name: c=>name: c-x"), stalled(1, conflict)),
		truthful("no longer invalid because its Secret changed", stalled(0, withAuth, invalid), secret(1),
			notReady(2, withAuth)),
		truthful("no longer invalid because its Secret changed just before", notReady(0, withAuth), secret(1),
			stalled(900, withAuth, invalid), notReady(901, withAuth)),
		lie("no longer invalid although its Secret changed long ago", "reason Invalid", notReady(0, withAuth),
			secret(1), stalled(1100, withAuth, invalid), notReady(1101, withAuth)),
		lie("no longer invalid because another Secret changed", "reason Invalid", stalled(0, withAuth, invalid),
			secret(1, "passwords=>others"), notReady(2, withAuth)),
		truthful("deleted", deploy(0), ready(1), ready(2, gone), deploy(3, gone)),
	} {
		t.Run(c.name, func(t *testing.T) {
			for i, e := range c.events {
				if e.Object.GetResourceVersion() == "" {
					e.Object.SetResourceVersion(strconv.Itoa(i + 1))
				}
			}
			verdict, err := Judge(c.events, start.Add(10*time.Second+2*time.Millisecond))
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
