package desired

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/credentials"
	"github.com/example/memcached-operator/internal/testing/manifest"
	"github.com/example/memcached-operator/internal/testing/testca"
)

// ca is a CA with an ID that expires in so many hours.
func ca(id string, hours int) credentials.CA {
	end := time.Now().Add(time.Duration(hours) * time.Hour)
	return credentials.CA{ID: id, NotAfter: end.UTC().Truncate(time.Second)}
}

// TestRevocation: servers are replaced only if memcached must stop trusting a CA.
func TestRevocation(t *testing.T) {
	t.Parallel()
	type cas = []credentials.CA
	for name, tt := range map[string]struct {
		known, now cas
		restart    string
		last       int // hours after which no CA of the record is valid
	}{
		"no CAs":                             {nil, nil, "", 0},
		"the same":                           {cas{ca("a", 1)}, cas{ca("a", 1)}, "", 1},
		"added":                              {cas{ca("b", 1)}, cas{ca("a", 1), ca("b", 1)}, "", 1},
		"removed":                            {cas{ca("a", 1), ca("b", 1)}, cas{ca("a", 1)}, "2", 1},
		"replaced":                           {cas{ca("a", 1)}, cas{ca("b", 1)}, "2", 1},
		"removed after it expired":           {cas{ca("a", 1), ca("b", -1)}, cas{ca("a", 1)}, "", 1},
		"renewed with the same key":          {cas{ca("a", 1)}, cas{ca("a", 9)}, "", 9},
		"renewed beside the old one":         {cas{ca("a", 1)}, cas{ca("a", 9), ca("a", 1)}, "", 9},
		"renewed, then the old one removed":  {cas{ca("a", 9), ca("a", 1)}, cas{ca("a", 9)}, "", 9},
		"renewed, then the new one removed":  {cas{ca("a", 9), ca("a", 1)}, cas{ca("a", 1)}, "", 9},
		"both removed, one of which expired": {cas{ca("a", 9), ca("a", -1)}, cas{ca("b", 1)}, "2", 1},
	} {
		known := &Secret{Name: "s", Version: "1", CAs: tt.known}
		next := (&Secret{Name: "s", Version: "2", CAs: tt.now}).WithRevocation(known, time.Now())
		var last time.Time
		for _, a := range next.CAs {
			if a.NotAfter.After(last) {
				last = a.NotAfter
			}
		}
		if next.RevokedVersion != tt.restart || tt.last > 0 && last.After(time.Now().Add(time.Duration(tt.last)*time.Hour)) ||
			tt.last > 0 && last.Before(time.Now().Add(time.Duration(tt.last)*time.Hour-time.Minute)) {
			t.Errorf("%s: restart %q, %v is trusted last", name, next.RevokedVersion, last)
		}
		if again := next.WithRevocation(next, time.Now()); again.RevokedVersion != next.RevokedVersion {
			t.Errorf("%s: restarts twice", name)
		}
	}
	known := &Secret{Name: "s", CAs: cas{ca("a", 1)}, RevokedVersion: "1"}
	if (&Secret{Name: "s", Version: "2", CAs: cas{ca("a", 1)}}).WithRevocation(known, time.Now()).RevokedVersion != "1" {
		t.Error("an earlier revocation is lost, which changes the template")
	}
	unchecked := (&Secret{Name: "s", Version: "2", Checks: credentials.CheckPair}).WithRevocation(
		&Secret{Name: "s", CAs: cas{ca("a", 1)}}, time.Now())
	if unchecked.RevokedVersion != "" {
		t.Error("clients need no certificate any more, which is treated as a revocation")
	}
	replaced := (&Secret{Name: "s", Version: "3", CAs: cas{ca("b", 1)}}).WithRevocation(unchecked, time.Now())
	if replaced.RevokedVersion != "3" {
		t.Error("a CA was removed while clients needed no certificate, and servers may still trust it")
	}
	if (&Secret{Name: "other", Version: "2"}).WithRevocation(known, time.Now()).RevokedVersion != "" {
		t.Error("another Secret is treated as a successor")
	}
}

// TestSecretsInTemplate: a changed Secret replaces no server, unless memcached must stop trusting a CA.
func TestSecretsInTemplate(t *testing.T) {
	t.Parallel()
	mc := manifest.Parse(t, manifest.Named("m", "{size: 3, tls: {secretName: certificate, clientAuth: Require}}"))
	options := Options{DefaultImage: "memcached:1", AgentImage: "operator:1"}
	with := func(own *stored, version string, cas ...credentials.CA) *stored {
		secret := &Secret{Name: "certificate", Version: version, CAs: cas}
		return storeServers(t, mc, own, Current{Secrets: Secrets{TLS: secret}, Now: time.Now()}, options)
	}
	first := with(nil, "1", ca("a", 1))
	added := with(first, "2", ca("b", 1), ca("a", 1))
	known := added.record().Secrets.TLS
	if !added.sameTemplate(first) || known == nil || known.Version != "2" {
		t.Errorf("another version changes the template, or is not recorded: %+v", known)
	}
	removed := with(added, "3", ca("a", 1))
	if removed.sameTemplate(added) {
		t.Error("a CA that was removed changes no template, so that memcached still trusts it")
	}
	if !with(removed, "4", ca("a", 1), ca("b", 1)).sameTemplate(removed) {
		t.Error("a CA that was removed replaces servers twice")
	}
	if with(with(removed, "4", ca("a", 1), ca("b", 1)), "5", ca("a", 1)).sameTemplate(removed) {
		t.Error("a CA that was removed again changes no template")
	}

	mc.Spec.Memory = "128Mi"
	frozen := storeServers(t, mc, first, Current{Secrets: first.record().Secrets, Freeze: true}, options)
	if !frozen.sameTemplate(first) || frozen.record().Secrets.TLS.Version != "1" {
		t.Error("without its Secret the template changes, or what is recorded")
	}
	newer := Secrets{TLS: &Secret{Name: "certificate", Version: "2"}}
	frozen = storeServers(t, mc, first, Current{Secrets: newer, Freeze: true}, options)
	if frozen.record().Secrets.TLS.Version != "2" {
		t.Error("while the template is frozen, the available version of a Secret is not recorded")
	}
	first.SetAnnotations(nil)
	frozen = storeServers(t, mc, first, Current{Freeze: true}, options)
	if frozen == nil || !frozen.sameTemplate(first) || len(frozen.GetAnnotations()) > 0 {
		t.Error("without its Secret and its record, the template changes, or the workload is deleted")
	}
	if storeServers(t, mc, nil, Current{Freeze: true}, options) != nil {
		t.Error("without its Secret a workload is created")
	}
}

