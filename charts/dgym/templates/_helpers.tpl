{{/* The OpenTelemetry variables of a component of the release. */}}
{{- define "dgym.tracing.environment" -}}
{{- $tracing := .root.Values.tracing }}
{{- if $tracing.endpoint }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ $tracing.endpoint | quote }}
- name: OTEL_SERVICE_NAME
  value: dgym-{{ .component }}
- name: OTEL_RESOURCE_ATTRIBUTES
  value: k8s.namespace.name={{ .root.Release.Namespace }},service.namespace={{ .root.Release.Name }}
- name: OTEL_TRACES_SAMPLER
  value: {{ $tracing.sampler }}
{{- with $tracing.samplerArgument }}
- name: OTEL_TRACES_SAMPLER_ARG
  value: {{ . | quote }}
{{- end }}
{{- with $tracing.headersSecret }}
- name: OTEL_EXPORTER_OTLP_HEADERS
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: headers
{{- end }}
{{- if $tracing.captureContent }}
- name: OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT
  value: "true"
{{- end }}
{{- end }}
{{- end -}}

{{- define "dgym.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains "dgym" .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-dgym" (.Release.Name | trunc 35 | trimSuffix "-") -}}
{{- end -}}
{{- end -}}

{{/* Prefix of cluster-wide names. It has the namespace, because another release may have the same name. */}}
{{- define "dgym.clusterName" -}}
{{- printf "%s:%s" .Release.Namespace (include "dgym.fullname" .) -}}
{{- end -}}

{{/* Labels that select pods. The name is fixed, because policies and the command line select by it. */}}
{{- define "dgym.selectorLabels" -}}
app.kubernetes.io/name: dgym
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- if and (eq .component "agent") .root.pool }}
dgym.dev/pool: {{ .root.pool }}
{{- end }}
{{- end -}}

