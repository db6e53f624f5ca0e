{{- define "type" -}}
{{- if and (markdownShouldRenderType .) .Members }}
## {{ .Name }}

| field | meaning |
|---|---|
{{- $type := .Name -}}
{{- range .Members }}
{{- $text := markdownRenderFieldDoc .Doc | replace "<br />" " " | trim -}}
{{- if and (eq $type "ProxySpec") (has .Name (list "affinity" "topologySpreadConstraints")) -}}
{{- $text = "as in [PodSpec](#podspec), for the proxies. In proxy, a change touches no server." -}}
{{- end }}
| `{{ .Name }}`<br>{{ template "kind" .Type }}{{ template "mark" $text }} | {{ template "meaning" (dict "name" .Name "text" $text) }} |
{{- end }}
{{ end -}}
{{- end -}}

{{- /* The fields say what values and keys these types have, so they have no sections. */ -}}
{{- define "kind" -}}
{{- if .EnumValues }}string
{{- else if has .Name (list "Labels" "Annotations" "ResourceList") }}object
{{- else }}{{ markdownRenderType . }}{{ end -}}
{{- end -}}

{{- /* The first column has the name of a field, and a mark for what a change does. The second has the rest. */ -}}
{{- define "mark" -}}
{{- if regexMatch "(A|In pod, a|older Kubernetes, a) change replaces the servers" . }}<br>↻{{ end -}}
{{- end -}}

{{- define "meaning" -}}
{{- $text := regexReplaceAll (printf "^%s ((is|are) )?" .name) .text "" -}}
{{- $text = regexReplaceAll " (A|In pod( and agent)?, a) change replaces the servers[^.]*[.]" $text "" -}}
{{- $text = regexReplaceAll " (A|In proxy, a) change touches no server[.]" $text "" -}}
{{- regexReplaceAll ", or with an older Kubernetes, a change replaces the servers[^.]*[.]" $text ", or with an older Kubernetes: ↻." -}}
{{- end -}}
