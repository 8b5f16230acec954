{{/*
Restrictions of the objects that the operator's account may create. A role can only restrict kinds; these policies restrict
fields. Each is a YAML list of validations; `object` is what the API server would store, after every mutation.
*/}}

{{/* A pod is the sandbox of an Episode, without access to its node and to the namespace's accounts and Secrets. */}}
{{- define "dgym.admission.pods" -}}
{{- $policy := .Values.operator.admissionPolicy -}}
- expression: >-
    has(object.metadata.ownerReferences) && object.metadata.ownerReferences.size() == 1 &&
    (object.metadata.ownerReferences[0].kind == 'Episode' ||
    (object.metadata.ownerReferences[0].kind == 'SandboxPool' && request.operation == 'CREATE')) &&
    object.metadata.ownerReferences[0].apiVersion.startsWith('dgym.dev/') &&
    object.metadata.ownerReferences[0].?controller.orValue(false)
  message: "a pod of the operator must have exactly one owner, an Episode or a SandboxPool that controls it"
- expression: >-
    request.operation == 'CREATE' || (oldObject.metadata.?ownerReferences.orValue([]).size() == 1 &&
    oldObject.metadata.ownerReferences[0].kind == 'SandboxPool' &&
    oldObject.metadata.ownerReferences[0].apiVersion.startsWith('dgym.dev/') &&
    oldObject.metadata.?labels['app.kubernetes.io/component'].orValue('') == 'sandbox')
  message: "the operator may only change a pod of a SandboxPool that an Episode claims"
- expression: >-
    request.operation == 'CREATE' || object.spec.containers == oldObject.spec.containers
  message: "an Episode that claims a pod of a SandboxPool must not change its containers"
- expression: >-
    object.metadata.?labels['app.kubernetes.io/name'].orValue('') == 'dgym' &&
    object.metadata.labels[?'app.kubernetes.io/component'].orValue('') == 'sandbox' &&
    (object.metadata.labels[?'dgym.dev/episode'].orValue('') != '' ||
    object.metadata.ownerReferences[0].kind == 'SandboxPool') &&
    !('dgym.dev/driver' in object.metadata.labels)
  message: "a pod of the operator must have the labels by which the NetworkPolicy selects sandboxes, and not the label of a driver, which may reach other sandboxes"
- expression: >-
    !(request.namespace in ['kube-system', 'kube-public', 'kube-node-lease'])
  message: "a sandbox must not run in a namespace of Kubernetes itself"
- expression: >-
    !object.spec.?hostNetwork.orValue(false) && !object.spec.?hostPID.orValue(false) &&
    !object.spec.?hostIPC.orValue(false) && !object.spec.?shareProcessNamespace.orValue(false)
  message: "a sandbox pod must not share namespaces with its node, and its containers must not share processes"
- expression: >-
    !object.spec.?automountServiceAccountToken.orValue(true)
  message: "a sandbox pod must have automountServiceAccountToken: false"
- expression: >-
    object.spec.?volumes.orValue([]).all(volume,
    {{- range $index, $kind := $policy.volumes }}
    {{ if $index }}|| {{ end }}has(volume.{{ $kind }}){{ end }})
  message: {{ printf "a sandbox pod may only have volumes of these types: %s (the value operator.admissionPolicy.volumes)" (join ", " $policy.volumes) | quote }}
- expression: >-
    object.spec.?volumes.orValue([]).all(volume, !has(volume.projected) ||
    volume.projected.?sources.orValue([]).all(source, !has(source.serviceAccountToken) && !has(source.secret)))
  message: "a sandbox pod must not have a service account token or a Secret"
- expression: >-
    variables.containers.all(container, !has(container.envFrom) && container.?env.orValue([]).all(variable,
    !has(variable.valueFrom) || has(variable.valueFrom.fieldRef) || has(variable.valueFrom.resourceFieldRef)))
  message: "the environment of a sandbox pod must not refer to a Secret or a ConfigMap"
- expression: >-
    variables.containers.all(container, has(container.securityContext) &&
    !container.securityContext.?privileged.orValue(false) &&
    !container.securityContext.?allowPrivilegeEscalation.orValue(true))
  message: "every container of a sandbox pod must have allowPrivilegeEscalation: false and must not be privileged"
- expression: >-
    variables.containers.all(container, container.?securityContext.capabilities.add.orValue([]).size() == 0 &&
    'ALL' in container.?securityContext.capabilities.drop.orValue([]))
  message: "every container of a sandbox pod must drop ALL capabilities and must not add any"
- expression: >-
    object.spec.?securityContext.seccompProfile.type.orValue('') in ['RuntimeDefault', 'Localhost'] &&
    object.spec.?securityContext.appArmorProfile.type.orValue('') != 'Unconfined' &&
    variables.containers.all(container,
    container.?securityContext.seccompProfile.type.orValue('') != 'Unconfined' &&
    container.?securityContext.appArmorProfile.type.orValue('') != 'Unconfined' &&
    container.?securityContext.procMount.orValue('Default') == 'Default')
  message: "a sandbox pod must have the seccomp profile RuntimeDefault or Localhost; its containers must not be unconfined or have an unmasked /proc"
- expression: >-
    !has(object.spec.securityContext.sysctls) && !has(object.spec.securityContext.windowsOptions) &&
    object.metadata.?annotations.orValue({}).all(name,
    !name.startsWith('container.apparmor.security.beta.kubernetes.io/') &&
    !name.startsWith('container.seccomp.security.alpha.kubernetes.io/') &&
    !name.startsWith('seccomp.security.alpha.kubernetes.io/'))
  message: "a sandbox pod must not set sysctls or have annotations that change its confinement"
