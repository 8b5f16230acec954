{{/* What the operator does in the namespaces it serves. Nothing here that its code does not use. */}}
{{- define "dgym.rbac.served" -}}
- apiGroups: [dgym.dev]
  resources: [debugtasks]
  verbs: [get, list, watch]
- apiGroups: [dgym.dev]
  resources: [episodes]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [dgym.dev]
  resources: [episodesets]
  verbs: [get, list, watch, delete]
- apiGroups: [dgym.dev]
  resources: [episodes/status, episodesets/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
# The repositories of tasks, and the frozen lists of tasks of sets.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch, create]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- if ne .Values.sandboxes.networkPolicy "disabled" }}
# Applied, which creates as well; it can change no other than its own.
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [create]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  resourceNames: [dgym-sandbox]
  verbs: [patch]
{{- end }}
{{- end -}}

{{/* What the hook before the deletion removes in those namespaces. */}}
{{- define "dgym.rbac.cleanup" -}}
- apiGroups: [""]
  resources: [pods]
  verbs: [list, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [list]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  resourceNames: [dgym-sandbox]
  verbs: [delete]
{{- end -}}

{{/*
The rules of a dict (root, name, component, account, rules, annotations) for all namespaces, or for each served one.
*/}}
{{- define "dgym.rbac.grant" -}}
{{- $subject := printf "- kind: ServiceAccount\n  name: %s\n  namespace: %s" .account .root.Release.Namespace -}}
{{- $grant := . -}}
{{- with .root.Values.watchNamespaces }}
{{- range . }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ include "dgym.fullname" $grant.root }}-{{ $grant.name }}-{{ $grant.root.Release.Namespace }}
  namespace: {{ . }}
  labels:
    {{- include "dgym.labels" (dict "root" $grant.root "component" $grant.component) | nindent 4 }}
  {{- with $grant.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
rules:
  {{- $grant.rules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ include "dgym.fullname" $grant.root }}-{{ $grant.name }}-{{ $grant.root.Release.Namespace }}
  namespace: {{ . }}
  labels:
    {{- include "dgym.labels" (dict "root" $grant.root "component" $grant.component) | nindent 4 }}
  {{- with $grant.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ include "dgym.fullname" $grant.root }}-{{ $grant.name }}-{{ $grant.root.Release.Namespace }}
subjects:
  {{- $subject | nindent 2 }}
{{- end }}
{{- else }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ include "dgym.clusterName" .root }}-{{ .name }}
  labels:
    {{- include "dgym.labels" (dict "root" .root "component" .component) | nindent 4 }}
  {{- with .annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
rules:
  {{- .rules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ include "dgym.clusterName" .root }}-{{ .name }}
  labels:
    {{- include "dgym.labels" (dict "root" .root "component" .component) | nindent 4 }}
  {{- with .annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ include "dgym.clusterName" .root }}-{{ .name }}
subjects:
  {{- $subject | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The rules of the same dict for the release's own namespace. */}}
{{- define "dgym.rbac.grantHere" -}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "dgym.labels" (dict "root" .root "component" .component) | nindent 4 }}
  {{- with .annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
rules:
  {{- .rules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "dgym.labels" (dict "root" .root "component" .component) | nindent 4 }}
  {{- with .annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ .name }}
subjects:
  - kind: ServiceAccount
    name: {{ .account }}
    namespace: {{ .root.Release.Namespace }}
{{- end -}}

{{/* What the operator does in its own namespace. */}}
{{- define "dgym.rbac.own" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [dgym-operator]
  verbs: [get, patch]
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [dgym-key, dgym-agent-tokens, dgym-results-token]
  verbs: [get]
# Agents.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch]
{{- end -}}

{{/* What the hook before the deletion does in the release's own namespace. */}}
{{- define "dgym.rbac.cleanupHere" -}}
# First the operator, which would make all of it again.
- apiGroups: [apps]
  resources: [deployments]
  resourceNames: [{{ include "dgym.fullname" . }}-operator]
  verbs: [delete]
# Those it waits for, and that of helm test.
- apiGroups: [""]
  resources: [pods]
  verbs: [list, delete]
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [dgym-key, dgym-agent-tokens, dgym-results-token]
  verbs: [delete]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [dgym-operator]
  verbs: [delete]
{{- end -}}
