package desired

import (
	"fmt"

	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/example/memcached-operator/agent"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/credentials"
)

// tlsArguments returns the options that enable TLS on every listener of memcached.
// https://docs.memcached.org/features/tls/
func tlsArguments(mc *v1alpha1.Memcached) []string {
	t := mc.Spec.TLS
	if t == nil {
		return nil
	}
	mode := map[v1alpha1.ClientAuth]int{v1alpha1.ClientAuthRequest: 1, v1alpha1.ClientAuthRequire: 2}[t.ClientAuth]
	version := map[v1alpha1.TLSVersion]int{v1alpha1.TLS12: 2, v1alpha1.TLS13: 3}[t.MinVersion]
	options := fmt.Sprintf("ssl_chain_cert=%s/%s,ssl_key=%s/%s,ssl_verify_mode=%d,ssl_min_version=%d",
		agent.TLSPath, credentials.KeyCertificate, agent.TLSPath, credentials.KeyPrivateKey, mode, version)
	if mode > 0 {
		options += fmt.Sprintf(",ssl_ca_cert=%s/%s", agent.TLSPath, credentials.KeyCA)
	}
	return []string{"--enable-ssl", "--extended=" + options}
}

func authArguments(mc *v1alpha1.Memcached) []string {
	if mc.Spec.Auth == nil {
		return nil
	}
	return []string{"--auth-file=" + agent.AuthPath + "/" + credentials.KeyAuthFile}
}

// mountSecrets mounts into containers the keys of the Secrets that memcached reads, and no others.
func mountSecrets(mc *v1alpha1.Memcached, pod *corev1ac.PodSpecApplyConfiguration,
	containers ...*corev1ac.ContainerApplyConfiguration) {
	if t := mc.Spec.TLS; t != nil {
		volume := corev1ac.Volume().WithName("tls").WithSecret(secretVolume(t.SecretName, tlsChecks(mc).Keys()))
		mount(pod, volume, readOnly(agent.TLSPath), containers...)
	}
	if a := mc.Spec.Auth; a != nil {
		volume := corev1ac.Volume().WithName("auth").WithSecret(secretVolume(a.SecretName, credentials.AuthKeys))
		mount(pod, volume, readOnly(agent.AuthPath), containers...)
	}
}

func secretVolume(name string, keys []string) *corev1ac.SecretVolumeSourceApplyConfiguration {
	source := corev1ac.SecretVolumeSource().WithSecretName(name)
	for _, key := range keys {
		source.WithItems(corev1ac.KeyToPath().WithKey(key).WithPath(key))
	}
	return source
}

// mount adds a volume to a pod, and mounts it into containers.
func mount(pod *corev1ac.PodSpecApplyConfiguration, volume *corev1ac.VolumeApplyConfiguration,
	at *corev1ac.VolumeMountApplyConfiguration, containers ...*corev1ac.ContainerApplyConfiguration) {
	pod.WithVolumes(volume)
	for _, c := range containers {
		c.WithVolumeMounts(at.WithName(*volume.Name))
	}
}

func readOnly(path string) *corev1ac.VolumeMountApplyConfiguration {
	return corev1ac.VolumeMount().WithMountPath(path).WithReadOnly(true)
}