// TestIsCurrent: a Secret is read again when it or what is checked of it changed.
func TestIsCurrent(t *testing.T) {
	t.Parallel()
	ours, err := testca.New()
	if err != nil {
		t.Fatal(err)
	}
	data, err := ours.Secret("m")
	if err != nil {
		t.Fatal(err)
	}
	data["authfile"] = []byte("a:b\n")
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s", UID: "u", ResourceVersion: "1"}, Data: data}
	spec := func(spec string) *v1alpha1.Memcached { return manifest.Parse(t, manifest.Named("m", spec)) }
	mc := spec("{tls: {secretName: s, clientAuth: Require}}")
	tls, err := ReadTLS(mc, s, time.Now())
	if err != nil || len(tls.CAs) != 1 || tls.NotAfter.Before(time.Now()) {
		t.Fatalf("%+v, %v", tls, err)
	}
	both := s.DeepCopy()
	AddCA(both, &corev1.Secret{TypeMeta: metav1.TypeMeta{Kind: KindConfigMap},
		ObjectMeta: metav1.ObjectMeta{Name: "clients", UID: "v", ResourceVersion: "2"}, Data: data})
	if got, err := ReadTLS(mc, both, time.Now()); err != nil || got.Name != "s" || got.Version != "u/1+v/2" ||
		both.Name != "s, with ca.crt of ConfigMap clients" {
		t.Errorf("with the CAs of another object: %+v, %v, %s", got, err, both.Name)
	}
	auth, err := ReadAuth(s)
	if err != nil {
		t.Fatal(err)
	}
	if got := (Secrets{TLS: tls, Auth: auth}).Annotation(); got != "tls=u/1 auth=u/1" || (Secrets{}).Annotation() != "" {
		t.Errorf("pods are annotated with %q", got)
	}
	if _, err := ReadTLS(mc, s, tls.NotAfter); err == nil {
		t.Error("an expired certificate is accepted")
	}
	for name, tt := range map[string]struct {
		record *Secret
		spec   string
		change func(*corev1.Secret)
		want   bool
	}{
		"nothing":         {tls, "{tls: {secretName: s, clientAuth: Require}}", nil, true},
		"none":            {nil, "{tls: {secretName: s, clientAuth: Require}}", nil, false},
		"size":            {tls, "{size: 3, tls: {secretName: s, clientAuth: Require}}", nil, true},
		"clientAuth":      {tls, "{tls: {secretName: s}}", nil, false},
		"agent is client": {tls, "{tls: {secretName: s, clientAuth: Require}, metrics: {}}", nil, false},
		"same CAs":        {tls, "{tls: {secretName: s, clientAuth: Request}, metrics: {}}", nil, true},
		"passwords":       {auth, "{auth: {secretName: s}}", nil, true},
		"passwords, TLS":  {auth, "{auth: {secretName: s}, tls: {secretName: t, clientAuth: Require}}", nil, true},
		"version":         {auth, "{auth: {secretName: s}}", func(s *corev1.Secret) { s.ResourceVersion = "2" }, false},
		"created again":   {auth, "{auth: {secretName: s}}", func(s *corev1.Secret) { s.UID = types.UID("v") }, false},
		"name":            {auth, "{auth: {secretName: s}}", func(s *corev1.Secret) { s.Name = "t" }, false},
	} {
		now := s.DeepCopy()
		if tt.change != nil {
			tt.change(now)
		}
		if got := tt.record.IsCurrent(spec(tt.spec), now); got != tt.want {
			t.Errorf("%s: current %t, want %t", name, got, tt.want)
		}
	}
}

// TestAgentImage: a newer image of the agent is used only when servers are replaced anyway.
func TestAgentImage(t *testing.T) {
	t.Parallel()
	mc := manifest.Parse(t, manifest.Named("m", "{metrics: {}}"))
	image := func(w *stored) string { return w.Template.Spec.InitContainers[0].Image }
	with := func(own *stored, agent string) *stored {
		return storeServers(t, mc, own, Current{}, Options{DefaultImage: "m:1", AgentImage: agent})
	}
	first := with(nil, "operator:1")
	if upgraded := with(first, "operator:2"); !upgraded.sameTemplate(first) {
		t.Error("an upgrade of the operator replaces servers")
	}
	drifted := with(first, "operator:1")
	drifted.Template.Spec.InitContainers[0].Image = "somebody:else"
	if reverted := with(drifted, "operator:2"); !reverted.sameTemplate(first) {
		t.Errorf("a change of somebody else brings the image %s", image(reverted))
	}
	mc.Spec.Memory = "128Mi"
	if changed := with(first, "operator:2"); image(changed) != "operator:2" {
		t.Errorf("servers that are replaced anyway get the image %s", image(changed))
	}
}
