#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The table of metrics in README.md is the one that the daemon prints. With --update it writes it.
# usage: readme_metrics.sh GEMMD [--update | README]
set -euo pipefail
gemmd=$1
readme=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/README.md
if [[ -n ${2:-} && $2 != --update ]]; then readme=$2; fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$gemmd" --list-metrics >"$work/table"
begin='<!-- metrics: begin, written by tests/end_to_end/readme_metrics.sh --update -->'
awk -v begin="$begin" -v end='<!-- metrics: end -->' -v file="$work/table" '
  $0 == end { inside = 0; ++found }
  !inside { print }
  $0 == begin {
    inside = 1; ++found
    print "<details><summary>Every metric</summary>\n"
    while ((getline line < file) > 0) print line
    print "</details>"
  }
  END { exit found != 2 }' "$readme" >"$work/README.md" ||
  { echo "README.md has not one pair of marks for metrics" >&2; exit 1; }

if [[ ${2:-} == --update ]]; then
  cp "$work/README.md" "$readme"
elif ! diff -u "$readme" "$work/README.md"; then
  echo "README.md's metrics are not the daemon's: run $0 GEMMD --update" >&2
  exit 1
fi
