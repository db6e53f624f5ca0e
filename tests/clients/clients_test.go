// Package clients runs the programs of docs/how-to/clients against the servers of Memcacheds, on the cluster that
// CLUSTER names: node (default) or kind.
package clients

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/yaml"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/internal/testing/harness"
	"github.com/example/memcached-operator/tests/cluster"
)

// programs are the commands of the programs in cluster.ClientsImage.
var programs = map[string][]string{
	"gomemcache": {"gomemcache"},
	"pymemcache": {"python3", "/clients/pymemcache/main.py"},
	"pylibmc":    {"python3", "/clients/pylibmc/main.py"},
	"dalli":      {"ruby", "/clients/dalli/main.rb"},
	"php":        {"php", "/clients/php/main.php"},
}

// secured are the commands of the programs that use TLS.
var secured = map[string][]string{
	"gomemcache": {"gomemcache-tls"},
	"pymemcache": {"python3", "/clients/pymemcache-tls/main.py"},
	"dalli":      {"ruby", "/clients/dalli-tls/main.rb"},
}

// caches are Memcacheds with the other kinds of status.servers than git/sessions.yaml.
var caches = map[string]v1alpha1.MemcachedSpec{
	"addresses": {Workload: v1alpha1.WorkloadStatefulSet, ServerAddresses: v1alpha1.AddressesClusterIP},
	"proxied":   {Workload: v1alpha1.WorkloadStatefulSet, Proxy: &v1alpha1.ProxySpec{}},
}

// resolvesOnce is the program that docs/how-to/clients/gomemcache.md advises against: gomemcache with names of servers,
// which it resolves only once.
const resolvesOnce = "gomemcache-sessions"

// TestClients: each client finds all keys. When a server is deleted, the client misses only the keys of that server, or
// behind proxies none, because the items move, and finds all keys again afterwards, without an error.
func TestClients(t *testing.T) {
	w := setUp(t)
	configured := w.apply("git/sessions.yaml")
	names := []string{"sessions"}
	for name, spec := range caches {
		spec.Size = ptr.To[int32](3)
		w.create(name, spec)
		names = append(names, name)
	}
	var pods []string
	for _, name := range names {
		servers := w.servers(name)
		if name == "sessions" {
			require.Equal(t, configured, servers)
		}
		for program, command := range programs {
			w.start(program+"-"+name, command, map[string]string{"MEMCACHED_SERVERS": servers})
			pods = append(pods, program+"-"+name)
		}
	}
	for _, pod := range pods {
		w.eventually("wait until all keys are found", func() error {
			found := w.found(pod)
			if slices.Contains(found, 100) {
				return nil
			}
			if w.phase(pod) == corev1.PodFailed {
				t.Fatalf("%s failed: %s", pod, w.log(pod))
			}
			return fmt.Errorf("%s found %v of 100 keys", pod, found)
		})
	}
	for _, name := range names {
		w.must(w.Delete(w.ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name + "-1"}}))
	}
	for _, pod := range pods {
		if pod != resolvesOnce {
			w.exits(pod, corev1.PodSucceeded)
		}
	}
	for _, pod := range pods {
		found := w.found(pod)
		t.Logf("%s found %v", pod, found)
		found = found[slices.Index(found, 100):]
		if least := slices.Min(found); least < 30 || (least == 100) != strings.HasSuffix(pod, "-proxied") {
			t.Errorf("%s found at least %d keys while one of three servers was replaced", pod, least)
		}
		if last := found[len(found)-1]; (last == 100) == (pod == resolvesOnce) {
			t.Errorf("%s found %d keys in the last round", pod, last)
		}
	}
}

