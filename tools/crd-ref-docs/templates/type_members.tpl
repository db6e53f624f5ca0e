{{- define "type_members" -}}
{{- if eq .Name "metadata" -}}name, namespace, labels and annotations{{- else -}}{{ template "text" .Doc }}{{- end -}}
{{- end -}}
