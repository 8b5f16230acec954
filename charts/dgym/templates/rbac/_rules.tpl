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
  resources: [sandboxpools]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [dgym.dev]
  resources: [episodes/status, episodesets/status, sandboxpools/status]
  verbs: [patch]
# Required for owner references with blockOwnerDeletion, which foreground deletion waits for.
- apiGroups: [dgym.dev]
  resources: [episodes/finalizers, episodesets/finalizers, sandboxpools/finalizers]
  verbs: [update]
# Patched is a pod of a SandboxPool that an Episode takes, and no other: see operator.admissionPolicy.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, patch, delete]
# The repositories of tasks, and the frozen lists of tasks of sets.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch, create]
# Of drivers of Episodes without agent; their pods own them, so that none is read or deleted here.
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
# Their status shows when a pod fits again.
- apiGroups: [""]
  resources: [resourcequotas]
  verbs: [list, watch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
# By which an installation claims the namespace.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [dgym-owner]
  verbs: [get, patch]
{{- if eq .Values.sandboxes.networkPolicy "disabled" }}
# Removed where an earlier release has made it.
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  resourceNames: [dgym-sandbox]
  verbs: [list, watch, delete]
{{- else }}
# Applied, which creates as well; it can read and change no other than its own.
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [create]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  resourceNames: [dgym-sandbox]
  verbs: [list, watch, patch]
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
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [dgym-owner]
  verbs: [list, delete]
{{- end -}}

{{/*
The namespaces of watchNamespaces that are there, as a JSON list. An upgrade must not fail over one that was deleted:
nothing can be made in it. Without a cluster to look in, and at the first installation, all of them: what is missing
then is a mistake, which Helm reports. The operator's Deployment shows that the cluster answers.
*/}}
{{- define "dgym.presentNamespaces" -}}
{{- $present := list -}}
{{- $answers := lookup "apps/v1" "Deployment" .Release.Namespace (printf "%s-operator" (include "dgym.fullname" .)) -}}
{{- range .Values.watchNamespaces -}}
{{- $there := true -}}
{{- if $answers -}}
{{- $found := lookup "v1" "Namespace" "" . -}}
{{- $there = and $found (not $found.metadata.deletionTimestamp) -}}
{{- end -}}
{{- if $there -}}
{{- $present = append $present . -}}
{{- end -}}
{{- end -}}
{{- toJson $present -}}
{{- end -}}

{{/*
The rules of a dict (root, name, component, account, rules) for all namespaces, or for each served one. None of it is a
hook: a hook of a namespace that was deleted would stop the uninstallation.
*/}}
{{- define "dgym.rbac.grant" -}}
{{- $subject := printf "- kind: ServiceAccount\n  name: %s\n  namespace: %s" .account .root.Release.Namespace -}}
{{- $grant := . -}}
{{- if .root.Values.watchNamespaces }}
{{- range fromJsonArray (include "dgym.presentNamespaces" .root) }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ include "dgym.fullname" $grant.root }}-{{ $grant.name }}-{{ $grant.root.Release.Namespace }}
  namespace: {{ . }}
  labels:
    {{- include "dgym.labels" (dict "root" $grant.root "component" $grant.component) | nindent 4 }}
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
rules:
  {{- .rules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ include "dgym.clusterName" .root }}-{{ .name }}
  labels:
    {{- include "dgym.labels" (dict "root" .root "component" .component) | nindent 4 }}
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
  verbs: [get, list, watch, patch]
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
- apiGroups: [""]
  resources: [secrets]
  resourceNames: {{ include "dgym.ownSecrets" . }}
  verbs: [get]
# Agents.
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
# Of its own pod: what is wrong with the installation.
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
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
  resourceNames: {{ include "dgym.ownSecrets" . }}
  verbs: [delete]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [dgym-operator]
  verbs: [delete]
{{- end -}}
