{{- define "type" -}}
{{- if markdownShouldRenderType . }}
## {{ .Name }}

{{ .Doc }}
{{- if .EnumValues }} One of {{ range $i, $v := .EnumValues }}{{ if $i }}, {{ end }}`{{ $v.Name }}`{{ end }}.
{{- else if .Members }}

| field | meaning | default |
|---|---|---|
{{- range .Members }}
| `{{ .Name }}`<br>{{ markdownRenderType .Type }} | {{ template "type_members" . }} | {{ template "default" .Default }} |
{{- end }}
{{- end }}
{{ end -}}
{{- end -}}

{{- define "text" -}}
{{ markdownRenderFieldDoc . | replace "<br />" " " | trim }}
{{- end -}}

{{- /* The default of a structure is that of its fields. */ -}}
{{- define "default" -}}
{{- with markdownRenderDefault . }}{{ if not (or (contains "{" .) (contains "map[" .)) }}`{{ . }}`{{ end }}{{ end -}}
{{- end -}}
