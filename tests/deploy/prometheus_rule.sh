#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Compares the PrometheusRule for Kubernetes with deploy/prometheus/rules.yaml, from which it is
# made; with --update writes it.
set -euo pipefail

deploy=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../deploy" && pwd)
resource="$deploy/kubernetes/components/monitoring/prometheus_rule.yaml"

render() {
  cat <<'END'
# SPDX-License-Identifier: Apache-2.0
#
# deploy/prometheus/rules.yaml for the Prometheus operator. Change it there, then run
# tests/deploy/prometheus_rule.sh --update
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: gemmd
  labels:
    app.kubernetes.io/name: gemmd
    app.kubernetes.io/component: daemon
    app.kubernetes.io/part-of: gemmd
spec:
END
  sed -n '/^groups:/,$p' "$deploy/prometheus/rules.yaml" | sed '/./s/^/  /'
}

if [[ ${1:-} == --update ]]; then
  render >"$resource"
else
  diff --unified "$resource" <(render)
fi
