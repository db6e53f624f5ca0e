{{- /* Changes the spec of the operator's Deployment as the values say. */ -}}
{{- define "memcached-operator.configure" }}
{{- $values := .values }}
{{- $pod := .spec.template.spec }}
{{- $container := first $pod.containers }}
{{- $_ := set .spec "replicas" $values.replicas }}
{{- with $values.image }}
{{- $_ := set $container "image" . }}
{{- end }}
{{- with $values.registry }}
{{- $_ := set $container "image" (printf "%s/%s" . (regexReplaceAll "^[^/]*[.:][^/]*/" $container.image "")) }}
{{- end }}
{{- range $container.env }}
{{- if eq .name "RELATED_IMAGE_MEMCACHED" }}
{{- $image := $values.memcachedImage | default .value }}
{{- with $values.registry }}
{{- $image = printf "%s/%s" . (regexReplaceAll "^[^/]*[.:][^/]*/" $image "") }}
{{- end }}
{{- $_ := set . "value" $image }}
{{- end }}
{{- end }}
{{- $args := $container.args }}
{{- with toString $values.log.level }}
{{- $args = append $args (printf "--zap-log-level=%s" .) }}
{{- end }}
{{- with $values.log.format }}
{{- $args = append $args (printf "--zap-encoder=%s" .) }}
{{- end }}
{{- with $values.watchNamespaces }}
{{- $args = append $args (printf "--watch-namespaces=%s" (join "," .)) }}
{{- end }}
{{- with $values.metrics.certificateSecret }}
{{- $directory := "/etc/memcached-operator/metrics" }}
{{- $args = append $args (printf "--metrics-cert-dir=%s" $directory) }}
{{- $_ := set $container "volumeMounts" (list (dict "name" "metrics-certificate" "mountPath" $directory "readOnly" true)) }}
{{- $_ := set $pod "volumes" (list (dict "name" "metrics-certificate" "secret" (dict "secretName" .))) }}
{{- end }}
{{- with $values.imagePullSecrets }}
{{- $names := list }}
{{- range . }}
{{- $names = append $names .name }}
{{- end }}
{{- $args = append $args (printf "--image-pull-secrets=%s" (join "," $names)) }}
{{- end }}
{{- $_ := set $container "args" $args }}
{{- $_ := set $container "resources" (mergeOverwrite $container.resources $values.resources) }}
{{- $_ := set $pod "nodeSelector" (mergeOverwrite $pod.nodeSelector $values.nodeSelector) }}
{{- range $field := list "imagePullSecrets" "tolerations" }}
{{- with get $values $field }}
{{- $_ := set $pod $field . }}
{{- end }}
{{- end }}
{{- end }}
