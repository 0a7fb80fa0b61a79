{{- define "gangwatch.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "gangwatch.agentImage" -}}
{{- $repository := .Values.agent.image.repository | default (printf "%s-agent" .Values.image.repository) -}}
{{- if .Values.agent.image.digest -}}
{{ $repository }}@{{ .Values.agent.image.digest }}
{{- else if .Values.image.digest -}}
{{- fail "image.digest is set, and agent.image.digest is not: the agents have an image of their own, with another digest" -}}
{{- else -}}
{{ $repository }}:{{ .Values.agent.image.tag | default .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
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

{{- /* What of controller.access stands in gangwatch.toml. A JSON string is a TOML string, too. */ -}}
{{- define "gangwatch.access" -}}
{{- $config := .Values.controller.config }}
{{- with .Values.controller.access }}
{{- if not (contains "[access]" $config) }}
[access]
audit_target = "stdout"
{{- if .tokensSecret }}
token_files = ["/etc/gangwatch-tokens/tokens.toml"]
{{- end }}
{{- end }}
{{- if .tokenReview.enabled }}
[token_review]
enabled = true
audiences = {{ .tokenReview.audiences | toJson }}
{{- if .tokenReview.roles }}
[token_review.roles]
{{- range $name, $role := .tokenReview.roles }}
{{ $name | toJson }} = {{ $role | toJson }}
{{- end }}
{{- end }}
{{- end }}
{{- if .oidc.issuer }}
[oidc]
issuer = {{ .oidc.issuer | toJson }}
client_id = {{ .oidc.clientId | toJson }}
{{- if .oidc.clientSecretName }}
client_secret_file = "/etc/gangwatch-oidc/client-secret"
{{- end }}
redirect_url = {{ .oidc.redirectUrl | toJson }}
user_claim = {{ .oidc.userClaim | toJson }}
groups_claim = {{ .oidc.groupsClaim | toJson }}
default_role = {{ .oidc.defaultRole | toJson }}
{{- if .oidc.roles }}
[oidc.roles]
{{- range $name, $role := .oidc.roles }}
{{ $name | toJson }} = {{ $role | toJson }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Whether each agent has a certificate of its own: a controller is there to approve it. */ -}}
{{- define "gangwatch.ownCertificates" -}}
{{- if and .Values.agent.enabled .Values.controller.enabled (ne .Values.tls.mode "plain") }}yes{{ end }}
{{- end }}

{{- /* Who signs them: we, with the authority that the chart made, or the one that is named. */ -}}
{{- define "gangwatch.signer" -}}
{{- if .Values.tls.signer -}}
{{ .Values.tls.signer }}
{{- else if eq .Values.tls.mode "secret" -}}
{{ fail "tls.signer: with tls.mode secret the authority's key is not here: name who signs the agents' certificates, such as clusterissuers.cert-manager.io/NAME" }}
{{- else -}}
gangwatch.io/agent
{{- end -}}
{{- end }}
