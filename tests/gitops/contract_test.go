package gitops

import (
	"fmt"
	"strings"

	"github.com/argoproj/gitops-engine/pkg/health"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const restartedAt = "cache.example.com/restartedAt"

// row is a state of a Memcached from the table in docs/reference/status.md, with its health in Argo CD.
type row struct {
	name     string
	observed string // current, older, or none
	// conditions are "type=status" or "type=status/reason". Reconciling and Stalled must not exist unless they are named.
	conditions string
	phase      string
	health     health.HealthStatusCode
}

var contract = []row{
	{"not-seen", "none", "Ready=Unknown/Pending Available=Unknown/Pending", "Pending", health.HealthStatusProgressing},
	{"new-spec", "older", "Ready=True", "Ready", health.HealthStatusProgressing},
	{"rolling-out", "current", "Ready=False Reconciling=True/RollingOut Degraded=False", "Progressing",
		health.HealthStatusProgressing},
	{"resizing", "current", "Ready=False Reconciling=True/Resizing Available=True Degraded=False", "Progressing",
		health.HealthStatusProgressing},
	{"ready", "current", "Ready=True Available=True Degraded=False", "Ready", health.HealthStatusHealthy},
	{"ready-at-zero", "current", "Ready=True Available=False/ScaledToZero Degraded=False", "Ready",
		health.HealthStatusHealthy},
	{"server-lost", "current", "Ready=False Reconciling=True Degraded=True/ServersLost", "Degraded",
		health.HealthStatusProgressing},
	{"retry", "current", "Ready=False Reconciling=True/ProgressingWithRetry Degraded=False", "Progressing",
		health.HealthStatusProgressing},
	{"invalid", "current", "Ready=False Stalled=True/Invalid Degraded=True", "Degraded", health.HealthStatusDegraded},
	{"conflict", "current", "Ready=False Stalled=True/Conflict Degraded=True", "Degraded", health.HealthStatusDegraded},
	{"deadline", "current", "Ready=False Stalled=True/ProgressDeadlineExceeded Degraded=True", "Degraded",
		health.HealthStatusDegraded},
	{"paused", "current", "Ready=True Degraded=False", "Paused", health.HealthStatusSuspended},
	{"paused-drifted", "current", "Ready=False/Paused", "Paused", health.HealthStatusSuspended},
	{"deleting", "current", "Ready=False/Deleting Degraded=True/Finalizing", "Deleting", health.HealthStatusProgressing},
}

func (r row) path() string { return "testdata/" + r.name + ".yaml" }

// mismatch returns why obj does not match this row; "" if it does.
func (r row) mismatch(obj *unstructured.Unstructured) string {
	observed := "older"
	switch generation, _, _ := unstructured.NestedInt64(obj.Object, "status", "observedGeneration"); {
	case generation == -1:
		observed = "none"
	case generation == obj.GetGeneration():
		observed = "current"
	}
	if observed != r.observed {
		return "observedGeneration is " + observed
	}
	if phase, _, _ := unstructured.NestedString(obj.Object, "status", "phase"); phase != r.phase {
		return "phase is " + phase
	}
	got := conditions(obj)
	for _, want := range strings.Fields(r.conditions) {
		name, _, _ := strings.Cut(want, "=")
		if got[name] != want && !strings.HasPrefix(got[name], want+"/") {
			return fmt.Sprintf("%s is %q, not %s", name, got[name], want)
		}
	}
	for _, name := range []string{"Reconciling", "Stalled"} {
		if got[name] != "" && !strings.Contains(r.conditions, name) {
			return got[name]
		}
	}
	return ""
}

// conditions returns the conditions of obj as "type=status/reason", by type.
func conditions(obj *unstructured.Unstructured) map[string]string {
	list, _, _ := unstructured.NestedSlice(obj.Object, "status", "conditions")
	got := map[string]string{}
	for _, c := range list {
		c := c.(map[string]any)
		name := c["type"].(string)
		got[name] = fmt.Sprintf("%s=%s/%s", name, c["status"], c["reason"])
	}
	return got
}
