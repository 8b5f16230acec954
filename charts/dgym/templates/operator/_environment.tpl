{{- define "dgym.operator.pools" -}}
{{- $pools := list -}}
{{- range .Values.agents.pools -}}
{{- $pools = append $pools (pick . "name" "namespaces") -}}
{{- end -}}
{{- toJson $pools -}}
{{- end -}}

{{- define "dgym.operator.environment" -}}
- name: DGYM_OPERATOR_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
- name: DGYM_OPERATOR_POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: DGYM_OPERATOR_POD_UID
  valueFrom:
    fieldRef:
      fieldPath: metadata.uid
- name: DGYM_OPERATOR_WATCH_NAMESPACES
  value: {{ join "," .Values.watchNamespaces | quote }}
- name: DGYM_OPERATOR_SANDBOX_IMAGE
  value: {{ include "dgym.image" (dict "root" . "image" .Values.sandboxes.image) | quote }}
- name: DGYM_OPERATOR_SIDECAR_IMAGE
  value: {{ include "dgym.image" (dict "root" . "image" .Values.sidecar.image) | quote }}
- name: DGYM_OPERATOR_IMAGE_PULL_POLICY
  value: {{ .Values.sandboxes.pullPolicy }}
- name: DGYM_OPERATOR_IMAGE_PULL_SECRETS
  value: {{ join "," (fromJsonArray (include "dgym.imagePullSecretNames" .)) | quote }}
{{- if .Values.podTemplates }}
- name: DGYM_OPERATOR_POD_TEMPLATES_DIRECTORY
  value: /etc/dgym/pod-templates
{{- end }}
- name: DGYM_OPERATOR_DEFAULT_POD_TEMPLATE
  value: {{ .Values.sandboxes.defaultPodTemplate }}
- name: DGYM_OPERATOR_RUNTIME_CLASS_NAME
  value: {{ .Values.sandboxes.runtimeClassName | quote }}
- name: DGYM_OPERATOR_USER_NAMESPACES
  value: {{ .Values.sandboxes.userNamespaces | quote }}
- name: DGYM_OPERATOR_READ_ONLY_ROOT_FILESYSTEM
  value: {{ .Values.sandboxes.readOnlyRootFilesystem | quote }}
- name: DGYM_OPERATOR_AGENT_SELECTOR
  value: app.kubernetes.io/name=dgym,app.kubernetes.io/instance={{ .Release.Name }},app.kubernetes.io/component=agent
- name: DGYM_OPERATOR_AGENT_POOLS
  value: {{ include "dgym.operator.pools" . | quote }}
- name: DGYM_OPERATOR_HEAD_START
  value: {{ .Values.sandboxes.headStart | quote }}
- name: DGYM_OPERATOR_MAX_STUCK_PODS
  value: {{ .Values.sandboxes.maxStuckPods | quote }}
- name: DGYM_OPERATOR_MAX_CONCURRENT_PULLS
  value: {{ toJson .Values.sandboxes.maxConcurrentPulls | quote }}
- name: DGYM_OPERATOR_IMAGE_MIRRORS
  value: {{ toJson .Values.sandboxes.imageMirrors | quote }}
- name: DGYM_OPERATOR_DEFAULT_RESOURCES
  value: {{ toJson .Values.sandboxes.resources | quote }}
- name: DGYM_OPERATOR_INHERITED_LABELS
  value: {{ join "," .Values.sandboxes.inherit.labels | quote }}
- name: DGYM_OPERATOR_INHERITED_ANNOTATIONS
  value: {{ join "," .Values.sandboxes.inherit.annotations | quote }}
- name: DGYM_OPERATOR_NAMESPACE_POLICIES
  value: {{ toJson .Values.namespaces | quote }}
- name: DGYM_OPERATOR_NETWORK_POLICY
  value: {{ .Values.sandboxes.networkPolicy }}
- name: DGYM_OPERATOR_API_QPS
  value: {{ .Values.operator.api.qps | quote }}
- name: DGYM_OPERATOR_API_BURST
  value: {{ .Values.operator.api.burst | quote }}
- name: DGYM_OPERATOR_METRICS_NAMESPACE_LABEL
  value: {{ .Values.metrics.namespaceLabel | quote }}
- name: DGYM_OPERATOR_LOG_LEVEL
  value: {{ .Values.operator.logLevel }}
- name: DGYM_OPERATOR_LOG_FORMAT
  value: {{ .Values.operator.logFormat }}
{{- include "dgym.tracing.environment" (dict "root" . "component" "operator") }}
{{- end -}}
