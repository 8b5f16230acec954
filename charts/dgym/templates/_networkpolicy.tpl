{{- define "dgym.networkPolicy.dns" -}}
- ports:
    - port: 53
      protocol: UDP
    - port: 53
      protocol: TCP
{{- end -}}

{{/* Sidecars, in the namespaces of all episodes. */}}
{{- define "dgym.networkPolicy.sandboxes" -}}
- to:
    - namespaceSelector: {}
      podSelector:
        matchLabels:
          app.kubernetes.io/name: dgym
          app.kubernetes.io/component: sandbox
  ports:
    - port: 8080
      protocol: TCP
{{- end -}}

{{- define "dgym.networkPolicy.metrics" -}}
{{- with .Values.networkPolicy.metricsNamespace }}
- namespaceSelector:
    matchLabels:
      kubernetes.io/metadata.name: {{ . }}
{{- end }}
{{- end -}}

{{/* The egress ports of agent pods besides sidecars: those in the values, and those of addresses in the values. */}}
{{- define "dgym.networkPolicy.agentPorts" -}}
{{- $ports := list -}}
{{- range .Values.networkPolicy.agents.ports -}}
{{- $ports = append $ports (int .) -}}
{{- end -}}
{{- range .Values.agents.sourceHosts -}}
{{- with regexFind ":[0-9]+$" . -}}
{{- $ports = append $ports (trimPrefix ":" . | int) -}}
{{- end -}}
{{- end -}}
{{- $addresses := list (include "dgym.agents.llmConfig" .) .Values.results.s3.endpoint .Values.tracing.endpoint .Values.proxy.http .Values.proxy.https | join " " -}}
{{- /* User names and passwords can also contain colons and digits. */ -}}
{{- $addresses = regexReplaceAll "://[^/\\s'\",@]*@" $addresses "://" -}}
{{- range regexFindAll "https?://[^/\\s'\",]+:[0-9]+" $addresses -1 -}}
{{- $ports = append $ports (regexFind "[0-9]+$" . | int) -}}
{{- end -}}
{{- range $ports | uniq }}
- port: {{ . }}
  protocol: TCP
{{- end }}
{{- end -}}
