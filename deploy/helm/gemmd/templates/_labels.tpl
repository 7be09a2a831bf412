{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{/* What selects the pods of this release. */}}
{{- define "gemmd.selector" -}}
app.kubernetes.io/name: gemmd
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: daemon
{{- end }}

{{/* The labels of everything; the component is for each to say. */}}
{{- define "gemmd.labels" -}}
app.kubernetes.io/name: gemmd
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/part-of: gemmd
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}
