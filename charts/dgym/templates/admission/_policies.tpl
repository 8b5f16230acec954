{{/*
What the operator's account may create, beyond what roles can say: a role names kinds, these policies what is in them. Each
is a YAML list of validations; `object` is what the API server would store, after every mutation.
*/}}

{{/* A pod is the sandbox of an Episode: nothing of its node, of the namespace's accounts and of its Secrets is in it. */}}
{{- define "dgym.admission.pods" -}}
{{- $policy := .Values.operator.admissionPolicy -}}
- expression: >-
    has(object.metadata.ownerReferences) && object.metadata.ownerReferences.size() == 1 &&
    (object.metadata.ownerReferences[0].kind == 'Episode' ||
    (object.metadata.ownerReferences[0].kind == 'SandboxPool' && request.operation == 'CREATE')) &&
    object.metadata.ownerReferences[0].apiVersion.startsWith('dgym.dev/') &&
    object.metadata.ownerReferences[0].?controller.orValue(false)
  message: "a pod of the operator is controlled by one Episode or SandboxPool, and by nothing else"
- expression: >-
    request.operation == 'CREATE' || (oldObject.metadata.?ownerReferences.orValue([]).size() == 1 &&
    oldObject.metadata.ownerReferences[0].kind == 'SandboxPool' &&
    oldObject.metadata.ownerReferences[0].apiVersion.startsWith('dgym.dev/') &&
    oldObject.metadata.?labels['app.kubernetes.io/component'].orValue('') == 'sandbox')
  message: "the operator changes no pod but one of a SandboxPool that an Episode takes"
- expression: >-
    request.operation == 'CREATE' || object.spec.containers == oldObject.spec.containers
  message: "an Episode takes a pod of a SandboxPool with the containers that it has"
- expression: >-
    object.metadata.?labels['app.kubernetes.io/name'].orValue('') == 'dgym' &&
    object.metadata.labels[?'app.kubernetes.io/component'].orValue('') == 'sandbox' &&
    (object.metadata.labels[?'dgym.dev/episode'].orValue('') != '' ||
    object.metadata.ownerReferences[0].kind == 'SandboxPool') &&
    !('dgym.dev/driver' in object.metadata.labels)
  message: "a pod of the operator has the labels of a sandbox, by which the NetworkPolicy selects it, and none that opens other sandboxes to it"
- expression: >-
    !(request.namespace in ['kube-system', 'kube-public', 'kube-node-lease'])
  message: "no sandbox runs in a namespace of Kubernetes itself"
- expression: >-
    !object.spec.?hostNetwork.orValue(false) && !object.spec.?hostPID.orValue(false) &&
    !object.spec.?hostIPC.orValue(false) && !object.spec.?shareProcessNamespace.orValue(false)
  message: "a sandbox pod shares no namespace of its node, and its containers no processes"
- expression: >-
    !object.spec.?automountServiceAccountToken.orValue(true)
  message: "a sandbox pod has automountServiceAccountToken: false"
- expression: >-
    object.spec.?volumes.orValue([]).all(volume,
    {{- range $index, $kind := $policy.volumes }}
    {{ if $index }}|| {{ end }}has(volume.{{ $kind }}){{ end }})
  message: {{ printf "a sandbox pod has volumes of these kinds only: %s (the value operator.admissionPolicy.volumes)" (join ", " $policy.volumes) | quote }}
- expression: >-
    object.spec.?volumes.orValue([]).all(volume, !has(volume.projected) ||
    volume.projected.?sources.orValue([]).all(source, !has(source.serviceAccountToken) && !has(source.secret)))
  message: "a sandbox pod has no token of a service account and no Secret"
- expression: >-
    variables.containers.all(container, !has(container.envFrom) && container.?env.orValue([]).all(variable,
    !has(variable.valueFrom) || has(variable.valueFrom.fieldRef) || has(variable.valueFrom.resourceFieldRef)))
  message: "the environment of a sandbox pod comes from no Secret and no ConfigMap"
- expression: >-
    variables.containers.all(container, has(container.securityContext) &&
    !container.securityContext.?privileged.orValue(false) &&
    !container.securityContext.?allowPrivilegeEscalation.orValue(true))
  message: "every container of a sandbox pod has allowPrivilegeEscalation: false, and none is privileged"
- expression: >-
    variables.containers.all(container, container.?securityContext.capabilities.add.orValue([]).size() == 0 &&
    'ALL' in container.?securityContext.capabilities.drop.orValue([]))
  message: "every container of a sandbox pod drops ALL capabilities and adds none"
- expression: >-
    object.spec.?securityContext.seccompProfile.type.orValue('') in ['RuntimeDefault', 'Localhost'] &&
    object.spec.?securityContext.appArmorProfile.type.orValue('') != 'Unconfined' &&
    variables.containers.all(container,
    container.?securityContext.seccompProfile.type.orValue('') != 'Unconfined' &&
    container.?securityContext.appArmorProfile.type.orValue('') != 'Unconfined' &&
    container.?securityContext.procMount.orValue('Default') == 'Default')
  message: "a sandbox pod has the seccomp profile RuntimeDefault or Localhost; no container of it is unconfined, or sees an unmasked /proc"
