{{/* What the pods of hooks and tests have in common with the operator's: where they run, and as whom. */}}
{{- define "dgym.hooks.pod" -}}
{{- include "dgym.imagePullSecrets" . }}
{{- with .Values.operator.podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.operator.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.operator.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.operator.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{- define "dgym.hooks.container" -}}
image: {{ include "dgym.image" (dict "root" . "image" .Values.operator.image) }}
imagePullPolicy: {{ .Values.operator.image.pullPolicy }}
resources:
  requests:
    cpu: 50m
    memory: 64Mi
  limits:
    memory: 256Mi
{{- with .Values.operator.securityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
