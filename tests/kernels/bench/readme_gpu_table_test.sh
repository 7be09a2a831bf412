#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The check of the README's GPU tables passes, and finds a number that was changed by hand, a report
# that says that something was wrong, and marks that are gone.
# usage: readme_gpu_table_test.sh GEMMBENCH
set -euo pipefail
gemmbench=$1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
check=$here/readme_gpu_table.sh

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/reports"
printf '%s\n' before '<!-- gpu: begin, written by tests/kernels/bench/readme_gpu_table.sh --update -->' \
  '<!-- gpu: end -->' after >"$work/README.md"

passes() { "$check" "$gemmbench" "$work/README.md" "$work/reports" "$@" >"$work/log" 2>&1; }
fails() { # fails WHY WORDS: the check fails and says so.
  if passes; then
    echo "not found: $1" >&2
    exit 1
  fi
  grep -q -- "$2" "$work/log" || { cat "$work/log" >&2; exit 1; }
}

passes # No reports, no tables.
cp "$here/example_report.json" "$work/reports/example.json"
fails "tables that are missing" "tables are not those of"
passes --update
passes
grep -q '^| `mma.m16n8k16.f32.bf16.bf16.f32_128x256x64_w2x4_s3` | 8192x8192x8192 | rcr | 550 |' \
  "$work/README.md"
[[ $(head -1 "$work/README.md") == before && $(tail -1 "$work/README.md") == after ]]

sed -i 's/| 550 |/| 560 |/' "$work/README.md"
fails "a number changed by hand" "tables are not those of"
passes --update

sed -i 's/"mismatches": 0/"mismatches": 1/' "$work/reports/example.json"
fails "a report of wrong results" "elements compared, 1 wrong"
cp "$here/example_report.json" "$work/reports/example.json"

sed -i '/gpu: end/d' "$work/README.md"
fails "a mark that is gone" "not one pair of marks"
echo "the tables are checked, and every planted fault is found"