- expression: >-
    variables.containers.all(container, !has(container.volumeDevices) &&
    container.?ports.orValue([]).all(port, port.?hostPort.orValue(0) == 0))
  message: "a sandbox pod must not use ports or block devices of its node"
- expression: >-
    (request.operation == 'UPDATE' || !has(object.spec.nodeName)) && !object.spec.?priorityClassName.orValue('').startsWith('system-')
  message: "a sandbox pod must be placed by the scheduler, with a priority below that of the system's own pods"
- expression: >-
    object.spec.?restartPolicy.orValue('') == 'Never' && has(object.spec.activeDeadlineSeconds)
  message: "a sandbox pod must have restartPolicy: Never and activeDeadlineSeconds"
{{- if .Values.sandboxes.runtimeClassName }}
- expression: >-
    object.spec.?runtimeClassName.orValue('') != ''
  message: "a sandbox pod must have a RuntimeClass (the value sandboxes.runtimeClassName)"
{{- end }}
{{- if .Values.sandboxes.userNamespaces }}
- expression: >-
    !object.spec.?hostUsers.orValue(true)
  message: "a sandbox pod must have hostUsers: false (the value sandboxes.userNamespaces); an API server without user namespaces drops the field"
{{- end }}
{{- end -}}

{{- define "dgym.admission.podVariables" -}}
- name: containers
  expression: >-
    object.spec.containers + object.spec.?initContainers.orValue([])
{{- end -}}

{{/* In the release's namespace the cluster's key and its tokens. Elsewhere the Secrets of external drivers. */}}
{{- define "dgym.admission.secrets" -}}
- expression: >-
    object.?type.orValue('Opaque') == 'Opaque'
  message: "a Secret of the operator must be of the type Opaque, not a token of a service account or for a cluster"
- expression: >-
    variables.own || (object.metadata.?ownerReferences.orValue([]).size() == 1 &&
    object.metadata.ownerReferences[0].kind == 'Pod' && object.metadata.ownerReferences[0].apiVersion == 'v1' &&
    object.metadata.name.startsWith(object.metadata.ownerReferences[0].name + '-driver-') &&
    object.metadata.?labels['dgym.dev/episode'].orValue('') != '')
  message: "a Secret of the operator must be a Secret of the release, or the Secret of a driver that the attempt's pod owns"
- expression: >-
    variables.own || (object.?immutable.orValue(false) &&
    object.?data.orValue({}).all(name, name in ['url', 'token']))
  message: "the Secret of a driver must be immutable and must only contain url and token"
{{- end -}}

{{- define "dgym.admission.secretVariables" -}}
- name: own
  expression: >-
    request.namespace == '{{ .Release.Namespace }}' &&
    object.metadata.name in [{{ range $index, $name := fromJsonArray (include "dgym.ownSecrets" .) }}{{ if $index }}, {{ end }}'{{ $name }}'{{ end }}]
{{- end -}}

{{/* The only policy of sandboxes. Pods that may reach them are selected by labels. Sandboxes cannot reach anything. */}}
{{- define "dgym.admission.networkpolicies" -}}
- expression: >-
    object.metadata.name == 'dgym-sandbox'
  message: "the operator's NetworkPolicy must have the name dgym-sandbox"
- expression: >-
    !has(object.spec.podSelector.matchExpressions) && object.spec.podSelector.?matchLabels.orValue({}) ==
    {'app.kubernetes.io/name': 'dgym', 'app.kubernetes.io/component': 'sandbox'}
  message: "the operator's NetworkPolicy must only select sandboxes"
- expression: >-
    'Ingress' in object.spec.?policyTypes.orValue([]) && 'Egress' in object.spec.?policyTypes.orValue([]) &&
    object.spec.?egress.orValue([]).size() == 0
  message: "the operator's NetworkPolicy must not allow egress from sandboxes"
- expression: >-
    object.spec.?ingress.orValue([]).all(rule, rule.?ports.orValue([]).size() > 0 &&
    rule.?from.orValue([]).size() > 0 && rule.from.all(peer, !has(peer.ipBlock) &&
    (peer.?podSelector.matchLabels.orValue({}).size() > 0 ||
    peer.?podSelector.matchExpressions.orValue([]).size() > 0)))
  message: "the operator's NetworkPolicy must only allow ingress from pods that it selects by labels, and on ports that it names"
{{- end -}}

{{/* The fixed lists of tasks of sets. */}}
{{- define "dgym.admission.configmaps" -}}
- expression: >-
    object.metadata.?ownerReferences.orValue([]).size() == 1 &&
    object.metadata.ownerReferences[0].kind == 'EpisodeSet' &&
    object.metadata.ownerReferences[0].apiVersion.startsWith('dgym.dev/') && object.?immutable.orValue(false)
  message: "a ConfigMap of the operator must be immutable and owned by an EpisodeSet"
{{- end -}}

{{- define "dgym.admission.leases" -}}
- expression: >-
    object.metadata.name == 'dgym-owner' ||
    (request.namespace == '{{ .Release.Namespace }}' && object.metadata.name == 'dgym-operator')
  message: "the operator's Leases must have the name dgym-owner or, in the release's namespace, dgym-operator"
{{- end -}}