// TestSecured: servers with TLS serve clients that trust the CA and know the password, and refuse clients with a wrong
// password. Clients that trust another CA fail.
func TestSecured(t *testing.T) {
	w := setUp(t)
	name := "private." + w.ns + ".svc"
	names := []string{"*." + name, "*.encrypted." + w.ns + ".svc"}
	certificate, key, err := cert.GenerateSelfSignedCertKey(name, nil, names)
	w.must(err)
	foreign, _, err := cert.GenerateSelfSignedCertKey(name, nil, names)
	w.must(err)
	w.must(w.Create(w.ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "ca"},
		Data:       map[string]string{"own.crt": string(certificate), "foreign.crt": string(foreign)},
	}))
	w.must(w.Create(w.ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "access"},
		Data:       map[string][]byte{"tls.crt": certificate, "tls.key": key, "authfile": []byte("client:secret\n")},
	}))
	spec := v1alpha1.MemcachedSpec{Size: ptr.To[int32](2), Workload: v1alpha1.WorkloadStatefulSet,
		TLS: &v1alpha1.TLSSpec{SecretName: "access"}}
	w.create("encrypted", spec)
	spec.Auth = &v1alpha1.AuthSpec{SecretName: "access"}
	w.create("private", spec)

	for program, command := range secured {
		env := map[string]string{"MEMCACHED_CA": "/ca/own.crt", "MEMCACHED_NAME": name, "MEMCACHED_USER": "client",
			"MEMCACHED_PASSWORD": "secret"}
		if program == "dalli" { // dalli cannot log in with a password
			env["MEMCACHED_SERVERS"] = w.servers("encrypted")
		} else {
			env["MEMCACHED_SERVERS"] = w.servers("private")
			env["MEMCACHED_PASSWORD"] = "wrong"
			w.start(program+"-wrong", command, env)
			env["MEMCACHED_PASSWORD"] = "secret"
		}
		w.start(program, command, env)
		env["MEMCACHED_CA"] = "/ca/foreign.crt"
		w.start(program+"-foreign", command, env)
	}
	for program := range secured {
		w.exits(program, corev1.PodSucceeded)
		w.exits(program+"-foreign", corev1.PodFailed, "certificate")
		if program != "dalli" {
			w.exits(program+"-wrong", corev1.PodFailed, "login")
		}
	}
}

// world is the cluster and a namespace of the test.
type world struct {
	client.Client
	*testing.T
	ctx  context.Context
	pods corev1client.PodInterface
	ns   string
}

// load builds and loads the image of the clients, once.
var load = sync.OnceValues(func() (*rest.Config, error) {
	log.SetLogger(log.Log)
	under, err := cluster.New(os.Getenv("CLUSTER"))
	if err != nil {
		return nil, err
	}
	err = errors.Join(v1alpha1.AddToScheme(clientgoscheme.Scheme), under.LoadClients(context.Background()))
	if err != nil {
		return nil, err
	}
	config := under.KubernetesRestConfig()
	config.QPS = -1
	return config, nil
})

// setUp creates a namespace that enforces the restricted Pod Security Standard.
func setUp(t *testing.T) world {
	ctx := t.Context()
	cluster.Need(t, "clients-e2e CLUSTER=node")
	config, err := load()
	require.NoError(t, err)
	api, err := client.New(config, client.Options{Scheme: clientgoscheme.Scheme})
	require.NoError(t, err)
	core, err := corev1client.NewForConfig(config)
	require.NoError(t, err)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "clients-", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}}
	require.NoError(t, api.Create(ctx, ns))
	t.Cleanup(func() { require.NoError(t, api.Delete(context.Background(), ns)) })
	return world{Client: api, T: t, ctx: ctx, pods: core.Pods(ns.Name), ns: ns.Name}
}

func (w world) must(err error) {
	w.Helper()
	harness.Must(w, err)
}

func (w world) eventually(what string, try func() error) {
	w.Helper()
	harness.Eventually(w, what, harness.Patience, try)
}

func (w world) create(name string, spec v1alpha1.MemcachedSpec) {
	w.Helper()
	w.must(w.Create(w.ctx, &v1alpha1.Memcached{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}, Spec: spec}))
}