- expression: >-
    !has(object.spec.securityContext.sysctls) && !has(object.spec.securityContext.windowsOptions) &&
    object.metadata.?annotations.orValue({}).all(name,
    !name.startsWith('container.apparmor.security.beta.kubernetes.io/') &&
    !name.startsWith('container.seccomp.security.alpha.kubernetes.io/') &&
    !name.startsWith('seccomp.security.alpha.kubernetes.io/'))
  message: "a sandbox pod sets no sysctl, and has no annotation that changes its confinement"
- expression: >-
    variables.containers.all(container, !has(container.volumeDevices) &&
    container.?ports.orValue([]).all(port, port.?hostPort.orValue(0) == 0))
  message: "a sandbox pod has no port and no block device of its node"
- expression: >-
    (request.operation == 'UPDATE' || !has(object.spec.nodeName)) && !object.spec.?priorityClassName.orValue('').startsWith('system-')
  message: "a sandbox pod is placed by the scheduler, below the priority of the system's own pods"
- expression: >-
    object.spec.?restartPolicy.orValue('') == 'Never' && has(object.spec.activeDeadlineSeconds)
  message: "a sandbox pod has restartPolicy: Never and activeDeadlineSeconds"
{{- if .Values.sandboxes.runtimeClassName }}
- expression: >-
    object.spec.?runtimeClassName.orValue('') != ''
  message: "a sandbox pod has a RuntimeClass (the value sandboxes.runtimeClassName)"
{{- end }}
{{- if .Values.sandboxes.userNamespaces }}
- expression: >-
    !object.spec.?hostUsers.orValue(true)
  message: "a sandbox pod has hostUsers: false (the value sandboxes.userNamespaces); an API server without user namespaces drops the field"
{{- end }}
{{- end -}}

{{- define "dgym.admission.podVariables" -}}
- name: containers
  expression: >-
    object.spec.containers + object.spec.?initContainers.orValue([])
{{- end -}}

{{/* The key and its tokens in the release's namespace; elsewhere what drivers of Episodes without agent need. */}}
{{- define "dgym.admission.secrets" -}}
- expression: >-
    object.?type.orValue('Opaque') == 'Opaque'
  message: "a Secret of the operator is Opaque: no token of a service account, and none that opens a cluster"
- expression: >-
    variables.own || (object.metadata.?ownerReferences.orValue([]).size() == 1 &&
    object.metadata.ownerReferences[0].kind == 'Pod' && object.metadata.ownerReferences[0].apiVersion == 'v1' &&
    object.metadata.name.startsWith(object.metadata.ownerReferences[0].name + '-driver-') &&
    object.metadata.?labels['dgym.dev/episode'].orValue('') != '')
  message: "a Secret of the operator is that of a driver, which the attempt's pod owns, or one of the release's own"
- expression: >-
    variables.own || (object.?immutable.orValue(false) &&
    object.?data.orValue({}).all(name, name in ['url', 'token']))
  message: "the Secret of a driver is immutable and holds url and token"
{{- end -}}

{{- define "dgym.admission.secretVariables" -}}
- name: own
  expression: >-
    request.namespace == '{{ .Release.Namespace }}' &&
    object.metadata.name in [{{ range $index, $name := fromJsonArray (include "dgym.ownSecrets" .) }}{{ if $index }}, {{ end }}'{{ $name }}'{{ end }}]
{{- end -}}

{{/* The one policy of sandboxes: whoever reaches them is named by labels, and they reach nobody. */}}
{{- define "dgym.admission.networkpolicies" -}}
- expression: >-
    object.metadata.name == 'dgym-sandbox'
  message: "the operator's NetworkPolicy has the name dgym-sandbox"
- expression: >-
    !has(object.spec.podSelector.matchExpressions) && object.spec.podSelector.?matchLabels.orValue({}) ==
    {'app.kubernetes.io/name': 'dgym', 'app.kubernetes.io/component': 'sandbox'}
  message: "the operator's NetworkPolicy selects sandboxes, and nothing else"
- expression: >-
    'Ingress' in object.spec.?policyTypes.orValue([]) && 'Egress' in object.spec.?policyTypes.orValue([]) &&
    object.spec.?egress.orValue([]).size() == 0
  message: "the operator's NetworkPolicy lets sandboxes reach nobody"
- expression: >-
    object.spec.?ingress.orValue([]).all(rule, rule.?ports.orValue([]).size() > 0 &&
    rule.?from.orValue([]).size() > 0 && rule.from.all(peer, !has(peer.ipBlock) &&
    (peer.?podSelector.matchLabels.orValue({}).size() > 0 ||
    peer.?podSelector.matchExpressions.orValue([]).size() > 0)))
  message: "the operator's NetworkPolicy admits to sandboxes the pods that it names by labels, on the ports that it names"
{{- end -}}

{{/* The frozen lists of tasks. */}}
{{- define "dgym.admission.configmaps" -}}
- expression: >-
    object.metadata.?ownerReferences.orValue([]).size() == 1 &&
    object.metadata.ownerReferences[0].kind == 'EpisodeSet' &&
    object.metadata.ownerReferences[0].apiVersion.startsWith('dgym.dev/') && object.?immutable.orValue(false)
  message: "a ConfigMap of the operator is immutable, and an EpisodeSet owns it"
{{- end -}}

{{- define "dgym.admission.leases" -}}
- expression: >-
    object.metadata.name == 'dgym-owner' ||
    (request.namespace == '{{ .Release.Namespace }}' && object.metadata.name == 'dgym-operator')
  message: "the operator's Leases have the names dgym-operator, in the release's namespace, and dgym-owner"
{{- end -}}
