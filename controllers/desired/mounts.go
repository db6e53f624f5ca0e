package desired

import (
	"fmt"

	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// Where servers find the Secrets that they mount.
const (
	tlsPath  = "/etc/memcached/tls"
	authPath = "/etc/memcached/auth"
)

// tlsArguments make every listener of memcached speak TLS.
// https://docs.memcached.org/features/tls/
func tlsArguments(mc *v1alpha1.Memcached) []string {
	t := mc.Spec.TLS
	if t == nil {
		return nil
	}
	mode := map[v1alpha1.ClientAuth]int{v1alpha1.ClientAuthRequest: 1, v1alpha1.ClientAuthRequire: 2}[t.ClientAuth]
	version := map[v1alpha1.TLSVersion]int{v1alpha1.TLS12: 2, v1alpha1.TLS13: 3}[t.MinVersion]
	options := fmt.Sprintf("ssl_chain_cert=%s/%s,ssl_key=%s/%s,ssl_verify_mode=%d,ssl_min_version=%d",
		tlsPath, keyCertificate, tlsPath, keyPrivateKey, mode, version)
	if mode > 0 {
		options += fmt.Sprintf(",ssl_ca_cert=%s/%s", tlsPath, keyCA)
	}
	return []string{"--enable-ssl", "--extended=" + options}
}

func authArguments(mc *v1alpha1.Memcached) []string {
	if mc.Spec.Auth == nil {
		return nil
	}
	return []string{"--auth-file=" + authPath + "/" + keyAuthFile}
}

// mountSecrets gives the servers the keys of the Secrets that memcached reads, and no other key of these Secrets.
func mountSecrets(mc *v1alpha1.Memcached, pod *corev1ac.PodSpecApplyConfiguration) {
	if t := mc.Spec.TLS; t != nil {
		mount(pod, tlsPath, corev1ac.Volume().WithName("tls").WithSecret(secretVolume(t.SecretName, TLSKeys(mc))))
	}
	if a := mc.Spec.Auth; a != nil {
		mount(pod, authPath, corev1ac.Volume().WithName("auth").WithSecret(secretVolume(a.SecretName, authKeys)))
	}
}

func secretVolume(name string, keys []string) *corev1ac.SecretVolumeSourceApplyConfiguration {
	source := corev1ac.SecretVolumeSource().WithSecretName(name)
	for _, key := range keys {
		source.WithItems(corev1ac.KeyToPath().WithKey(key).WithPath(key))
	}
	return source
}

func mount(pod *corev1ac.PodSpecApplyConfiguration, path string, volume *corev1ac.VolumeApplyConfiguration) {
	pod.WithVolumes(volume)
	pod.Containers[0].WithVolumeMounts(corev1ac.VolumeMount().
		WithName(*volume.Name).WithMountPath(path).WithReadOnly(true))
}
