{{- define "dgym.agents.environment" -}}
- name: DGYM_AGENT_POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: DGYM_AGENT_SLOTS
  value: {{ .Values.agents.slots | quote }}
- name: DGYM_AGENT_DRAIN_SECONDS
  value: {{ .Values.agents.drainSeconds | quote }}
- name: DGYM_AGENT_RESULTS
  value: {{ include "dgym.results.place" . | quote }}
{{- with .namespaces }}
- name: DGYM_AGENT_NAMESPACES
  value: {{ join "," . | quote }}
{{- end }}
- name: DGYM_AGENT_SOURCE_HOSTS
  value: {{ join "," .Values.agents.sourceHosts | quote }}
- name: DGYM_AGENT_CACHE_LIMIT_BYTES
  value: {{ include "dgym.agents.cacheLimit" . | quote }}
- name: DGYM_AGENT_METRICS_NAMESPACE_LABEL
  value: {{ .Values.metrics.namespaceLabel | quote }}
- name: DGYM_AGENT_LOG_LEVEL
  value: {{ .Values.agents.logLevel }}
{{- include "dgym.tracing.environment" (dict "root" . "component" "agent") }}
{{- if include "dgym.hasModels" . }}
- name: LLM_CONFIG_FILE_PATH
  value: /etc/dgym/models/llm.yaml
{{- end }}
{{- include "dgym.agents.s3" .Values.results.s3 }}
{{- if .Values.caBundle.configMap }}
{{- range list "SSL_CERT_FILE" "REQUESTS_CA_BUNDLE" "AWS_CA_BUNDLE" "GIT_SSL_CAINFO" }}
- name: {{ . }}
  value: /etc/dgym/ca-bundle/ca.crt
{{- end }}
{{- end }}
{{- range $name, $value := dict "HTTP_PROXY" .Values.proxy.http "HTTPS_PROXY" .Values.proxy.https "NO_PROXY" .Values.proxy.noProxy }}
{{- if $value }}
# Programs differ in the case they look for.
- name: {{ $name }}
  value: {{ $value | quote }}
- name: {{ lower $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "dgym.agents.s3" -}}
{{- if .bucket }}
{{- with .region }}
- name: AWS_REGION
  value: {{ . | quote }}
{{- end }}
{{- with .endpoint }}
- name: AWS_ENDPOINT_URL
  value: {{ . | quote }}
{{- if hasPrefix "http://" . }}
- name: AWS_ALLOW_HTTP
  value: "true"
{{- end }}
{{- end }}
{{- with .existingSecret }}
{{- $secret := . }}
{{- range list "AWS_ACCESS_KEY_ID" "AWS_SECRET_ACCESS_KEY" "AWS_SESSION_TOKEN" }}
- name: {{ . }}
  valueFrom:
    secretKeyRef:
      name: {{ $secret }}
      key: {{ . }}
      {{- if eq . "AWS_SESSION_TOKEN" }}
      optional: true
      {{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Half of the space, the rest is for packing: the node evicts a pod that has filled its volume. */}}
{{- define "dgym.agents.cacheLimit" -}}
{{- $units := dict "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- $number := regexFind "^[0-9]+" .Values.agents.cacheSize | int64 -}}
{{- $unit := get $units (regexFind "[A-Za-z]+$" .Values.agents.cacheSize) -}}
{{- div (mul $number (int64 $unit)) 2 -}}
{{- end -}}
