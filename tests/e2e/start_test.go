package e2e

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/e2e-framework/pkg/features"
	"sigs.k8s.io/yaml"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/desired"
	"github.com/example/memcached-operator/internal/testing/manifest"
	"github.com/example/memcached-operator/internal/testing/specs"
)

// memcacheds is the number of memcached processes that run in one container at the same time.
const memcacheds = 60

// TestEveryAcceptedSpecStarts: a real memcached starts and answers with the arguments of each spec that the API server
// accepts.
func TestEveryAcceptedSpecStarts(t *testing.T) {
	needRealPods(t)
	t.Parallel()
	testEnv.Test(t, features.New("a memcached starts for every accepted spec").Assess("and answers", step(func(w world) {
		all := w.allArguments()
		w.Logf("%d different lists of arguments", len(all))
		if len(all) < 200 {
			w.Errorf("these are too few to prove anything")
		}
		w.passwords("passwords", "app:"+password)
		ours := w.newCA()
		ours.certificate("certificate", "localhost")
		own := ours.issue("client")
		for i := 0; i < len(all); i += memcacheds {
			w.startAll(all[i:min(i+memcacheds, len(all))], ours.Trust("localhost", own))
		}
	})).Feature())
}

// allArguments returns memcached's arguments for all accepted specs, each list once and without the port. It omits
// --enable-largepages, because not every node has large pages.
func (w world) allArguments() (all [][]string) {
	w.Helper()
	seen := map[string]bool{}
	for _, spec := range append(specs.Generate(1200), specs.Accepted...) {
		mc := &v1alpha1.Memcached{}
		w.must(yaml.Unmarshal([]byte(`{metadata: {name: test}, spec: `+spec+`}`), mc))
		mc.Namespace = w.ns
		if err := w.Create(w.ctx, mc, client.DryRunAll); err != nil {
			continue
		}
		inputs := desired.Resolve(mc, desired.Current{}, desired.Options{DefaultImage: "memcached"})
		for _, child := range desired.NewPlan(mc, inputs).Children {
			if config, ok := child.(*corev1ac.ConfigMapApplyConfiguration); ok {
				config.Data["servers"] += "127.0.0.1:1\n" // nothing listens there, and no name is resolved
				w.must(client.IgnoreAlreadyExists(w.Create(w.ctx, &corev1.ConfigMap{
					ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: *config.Name}, Data: config.Data})))
			}
			template := manifest.PodTemplate(child)
			if template == nil {
				continue
			}
			args := template.Spec.Containers[0].Args
			port := slices.Index(args, "-p")
			args = slices.Delete(slices.Clone(args), port, port+2)
			if key := strings.Join(args, " "); !seen[key] && !slices.Contains(args, "--enable-largepages") {
				seen[key] = true
				all = append(all, args)
			}
		}
	}
	return all
}

// startAll starts a memcached for each list of arguments, each on its own port, and asks it for its version. With more
// connections than the container may have open files, memcached refuses to start. The API server cannot know that
// limit.
func (w world) startAll(lists [][]string, trust *tls.Config) {
	w.Helper()
	const firstPort = 20000
	var script strings.Builder
	script.WriteString("echo limit $(ulimit -Hn)\n")
	for i, args := range lists {
		fmt.Fprintf(&script, "(memcached -p %d '%s' 2>&1; echo ended %[1]d $?) &\n", firstPort+i, strings.Join(args, "' '"))
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, GenerateName: "start-"},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: ptr.To(int64(0)),
			SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To(int64(11211)),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Volumes: []corev1.Volume{
				{Name: "tls", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "certificate"}}},
				{Name: "auth", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "passwords"}}},
				{Name: "proxy", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
					LocalObjectReference: corev1.LocalObjectReference{Name: "test-proxy"}}}},
			},
			Containers: []corev1.Container{{Name: "memcached", Image: "docker.io/library/memcached:1.6", Command: []string{"sh",
				"-c", script.String() + "wait"},
				VolumeMounts: []corev1.VolumeMount{{Name: "tls", MountPath: "/etc/memcached/tls"},
					{Name: "auth", MountPath: "/etc/memcached/auth"}, {Name: "proxy", MountPath: "/etc/memcached/proxy"}},
				SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: ptr.To(false),
					Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}}},
		},
	}
	w.must(w.Create(w.ctx, pod))
	var log string
	var limit int
	w.eventually("run a container", func() (err error) {
		w.must(w.Get(w.ctx, client.ObjectKeyFromObject(pod), pod))
		if pod.Status.PodIP == "" {
			return errors.New("the pod has no address")
		}
		if log, err = w.kubectl("logs", pod.Name); err == nil {
			_, err = fmt.Sscanf(log, "limit %d\n", &limit)
		}
		return err
	})
	for i, args := range lists {
		conns, err := strconv.Atoi(args[slices.Index(args, "-c")+1])
		w.must(err)
		port := firstPort + i
		if conns > limit {
			w.eventually("memcached refuses to start with too many connections", func() error {
				log, err := w.kubectl("logs", pod.Name)
				if err == nil && !strings.Contains(log, fmt.Sprintf("ended %d 71\n", port)) {
					err = fmt.Errorf("%q with a limit of %d", args, limit)
				}
				return err
			})
			continue
		}
		w.eventually(fmt.Sprintf("memcached %q answers", args), func() error {
			c := memcachedClient{address: net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(port))}
			if slices.Contains(args, "--enable-ssl") {
				c.tls = trust
			}
			if slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "--auth-file=") }) {
				c.login = "app " + password
			}
			err := c.askVersion()
			if err == nil {
				return nil
			}
			if log, logErr := w.kubectl("logs", pod.Name); logErr != nil || strings.Contains(log, fmt.Sprintf("ended %d ",
				port)) {
				w.Fatalf("memcached %q on port %d: %v, %v\n%s", args, port, err, logErr, log)
			}
			return err
		})
	}
	w.must(w.Delete(w.ctx, pod))
}

// askVersion asks a memcached for its version.
func (c memcachedClient) askVersion() error {
	conn, err := c.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	answer, err := ask(conn, "version")
	if err == nil && !strings.HasPrefix(answer, "VERSION ") {
		err = errors.New("memcached answers " + strconv.Quote(answer))
	}
	return err
}
