{{- define "gangwatch.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "gangwatch.labels" -}}
app.kubernetes.io/name: gangwatch
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "gangwatch.agentLabels" -}}
app.kubernetes.io/name: gangwatch
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: agent
{{- end }}

{{- define "gangwatch.controllerLabels" -}}
app.kubernetes.io/name: gangwatch
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: controller
{{- end }}

{{- define "gangwatch.tlsSecret" -}}
{{ if eq .Values.tls.mode "secret" }}{{ .Values.tls.secretName }}{{ else }}{{ .Release.Name }}-tls{{ end }}
{{- end }}

{{/* A probe's request. In plain HTTP only a Host of this machine is answered (against DNS rebinding). */}}
{{- define "gangwatch.probe" -}}
{{- $plain := eq .root.Values.tls.mode "plain" -}}
httpGet:
  path: {{ .path }}
  port: metrics
  scheme: {{ if $plain }}HTTP{{ else }}HTTPS{{ end }}
  {{- if $plain }}
  httpHeaders: [{name: Host, value: "localhost:{{ .port }}"}]
  {{- end }}
timeoutSeconds: 5
{{- end }}
