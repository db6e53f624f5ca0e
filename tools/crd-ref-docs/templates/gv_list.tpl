{{- define "gvList" -}}
# API

<!-- Generated from api/v1alpha1 by `make generate`: edit the comments there. -->

These are the fields of a `Memcached`, as in `kubectl explain memcached.spec`.

- **↻** marks fields whose change replaces the servers, as `rollout` says: without `proxy`, they start empty. A change
  of another field replaces no server, unless the object that holds the field is marked; `size` adds and removes servers.
- The API server refuses an invalid value and says why. `kubectl` refuses an unknown field.
- An accepted spec can still be refused later by Kubernetes, a policy of the cluster or memcached. The Memcached then
  becomes `Stalled`, at once or after `rollout.progressDeadlineSeconds`, and the condition's message quotes the error.
- No field is required, except `secretName` in `tls` and `auth`, and `cidr` in an `ipBlock`.
- A Memcached's name has at most 52 characters: lower case letters, digits and `-`, starting with a letter.

| to choose | read |
|---|---|
| `workload`, `serverAddresses`, `proxy` | [How clients find the servers](../explanation/addresses.md) |
| `memory`, `maxConnections`, `threads`, `pod.resources`, `proxy.memory` | [Sizing](../how-to/sizing.md), [Memory of a server](../explanation/memory.md) |
| `extraArgs` | [Options of memcached](options.md) |
| `tls`, `auth`, `networkPolicy` | [Security](../how-to/security.md) |
| `metrics` | [Monitoring](../how-to/monitoring.md) |
| `rollout`, `disruptionBudget` | [Rollouts and restarts](../how-to/rollouts.md) |
| `proxy` | [Proxies](../how-to/proxies.md) |
| `image`, `service`, `paused` | [Operations](../how-to/operations.md) |
| `labels`, `annotations` | [Labels and annotations](labels.md) |
| a condition to wait for | [Status](status.md) |
{{ range . }}{{ template "gvDetails" . }}{{ end }}
{{- end -}}
