package api

import (
	"encoding/json"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	psa "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"

	"github.com/example/memcached-operator/internal/testing/manifest"
)

// bothContexts are fields of the security contexts of pods and containers that ask for more than the baseline Pod
// Security Standard allows, by its controls.
// https://kubernetes.io/docs/concepts/security/pod-security-standards/#baseline
var bothContexts = []struct{ control, field, value, message string }{
	{"host processes", "windowsOptions", "{hostProcess: true}", "hostProcess must not be true"},
	{"AppArmor", "appArmorProfile", "{type: Unconfined}", "type must be RuntimeDefault or Localhost"},
	{"SELinux", "seLinuxOptions", "{type: spc_t}", "type must be container_t, container_init_t, container_kvm_t"},
	{"SELinux", "seLinuxOptions", "{user: system_u}", "user and role must not be set"},
	{"SELinux", "seLinuxOptions", "{role: system_r}", "user and role must not be set"},
	{"seccomp", "seccompProfile", "{type: Unconfined}", "type must be RuntimeDefault or Localhost"},
}

// baseline are such fields that only one of the contexts has, or spec.pod. Where no field is named, there is none. The
// others are added below.
var baseline = []struct{ control, pod, field, message string }{
	{"host namespaces", `{hostNetwork: true}`, "", `unknown field "spec.pod.hostNetwork"`},
	{"host namespaces", `{hostPID: true}`, "", `unknown field "spec.pod.hostPID"`},
	{"host namespaces", `{hostIPC: true}`, "", `unknown field "spec.pod.hostIPC"`},
	{"hostPath volumes", `{volumes: []}`, "", `unknown field "spec.pod.volumes"`},
	{"host ports, probes and hooks", `{containers: []}`, "", `unknown field "spec.pod.containers"`},
	{"host ports, probes and hooks", `{initContainers: []}`, "", `unknown field "spec.pod.initContainers"`},
	{"privileged containers", `{containerSecurityContext: {privileged: true}}`,
		"containerSecurityContext.privileged", "must not be true"},
	{"capabilities", `{containerSecurityContext: {capabilities: {add: [SYS_ADMIN]}}}`,
		"containerSecurityContext.capabilities.add", "must be among those of the baseline Pod Security Standard"},
	{"capabilities", `{containerSecurityContext: {capabilities: {add: [CHOWN, CAP_KILL]}}}`,
		"containerSecurityContext.capabilities.add", "must be among those"},
	{"AppArmor", `{annotations: {container.apparmor.security.beta.kubernetes.io/memcached: unconfined}}`,
		"annotations", "must not use the prefix container.apparmor.security.beta.kubernetes.io/"},
	{"proc mount", `{containerSecurityContext: {procMount: Unmasked}}`, "containerSecurityContext.procMount",
		"must be Default"},
	{"sysctls", `{securityContext: {sysctls: [{name: kernel.shm_rmid_forced, value: "1"}, {name: kernel.msgmax,
		value: "1"}]}}`, "securityContext.sysctls", "must be among those of the baseline Pod Security Standard"},
}

func init() {
	for _, tt := range bothContexts {
		for _, context := range []string{"securityContext", "containerSecurityContext"} {
			row := baseline[0]
			row.control, row.field, row.message = tt.control, context+"."+tt.field, tt.message
			row.pod = fmt.Sprintf("{%s: {%s: %s}}", context, tt.field, tt.value)
			baseline = append(baseline, row)
		}
	}
}

// TestBaseline: the API server refuses each spec of a pod that exceeds the baseline Pod Security Standard, whatever Pod
// Security admission does in the namespace. TestChildren shows that nothing else exceeds it, and specs.Accepted has
// values that the standard allows.
func TestBaseline(t *testing.T) {
	for _, tt := range baseline {
		t.Run(tt.control, func(t *testing.T) {
			field := tt.field
			if field != "" {
				field = "spec.pod." + field
			}
			mustRefuse(t, document(`{pod: `+tt.pod+`}`), field, tt.message)
			if field == "" {
				return
			}
			for _, child := range children(manifest.Parse(t, manifest.Named("test", `{pod: `+tt.pod+`}`))) {
				if template := manifest.PodTemplate(child); template != nil && exceedsBaseline(t, template) == nil {
					t.Error("Pod Security admission allows such a pod at the level baseline")
				}
			}
		})
	}
}

// exceedsBaseline returns an error if Pod Security admission would refuse a pod of this template at the level baseline.
func exceedsBaseline(t *testing.T, template *corev1ac.PodTemplateSpecApplyConfiguration) error {
	t.Helper()
	var pod corev1.PodTemplateSpec
	content, err := json.Marshal(template)
	if err == nil {
		err = json.Unmarshal(content, &pod)
	}
	if err != nil {
		t.Fatal(err)
	}
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	level := psa.LevelVersion{Level: psa.LevelBaseline, Version: psa.LatestVersion()}
	result := policy.AggregateCheckResults(evaluator.EvaluatePod(level, &pod.ObjectMeta, &pod.Spec))
	if !result.Allowed {
		return fmt.Errorf("the pod exceeds the baseline Pod Security Standard: %s", result.ForbiddenDetail())
	}
	return nil
}
