#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The check of README.md's metrics passes on README.md, and fails where a row is missing, where one is
# too many, and where the marks are gone.
# usage: readme_metrics_test.sh GEMMD
set -euo pipefail
gemmd=$1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readme="$here/../../README.md"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$here/readme_metrics.sh" "$gemmd"

# fails WHAT SED: not one of the changed copies may pass.
fails() {
  sed "$2" "$readme" >"$work/README.md"
  cmp -s "$readme" "$work/README.md" && { echo "$1: nothing has changed" >&2; exit 1; }
  if "$here/readme_metrics.sh" "$gemmd" "$work/README.md" >/dev/null 2>&1; then
    echo "$1 is not noticed" >&2
    exit 1
  fi
}
fails "a missing row" '/^| `gemmd_draining`/d'
fails "a row too many" 's/^| `gemmd_draining`.*/&\n&/'
fails "another meaning" '/^| `gemmd_draining`/s/1 while/2 while/'
fails "a missing mark" '/^<!-- metrics: end -->$/d'