// apply creates the objects of a file in the test's namespace, and returns MEMCACHED_SERVERS of its ConfigMap.
func (w world) apply(file string) string {
	w.Helper()
	text, err := os.ReadFile(file)
	w.must(err)
	text = bytes.ReplaceAll(text, []byte("default"), []byte(w.ns))
	var config corev1.ConfigMap
	for part := range bytes.SplitSeq(text, []byte("---\n")) {
		object := &unstructured.Unstructured{}
		w.must(yaml.UnmarshalStrict(part, &object.Object))
		w.must(w.Create(w.ctx, object))
		if object.GetKind() == "ConfigMap" {
			w.must(yaml.UnmarshalStrict(part, &config))
		}
	}
	return config.Data["MEMCACHED_SERVERS"]
}

// servers waits until a Memcached is ready, and returns the addresses in its status, separated by commas.
func (w world) servers(name string) string {
	w.Helper()
	mc := &v1alpha1.Memcached{}
	w.eventually("wait until ready", func() error {
		err := w.Get(w.ctx, client.ObjectKey{Namespace: w.ns, Name: name}, mc)
		if err == nil && !meta.IsStatusConditionTrue(mc.Status.Conditions, v1alpha1.ConditionReady) {
			err = fmt.Errorf("%s: conditions %v", name, mc.Status.Conditions)
		}
		return err
	})
	return strings.Join(mc.Status.Servers, ",")
}

// start runs a command in a pod.
func (w world) start(name string, command []string, env map[string]string) {
	w.Helper()
	vars := []corev1.EnvVar{}
	for name, value := range env {
		vars = append(vars, corev1.EnvVar{Name: name, Value: value})
	}
	w.must(w.Create(w.ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name},
		Spec: corev1.PodSpec{
			RestartPolicy:                 corev1.RestartPolicyNever,
			AutomountServiceAccountToken:  ptr.To(false),
			TerminationGracePeriodSeconds: ptr.To[int64](0),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](65534),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: "client", Image: cluster.ClientsImage, Command: command, Env: vars,
				VolumeMounts: []corev1.VolumeMount{{Name: "ca", MountPath: "/ca"}},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true),
					Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
			Volumes: []corev1.Volume{{Name: "ca", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: "ca"}, Optional: ptr.To(true)}}}},
		},
	}))
}

var report = regexp.MustCompile(`(?m)^(\d+) of 100 keys found$`)

// found returns how many keys a client has found in each round so far.
func (w world) found(pod string) (list []int) {
	for _, match := range report.FindAllStringSubmatch(w.log(pod), -1) {
		n, err := strconv.Atoi(match[1])
		w.must(err)
		list = append(list, n)
	}
	return list
}

// log returns the output of a client so far.
func (w world) log(pod string) string {
	out, err := w.pods.GetLogs(pod, &corev1.PodLogOptions{}).DoRaw(w.ctx)
	if err != nil {
		return err.Error()
	}
	return string(out)
}

// exits waits until a client has exited, and fails unless its pod is in this phase and its output contains the reason.
func (w world) exits(pod string, want corev1.PodPhase, reason ...string) {
	w.Helper()
	var phase corev1.PodPhase
	w.eventually("wait until "+pod+" exits", func() error {
		if phase = w.phase(pod); phase != corev1.PodSucceeded && phase != corev1.PodFailed {
			return fmt.Errorf("%s is %s", pod, phase)
		}
		return nil
	})
	output := w.log(pod)
	if phase != want || !strings.Contains(output, strings.Join(reason, "")) {
		w.Errorf("%s has %s, want %s %s: %s", pod, phase, want, reason, output)
	}
}

func (w world) phase(name string) corev1.PodPhase {
	pod := &corev1.Pod{}
	w.must(w.Get(w.ctx, client.ObjectKey{Namespace: w.ns, Name: name}, pod))
	return pod.Status.Phase
}