{{- define "dgym.labels" -}}
{{ include "dgym.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The Secrets that the operator creates in the release's namespace, as a JSON list. */}}
{{- define "dgym.ownSecrets" -}}
{{- $names := list "dgym-key" -}}
{{- range fromJsonArray (include "dgym.agents.pools" .) -}}
{{- $suffix := include "dgym.agents.suffix" (dict "pool" .name) -}}
{{- $names = append $names (printf "dgym-agent-keys%s" $suffix) -}}
{{- end -}}
{{- toJson $names -}}
{{- end -}}

{{/*
The pools of agent pods, as a JSON list: name, namespaces, and the values agents and results with the pool's own fields
merged over them. Without pools the list has one pool without a name.
*/}}
{{- define "dgym.agents.pools" -}}
{{- $pools := list -}}
{{- $common := omit .Values.agents "pools" -}}
{{- range .Values.agents.pools -}}
{{- $own := omit . "name" "namespaces" "results" -}}
{{- $agents := mergeOverwrite (deepCopy $common) (deepCopy $own) -}}
{{- /* A pool with its own models does not inherit the common ones. */ -}}
{{- if hasKey $own "existingSecret" -}}{{- $_ := set $agents "llmConfig" ($own.llmConfig | default nil) -}}{{- end -}}
{{- if hasKey $own "llmConfig" -}}
{{- $_ := set $agents "llmConfig" $own.llmConfig -}}
{{- $_ := set $agents "existingSecret" ($own.existingSecret | default "") -}}
{{- end -}}
{{- /* Each pool has its own account. With one name for all, the account would be created twice. */ -}}
{{- if and $agents.serviceAccount.create (not (dig "serviceAccount" "name" "" $own)) -}}
{{- $_ := set $agents.serviceAccount "name" "" -}}
{{- end -}}
{{- $results := mergeOverwrite (deepCopy $.Values.results) (deepCopy (.results | default dict)) -}}
{{- $pools = append $pools (dict "name" .name "namespaces" .namespaces "agents" $agents "results" $results) -}}
{{- else -}}
{{- $pools = list (dict "name" "" "namespaces" list "agents" $common "results" .Values.results) -}}
{{- end -}}
{{- toJson $pools -}}
{{- end -}}

{{/*
A template for each pool: included with the root whose Values have the pool's agents and results, its name as pool, and
its namespaces. A dict of root and template.
*/}}
{{- define "dgym.agents.each" -}}
{{- $root := .root -}}
{{- $template := .template -}}
{{- range fromJsonArray (include "dgym.agents.pools" $root) }}
{{- $values := merge (dict "agents" .agents "results" .results) (omit $root.Values "agents" "results") }}
---
{{ include $template (dict "Values" $values "Release" $root.Release "Chart" $root.Chart "pool" .name "namespaces" .namespaces) }}
{{- end }}
{{- end -}}

{{/* Suffix of the names of a pool's objects. */}}
{{- define "dgym.agents.suffix" -}}
{{- with .pool }}-{{ . }}{{ end -}}
{{- end -}}

{{- define "dgym.agents.name" -}}
{{- printf "%s-agents%s" (include "dgym.fullname" .) (include "dgym.agents.suffix" .) -}}
{{- end -}}

{{/* The reference of an image, from a dict with root and image. */}}
{{- define "dgym.image" -}}
{{- $name := .image.repository -}}
{{- with .root.Values.imageRegistry -}}
{{- $name = printf "%s/%s" (trimSuffix "/" .) $name -}}
{{- end -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $name .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (.image.tag | default .root.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/* The names of the pull secrets, as a JSON list. In the values each is a name, or an object as in a pod. */}}
{{- define "dgym.imagePullSecretNames" -}}
{{- $names := list -}}
{{- range .Values.imagePullSecrets -}}
{{- if kindIs "string" . -}}
{{- $names = append $names . -}}
{{- else -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- end -}}
{{- toJson $names -}}
{{- end -}}

{{- define "dgym.imagePullSecrets" -}}
{{- with fromJsonArray (include "dgym.imagePullSecretNames" .) }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "dgym.operator.serviceAccountName" -}}
{{- $account := .Values.operator.serviceAccount -}}
{{- $account.name | default (ternary (printf "%s-operator" (include "dgym.fullname" .)) "default" $account.create) -}}
{{- end -}}

{{- define "dgym.agents.serviceAccountName" -}}
{{- $account := .Values.agents.serviceAccount -}}
{{- $account.name | default (ternary (include "dgym.agents.name" .) "default" $account.create) -}}
{{- end -}}

{{/* Where the pods of a component (root, component, part of the values) run. */}}
{{- define "dgym.scheduling" -}}
{{- with .part.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
topologySpreadConstraints:
  {{- if .part.topologySpreadConstraints }}
  {{- toYaml .part.topologySpreadConstraints | nindent 2 }}
  {{- else }}
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "dgym.selectorLabels" . | nindent 8 }}
  {{- end }}
{{- end -}}

{{- define "dgym.agents.secretName" -}}
{{- .Values.agents.existingSecret | default (printf "%s-models%s" (include "dgym.fullname" .) (include "dgym.agents.suffix" .)) -}}
{{- end -}}

{{- define "dgym.agents.llmConfig" -}}
{{- if kindIs "string" .Values.agents.llmConfig -}}
{{- .Values.agents.llmConfig -}}
{{- else if .Values.agents.llmConfig -}}
{{- toYaml .Values.agents.llmConfig -}}
{{- end -}}
{{- end -}}

{{/* A checksum of the models. A Secret of the user can be read only if helm is connected to a cluster. */}}
{{- define "dgym.agents.modelsChecksum" -}}
{{- with include "dgym.agents.llmConfig" . -}}
{{- sha256sum . -}}
{{- end -}}
{{- with .Values.agents.existingSecret -}}
{{- with lookup "v1" "Secret" $.Release.Namespace . -}}
{{- toJson .data | sha256sum -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "dgym.hasModels" -}}
{{- if or .Values.agents.existingSecret (include "dgym.agents.llmConfig" .) -}}true{{- end -}}
{{- end -}}

{{- define "dgym.results.claimName" -}}
{{- .Values.results.persistence.existingClaim | default (printf "%s-results%s" (include "dgym.fullname" .) (include "dgym.agents.suffix" .)) -}}
{{- end -}}

{{/* Where agent pods store results. */}}
{{- define "dgym.results.place" -}}
{{- with .Values.results.s3 -}}
{{- if .bucket -}}
s3://{{ .bucket }}{{ with trimAll "/" .prefix }}/{{ . }}{{ end }}
{{- else -}}
/var/lib/dgym/results
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Whether agent pods share a volume that only one node can mount. */}}
{{- define "dgym.results.oneNode" -}}
{{- $volume := .Values.results.persistence -}}
{{- if and (not .Values.results.s3.bucket) $volume.enabled (not (has "ReadWriteMany" $volume.accessModes)) -}}true{{- end -}}
{{- end -}}

