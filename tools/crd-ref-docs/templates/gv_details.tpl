{{- define "gvDetails" -}}
{{- $first := list "Memcached" "MemcachedSpec" "MemcachedStatus" -}}
{{- $types := . -}}
{{- range $first }}{{ template "type" (index $types.Types .) }}{{ end -}}
{{- range .SortedTypes }}{{ if not (has .Name $first) }}{{ template "type" . }}{{ end }}{{ end -}}
{{- end -}}
