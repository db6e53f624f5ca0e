package desired

import (
	"testing"

	"github.com/example/memcached-operator/tests/manifest"
)

// TestSecretsInTemplate: servers stay whatever is in their Secrets, unless memcached must forget a CA.
func TestSecretsInTemplate(t *testing.T) {
	t.Parallel()
	mc := manifest.Parse(t, manifest.Named("m", "{size: 3, tls: {secretName: certificate, clientAuth: Require}}"))
	options := Options{DefaultImage: "memcached:1", AgentImage: "operator:1"}
	with := func(own *Workload, version, digest string, authorities ...string) *Workload {
		in := Resolve(mc, own, Secrets{TLS: &Secret{Name: "certificate", Version: version, Digest: digest,
			Authorities: authorities}}, options)
		return ReadWorkload(deployment(mc, in))
	}
	first := with(nil, "1", "one", "a")
	if known := KnownSecrets(first).TLS; known == nil || known.Version != "1" || known.Digest != "one" {
		t.Errorf("remembers %+v", known)
	}
	for name, tt := range map[string]struct {
		version, digest string
		authorities     []string
	}{
		"equal content":                  {"2", "one", []string{"a"}},
		"another certificate":            {"2", "two", []string{"a"}},
		"a CA that was added":            {"2", "two", []string{"a", "b"}},
		"a CA that was added in between": {"2", "two", []string{"0", "a"}},
	} {
		now := with(first, tt.version, tt.digest, tt.authorities...)
		known := KnownSecrets(now).TLS
		if !now.SameTemplate(first) || known.Version != tt.version || known.Digest != tt.digest {
			t.Errorf("%s changes the template, or is not remembered: %+v", name, known)
		}
	}
	both := with(first, "2", "two", "a", "b")
	gone := with(both, "3", "three", "a")
	if gone.SameTemplate(both) {
		t.Error("a CA that was taken out changes no template, and memcached goes on to trust it")
	}
	for _, again := range []*Workload{with(gone, "3", "three", "a"), with(gone, "4", "three", "a"),
		with(gone, "4", "four", "a", "b")} {
		if !again.SameTemplate(gone) {
			t.Error("a CA that was taken out replaces servers twice")
		}
	}
	if with(with(gone, "4", "four", "a", "b"), "5", "five", "a").SameTemplate(gone) {
		t.Error("a CA that was taken out again changes no template")
	}

	mc.Spec.Memory = "128Mi"
	held := Resolve(mc, first, Secrets{}, options).Hold(first)
	if now := ReadWorkload(deployment(mc, held)); !now.SameTemplate(first) ||
		KnownSecrets(now).TLS.Digest != KnownSecrets(first).TLS.Digest {
		t.Error("without its Secret the template changes, or what is remembered")
	}
	for _, child := range Children(mc, Resolve(mc, nil, Secrets{}, options).Hold(nil)) {
		if ReadWorkload(child) != nil {
			t.Error("without its Secret a workload is created")
		}
	}
}

// TestAgentImage: a newer image of the agent comes with servers that are replaced anyway, and not before.
func TestAgentImage(t *testing.T) {
	t.Parallel()
	mc := manifest.Parse(t, manifest.Named("m", "{metrics: {}}"))
	image := func(w *Workload) string { return *w.Template.Spec.InitContainers[0].Image }
	with := func(own *Workload, agent string) *Workload {
		return ReadWorkload(deployment(mc, Resolve(mc, own, Secrets{}, Options{DefaultImage: "m:1", AgentImage: agent})))
	}
	first := with(nil, "operator:1")
	if upgraded := with(first, "operator:2"); !upgraded.SameTemplate(first) {
		t.Error("an upgrade of the operator replaces servers")
	}
	mended := with(&Workload{Annotations: first.Annotations, Template: with(nil, "somebody:else").Template}, "operator:2")
	if !mended.SameTemplate(first) {
		t.Errorf("a change of somebody else brings the image %s", image(mended))
	}
	mc.Spec.Memory = "128Mi"
	if changed := with(first, "operator:2"); image(changed) != "operator:2" {
		t.Errorf("servers that are replaced anyway get the image %s", image(changed))
	}
}