{{/* The highest number of agent pods at a time. */}}
{{- define "dgym.agents.mostReplicas" -}}
{{- with .Values.agents -}}
{{- ternary .autoscaling.maxReplicas .replicas .autoscaling.enabled | int -}}
{{- end -}}
{{- end -}}

{{/*
Fails if the cluster lacks a kind that a value requires. A dict of root, kind (group/version/Kind), value and owner.
Without a cluster, as in `helm template`, kinds of Kubernetes itself are not listed either.
*/}}
{{- define "dgym.requireKind" -}}
{{- $known := .root.Capabilities.APIVersions -}}
{{- if and ($known.Has "apps/v1/Deployment") (not ($known.Has .kind)) -}}
{{- fail (printf "%s needs the kind %s, which this cluster does not have. Install %s first, or set %s=%s." .value .kind .owner .value .off) -}}
{{- end -}}
{{- end -}}

{{/* Checks that the schema cannot express, or only without a reason. */}}
{{- define "dgym.checks" -}}
{{- if and .pool .Values.agents.autoscaling.enabled -}}
{{- fail "agents.autoscaling: dgym_slots counts the slots of all pools. Set replicas in each of agents.pools, or agents.autoscaling.enabled=false." -}}
{{- end -}}
{{- $replicas := include "dgym.agents.mostReplicas" . | int -}}
{{- $named := ternary "agents.autoscaling.maxReplicas" "agents.replicas" .Values.agents.autoscaling.enabled -}}
{{- if and (gt $replicas 1) (include "dgym.results.oneNode" .) -}}
{{- fail (printf "%s > 1: all agent pods write results, but a volume with accessModes [ReadWriteOnce] can be mounted on only one node. Set results.s3.bucket, or set results.persistence.accessModes to [ReadWriteMany] with a storage class that supports it." $named) -}}
{{- end -}}
{{- $volume := .Values.results.persistence.enabled -}}
{{- if and (gt $replicas 1) (not .Values.results.s3.bucket) (not $volume) -}}
{{- fail (printf "%s > 1: without a shared store, agent pods cannot read each other's results, and an episode that moves to another agent pod starts again. Set results.s3.bucket, or results.persistence.enabled with accessModes [ReadWriteMany]." $named) -}}
{{- end -}}
{{- if and .Values.agents.existingSecret (include "dgym.agents.llmConfig" .) -}}
{{- fail "agents.existingSecret and agents.llmConfig both define the models; set only one of them." -}}
{{- end -}}
{{- end -}}

{{- define "dgym.checkPools" -}}
{{- $names := list -}}
{{- $owners := dict -}}
{{- range .Values.agents.pools -}}
{{- $pool := . -}}
{{- if has .name $names -}}
{{- fail (printf "agents.pools: two pools have the name %s; give each pool its own name." .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- range .namespaces -}}
{{- if hasKey $owners . -}}
{{- fail (printf "agents.pools: namespace %s is in the pools %s and %s; a namespace can be in one pool only: remove it from one." . (get $owners .) $pool.name) -}}
{{- end -}}
{{- if and $.Values.watchNamespaces (not (has . $.Values.watchNamespaces)) -}}
{{- fail (printf "agents.pools: namespace %s of pool %s is not one of watchNamespaces, so that the operator does not serve it; add it there." . $pool.name) -}}
{{- end -}}
{{- $_ := set $owners . $pool.name -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The annotations by which a Prometheus discovers pods. */}}
{{- define "dgym.scrapeAnnotations" -}}
{{- if .root.Values.metrics.annotations -}}
prometheus.io/scrape: "true"
prometheus.io/port: {{ .port | quote }}
prometheus.io/path: /metrics
{{- end -}}
{{- end -}}
