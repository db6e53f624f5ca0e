{{- define "gvDetails" -}}
{{- $types := . -}}
{{- range list "MemcachedSpec" "MemcachedStatus" }}{{ template "type" (index $types.Types .) }}{{ end -}}
{{- /* Memcached has only these two. The fields of Placement are in PodSpec, and those of the others have any name. */ -}}
{{- $done := list "Memcached" "MemcachedSpec" "MemcachedStatus" "Placement" -}}
{{- range .SortedTypes }}{{ if not (has .Name $done) }}{{ template "type" . }}{{ end }}{{ end -}}
{{- end -}}
