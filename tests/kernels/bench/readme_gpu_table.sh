#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The README's tables of GPU kernels are those that gemmbench makes of the committed reports; where
# there are no reports, there is nothing. With --update it writes them.
# usage: readme_gpu_table.sh GEMMBENCH README REPORTS [--update], REPORTS a folder of *.json
set -euo pipefail
gemmbench=$1
readme=$2
reports=$3

begin="<!-- gpu: begin, written by tests/kernels/bench/readme_gpu_table.sh --update -->"
end="<!-- gpu: end -->"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

shopt -s nullglob
files=("$reports"/*.json)
: >"$work/table"
if ((${#files[@]} > 0)); then "$gemmbench" --table "${files[@]}" >"$work/table"; fi

if ! awk -v begin="$begin" -v end="$end" -v file="$work/table" '
  $0 == end { inside = 0; ++found }
  !inside { print }
  $0 == begin { inside = 1; ++found; while ((getline line < file) > 0) print line }
  END { exit found != 2 }' "$readme" >"$work/README.md"; then
  echo "$readme has not one pair of marks: $begin, $end" >&2
  exit 1
fi
if [[ ${4:-} == --update ]]; then
  cp "$work/README.md" "$readme"
elif ! diff -u "$readme" "$work/README.md"; then
  echo "$readme's tables are not those of $reports: run $0 GEMMBENCH README REPORTS --update" >&2
  exit 1
fi
